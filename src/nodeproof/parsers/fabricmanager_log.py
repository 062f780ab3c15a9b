"""The log of NVIDIA's fabric manager, which tells of switches and of its own end.

Lines: `[Jan 14 2026 03:12:45] [ERROR] [tid 2210] text`, in the order in which threads wrote them; in
the system's log only the text, behind `nv-fabricmanager[pid]:`. The tag is no grade: errors that
are not fatal stand as [ERROR] too, and "non-fatal error" holds the words "fatal error". Extracts of
the journal hold lines of systemd, which starts and ends it, and of the kernel, which tells of the
switches by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from nodeproof.parsers import incidents, kernel_log, log_catalog
from nodeproof.parsers.fabricmanager_service import Service, State
from nodeproof.parsers.fabricmanager_words import is_progress, tells_of_trouble
from nodeproof.parsers.log_catalog import Catalog
from nodeproof.parsers.log_lines import LONGEST, Line, address_of
from nodeproof.parsers.log_voice import plain, refusal
from nodeproof.parsers.reading import Context, Grade, Reading, text_of
from nodeproof.parsers.reports import Report

_MANAGER = "nv-fabricmanager"
# What stands before a name is the journal's. Behind a tag it is a second line, which a log that was
# torn holds in the same place: the first is not left out for it.
_LINE = re.compile(
    rf"(?:(?:(?!\[[A-Z]{{3,9}}\]|\[tid \d).){{0,200}}?(?P<voice>{_MANAGER}|nvidia-fabricmanager-start\.sh)(?:\[\d+\])?: *)?"
    r"(?:\[(?P<date>[A-Z][a-z]{2} \d{1,2} \d{4} [\d:.]+)\] *)?"
    r"(?:\[(?P<level>[A-Z]{3,9})\] *)?(?:\[tid \d+\] *)?(?P<text>.*)$",
    re.DOTALL,
)
_SWITCH = re.compile(
    r"detected (?:NVSwitch|NVLink|GPU)? ?(?P<non>non-? ?)?fatal error (?P<code>\d{1,6})\b",
    re.IGNORECASE,
)
_BUS = re.compile(r"pci bus id:? *(?P<pci>[0-9a-fA-F:.]+)", re.IGNORECASE)
_ABORT = re.compile(
    r"\babort(?:ing|ed)?\b.{0,80}?\bfabric ?manager|fabric ?manager\b.{0,80}?\babort", re.IGNORECASE
)
_FATAL = re.compile(r"(?<!non)(?<!non[- ])\bfatal\b", re.IGNORECASE)
# What tells its own words from others', where neither its tag nor its name is left.
_OWN = re.compile(
    r"fabric manager\b|(?<![\w-])NV(?:Switch|Link)|NV_WARN_|multicast group|\bpartition id",
    re.IGNORECASE,
)
# A name of the unit or of a package, which says nothing of its work; a line of another program.
_NAMED = re.compile(
    r"NVIDIA fabric manager service|\bfabric manager for\b|[\w./@-]\[\d{1,9}\]: ", re.IGNORECASE
)
# Lines of the kernel, which its own reader takes; systemd writes into its buffer while it boots.
_KERNEL = re.compile(
    r"(?:(?:\S++ ++){0,6}kernel(?:\[\d+\])?: |<[0-7]>|[0-7],\d+,\d+,|NVRM: |nvidia-nv\w+: "
    r"|\[ *\d+\.\d+\]) *(?!.{0,40}\bsystemd\[)"
)
# What it says of its whole start, with a tag or without one.
_WHOLE = re.compile(r"Successfully configured all|driver interface version", re.IGNORECASE)
_DEGRADED = re.compile(r"\bdegraded?\b|\bexcluding\b", re.IGNORECASE)
_NOTHING_TO_DO = "NV_WARN_NOTHING_TO_DO"
_GRAVE = {"ERROR", "CRITICAL", "FATAL"}


def read(data: bytes, context: Context) -> Reading:
    """Read a fabric manager's log. A text without a line of its own, or about it, is an error."""
    data = plain(data)
    refused = refusal(data)
    site = context.get("catalog")
    try:
        catalog = log_catalog.of_site(site if isinstance(site, str) else None)
    except ValueError as error:
        return Reading(grade=Grade.ERROR, why=str(error), fields={"events": []})
    heard = _Heard()
    place = 0
    for raw in data.split(b"\n"):
        heard.take(place, text_of(raw[:LONGEST]).strip())
        place += len(raw) + 1
    told = _told(heard.reports, data, catalog)
    grade, why = _decided(told, heard, context)
    if refused or not (heard.own or heard.service.state or grade is Grade.FAIL):
        said = f"the tool says {refused!r}" if refused else "no line of the text is its own"
        return Reading(
            grade=Grade.ERROR,
            why=f"{said}; that says nothing of the fabric: read the fabric manager's log again",
            fields={"events": []},
        )
    return Reading(grade=grade, why=why, fields={"events": [e.fields() for e in told.events]})


