"""What a kind of node gives, and the limits that follow from it.

A limit stands a tenth off the median over the devices of all nodes, or three robust deviations
(1.4826 of the median absolute deviation) where that is laxer. Past 15 % the figures are too far apart
to tell a bad node by, and none is set. Median and deviation hardly move with one bad device among
many, so one that is short of what the others give is seen, and is no known-good one: it is named and
nothing is made of the rest, since who drops what does not fit can prove anything.

A tenth is what a site's own figure is given across nodes of one kind; a mean, or a limit at the worst
sample, would take the worst node for the measure. What is counted or set (GPUs, links, lanes,
clocks, caps) is no sample and not learnt: makers and sites state it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from nodeproof import physics
from nodeproof.baseline.evidence import BaselineError, Evidence, Run
from nodeproof.baseline.held import Held
from nodeproof.model import DeviceKind, Finding, Measurement, figure
from nodeproof.nccl_tests.bandwidth import Collective

SHARE = 0.10  # of the median
WIDEST = 0.15
DEGREES, WIDEST_DEGREES = 20.0, 30.0  # C; of an idle GPU, whose room and last job differ
_DEVIATIONS, _TO_SIGMA = 3.0, 1.4826
_DIGITS = 3
_WHOSE = {DeviceKind.NODE: "nodes", DeviceKind.GROUP: "runs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """A limit that samples of one measurement can set."""

    check: str
    limit: str
    measurement: str
    unit: str
    ceiling: bool = False
    together: bool = False  # devices exchange: one alone is not judged; how, stands in its detail


def _bandwidths(check: str) -> list[Learnt]:
    return [
        Learnt(check=check, limit=f"{c}_gbs", measurement=c.value, unit="GB/s", together=True)
        for c in Collective
    ]


_COPIES, _HEAT = "device.transfers.host", "gpu.thermal.limits"
LEARNT = (
    Learnt(
        check="device.burnin.throughput",
        limit="median_tflops",
        measurement="median",
        unit="TFLOP/s",
    ),
    Learnt(check=_COPIES, limit="h2d_gbs", measurement="host to device", unit="GB/s"),
    Learnt(check=_COPIES, limit="d2h_gbs", measurement="device to host", unit="GB/s"),
    Learnt(check=_COPIES, limit="d2d_gbs", measurement="device to device", unit="GB/s"),
    Learnt(check="node.transfers.pairs", limit="pair_gbs", measurement="slowest pair", unit="GB/s"),
    *_bandwidths("node.collective.bandwidth"),
    *_bandwidths("fabric.group.bandwidth"),
    Learnt(check=_HEAT, limit="hottest_c", measurement="temperature", unit="C", ceiling=True),
    Learnt(
        check=_HEAT,
        limit="memory_hottest_c",
        measurement="memory temperature",
        unit="C",
        ceiling=True,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One limit of the new spec. `source` is empty where the spec it was kept of says none."""

    check: str
    limit: str
    value: bool | float | str
    source: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    run: Run
    device: str
    taken: Measurement


def learn(
    evidence: Evidence, held: Held, *, loosen: bool = False
) -> tuple[list[Number], list[str]]:
    """Return the limits of a spec for this kind of node, with what has to be said of them.

    Each is the stricter of what follows from the figures and what was asked before, unless `loosen`,
    and the notes name each that the figures alone would have otherwise. Raises `BaselineError` for
    a device that is short of what the others give, for a figure above what physics allows, and where
    nothing can be learnt.
    """
    kept = {
        (check, limit): Number(
            check=check,
            limit=limit,
            value=value,
            source=dict(held.provenance.get(check, {}).get(limit, {})),
        )
        for check, limits in held.kept.limits.items()
        for limit, value in limits.items()
    }
    notes, wrong, new = list[str](), list[str](), dict[tuple[str, str], Number]()
    for of in LEARNT:
        try:
            number = _number(of, evidence)
        except _LeftOutError as error:
            notes.append(f"{of.check}: {of.limit} is not learnt: {error}")
            continue
        except BaselineError as error:
            wrong += error.reasons
            continue
        if number is None:
            continue
        if (why := _stricter(of, float(number.value), held)) and not loosen:
            notes.append(f"{of.check}: {of.limit} {why}")
            continue
        new[of.check, of.limit] = number
    if wrong:
        raise BaselineError(*wrong)
    if not new:
        raise BaselineError("nothing was learnt", *notes)
    notes += [
        f"{n.check}: {n.limit} = {n.value} is kept, and came without a source"
        for place, n in kept.items()
        if place not in new and not n.source and type(n.value) in {int, float}
    ]
    both = {**kept, **new}
    return [both[place] for place in sorted(both)], notes


class _LeftOutError(Exception):
    """No limit follows of these figures. Says why."""


