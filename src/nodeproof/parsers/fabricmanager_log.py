"""The log of NVIDIA's fabric manager, which tells of switches and of its own end.

Lines: `[Jan 14 2026 03:12:45] [ERROR] [tid 2210] text`, in the order in which threads wrote them; in
the system's log only the text, behind `nv-fabricmanager[pid]:`. The tag is no grade: errors that
are not fatal stand as [ERROR] too, and "non-fatal error" holds the words "fatal error".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodeproof.parsers import incidents, kernel_log, log_catalog
from nodeproof.parsers.log_lines import LONGEST, Line, address_of
from nodeproof.parsers.log_voice import plain, refusal
from nodeproof.parsers.reading import Context, Grade, Reading, text_of
from nodeproof.parsers.reports import Report

_LINE = re.compile(
    r"(?:.{0,200}?nv-fabricmanager(?:\[\d+\])?: *)?"
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
# What tells its log from any other: its tag, its name, or its own words where only those are left.
_OWN = re.compile(
    rb"\[[A-Z]{3,9}\] *\[tid \d+\]|\[[A-Z][a-z]{2} \d{1,2} \d{4} [\d:.]+\] *\[[A-Z]{3,9}\]"
    rb"|nv-?(?:idia-)?fabric-?manager|fabric ?manager\b|\bNVSwitch|\bNVLink|NV_WARN_|multicast group",
    re.IGNORECASE,
)
# systemd, of the service: it did not start, or it ended.
_SERVICE = re.compile(
    r"Failed to start\b.{0,60}\bfabric ?manager"
    r"|nvidia-fabricmanager\.service: (?:Failed with result|Main process exited, (?!.*status=0/)"
    r"|Control process exited, (?!.*status=0/)|Start request repeated)",
    re.IGNORECASE,
)
_DEGRADED = re.compile(r"\bdegraded?\b|\bexcluding\b", re.IGNORECASE)
_NOTHING_TO_DO = "NV_WARN_NOTHING_TO_DO"
_GRAVE = {"ERROR", "CRITICAL", "FATAL"}


def read(data: bytes, context: Context) -> Reading:
    """Read a fabric manager's log. A text without a line of its own, or about it, is an error."""
    data = plain(data)
    refused = refusal(data)
    if refused or not _OWN.search(data):
        said = f"the tool says {refused!r}" if refused else "no line of the text is its own"
        return Reading(
            grade=Grade.ERROR,
            why=f"{said}; that says nothing of the fabric: read the fabric manager's log again",
            fields={"events": []},
        )
    site = context.get("catalog")
    try:
        catalog = log_catalog.of_site(site if isinstance(site, str) else None)
    except ValueError as error:
        return Reading(grade=Grade.ERROR, why=str(error), fields={"events": []})
    reports = list(_reports(data))
    told = kernel_log.Understood(events=incidents.events(reports, catalog))
    grade, why = kernel_log.decided(told, context)
    idle = any(_NOTHING_TO_DO in event.text for event in told.events)
    if idle and True in {context.get("fabric_expected"), context.get("fabric_manager_expected")}:
        grade = Grade.FAIL
        why = (
            "the fabric manager found no NVSwitch, and this node has to have some: ask for support"
        )
    if grade is Grade.PASS:
        why = "no line of the fabric manager tells of a fault"
    return Reading(grade=grade, why=why, fields={"events": [e.fields() for e in told.events]})


def _reports(data: bytes) -> Iterator[Report]:
    place, ended = 0, False
    for raw in data.split(b"\n"):
        found = _LINE.match(text_of(raw[:LONGEST]).strip())
        line = Line(place=place, text=found["text"] if found else "")
        place += len(raw) + 1
        if found and _SERVICE.search(found[0]):
            # Several lines of systemd tell of one end.
            if not ended:
                yield Report(source="fabricmanager", kind="fabricmanager.error", line=line)
            ended = True
        elif found and (report := _report(line, found["level"])):
            yield report


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
