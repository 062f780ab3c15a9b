"""Whether a group's run proves the fabric of one of its members.

Each member is judged by what its own pod brought out: a pod that ran on the node, and ended with the
results that the head told it. They have to name the very group that was started, boot by boot, and
this node with the GPUs that it passed alone with. A head that lies can say of a member's fabric what
it likes; it can't stand in for what the member has to pass alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nodeproof import verdict
from nodeproof.gate import dispatch
from nodeproof.gate.attempt import Pod
from nodeproof.gate.group import Group
from nodeproof.gate.node import Node
from nodeproof.gate.proof import Brought, Judged, Ruling, bring, of_another, said
from nodeproof.gate.settings import Settings
from nodeproof.manifest import Manifest
from nodeproof.model import Device, DeviceKind
from nodeproof.spec import Spec
from nodeproof.verdict import Decision, Reason, Verdict


def judge(
    group: Group,
    pod: Pod | None,
    log: str | None,
    *,
    node: Node,
    tested: str,
    manifest: Manifest,
    settings: Settings,
    spec: Spec,
) -> Judged:
    """Judge a group that is over for one of its members.

    `log` is that of the member's pod. `tested` is the digest of the GPUs that the node passed with
    alone.
    """
    brought = bring(group.job, pod, log)
    if isinstance(brought, Judged):
        return brought
    decided = verdict.decide_any(brought.results, manifest)
    doubts = list(of_another(group.job, brought, decided, node, settings.of_groups(), spec))
    doubts += _of_another_size(group, settings)
    mine = (decided.members or {}).get(node.name)
    if decided.members is None:
        doubts.append("the results are of no group")
    elif mine in {Decision.ACCEPT, Decision.REJECT}:
        doubts += _foreign(group, brought, decided, node, tested)
    if doubts:
        return _open(Ruling.FOREIGN, "; ".join(doubts))
    if mine is Decision.REJECT:
        against = [r for r in decided.failed if r.device == node.name]
        return Judged(
            decision=Decision.REJECT,
            ruling=Ruling.CONDEMNED,
            text=said(decided, against),
            check=against[0].check,
        )
    if mine is not Decision.ACCEPT:
        return _open(Ruling.UNDECIDED, _undecided(decided, node))
    return Judged(
        decision=Decision.ACCEPT,
        ruling=Ruling.ACCEPTED,
        text=f"measured with {len(group.members) - 1} others, {decided.counts['pass']} checks passed",
        devices=tested,
    )


def _of_another_size(group: Group, settings: Settings) -> Iterator[str]:
    """Whether these settings start groups of so many: somebody else may have made the Job."""
    size, least, most = len(group.members), settings.group_least, settings.group_most
    if not least <= size <= most:
        yield f"nodes of the Job: {size}, of the settings now: {least} to {most}"


def _foreign(
    group: Group, brought: Brought, decided: Verdict, node: Node, tested: str
) -> Iterator[str]:
    """What the results are bound to that this group is not."""
    plan = decided.plan
    rows = [d for d in (plan.devices if plan else ()) if d.kind is DeviceKind.MEMBER]
    told = {d.id: d.facts.get("boot_id") for d in rows}
    wanted = {m.node: m.boot_id for m in group.members}
    if told != wanted:
        yield f"the results name members {_named(told)}, the Job {_named(wanted)}"
    if plan is not None and plan.node.get("boot_id") not in list(wanted.values()):
        yield f"the head was in boot {plan.node.get('boot_id') or 'unknown'}, which is no member's"
    gpus = next((_gpus(d) for d in rows if d.id == node.name), [])
    if len(gpus) != group.job.devices or dispatch.digest_of_devices(gpus) != tested:
        yield "its GPUs were not those that the node passed with alone"
    if (
        len({brought.pod.node, node.name, *(m.node for m in group.members if m.uid == node.uid)})
        > 1
    ):
        yield "the node has another name than the member"


def _gpus(member: Device) -> list[str]:
    told = member.facts.get("devices")
    return [str(name) for name in told] if isinstance(told, list) else []


def _named(boots: Mapping[str, object]) -> str:
    return ", ".join(f"{name} ({boot or 'no boot id'})" for name, boot in sorted(boots.items()))


def _undecided(decided: Verdict, node: Node) -> str:
    """What was said against the group: of the run first, then of its own member."""
    rows: list[Reason] = [*decided.undecided, *decided.failed]
    rows.sort(key=lambda r: r.device not in {"", node.name})
    return said(decided, rows) if rows else "the results do not say what became of this node"


def _open(ruling: Ruling, text: str) -> Judged:
    return Judged(decision=Decision.UNDECIDED, ruling=ruling, text=text)
