"""Feed a detector its planted fault, through the worker, device, kernel and judgement it uses."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable
from typing import Any

from nodeproof.checks import CheckSpec
from nodeproof.manifest import Manifest
from nodeproof.model import Device, Outcome, SelfTest
from nodeproof.plugin.judging import Judgement
from nodeproof.results import Results
from nodeproof.verdict import WITHHELD, Decision, Why, decide

Attempted = Callable[[Any], Judgement]  # the check's own function on a given answer


def planted_in_worker(spec: CheckSpec, device: Device, answer: Any, attempt: Attempted) -> SelfTest:
    """The worker planted a fault: its comparison must have seen it exactly, and the check fail."""
    answers = [result for _, result in answer] if spec.gathers else [answer]
    planted = [a["planted"] for a in answers]
    found = [a["found"] for a in answers]
    judgement = attempt(answer)
    exact = bool(planted) and all(planted) and _as_json(found) == _as_json(planted)
    return SelfTest(
        check=spec.id,
        device=device,
        caught=exact and _condemned(spec, judgement),
        planted=planted if spec.gathers else planted[0],
        reported=found if spec.gathers else found[0],
        summary=_said(judgement) if exact else "the comparison did not report what was planted",
    )


def planted_in_answer(spec: CheckSpec, device: Device, answer: Any, attempt: Attempted) -> SelfTest:
    """The answer was altered: the check must fail on it."""
    assert spec.plant.alter is not None
    altered = spec.plant.alter(copy.deepcopy(answer))
    if altered == answer:
        return missed(spec, device, "the plant changed nothing")
    judgement = attempt(altered)
    return SelfTest(
        check=spec.id,
        device=device,
        caught=_condemned(spec, judgement),
        planted=_difference(answer, altered),
        reported=judgement.summary,
        summary=_said(judgement),
    )


def withheld(node: Device, results: Results, manifest: Manifest) -> SelfTest:
    """Withhold each finding in turn: the verdict has to miss just that one and not accept."""
    missed_by_verdict = []
    for finding in results.findings:
        rest = tuple(f for f in results.findings if f is not finding)
        told = decide(dataclasses.replace(results, findings=rest), manifest)
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


def _condemned(spec: CheckSpec, judgement: Judgement) -> bool:
    # With the check's own cause: a fail for some other reason would hide a dead comparison.
    return judgement.outcome is Outcome.FAIL and judgement.cause is spec.cause


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)  # 1, 1.0 and true are three things


def _said(judgement: Judgement) -> str:
    return f"{judgement.outcome}: {judgement.summary}"


def _difference(before: Any, after: Any) -> Any:
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [k for k in {**before, **after} if before.get(k) != after.get(k)]
        return {k: after.get(k, "removed") for k in keys}
    return "an altered list of results"
