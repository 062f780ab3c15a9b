"""What the record of a group answers to each check of it: one function for each question.

Each takes the record and the id of what is asked about, and returns plain JSON values, as the work
of a worker does. Each raises `AbsentError` where the record holds no answer: what wasn't done, or
did not come back, is never made up for.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from nodeproof.nccl_tests import localise, pair_tests
from nodeproof.nccl_tests.bandwidth import Collective
from nodeproof.nccl_tests.localise import Place
from nodeproof.nccl_tests.partners import Grade
from nodeproof.nccl_tests.rank_answers import UnbelievableError, same_bandwidth
from nodeproof.nccl_tests.record import WHOLE, Exchanged, Member, Rank, Record
from nodeproof.nccl_tests.transport import RDMA

_FEW = 3  # nodes of which one that is slow has only two to be slow with
_OFTEN = 2  # times that a pair of them is slow before that is held against one
_PLANTS = ("", "flip")
_Value = TypeVar("_Value", int, str)


class AbsentError(Exception):
    """The record holds no such answer. Says what happened instead."""


def presence(record: Record, device: str) -> dict[str, Any]:
    """Whether a member came, stayed, was the same node all the time, and one that nobody else is.

    `own_machine` is 0 where, in a group of GPUs, another member has the same boot or the same GPU,
    and `shared` says what; the members of a rehearsal may share a machine. `sliced` are its GPUs
    that are cut into slices (MIG).
    """
    member = record.member(device)
    shared = _shared(record, member)
    return {
        "rank": member.rank,
        "address": member.address,
        "came": int(member.came),
        "stayed": int(member.stayed),
        "lost": member.lost,
        "lost_after_s": member.lost_after_s,
        "boot_id": member.boot_id,
        "boot_id_end": member.boot_id_end,
        "devices": len(member.devices),
        "own_machine": int(not shared),
        "shared": shared,
        "sliced": [str(d["id"]) for d in member.devices if d["facts"].get("mig")],
    }


def data(record: Record, device: str, *, plant: str = "") -> dict[str, Any]:
    """What the ranks of a member received when all worked together, taken together.

    With `plant="flip"` that of the exchange in which each rank flipped bits of its own.
    """
    if plant not in _PLANTS:
        raise ValueError(f"unknown plant {plant!r}: one of {_PLANTS}")
    answers = _answers(record, record.planted if plant else record.whole, [record.member(device)])
    given = [answer for _, answer in answers]
    return {
        "devices": len(given),
        "wrong": sum(answer["wrong"] for answer in given),
        "found": [element for answer in given for element in answer["found"]],
        "planted": [element for answer in given for element in answer["planted"]],
        "checked": {c.value: sum(a["checked"][c.value] for a in given) for c in Collective},
    }


def together(record: Record, device: str) -> dict[str, Any]:  # noqa: ARG001  there is one group
    """What all ranks measured of the whole group.

    `ranks` (that answered), `devices` (that there are), `sizes` (of the group, as each rank saw
    it), `busbw_gbs` and `largest_bytes` {collective: of each rank}, `seconds` {collective: of each
    repeat, that of the slowest rank}, `backend`; and of the members `nodes`, and what all of them
    have alike: `gpus`, `nics` (that can carry a collective), `instance_type`, `nccl`, each `None`
    where they differ or don't say.

    Ranks share their times through a store that any of them can write to. So the bandwidths are
    worked out once more, from what each rank's own answer holds, and no other is believed.
    """
    answers = _answers(record, record.whole, record.members)
    try:
        for collective in Collective:
            same_bandwidth(collective, {str(rank): answer for rank, answer in answers})
    except UnbelievableError as error:
        raise AbsentError(f"{error}: their meeting is not to be trusted; run again") from None
    given = [answer for _, answer in answers]
    return {
        "ranks": len(given),
        "devices": sum(len(member.devices) for member in record.members),
        "sizes": [answer["size"] for answer in given],
        "busbw_gbs": {c.value: [a["busbw_gbs"][c.value] for a in given] for c in Collective},
        "largest_bytes": {
            c.value: [a["largest_bytes"][c.value] for a in given] for c in Collective
        },
        "seconds": {
            c.value: [
                max(repeat)
                for repeat in zip(*(a["own_times"][c.value] for a in given), strict=True)
            ]
            for c in Collective
        },
        "backend": ", ".join(sorted({str(a["transport"]["backend"]) for a in given})),
        "nodes": record.group.nodes,
        "gpus": _alike(len(member.devices) for member in record.members),
        "nics": _alike(_nics(record, member) for member in record.members),
        "instance_type": _alike(member.instance_type or None for member in record.members),
        "nccl": _alike(str(a["transport"]["nccl"]) for a in given),
    }


def times(record: Record, device: str) -> dict[str, Any]:
    """How long each rank was in an all-reduce so small that nothing but waiting takes time.

    In a large one a rank's time shows how its part of the ring drains, and not when it came.

    `own_times` {rank: [s, of each repeat]}, and `ranks`: those of the member that is asked about.
    """
    answers = _answers(record, record.small, record.members)
    name = Collective.ALL_REDUCE.value
    return {
        "ranks": [str(rank) for rank, _ in answers if rank.member == device],
        "own_times": {str(rank): list(answer["own_times"][name]) for rank, answer in answers},
    }


def pairs(record: Record, device: str) -> dict[str, Any]:
    """What the members did two by two.

    Returns `nodes`, `pairs` and `rails` (rows of the record), `rounds` (in which these were) and
    `opening` (how many there are at least), and whether the group is one node `alone`, which has no
    pairs.

    A member that was lost is no evidence against those it was lost to: it is not among the `nodes`,
    and neither are its pairs. Its own finding is that it was lost.
    """
    if device != WHOLE and device in {m.id for m in record.members}:
        _there(record.member(device))
    nodes = [member.id for member in record.members if member.stayed]
    if record.group.nodes == 1 and nodes:
        return {
            "nodes": nodes,
            "pairs": [],
            "rails": [],
            "rounds": 0,
            "opening": 0,
            "alone": True,
        }
    if len(nodes) == 1:
        raise AbsentError(f"only {nodes[0]} stayed to the end, and has nobody to be compared with")
    if not nodes:
        raise AbsentError("no member stayed to the end")
    rows = [row for row in record.pairs if row.a in nodes and row.b in nodes]
    if not rows:
        raise AbsentError("no two members were put to the test on their own")
    rails = [row for row in record.rails if row.a in nodes and row.b in nodes]
    return {
        "nodes": nodes,
        "pairs": [dataclasses.asdict(row) for row in rows],
        "rails": [dataclasses.asdict(row) for row in rails],
        "rounds": len({row.round for row in rows}),
        "opening": pair_tests.opening_rounds(len(nodes)),
        "alone": False,
    }


def took_part(record: Record, device: str) -> dict[str, Any]:  # noqa: ARG001  there is one group
    """How many members there should be, and how many of them worked together to the end.

    `grade` is 3 where all did and they are two or more, 2 if all but one of them were known to be
    good before, 1 for a node alone whose devices worked together over its own network devices, else
    0: a node alone proves nothing of what lies between nodes. `strangers` were said to be known, and
    are no members: that counts for nothing.
    """
    answered = {rank.member for rank in record.whole if rank.answer is not None}
    answered -= {rank.member for rank in record.whole if rank.answer is None}
    absent = [m.id for m in record.members if not m.stayed or m.id not in answered]
    nodes = record.group.nodes
    return {
        "nodes": nodes,
        "together": nodes - len(absent),
        "absent": absent,
        "grade": 0 if absent else _grade(record),
        "strangers": sorted(set(record.group.known) - {m.id for m in record.members}),
    }


def _grade(record: Record) -> Grade:
    if record.group.nodes == 1:
        looped = record.group.loopback and len(record.whole) > 1
        return Grade.LOOPBACK if looped else Grade.ALONE
    new = len({member.id for member in record.members} - set(record.group.known))
    return Grade.PAIR if new == 1 else Grade.GROUP


def carried(record: Record, device: str) -> dict[str, Any]:
    """What a member's counters and logs say of the way that its data took.

    `before`, `after` (as probes.traffic reads them, or null), `said` (why not), `texts` (NCCL's
    logs), `backend`, `rows` (of one of its ranks, as `inside:exchange` lists them), `nodes`,
    `ranks_per_node`.
    """
    member = record.member(device)
    answers = _answers(record, record.whole, [member])
    moved = record.traffic.get(device)
    logged = record.nccl.get(device)
    if moved is None or logged is None:
        raise AbsentError(f"neither counters nor logs of {device} were brought in")
    return {
        "before": moved["before"],
        "after": moved["after"],
        "said": "; ".join(said for said in (moved["said"], logged["said"]) if said),
        "texts": logged["texts"],
        "backend": str(answers[0][1]["transport"]["backend"]),
        "rows": answers[0][1]["rows"],
        "nodes": record.group.nodes,
        "ranks_per_node": len(answers),
    }


def localised(answer: Mapping[str, Any], limits: Mapping[str, Any]) -> localise.Localised:
    """Say by an answer of `pairs` who is bad. Raises `ValueError` for pairs that can't be.

    Of three nodes, one is not bad that was slow just once with either of the others: with no more
    than two ways to compare, that is a chance and no habit.
    """
    rows = [Exchanged(**row) for row in answer["pairs"]]
    found = [
        localise.Pair(round=r.round, a=r.a, b=r.b, gbs=r.gbs, wrong=r.wrong, said=r.said)
        for r in rows
    ]
    told = localise.judge(
        list(answer["nodes"]),
        localise.renumbered(found),
        floor_gbs=float(limits["floor_gbs"]),
        ratio=float(limits["ratio"]),
    )
    if len(answer["nodes"]) != _FEW:
        return told
    least = float(limits["ratio"]) * told.reference_gbs
    nodes = {name: _repeated(name, of, found, least) for name, of in told.nodes.items()}
    return dataclasses.replace(told, nodes=nodes)


def condemned(answer: Mapping[str, Any], limits: Mapping[str, Any], name: str) -> bool:
    """Whether a member is bad by what was measured alone: by rates, and by what arrived wrong.

    A pair that did not finish has no figure: it shows where to look, and a busy host, a security
    group or a missing plugin do the same. Raises `ValueError` as `localised` does.
    """
    rows = [row for row in answer["pairs"] if row["gbs"] is not None or row["wrong"]]
    told = localised({**answer, "pairs": rows}, limits)
    return told.nodes[name].place is Place.BAD


def _repeated(
    name: str, told: localise.Told, pairs: Iterable[localise.Pair], least_gbs: float
) -> localise.Told:
    """Return what is told of a node, but unresolved where it was slow only once with somebody."""
    if told.place is not Place.BAD:
        return told
    failed = [p for p in pairs if name in {p.a, p.b} and not pair_tests.passes(p, least_gbs)]
    slow = {frozenset((p.a, p.b)) for p in failed if not p.said and not p.wrong}
    once = [pair for pair in slow if sum({p.a, p.b} == pair for p in failed) < _OFTEN]
    if not once:
        return told
    return localise.Told(place=Place.UNRESOLVED, why=f"slow only once, of three nodes: {told.why}")


def _shared(record: Record, member: Member) -> list[str]:
    """Say which boots and GPUs of a member are another's too, or twice its own."""
    if record.group.device != "cuda":
        return []
    others = [other for other in record.members if other is not member]
    boots = {member.boot_id, member.boot_id_end} - {""}
    found = [f"{o.id} has the same boot" for o in others if boots & {o.boot_id, o.boot_id_end}]
    gpus = Counter(str(device["id"]) for device in member.devices)
    found += [f"{gpu} is {times} of its devices" for gpu, times in gpus.items() if times > 1]
    for other in others:
        ids = {str(device["id"]) for device in other.devices}
        found += [f"{other.id} has {gpu} too" for gpu in gpus if gpu in ids]
    return found


