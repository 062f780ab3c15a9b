"""What the GPUs of one node do together: every bit of it, and how fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodeproof.acceptance.culprit import COMMON, culprit, told
from nodeproof.checks import (
    COMPUTE,
    CannotMeasure,
    Cause,
    Device,
    DeviceKind,
    Measure,
    Plant,
    Remedy,
    Result,
    Results,
    Work,
    altered,
    check,
)
from nodeproof.nccl_tests.bandwidth import Collective

EXCHANGE = Work(
    call="nodeproof.nccl_tests.inside:exchange",
    # GPU: where a healthy 8-GPU node is within a tenth of its peak (441.8 of 483.1 GB/s on
    # H100, 463.6 of 482.3 on H200, all-reduce) and 24 GB cards still have room.
    args={"max_bytes_cpu": 4 * 1024**2, "max_bytes_gpu": 1024**3},
    deadline_s=120.0,
    group=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bus bandwidths in GB/s by the definitions of nccl-tests, at `max_bytes_gpu`.

    The defaults are derived, not measured: a third of what a PCIe 3.0 x16 slot carries (12 of
    15.75 GB/s), for cards without peer-to-peer access that stage through the host's memory and
    share its ports; half of that where all ranks send at once. They find a node that has fallen
    back to sockets or a dead link, not one that is merely slow: that takes the floor of its kind,
    which a spec sets (published all-reduce: A100 SXM 229, H100 442, H200 464, B200 723 GB/s at
    1 GiB over 8 GPUs; no trustworthy figures for PCIe cards).
    """

    all_reduce_gbs: float = 4.0
    all_gather_gbs: float = 4.0
    reduce_scatter_gbs: float = 4.0
    all_to_all_gbs: float = 2.0
    broadcast_gbs: float = 4.0
    sendrecv_gbs: float = 2.0


def _without_a_rank(results: Results) -> Results:
    return [(device, {**result, "size": result["size"] - 1}) for device, result in results]


def _all_but_still(collective: Collective) -> Plant:
    """Plant a millionth of the speed of one collective; one device alone exchanges nothing."""

    def alter(results: Results) -> Results | None:
        if len(results) == 1:
            return None
        return [(device, _slower(result)) for device, result in results]

    def _slower(result: Result) -> Result:
        figures = result["busbw_gbs"]
        slow = {**figures, collective.value: figures[collective.value] / 1e6}
        return {**result, "busbw_gbs": slow}

    return Plant(alter=alter, breaks=(collective.value,))


@check(
    "device.collective.data",
    kinds=COMPUTE,
    remedy=Remedy.RESET_GPU,
    cause=Cause.ENVIRONMENT,
    work=EXCHANGE,
    plant=(
        Plant(args={"plant": "flip"}, breaks=("wrong",)),
        altered("verified", checked={collective.value: 0 for collective in Collective}),
    ),
)
def test_collective_data(device: Device, result: Result, peers: Results, measure: Measure) -> None:
    """Wrong bits in a collective spoil every GPU's gradients, and nothing else reports them.

    All-reduce, all-gather, reduce-scatter, all-to-all, broadcast and passing on to the next rank
    are done with data whose
    result is known to the bit in every order of summing, in sizes from 8 bytes to the largest and
    in every repeat that is timed; each element that this device received is compared.

    The device where it was seen is not necessarily the cause: the fault may lie in any sender, in
    a switch or in a link on the way. So a device is named only if it alone of four or more got
    anything wrong, and that from two senders at least. All else condemns the node and names none, for
    no later run that is clean takes wrong bits back: wrong on two devices or more has a common cause (the IOMMU or ACS with peer-to-peer copies over
    PCI Express, a switch, one sender among them), from one sender it has two ends, and of two or
    three devices none can be told from the board. node.transfers.pairs says which pairs are wrong.
    Look at NVLink and PCIe error counters before replacing a GPU.

    What it can't see: what a link lost and sent again, sizes and patterns that were not sent. No
    wrong element in N: fewer than 3/N are wrong at 95 %, for this traffic.
    """
    verified = [result["checked"][collective.value] for collective in Collective]
    measure(
        "verified",
        min(verified),
        unit="elements",
        at_least=1,
        detail=f"the least of the collectives on {device}",
    )
    cause, said = _blamed(result, peers)
    measure(
        "wrong",
        result["wrong"],
        unit="elements",
        at_most=0,
        cause=cause,
        detail="; ".join([*(_shown(element) for element in result["found"]), *said]),
    )


