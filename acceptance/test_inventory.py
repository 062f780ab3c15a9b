"""What a node has to have before any work is worth doing: its devices to itself, and libraries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nodeproof.checks import (
    CannotMeasure,
    Cause,
    DeviceKind,
    Measure,
    Plant,
    Remedy,
    Result,
    Work,
    check,
)


def _named(ids: Sequence[str]) -> str:
    return ", ".join(ids)


# --- the devices ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLimits:
    """How many devices there have to be. Without a number, as many as any of the views lists."""

    expected: int | None = None
    mig: int = 0  # GPUs that may be in MIG mode


@check(
    "node.devices.count",
    kinds=(DeviceKind.NODE,),
    remedy=Remedy.REBOOT,
    limits=DeviceLimits,
    work=Work(
        call="nodeproof.probes.devices:enumerate_devices",
        args={"device": "@device", "cpu_devices": "@cpu_devices"},
        deadline_s=30,
    ),
    plant=(
        Plant(
            alter=lambda result: {**result, "devices": result["devices"][:-1]},
            breaks=("devices",),
        ),
        # A surplus counts only where a number is expected, and the two views only where there are
        # GPUs, so their plants come with others that always count.
        Plant(
            alter=lambda result: {
                **result,
                "off_bus": ["0000:ff:1f.0"],
                "devices": [*result["devices"], *result["devices"][:1] * 1000],
            },
            breaks=("off_bus",),
        ),
        Plant(
            alter=lambda result: {
                **result,
                "mig": ["GPU-planted"] * 1000,
                "nvml": [*(result["nvml"] or ()), "GPU-planted-for-nvml"],
                "cuda": [*(result["cuda"] or ()), "GPU-planted-for-cuda"],
            },
            breaks=("mig",),
        ),
        Plant(alter=lambda result: _refused(result, hardware=True), breaks=("lost",)),
        Plant(alter=lambda result: _refused(result, hardware=False), breaks=("refusing",)),
    ),
)
def test_device_count(result: Result, measure: Measure, limits: DeviceLimits) -> None:
    """A node with a GPU fewer than it should have runs no job that counts on all of them.

    Held against each other: how many are expected (--expect-gpus or the spec), what the PCI bus
    shows, what NVML lists and what CUDA lists. Usual causes of a missing one: it fell off the bus
    (look for Xid 79 in the kernel log), its driver did not initialise it, or this run was not
    given it. A reboot often brings it back; when the same one is missing again, replace it. To
    restart the driver alone does not help a GPU that is off the bus. A GPU that NVML lists and
    CUDA does not: look for nvidia-uvm, the device files and the fabric manager; the reverse: a
    library of another driver version is in the way.
    """
    if not result["answered"]:
        raise CannotMeasure(result["says"])
    devices, expected = result["devices"], limits.expected
    wanted = _wanted(result, expected)
    measure(
        "devices",
        len(devices),
        at_least=wanted,
        cause=_blame(result, wanted, expected),
        detail=_missing(result),
    )
    if expected is not None:
        measure(
            "surplus",
            len(devices) - expected,
            at_most=0,
            cause=Cause.CONFIG,
            detail=f"{_named([d['id'] for d in devices])}: correct the number expected",
        )
    _measure_refusals(result, measure)
    _measure_views(result, measure)
    measure(
        "mig",
        len(result["mig"]),
        at_most=limits.mig,
        cause=Cause.ENVIRONMENT,
        detail=f"MIG is on for {_named(result['mig'])}: turn it off (nvidia-smi -mig 0), or allow it in the spec",
    )


def _refused(result: Result, *, hardware: bool) -> dict[str, Any]:
    refusal = {"says": "planted", "hardware": hardware, "hidden": False}
    return {**result, "unanswered": [*result["unanswered"], refusal]}


def _wanted(result: Result, expected: int | None) -> int:
    if result["asked"] is not None:  # logical devices are as many as were asked for
        return int(result["asked"]) if expected is None else expected
    listed = [len(result[view]) for view in ("pci", "nvml", "cuda") if result[view] is not None]
    return max(1, *listed) if expected is None else expected


def _blame(result: Result, wanted: int, expected: int | None) -> Cause:
    """Hardware, unless something shows that this run was only not given the devices."""
    if result["asked"] is not None:
        return Cause.HARDWARE
    on_bus = len(result["pci"] or ())
    listed = len({*(result["nvml"] or ()), *(result["cuda"] or ())})
    hidden = sum(u["hidden"] for u in result["unanswered"])
    given = _given(result["visible"])
    not_given = (
        (expected is None and listed < on_bus)  # the others may be another container's
        or (listed == 0 and on_bus > 0)  # all at once: device files or driver, not the boards
        or (hidden > 0 and listed + hidden >= wanted)
        or (given is not None and given < wanted)
    )
    return Cause.ENVIRONMENT if not_given else Cause.HARDWARE


def _given(visible: Mapping[str, str | None]) -> int | None:
    """How many GPUs the environment gives to this process; `None`: it does not count them."""
    counts = []
    for value in visible.values():
        if value is None or value == "all":
            continue
        names = [name.strip() for name in value.split(",")]
        counts.append(sum(name not in {"", "none", "void"} for name in names))
    return min(counts, default=None)


def _missing(result: Result) -> str:
    pci = result["pci"]
    bus = result["pci_says"] if pci is None else _named(pci) or "none"
    given = {name: value for name, value in result["visible"].items() if value is not None}
    return (
        f"{result['says']}; listed: {_named([d['id'] for d in result['devices']]) or 'none'}; "
        f"on the PCI bus: {bus}; given by the environment: {given or 'nothing said'}"
    )


def _measure_refusals(result: Result, measure: Measure) -> None:
    off_bus = result["off_bus"]
    measure(
        "off_bus",
        len(off_bus),
        at_most=0,
        detail=f"{_named(off_bus)}: in the kernel's list, and the bus reads all ones there",
    )
    lost = [u["says"] for u in result["unanswered"] if u["hardware"]]
    others = [u["says"] for u in result["unanswered"] if not u["hardware"]]
    measure("lost", len(lost), at_most=0, detail="; ".join(lost))
    measure("refusing", len(others), at_most=0, cause=Cause.ENVIRONMENT, detail="; ".join(others))


def _measure_views(result: Result, measure: Measure) -> None:
    """A GPU that one of the two does not list can't be used, or can't be watched."""
    if result["asked"] is not None:
        return
    views = {"nvml": set(result["nvml"] or ()), "cuda": set(result["cuda"] or ())}
    for one, other in (("nvml", "cuda"), ("cuda", "nvml")):
        # Of GPUs with MIG on CUDA shows one slice in all: that they are on is judged by itself.
        alone = sorted(views[one] - views[other] - set(result["mig"]))
        says = result[f"{other}_says"] or f"{other} answers and leaves it out"
        measure(
            f"only_{one}",
            len(alone),
            at_most=0,
            cause=Cause.ENVIRONMENT,
            detail=f"{one} lists {_named(alone)} and {other} does not: {says}",
        )


@check(
    "node.software.versions",
    kinds=(DeviceKind.NODE,),
    remedy=Remedy.RETEST,
    cause=Cause.ENVIRONMENT,
    work=Work(call="nodeproof.probes.software:versions", args={"device": "@device"}, deadline_s=60),
    plant=Plant(alter=lambda result: _without(result, "torch"), breaks=("answering",)),
)
def test_software_versions(result: Result, measure: Measure) -> None:
    """A library that does not load, or a driver too old for it, fails every job on the node.

    Each library is imported and made to answer; its version goes into the results. Usual cause: an
    image that was built for another driver, or a torch without CUDA. Install the version that the
    message names; nothing is wrong with the hardware.
    """
    found, wanted = result["versions"], result["wanted"]
    silent = [f"{name}: {result['unreadable'][name]}" for name in wanted if name not in found]
    measure(
        "answering",
        sum(name in found for name in wanted),
        unit="libraries",
        at_least=len(wanted),
        detail="; ".join(silent),
    )
    if "driver_cuda" in found and "torch_cuda" in found:
        # Within a major version a newer CUDA runs on an older driver (CUDA compatibility guide).
        measure(
            "driver_cuda",
            int(found["driver_cuda"].partition(".")[0]),
            unit="major version",
            at_least=int(found["torch_cuda"].partition(".")[0]),
            detail=f"the driver serves CUDA {found['driver_cuda']}, torch wants {found['torch_cuda']}: update the driver",
        )


def _without(result: Result, name: str) -> dict[str, Any]:
    versions = {n: v for n, v in result["versions"].items() if n != name}
    if "driver_cuda" in versions:
        versions["driver_cuda"] = "0.0"
    reasons = {**result["unreadable"], name: "withheld"}
    return {**result, "versions": versions, "unreadable": reasons}


# --- who else is there ----------------------------------------------------------------------


@check(
    "gpu.processes.alone",
    kinds=(DeviceKind.GPU,),
    remedy=Remedy.KILL_WORKLOAD,
    cause=Cause.ENVIRONMENT,
    work=Work(call="nodeproof.probes.processes:on_gpu", deadline_s=30),
    plant=Plant(
        alter=lambda result: {
            **result,
            "others": [{"pid": n, "kind": "compute", "name": None} for n in (1, 2)],
        }
    ),
)
def test_alone_on_gpu(result: Result, measure: Measure) -> None:
    """Somebody else's work on a GPU takes memory and time, and makes every number here wrong.

    Usual cause: a job that outlived its pod, or a node that was not drained. End the processes that
    are named, then test again.
    """
    others = result["others"]
    named = [f"{o['pid']} ({o['name'] or 'not shown by /proc'}, {o['kind']})" for o in others]
    measure(
        "others",
        len(others) - result["ours_unseen"],
        unit="processes",
        at_most=0,
        detail=f"on this GPU: {_named(named)}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadLimits:
    """How much of the machine others may use."""

    share: float = 0.25  # of all processors' time; daemons of a node take a few hundredths


@check(
    "cpu.load.foreign",
    kinds=(DeviceKind.CPU,),
    remedy=Remedy.KILL_WORKLOAD,
    cause=Cause.ENVIRONMENT,
    limits=LoadLimits,
    work=Work(call="nodeproof.probes.processes:on_cpu", deadline_s=30),
    plant=Plant(alter=lambda result: {**result, "others_share": 1.01}),
    trial=True,
)
def test_foreign_load(result: Result, measure: Measure, limits: LoadLimits) -> None:
    """Others at work on the processors slow a rehearsal down, and make its figures worth less.

    Usual cause: another build or test on the same machine. End it, or wait; a virtual machine's
    neighbours (steal time) count too, and only another machine helps against them.
    """
    measure(
        "share",
        result["others_share"],
        at_most=limits.share,
        detail=f"over {result['window_s']:.1f} s; this run used {result['ours_share']:.2f}",
    )
