"""Multiprocessors: each SM of a GPU has to multiply rightly, and each has to be seen doing it."""

from __future__ import annotations

from nodeproof.acceptance.blame import common
from nodeproof.acceptance.bound import bound
from nodeproof.checks import (
    Cause,
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


@check(
    "device.multiprocessors.exact",
    kinds=(DeviceKind.GPU,),
    capability=(8, 0),
    remedy=Remedy.REPLACE,
    work=Work(
        call="nodeproof.kernels.fused:fused",
        load=Load(quick=3, gate=15, deep=120, soak=1200),
        deadline_s=300,  # compiles a kernel for each dtype, once
    ),
    plant=(
        Plant(args={"plant": "flip"}, breaks=("wrong elements",)),
        altered("multiprocessors covered", covered=0),
        altered("tiles unaccounted for", unaccounted=1),
        altered("checked elements", checked_elements=0),
    ),
)
def test_multiprocessors(result: Result, peers: Results, measure: Measure) -> None:
    """One bad multiprocessor in a hundred spoils one tile in a hundred, and no average shows it.

    Every SM multiplies tiles with one exact answer in each dtype (the quick profile: bfloat16 and
    FP8) and compares its own accumulator, every bit of it, before anything is written. One wrong
    element is a fault of the named SM, repeatable or not; it is no relief that others are right, or
    that the same tile is right elsewhere. Resetting, cooling or updating does not help; return the
    GPU. The same element wrong on several GPUs is a compiler's or a driver's fault, and said to be
    so.

    Seen: operands' way through memory and caches, multipliers, adders, accumulators, of each SM.
    Not seen: outputs on their way to memory, units other than matrix products', which part of an
    SM failed, states (heat, voltage, clock) that the run was not in, and a fault in an SM's own
    comparison that hides its own fault. Zero errors in N checked operations: the rate is below 3/N
    at 95 %.

    An SM that was not seen checking enough is unproven: something else holds it (MPS, another
    process), or it does not run. End what else uses the GPU and test again.
    """
    detail, cause = "", None
    if result["wrong"]:
        shown = zip(result["found"], result["found_on"], strict=True)
        where = [
            f"SM {on['multiprocessor']}: {fault['dtype']} ({fault['family']}) tile {fault['tile']}, "
            f"row {fault['row']}, column {fault['column']}: {fault['got']} instead of "
            f"{fault['expected']}, bits {fault['bits']}, {on['wrong_in_tile']} wrong in that tile"
            for fault, on in shown
        ]
        detail = (
            f"first on {where[0] if where else 'a tile that was not kept'}; wrong elements by SM: "
            f"{result['by_sm']}; operands intact: {result['operands_intact']}; by the host: "
            f"{result['host']}"
        )
        if software := common(result, peers):
            detail, cause = f"{software}; {detail}", Cause.CONFIG
    measure("wrong elements", result["wrong"], at_most=0, cause=cause, detail=detail)
    measure(
        "multiprocessors covered",
        result["covered"],
        at_least=result["multiprocessors"],
        cause=Cause.ENVIRONMENT,
        detail=(
            f"that checked at least {result['least_tiles_wanted']} tiles of each dtype; fewest "
            f"tiles of any: {result['least_tiles']}"
        ),
    )
    measure(
        "tiles unaccounted for",
        result["unaccounted"],
        at_most=0,
        detail="programs ended without these tiles having been counted as compared",
    )
    measure("checked elements", result["checked_elements"], at_least=1)
    measure("rate", result["tflops"], unit="TFLOP/s")
    bound(measure, result, result["operations"])
