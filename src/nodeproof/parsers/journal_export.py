"""The journal as fields, one a line: `journalctl -o verbose` and `-o export`.

In the export format a value that is no single line of text stands behind its length, eight bytes
little-endian (systemd's Journal Export Formats); an empty line ends a record. In the verbose one
fields are indented below a line with time and cursor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodeproof.parsers.journal_records import Record
from nodeproof.parsers.reading import text_of

_LOOKED_AT = 1 << 16  # bytes: a record's own fields stand long before
_HAS = re.compile(rb"^(?:    )?_TRANSPORT=[a-z]", re.MULTILINE)
_FIELD = re.compile(
    rb"(?P<indent>[ \t]*)(?P<name>[A-Z_][A-Z0-9_]{0,63})(?:=(?P<value>.*))?$", re.DOTALL
)


def exported(data: bytes) -> bool:
    """Whether a text is the journal in one of these formats."""
    head = data[:_LOOKED_AT]
    return b"MESSAGE" in head and _HAS.search(head) is not None


def records(data: bytes) -> Iterator[tuple[int, Record]]:
    """Yield each record with the byte at which it begins."""
    record: dict[str, object] = {}
    begin = place = 0
    while place < len(data):
        end = data.find(b"\n", place)
        end = len(data) if end < 0 else end
        found = _FIELD.match(data[place:end].rstrip(b"\r"))
        following = end + 1
        if found is None:
            if record:
                yield begin, record
            record, begin = {}, following
        elif found["value"] is not None:
            _add(record, found["name"], text_of(found["value"]))
        elif not found["indent"]:
            size = int.from_bytes(data[following : following + 8], "little")
            body = data[following + 8 : following + 8 + size]
            whole = len(body) == size
            _add(record, found["name"], text_of(body) if whole else None)
            following += 8 + size + 1
        place = following
    if record:
        yield begin, record


def _add(record: dict[str, object], name: bytes, value: str | None) -> None:
    key = name.decode("ascii")
    before = record.get(key)
    if before is None:
        record[key] = value
    elif isinstance(before, list):
        before.append(value)
    else:
        record[key] = [before, value]
