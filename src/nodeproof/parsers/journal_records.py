"""One record of the journal: whose it is, what it says, and when (systemd.journal-fields(7))."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from nodeproof.parsers.log_lines import Line, lines_of
from nodeproof.parsers.reading import text_of

Record = Mapping[str, Any]


def unreadable(record: Record) -> bool:
    """Whether it has a message that nobody can read: null, a number, or a part that is neither."""
    return "MESSAGE" in record and message(record["MESSAGE"]) is None


def of_kernel(record: Record) -> bool:
    """Whether the kernel wrote it. `_TRANSPORT` is the journal's own: programs can't set it.

    What a program writes into the kernel's buffer comes by the same way with a facility of its own.
    """
    if _one(record.get("_TRANSPORT")) is None:
        named = _one(record.get("SYSLOG_IDENTIFIER", "kernel"))
        return named == "kernel" and "_PID" not in record
    return of_buffer(record) and str(_one(record.get("SYSLOG_FACILITY", "0"))) == "0"


def of_buffer(record: Record) -> bool:
    """Whether it came by the kernel's buffer, whoever filled it."""
    return _one(record.get("_TRANSPORT")) == "kernel"


def lines(place: int, record: Record) -> Iterator[Line]:
    """The lines of a record of the kernel; none of a program's."""
    text = message(record.get("MESSAGE")) if of_kernel(record) else None
    if text is None:
        return
    at, host = _seconds(record), _one(record.get("_HOSTNAME"))
    for part in text.split("\n"):
        for line in lines_of(place, part):
            yield replace(
                line,
                at=at if line.at is None else line.at,
                host=host if isinstance(host, str) else line.host,
            )


def message(value: object) -> str | None:
    """Return a message as text, or None where it, or a part of it, is none.

    Bytes are a list of numbers, which some writers give a sign; several values of one field are a
    list, and each may be text or bytes (systemd's Journal JSON format).
    """
    if isinstance(value, str):
        return text_of(value.encode("utf-8", "backslashreplace"))  # half a surrogate is no text
    if not isinstance(value, list):
        return None
    if all(isinstance(part, int) and not isinstance(part, bool) for part in value):
        if not all(-128 <= part < 256 for part in value):
            return None
        return text_of(bytes(part & 0xFF for part in value))
    parts = [message(part) if _flat(part) else None for part in value]
    return None if None in parts else "\n".join(part for part in parts if part is not None)


def _flat(part: object) -> bool:
    return isinstance(part, str) or (
        isinstance(part, list) and all(isinstance(byte, int) for byte in part)
    )


def _one(value: object) -> object:
    """The value of a field that is there once, or the first of several."""
    return value[0] if isinstance(value, list) and value else value


def _seconds(record: Record) -> float | None:
    for name in ("_SOURCE_MONOTONIC_TIMESTAMP", "__MONOTONIC_TIMESTAMP"):
        value = _one(record.get(name))
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
            return int(value) / 1e6
    return None
