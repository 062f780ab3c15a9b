"""Results in, one verdict out. Pure: no clock, no files, no device.

The table in the design, section 5, is this module and `nodeproof.case`. Accept is what is left when
nothing speaks against it.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from nodeproof.case import WITHHELD, Case, Reason, Why, doubt
from nodeproof.manifest import Manifest
from nodeproof.model import COMPUTE, DeviceKind, Finding, Outcome, Remedy, Waiver
from nodeproof.results import Plan, Results

__all__ = [
    "WITHHELD",
    "Decision",
    "Reason",
    "Verdict",
    "Why",
    "decide",
    "decide_any",
    "is_rehearsal",
]

SCHEMA = 1


class Decision(StrEnum):
    """What becomes of the node."""

    ACCEPT = "accept"
    REJECT = "reject"  # hardware is condemned
    UNDECIDED = "undecided"  # anything else: test again, condemn nothing

    @property
    def exit_code(self) -> int:
        """0, 10, 11. Every other exit status is a crash, and means undecided."""
        return {Decision.ACCEPT: 0, Decision.REJECT: 10, Decision.UNDECIDED: 11}[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The decision on one node with everything it rests on."""

    decision: Decision
    rehearsal: bool
    failed: tuple[Reason, ...]
    undecided: tuple[Reason, ...]
    waived: tuple[Waiver, ...]
    notes: tuple[str, ...]
    remedy: Remedy
    counts: Mapping[str, int]
    plan: Plan | None
    ended: str
    loaded_s: float
    members: Mapping[str, Decision] | None = None  # of a group: what becomes of each

    def document(self) -> dict[str, Any]:
        """Return the content of `verdict.json`, in plain values."""
        plan = self.plan
        return {
            "schema": SCHEMA,
            "verdict": self.decision.value,
            "rehearsal": self.rehearsal,
            "run_id": plan.run_id if plan else "",
            "nonce": plan.nonce if plan else "",
            "profile": plan.profile.value if plan else "",
            "node": dict(plan.node) if plan else {},
            "devices": [
                {"kind": d.kind.value, "id": d.id, "label": d.label}
                for d in (plan.devices if plan else ())
            ],
            "counts": dict(self.counts),
            "failed": [_row(r) for r in self.failed],
            "undecided": [_row(r) for r in self.undecided],
            "remedy": self.remedy.value,
            "waivers": [
                {"check": w.check, "device": w.device, "reason": w.reason, "expires": w.expires}
                for w in self.waived
            ],
            "notes": list(self.notes),
            "digests": {
                "suite": plan.suite_digest if plan else "",
                "manifest": plan.manifest_digest if plan else "",
                "spec": str(plan.spec.get("digest", "")) if plan else "",
            },
            "loaded_s": round(min(self.loaded_s, sys.float_info.max), 3),
            "started": plan.started if plan else "",
            "ended": self.ended,
            **({} if self.members is None else {"members": _words(self.members)}),
        }


def _words(members: Mapping[str, Decision]) -> dict[str, str]:
    return {name: decision.value for name, decision in members.items()}


def _row(reason: Reason) -> dict[str, Any]:
    return {
        "check": reason.check,
        "device": reason.device,
        "label": reason.label,
        "why": reason.why.value,
        "text": reason.text,
        "remedy": reason.remedy.value,
        "cause": reason.cause.value if reason.cause else None,
    }


def of_a_node(plan: Plan) -> Iterator[Reason]:
    """Doubts about a plan that undertook the proof of one node."""
    kinds = Counter(device.kind for device in plan.devices)
    compute = sum(kinds[kind] for kind in COMPUTE)
    expected = plan.expected_devices
    if compute == 0:
        yield doubt("no device was under test")
    elif expected is not None and compute != expected:
        yield doubt(f"{compute} devices were under test, {expected} expected")
    for device in plan.devices:
        if device.facts.get("mig"):
            yield doubt(
                f"{device} is cut into slices (MIG): a GPU is accepted whole and partitioned "
                "after; turn MIG off (nvidia-smi -mig 0) and test again"
            )
    for kind in (DeviceKind.NODE, DeviceKind.HOST):
        if kinds[kind] != 1:
            yield doubt(f"the plan names {kinds[kind]} devices of kind {kind}, not one")


def of_a_group(plan: Plan) -> Iterator[Reason]:
    """Doubts about a plan that undertook the proof of nodes that work together."""
    kinds = Counter(device.kind for device in plan.devices)
    if kinds[DeviceKind.GROUP] != 1:
        yield doubt(f"the plan names {kinds[DeviceKind.GROUP]} groups, not one")
    nodes, members = plan.node.get("group"), kinds[DeviceKind.MEMBER]
    if type(nodes) is not int or nodes < 1:
        yield doubt(f"the plan says of its group that it is of {nodes!r} nodes")
    elif members != nodes:
        yield doubt(f"the plan names {members} members of a group of {nodes}")
    for kind in (*COMPUTE, DeviceKind.NODE, DeviceKind.HOST):
        if kinds[kind]:
            yield doubt(
                f"the plan of a group names {kinds[kind]} devices of kind {kind}: what was judged "
                "is not told apart from one node"
            )


