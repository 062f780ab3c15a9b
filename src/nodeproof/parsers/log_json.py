"""Messages of the kernel inside JSON: `dmesg -J`, records of the journal, what log shippers write.

An object is the kernel's where it says so, or says nothing but the message; a program's where it
names one; and nobody's known where it only has a level, as loggers of programs write and relays of
the kernel's log too. A fault in one of those is no event, and no silence. Fields: dmesg(1),
systemd.journal-fields(7); names as relays of syslog write them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from nodeproof.parsers import journal_records
from nodeproof.parsers.log_lines import Line, by_program, lines_of
from nodeproof.parsers.log_lost import UNSHOWN
from nodeproof.parsers.log_voice import kernel_quoted, named
from nodeproof.parsers.reading import text_of

# Bytes within which an object that goes over lines begins before one of them, and ends behind it.
_BEFORE, _BEHIND = 8_192, 8_192
_DEEP = 3  # relays that wrap each other's objects
_FIELD = re.compile(
    r'"(?P<name>[\w.@-]{1,64})"\s*(?::|=>)\s*(?:"(?P<text>(?:[^"\\]|\\.)*)(?P<end>"|\\?\Z)'
    r"|(?P<number>-?\d+(?:\.\d+)?))"
)
_LOOKS = re.compile(r'[{,]\s*"|^\s*"')
_STRING = re.compile(r'\s*"(?:[^"\\]|\\.)*"\s*,?\s*')
_NAMES = {
    *("syslog_identifier", "ident", "identifier", "program", "programname", "syslogtag", "appname"),
    *("app_name", "app-name", "application", "process", "procname", "comm", "unit", "systemd_unit"),
    *("logger", "logger_name", "caller", "func", "container_name", "pod_name"),
}
_FACILITIES = {"syslog_facility", "facility", "fac", "facility_label", "syslogfacility-text"}
_KERNELS = {"kern", "kernel", "0"}
_PIDS = {"pid", "process_id", "procid"}
_LEVELS = {"level", "severity", "lvl", "levelname", "loglevel", "log_level", "reason"}
_HOSTS = ("_HOSTNAME", "hostname", "host")
_ENDS = re.compile(r"\r\n|\n|\r")
_CLOSED = re.compile(rb"\n[ \t]{0,64}\}")
_CALLER = re.compile(r"[TC]\d+")  # printk's own: a task or a processor
_SPOKEN = re.compile(
    rb'"_?TRANSPORT"\s{0,4}:\s{0,4}"kernel"'
    rb'|"dmesg"\s{0,4}:\s{0,4}\[\s{0,40}\{[^{}]{0,400}"msg"'
    rb'|"(?:SYSLOG_IDENTIFIER|ident|identifier|program|programname|appname)"\s{0,4}:\s{0,4}"kernel"'
    rb'|"(?:facility|fac)"\s{0,4}:\s{0,4}"kern(?:el)?"'
    rb'|"(?:log|msg|message)"\s{0,4}:\s{0,4}"(?:<\d{1,3}>)?\[ {0,12}\d{1,12}\.\d{1,12}\]',
    re.IGNORECASE,
)


def speaks(data: bytes) -> bool:
    """Whether any object says that it is the kernel's."""
    return b'"' in data and _SPOKEN.search(data) is not None


def lines(data: bytes, place: int, raw: bytes) -> list[Line] | None:
    """The lines in the JSON of a physical line, or of which it is a part; None: it has none."""
    text = text_of(raw) if b'"' in raw else ""
    if not _LOOKS.search(text) or by_program(text):
        return None
    front = text[: max(0, text.find("{"))]
    if kernel_quoted((front,)) or named(front):
        return None  # the kernel's own line, in which a name has braces; or a program's
    if whole := list(_objects(text)):
        return [line for at, found in whole for line in _of(place + at, found)]
    if _STRING.fullmatch(text):
        return list(_string(place, text))
    around = _around(data, place, len(raw))
    found = next((o for _, o in _objects(around)), None) or _fields(around)
    # Another line of the same object is read by itself.
    here = {field["name"] for field in _FIELD.finditer(text)} | {"MESSAGE"} & set(found)
    if not here & found.keys() or ("MESSAGE" in found and '"MESSAGE"' not in text):
        return None
    return list(_of(place, found, only=here))


def _around(data: bytes, place: int, size: int) -> str:
    """The text of the object that holds a line, as far as its braces stand on lines of their own."""
    # No text in JSON has a line end in it, so that these braces are no part of one.
    first = max(0, place - _BEFORE)
    begin = max(data.rfind(brace, first, place) for brace in (b"{\n", b"{\r\n"))
    if begin < 0:
        return text_of(data[place : place + size])
    end = _CLOSED.search(data, place + size, place + size + _BEHIND)
    return text_of(data[begin : end.end() if end else place + size])


