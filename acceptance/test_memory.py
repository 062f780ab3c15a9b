"""Device memory: it has to hold what was written to it."""

from __future__ import annotations

from dataclasses import dataclass

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
    Work,
    altered,
    check,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """How much of the memory is tested."""

    gpu_share: float = 0.97  # of what is free when the test begins
    cpu_share: float = 0.25  # of what is available, over all devices of a rehearsal together
    gpu_free_of_total: float = 0.85  # a GPU with less than this free is in use by somebody


@check(
    "device.memory.pattern",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    limits=Pattern,
    work=Work(
        call="nodeproof.kernels.memory:pattern",
        from_limits=("cpu_share", "gpu_share"),
        load=Load(quick=8, gate=20, deep=300, soak=1800),
        deadline_s=600,
    ),
    plant=(
        Plant(args={"plant": "flip"}, breaks=("wrong words",)),
        altered("damaged pattern words", reference_wrong=1),
        altered("tested", "tested of what was asked", bytes=0, free_of_total=0.0),
    ),
)
def test_pattern(device: Device, result: Result, measure: Measure, limits: Pattern) -> None:
    """Memory that loses a bit turns weights and data into other weights and data.

    Every word holds a function of its address; it is verified and inverted forwards, then
    backwards, until the time is over. A mismatch is a bit that ECC did not correct, a cell that
    does not hold, or an address that reaches another's cell: strides between mismatches that are
    powers of two hint at the last. Row remapping may take a reset to act and does not excuse a
    wrong word that reached a program. Replace the device (for a processor: its memory module).
    """
    detail = ""
    if result["wrong"]:
        first = result["found"][0]
        detail = (
            f"first at offset {first['offset']} (address {first['address']}), pass "
            f"{first['phase']}: {first['got']} instead of {first['expected']}, bits "
            f"{first['bits']}; strides {result['strides']}"
        )
    measure("wrong words", result["wrong"], at_most=0, detail=detail)
    measure(
        "damaged pattern words",
        result["reference_wrong"],
        at_most=0,
        detail="the memory that holds the pattern itself changed",
    )
    measure("tested", result["bytes"], unit="bytes", at_least=1)
    # What follows must hold for a planted fault too, which is looked for in a small region only:
    # the self-test is to fail because of the wrong words and of nothing else.
    measure(
        "tested of what was asked",
        result["bytes"] / result["asked"],
        at_least=0.95,  # blocks are whole, and the driver keeps its reserve
        cause=Cause.ENVIRONMENT,
        detail="there was too little memory to take the share in whole blocks",
    )
    measure("share of available", result["share"])
    if device.kind is DeviceKind.GPU:
        measure(
            "free at the start",
            result["free_of_total"],
            at_least=limits.gpu_free_of_total,
            cause=Cause.ENVIRONMENT,
            detail="something else holds memory of this GPU: end it and test again",
        )
    measure("rate", result["gb_per_s"], unit="GB/s")