def decide_any(results: Results, manifest: Manifest) -> Verdict:
    """Judge a results file of a node or of a group of nodes, whichever its plan is.

    What releases a node is the proof of that node, which `decide` wants. A gate may call this for
    what a node has to show with others beside that, and for nothing else.
    """
    plan = results.plan
    if plan is None or all(d.kind is not DeviceKind.GROUP for d in plan.devices):
        return decide(results, manifest)
    told = decide(results, manifest, of_its_plan=of_a_group)
    return dataclasses.replace(told, members=dict(_members(plan, told)))


# What a bad member alone explains: all wait for it.
_HELD_UP = frozenset({"fabric.group.bandwidth", "fabric.group.steadiness"})


def _members(plan: Plan, told: Verdict) -> Iterator[tuple[str, Decision]]:
    """Say what becomes of each member.

    One that a fail names is rejected. One is accepted if all that is held against anybody is about
    another member, or about a link that doesn't end at it, or is a shortfall of the whole group
    while a fail names another member, for which the group waited. Whatever is said of the run, of
    the file or of the group's own proof speaks against every member.
    """
    kinds = {device.id: device.kind for device in plan.devices}
    failed = {r.device for r in told.failed if kinds.get(r.device) is DeviceKind.MEMBER}
    # Who is failed by something that is no member is nobody known: all are in doubt.
    doubts = [*told.undecided, *(r for r in told.failed if r.device not in failed)]
    for device in plan.devices:
        if device.kind is not DeviceKind.MEMBER:
            continue
        if device.id in failed:
            yield device.id, Decision.REJECT
            continue
        clear = all(_elsewhere(r, device.id, kinds, blamed=bool(failed)) for r in doubts)
        yield device.id, Decision.ACCEPT if clear else Decision.UNDECIDED


def _elsewhere(
    reason: Reason, member: str, kinds: Mapping[str, DeviceKind], *, blamed: bool
) -> bool:
    """Whether a doubt leaves this member alone; `blamed` is another that a fail names."""
    match kinds.get(reason.device):
        case DeviceKind.MEMBER:
            return reason.device != member
        case DeviceKind.LINK:
            ends = reason.device.split("|")
            return (
                len(ends) == 2
                and all(kinds.get(e) is DeviceKind.MEMBER for e in ends)
                and (member not in ends)
            )
        case DeviceKind.GROUP:
            short = reason.why in {Why.SHORT, Why.GROUP}
            return blamed and short and reason.check in _HELD_UP
    return False


def decide(
    results: Results,
    manifest: Manifest,
    *,
    of_its_plan: Callable[[Plan], Iterable[Reason]] = of_a_node,
) -> Verdict:
    """Judge by what a results file shows: one node, unless `of_its_plan` doubts other things."""
    plan = results.plan
    doubts = [Reason(why=Why.FILE, text=text) for text in results.problems]
    failed: list[Reason] = []
    waived: list[Waiver] = []
    if plan is not None:
        case = Case.of_run(plan, results, manifest)
        doubts += [*case.of_the_run(), *of_its_plan(plan)]
        doubts += [*case.of_the_plan(), *case.of_the_selftests()]
        for finding in results.findings:
            reason = case.of(finding)
            waiver = case.waiver(finding)
            if reason and waiver:
                waived.append(waiver)
            elif reason:
                (failed if reason.why is Why.FAILED else doubts).append(reason)
    decision = Decision.REJECT if failed else Decision.UNDECIDED if doubts else Decision.ACCEPT
    remedies = [r.remedy for r in failed or doubts]
    counted = [f for f in results.findings if plan is None or not case.trial(f.key)]
    counts = Counter(f.outcome for f in counted)
    return Verdict(
        decision=decision,
        rehearsal=plan is None or is_rehearsal(plan),
        failed=tuple(failed),
        undecided=tuple(doubts),
        waived=tuple(waived),
        notes=(*_notes(results.findings), *_idle(plan, waived)),
        remedy=max(remedies, key=lambda r: r.severity, default=Remedy.NONE),
        counts={o.value: counts[o] for o in Outcome}
        | {
            "trials": len(results.findings) - len(counted),
            "selftests": sum(t.caught for t in results.selftests),
        },
        plan=plan,
        ended=results.end.ended if results.end else "",
        loaded_s=sum(float(f.loaded_s) for f in results.findings),
    )


def _notes(findings: Iterable[Finding]) -> Iterator[str]:
    for finding in findings:
        for attempt in finding.attempts:
            if finding.outcome is Outcome.PASS:
                yield f"{finding.check} on {finding.device}: passed after {attempt.summary}"


def _idle(plan: Plan | None, waived: Sequence[Waiver]) -> Iterator[str]:
    for waiver in plan.waivers if plan else ():
        if waiver not in waived:
            yield (
                f"the waiver of {waiver.check} on {waiver.device} had no effect: no such finding "
                f"was short, or it expired ({waiver.expires})"
            )


def is_rehearsal(plan: Plan) -> bool:
    """Whether a run tested something other than GPUs, whatever it says of itself."""
    return plan.rehearsal or any(device.kind is DeviceKind.CPU for device in plan.devices)
