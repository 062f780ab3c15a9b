"""What lies between arithmetic and memory: caches, shared memory, registers, atomic operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nodeproof.acceptance.blame import common
from nodeproof.acceptance.bound import bound
from nodeproof.checks import (
    COMPUTE,
    Cause,
    Device,
    DeviceKind,
    Load,
    Measure,
    Plant,
    Remedy,
    Result,
    Results,
    Work,
    altered,
    check,
)

_LOAD = Load(quick=1, gate=5, deep=60, soak=600)
_CPU_SET = 2 << 20  # bytes: the most that is taken of a cache that all cores share
_SCATTERS = (
    *("index_add int32", "index_add float32", "scatter_add int64", "scatter_add float32"),
    *("scatter_amax int32", "scatter_amin int64", "bincount int64"),
)
_ADDRESSES = {"few": 3, "many": 61}  # the least; a GPU has far more of the many
_UPDATES = 4096  # the least of each launch


def _judge(
    what: str,
    result: Result,
    peers: Results,
    measure: Measure,
    told: Callable[[dict[str, Any]], str],
) -> None:
    """Hold `result` to nothing wrong; the same mismatches on two devices are software's."""
    software = common(result, peers)
    detail = ""
    if result["wrong"]:
        described = [told(fault) for fault in result["found"][:1]]
        detail = f"first {described[0]}" if described else "none of them could be described"
        detail += f"; {software}" if software else ""
    measure(
        f"wrong {what}",
        result["wrong"],
        at_most=0,
        cause=Cause.CONFIG if software else None,
        detail=detail,
    )


@check(
    "device.cache.sweep",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    work=Work(call="nodeproof.kernels.cache:sweep", load=_LOAD, deadline_s=120),
    plant=(
        Plant(args={"plant": "flip"}, breaks=("wrong words",)),
        altered("sweeps", values={"as written": 0, "inverted": 0}),
        altered("working set", bytes=0),
    ),
)
def test_cache_sweep(device: Device, result: Result, peers: Results, measure: Measure) -> None:
    """A cache that loses a bit hands wrong weights and data to every core that asks for them.

    A working set that fits the last cache is written, read back in another order of rows, so that
    on a GPU most of it is read by another core than the one that wrote it, and inverted, four times
    for each pattern. One word that differs is a fault of this device, repeatable or not: error
    correction should have seen it. Reset and update do not help; replace the device (for a
    processor: itself). The very same wrong words on two devices are software's instead.

    What it can't see: whether a word came from the cache or from the memory behind it, in which
    slice it lay, or which core read it. On a processor the set has 2 MiB at most, of a cache that
    all cores share. Without a wrong word, errors are rarer than "error rate below" for each word
    read, with 95 % confidence, at the heat and the clocks of this run and at no others.
    """

    def told(fault: dict[str, Any]) -> str:
        return (
            f"at offset {fault['offset']} in round {fault['round']}, sweep {fault['sweep']}: "
            f"{fault['got']} instead of {fault['expected']}, bits {fault['bits']}"
        )

    _judge("words", result, peers, measure, told)
    # Both values of every bit have to have been read, each twice in every round.
    read = min(result["values"]["as written"], result["values"]["inverted"])
    measure(
        "sweeps",
        read / (result["cells_bytes"] * max(result["rounds"], 1)),
        at_least=2,
        cause=Cause.ENVIRONMENT,
        detail="of the value of which there were fewer, in each round",
    )
    gpu = device.kind is DeviceKind.GPU
    cache = result["cache_bytes"] if gpu else min(result["cache_bytes"] or _CPU_SET, _CPU_SET)
    measure(
        "working set", result["bytes"], unit="bytes", at_least=cache / 2, cause=Cause.ENVIRONMENT
    )
    measure("cache", result["cache_bytes"], unit="bytes", detail="0: it does not say")
    measure("rate", result["gb_per_s"], unit="GB/s")
    bound(measure, result, result["verified_bytes"] / 8, per="word")


