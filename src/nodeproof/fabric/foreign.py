"""What members say to the head, read as the foreign text it is: of its type and size, or nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WORDS = 2000  # characters of a sentence that somebody else says
MOST = 32  # deaths, or troubles, of one member
# What a worker raises where others failed it. Anything else is its own node's trouble: a full disk,
# memory that somebody took, a library that is missing. It says nothing of a network.
TOGETHER = "UnfinishedError"
_NAME = re.compile(r"(?!rank )[A-Za-z0-9._:#-]{1,253}")
_RESERVED = "group"  # what all members together are called


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A member has found its devices."""

    devices: list[dict[str, Any]]
    software: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What came of one request."""

    number: int
    replies: dict[str, dict[str, Any]]  # by worker: `answer`, or `said` and `type`
    deaths: list[str]
    boot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """A member takes no part, or no further one."""

    why: str


def read(message: Mapping[str, Any]) -> Ready | Done | Leaving:
    """Read what a member says after its hello. Raises `ValueError` for what is none of these."""
    match message:
        case {"ready": {"devices": list(devices), "software": dict(software)}} if devices:
            found = [_device(row) for row in devices]
            if len({row["label"] for row in found}) != len(found):
                raise ValueError("two of its devices have one label")
            return Ready(devices=found, software={str(k): _text(v) for k, v in software.items()})
        case {
            "done": {
                "id": int(number),
                "replies": dict(replies),
                "deaths": list(deaths),
                "boot_id": str(boot),
            }
        }:
            return Done(
                number=number,
                replies={str(name): _reply(reply) for name, reply in replies.items()},
                deaths=[_text(death) for death in deaths[:MOST]],
                boot_id=_text(boot),
            )
        case {"unfit": str(why)} | {"leaving": str(why)}:
            return Leaving(why=_text(why))
    raise ValueError(f"{message!s:.80}")


def name_of(text: str) -> str:
    """Return the name of a node. Raises `ValueError` for what can't be one."""
    if not _NAME.fullmatch(text) or text == _RESERVED:
        raise ValueError(f"{text!r:.80} is no name of a node: letters, digits and . _ : # - only")
    return text


def _device(row: Any) -> dict[str, Any]:
    match row:
        case {"kind": "gpu" | "cpu", "id": str(name), "label": str(label), "facts": dict()}:
            if name and label and len(name) + len(label) < WORDS:
                return {key: row[key] for key in ("kind", "id", "label", "facts")}
    raise ValueError(f"{row!s:.80} is no device")


def _reply(reply: Any) -> dict[str, Any]:
    match reply:
        case {"answer": dict(answer)}:
            return {"answer": answer}
        case {"said": str(said), **more}:
            return {"said": _text(said), "type": _text(more.get("type", ""))}
    raise ValueError(f"{reply!s:.80} is no reply")


def _text(value: Any) -> str:
    return f"{value!s:.{WORDS}}"
