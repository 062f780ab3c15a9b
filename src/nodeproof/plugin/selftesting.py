"""Feed a detector its planted fault, through the worker, device, kernel and judgement it uses."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nodeproof.checks import CheckSpec, Plant
from nodeproof.manifest import Manifest
from nodeproof.model import Device, Outcome, SelfTest
from nodeproof.plugin.judging import Judgement
from nodeproof.results import Results, plain
from nodeproof.verdict import WITHHELD, Decision, Why, decide_any

_LOOK = frozenset({"got", "xor", "bits"})  # of a wrong element: what it looked like, not where
Attempted = Callable[[Any], Judgement]  # the check's own function on a given answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One planted fault and what became of it."""

    planted: Any
    reported: Any
    problem: str  # "" if it was reported as planted
    broken: frozenset[str] = frozenset()


def planted_in_worker(
    spec: CheckSpec, plant: Plant, answer: Any, attempt: Attempted, *, faulty: bool = False
) -> Trial:
    """The worker planted a fault: its comparison must have seen it exactly, and the check fail.

    A device that is `faulty`, by a finding of this detector that has a witness, adds faults of its
    own: there each planted one must be reported at its place, and what else is reported does not
    count against the detector. Otherwise what is broken for good could never be condemned.
    """
    answers = [result for _, result in answer] if spec.gathers else [answer]
    planted = [a["planted"] for a in answers]
    found = [a["found"] for a in answers]
    judgement = attempt(answer)
    problem = _unseen(spec, plant, judgement)
    if not planted or not all(planted):
        problem = "the worker planted nothing"
    elif _as_json(found) != _as_json(planted) and not (faulty and _within(planted, found)):
        problem = "the comparison did not report what was planted"
    return Trial(
        planted=planted if spec.gathers else planted[0],
        reported=found if spec.gathers else found[0],
        problem=problem,
        broken=judgement.broken,
    )


def planted_in_answer(
    spec: CheckSpec, plant: Plant, answer: Any, attempt: Attempted
) -> Trial | None:
    """The answer was altered: the check must fail on it. `None` where the plant can't be had."""
    assert plant.alter is not None
    altered = plant.alter(copy.deepcopy(answer))
    if altered is None:
        return None
    judgement = attempt(altered)
    same = _as_json(plain(altered)) == _as_json(plain(answer))
    return Trial(
        planted=_difference(answer, altered),
        reported=judgement.summary,
        problem="the plant changed nothing" if same else _unseen(spec, plant, judgement),
        broken=judgement.broken,
    )


def concluded(
    spec: CheckSpec, device: Device, trials: list[Trial], bounded: frozenset[str]
) -> SelfTest:
    """Caught if every plant was, and every limit of the check was broken by one of them.

    `bounded` names the limits that the check held the device itself against.
    """
    problems = [t.problem for t in trials if t.problem]
    if untested := bounded - frozenset().union(*(t.broken for t in trials)):
        problems.append(f"no planted fault breaks the limit of {', '.join(sorted(untested))}")
    one = len(trials) == 1
    return SelfTest(
        check=spec.id,
        device=device,
        caught=bool(trials) and not problems,
        planted=trials[0].planted if one else [t.planted for t in trials],
        reported=trials[0].reported if one else [t.reported for t in trials],
        summary="; ".join(problems) or f"{len(trials)} planted, all reported",
    )


def withheld(node: Device, results: Results, manifest: Manifest) -> SelfTest:
    """Withhold each finding in turn: the verdict has to miss just that one and not accept."""
    missed_by_verdict = []
    for finding in results.findings:
        rest = tuple(f for f in results.findings if f is not finding)
        told = decide_any(dataclasses.replace(results, findings=rest), manifest)
        missing = {(r.check, r.device) for r in told.undecided if r.why is Why.MISSING}
        key = finding.key
        if (key.check, key.device) not in missing or told.decision is Decision.ACCEPT:
            missed_by_verdict.append(str(key))
    # A trial counts for nothing, so nobody misses it.
    trials = {str(p.key) for p in (results.plan.checks if results.plan else ()) if p.trial}
    unseen = [key for key in missed_by_verdict if key not in trials]
    return SelfTest(
        check=WITHHELD,
        device=node,
        caught=bool(results.findings) and not unseen,
        planted=len(results.findings),
        reported=len(results.findings) - len(unseen),
        summary=f"not missed: {', '.join(unseen)}" if unseen else "each finding was missed",
    )


def missed(spec: CheckSpec, device: Device, why: str) -> SelfTest:
    """A self-test that could not be made is one that was not passed."""
    return SelfTest(check=spec.id, device=device, caught=False, summary=why)


def borne_out_by_the_host(answer: Any) -> bool:
    """Whether the host computed the known answer where a device is said to be wrong.

    Kernels that ask the host say so under `host`. A comparison that calls everything wrong is seen
    by what it calls wrong: the same bits as it expects.
    """
    wrong = [f for f in answer["found"] if "expected" in f]
    differ = all(f["got"] != f["expected"] for f in wrong)
    return answer.get("host") == "right" and bool(wrong) and differ


def _unseen(spec: CheckSpec, plant: Plant, judgement: Judgement) -> str:
    """Say what is wrong with the judgement on a planted fault, `""` if nothing is."""
    said = f"{judgement.outcome}: {judgement.summary}" if judgement.summary else judgement.outcome
    if judgement.outcome is not Outcome.FAIL:
        return f"a planted fault did not end in a fail but in {said}"
    if unbroken := set(plant.breaks) - judgement.broken:
        return f"a planted fault did not break the limit of {', '.join(sorted(unbroken))}"
    # With the check's own cause: a fail for some other reason would hide a dead comparison.
    if not plant.breaks and judgement.cause is not spec.cause:
        return f"a planted fault was blamed on {judgement.cause}: {judgement.summary}"
    return ""


def _within(planted: list[Any], found: list[Any]) -> bool:
    """Whether each planted fault was seen where it was, on top of others perhaps."""
    return all(
        {_as_json(_place(fault)) for fault in own} <= {_as_json(_place(fault)) for fault in seen}
        for own, seen in zip(planted, found, strict=True)
    )


def _place(fault: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fault.items() if name not in _LOOK}


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)  # 1, 1.0 and true are three things


def _difference(before: Any, after: Any) -> Any:
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [k for k in {**before, **after} if before.get(k) != after.get(k)]
        return {k: after.get(k, "removed") for k in keys}
    return "an altered list of results"
