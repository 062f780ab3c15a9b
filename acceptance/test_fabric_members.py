"""Which node of a group, or which link between two of them, is the bad one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nodeproof.checks import (
    CannotMeasure,
    Cause,
    Device,
    DeviceKind,
    Measure,
    Plant,
    Remedy,
    Result,
    Work,
    check,
)
from nodeproof.nccl_tests import answers, straggler, transport
from nodeproof.nccl_tests.localise import Localised, Place
from nodeproof.nccl_tests.record import LINK

PAIRS = Work(call="nodeproof.nccl_tests.answers:pairs")
_PLANTED = "planted: it did not finish"
_UNFINISHED = "what did not finish was not measured, and condemns no hardware"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLimits:
    """When two members that work together on their own are as fast as they should be.

    The ratio is derived, by simulation: below it lie the faults that localisation is for (a rail of
    four or more lost, half of the width), above it lies what a shared fabric does to a good pair.
    """

    ratio: float = 0.85  # of what the better half of the pairs reach
    floor_gbs: float = 0.0  # GB/s that such a pair is known to reach, if the others reach less


def _dead_pairs(result: Result) -> Result:
    """Nobody's pairs finish: nobody can be called sound then."""
    dead = [{**row, "gbs": None, "wrong": 0, "said": _PLANTED} for row in result["pairs"]]
    return {**result, "pairs": dead}


def _wrong_pairs(result: Result) -> Result:
    """Every pair finishes, in good time, with wrong data."""
    return {**result, "pairs": [{**r, "wrong": r["wrong"] + 3} for r in result["pairs"]]}


def _not_alone(result: Result) -> Result | None:
    """One node alone is given another, with which it did nothing; a group can't be had so."""
    return {**result, "nodes": [*result["nodes"], "planted"]} if result["alone"] else None


def _paired(alter: Callable[[Result], Result]) -> Callable[[Result], Result | None]:
    """Plant in pairs, where there are any."""
    return lambda result: None if result["alone"] else alter(result)


def _alone(result: Result, measure: Measure) -> bool:
    """Whether there is nobody to be compared with; what that is worth, the grade says."""
    if result["alone"]:
        detail = "nobody to be compared with: see fabric.group.grade"
        measure("members", len(result["nodes"]), at_most=1, detail=detail)
    return bool(result["alone"])


_ALONE = Plant(alter=_not_alone, breaks=("members",))


@check(
    "fabric.member.pairs",
    kinds=(DeviceKind.MEMBER,),
    remedy=Remedy.REPLACE,
    limits=PairLimits,
    work=PAIRS,
    plant=(
        Plant(alter=_paired(_dead_pairs), breaks=("sound", "pairs passed")),
        Plant(alter=_paired(_wrong_pairs), breaks=("sound", "wrong")),
        _ALONE,
    ),
)
def test_pairs(device: Device, result: Result, measure: Measure, limits: PairLimits) -> None:
    """A node that is slow with everybody slows down every job it is in.

    The members worked two by two, each with several others. A member is blamed only if it failed
    with several that pass with others, and with nobody it passed: then it is the node itself, its
    network adapters, cables or PCIe. The pairs say with whom and how fast. If only one rail of it
    is slow, `rails` names it: look at that adapter, its cable and its switch port first.

    A pair that did not finish has no figure, and condemns nobody: of a member with which nothing
    finishes the run is undecided. Look there first, at its log, its routes and security groups.

    Where the pairs don't settle it (two nodes alone, half of the group failing, one that passes now
    and then) nobody is blamed and the run is undecided: add known-good nodes and run again. A bad
    link between two sound nodes is told by fabric.link.pair.
    """
    if _alone(result, measure):
        return
    told = answers.localised(result, asdict(limits))
    own = [row for row in result["pairs"] if device.id in {row["a"], row["b"]}]
    place = told.nodes[device.id]
    floor = _least(told, limits)
    measured = answers.condemned(result, asdict(limits), device.id)
    unmeasured = place.place is Place.BAD and not measured
    why = [f"{place.place}: {place.why}", *([_UNFINISHED] if unmeasured else [])]
    measure(
        "sound",
        int(place.place is Place.GOOD),
        at_least=1,
        cause=Cause.HARDWARE if place.place is Place.BAD and measured else Cause.ENVIRONMENT,
        detail="; ".join([*why, *_rails(device.id, result["rails"])]),
    )
    measure(
        "pairs passed",
        sum(_passed(row, floor) for row in own),
        at_least=1,
        cause=Cause.ENVIRONMENT,
        detail=f"of {len(own)}: {'; '.join(_shown(row) for row in own)}",
    )
    with_others = [r for r in own if told.nodes[_other(r, device.id)].place is not Place.BAD]
    measure(
        "wrong",
        sum(row["wrong"] for row in with_others),
        unit="elements",
        at_most=0,
        cause=Cause.ENVIRONMENT,
        detail="in pairs with members that are not bad themselves",
    )


