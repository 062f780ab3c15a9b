"""The kernel's log in any of its layouts: events, and what a gate decides on them.

`read` is the reader of a text that somebody sent; `events` is what the checks use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from nodeproof.parsers import (
    incidents,
    journal_export,
    journal_records,
    log_catalog,
    log_cut,
    log_json,
    xid,
)
from nodeproof.parsers.events import Event, Severity
from nodeproof.parsers.log_catalog import Catalog
from nodeproof.parsers.log_hosts import foreign
from nodeproof.parsers.log_lines import LONGEST, Line, lines_of
from nodeproof.parsers.log_lost import lost
from nodeproof.parsers.log_scan import candidates
from nodeproof.parsers.log_voice import (
    kernel_quoted,
    kernel_speaks,
    plain,
    quoted,
    refusal,
    unplaced,
)
from nodeproof.parsers.machine_events import Machine
from nodeproof.parsers.network_events import Network
from nodeproof.parsers.nvrm import Nvrm
from nodeproof.parsers.pcie_events import Limited, Pcie
from nodeproof.parsers.reading import Context, Grade, Reading, text_of
from nodeproof.parsers.reports import Report
from nodeproof.parsers.sxid import Sxids
from nodeproof.parsers.system_events import System
from nodeproof.parsers.traces import Traces


@dataclass(slots=True, kw_only=True)
class Understood:
    """What the lines of a log came to, and what beside the events decides on a node."""

    events: list[Event]
    limited: Sequence[Limited] = ()
    victims: frozenset[str] = frozenset()  # names of tasks that were killed for memory
    unplugged: frozenset[str] = frozenset()  # devices whose last word is that the cable is out
    frames: bool = False  # pieces of stack traces of drivers
    cut: bool = False  # a record that can't be read to its end
    lost: str = ""  # a line that stands for records that nobody can read
    unplaced: str = ""  # a line with a fault behind what no writer is known to put in front
    actions: frozenset[str | None] = field(default_factory=frozenset)  # devices with an Xid 154


def events(text: str, *, catalog: str | None = None) -> list[Event]:
    """Return the events of a kernel log in the order of their first lines.

    `catalog` is a site's TOML, which overrides entries of the shipped catalogue. Raises `ValueError`
    for one that is none.
    """
    data = text.encode("utf-8", "backslashreplace")
    return understood(lines(data), log_catalog.of_site(catalog)).events


def read(data: bytes, context: Context) -> Reading:
    """Read a kernel log. `catalog` in the context is a site's TOML; the others decide the grade.

    A text in which the kernel does not speak is an error: it is no log without faults.
    """
    data = plain(data)
    if not data.strip():
        return _nothing("the text holds no line; an empty log says nothing of the node")
    refused = refusal(data)
    if journal_export.exported(data):
        records = list(journal_export.records(data))
        if not any(journal_records.of_buffer(record) for _, record in records):
            return _nothing("no record of the journal is the kernel's")
        found = [line for place, record in records for line in journal_records.lines(place, record)]
        lost = any(journal_records.unreadable(record) for _, record in records)
        spoken = True
    else:
        found, lost, spoken = list(lines(data)), False, False
    got = reading(found, context)
    spoken = spoken or bool(got.fields["events"]) or got.grade is not Grade.PASS
    if not spoken and not _spoken(found, data):
        return _nothing(
            f"the tool says {refused!r}" if refused else "no line of the text is the kernel's"
        )
    if got.grade is Grade.PASS and (refused or lost):
        said = f"the tool says {refused!r}" if refused else "a record has no message to be read"
        return replace(got, grade=Grade.WARN, why=f"{said}: read the whole log as root")
    return got


def _spoken(found: Sequence[Line], data: bytes) -> bool:
    """Whether the kernel speaks in a text, or is quoted in it."""
    return (
        kernel_quoted(line.text for line in found) or log_json.speaks(data) or kernel_speaks(data)
    )


def _nothing(why: str) -> Reading:
    return Reading(
        grade=Grade.ERROR,
        why=f"{why}: read the kernel's log again, as root (dmesg, or journalctl -k)",
        fields={"events": []},
    )


def reading(found: Sequence[Line], context: Context, **beside: object) -> Reading:
    """Grade the lines of a log, with further fields for the reading."""
    site = context.get("catalog")
    try:
        catalog = log_catalog.of_site(site if isinstance(site, str) else None)
    except ValueError as error:
        return Reading(grade=Grade.ERROR, why=str(error), fields={"events": [], **beside})
    told = understood(found, catalog)
    node = context.get("node")
    ours = told
    if isinstance(node, str) and any(foreign(line.host, node) for line in found):
        ours = understood([line for line in found if not foreign(line.host, node)], catalog)
    grade, why = decided(ours, context)
    return Reading(
        grade=grade, why=why, fields={"events": [event.fields() for event in told.events], **beside}
    )


def lines(data: bytes) -> Iterable[Line]:
    """The kernel's own lines that can matter."""
    for place, raw in candidates(data):
        yield from physical(data, place, raw)


def physical(data: bytes, place: int, raw: bytes) -> Iterable[Line]:
    """What stands in one physical line of a text."""
    inside = log_json.lines(data, place, raw)
    if inside is not None:
        return inside
    ended = place + len(raw) < len(data)
    return lines_of(place, text_of(raw[:LONGEST]), ended=ended)


