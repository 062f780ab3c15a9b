"""The gate without a controller: one node judges its own results and lifts its own taint.

For clusters where a pod's token carries the name of its node (Kubernetes 1.30 or newer) and a
policy lets it write to that node alone. The suites ran before, in containers without a token; this
one has the token and touches no device. It can release a node that lies about itself; it cannot
release another.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from nodeproof import results, verdict
from nodeproof.gate import writes
from nodeproof.gate.actions import Action, Lift, Quarantine, Say
from nodeproof.gate.kube import Kube, Refused
from nodeproof.gate.names import EVERYTHING_PASSED, Names
from nodeproof.gate.node import Node, node_of
from nodeproof.gate.proof import Ruling, devices_digest
from nodeproof.gate.settings import Settings
from nodeproof.manifest import Manifest, suite_digest
from nodeproof.model import DeviceKind, Profile
from nodeproof.spec import NO_SPEC
from nodeproof.verdict import Decision, Verdict

QUARANTINED = "Quarantined"
NOT_READY = "NotReady"
_PATIENCE_S, _TICK_S = 600.0, 10.0  # for a node to be registered by whoever made it
_TRIES = 5  # conflicts in a row before somebody else may have a turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of it: the decision, the reason of the condition, and a sentence."""

    decision: Decision
    reason: str
    text: str


def gate(
    kube: Kube,
    data: bytes,
    settings: Settings,
    manifest: Manifest,
    *,
    node_name: str,
    now: float,
    wait: Callable[[float], object] = time.sleep,
) -> Outcome:
    """Judge results of this node and act on them. Raises `Refused` where the API does not answer.

    A node that passed and is not ready to be released is waited for, ten minutes.
    """
    decided = verdict.decide(results.parse(data), manifest)
    for _ in range(int(_PATIENCE_S / _TICK_S)):
        outcome = _settled(kube, decided, settings, node_name=node_name, now=now)
        if outcome.reason != NOT_READY:
            break
        wait(_TICK_S)
    return outcome


def _settled(
    kube: Kube, decided: Verdict, settings: Settings, *, node_name: str, now: float
) -> Outcome:
    """Act on a verdict, however often the node moves meanwhile."""
    for _ in range(_TRIES):
        node = node_of(kube.get(f"/api/v1/nodes/{node_name}"), settings.names)
        outcome = _outcome(node, decided, settings.names)
        try:
            if _done(kube, node, outcome, decided, settings, now):
                return outcome
        except Refused as refusal:
            if refusal.status not in {409, 422}:
                raise
    raise Refused(409, f"{node_name} moved {_TRIES} times while it was to be written to")


def _done(
    kube: Kube, node: Node, outcome: Outcome, decided: Verdict, settings: Settings, now: float
) -> bool:
    """Write what has to be written; `False` where the node turns out to be another meanwhile."""
    for action in _actions(node, outcome, decided, settings.names):
        request = writes.request(action, node, settings, NO_SPEC, now=now, nonce="")
        answer = kube.send(request) if request else None
        node = node_of(answer, settings.names) if answer else node
        # An answer tells the node as it is now: no write binds to a boot that nobody judged.
        if _outcome(node, decided, settings.names) != outcome:
            return False
    return True


def _outcome(node: Node, decided: Verdict, names: Names) -> Outcome:
    foreign = _foreign(node, decided)
    if foreign:
        return Outcome(decision=Decision.UNDECIDED, reason=Ruling.FOREIGN.value, text=foreign)
    if decided.decision is Decision.ACCEPT and node.has(names.quarantined):
        text = f"{node.name} is quarantined: take {names.quarantined} off to have it tested again"
        return Outcome(decision=Decision.UNDECIDED, reason=QUARANTINED, text=text)
    if decided.decision is Decision.ACCEPT and node.not_ready and node.has(names.pending):
        # Karpenter puts the taint back on a node that it has not registered.
        return Outcome(decision=Decision.UNDECIDED, reason=NOT_READY, text=node.not_ready)
    if decided.decision is Decision.ACCEPT:
        text = f"{decided.counts['pass']} checks passed"
        return Outcome(decision=Decision.ACCEPT, reason=EVERYTHING_PASSED, text=text)
    reasons = decided.failed or decided.undecided
    ruling = Ruling.CONDEMNED if decided.failed else Ruling.UNDECIDED
    return Outcome(decision=decided.decision, reason=ruling.value, text=str(reasons[0]))


def _foreign(node: Node, decided: Verdict) -> str:
    plan = decided.plan
    if plan is None:
        return "the results have no plan"
    if decided.rehearsal:
        return "it was a rehearsal"
    pairs = {
        "node name": (plan.node.get("name"), node.name),
        "node uid": (plan.node.get("uid"), node.uid),
        "boot id": (plan.node.get("boot_id"), node.boot_id),
        "suite digest": (plan.suite_digest, suite_digest()),
    }
    said = [f"{n} is {a or 'not told'}, not {b}" for n, (a, b) in pairs.items() if not b or a != b]
    said += [f"{len(plan.waivers)} waivers"] if plan.waivers else []
    if plan.profile is Profile.QUICK:
        said.append("profile quick, which is for people")
    if not any(d.kind is DeviceKind.GPU for d in plan.devices):
        said.append("no GPU was tested")
    return "; ".join(said)


def _actions(node: Node, outcome: Outcome, decided: Verdict, names: Names) -> list[Action]:
    """First the condition, then the taint: whoever guards the taint reads the condition."""
    if outcome.reason == QUARANTINED:
        return []  # the condition goes on to say what it was condemned for
    status = {Decision.ACCEPT: "True", Decision.REJECT: "False"}.get(outcome.decision, "Unknown")
    message = f"boot {node.boot_id or 'unknown'}; {outcome.text}"[:1024]
    say = Say(status=status, reason=outcome.reason, message=message)
    told = node.condition
    if outcome.reason == NOT_READY and told and (told.reason, told.message) == (NOT_READY, message):
        return []  # said once, however long it takes
    if outcome.decision is Decision.ACCEPT:
        stamps = {names.accepted_devices: devices_digest(decided)}
        return [say, Lift(stamps=stamps)] if node.has(names.pending) else [say]
    if outcome.decision is Decision.REJECT and not node.has(names.quarantined):
        return [Quarantine(), say]
    return [say]
