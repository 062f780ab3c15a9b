"""The journal as JSON, one record a line (`journalctl -k -o json`), or pretty, or in one list.

`MESSAGE` is text, or a list of byte values where it is none in UTF-8, or null where it was too
large to be shown (systemd's Journal JSON format): such a record is not known to be harmless. Each
line may stand behind `data: ` (`-o json-sse`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nodeproof.parsers import journal_records, kernel_log
from nodeproof.parsers.journal_records import Record
from nodeproof.parsers.log_voice import kernel_quoted, plain
from nodeproof.parsers.reading import Context, Grade, Reading, text_of

_BLANK = " \t\r\n\x1e\0"  # json-seq puts a record separator in front


@dataclass(slots=True)
class _Records:
    """The records of a text with their places; `broken` counts what is none."""

    found: list[tuple[int, Record]]
    broken: int = 0


def read(data: bytes, context: Context) -> Reading:
    """Read records of the kernel; `facts.unreadable_records` counts messages that nobody can read.

    A journal without a record of the kernel, or of a program that quotes it, is an error.
    """
    data = plain(data)
    records = _by_line(data)
    if records.broken or not records.found:
        # A broken line may be a part of a value that goes on in the next ones.
        values = _by_value(text_of(data))
        records = values if len(values.found) > len(records.found) else records
    found = [record for _, record in records.found]
    unreadable = sum(map(journal_records.unreadable, found))
    facts = {"facts": {"unreadable_records": unreadable}}
    if why := _nothing(found):
        return Reading(grade=Grade.ERROR, why=why, fields={"events": [], **facts})
    lines = [line for place, r in records.found for line in journal_records.lines(place, r)]
    got = kernel_log.reading(lines, context, **facts)
    lost = unreadable + records.broken
    if lost and got.grade is Grade.PASS:
        why = f"{lost} records can't be read, so that they are not known to be harmless"
        return replace(got, grade=Grade.WARN, why=why)
    return got


def _nothing(found: Sequence[Record]) -> str:
    """Return why records say nothing of a node, or nothing."""
    if not any("MESSAGE" in record for record in found):
        return "nothing in the text is a record of the journal with a message: read it as JSON"
    for record in found:
        if "MESSAGE" not in record:
            continue
        if journal_records.of_kernel(record) or journal_records.of_buffer(record):
            return ""
        text = journal_records.message(record["MESSAGE"])
        if text and kernel_quoted((text,)):
            return ""
    return (
        "no record of the journal is the kernel's, so that nothing is known of the node: read it "
        "with `journalctl -k -o json`"
    )


def _by_line(data: bytes) -> _Records:
    records, place, lists = _Records([]), 0, 0
    for raw in data.split(b"\n"):
        text = text_of(raw).strip(_BLANK).removeprefix("data: ").removesuffix(",")
        if text in {"[", "]"}:  # of a list with one record a line
            lists += 1 if text == "[" else -1
        elif text:
            value = _value(text)
            if isinstance(value, dict):
                records.found.append((place, value))
            else:
                records.broken += 1
        place += len(raw) + 1
    records.broken += abs(lists)  # a list without its end goes on where nobody sees it
    return records


def _value(text: str) -> object:
    # A name that stands twice keeps both values: the later one may not hide the other.
    twice = text.count('"MESSAGE"') > 1
    try:
        return json.loads(text, object_pairs_hook=_every_value if twice else None)
    except (ValueError, RecursionError):
        return None


def _every_value(pairs: list[tuple[str, object]]) -> dict[str, object]:
    said = [value for name, value in pairs if name == "MESSAGE"]
    return dict(pairs) | ({"MESSAGE": said} if len(said) > 1 else {})


def _by_value(text: str) -> _Records:
    """Read values that go over several lines, or stand in one list."""
    records, decoder, place = _Records([]), json.JSONDecoder(object_pairs_hook=_every_value), 0
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
