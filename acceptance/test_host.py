"""The machine around the devices: what loading, launching, communication and logs depend on."""

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

_GIB = 1 << 30
_MIB = 1 << 20
_UNLIMITED = (1 << 64) - 1  # RLIM_INFINITY, as the kernel counts it
_HOST = Work(call="nodeproof.probes.host:host", args={"output": "@output"}, deadline_s=30)


# What is planted is below zero where zero is a limit that a spec may set.


def _of(result: Result, name: str) -> Any:
    value = result[name]
    if value is None:
        raise CannotMeasure(
            f"{name} could not be read on this host: {result['unreadable'][name]}; "
            "in a container, mount the node's /proc and /sys and name them with --host-root"
        )
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreLimits:
    """Processors. A spec states what the kind of node has."""

    online: int = 1
    usable: float = 1.0  # below one whole processor nothing here can be timed


@check(
    "host.cpu.cores",
    kinds=(DeviceKind.HOST,),
    remedy=Remedy.RETEST,
    cause=Cause.ENVIRONMENT,
    limits=CoreLimits,
    work=_HOST,
    plant=(altered("online", cores_online=-1), altered("usable", cores_usable=-1.0)),
)
def test_cores(result: Result, measure: Measure, limits: CoreLimits) -> None:
    """Too few processors starve the GPUs: loading, launching and communication run there.

    `online` is the machine's, `usable` what affinity and the control group's quota leave to this
    process. Usual cause of few usable ones: a CPU limit on the pod. Usual cause of few online ones:
    the wrong instance type, or processors switched off at boot; the kernel log names one that
    failed.
    """
    present = result["cores_present"]
    measure(
        "online",
        _of(result, "cores_online"),
        unit="processors",
        at_least=limits.online,
        detail=f"{present} are built in: switch them on, or correct the spec",
    )
    measure(
        "usable",
        _of(result, "cores_usable"),
        unit="processors",
        at_least=limits.usable,
        detail="raise the CPU limit of the pod or the quota of the control group",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimits:
    """Memory of the host. A spec states what the kind of node has, less what firmware keeps."""

    total_gib: float = 2.0  # the libraries alone take about one


@check(
    "host.memory.size",
    kinds=(DeviceKind.HOST,),
    remedy=Remedy.RETEST,
    cause=Cause.ENVIRONMENT,
    limits=MemoryLimits,
    work=_HOST,
    plant=altered("total", memory_total=-1),
)
def test_memory(result: Result, measure: Measure, limits: MemoryLimits) -> None:
    """A host with less memory than its kind kills jobs that ran well elsewhere.

    `total` is the machine's; `usable` is below it where a control group has a ceiling, and
    `available` what is free at the moment; both are for information. Usual cause: a memory module
    that the firmware took out of service, which its event log names. A reboot does not bring it
    back.
    """
    measure(
        "total",
        _of(result, "memory_total") / _GIB,
        unit="GiB",
        at_least=limits.total_gib,
        detail="look for a module taken out of service in the firmware's event log, or correct the spec",
    )
    measure("usable", _of(result, "memory_usable") / _GIB, unit="GiB")
    measure("available", _of(result, "memory_available") / _GIB, unit="GiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockLimits:
    """Clock sources that are no good, by the kernel's names, separated by spaces.

    All of these are read over a slow bus or only move with the timer's ticks.
    """

    refused: str = "hpet acpi_pm pit jiffies refined-jiffies"


@check(
    "host.clock.source",
    kinds=(DeviceKind.HOST,),
    remedy=Remedy.REBOOT,
    cause=Cause.ENVIRONMENT,
    limits=ClockLimits,
    work=_HOST,
    plant=altered("refused", clock_source="jiffies"),
)
def test_clock_source(result: Result, measure: Measure, limits: ClockLimits) -> None:
    """A slow clock source makes every reading of the time a system call, and all work slower.

    Usual cause: the kernel found the processors' counters (tsc) unsteady at boot or later and fell
    back; the kernel log says "Marking clocksource" or "clocksource watchdog". A reboot brings it
    back if the cause was momentary; if it falls back again, suspect the machine's firmware.
    """
    source = _of(result, "clock_source")
    choices = result["clock_sources"]
    measure(
        "refused",
        int(source in limits.refused.split()),
        at_most=0,
        detail=f"the clock source is {source}; to choose from: {', '.join(choices or ['not readable'])}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """How far the clock may be off, by the kernel's own bound.

    The bound grows by 500 ppm while nobody corrects the clock, 1.02 s over the longest pause of
    systemd-timesyncd (2048 s), and stops at 16 s, which means unknown: a limit of 16 therefore
    asks for no synchronisation.
    """

    max_error_s: float = 2.0


@check(
    "host.time.sync",
    kinds=(DeviceKind.HOST,),
    remedy=Remedy.RETEST,
    cause=Cause.ENVIRONMENT,
    limits=TimeLimits,
    work=_HOST,
    plant=Plant(alter=lambda result: {**result, "time": _far_off(result)}, breaks=("max_error",)),
)
def test_time_sync(result: Result, measure: Measure, limits: TimeLimits) -> None:
    """With a wrong clock, certificates are refused and the logs of two nodes can't be compared.

    Judged by the bound on the clock's error that the kernel keeps (adjtimex). Usual cause: no
    chronyd, ntpd or systemd-timesyncd, or none that reaches its servers. Start it, wait until it
    has synchronised, and test again. In a container the clock is the host's, and so is the remedy.
    """
    state = _of(result, "time")
    daemons = ", ".join(state["daemons"]) or "none that can be seen from here"
    measure(
        "max_error",
        state["max_error_s"],
        unit="s",
        at_most=limits.max_error_s,
        detail=(
            f"the kernel calls the clock {_SYNC[state['unsynchronised']]}; "
            f"running: {daemons}; start chronyd on the host and see that it reaches its servers"
        ),
    )
    measure("offset", state["offset_s"], unit="s")


_SYNC = {True: "unsynchronised", False: "synchronised"}


def _far_off(result: Result) -> dict[str, Any] | None:
    state: dict[str, Any] | None = result["time"]
    return state and {**state, "unsynchronised": True, "max_error_s": 1e9}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemlockLimits:
    """Memory that a process may lock. A node with RDMA (EFA, InfiniBand) wants it unlimited."""

    mib: float = 8.0  # the kernel's default since 5.16


@check(
    "host.limits.memlock",
    kinds=(DeviceKind.HOST,),
    remedy=Remedy.RETEST,
    cause=Cause.ENVIRONMENT,
    limits=MemlockLimits,
    work=_HOST,
    plant=altered("memlock", memlock_bytes=-_MIB),
)
def test_memlock(result: Result, measure: Measure, limits: MemlockLimits) -> None:
    """A process that may not lock memory cannot register it with a network adapter.

    NCCL then fails when it starts, or falls back to TCP without saying so. Usual cause: the limit
    of the container runtime's service. Set LimitMEMLOCK=infinity there (ulimit -l unlimited), and
    restart it; the setting of a login shell does not reach pods.
    """
    locked = _of(result, "memlock_bytes")
    limited = _UNLIMITED if locked == -1 else locked
    measure(
        "memlock",
        limited / _MIB,
        unit="MiB",
        at_least=limits.mib,
        detail="set LimitMEMLOCK=infinity for the container runtime's service",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShmLimits:
    """Free shared memory. A spec for several GPUs asks for 1024 or more, as NCCL's guide does."""

    free_mib: float = 48.0  # a container has 64 unless told otherwise


@check(
    "host.shm.size",
    kinds=(DeviceKind.HOST,),
    remedy=Remedy.RETEST,
    cause=Cause.ENVIRONMENT,
    limits=ShmLimits,
    work=_HOST,
    plant=altered("free", shm={"path": "/dev/shm", "size": 0, "free": -1}),  # noqa: S108  a plant's text
)
def test_shm(result: Result, measure: Measure, limits: ShmLimits) -> None:
    """With little shared memory, NCCL does not start and data loaders die with a bus error.

    It is what this process sees at /dev/shm. Usual cause: a container's 64 MiB. Mount an emptyDir
    of medium Memory there, or start the container with a larger --shm-size.
    """
    shm = _of(result, "shm")
    measure(
        "free",
        shm["free"] / _MIB,
        unit="MiB",
        at_least=limits.free_mib,
        detail=f"{shm['path']} has {shm['size'] / _MIB:.0f} MiB in all: mount a larger one, or remove what is left there",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLimits:
    """Free disk, for one who is not root."""

    output_gib: float = 0.5  # the results of a long run with its telemetry stay well below
    root_gib: float = 1.0


@check(
    "host.disk.free",
    kinds=(DeviceKind.HOST,),
    remedy=Remedy.RETEST,
    cause=Cause.ENVIRONMENT,
    limits=DiskLimits,
    work=_HOST,
    plant=(
        altered("output", disk_output={"path": "", "size": 0, "free": -1}),
        altered("root", disk_root={"path": "", "size": 0, "free": -1}),
    ),
)
def test_disk(result: Result, measure: Measure, limits: DiskLimits) -> None:
    """A full disk evicts the pods of a node, and loses what a run has found.

    Measured where the results are written, and at the root of the host. Usual cause: old images and
    logs. Remove them, or give --output another place.
    """
    for name, floor in (("output", limits.output_gib), ("root", limits.root_gib)):
        disk = _of(result, f"disk_{name}")
        measure(
            name,
            disk["free"] / _GIB,
            unit="GiB",
            at_least=floor,
            detail=f"{disk['path']} has {disk['size'] / _GIB:.0f} GiB in all: free some",
        )
