"""What a GPU's memory says of itself before any load: ECC, its errors, and what was repaired."""

from __future__ import annotations

from dataclasses import dataclass

from nodeproof.checks import (
    CannotMeasure,
    Cause,
    DeviceKind,
    Measure,
    Plant,
    Remedy,
    Result,
    Work,
    altered,
    check,
)

_MEMORY = Work(call="nodeproof.probes.gpu_state:memory", deadline_s=15)

# What is planted is below zero where zero is a limit that a spec may set.


@dataclass(frozen=True, slots=True, kw_only=True)
class EccLimits:
    """Whether ECC has to be on. Without a word of the spec, as the product is delivered.

    `false` is also right for a GPU that has none, unless the catalogue knows that it does.
    """

    on: bool | None = None


@check(
    "gpu.ecc.mode",
    kinds=(DeviceKind.GPU,),
    remedy=Remedy.RESET_GPU,
    cause=Cause.ENVIRONMENT,
    limits=EccLimits,
    work=_MEMORY,
    plant=altered(
        "ECC other than expected",
        "ECC waits for a reset",
        ecc={"on": "planted", "next": True, "usual": True},
    ),
)
def test_ecc_mode(result: Result, measure: Measure, limits: EccLimits) -> None:
    """With ECC off, a flipped bit in memory becomes a wrong number that nobody hears of.

    Usual cause: somebody turned it off for its memory, or a change waits for a reset. Turn it on
    (nvidia-smi -e 1) and reset the GPU. A product that is known to have ECC, and whose driver says
    that it is not supported, is not believed: update the driver, or look whether a hypervisor hides
    it. One that is known to have none (made for players) is not asked for it unless the spec does;
    of any other that tells of none, the spec has to say whether it has it (`on`).
    """
    ecc = result["ecc"]
    wanted = _usual(result) if limits.on is None else limits.on
    # Without ECC it is not on either; but a product that has it and tells of none hides something.
    without = limits.on is False and ecc["on"] is None and result["built_in"] is not True
    measure(
        "ECC other than expected",
        int(wanted is not None and ecc["on"] is not wanted and not without),
        at_most=0,
        detail=f"it is {_switch(on=ecc['on'])} and should be {_switch(on=wanted)}: set it with nvidia-smi -e, reset the GPU, or correct the spec",
    )
    measure(
        "ECC waits for a reset",
        int(ecc["on"] is not ecc["next"]),
        at_most=0,
        detail=f"it will be {_switch(on=ecc['next'])} after a reset: reset the GPU",
    )


def _usual(result: Result) -> bool | None:
    """How ECC is without a word of the spec; `None` for a product that has none.

    Raises `CannotMeasure` for a GPU that tells of none, where nobody knows whether it has it.
    """
    usual: bool | None = result["ecc"]["usual"]
    if usual is not None:
        return usual
    # A GPU that has ECC and does not say how it is delivered is taken to have it on.
    if result["ecc"]["on"] is not None or result["built_in"]:
        return True
    if result["built_in"] is None:
        raise CannotMeasure(
            f"{result['product'] or 'a product without a name'} tells of no ECC, and the catalogue "
            "does not know whether it has it: say so in a spec, "
            '["gpu.ecc.mode"] on = true, or false for one without'
        )
    return None


def _on(result: Result) -> bool:
    """Whether ECC is on, or has to be taken for on: where a product that has it does not tell."""
    on = result["ecc"]["on"]
    return on is True or (on is None and result["built_in"] is True)


def _switch(*, on: bool | None) -> str:
    return {True: "on", False: "off", None: "not supported"}.get(on, str(on))


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorLimits:
    """Uncorrected errors in on-chip memory since the GPU was made. NVIDIA's threshold always counts."""

    sram_uncorrected_ever: int | None = None