@check(
    "fabric.link.pair",
    kinds=(DeviceKind.LINK,),
    remedy=Remedy.RETEST,
    limits=PairLimits,
    work=PAIRS,
    plant=Plant(alter=_dead_pairs, breaks=("pairs passed",)),
)
def test_link(device: Device, result: Result, measure: Measure, limits: PairLimits) -> None:
    """Two sound nodes that can't work together make a job slow that gets just these two.

    Both ends pass with others, so neither is to blame, and no remedy at a node helps: look at what
    lies only between them, a switch, an inter-switch link, the routing, the placement. Both are
    kept out until it is known, since no scheduler knows of pairs.
    """
    told = answers.localised(result, asdict(limits))
    ends = set(device.id.split(LINK))
    own = [row for row in result["pairs"] if {row["a"], row["b"]} == ends]
    floor = _least(told, limits)
    failed = [row for row in own if not _passed(row, floor)]
    measure(
        "pairs passed",
        len(own) - len(failed),
        at_least=max(1, len(own)),
        detail=f"of {len(own)}, wants {floor:.4g} GB/s: {'; '.join(_shown(row) for row in own)}",
    )


@check(
    "fabric.group.common",
    kinds=(DeviceKind.GROUP,),
    remedy=Remedy.RETEST,
    cause=Cause.ENVIRONMENT,
    limits=PairLimits,
    work=PAIRS,
    plant=(Plant(alter=_paired(_dead_pairs), breaks=("common causes",)), _ALONE),
)
def test_common(result: Result, measure: Measure, limits: PairLimits) -> None:
    """When half of the pairs fail, it is the fabric and not that many nodes at once.

    Usual causes: a switch, a fabric that is full of others' traffic, a security group or a plugin
    that is missing everywhere, so that all fell back to TCP, two islands with little between them.
    Nobody is blamed by that alone. Replacing nodes does not help. With fewer rounds than every group
    begins with there is too little to tell it by: allow more rounds and run again.
    """
    if _alone(result, measure):
        return
    if result["rounds"] < result["opening"]:
        raise CannotMeasure(
            f"only {result['rounds']} of {result['opening']} opening rounds of "
            f"{len(result['nodes'])} members were measured"
        )
    told = answers.localised(result, asdict(limits))
    measure("common causes", int(bool(told.common)), at_most=0, detail=told.common)
    measure("reference", told.reference_gbs, unit="GB/s", detail="what a pair is held against")


def _all_late(result: Result) -> Result:
    """One rank of this member comes an hour later than all others, every time."""
    late = result["ranks"][0]
    times = {
        rank: own if rank == late else [s + 3600.0 for s in own]
        for rank, own in result["own_times"].items()
    }
    return {**result, "own_times": times}


@dataclass(frozen=True, slots=True, kw_only=True)
class PunctualLimits:
    """From when on a member that comes after the others counts as late."""

    late_ms: float = 5.0  # after the first, in the median over the repeats


@check(
    "fabric.member.punctual",
    kinds=(DeviceKind.MEMBER,),
    remedy=Remedy.RETEST,
    cause=Cause.ENVIRONMENT,
    limits=PunctualLimits,
    work=Work(call="nodeproof.nccl_tests.answers:times"),
    plant=Plant(alter=_all_late, breaks=("late",)),
)
def test_punctual(device: Device, result: Result, measure: Measure, limits: PunctualLimits) -> None:
    """One node that is late makes every node wait, and the whole job looks slow.

    All start at once and none is through before the last has come. So the one that comes late is
    the one that waits least: its own time in the collective is the shortest, by the same amount
    every time. Usual causes: a processor that is throttled or busy with something else, a wrong CPU
    or NUMA binding, a GPU that clocks low: its network is not to blame. Look at the node's own
    proof; this check only says that it was late.

    Where more than half come late nobody is called so: they can't be told from one that is early.
    """
    by_rank = result["own_times"]
    if len(by_rank) < 2:
        raise CannotMeasure(f"one rank of {device} alone has nobody to wait for")
    late = [
        told.why
        for rank, told in straggler.lateness(by_rank).items()
        if rank in result["ranks"] and told.consistently and told.median_s * 1e3 > limits.late_ms
    ]
    repeats = min(len(times) for times in by_rank.values())
    measure(
        "late",
        len(late),
        unit="ranks",
        at_most=0,
        detail="; ".join(late) or f"in {repeats} small all-reduces of {len(by_rank)} ranks",
    )


