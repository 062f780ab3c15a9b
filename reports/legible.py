r"""Foreign text made fit for a report: every character visible, no value endless.

What a device, a driver or an exception says may hold terminal escapes, NUL, halves of surrogate
pairs, marks that turn the direction of writing, or a megabyte. Such characters become their escape
as text (`\x1b`), so that nothing is lost from sight and no reader refuses the file: XML 1.0
forbids most of them in any spelling, and a lone surrogate can't be written as UTF-8 at all.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from nodeproof.results import plain

LINE = 300  # characters of a headline
NAME = 200  # characters of a name or a label
TEXT = 20_000  # characters of a body
_DEPTH = 20  # levels of a document

# All but tab and line feed of the controls; surrogates, non-characters, and what reorders or
# breaks lines unseen.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
    "\ufdd0-\ufdef\ufeff\ufffe\uffff]"
)


def legible(value: object, limit: int = TEXT) -> str:
    """Return `value` as text without unseen characters, and say how much of it was left out."""
    text = _text(value)
    more = len(text) - limit
    shown = _UNSEEN.sub(_escape, text[:limit].replace("\r\n", "\n"))
    return f"{shown} ... ({more} more characters in the results file)" if more > 0 else shown


def headline(value: object) -> str:
    """Return the first line of `value` that says something."""
    lines = (line.strip() for line in legible(value, LINE).split("\n"))
    return next((line for line in lines if line), "")


def name(value: object) -> str:
    """Return `value` in one line and short, still different for what differs."""
    text = _text(value)
    shown = legible(text, len(text)).replace("\n", "\\n").replace("\t", "\\t")
    if len(shown) <= NAME:
        return shown
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{shown[: NAME - 13]}~{digest}"


def facts(mapping: Mapping[Any, Any]) -> dict[str, object]:
    """Return what a mapping and those inside it hold, by dotted name, to be shown one a line."""
    flat: dict[str, object] = {}
    for key, value in mapping.items():
        inner = value if isinstance(value, Mapping) and value else None
        flat |= {f"{key}.{k}": v for k, v in inner.items()} if inner else {str(key): value}
    return {key: "not read" if value is None else value for key, value in flat.items()}


def document(value: object, indent: int | None = 1) -> str:
    """Return `value` as JSON: ASCII, strict, and no deeper than a person can follow."""
    return json.dumps(_shallow(value, _DEPTH), indent=indent, allow_nan=False)


def moment(text: str) -> datetime | None:
    """Read an ISO 8601 time as UTC, or return `None` for what is none."""
    try:
        read = datetime.fromisoformat(text)
        return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _text(value: object) -> str:
    return document(value, indent=None) if isinstance(value, Mapping | list) else str(value)


def _shallow(value: object, depth: int) -> object:
    # A file can nest deeper than Python can recurse, which may cost its text but not the report.
    match value:
        case Mapping() | list() if depth == 0:
            return "(nested too deeply to be shown)"
        case Mapping():
            return {str(k): _shallow(v, depth - 1) for k, v in value.items()}
        case list():
            return [_shallow(v, depth - 1) for v in value]
    return plain(value)


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
