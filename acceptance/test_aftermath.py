"""Aftermath: what the load left behind in the GPU's own counters and in the kernel's log."""

from __future__ import annotations

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
    "rows_remapped": "rows of memory remapped",
    "nvlink_replays": "NVLink replays",
    "nvlink_recoveries": "NVLink recoveries",
}
_ZERO = {"remap_pending": "remaps pending", "remap_failed": "remaps failed"}
_SHOWN = {"ecc_corrected": "corrected ECC errors", "pcie_replays": "PCIe replays"}


def _moved(by: int) -> Alter:
    def alter(result: Result) -> Result:
        start = result["telemetry"]["at_start"]
        known = [name for name, count in result["counters"].items() if count is not None]
        moved = {name: (start.get(name) or 0) + by for name in known}
        return {**result, "counters": {**result["counters"], **moved}}

    return alter


@check(
    "device.burnin.errors",
    kinds=(DeviceKind.GPU,),
    remedy=Remedy.RESET_GPU,
    work=Work(call="nodeproof.probes.counters:read", last=True, deadline_s=30),
    plant=(
        Plant(alter=_moved(1)),
        Plant(alter=_moved(-1), breaks=("counters that went back",)),
        altered("counters compared", counters={}),
    ),
)
def test_errors(result: Result, measure: Measure) -> None:
    """A GPU that counts errors of its own under load goes on to count them in the job.

    Read before the first check and after the last: one more uncorrected ECC error, one more row of
    memory remapped, one more replay or recovery of an NVLink is a fail, as is a remap that is
    pending or failed whenever it began. A reset lets a pending remap act; an error that comes again
    after it, or a failed remap, means replacing the GPU. Errors that ECC corrected and packets that
    PCIe sent again are shown and not judged, since no figure for sound devices is known. A GPU
    without ECC or NVLink has fewer counters, and at least one has to be there.
    """
    start, now = result["telemetry"]["at_start"], result["counters"]
    known = [n for n in now if isinstance(now[n], int) and isinstance(start.get(n), int)]
    measure(
        "counters compared",
        len(known),
        at_least=1,
        cause=Cause.ENVIRONMENT,
        detail=f"none could be read both before and after: {'; '.join(result['refusals'])}",
    )
    back = [name for name in known if now[name] < start[name] and name not in _ZERO]
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
    for name, said in _ZERO.items():
        if name in known:
            measure(said, now[name], at_most=0)
    for name, said in _SHOWN.items():
        if name in known:
            measure(said, now[name] - start[name])


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
