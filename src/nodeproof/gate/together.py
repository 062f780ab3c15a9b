"""The second half of a node's way where it has to be measured with others. Pure.

It begins when the node has passed alone. Until a group has passed with it, the node stays held; a
node that nobody can be measured with waits, and says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from nodeproof.gate import group_job
from nodeproof.gate.actions import Action, Measure, Phase, Place, Plan, Read, Stamp
from nodeproof.gate.attempt import Job, Pod
from nodeproof.gate.ending import attempt_text, ended, undecided, waiting_for, wall_s
from nodeproof.gate.group import Group, Together, alike, begins, note
from nodeproof.gate.names import AWAITING
from nodeproof.gate.node import Node
from nodeproof.gate.proof import Judged, Ruling
from nodeproof.gate.saying import say
from nodeproof.gate.settings import Settings
from nodeproof.verdict import Decision

_LOOK_S = 15.0  # between two looks at who waits


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What came of the groups of one node: `judged` for good, after so many of them."""

    judged: Judged
    group: Job
    attempts: int


def follow(
    node: Node,
    proof: Job,
    passed: Judged,
    known: Together,
    settings: Settings,
    stale: Sequence[Action],
    *,
    now: float,
) -> Plan | Measured:
    """What to do about a node that passed alone with the Job `proof`; at last, what came of it."""
    mine = _of_proof(known.groups, node, proof)
    if not mine:
        return _gather(node, proof, passed, known, settings, stale, now, mine)
    current, times = mine[-1], len(mine)
    of_groups = settings.of_groups()
    told = node.told_for_this_boot
    ending = ended(current.job, of_groups, now, told.message if told else "")
    others = len(current.members) - 1
    doing = (
        f"{attempt_text(times, settings, current.job.name)}, measured with {others} others"
        f"{waiting_for(current.job)}; alone {passed.text}"
    )
    if ending is None:
        wake = max(current.job.created + wall_s(of_groups) - now, 1.0)
        return say(
            node, settings, now, Phase.TESTING, "Unknown", "Testing", doing, *stale, wake_s=wake
        )
    if isinstance(ending, Judged):
        ruling = ending
    elif current.job.name in (known.judged or {}):
        ruling = _of_these(passed, (known.judged or {})[current.job.name])
    else:
        read = Read(job=current.job.name, pod=ending.name, group=True)
        return Plan(phase=Phase.TESTING, actions=(read, *stale), wake_s=5.0)
    if ruling.decision is not Decision.UNDECIDED or times >= settings.attempts:
        return Measured(judged=ruling, group=current.job, attempts=times)
    given_up = current.job.created + wall_s(of_groups)
    over = current.job.ended if current.job.ended is not None else given_up
    due = over + settings.backoff_s * 2 ** (times - 1)
    if now < due:
        return say(
            node, settings, now, Phase.UNDECIDED, "Unknown", ruling.ruling.value,
            f"attempt {times} of {settings.attempts} with others: {ruling.text}; the next follows",
            *stale, wake_s=due - now,
        )  # fmt: skip
    return _gather(node, proof, passed, known, settings, stale, now, mine)


def found_before(
    node: Node, proof: Job, known: Together, settings: Settings, *, now: float
) -> Judged | Read | None:
    """What the last group of a node came to that is held already; `None` for nothing to be told of.

    A restart forgot it, and the condition may not have been written.
    """
    mine = _of_proof(known.groups, node, proof)
    ending = ended(mine[-1].job, settings.of_groups(), now) if mine else None
    if not isinstance(ending, Pod):
        return ending
    name = mine[-1].job.name
    return (known.judged or {}).get(name) or Read(job=name, pod=ending.name, group=True)


def measured_now(known: Together, settings: Settings, now: float) -> str:
    """The Job of a group that goes on with the node, for whatever proof it had; `""` for none.

    Its pod holds the GPUs: a test of the node alone would wait for them until its own deadline.
    """
    of_groups = settings.of_groups()
    going = (g.job.name for g in known.groups if ended(g.job, of_groups, now) is None)
    return next(going, "")


def _gather(
    node: Node,
    proof: Job,
    passed: Judged,
    known: Together,
    settings: Settings,
    stale: Sequence[Action],
    now: float,
    before: Sequence[Group],
) -> Plan:
    """Wait for others, and begin with them where it is this node's turn.

    `before` are the groups that it was in. One that it begins gets a number that none of them has:
    the same members may have been together already, and the name of their Job is taken.
    """
    expected = settings.gpus_of(node.labels) or 0
    members = begins(node.uid, known.waiting, settings, now=now)
    if members and known.room >= 1 and expected:
        number = max((g.job.attempt for g in before), default=0) + 1
        start = Measure(members=members, attempt=number, devices=expected)
        text = attempt_text(len(before) + 1, settings, group_job.name_of(start))
        return say(
            node, settings, now, Phase.TESTING, "Unknown", "Testing",
            f"{text}, measured with {len(members) - 1} others; alone {passed.text}",
            start, *stale, wake_s=_LOOK_S,
        )  # fmt: skip
    kind, place = alike(node, settings)
    if members:
        text = f"waits to be measured with others: {settings.groups_at_once} groups are, at once"
    elif settings.group_label and not place:
        text = f"waits for its label {settings.group_label}: only nodes that it makes alike are"
        text += " measured together"
    else:
        text = f"waits for others of kind {kind}" + (f" and {place}" if place else "")
        text += f" to be measured with, {settings.group_least} to {settings.group_most} together"
    told = note(proof)
    stamp = [Stamp(stamps={settings.names.awaits: told})]
    fresh = node.annotations.get(settings.names.awaits) == told
    return say(
        node, settings, now, Phase.WAITING, "Unknown", AWAITING,
        f"{text}; alone {passed.text}",
        *stale, *([] if fresh else stamp), wake_s=_LOOK_S,
    )  # fmt: skip


def _of_these(passed: Judged, ruling: Judged) -> Judged:
    """The ruling on a group, unless it was judged by other GPUs than have passed alone by now."""
    if ruling.decision is Decision.ACCEPT and ruling.devices != passed.devices:
        return undecided(Ruling.FOREIGN, "its GPUs are not those that were measured with others")
    return ruling


def _of_proof(groups: Sequence[Group], node: Node, proof: Job) -> list[Group]:
    """The groups that a node came into with this proof, the last one last."""
    mine = [g for g in groups if _place(g, node) == _here(node, proof)]
    # Not by attempt: a group is numbered as the node that begins it counts.
    return sorted(mine, key=lambda g: (g.job.created, g.job.attempt, g.job.name))


def _here(node: Node, proof: Job) -> Place:
    return Place(node=node.name, uid=node.uid, boot_id=node.boot_id, proof=proof.name)


def _place(group: Group, node: Node) -> Place | None:
    return next((m for m in group.members if m.uid == node.uid), None)