@dataclass(slots=True)
class _Heard:
    """What the lines say, taken one after the other."""

    reports: list[Report] = field(default_factory=list)
    service: Service = field(default_factory=Service)
    own: bool = False  # a line is the manager's
    odd: str = ""  # a line of it that nobody knows, and that no tag grades
    _ended: bool = False

    def take(self, place: int, text: str) -> None:
        found = _LINE.match(text)
        if found is None or (found["voice"] is None and _KERNEL.match(text)):
            return
        line = Line(place=place, text=found["text"])
        level, voice = found["level"], found["voice"]
        tagged = level is not None and (found["date"] is not None or "[tid " in text)
        own = voice is not None or tagged or _worded(line.text)
        self.own = self.own or own
        state = None
        if (level is None and voice != _MANAGER) or _WHOLE.search(line.text):
            state = self.service.take(text)
        if report := _report(line, level):
            self.reports.append(report)
        elif state is State.FAILED:
            # Several lines of systemd tell of one end.
            if not self._ended:
                self._add(line)
            self._ended = True
        elif own and state is None and level is None:
            if tells_of_trouble(line.text):
                self._add(line)
            elif voice and not self.odd and not is_progress(line.text):
                self.odd = line.text

    def _add(self, line: Line) -> None:
        self.reports.append(Report(source="fabricmanager", kind="fabricmanager.error", line=line))


def _worded(text: str) -> bool:
    return _OWN.search(text) is not None and _NAMED.search(text) is None


def _told(reports: Sequence[Report], data: bytes, catalog: Catalog) -> kernel_log.Understood:
    """The manager's events and those of the kernel's lines among them, in the order of the text."""
    lines = list(kernel_log.lines(data))
    kernel = kernel_log.understood(lines, catalog)
    places: dict[str, int] = {}
    for line in [*lines, *(report.line for report in reports)]:
        places[line.text] = min(line.place, places.get(line.text, line.place))
    events = [*incidents.events(reports, catalog), *kernel.events]
    events.sort(key=lambda event: places.get(event.text, 0))
    return replace(kernel, events=events)


def _decided(told: kernel_log.Understood, heard: _Heard, context: Context) -> tuple[Grade, str]:
    grade, why = kernel_log.decided(told, context)
    if grade is Grade.FAIL:
        return grade, why
    idle = any(_NOTHING_TO_DO in event.text for event in told.events)
    if idle and True in {context.get("fabric_expected"), context.get("fabric_manager_expected")}:
        return Grade.FAIL, (
            "the fabric manager found no NVSwitch, and this node has to have some: ask for support"
        )
    judged = heard.service.judge(context)
    if judged and (grade is not Grade.ERROR or judged[0] is not Grade.WARN):
        return judged
    if grade is Grade.PASS and heard.odd:
        return Grade.WARN, f"the fabric manager says {heard.odd[:160]!r}, which is not known of it"
    if grade is Grade.PASS:
        why = "no line of the fabric manager tells of a fault"
    return grade, why


def _report(line: Line, level: str | None) -> Report | None:
    bus = _BUS.search(line.text)
    device = address_of(bus["pci"].rstrip(".")) if bus else None
    kind, code = None, None
    if switch := _SWITCH.search(line.text):
        kind = "fabricmanager.nonfatal" if switch["non"] else "fabricmanager.fatal"
        code = int(switch["code"])
    elif _ABORT.search(line.text):
        kind = "fabricmanager.abort"
    elif level in _GRAVE and _FATAL.search(line.text):
        kind = "fabricmanager.fatal"
    elif (
        level in _GRAVE
        or _NOTHING_TO_DO in line.text
        or (level == "WARNING" and _DEGRADED.search(line.text))
    ):
        # A manager without switches ends so; whether there should be some, the platform says.
        kind = "fabricmanager.error"
    if kind is None:
        return None
    return Report(source="fabricmanager", kind=kind, code=code, device=device, line=line)