def _nics(record: Record, member: Member) -> int | None:
    """How many network devices for collectives it has, `None` where it could not be read."""
    read = record.traffic.get(member.id, {}).get("before")
    if read is None:
        return None
    return sum(each["kind"] in RDMA for each in read["devices"])


def _alike(values: Iterable[_Value | None]) -> _Value | None:
    """What all have alike, `None` where they differ."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _answers(
    record: Record, ranks: Iterable[Rank], of: Iterable[Member]
) -> list[tuple[Rank, Mapping[str, Any]]]:
    """The answers of every device of these members, by rank. Raises `AbsentError` without one."""
    by_place = {(rank.member, rank.device): rank for rank in ranks}
    found: list[tuple[Rank, Mapping[str, Any]]] = []
    for member in of:
        if not member.came:
            raise AbsentError(f"{member.id} took no part: {member.lost}")
        if not member.devices:
            raise AbsentError(f"{member.id} had no device to take part with")
        for label in member.labels:
            rank = by_place.get((member.id, label))
            if rank is None:
                why = record.group.interrupted or member.lost or "it was never asked to"
                raise AbsentError(f"{member.id} {label} took no part: {why}")
            if rank.answer is None:
                raise AbsentError(f"{rank} has no answer: {rank.said}")
            found.append((rank, rank.answer))
    return sorted(found, key=lambda pair: pair[0].rank)


def _there(member: Member) -> None:
    if not member.stayed:
        raise AbsentError(f"{member.id} was not there: {member.lost}")


# By what a check declares as its work; nothing else is called.
BY_CALL: dict[str, Callable[..., dict[str, Any]]] = {
    f"{__name__}:{ask.__name__}": ask
    for ask in (presence, data, together, times, pairs, took_part, carried)
}