def _objects(text: str) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the objects that stand one behind the other in a text, with where they begin."""
    decoder, place = json.JSONDecoder(object_pairs_hook=_every), text.find("{")
    while place >= 0:
        try:
            found, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            if fields := _fields(text[place:]):
                yield place, fields
            return
        yield place, found
        place = text.find("{", end)


def _every(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object; of a name that stands twice, both values: the later may not hide the other."""
    found: dict[str, object] = {}
    for name, value in pairs:
        found[name] = [found[name], value] if name in found and found[name] != value else value
    return found


def _fields(text: str) -> dict[str, object]:
    """Plain fields of what is no whole object: one that is cut, or in another writer's manner."""
    found: dict[str, object] = {}
    for field in _FIELD.finditer(text):
        if field["number"] is not None:
            found.setdefault(field["name"], float(field["number"]))
        else:
            found.setdefault(field["name"], _unescaped(field["text"]))
    return found


def _unescaped(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        return text


def _string(place: int, text: str) -> Iterator[Line]:
    """A text in a list: the kernel's where it has its stamp, else not known whose."""
    said = _unescaped(text.strip().rstrip(",").strip()[1:-1])
    for line in _parts(place, said, 1):
        yield line if line.at is not None else replace(line, doubtful=True)


def _of(
    place: int, found: Mapping[str, object], *, deep: int = 0, only: Collection[str] | None = None
) -> Iterator[Line]:
    """The lines of an object and of those in it; of some of its fields, where they are named."""
    if "_TRANSPORT" in found and "MESSAGE" in found:
        if journal_records.of_kernel(found) and journal_records.unreadable(found):
            yield Line(place=place, text=UNSHOWN)
        yield from journal_records.lines(place, found)
        return
    owner = _owner(found)
    if owner is _PROGRAM:
        return
    host = next((h for n in _HOSTS if isinstance(h := found.get(n), str)), None)
    at = _number(found.get("time"))
    for name, value in found.items():
        for line in _in(place, value, deep) if only is None or name in only else ():
            yield replace(
                line,
                host=line.host or host,
                at=at if line.at is None else line.at,
                doubtful=line.doubtful or owner is None,
            )


def _in(place: int, value: object, deep: int) -> Iterator[Line]:
    rest = [value]
    while rest:
        value = rest.pop()
        if isinstance(value, str):
            yield from _parts(place, value, deep)
        elif isinstance(value, list):
            rest += reversed(value)
        elif isinstance(value, dict):
            if deep >= _DEEP:
                yield from (replace(line, doubtful=True) for line in _flat(place, value))
            else:
                yield from _of(place, value, deep=deep + 1)


def _flat(place: int, found: Mapping[str, object]) -> Iterator[Line]:
    """Texts in an object that is too deep to ask whose it is."""
    rest: list[object] = [found]
    while rest:
        value = rest.pop()
        if isinstance(value, str):
            yield from lines_of(place, value)
        elif isinstance(value, dict | list):
            rest += value.values() if isinstance(value, dict) else value


def _parts(place: int, said: str, deep: int) -> Iterator[Line]:
    for n, part in enumerate(_ENDS.split(said)):
        inner = list(_objects(part)) if deep < _DEEP and part.lstrip().startswith("{") else []
        for _, found in inner:
            yield from _of(place + n, found, deep=deep + 1)
        if not inner:
            yield from lines_of(place + n, part)


def _number(value: object) -> float | None:
    """A number of an ordinary size, or nothing."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12:
        return float(value)
    return None


_KERNEL, _PROGRAM = True, False


def _owner(found: Mapping[str, object]) -> bool | None:
    """Whether the kernel wrote it, or a program; None where nothing says so."""
    fields = {name.lower().lstrip("_"): value for name, value in found.items()}
    if (pri := _number(fields.get("pri"))) is not None:
        return int(pri) >> 3 == 0
    if (_number(fields.get("priority")) or 0) > 7:  # with a facility above the kernel's
        return _PROGRAM
    said = [str(fields[name]) for name in _FACILITIES & fields.keys()]
    if said and not all(word.casefold() in _KERNELS for word in said):
        return _PROGRAM
    named = [str(fields[name]).rstrip(":").casefold() for name in _NAMES & fields.keys()]
    named = [name for name in named if not _CALLER.fullmatch(name.upper())]
    if named and not all(name in _KERNELS for name in named):
        return _PROGRAM
    if said or named:
        return _KERNEL
    if _PIDS & fields.keys():
        return _PROGRAM
    return None if _LEVELS & fields.keys() else _KERNEL
