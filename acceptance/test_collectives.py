"""What the GPUs of one node do together: every bit of it, and how fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodeproof.checks import (
    COMPUTE,
    CannotMeasure,
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
    work=EXCHANGE,
    plant=(
        Plant(args={"plant": "flip"}, breaks=("wrong",)),
        altered("verified", checked={collective.value: 0 for collective in Collective}),
    ),
)
def test_collective_data(device: Device, result: Result, measure: Measure) -> None:
    """Wrong bits in a collective spoil every GPU's gradients, and nothing else reports them.

    All-reduce, all-gather, reduce-scatter, all-to-all, broadcast and passing on to the next rank
    are done with data whose
    result is known to the bit in every order of summing, in sizes from 8 bytes to the largest and
    in every repeat that is timed; each element that this device received is compared.

    The device where it was seen is not necessarily the cause: the fault may lie in any sender, in
    a switch or in a link on the way. The same elements wrong on every device point to one sender
    or to a switch that reduces; elements wrong on one device only, to that device or its links.
    Reset the GPUs and test again; look at NVLink and PCIe error counters before replacing one.

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
    measure(
        "wrong",
        result["wrong"],
        unit="elements",
        at_most=0,
        detail="; ".join(_shown(element) for element in result["found"]),
    )


@check(
    "node.collective.bandwidth",
    kinds=(DeviceKind.NODE,),
    remedy=Remedy.REBOOT,
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
    return f"{first['largest_bytes'][name]} bytes over {first['transport']['backend']}; median times {own}"