def _number(of: Learnt, evidence: Evidence) -> Number | None:
    """Return the limit, or `None` for a check that is not made of this kind."""
    made = [f for run in evidence.runs for f in run.results.findings if f.check == of.check]
    if not made:
        return None
    samples = list(_samples(of, evidence))
    if not samples:
        raise _LeftOutError(f"no run measured {of.measurement!r}")
    if len(samples) < len(made):
        raise _LeftOutError(
            f"{len(made) - len(samples)} of {len(made)} findings have no {of.measurement!r}"
        )
    if strange := sorted({s.taken.unit for s in samples} - {of.unit}):
        raise BaselineError(
            f"{of.check}: {of.measurement} is in {of.unit} and not in {strange[0]!r}"
        )
    if of.together:
        if not all(s.taken.bounded for s in samples):
            raise _LeftOutError("one device alone exchanges nothing")
        ways = sorted({s.taken.detail.partition(";")[0] for s in samples})
        if len(ways) > 1:
            raise BaselineError(
                f"{of.check}: {of.measurement} was measured in several ways: {ways}"
            )
    figures = [statistics.median(own) for own in _by_device(samples)]
    middle = statistics.median(figures)
    if not of.ceiling and not middle > 0:
        raise BaselineError(f"{of.check}: {of.measurement} of {figure(middle)} is no speed")
    room, by = _room(of, figures, middle)
    value = _outward(middle + room if of.ceiling else middle - room, up=of.ceiling)
    _hold(of, samples, value, middle)
    _possible(of, value, middle, evidence)
    how = f", {samples[0].taken.detail.partition(';')[0]}" if of.together else ""
    said = (
        f"median {figure(middle)} ({figure(min(figures))} to {figure(max(figures))}) of "
        f"{len(figures)} {_WHOSE.get(made[0].device.kind, 'devices')}{how}, "
        f"{'and' if of.ceiling else 'less'} {by}; known-good runs {evidence.digest}"
    )
    return Number(
        check=of.check,
        limit=of.limit,
        value=value,
        source={
            "unit": of.unit,
            "source": said,
            "date": evidence.ended,
            "n": evidence.nodes,
            "derived": True,
        },
    )


def _samples(of: Learnt, evidence: Evidence) -> Iterator[_Sample]:
    for run in evidence.runs:
        for finding in run.results.findings:
            if finding.check == of.check and (taken := _taken(of, finding)):
                yield _Sample(run=run, device=_device(run, finding), taken=taken)


def _taken(of: Learnt, finding: Finding) -> Measurement | None:
    named = [m for m in finding.measurements if m.name == of.measurement]
    return named[0] if len(named) == 1 else None


def _device(run: Run, finding: Finding) -> str:
    """Name what was measured, the same in all runs of it and different on different nodes."""
    if run.group:
        return run.plan.run_id  # who is in a group, and in which order, may differ each time
    if finding.device.kind is DeviceKind.GPU:
        return finding.device.id
    node = run.plan.node
    return f"{node.get('uid') or node['boot_id']} {finding.device.id}"


def _by_device(samples: Sequence[_Sample]) -> list[list[float]]:
    found: dict[str, list[float]] = {}
    for sample in samples:
        found.setdefault(sample.device, []).append(sample.taken.value)
    return list(found.values())


def _room(of: Learnt, figures: Sequence[float], middle: float) -> tuple[float, str]:
    """Return how far from the median the limit stands, and why."""
    sigma = _TO_SIGMA * statistics.median(abs(value - middle) for value in figures)
    own, widest = (DEGREES, WIDEST_DEGREES) if of.ceiling else (SHARE * middle, WIDEST * middle)
    if _DEVIATIONS * sigma > widest:
        raise _LeftOutError(
            f"the figures of {of.measurement!r} are too far apart ({figure(min(figures))} to "
            f"{figure(max(figures))} {of.unit}, median {figure(middle)}) to tell a bad node by"
        )
    if _DEVIATIONS * sigma > own:
        return _DEVIATIONS * sigma, f"{_DEVIATIONS:g} robust deviations of {figure(sigma)}"
    return own, f"{own:g} C" if of.ceiling else f"{SHARE:.0%} of it"


def _hold(of: Learnt, samples: Sequence[_Sample], value: float, middle: float) -> None:
    """Hold every sample against the limit: a node that breaks it is no known-good one."""
    bad = [s for s in samples if (s.taken.value > value if of.ceiling else s.taken.value < value)]
    if bad:
        raise BaselineError(
            *(
                f"{s.run.file}: {of.check} on {s.device}: {of.measurement} {figure(s.taken.value)} "
                f"{of.unit} breaks the limit {figure(value)} that all of them give together (median "
                f"{figure(middle)}): it is no known-good node, or not of this kind; leave it out if "
                "you know why"
                for s in bad
            )
        )


def _possible(of: Learnt, value: float, middle: float, evidence: Evidence) -> None:
    quantity, known = physics.LIMITS.get((of.check, of.limit)), physics.by_name()
    for name in evidence.products if quantity else ():
        if quantity is None or name not in known:
            continue
        peak = known[name].peak(quantity)
        if peak is not None and middle > peak:
            raise BaselineError(
                f"{of.check}: {of.measurement}: a median of {figure(middle)} {of.unit} is more than "
                f"{name} can do ({figure(peak)}): these figures are no measurements of it"
            )
        if why := physics.refusal(quantity, value, known[name]):
            raise _LeftOutError(why)


def _stricter(of: Learnt, value: float, held: Held) -> str:
    """Say what asks for more than the figures, `""` if nothing does."""
    asked, by = held.asked(of.check, of.limit)
    if isinstance(asked, bool) or not isinstance(asked, int | float) or asked == 0:
        return ""  # nothing was asked so far
    if (value <= asked) if of.ceiling else (value >= asked):
        return ""
    return f"stays at {figure(asked)} {by}: the figures alone would give {figure(value)}"


def _outward(value: float, *, up: bool) -> float:
    """Round to three digits, never to the stricter side of what was worked out."""
    exact = Decimal(value)
    if not exact:
        return 0.0
    step = Decimal(1).scaleb(exact.adjusted() - _DIGITS + 1)
    return float(exact.quantize(step, rounding=ROUND_CEILING if up else ROUND_FLOOR))