def understood(found: Iterable[Line], catalog: Catalog, *, within: bool = False) -> Understood:
    """Make events of lines; `within` a line that is looked into already, no further."""
    xids: list[Report] = []
    sxids, nvrm, pcie = Sxids(), Nvrm(), Pcie()
    machine, network, system, traces = Machine(), Network(), System(), Traces()
    hidden = missing = ""
    ends = False
    for line in found:
        if line.doubtful:
            hidden = hidden or (line.text if _tells(line, catalog) else "")
            continue
        traces.read(line)
        if report := xid.read(line):
            xids.append(report)
            continue
        for reader in (sxids, nvrm, pcie, machine, network, system):
            if reader.read(line):
                break
        else:
            if lost(line):
                missing = missing or line.text
            elif log_cut.cut(line.text):
                ends = True
            elif not (hidden or within) and (unplaced(line.text) or _tells(line, catalog)):
                hidden = line.text
    reports = list(xids)
    for source in (sxids, nvrm, pcie, machine, network, system, traces):
        reports += source.reports()
    return Understood(
        events=incidents.events(reports, catalog),
        limited=pcie.limited,
        victims=frozenset(system.victims),
        unplugged=frozenset(d for d, out in network.unplugged.items() if out),
        frames=bool(traces.frames),
        cut=ends or nvrm.cut or any(report.kind == "xid.cut" for report in xids),
        lost=missing,
        unplaced=hidden,
        actions=frozenset(r.device for r in xids if r.code == 154 and r.kind == "none"),
    )


def _tells(line: Line, catalog: Catalog) -> bool:
    """Whether a fault stands in a line, behind something that is known for nobody's."""
    for text in quoted(line.text, doubtful=line.doubtful):
        told = understood([Line(place=0, text=text)], catalog, within=True)
        if any(event.severity is not Severity.INFO for event in told.events):
            return True
    return False


def decided(told: Understood, context: Context) -> tuple[Grade, str]:
    """Return what a gate on a new, idle node decides, and the reason in one sentence."""
    fatal = [e for e in told.events if e.severity is Severity.FATAL and not _unneeded(e, context)]
    warnings = [e for e in told.events if e.severity is Severity.WARNING]
    if fatal:
        return Grade.FAIL, _sentence(fatal)
    if why := _failing(told, warnings, context):
        return Grade.FAIL, why
    if name := _own_victim(told, context):
        return Grade.ERROR, (
            f"the test process {name} was killed for memory, so that its run can't be judged: "
            "give it more memory and run it again"
        )
    if warnings:
        return Grade.WARN, _sentence(warnings)
    if set(told.events) - set(fatal) and any(e.severity is Severity.FATAL for e in told.events):
        return Grade.WARN, _sentence([e for e in told.events if e.severity is Severity.FATAL])
    return _quiet(told)


def _failing(told: Understood, warnings: Sequence[Event], context: Context) -> str:
    """Return why warnings fail the node all the same, or nothing."""
    remaps = [e for e in warnings if e.source == "xid" and e.code == 63]
    if remaps:
        return f"{_sentence(remaps)}; a repair waits for the reset: reset, then test again"
    known = _words(context, "known_gen4_slots")
    for link in told.limited:
        if link.narrow or link.device not in known:
            return (
                f"the PCIe link of {link.device} runs below what the device can do, and nothing "
                "that is known of the platform explains it: reseat it, or ask for support"
            )
    used = _words(context, "data_nics")
    for event in warnings:
        if event.source == "netdev" and used & {event.device, event.unit}:
            return f"{_sentence([event])}; jobs use this interface"
    for device in sorted(told.unplugged & used):
        return f"the cable of {device} is unplugged, and jobs use this card: plug it in"
    return ""


def _quiet(told: Understood) -> tuple[Grade, str]:
    """Grade a log without an event that counts."""
    if told.unplaced:
        return Grade.WARN, (
            f"{told.unplaced[:160]!r} tells of a fault, and what stands in front of it is not known: "
            "it may be the kernel's; read the log with dmesg, or journalctl -k"
        )
    if told.lost:
        return Grade.WARN, (
            f"{told.lost[:160]!r} stands for records that nobody can read here, so that they are not "
            "known to be harmless: read the whole log with dmesg, or journalctl -k -a"
        )
    if told.cut:
        return Grade.WARN, (
            "a record is cut off before the code or the words that decide: read the whole log"
        )
    caused = {e.device for e in told.events if e.source == "xid" and e.code != 154}
    for device in sorted(d or "a GPU" for d in told.actions - caused):
        return Grade.WARN, (
            f"{device} asks for nothing any more, but the log does not show what it asked for "
            "before: look into older logs"
        )
    if told.frames:
        return Grade.WARN, (
            "pieces of a stack trace through a driver, without what it began with: read the "
            "whole log"
        )
    return Grade.PASS, "no line of the kernel tells of a fault"


def _unneeded(event: Event, context: Context) -> bool:
    """Whether it is about what this node is known not to need."""
    if event.source == "efa":
        return event.device is None and context.get("efa_expected") is False
    expected = {context.get("fabric_expected"), context.get("fabric_manager_expected")}
    return event.source == "fabricmanager" and False in expected and True not in expected


def _own_victim(told: Understood, context: Context) -> str | None:
    name = context.get("test_process")
    if not isinstance(name, str):
        return None
    # The kernel keeps 15 bytes of a name.
    return name if {name, name[:15]} & told.victims else None


def _words(context: Context, key: str) -> set[str | None]:
    value = context.get(key)
    return {v for v in value if isinstance(v, str)} if isinstance(value, list | tuple) else set()


def _sentence(told: Sequence[Event]) -> str:
    first = told[0]
    what = first.source if first.code is None else f"{first.source} {first.code}"
    where = first.device or first.unit
    times = f", {first.count} times" if first.count > 1 else ""
    more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
    return (
        f"{what}{f' of {where}' if where else ''}{times}: {first.text[:160]!r}; remedy "
        f"{first.remedy}{more}"
    )
