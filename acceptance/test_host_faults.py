"""Faults of the machine around the devices: its memory, its disks, its processors, its kernel."""

from __future__ import annotations

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
    altered,
    check,
)

_KIB = 1 << 10
_PLANTED = {"planted": ""}  # planted: refused by any spec, and nothing that one wants


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryErrorLimits:
    """Errors of the host's memory. Bare metal has controllers that count; a spec can ask for them."""

    controllers: int = 0
    uncorrected: int = 0
    corrected: int | None = None  # no figure for sound modules is known
    taken_out_kib: float = 0.0  # pages that the kernel no longer uses


def _bad_memory(result: Result) -> dict[str, Any]:
    bad = {"name": "mc-planted", "kind": "", "uncorrected": 1 << 40, "corrected": 1 << 40}
    return {**result, "controllers": [*result["controllers"], bad], "taken_out_bytes": 1 << 60}


@check(
    "host.memory.errors",
    kinds=(DeviceKind.HOST,),
    remedy=Remedy.REPLACE,
    limits=MemoryErrorLimits,
    work=Work(call="nodeproof.probes.edac:memory_errors", deadline_s=30),
    plant=(
        altered("controllers", controllers=None),
        Plant(alter=_bad_memory, breaks=("uncorrected", "taken out")),
    ),
)
def test_memory_errors(result: Result, measure: Measure, limits: MemoryErrorLimits) -> None:
    """A host whose memory makes errors kills jobs, or lets them go on with wrong data.

    Uncorrected errors since the driver of the memory's controllers was loaded, by module where it
    is known, and pages that the kernel took out of use. Replace the module that is named; a reboot
    only brings the bad pages back into use. Corrected errors are shown. A virtual machine has no
    such counters: there only the pages are seen, if its kernel counts them.
    """
    controllers = result["controllers"]
    measure(
        "controllers",
        -1 if controllers is None else len(controllers),
        at_least=limits.controllers,
        cause=Cause.ENVIRONMENT,
        detail="load the EDAC driver of this processor, or correct the spec",
    )
    if controllers:
        for name, most in (("uncorrected", limits.uncorrected), ("corrected", limits.corrected)):
            measure(
                name,
                sum(c[name] for c in controllers),
                at_most=most,
                cause=None if name == "uncorrected" else Cause.ENVIRONMENT,
                detail=_modules(result, name),
            )
    if result["taken_out_bytes"] is not None:
        measure(
            "taken out",
            result["taken_out_bytes"] / _KIB,
            unit="KiB",
            at_most=limits.taken_out_kib,
            detail="HardwareCorrupted in /proc/meminfo; the kernel log and the firmware's event log name the module",
        )


def _modules(result: Result, name: str) -> str:
    bad = sorted((m for m in result["modules"] if m[name]), key=lambda m: -int(m[name]))
    said = [f"{m['label']} ({m['controller']} {m['location']}) {m[name]}" for m in bad]
    return ", ".join(said[:4]) or "no module is named; see the firmware's event log"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLimits:
    """Disks. A spec states how many local NVMe controllers the kind of node has."""

    nvme: int = 0
    nvme_model: str = ""  # counts only these; clouds attach their network disks as NVMe too