@check(
    "gpu.ecc.errors",
    kinds=(DeviceKind.GPU,),
    remedy=Remedy.RESET_GPU,
    limits=ErrorLimits,
    work=_MEMORY,
    plant=(
        altered("ECC counters", counters=-1),
        Plant(
            alter=lambda result: {
                **result,
                "errors": {**result["errors"], "dram_uncorrected": 1},
                "sram": {"uncorrected": 0, "uncorrected_ever": 1 << 60, "exceeded": True},
            },
            breaks=("uncorrected errors", "SRAM threshold exceeded"),
        ),
    ),
)
def test_ecc_errors(result: Result, measure: Measure, limits: ErrorLimits) -> None:
    """A GPU with uncorrected memory errors on record goes on to kill jobs, or to corrupt them.

    Counted since the driver was loaded, so on a new node it has not worked yet. A reset clears the
    count and lets repairs act; test again after it, and replace the GPU if it comes back. Past
    NVIDIA's threshold for on-chip memory (SRAM), which no reset repairs, replace it at once. Errors
    of the whole life of the GPU and corrected ones are shown and not judged.
    """
    errors, sram = result["errors"], result["sram"] or {}
    # Parity and SEC-DED are two counts of one memory; the total and the places are two of another.
    on_chip = _most(errors["sram_uncorrected"], sram.get("uncorrected"))
    # Corrected errors and those of a whole life say nothing of uncorrected ones since the driver's
    # start, and one place says nothing of the other.
    told = errors["uncorrected"] is not None or None not in (on_chip, errors["dram_uncorrected"])
    measure(
        "ECC counters",
        result["counters"] if told else min(0, result["counters"]),
        at_least=int(_on(result)),
        cause=Cause.ENVIRONMENT,
        detail="ECC is on, or is by the product, and its uncorrected errors could not be read, neither in all nor in SRAM and DRAM: update the driver",
    )
    by_place = _sum(on_chip, errors["dram_uncorrected"])
    uncorrected = _most(errors["uncorrected"], by_place)
    if uncorrected is not None:
        measure(
            "uncorrected errors",
            uncorrected,
            at_most=0,
            detail=f"since the driver was loaded: {on_chip} in SRAM, {errors['dram_uncorrected']} in DRAM",
        )
    if sram:
        measure("SRAM threshold exceeded", int(sram["exceeded"]), at_most=0, remedy=Remedy.REPLACE)
    ever = _most(errors["sram_uncorrected_ever"], sram.get("uncorrected_ever"))
    if ever is not None:
        measure(
            "SRAM uncorrected ever",
            ever,
            at_most=limits.sram_uncorrected_ever,
            remedy=Remedy.REPLACE,
        )
    elif limits.sram_uncorrected_ever is not None:
        raise CannotMeasure(
            "the spec limits `sram_uncorrected_ever`, and this GPU or driver does not tell it: "
            "update the driver, or leave it out of the spec"
        )
    for name in ("corrected", "corrected_ever", "uncorrected_ever"):
        if errors[name] is not None:
            measure(name.replace("_", " "), errors[name])


def _most(*counts: int | None) -> int | None:
    return max((count for count in counts if count is not None), default=None)


def _sum(*counts: int | None) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairLimits:
    """How much of a GPU's memory may have been repaired.

    512 rows is where DCGM fails a GPU (DcgmGPUHardwareLimits.h); 64 pages is what the list of
    retired ones holds (NVIDIA, Dynamic Page Retirement).
    """

    rows_uncorrected: int = 511
    pages: int = 63
    told: bool = True  # whether a GPU with ECC has to keep such records; with MIG on it does not


@check(
    "gpu.memory.remap",
    kinds=(DeviceKind.GPU,),
    remedy=Remedy.RESET_GPU,
    limits=RepairLimits,
    work=_MEMORY,
    plant=(
        altered("records of repairs", records=-1),
        altered(
            "remap waits for a reset",
            "remap failed",
            "rows remapped for uncorrectable errors",
            "page waits for a reset",
            "retired pages",
            rows={
                "corrected": 0,
                "uncorrected": 1 << 31,
                "pending": True,
                "failed": True,
                "banks": None,
            },
            pages={"retired": 1 << 31, "pending": True},
        ),
    ),
)
def test_remap(result: Result, measure: Measure, limits: RepairLimits) -> None:
    """Memory that waits to be repaired, or can't be, fails again in the job.

    Ampere and later replace bad rows by spare ones, older GPUs retire pages. A repair that waits
    for a reset is a state of its own, whatever the counts say: one correctable error can leave it,
    and many repairs that were done leave none. Reset the GPU and test again. A repair that failed,
    or more of them than a sound GPU has, means replacing it.
    """
    rows, pages = result["rows"], result["pages"]
    measure(
        "records of repairs",
        result["records"],
        at_least=int(limits.told and _on(result)),
        cause=Cause.ENVIRONMENT,
        detail="ECC is on, or is by the product, and the driver tells neither of remapped rows nor, in full, of retired pages (with MIG on it tells nothing: turn MIG off)",
    )
    if rows is not None:
        banks = f"; spare rows left, by banks: {rows['banks'] or 'not told'}"
        measure("remap waits for a reset", int(rows["pending"]), at_most=0, detail="reset the GPU")
        measure(
            "remap failed", int(rows["failed"]), at_most=0, remedy=Remedy.REPLACE, detail=banks[2:]
        )
        if rows["uncorrected"] is None:
            raise CannotMeasure(
                "NVML answers all ones for the rows remapped for uncorrectable errors, which is no "
                "count: update the driver"
            )
        measure(
            "rows remapped for uncorrectable errors",
            rows["uncorrected"],
            at_most=limits.rows_uncorrected,
            remedy=Remedy.REPLACE,
            detail=f"{rows['corrected']} more for correctable ones{banks}",
        )
    if pages is not None and pages["pending"] is not None:
        measure("page waits for a reset", int(pages["pending"]), at_most=0, detail="reset the GPU")
    if pages is not None and pages["retired"] is not None:
        measure("retired pages", pages["retired"], at_most=limits.pages, remedy=Remedy.REPLACE)
