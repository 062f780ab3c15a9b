"""The run as one page that opens anywhere: no script, nothing fetched, readable on paper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from nodeproof.model import Cause, Device, Measurement, Remedy
from nodeproof.reports import telemetry_plots
from nodeproof.reports.advice import TO_DO
from nodeproof.reports.ledger import Row, Standing, proofs, rows
from nodeproof.reports.legible import document, facts, legible
from nodeproof.results import Results
from nodeproof.verdict import Decision, Reason, Verdict, Why

# What one section may show; the results file has the rest, and the page says so.
_ROWS = 4000
_EVENTS = 300
_FIRST = 3  # devices in the box at the top

_MARKS = {
    Standing.PASS: "✓",
    Standing.FAIL: "✕",
    Standing.ERROR: "!",
    Standing.SKIP: "-",
    Standing.MISSING: "?",
    Standing.UNPROVED: "!",
    Standing.UNCOUNTED: "○",
}

_MEANS = {
    Decision.ACCEPT: "The node is fit for work.",
    Decision.REJECT: "Hardware is condemned. Nothing may be scheduled here.",
    Decision.UNDECIDED: "The node is not proved fit, and no hardware is condemned.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """The box at the top: which device, why, what to do."""

    which: str
    facts: Mapping[str, Any]
    whys: tuple[str, ...]
    do: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """One measurement beside its limit."""

    row: Row
    measurement: Measurement
    value: str
    margin: str
    standing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Telemetry of one device."""

    device: str
    trace: telemetry_plots.Trace
    svg: Markup | None


def render(results: Results, verdict: Verdict) -> str:
    """Return one HTML document, to be written as UTF-8."""
    plan = results.plan
    table = rows(results, verdict)
    plots, no_plots = _plots(results)
    reasons = (*verdict.failed, *verdict.undecided)
    culprits = list(_culprits(verdict))
    gauges = list(_gauges(table))
    page: str = _template().render(
        plan=plan,
        verdict=verdict,
        means=_MEANS[verdict.decision],
        culprits=culprits[:_FIRST],
        more_culprits=len(culprits) - _FIRST,
        reasons=reasons[:_ROWS],
        more_reasons=len(reasons) - _ROWS,
        counts=verdict.counts,
        node=plan.node if plan else {},
        devices=plan.devices if plan else (),
        columns=(columns := _columns(results, table)),
        matrix=_matrix(sorted(table, key=lambda row: row.check.partition(".")[0]), columns),
        marks=_MARKS,
        problems=[row for row in table if row.standing is not Standing.PASS][:_ROWS],
        about=plan.about if plan else {},
        gauges=gauges[:_ROWS],
        more_gauges=len(gauges) - _ROWS,
        proofs=proofs(results, verdict)[:_ROWS],
        plots=plots,
        waivers=plan.waivers if plan else (),
        no_plots=no_plots,
        quantities=telemetry_plots.QUANTITIES,
        events=results.events[:_EVENTS],
        more_events=len(results.events) - _EVENTS,
        digests=verdict.document()["digests"],
    )
    return page


def _culprits(verdict: Verdict) -> Iterator[Culprit]:
    """By device, those that are blamed first; then what speaks against the run as a whole."""
    blamed = verdict.failed or verdict.undecided
    known = {d.id: d for d in verdict.plan.devices} if verdict.plan else {}
    by_device: dict[str, list[Reason]] = {}
    for reason in blamed:
        by_device.setdefault(reason.device, []).append(reason)
    # Stable: a reason that names a device helps more than one about the run.
    for device, reasons in sorted(by_device.items(), key=lambda item: item[0] == ""):
        remedy = max((r.remedy for r in reasons), key=lambda r: r.severity)
        whys = [f"{r.check}: {r.text}" if r.check else r.text for r in reasons]
        more = len(whys) - _FIRST
        yield Culprit(
            which=f"{reasons[0].label} {device}" if device else "the run as a whole",
            facts=_facts(known.get(device)),
            whys=(*whys[:_FIRST], *([f"and {more} more reasons, below"] if more > 0 else [])),
            do=_do(remedy, reasons),
        )


def _do(remedy: Remedy, reasons: Iterable[Reason]) -> str:
    reasons = list(reasons)
    text = TO_DO[remedy]
    if all(r.cause is Cause.CONFIG for r in reasons):
        text = "Correct the spec or the check, then test again. " + text
    if any(r.why in {Why.SELFTEST, Why.UNTRUSTED} for r in reasons):
        text += " A detector failed its self-test: if that happens on other nodes, too, it is ours."
    return text


def _facts(device: Device | None) -> Mapping[str, Any]:
    told = device.facts if device else {}
    return {k: told[k] for k in ("pci", "serial", "product") if k in told}


def _columns(results: Results, table: Iterable[Row]) -> list[tuple[str, str]]:
    planned = [(d.id, d.label) for d in (results.plan.devices if results.plan else ())]
    return list(dict.fromkeys([*planned, *((row.device, row.label) for row in table)]))


def _matrix(
    table: Iterable[Row], columns: list[tuple[str, str]]
) -> list[tuple[str, list[list[Standing]]]]:
    """By check: for each device all that was found, mostly one."""
    cells: dict[str, dict[tuple[str, str], list[Standing]]] = {}
    for row in table:
        cells.setdefault(row.check, {}).setdefault((row.device, row.label), []).append(row.standing)
    return [(check, [by.get(c, []) for c in columns]) for check, by in cells.items()]


def _gauges(table: Iterable[Row]) -> Iterator[Gauge]:
    for row in table:
        for m in row.finding.measurements if row.finding else ():
            yield Gauge(
                row=row,
                measurement=m,
                value=f"{m.value:.6g}",
                margin=_margin(m),
                standing=("held" if m.held else "broken") if m.bounded else "no limit",
            )


def _margin(m: Measurement) -> str:
    if m.margin is None:
        return ""
    limit = m.at_least if m.at_least is not None else m.at_most
    share = f" ({m.margin / abs(limit):+.1%})" if limit else ""
    return f"{m.margin:+.4g}{share}"


def _plots(results: Results) -> tuple[list[Plot], str]:
    labels = {d.id: str(d) for d in results.plan.devices} if results.plan else {}
    plots, sentence = [], ""
    for number, trace in enumerate(telemetry_plots.traces(results.telemetry)):
        svg = None
        if trace.lines and not sentence:
            try:
                # Numbers and names of ours alone: nothing in it needs escaping.
                svg = Markup(telemetry_plots.draw(trace, f"plot{number}"))  # noqa: S704  see above
            except telemetry_plots.PlotsUnavailable as error:
                sentence = str(error)
        device = labels.get(trace.device, trace.device) or "no device named"
        plots.append(Plot(device=device, trace=trace, svg=svg))
    return plots, sentence


def _shown(value: object) -> object:
    """Make every value of the page legible, before it is escaped."""
    return value if isinstance(value, Markup) else legible(value)


@cache
def _template() -> Any:
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters["document"] = document
    environment.filters["facts"] = facts
    source = resources.files("nodeproof.reports").joinpath("report.html.j2")
    return environment.from_string(source.read_text(encoding="utf-8"))