@check(
    "host.disk.state",
    kinds=(DeviceKind.HOST,),
    remedy=Remedy.REPLACE,
    limits=DiskLimits,
    work=Work(call="nodeproof.probes.disks:disks", deadline_s=30),
    plant=(
        altered("nvme", nvme=None),
        altered("failed", failed=["nvme-planted"]),
        altered("degraded arrays", arrays={"md-planted": 1}),
        altered("lost arrays", broken=["md-planted"]),
        altered("not ready", unready=["nvme-planted (connecting)"]),
        altered("read-only", read_only=["/planted (ext4)"]),
        altered("damaged", damaged={"planted": 1}),
    ),
)
def test_disks(result: Result, measure: Measure, limits: DiskLimits) -> None:
    """A dead disk loses images, caches and checkpoints, and takes jobs with it.

    The state of each local NVMe controller and SCSI disk, arrays with a member missing, file
    systems that the kernel stopped writing to or that recorded errors. Replace a disk that is dead
    or offline, and the one that its array misses. A damaged file system blames nobody by itself:
    repair it (e2fsck), read the kernel log for errors of the disk under it, and test again. How
    worn a disk is, is not seen here.
    """
    nvme = result["nvme"]
    if nvme is not None and limits.nvme_model:
        nvme = [name for name in nvme if result["models"][name] == limits.nvme_model]
    measure("disks", len(result["disks"]))
    measure(
        "nvme",
        -1 if nvme is None else len(nvme),
        unit="controllers",
        at_least=limits.nvme,
        detail=f"{', '.join(nvme or ['none'])}: look for the missing one on the PCI bus, or correct the spec",
    )
    failed, broken = result["failed"], result["broken"]
    degraded = [f"{name} ({n} missing)" for name, n in result["arrays"].items() if n]
    measure("failed", len(failed), at_most=0, detail=f"{', '.join(failed)}: replace it")
    measure("degraded arrays", len(degraded), at_most=0, detail=", ".join(degraded))
    measure("lost arrays", len(broken), at_most=0, detail=", ".join(broken))
    for name, found, help_ in (
        ("not ready", result["unready"], "wait, and test again"),
        ("read-only", result["read_only"], "repair the file system"),
        (
            "damaged",
            [f"{name} ({n} errors)" for name, n in result["damaged"].items()],
            "repair the file system",
        ),
    ):
        measure(
            name,
            len(found),
            at_most=0,
            cause=Cause.ENVIRONMENT,
            detail=f"{', '.join(found)}: {help_}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorLimits:
    """How processors have to be. A spec that asks for a governor or a microcode is for bare metal."""

    governors: str = ""  # those that are good, separated by spaces; empty: any
    microcode: str = ""  # the oldest that is good, as the kernel writes it: 0x2b000590


@check(
    "host.cpu.alike",
    kinds=(DeviceKind.HOST,),
    remedy=Remedy.REBOOT,
    cause=Cause.ENVIRONMENT,
    limits=ProcessorLimits,
    work=Work(call="nodeproof.probes.cores:cores", deadline_s=30),
    plant=(
        altered("kinds", kinds={"planted": 1, "planted too": 1}),
        altered("microcodes", microcodes={"0x0": 1, "0x1": 1}, governors={"planted": 1}),
    ),
)
def test_alike(result: Result, measure: Measure, limits: ProcessorLimits) -> None:
    """Processors that differ make a node slow and unsteady in ways that no job can explain.

    All have to be of one kind and run one microcode. Usual cause of two microcodes: an update that
    was loaded late and did not reach every processor; reboot with it in the firmware or the initial
    file system. Governor and microcode are held against the spec where it names them.
    """
    kinds, microcodes, governors = result["kinds"], result["microcodes"], result["governors"]
    measure("kinds", len(kinds), at_most=1, detail=_counted(kinds))
    measure("microcodes", len(microcodes), at_most=1, detail=_counted(microcodes))
    if limits.microcode:
        _need(microcodes, "microcode")
        measure(
            "microcode",
            min(int(version, 16) for version in microcodes),
            at_least=int(limits.microcode, 16),
            detail=f"{_counted(microcodes)}; wanted {limits.microcode}: update the firmware",
        )
    if limits.governors:
        _need(governors, "governor")
        refused = {name: n for name, n in governors.items() if name not in limits.governors.split()}
        measure(
            "governors",
            sum(refused.values()),
            unit="policies",
            at_most=0,
            detail=f"{_counted(refused)}; wanted {limits.governors}: set it (cpupower frequency-set -g)",
        )


def _need(found: dict[str, int], what: str) -> None:
    if not found:
        raise CannotMeasure(
            f"the kernel shows no {what} here, and the spec asks for one", cause=Cause.CONFIG
        )


def _counted(found: dict[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in found.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLimits:
    """Options of the kernel, as on its command line, separated by spaces."""

    refused: str = "mce=off nomce pci=noaer"  # with these it says nothing of broken hardware
    wanted: str = ""


@check(
    "host.kernel.options",
    kinds=(DeviceKind.HOST,),
    remedy=Remedy.RETEST,
    cause=Cause.CONFIG,
    limits=KernelLimits,
    work=Work(call="nodeproof.probes.kernel_command:command", deadline_s=30),
    plant=(altered("refused", options=_PLANTED),),
)
def test_kernel_options(result: Result, measure: Measure, limits: KernelLimits) -> None:
    """A kernel that was told to keep quiet about broken hardware makes a broken node look sound.

    With machine checks or the error reports of PCI Express switched off, faults show up as wrong
    results only. Take the options that are named out of the boot loader's configuration, or put in
    those that the spec wants, and reboot.
    """
    given = result["options"]
    refused = [option for option in limits.refused.split() if _has(given, option)]
    refused += _PLANTED.keys() & given.keys()
    missing = [option for option in limits.wanted.split() if not _has(given, option)]
    measure("refused", len(refused), at_most=0, detail=", ".join(refused))
    if limits.wanted:
        measure("wanted", len(missing), at_most=0, detail=", ".join(missing))


def _has(given: dict[str, str], option: str) -> bool:
    """Whether `pci=noaer` is among what `pci=realloc,noaer` says."""
    name, _, value = option.partition("=")
    return name in given and (not value or value in given[name].split(","))
