"""What a reader of texts gives back: a grade, a sentence, and the facts that were read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from typing import Any

Context = Mapping[str, Any]  # what is known beside the text; absent means that nothing is known


class Known(StrEnum):
    """What a key of a context has to be, as a person would say it."""

    YES = "true or false"
    COUNT = "a whole number from 0 on"
    STATUS = "a whole number"
    NUMBER = "a number"
    TEXT = "a text"
    TEXTS = "a list of texts"
    PLACE = '"host" or "container"'

    def takes(self, value: object) -> bool:
        """Return whether a JSON value is one."""
        match self:
            case Known.YES:
                return isinstance(value, bool)
            case Known.COUNT:
                return type(value) is int and value >= 0
            case Known.STATUS:
                return type(value) is int
            case Known.NUMBER:
                return type(value) is int or (type(value) is float and math.isfinite(value))
            case Known.TEXT:
                return isinstance(value, str)
            case Known.TEXTS:
                return isinstance(value, list) and all(isinstance(v, str) for v in value)
        return value in ("host", "container")


# One vocabulary for all kinds; a reader takes from it what concerns its text.
CONTEXT = {
    **dict.fromkeys(("nvlink_expected", "fabric_expected", "fabric_manager_expected"), Known.YES),
    **dict.fromkeys(("mig_expected", "ecc_expected", "efa_expected", "ib_expected"), Known.YES),
    **dict.fromkeys(("issm_expected", "ipoib_used", "multi_node", "idle"), Known.YES),
    **dict.fromkeys(("gpus_expected", "ranks_expected", "efa_nics_expected"), Known.COUNT),
    **dict.fromkeys(("nvlinks_per_gpu", "nvlink_crc_limit", "width_expected"), Known.COUNT),
    **dict.fromkeys(("flap_limit", "retired_pages_limit"), Known.COUNT),
    "sram_uncorrectable_aggregate_limit": Known.COUNT,
    "exit_status": Known.STATUS,
    **dict.fromkeys(("port_gbs", "minimum_share", "temperature_limit_c"), Known.NUMBER),
    **dict.fromkeys(("minutes_since_boot", "time_limit_minutes"), Known.NUMBER),
    **dict.fromkeys(("gpu_product", "node", "test_process", "catalog"), Known.TEXT),
    **dict.fromkeys(("taint_key", "taint_effect"), Known.TEXT),
    **dict.fromkeys(("data_nics", "known_gen4_slots", "own_condition_types"), Known.TEXTS),
    "where": Known.PLACE,
}


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
