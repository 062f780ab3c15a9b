"""What the nodes of a group do together, by what they wrote down: who came, and what arrived."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
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
    altered,
    check,
)
from nodeproof.nccl_tests import baselines
from nodeproof.nccl_tests.bandwidth import Collective

_ANSWERS = "nodeproof.nccl_tests.answers"


@check(
    "fabric.member.presence",
    kinds=(DeviceKind.MEMBER,),
    remedy=Remedy.RETEST,
    cause=Cause.ENVIRONMENT,
    work=Work(call=f"{_ANSWERS}:presence"),
    plant=(
        altered("came", came=0, stayed=0, lost="planted: it never came"),
        altered("stayed", came=1, stayed=0, lost="planted: it went away"),
        altered("the same boot", came=1, stayed=1, boot_id="planted", boot_id_end="otherwise"),
        altered("devices", came=1, stayed=1, devices=0),
        altered("own machine", came=1, stayed=1, own_machine=0, shared=["planted"]),
        altered("sliced", came=1, stayed=1, sliced=["planted"]),
    ),
)
def test_presence(device: Device, result: Result, measure: Measure) -> None:
    """A node that is lost in the middle of a job takes all the others down with it.

    The member never came, or the one that leads heard nothing of it any more. Usual causes: the
    pod was never scheduled or was evicted, the node rebooted or lost its network, a process was
    killed for memory. Nothing is known of its hardware by that alone: look at the node's own log,
    and run the group again. A member whose name is `rank N` was never heard of at all.

    Two members with the same boot or the same GPU are one machine that counts twice: no fabric lies
    between them. Usual causes: two pods on one node, a cloned machine, a wrong list of hosts. A GPU
    that is cut into slices (MIG) is not whole: turn MIG off and partition after the proof.
    """
    measure("came", result["came"], at_least=1, detail=result["lost"])
    if not result["came"]:
        return  # what else is not known of it is no news
    measure("stayed", result["stayed"], at_least=1, detail=result["lost"])
    if not result["stayed"]:
        return
    boot, end = result["boot_id"], result["boot_id_end"]
    measure(
        "the same boot",
        int(bool(boot) and boot == end),
        at_least=1,
        detail=f"of {device}: {boot or 'unreadable'} at the start, {end or 'unreadable'} at the end",
    )
    measure("devices", result["devices"], at_least=1, detail="that could take part")
    measure(
        "own machine",
        result["own_machine"],
        at_least=1,
        detail=f"of {device}: {'; '.join(result['shared']) or 'nothing that another has too'}",
    )
    measure(
        "sliced",
        len(result["sliced"]),
        unit="GPUs",
        at_most=0,
        detail=f"{', '.join(result['sliced'])}: cut into slices (MIG): a GPU is accepted whole and "
        "partitioned after; turn MIG off (nvidia-smi -mig 0) and test again"
        if result["sliced"]
        else "all are whole",
    )


@check(
    "fabric.member.data",
    kinds=(DeviceKind.MEMBER,),
    remedy=Remedy.RETEST,
    cause=Cause.ENVIRONMENT,
    work=Work(call=f"{_ANSWERS}:data"),
    plant=(
        Plant(args={"plant": "flip"}, breaks=("wrong",)),
        altered("verified", checked={collective.value: 0 for collective in Collective}),
    ),
)
def test_data(device: Device, result: Result, measure: Measure) -> None:
    """Wrong bits between nodes spoil the gradients of a whole job, and nothing else reports them.

    Every element that the devices of this member received is compared with what it must be, in
    all-reduce, all-gather, reduce-scatter, all-to-all, broadcast and passing on to the next rank,
    in every size and every repeat.

    Where it was seen is not where it came from: any sender, network adapter or switch on the way
    can have done it, so nobody is blamed here. Wrong data that follows one member through its pairs
    is found by fabric.member.pairs, which does blame. Do not run jobs over these nodes before it is
    known: read the counters of the adapters and of the switch ports.
    """
    verified = [result["checked"][collective.value] for collective in Collective]
    measure(
        "verified",
        min(verified),
        unit="elements",
        at_least=1,
        detail=f"the least of the collectives, on the {result['devices']} devices of {device}",
    )
    measure(
        "wrong",
        result["wrong"],
        unit="elements",
        at_most=0,
        detail="; ".join(_shown(element) for element in result["found"]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthLimits:
    """Bus bandwidths in GB/s by the definitions of nccl-tests, at the largest size, of all ranks.

    Without a word it is 0.85 of what was published for this instance type, number of nodes and
    size, or 0.7 of the line rate where that may stand for it (`catalog/baselines.toml`). Where
    neither is known, the all-reduce is not judged, since all nodes may be slow alike: say here what
    yours give. The other collectives then have to do more than stand still: a third of what one
    10 Gbit/s port carries, half of that where all ranks send at once (derived, not measured).
    """

    all_reduce_gbs: float | None = None
    all_gather_gbs: float | None = None
    reduce_scatter_gbs: float | None = None
    all_to_all_gbs: float | None = None
    broadcast_gbs: float | None = None
    sendrecv_gbs: float | None = None


_STILL_GBS = dict.fromkeys(Collective, 0.4) | {Collective.ALL_TO_ALL: 0.2, Collective.SENDRECV: 0.2}


def _without_a_rank(result: Result) -> Result:
    return {**result, "sizes": [size - 1 for size in result["sizes"]]}


def _all_but_still(collective: Collective) -> Plant:
    """Plant a millionth of the speed of one collective; one device alone exchanges nothing."""

    def alter(result: Result) -> Result | None:
        if result["devices"] == 1:
            return None
        name = collective.value
        slow = [figure / 1e6 for figure in result["busbw_gbs"][name]]
        return {**result, "busbw_gbs": {**result["busbw_gbs"], name: slow}}

    return Plant(alter=alter, breaks=(collective.value,))


TOGETHER = Work(call=f"{_ANSWERS}:together")


@check(
    "fabric.group.bandwidth",
    kinds=(DeviceKind.GROUP,),
    remedy=Remedy.RETEST,
    cause=Cause.ENVIRONMENT,
    limits=BandwidthLimits,
    work=TOGETHER,
    plant=(
        Plant(alter=_without_a_rank, breaks=("ranks",)),
        *(_all_but_still(collective) for collective in Collective),
    ),
)
def test_bandwidth(
    device: Device, result: Result, measure: Measure, limits: BandwidthLimits
) -> None:
    """One slow part between the nodes slows down every step of every job that spans them.

    All nodes wait for the slowest, so this says that the group is slow and not who is: that say
    fabric.member.pairs and fabric.member.punctual. Usual causes: a fall-back to TCP
    (fabric.member.transport), GPUDirect switched off, a rail that is down, wrong NUMA or NIC
    affinity, others' traffic on the same switches. Judged at the largest size alone: an average
    over sizes is no speed of anything.

    One device alone exchanges nothing; then only that its rank took part is judged, and
    fabric.group.grade says that this proves nothing of a fabric.

    The limits are floors far below what a fabric gives: a spec has to say what to expect.
    """
    measure(
        "ranks",
        min(result["sizes"]),
        at_least=result["devices"],
        detail=f"that took part together, of {result['devices']} devices of {device}",
    )
    for collective in Collective:
        name = collective.value
        figures, sizes = result["busbw_gbs"][name], result["largest_bytes"][name]
        if len(set(figures)) != 1 or len(set(sizes)) != 1:
            raise CannotMeasure(
                f"the ranks of {device} report different bandwidths of the same {name}: their "
                "meeting is not to be trusted; run again"
            )
        floor, by = _floor(collective, getattr(limits, f"{name}_gbs"), result, sizes[0])
        measure(
            name,
            figures[0],
            unit="GB/s",
            at_least=floor if result["devices"] > 1 else None,
            detail=f"{sizes[0]} bytes over {result['backend']}; floor: {by}",
        )


def _floor(
    collective: Collective, given: float | None, result: Result, size_bytes: int
) -> tuple[float, str]:
    """Return the least bandwidth that is expected, and by whose word.

    Raises `CannotMeasure` where nobody has one, and for one that physics refuses.
    """
    known = baselines.find(
        instance_type=result["instance_type"] or "",
        nics=result["nics"] or 0,
        gpus=result["gpus"] or 1,
        nodes=result["nodes"],
        collective=collective,
        size_bytes=size_bytes,
        nccl=result["nccl"] or "",
    )
    try:
        if given is None and known.gbs is None:
            if collective is not Collective.ALL_REDUCE:
                return _STILL_GBS[collective], f"derived: {known.why}"
            raise ValueError(f"{known.why}; or set all_reduce_gbs of fabric.group.bandwidth")
        if given is None:
            return baselines.floor(known), f"{known.origin}: {known.why}"
        if known.line and (why := baselines.refusal(given, known.line)):
            raise ValueError(f"{collective.value}_gbs: {why}")
    except ValueError as error:
        raise CannotMeasure(str(error), cause=Cause.CONFIG) from error
    return given, "the spec"


def _one_slow_repeat(result: Result) -> Result:
    seconds = {name: [*all_of[1:], 9.0 * max(all_of)] for name, all_of in result["seconds"].items()}
    return {**result, "seconds": seconds}


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadinessLimits:
    """How far the repeats of one collective may lie apart."""

    spread: float = 0.10  # slowest less fastest, over the median


@check(
    "fabric.group.steadiness",
    kinds=(DeviceKind.GROUP,),
    remedy=Remedy.RETEST,
    cause=Cause.ENVIRONMENT,
    limits=SteadinessLimits,
    work=TOGETHER,
    trial=True,  # what a good fabric shows under others' traffic has not been measured
    plant=Plant(alter=_one_slow_repeat, breaks=("spread",)),
)
def test_steadiness(
    device: Device, result: Result, measure: Measure, limits: SteadinessLimits
) -> None:
    """A fabric that is fast now and slow then makes steps of a job take as long as the slowest.

    Usual causes: others' traffic, congestion control that does not settle, a link that is retrained
    or flaps, a processor that is shared. Run again when nobody else uses the fabric.
    """
    spread = {
        name: (max(seconds) - min(seconds)) / statistics.median(seconds)
        for name, seconds in result["seconds"].items()
    }
    worst = max(spread, key=lambda name: spread[name])
    measure(
        "spread",
        spread[worst],
        at_most=limits.spread,
        detail=f"of {worst} on {device}: "
        + ", ".join(f"{seconds * 1e3:.3f} ms" for seconds in result["seconds"][worst]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeLimits:
    """How good the proof has to be that a site accepts."""

    grade: int = (
        2  # 3: all of a group together; 2: with a known-good partner; 1: loopback; 0: alone
    )


@check(
    "fabric.group.grade",
    kinds=(DeviceKind.GROUP,),
    remedy=Remedy.RETEST,
    cause=Cause.ENVIRONMENT,
    limits=GradeLimits,
    work=Work(call=f"{_ANSWERS}:took_part"),
    plant=altered("grade", grade=-1),
)
def test_grade(device: Device, result: Result, measure: Measure, limits: GradeLimits) -> None:
    """What was not done together is not proved, however well each node does alone.

    A group of two or more that all worked together to the end is grade 3; if all but one of them
    were known to be good before (--known), 2. A node alone whose GPUs worked together over its own
    network devices is 1: it shows neither cable nor switch. Anything else is 0, and so is a group of
    which some did not take part. What a site accepts less than 2, its spec says.
    """
    measure(
        "grade",
        result["grade"],
        at_least=limits.grade,
        detail=f"{result['together']} of {result['nodes']} members of {device} worked together"
        + (f", without {', '.join(result['absent'])}" if result["absent"] else "")
        + "".join(f"; {name}, said to be known, is no member" for name in result["strangers"]),
    )


def _shown(element: Mapping[str, Any]) -> str:
    return (
        f"{element['collective']} of {element['bytes']} bytes of {element['dtype']}, "
        f"repeat {element['repeat']}: element {element['element']} is {element['got']}, "
        f"not {element['expected']} (bits {', '.join(map(str, element['bits']))})"
    )