@check(
    "device.atomics.totals",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    work=Work(
        call="nodeproof.kernels.atomics:totals",
        load=Load(quick=1, gate=3, deep=30, soak=300),
        deadline_s=120,
    ),
    plant=(
        Plant(args={"plant": "lost"}, breaks=("wrong totals",)),
        Plant(args={"plant": "twice"}, breaks=("wrong totals",)),
        altered("updates", updates=0),
        altered("kinds of updates", cases={}),
    ),
)
def test_atomics_totals(result: Result, peers: Results, measure: Measure) -> None:
    """An update that is lost or counted twice spoils gradients, histograms and sparse layers.

    Sums, maxima, minima and counts are scattered to three addresses, where all updates meet, and to
    many. Totals are integers that every order of updates gives, float32 included; the host reckons
    them by sorting. One total that differs is a fault of this device, repeatable or not: on a GPU
    the atomic units of the second-level cache do this. Reset and update do not help: replace. The
    very same wrong totals on two devices are software's instead.

    What it can't see: an update of a maximum that does not decide it, half-precision atomics, those
    of other GPUs or of the host, and on a processor anything but a sequence of additions: torch
    uses no atomic instruction there. Without a wrong total, errors are rarer than "error rate
    below" for each update, with 95 % confidence, in the states of this run and in no others.
    """

    def told(fault: dict[str, Any]) -> str:
        return (
            f"of {fault['operation']} in {fault['dtype']} to {fault['addresses']} addresses, index "
            f"{fault['index']}, round {fault['round']}: {fault['got']} instead of "
            f"{fault['expected']}"
        )

    _judge("totals", result, peers, measure, told)
    measure("updates", result["updates"], at_least=1)
    rounds = max(result["rounds"], 1)
    lacking = [
        name
        for scatter in _SCATTERS
        for addresses, totals in _ADDRESSES.items()
        if (done := result["cases"].get(name := f"{scatter} {addresses}")) is None
        or done["totals"] < totals * rounds
        or done["updates"] < _UPDATES * rounds
    ]
    due = len(_SCATTERS) * len(_ADDRESSES)
    measure(
        "kinds of updates",
        due - len(lacking),
        at_least=due,
        cause=Cause.ENVIRONMENT,
        detail=f"not done, or not in full: {', '.join(lacking)}" if lacking else "",
    )
    measure("rate", result["updates_per_s"], unit="updates/s")
    bound(measure, result, result["updates"], per="update")


@check(
    "device.onchip.cells",
    kinds=(DeviceKind.GPU,),
    remedy=Remedy.REPLACE,
    work=Work(call="nodeproof.kernels.onchip:cells", load=_LOAD, deadline_s=180),
    plant=(
        Plant(args={"plant": "flip"}, breaks=("wrong words",)),
        altered("blocks without a report", unreported=1),
        altered("SMs covered", covered=0),
        altered("words checked", checked={"registers": 0, "shared": 0, "atomics": 0}),
    ),
    capability=(8, 0),
)
def test_onchip_cells(result: Result, peers: Results, measure: Measure) -> None:
    """A register or a word of shared memory that does not hold corrupts any kernel that runs there.

    Every SM holds known words in its registers while it reckons and waits, inverting them in
    between; sends known words through shared memory in ever other orders; and updates addresses
    that all SMs share (add, exclusive or, maximum, compare-and-swap). One word that differs is a
    fault of this GPU, repeatable or not; the report names the SM, and many words wrong on one SM
    alone mean just that SM. Reset and update do not help: replace. The very same wrong words on two
    GPUs are software's: compiler or driver. An SM that was never used is no pass: something else
    may hold it (MPS, MIG, another process), so end that and test again.

    What it can't see: which physical register held a word, or in which bank of shared memory it
    lay, since Triton gives no say in either; about half of the registers hold tested words at one
    time, and not all of shared memory need be reached. The report of a block goes through the same
    SM. Uniform registers, constant and texture caches are not tested. Without a wrong word, errors
    are rarer than "error rate below" for each word held, with 95 % confidence, in the states of
    this run and in no others.
    """

    def told(fault: dict[str, Any]) -> str:
        if fault["part"] == "atomics":
            where = (
                f"{fault['operation']} to {fault['addresses']} addresses, index {fault['index']}"
            )
        else:
            where = f"SM {fault['sm']}, block {fault['block']}, word {fault['element']}"
        return (
            f"in {fault['part']}: {where}, launch {fault['round']}: {fault['got']} instead of "
            f"{fault['expected']}, bits {fault['bits']}; wrong words by SM: {result['wrong_on']}"
        )

    _judge("words", result, peers, measure, told)
    measure("blocks without a report", result["unreported"], at_most=0)
    measure(
        "SMs covered",
        result["covered"] / result["sms"],
        at_least=1,
        cause=Cause.ENVIRONMENT,
        detail=f"{result['covered']} of {result['sms']} SMs reported for each part",
    )
    measure("words checked", min(result["checked"].values()), at_least=1, detail="of each part")
    measure("fewest blocks of an SM", result["blocks_of_sm"])
    measure("rate", result["word_turns_per_s"], unit="words/s")
    bound(measure, result, sum(result["checked"].values()), per="word")