_PORT: dict[str, Any] = {
    "where": "planted port 1",
    "name": "planted",
    "kind": "infiniband",
    "address": None,
    "physical": True,
    "tx_bytes": 0,
    "rx_bytes": 0,
    "faults": {"symbol_error": 0},
    "shown": {},
    "at_top": [],
}


def _faulty(result: Result) -> Result:
    """A port whose errors grew meanwhile."""
    after = {**_PORT, "faults": {"symbol_error": 5}}
    return {
        **result,
        "before": {"devices": [_PORT], "own": True},
        "after": {"devices": [after], "own": True},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportLimits:
    """What has to carry the data between nodes. Without a word, only faults speak against it."""

    provider: str = ""  # "efa", "infiniband", "roce" or "tcp"; "": nobody said
    devices: int = 0  # network devices that share the load; 0: as many as there are
    gpudirect: bool = False  # whether the network has to read and write GPU memory itself


@check(
    "fabric.member.transport",
    kinds=(DeviceKind.MEMBER,),
    remedy=Remedy.RETEST,
    cause=Cause.ENVIRONMENT,
    limits=TransportLimits,
    work=Work(call="nodeproof.nccl_tests.answers:carried"),
    plant=Plant(alter=_faulty, breaks=("problems",)),
)
def test_transport(
    device: Device, result: Result, measure: Measure, limits: TransportLimits
) -> None:
    """A job that fell back to TCP runs to its end, many times slower, and no error shows.

    What carried the bytes is read from NCCL's own log and from the counters of every network
    device, before and after: they must have moved what had to leave the node, evenly, and no error
    counter may have grown. Usual causes of a fall-back: the plugin is missing in the image, the
    devices were not given to the pod, memory may not be locked, a security group. Restarting the
    job does not help. Errors that grew: read them again under load, then look at cable and port.

    Which network it has to be, a spec says. Without one only faults count, and that is no proof of
    the way that the data took.
    """
    if result["before"] is None or result["after"] is None:
        raise CannotMeasure(
            f"the counters of {device} were not read before and after: {result['said'] or 'why, is not told'}"
        )
    told = transport.judge(
        result["before"],
        result["after"],
        backend=result["backend"],
        least=transport.least_of(
            result["rows"], nodes=result["nodes"], ranks_per_node=result["ranks_per_node"]
        ),
        expected=limits.provider,
        texts=result["texts"],
        devices=limits.devices,
        gdr_expected=limits.gpudirect,
    )
    measure("problems", len(told.problems), at_most=0, detail="; ".join(told.problems))
    measure(
        "proved",
        int(told.proved),
        at_least=1 if limits.provider else None,
        detail=f"{told.provider} by {device}: "
        + ("; ".join((*told.unproved, result["said"])) or "log and counters agree"),
    )
    measure("sent", told.bytes, unit="bytes", detail=f"of at least {told.expected_bytes}")


def _least(told: Localised, limits: PairLimits) -> float:
    """GB/s from which a pair passes: localisation has put the floor into its reference."""
    return limits.ratio * told.reference_gbs


def _passed(row: Mapping[str, Any], least_gbs: float) -> bool:
    done = row["gbs"] is not None and not row["said"] and row["wrong"] == 0
    return bool(done and row["gbs"] >= least_gbs)


def _other(row: Mapping[str, Any], name: str) -> str:
    return str(row["b"] if row["a"] == name else row["a"])


def _shown(row: Mapping[str, Any]) -> str:
    what = row["said"] or (f"{row['gbs']:.4g} GB/s" if row["gbs"] is not None else "nothing")
    wrong = f", {row['wrong']} elements wrong" if row["wrong"] else ""
    return f"round {row['round']} {row['a']} and {row['b']}: {what}{wrong}"


def _rails(name: str, rails: Iterable[Mapping[str, Any]]) -> list[str]:
    own = [row for row in rails if name in {row["a"], row["b"]}]
    told = [
        f"{row['round']} {row['said'] or format(row['gbs'], '.4g') + ' GB/s'}"
        for row in sorted(own, key=lambda row: (row["round"], row["b"]))
    ]
    return [f"rails: {', '.join(told)}"] if told else []
