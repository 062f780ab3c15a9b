"""What a reader of texts gives back: a grade, a sentence, and the facts that were read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from typing import Any

Context = Mapping[str, Any]  # what is known beside the text; absent means that nothing is known


class Grade(StrEnum):
    """What a gate decides on a new, idle node from one text and its context alone."""

    PASS = "pass"  # benign or healthy
    WARN = "warn"  # to be recorded; does not decide by itself
    FAIL = "fail"  # a fault is shown
    ERROR = "error"  # could not be judged: never a pass, and blames no GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A text as it was understood. `fields` are plain JSON values.

    `why` is the reason for the grade in one sentence: what is wrong, with which device, what to do.
    """

    grade: Grade
    why: str
    fields: Mapping[str, Any] = field(default_factory=dict)


Reader = Callable[[bytes, Context], Reading]

KINDS = (
    "kernel_log",
    "journal_json",
    "fabricmanager_log",
    "dcgm_json",
    "dcgm_text",
    "dcgm_health_text",
    "fi_info",
    "nccl_tests_text",
    "nccl_log",
)


def reader(kind: str) -> Reader:
    """Return the reader of a kind. Raises `KeyError` for a kind that nobody reads."""
    if kind not in KINDS:
        raise KeyError(kind)
    read: Reader = import_module(f"nodeproof.parsers.{kind}").read
    return read


def text_of(data: bytes) -> str:
    """Bytes as text, with what is no UTF-8 shown and not lost; line ends as they stand."""
    return data.decode("utf-8", "backslashreplace")
