"""Nodes that passed alone and are measured together: who waits, who begins, and with whom. Pure.

A group has no object of its own. Each member says on its node with which proof it waits; the first
of them starts the Job, whose name and annotations say who takes part. So whoever looks, after any
crash, finds the same groups.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nodeproof.gate.actions import Place
from nodeproof.gate.attempt import Job, job_of
from nodeproof.gate.names import AWAITING, Names
from nodeproof.gate.node import Node
from nodeproof.gate.proof import Judged
from nodeproof.gate.settings import Settings

LABEL = "nodeproof-group"  # app.kubernetes.io/name of Jobs and pods of groups
MEMBERS = "members"  # annotation of a group's Job
_PROOF = re.compile("[a-z0-9.-]{1,63}")  # names of our Jobs; whatever is longer might fill one
_BOOT = 64  # characters of a boot id; Linux has 36
_TURN_S = 120.0  # for each to begin a group that is due, before it is the next one's turn
_HALVED = 8  # times at the most: 64 nodes are a pair before that
_HOST = "kubernetes.io/hostname"  # the label by which the pods of a group are kept apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A node that passed alone, and waits for others."""

    place: Place
    alike: tuple[str, str]  # kind, and what `group_label` says: a group is of one of these
    since: float  # seconds since 1970
    host: str = ""  # its label; two nodes that share one are never in one group
    times: int = 0  # groups that it was in with this proof already


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group's Job, as one of its members sees it: `job` has the pods on that node alone."""

    job: Job
    members: tuple[Place, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """What is known of groups for one node.

    `groups` are those that name it, whatever its boot and proof were then; `judged` what they came
    to for it, by name of their Job. `waiting` are the nodes like it that wait and are in no group
    that goes on, or those of them alone that it would be measured with. `room` is how many more
    groups may start.
    """

    groups: Sequence[Group] = ()
    judged: Mapping[str, Judged] | None = None
    waiting: Sequence[Waiting] = ()
    room: int = 1


def note(proof: Job) -> str:
    """The annotation of a node that waits for others, with the proof that it passed alone."""
    since = proof.ended if proof.ended is not None else proof.created
    told = {"boot": proof.boot_id, "proof": proof.name, "since": int(since)}
    return json.dumps(told, separators=(",", ":"))


def waiting(node: Node, settings: Settings) -> Waiting | None:
    """Read of a node whether it waits for others; `None` if it does not, or does not say so.

    The node itself can write what is read here. That gets it measured with others and no further:
    it is released by its own proof, which has to be the one that the group names. Nor does it get
    before others by more than its age: nobody waits since before it was there.
    """
    told = node.told_for_this_boot
    if told is None or told.reason != AWAITING or not node.has(settings.names.pending):
        return None
    if not settings.measured_together(node.labels) or node.deleting or node.not_ready:
        return None
    try:
        said = json.loads(node.annotations.get(settings.names.awaits, ""))
        boot, proof, since = str(said["boot"]), str(said["proof"]), float(said["since"])
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None
    like = alike(node, settings)
    if boot != node.boot_id or (settings.group_label and not like[1]):
        return None
    if len(boot) > _BOOT or not _PROOF.fullmatch(proof) or not math.isfinite(since):
        return None
    return Waiting(
        place=Place(node=node.name, uid=node.uid, boot_id=boot, proof=proof),
        alike=like,
        since=max(since, node.created),
        host=node.labels.get(_HOST, ""),
    )


def alike(node: Node, settings: Settings) -> tuple[str, str]:
    """What two nodes have to have in common to be in one group."""
    return (
        node.labels.get(settings.kind_label, ""),
        node.labels.get(settings.group_label, "") if settings.group_label else "",
    )


def begins(
    uid: str, row: Sequence[Waiting], settings: Settings, *, now: float
) -> tuple[Place, ...]:
    """The group that a node begins now, itself first; `()` while it waits, or another begins it.

    Everybody who looks at the same row divides it alike, and of each group one acts: the first; then,
    if that one has let its turn go by, the next. Whoever only says that it waits, or is never got to,
    keeps nobody waiting for ever.
    """
    group = next((g for g in divided(row, settings) if any(w.place.uid == uid for w in g)), ())
    if not group:
        return ()
    over = now - min(w.since for w in group) - settings.group_wait_s
    if over < 0 and len(group) < settings.group_most:
        return ()
    turn = int(over // _TURN_S) % len(group) if over > 0 else 0
    group = group[turn:] + group[:turn]
    return tuple(w.place for w in group) if group[0].place.uid == uid else ()


def divided(row: Sequence[Waiting], settings: Settings) -> list[tuple[Waiting, ...]]:
    """The groups of a row, whoever begins them and whenever; who is left over is in none.

    Those that were in groups before come first, by themselves, and in smaller groups each time: one
    that brings down whatever it is part of would else take the same others along until none of them
    has an attempt left.
    """
    row = sorted(row, key=lambda w: (-w.times, w.since, w.place.uid))
    # Pods of two that share this label would be kept apart by it, and one never be scheduled.
    first = {w.host: w.place.uid for w in reversed(row)}
    row = [w for w in row if not w.host or first[w.host] == w.place.uid]
    groups: list[tuple[Waiting, ...]] = []
    start, least = 0, settings.group_least
    while len(row) - start >= least:
        times = row[start].times
        # Never so small that one of them is left over.
        fewest = min(2 * least - 1, settings.group_most)
        most = max(fewest, settings.group_most >> min(times, _HALVED))
        same = next((n for n in range(start, len(row)) if row[n].times != times), len(row)) - start
        # Too few of them: with whoever comes next, rather than for ever alone.
        sizes = _sizes(same, least, most) or [min(most, len(row) - start)]
        for size in sizes:
            groups.append(tuple(row[start : start + size]))
            start += size
    return groups


def _sizes(nodes: int, least: int, most: int) -> list[int]:
    """How a row is divided: as evenly as it goes, so that nobody is left over alone."""
    if nodes < least:
        return []
    groups = -(-nodes // most)
    base, larger = divmod(nodes, groups)
    if base < least:
        return [most] * (nodes // most)
    return [base + 1] * larger + [base] * (groups - larger)


def members_of(data: Mapping[str, Any], names: Names) -> tuple[Place, ...]:
    """Who takes part in a group's Job; `()` for a Job that does not say what ours say.

    Ours name no node twice, and say everything of each.
    """
    told = (data.get("metadata") or {}).get("annotations") or {}
    try:
        members = tuple(
            Place(**{key: str(row[key]) for key in Place.__dataclass_fields__})
            for row in json.loads(told[names.label(MEMBERS)])
        )
    except (KeyError, ValueError, TypeError, RecursionError):
        return ()
    if not all(all(dataclasses.astuple(m)) for m in members):
        return ()
    nodes, uids = {m.node for m in members}, {m.uid for m in members}
    return members if len(nodes) == len(uids) == len(members) else ()


def _on(pod: Mapping[str, Any]) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def _phase(pod: Mapping[str, Any]) -> str:
    return str((pod.get("status") or {}).get("phase") or "")


def group_of(
    data: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], names: Names, node: Node
) -> Group | None:
    """Read a group's Job as one of its members; `None` if the node is none, or the Job not ours."""
    members = members_of(data, names)
    place = next((m for m in members if m.uid == node.uid), None)
    if place is None:
        return None
    mine = [p for p in pods if _on(p) == node.name]
    # While it has none, one that waits for a node may be the one for it, and says for what it waits.
    mine = mine or [p for p in pods if not _on(p) and _phase(p) == "Pending"]
    told = {"node-uid": place.uid, "boot-id": place.boot_id, "trigger": place.proof}
    metadata = data.get("metadata") or {}
    notes = {**(metadata.get("annotations") or {})}
    notes.update({names.label(key): value for key, value in told.items()})
    job = job_of({**data, "metadata": {**metadata, "annotations": notes}}, mine, names)
    return Group(job=job, members=members) if job else None
