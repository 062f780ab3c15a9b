"""The journal as JSON, one record a line (`journalctl -k -o json`), or pretty, or in one list.

`MESSAGE` is text, or a list of byte values where it is none in UTF-8, or null where it was too
large to be shown (systemd's Journal JSON format): such a record is not known to be harmless.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nodeproof.parsers import kernel_log
from nodeproof.parsers.log_lines import Line, lines_of
from nodeproof.parsers.reading import Context, Grade, Reading, text_of

_BLANK = " \t\r\n\x1e\0"  # json-seq puts a record separator in front


@dataclass(slots=True)
class _Records:
    """The records of a text with their places; `broken` counts what is none."""

    found: list[tuple[int, Mapping[str, Any]]]
    broken: int = 0


def read(data: bytes, context: Context) -> Reading:
    """Read records of the kernel; `facts.unreadable_records` counts those whose message is null."""
    records = _by_line(data)
    if not records.found:
        records = _by_value(text_of(data))
    unreadable = sum("MESSAGE" in r and r["MESSAGE"] is None for _, r in records.found)
    facts = {"facts": {"unreadable_records": unreadable}}
    if not any("MESSAGE" in record for _, record in records.found):
        return Reading(
            grade=Grade.ERROR,
            why="nothing in the text is a record of the journal with a message: read it as JSON",
            fields={"events": [], **facts},
        )
    lines = [line for place, record in records.found for line in _lines(place, record)]
    found = kernel_log.reading(lines, context, **facts)
    lost = unreadable + records.broken
    if lost and found.grade is Grade.PASS:
        why = f"{lost} records can't be read, so that they are not known to be harmless"
        return replace(found, grade=Grade.WARN, why=why)
    return found


def _by_line(data: bytes) -> _Records:
    records, place = _Records([]), 0
    for raw in data.split(b"\n"):
        text = text_of(raw).strip(_BLANK)
        if text:
            value = _value(text)
            if isinstance(value, dict):
                records.found.append((place, value))
            else:
                records.broken += 1
        place += len(raw) + 1
    return records


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _by_value(text: str) -> _Records:
    """Read values that go over several lines, or stand in one list."""
    records, decoder, place = _Records([]), json.JSONDecoder(), 0
    while place < len(text):
        if text[place] in _BLANK:
            place += 1
            continue
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            records.broken += 1
            break
        values = value if isinstance(value, list) else [value]
        dicts = [v for v in values if isinstance(v, dict)]
        # Places only order lines and say which are near; within a list, any that grow will do.
        records.found += [(place + 200 * n, v) for n, v in enumerate(dicts)]
        records.broken += len(values) - len(dicts)
        place = end
    return records


def _kernels(record: Mapping[str, Any]) -> bool:
    """Whether the kernel wrote it. `_TRANSPORT` is the journal's own: programs can't set it.

    What a program writes into the kernel's buffer comes by the same way with a facility of its own.
    """
    transport = record.get("_TRANSPORT")
    if transport is None:
        return record.get("SYSLOG_IDENTIFIER", "kernel") == "kernel" and "_PID" not in record
    return transport == "kernel" and str(record.get("SYSLOG_FACILITY", "0")) == "0"


def _lines(place: int, record: Mapping[str, Any]) -> Iterator[Line]:
    message = _text(record.get("MESSAGE")) if _kernels(record) else None
    if message is None:
        return
    at, host = _seconds(record), record.get("_HOSTNAME")
    for part in message.split("\n"):
        for line in lines_of(place, part):
            yield replace(
                line,
                at=at if line.at is None else line.at,
                host=host if isinstance(host, str) else line.host,
            )


def _text(message: object) -> str | None:
    if isinstance(message, str):
        return text_of(message.encode("utf-8", "backslashreplace"))  # half a surrogate is no text
    if not isinstance(message, list):
        return None
    # Bytes are a list of numbers; several values of one field are a list of them.
    if all(isinstance(part, int) and 0 <= part < 256 for part in message):
        return text_of(bytes(message))
    return "\n".join(text for part in message if isinstance(part, str) and (text := _text(part)))


def _seconds(record: Mapping[str, Any]) -> float | None:
    for name in ("_SOURCE_MONOTONIC_TIMESTAMP", "__MONOTONIC_TIMESTAMP"):
        value = record.get(name)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
            return int(value) / 1e6
    return None
