"""One line of a kernel log, whatever wrote it down: who said it, when, and what.

Layouts: `dmesg` (seconds since boot, wall clock, relative stamps, caller, facility and level in
front), syslog (RFC 3164 and 5424), the journal's short forms, `/dev/kmsg`, syslog(2), network
consoles, and bare messages. Stamps: Documentation/ABI/testing/dev-kmsg, dmesg(1), RFC 5424.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
# Each is tried again after the others, since writers wrap each other's lines.
_KMSG = re.compile(
    r"(?:\d+\.\d+[^,;]{0,80},)?(?P<priority>\d{1,3}),\d+,(?P<usec>\d{1,18}),[^;]{0,200};"
)
_PRIORITY = re.compile(r"<(?P<priority>\d{1,3})>(?:1 )? ?")
_BRACKET = re.compile(
    r"\[(?:"
    r" *(?P<at>\d{1,12}\.\d{1,12})(?:@\d+)?(?: *< *[\d.]{1,30} *>)?"
    r"| *\+\d+\.\d+"
    rf"|(?:{_MONTHS}) ?\d{{1,2}} \d\d:\d\d"
    rf"|[A-Z][a-z][a-z] (?:{_MONTHS}) +\d{{1,2}} \d\d:\d\d:\d\d \d{{4}}"
    rf"|{_ISO}"
    r"| *[TC] *\d+"
    r"|\.\.\."
    r")\]:?[ \t]*"
)
_FACILITY = (
    r"(?P<facility>kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local[0-7])"
)
_LEVEL = r"(?:emerg|alert|crit|err|error|warn|warning|notice|info|debug)"
_DECODED = re.compile(rf"{_FACILITY} *:{_LEVEL} *: ?")
_REMOTE = re.compile(rf"\S{{1,255}}: {_FACILITY}: *{_LEVEL}: ")
_GUEST = re.compile(rf"{_ISO} In\(\d+\) \S+ - Guest: ")
_STAMP = re.compile(
    rf"(?:[A-Z][a-z][a-z] )?(?:(?:{_MONTHS}) +\d{{1,2}} \d\d:\d\d:\d\d(?:\.\d+)?(?: \d{{4}})?"
    rf"|{_ISO}|\d{{9,11}}\.\d+) +"
)
_KERNEL = re.compile(
    rf"(?:(?P<host>[\w.-]{{1,255}}) +)??(?:{_FACILITY}\.{_LEVEL} +)?"
    r"kernel(?:\[\d+\])?(?:: ?| - - (?:- )?)"
)
_REPEATED = re.compile(r"message repeated (?P<repeats>\d{1,6}) times: \[ ?")  # rsyslog
_STEPS = (_PRIORITY, _BRACKET, _REMOTE, _DECODED, _GUEST, _STAMP, _KERNEL, _REPEATED)
LONGEST = 4096  # bytes of a line that are read: the kernel writes no longer ones
_WRAPS = 8  # more of them than any chain of writers puts in front


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A message without what its writers put in front. `place` is the byte at which it begins."""

    place: int
    text: str
    at: float | None = None  # seconds since boot, by the log's clock
    host: str | None = None
    repeats: int = 1  # how often it came, where a writer wrote it once


def lines_of(place: int, raw: str) -> Iterator[Line]:
    """Read one physical line: nothing where a program wrote it, several where it holds several.

    Facility 0 is the kernel's alone: programs can't use it (syslog(2), dev-kmsg).
    """
    if "\x1b" in raw[:200]:
        raw = _COLOUR.sub("", raw)
    raw = raw[:LONGEST].rstrip("\r\n\0")
    head = _head(raw)
    if head is None:
        return
    text = raw[head.end :]
    if head.repeats > 1:
        text = text.removesuffix("]")
    # One record can hold several lines: /dev/kmsg writes a line end as \x0a, rsyslog as #012.
    for part in re.split(r"\\x0a|#012", text) if "\\x0a" in text or "#012" in text else (text,):
        if message := part.strip():
            yield Line(place=place, text=message, at=head.at, host=head.host, repeats=head.repeats)


@dataclass(slots=True, kw_only=True)
class _Head:
    """What stands in front of a message."""

    end: int = 0
    at: float | None = None
    host: str | None = None
    repeats: int = 1


def _head(raw: str) -> _Head | None:
    """Read what writers put in front, or None where a program wrote the message."""
    head = _Head()
    found = _KMSG.match(raw)
    if found:
        if int(found["priority"]) >> 3:
            return None
        head.at, head.end = int(found["usec"]) / 1e6, found.end()
    for _ in range(_WRAPS):
        found = next((f for step in _STEPS if (f := step.match(raw, head.end))), None)
        if found is None:
            break
        named = found.groupdict()
        if int(named.get("priority") or 0) >> 3 or named.get("facility") not in {None, "kern"}:
            return None
        if named.get("at"):
            head.at = float(named["at"])
        head.host = named.get("host") or head.host
        head.repeats = int(named.get("repeats") or head.repeats)
        head.end = found.end()
    return head


_ADDRESS = re.compile(
    r"(?<![0-9a-fA-F])(?<![0-9a-fA-F]:)(?:([0-9a-fA-F]{4}(?:[0-9a-fA-F]{4})?):)?"
    r"([0-9a-fA-F]{2}):([01][0-9a-fA-F])(?:\.([0-7]))?(?![0-9a-fA-F:])"
)


def address_of(text: str) -> str | None:
    """Return the first PCI address in a text as `dddd:bb:dd.f`, or None.

    Without a function it is function 0; without a domain, domain 0. A domain of eight digits is
    written with four where they hold it.
    """
    found = _ADDRESS.search(text)
    if found is None:
        return None
    domain = int(found[1] or "0", 16)
    return f"{domain:04x}:{found[2].lower()}:{found[3].lower()}.{found[4] or '0'}"
