"""The run as Prometheus text, for the textfile collector of node_exporter.

Everything is a gauge: a file says what the last run saw. Samples carry no time of their own, which
that collector refuses; when the run was is a value.

A run over a group of nodes has names of its own, `nodeproof_group_…`: an alert on a node's verdict
must neither fire nor keep silent for what a group did, and where both files lie on one node, no
series stands in two of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from nodeproof.model import DeviceKind, Measurement
from nodeproof.reports.ledger import Row, Standing, proofs, rows
from nodeproof.reports.legible import moment, name
from nodeproof.results import Plan, Results
from nodeproof.verdict import Decision, Verdict

_Labels = tuple[tuple[str, str], ...]
_NODE, _GROUP = "nodeproof_", "nodeproof_group_"
_HELP_OF_A_GROUP = {
    "verdict": "1 for what became of the group, else 0.",
    "info": "What ran, and on which boot of the node that led the group.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """Samples of one name. A series that comes twice is written once: twice voids the file."""

    name: str
    help: str
    samples: dict[_Labels, float] = field(default_factory=dict)

    def put(self, value: float, /, **labels: object) -> None:
        key = tuple((label, name(text)) for label, text in labels.items())
        self.samples.setdefault(key, value)

    def lines(self) -> Iterator[str]:
        if not self.samples:
            return
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} gauge"
        for labels, value in self.samples.items():
            inner = ",".join(f'{label}="{_escape(text)}"' for label, text in labels)
            yield (
                f"{self.name}{{{inner}}} {_number(value)}"
                if inner
                else f"{self.name} {_number(value)}"
            )


def render(results: Results, verdict: Verdict) -> str:
    """Return the exposition, ending in a line feed."""
    table = rows(results, verdict)
    families = (
        *_of_the_run(results, verdict),
        _outcomes(table),
        *_measurements(table),
        _selftests(results, verdict),
    )
    if results.plan is not None and _is_of_a_group(results.plan):
        families = (*(_renamed(family) for family in families), _of_members(verdict))
    return "\n".join(line for family in families for line in family.lines()) + "\n"


def _is_of_a_group(plan: Plan) -> bool:
    # Either will do: a plan that says it by halves is no node's.
    return "group" in plan.node or any(d.kind is DeviceKind.GROUP for d in plan.devices)


def _renamed(family: _Family) -> _Family:
    name = family.name.removeprefix(_NODE)
    return _Family(
        name=_GROUP + name,
        help=_HELP_OF_A_GROUP.get(name, family.help),
        samples=family.samples,
    )


def _of_members(verdict: Verdict) -> _Family:
    family = _Family(
        name=f"{_GROUP}member_verdict", help="1 for what became of a member of the group, else 0."
    )
    for member, decision in (verdict.members or {}).items():
        for each in Decision:
            family.put(each is decision, member=member, verdict=each.value)
    return family


def _of_the_run(results: Results, verdict: Verdict) -> Iterator[_Family]:
    decision = _Family(name="nodeproof_verdict", help="1 for what became of the node, else 0.")
    for each in Decision:
        decision.put(each is verdict.decision, verdict=each.value)
    yield decision
    rehearsal = _Family(name="nodeproof_rehearsal", help="1 if the run proves nothing about a GPU.")
    rehearsal.put(verdict.rehearsal)
    yield rehearsal
    loaded = _Family(name="nodeproof_loaded_seconds", help="Verified load of all devices, summed.")
    loaded.put(verdict.loaded_s)
    yield loaded
    plan = results.plan
    if plan is None:
        return
    info = _Family(name="nodeproof_info", help="What ran, and on which boot of the node.")
    info.put(
        1,
        run_id=plan.run_id,
        profile=plan.profile.value,
        spec=plan.spec.get("name", ""),
        suite_digest=plan.suite_digest,
        version=plan.version,
        boot_id=plan.node.get("boot_id", ""),
    )
    yield info
    for word, text in (("started", plan.started), ("ended", verdict.ended)):
        time = moment(text)
        family = _Family(
            name=f"nodeproof_run_{word}_timestamp_seconds", help=f"When the run {word}, Unix time."
        )
        if time is not None:
            family.put(time.timestamp())
        yield family


def _outcomes(table: tuple[Row, ...]) -> _Family:
    family = _Family(
        name="nodeproof_finding_outcome",
        help="1 for the outcome of a check on a device; missing if none came back.",
    )
    for row in table:
        outcome = row.finding.outcome.value if row.finding else Standing.MISSING.value
        family.put(1, check=row.check, device=row.device, label=row.label, outcome=outcome)
    return family


def _measurements(table: tuple[Row, ...]) -> tuple[_Family, _Family]:
    values = _Family(name="nodeproof_measurement_value", help="What was measured.")
    limits = _Family(
        name="nodeproof_measurement_limit", help="The bound that the measurement must keep."
    )
    for labels, m in _worst(table).items():
        values.put(m.value, **dict(labels))
        for bound, limit in (("at_least", m.at_least), ("at_most", m.at_most)):
            if limit is not None:
                limits.put(limit, **dict(labels), bound=bound)
    return values, limits


def _worst(table: tuple[Row, ...]) -> Mapping[_Labels, Measurement]:
    """Of readings that share a name, the one that says least in the node's favour."""
    kept: dict[_Labels, Measurement] = {}
    for row in table:
        for m in row.finding.measurements if row.finding else ():
            where = {"check": row.check, "device": row.device, "label": row.label}
            where |= {"measurement": m.name, "unit": m.unit}
            labels = tuple((label, name(text)) for label, text in where.items())
            if labels not in kept or _room(m) < _room(kept[labels]):
                kept[labels] = m
    return kept


def _room(measurement: Measurement) -> float:
    margin = measurement.margin
    return float("inf") if margin is None else margin


def _selftests(results: Results, verdict: Verdict) -> _Family:
    family = _Family(
        name="nodeproof_selftest_caught",
        help="1 if the check reported the fault that was planted for it, exactly.",
    )
    # Those that were not caught come first, so that they are the ones kept.
    for proof in sorted(proofs(results, verdict), key=lambda p: p.standing is Standing.PASS):
        caught = proof.standing is Standing.PASS
        family.put(caught, check=proof.check, device=proof.device, label=proof.label)
    return family


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, bool) else repr(float(value))


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
