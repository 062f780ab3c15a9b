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
# A zone's name may be any word of capitals, so it counts only where a tag or a bracket follows.
_ISO = (
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
    r"(?: ?(?:Z|UTC|[+-]\d\d(?::?\d\d)?)| [A-Z]{2,5}(?=\]| *<| +\S{1,255} (?:\S{1,32} )?kernel\b))?"
)
# Time since the line before: a star where it is not to be relied on, blanks where there is none.
_DELTA = r"(?: *< *\+?[\d.]{1,30} *\*?>| {1,32})?"
# Each is tried again after the others, since writers wrap each other's lines.
_KMSG = re.compile(
    r"(?:\d+\.\d+[^,;]{0,80},)?(?P<priority>\d{1,3}),\d+,(?P<usec>\d{1,18}),[^;]{0,200};"
)
_PRIORITY = re.compile(r"<(?P<priority>\d{1,3})>(?:1 )? ?(?P<buffer>(?=\[))?")
_BRACKET = re.compile(
    r"\[(?:"
    r"(?P<buffer> *(?P<at>\d{1,12}\.\d{1,12})(?:@\d+)?"
    r"| *\+\d+\.\d+"
    rf"|(?:{_MONTHS}) ?\d{{1,2}} \d\d:\d\d"
    rf"|[A-Z][a-z][a-z] (?:{_MONTHS}) +\d{{1,2}} \d\d:\d\d:\d\d(?: [A-Z]{{2,5}})? \d{{4}}"
    r"| *[TC] *\d+"
    r"|(?= *<))"
    rf"|{_ISO}"
    r"|\.\.\."
    rf"){_DELTA}\]:?[ \t]*"
)
_FACILITY = (
    r"(?P<facility>kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local[0-7])"
)
_LEVEL = r"(?:emerg|alert|crit|err|error|warn|warning|notice|info|debug)"
_DECODED = re.compile(rf"(?P<buffer>){_FACILITY} *:{_LEVEL} *: ?")
_REMOTE = re.compile(rf"(?P<buffer>)\S{{1,255}}: {_FACILITY}: *{_LEVEL}: ")
_SELECTOR = re.compile(rf"<?{_FACILITY}\.{_LEVEL}>?:? +")
_GUEST = re.compile(rf"{_ISO} In\(\d+\) \S+ - Guest: ")
_STAMP = re.compile(
    rf"(?:[A-Z][a-z][a-z] )?(?:(?:\d{{4}} )?(?:{_MONTHS}) +\d{{1,2}}(?: \d{{4}})? \d\d:\d\d:\d\d(?:\.\d+)?"
    rf"(?: \d{{4}})?|(?P<buffer>(?=[\dT -]{{11}}[\d:]{{8}},\d{{6}}[+-]))?{_ISO}|\d{{9,11}}\.\d+) +"
)
_SD = r"\[(?:[^\]\"\\]|\"(?:[^\"\\]|\\.)*\")*\]"  # structured data, RFC 5424 6.3
_KERNEL = re.compile(
    r"(?P<buffer>)(?:(?P<host>[\w.:%\[\]-]{0,254}[\w\]]) +)??"
    rf"(?:{_FACILITY}\.{_LEVEL} +)?"
    rf"kernel(?:\[\d+\])?(?:: ?| (?:-|\d{{1,10}}) (?:-|\S{{1,32}}) (?:- |(?:{_SD})+ ?)?\ufeff?)"
)
_REPEATED = re.compile(r"message repeated (?P<repeats>\d{1,6}) times: \[ ?")  # rsyslog
_STREAM = re.compile(r"std(?:out|err) [FP] (?=\[ *\d{1,12}\.\d)")  # a container's log (CRI)
_OWNER = re.compile(r"nvidia [\da-fA-F:.]{7,16}: (?=NVRM: )")  # the device in front of its driver
_STEPS = (
    _PRIORITY,
    _BRACKET,
    _REMOTE,
    _DECODED,
    _SELECTOR,
    _GUEST,
    _STAMP,
    _KERNEL,
    _REPEATED,
    _STREAM,
    _OWNER,
)
# What carries a whole line of a log: remote shells, searches over files, consoles, containers.
_STARTS = rf"\[ *\d{{1,12}}\.\d{{1,12}}[\]@ ]|\[[A-Z][a-z][a-z] (?:{_MONTHS}) |kern +:|<\d{{1,3}}>"
_DATES = rf"(?:[A-Z][a-z][a-z] )?(?:(?:{_MONTHS}) +\d{{1,2}} \d\d:|\d{{4}}-\d\d-\d\d[T ]\d\d:)"
_CARRIER = re.compile(
    rf"(?P<host>[\w.-]{{1,255}})(?:: | +\| | login: )(?={_STARTS})"
    rf"|(?:\d{{1,9}}:|[\w.-]*[/.][\w./-]{{0,255}}:(?:\d{{1,9}}:)?)(?={_STARTS}|{_DATES})"
    r"|MESSAGE="
)
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
    ended: bool = True  # whether its end is there, and not the end of the text alone
    doubtful: bool = False  # nothing says whether the kernel wrote it


def lines_of(place: int, raw: str, *, ended: bool = True) -> Iterator[Line]:
    """Read one physical line: nothing where a program wrote it, several where it holds several.

    Facility 0 is the kernel's alone: programs can't use it (syslog(2), dev-kmsg).
    """
    if "\x1b" in raw[:200]:
        raw = _COLOUR.sub("", raw)
    ended = ended or raw.endswith(("\r", "\n"))
    raw = raw[:LONGEST].rstrip("\r\n\0").lstrip(" \t\ufeff")
    head = _head(raw)
    if head.program:
        return
    text = raw[head.end :]
    if head.repeats > 1:
        text = text.removesuffix("]")
    # One record can hold several lines: /dev/kmsg writes a line end as \x0a, rsyslog as #012.
    for part in re.split(r"\\x0a|#012", text) if "\\x0a" in text or "#012" in text else (text,):
        if message := part.strip():
            yield Line(
                place=place,
                text=message,
                at=head.at,
                host=head.host,
                repeats=head.repeats,
                ended=ended,
            )


@dataclass(slots=True, kw_only=True)
class _Head:
    """What stands in front of a message."""

    program: bool = False  # written by one, into the kernel's buffer or beside it
    buffer: bool = False  # in the form in which only the kernel's buffer is written
    end: int = 0
    at: float | None = None
    host: str | None = None
    repeats: int = 1


def of_buffer(raw: str) -> bool:
    """Whether a line has the form in which the kernel's buffer is written, whoever filled it."""
    return _head(raw[:LONGEST].lstrip(" \t\ufeff")).buffer


def by_program(raw: str) -> bool:
    """Whether what stands in front of a message says that a program wrote it."""
    return _head(raw[:LONGEST].lstrip(" \t\ufeff")).program


def _head(raw: str) -> _Head:
    """Read what writers put in front."""
    head = _Head()
    if carrier := _CARRIER.match(raw):
        head.end, head.host = carrier.end(), carrier["host"]
    if found := _KMSG.match(raw, head.end):
        head.buffer = True
        if int(found["priority"]) >> 3:
            head.program = True
            return head
        head.at, head.end = int(found["usec"]) / 1e6, found.end()
    for _ in range(_WRAPS):
        found = next((f for step in _STEPS if (f := step.match(raw, head.end))), None)
        if found is None:
            break
        named = found.groupdict()
        head.buffer = head.buffer or named.get("buffer") is not None
        if int(named.get("priority") or 0) >> 3 or named.get("facility") not in {None, "kern"}:
            head.program = True
            return head
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