@check(
    "node.collective.bandwidth",
    kinds=(DeviceKind.NODE,),
    remedy=Remedy.REBOOT,
    cause=Cause.ENVIRONMENT,
    limits=Limits,
    work=EXCHANGE,
    plant=(
        Plant(alter=_without_a_rank, breaks=("ranks",)),
        *(_all_but_still(collective) for collective in Collective),
    ),
)
def test_collective_bandwidth(
    device: Device, results: Results, measure: Measure, limits: Limits
) -> None:
    """A slow link between the GPUs of a node slows down every step of every job on it.

    Usual causes: NVLink down or the fabric manager not running, so that traffic takes PCIe;
    peer-to-peer access switched off (ACS on bare metal, or the container), so that it takes the
    host's memory; a PCIe link that trained narrow. A whole-group collective cannot tell which GPU
    is slow: all of them wait for the slowest. Restarting jobs does not help; after a reboot that
    does not help either, compare the pairs of GPUs.

    Of the times by device the shortest belongs to the one that comes late: the others wait for it.

    A node with one GPU has nothing to exchange: then only that its rank took part is judged.

    No GPU is named and most causes are settings, so nobody is blamed: node.transfers.pairs can tell.
    Variables that change the way (NCCL_P2P_DISABLE and the like) are inherited and named here.

    The limits are floors far below what NVLink gives: a spec has to say what to expect.
    """
    if not results:
        raise CannotMeasure(f"no device of {device} took part in the collectives: see its findings")
    size = min(result["size"] for _, result in results)
    measure("ranks", size, at_least=len(results), detail="ranks that took part together")
    figures = [result["busbw_gbs"] for _, result in results]
    if any(other != figures[0] for other in figures):
        raise CannotMeasure(
            f"the devices of {device} report different bandwidths of the same collectives: "
            "their meeting is not to be trusted; run again"
        )
    for collective in Collective:
        name = collective.value
        floor: float = getattr(limits, f"{name}_gbs")
        measure(
            name,
            figures[0][name],
            unit="GB/s",
            at_least=floor if len(results) > 1 else None,
            detail=_times(results, name),
        )


def _shown(element: Mapping[str, Any]) -> str:
    return (
        f"{element['collective']} of {element['bytes']} bytes of {element['dtype']}, "
        f"repeat {element['repeat']}: element {element['element']} is {element['got']}, "
        f"not {element['expected']} (bits {', '.join(map(str, element['bits']))})"
    )


def _times(results: Results, name: str) -> str:
    first = results[0][1]
    own = ", ".join(f"{d} {r['own_seconds'][name] * 1e3:.3f} ms" for d, r in results)
    shown = f"{first['largest_bytes'][name]} bytes over {first['transport']['backend']}; median times {own}"
    settings = told({k: v for _, r in results for k, v in r.get("settings", {}).items()})
    return f"{shown}; {settings}" if settings else shown


def _blamed(result: Result, peers: Results) -> tuple[Cause, list[str]]:
    """Whom wrong elements blame, and what to say of it."""
    ranks = result["size"]
    if not result["wrong"]:
        return Cause.ENVIRONMENT, []
    if ranks == 1:
        return Cause.HARDWARE, []  # nobody else had a part in it
    wrong = 1 + sum(other["wrong"] > 0 for _, other in peers)
    settings = [text] if (text := told(result.get("settings", {}))) else []
    if wrong > 1 or len(peers) != ranks - 1:
        where = f"wrong on {wrong} of {ranks} devices, {len(peers) + 1} of which answered"
        return Cause.HARDWARE, [f"{where}, so no device is named: {COMMON}", *settings]
    senders = {s for element in result["found"] if (s := _sender(element, ranks)) is not None}
    # Any number that is no rank stands for this device, of which all of it was received.
    if culprit([(sender, ranks) for sender in senders], ranks) is not None:
        who = ", ".join(map(str, sorted(senders)))
        return Cause.HARDWARE, [f"only this device got it wrong, and that from ranks {who}"]
    alone = (
        f"only this device of {ranks} got it wrong, which two senders of four devices or more would "
        f"have to show before it is named: see node.transfers.pairs; {COMMON}"
    )
    return Cause.HARDWARE, [alone, *settings]


def _sender(element: Mapping[str, Any], ranks: int) -> int | None:
    """Whose data a wrong element was, where its place tells: sums have many, sendrecv but one."""
    match element["collective"]:
        case Collective.ALL_GATHER | Collective.ALL_TO_ALL:
            each = element["bytes"] // 4 // ranks  # they copy int32
            return int(element["element"] // each)
        case Collective.BROADCAST:
            return int(element["repeat"] % ranks)
        case _:
            return None
