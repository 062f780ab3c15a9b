"""From reports to events: what is one incident, and what only follows from another.

Reports of the same thing are one event with a count. A driver tells of a lost GPU more than once,
and of firmware without naming the GPU: what repeats another report is none of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from nodeproof.parsers import sxid, xid
from nodeproof.parsers.events import Event, Remedy, Severity
from nodeproof.parsers.log_catalog import Catalog, Grade
from nodeproof.parsers.reports import Report

_NVIDIA = {"xid", "sxid", "nvrm"}
_CLEAN_UP = 45  # channels taken down after another error


def events(reports: Iterable[Report], catalog: Catalog) -> list[Event]:
    """Return the events in the order of their first lines, graded and counted."""
    kept = _without_repeats(sorted(reports, key=lambda report: report.line.place))
    graded = _without_echoes([(report, _grade(catalog, report)) for report in kept])
    folded: dict[tuple[object, ...], Event] = {}
    for report, grade in graded:
        key = (report.source, report.code, report.device, grade.severity, report.unit)
        event = folded.get(key)
        if event is None:
            folded[key] = _event(report, grade)
        else:
            folded[key] = replace(
                event,
                count=event.count + report.weight * report.line.repeats,
                last_at=event.last_at if report.line.at is None else report.line.at,
                remedy=_graver(event.remedy, grade.remedy),
                software=event.software and grade.software,
            )
    return list(folded.values())


def _grade(catalog: Catalog, report: Report) -> Grade:
    if report.source == "xid":
        return xid.grade(catalog, report)
    if report.source == "sxid":
        return sxid.grade(catalog, report)
    return catalog.kind[report.kind]


def _without_repeats(reports: Sequence[Report]) -> list[Report]:
    """Leave out what the driver says again of a GPU, in other words."""
    told = {report.device for report in reports if report.code == 79 and report.source == "xid"}
    kinds: dict[str | None, str] = {}  # of the first report without an Xid, by device
    kept = []
    for report in reports:
        if report.source == "nvrm" and report.kind != "nvrm.trace" and report.device is not None:
            if report.device in told:
                continue
            if kinds.setdefault(report.device, report.kind) != report.kind:
                continue
        kept.append(report)
    return kept


def _without_echoes(graded: Sequence[tuple[Report, Grade]]) -> list[tuple[Report, Grade]]:
    """Leave out what names no GPU where another report does, and grade what only follows.

    Xid 45 tells that channels were taken down: beside another fatal event it is a consequence.
    """
    fatal = any(grade.severity is Severity.FATAL for _, grade in graded)
    nvidia = any(
        report.source in _NVIDIA and grade.severity is Severity.FATAL and report.device is not None
        for report, grade in graded
    )
    ill = {r.device for r, g in graded if r.source == "xid" and g.severity is Severity.FATAL}
    kept = []
    first: str | None = None
    for report, grade in graded:
        if report.vague and report.device is None:
            first = first or report.kind
            if nvidia or report.kind != first:
                continue
        if report.kind == "nvrm.needs_reset" and report.device in ill:
            continue
        if report.source == "xid" and report.code == _CLEAN_UP and fatal:
            kept.append((report, Grade(severity=Severity.INFO, remedy=Remedy.NONE)))
            continue
        kept.append((report, grade))
    return kept


def _event(report: Report, grade: Grade) -> Event:
    return Event(
        source=report.source,
        code=report.code,
        device=report.device,
        severity=grade.severity,
        remedy=grade.remedy,
        count=report.weight * report.line.repeats,
        unit=report.unit,
        text=report.line.text,
        at=report.line.at,
        last_at=report.line.at,
        software=grade.software,
    )


_ORDER = list(Remedy)


def _graver(one: Remedy, other: Remedy) -> Remedy:
    return max(one, other, key=_ORDER.index)
