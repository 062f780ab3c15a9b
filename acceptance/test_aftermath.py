"""Aftermath: what the load left behind in the GPU's own counters and in the kernel's log."""

from __future__ import annotations

from dataclasses import dataclass

from nodeproof.acceptance.recovery import recovery
from nodeproof.checks import (
    Alter,
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

# What has to stand still, and what has to be zero whenever it is read.
_STILL = {
    "ecc_uncorrected": "uncorrected ECC errors",
    "sram_uncorrected": "uncorrected ECC errors in SRAM",
    "dram_uncorrected": "uncorrected ECC errors in DRAM",
    "rows_remapped": "rows of memory remapped",
    "retired_pages": "pages of memory retired",
    "nvlink_replays": "NVLink replays",
    "nvlink_recoveries": "NVLink recoveries",
    "nvlink_packet_errors": "NVLink packet errors",
    "nvlink_retrainings": "NVLinks trained anew",
}
_ZERO = (
    ("remap_pending", "remaps pending", None),
    ("remap_failed", "remaps failed", Remedy.REPLACE),
)
_STATES = frozenset({"remap_pending", "remap_failed", "recovery_action"})  # and no counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How far a counter may move during a run. `None` is shown and not judged.

    DCGM fails a GPU at 100 CRC errors of an NVLink a second (DcgmGPUHardwareLimits.h); here it is
    that in a whole run. No figure of sound devices is known for what is `None`.
    """

    nvlink_crc: int | None = 99
    thermal_violation_s: float | None = 1.0  # held down by heat
    ecc_corrected: int | None = None
    pcie_replays: int | None = None


def _moved(by: int) -> Alter:
    def alter(result: Result) -> Result:
        # One of them at least has to be there, whatever this GPU counts.
        start = {**result["at_start"], "ecc_uncorrected": 0}
        now = {**result["counters"], "ecc_uncorrected": 0}
        moved = {name: (start.get(name) or 0) + by for name in now if now[name] is not None}
        return {**result, "at_start": start, "counters": {**now, **moved}}

    return alter


@check(
    "device.burnin.errors",
    kinds=(DeviceKind.GPU,),
    remedy=Remedy.RESET_GPU,
    limits=Growth,
    work=Work(
        call="nodeproof.probes.counters:read",
        before="nodeproof.probes.counters:read",
        last=True,
        deadline_s=30,
    ),
    plant=(
        Plant(alter=_moved(1)),
        Plant(alter=_moved(1 << 40)),  # what may move a little, or may be set to
        Plant(alter=_moved(-1), breaks=("counters that went back",)),
        altered("counters compared", "counters refused", counters={}, refusals=["planted"]),
    ),
)
def test_errors(result: Result, measure: Measure, limits: Growth) -> None:
    """A GPU that counts errors of its own under load goes on to count them in the job.

    Read before the first check and after the last: one more uncorrected ECC error, one more row of
    memory remapped or page retired, one more replay, recovery or broken packet of an NVLink is a
    fail, as is a remap that is pending or failed and a recovery action that the driver asks for,
    whenever it began. A reset lets a pending remap act; an error that comes again after it, or a
    failed remap, means replacing the GPU. Clocks that heat held down ask for a look at the cooling.
    Errors that ECC corrected and packets that PCIe sent again are shown and not judged, since no
    figure for sound devices is known. A GPU without ECC or NVLink has fewer counters; what could be
    read at one end of the run has to be read at the other, and at least one has to be there.
    """
    start, now = result["at_start"], result["counters"]
    told = {n for counts in (start, now) for n, count in counts.items() if count is not None}
    known = [n for n in now if now[n] is not None and n in start and start[n] is not None]
    refused = "; ".join(result["refusals"])
    measure(
        "counters compared",
        len(known),
        at_least=max(1, len(told)),
        cause=Cause.ENVIRONMENT,
        detail=f"could not be read both before and after: {', '.join(sorted(told - {*known})) or 'any'}; {refused}",
    )
    measure(
        "counters refused",
        len(result["refusals"]),
        at_most=0,
        cause=Cause.ENVIRONMENT,
        detail=refused,
    )
    back = [name for name in known if now[name] < start[name] and name not in _STATES]
    measure(
        "counters that went back",
        len(back),
        at_most=0,
        cause=Cause.ENVIRONMENT,
        detail=f"{', '.join(back)}: somebody reset the GPU or its driver while it was tested",
    )
    for name, said in _STILL.items():
        if name in known:
            measure(said, now[name] - start[name], at_most=0, detail=f"{now[name]} in all")
    for name, said, remedy in _ZERO:
        if name in known:
            measure(said, now[name], at_most=0, remedy=remedy)
    if "recovery_action" in known:
        asks, cause, remedy = recovery(now["recovery_action"])
        measure(
            "recovery action",
            now["recovery_action"],
            at_most=0,
            cause=cause,
            remedy=remedy,
            detail=asks,
        )
    for name, said, most in (
        ("nvlink_crc", "NVLink CRC errors", limits.nvlink_crc),
        ("ecc_corrected", "corrected ECC errors", limits.ecc_corrected),
        ("pcie_replays", "PCIe replays", limits.pcie_replays),
    ):
        if name in known:
            measure(said, now[name] - start[name], at_most=most)
    if "thermal_violation_ns" in known:
        measure(
            "held down by heat",
            (now["thermal_violation_ns"] - start["thermal_violation_ns"]) * 1e-9,
            unit="s",
            at_most=limits.thermal_violation_s,
            cause=Cause.ENVIRONMENT,
            detail="look at fans, air or coolant of this node",
        )


# Xids that speak of a program: the load is ours and makes none, but they blame no hardware
# (NVIDIA's catalogue of Xids: 13, 31, 32, 43, 45 ask to restart the application first).
_OF_A_PROGRAM = frozenset({13, 31, 32, 43, 45})


@check(
    "device.burnin.xid",
    kinds=(DeviceKind.GPU,),
    remedy=Remedy.RESET_GPU,
    work=Work(
        call="nodeproof.probes.kernel_log:xids",
        args={"since": "@log_cursor"},
        last=True,
        deadline_s=30,
    ),
    plant=(
        Plant(args={"plant": "line"}, breaks=("Xids of the device",)),
        Plant(
            alter=lambda result: {**result, "found": [{"code": 31, "at": 0.0, "text": ""}]},
            breaks=("Xids of a program",),
        ),
        altered("log reaches back to the start", reaches_back=False),
    ),
)
def test_xid(result: Result, measure: Measure) -> None:
    """A GPU whose driver reports an Xid during its test will report it in the job.

    The kernel's log from before the first check to after the last, for this GPU's address. Any Xid
    is a fail; those that speak of a program (13, 31, 32, 43, 45) blame nobody and ask for another
    test, all others the device. Which code means what stands in NVIDIA's catalogue of Xids; 48, 63,
    64, 94 and 95 are memory, 74 is NVLink, 79 is a GPU that fell off the bus. A log that can't be
    read is an error. What the driver logged before this run, or about a switch, is not judged here.
    """
    ours = [x for x in result["found"] if x["code"] in _OF_A_PROGRAM]
    others = [x for x in result["found"] if x["code"] not in _OF_A_PROGRAM]
    for said, xids, cause in (
        ("Xids of the device", others, None),
        ("Xids of a program", ours, Cause.ENVIRONMENT),
    ):
        first = f"first {xids[0]['code']} at {xids[0]['at']:.6f}: {xids[0]['text']}" if xids else ""
        measure(said, len(xids), at_most=0, cause=cause, detail=first)
    measure(
        "log reaches back to the start",
        int(result["reaches_back"]),
        at_least=1,
        cause=Cause.ENVIRONMENT,
        detail="older lines were pushed out by newer ones: find out what floods the kernel's log",
    )
