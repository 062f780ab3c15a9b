"""Elastic Fabric Adapters, as the bus, the kernel and libfabric see them.

How many a node has to have stands in its spec. Without one, whatever is there has to be whole.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nodeproof.checks import (
    CannotMeasure,
    Cause,
    DeviceKind,
    Measure,
    Remedy,
    Result,
    Work,
    altered,
    check,
)

_MIB = 1 << 20
_UNLIMITED = (1 << 64) - 1  # RLIM_INFINITY, as the kernel counts it
_PLANTED = {"address": "0000:ff:1f.0", "driver": None, "present": True, "rdma": None}


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words) or "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class EfaLimits:
    """How many EFA devices there have to be, and how long to wait for them after a boot.

    0 asks for none and takes what is there. Waiting ends after two minutes, whatever is asked.
    """

    expected: int = 0
    wait_s: float = 60.0  # s; nothing is waited for where nothing is missing


@check(
    "node.efa.devices",
    kinds=(DeviceKind.NODE,),
    remedy=Remedy.REBOOT,
    limits=EfaLimits,
    work=Work(
        call="nodeproof.probes.efa:devices", from_limits=("expected", "wait_s"), deadline_s=170
    ),
    plant=(
        # A number counts only where one is expected, and the tool only where it answers, so what
        # breaks those comes with what always counts.
        altered(
            "off the bus",
            "not told",
            pci=[{**_PLANTED, "present": told, "rdma": "planted"} for told in (False, None)],
            rdma=[{"name": "planted", "address": _PLANTED["address"]}] * 1000,
            fi_info={"installed": True, "answered": True, "devices": [], "says": "planted"},
        ),
        altered("not on the bus", pci=[], rdma=[{"name": "planted", "address": "0000:ff:1f.0"}]),
        altered("without an RDMA device", pci=[_PLANTED] * 1000),
    ),
)
def test_efa_devices(result: Result, measure: Measure, limits: EfaLimits) -> None:
    """A node with an EFA device too few is slow in every collective, or falls back to TCP.

    Held against each other: how many the spec expects, what the PCI bus shows, which of them the
    driver made an RDMA device of, and which libfabric lists (fi_info -p efa). Usual cause of one
    that is on the bus and has no RDMA device: the efa driver was not loaded or refused it (dmesg);
    load it and test again. How many are attached is said when an instance is launched (its network
    interfaces, EFA or not), so too few on the bus blame no hardware: compare the launch template
    with the spec, and where they agree, stop and start the instance. Hardware is one that the
    kernel lists and that reads all ones on the bus. The state of its port says nothing: an EFA driver always says
    ACTIVE.
    """
    pci, rdma = result["pci"], result["rdma"]
    waited = f"; waited {result['waited_s']:.0f} s" if result["waited_s"] >= 1 else ""
    if limits.expected > 0:
        measure(
            "on the bus",
            len(pci),
            at_least=limits.expected,
            # From inside, one that was lost before the boot looks like one that nobody attached.
            cause=Cause.ENVIRONMENT,
            detail=(
                f"{_listed(f['address'] for f in pci)}{waited}; attached is what the launch template "
                "says: correct that or the spec; where they agree, stop and start the instance"
            ),
        )
        measure(
            "surplus",
            len(pci) - limits.expected,
            at_most=0,
            cause=Cause.CONFIG,
            detail=f"{_listed(f['address'] for f in pci)}: correct the number expected",
        )
    else:
        measure("on the bus", len(pci))
    dead = [f["address"] for f in pci if f["present"] is False]
    measure(
        "off the bus",
        len(dead),
        at_most=0,
        detail=f"{_listed(dead)}: in the kernel's list, and the bus reads all ones there",
    )
    unseen = [f["address"] for f in pci if f["present"] is None]
    measure(
        "not told",
        len(unseen),
        at_most=0,
        cause=Cause.ENVIRONMENT,
        detail=f"{_listed(unseen)}: `config` can't be read, so whether they answer is not known: see dmesg, and mount the node's /sys",
    )
    alone = [f for f in pci if f["rdma"] is None]
    measure(
        "without an RDMA device",
        len(alone),
        at_most=0,
        cause=Cause.ENVIRONMENT,
        detail=f"{_listed(_driven(f) for f in alone)}: load the efa driver (modprobe efa), and see dmesg{waited}",
    )
    addresses = {f["address"] for f in pci}
    strays = [d["name"] for d in rdma if d["address"] not in addresses]
    measure(
        "not on the bus",
        len(strays),
        at_most=0,
        cause=Cause.ENVIRONMENT,
        detail=f"{_listed(strays)}: an RDMA device whose PCI function is not listed: read both views of one /sys",
    )
    _measure_fi_info(result, measure)


def _driven(function: Mapping[str, Any]) -> str:
    return f"{function['address']} (driver {function['driver'] or 'none'})"


def _measure_fi_info(result: Result, measure: Measure) -> None:
    """A device that the kernel has and libfabric leaves out is one that NCCL does not use."""
    said = result["fi_info"]
    if said is None or not said["answered"]:
        return  # whether it has to answer is for node.efa.ready
    missing = [d for d in result["rdma"] if d["name"] not in said["devices"]]
    measure(
        "left out by libfabric",
        len(missing),
        at_most=0,
        cause=Cause.ENVIRONMENT,
        detail=(
            f"{_listed(str(d['address']) + ' ' + d['name'] for d in missing)}; fi_info: {said['says']}; "
            "in a container, ask for all of them (vpc.amazonaws.com/efa)"
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EfaReadyLimits:
    """What EFA needs besides its devices; nothing is asked where there are none."""

    memlock_mib: float = (
        16384.0  # AWS' health check of GPU clusters warns below; unlimited is usual
    )
    huge_free_mib: float = 0.0  # libfabric does without; AWS' manifests ask 5120 of 2 MiB pages
    fi_info: bool = True  # whether libfabric's tool has to answer; false for an image without it


@check(
    "node.efa.ready",
    kinds=(DeviceKind.NODE,),
    remedy=Remedy.RETEST,
    cause=Cause.ENVIRONMENT,
    limits=EfaReadyLimits,
    work=Work(call="nodeproof.probes.efa:ready", deadline_s=60),
    plant=altered(
        "without uverbs",
        "memlock",
        devices=[{"name": "planted", "address": "0000:ff:1f.0", "uverbs": False, "p2p": None}],
        memlock_bytes=-_MIB,
        ipc_lock=False,
        huge_free_bytes=-_MIB,
        fi_info={"installed": False, "answered": False, "devices": [], "says": "planted"},
    ),
)
def test_efa_ready(result: Result, measure: Measure, limits: EfaReadyLimits) -> None:
    """EFA devices that no program can open or register memory with leave NCCL on TCP, in silence.

    Each device has a uverbs file, this process may lock memory, and libfabric lists the provider
    (fi_info -p efa). Usual causes: ib_uverbs is not loaded; the limit of the container runtime's
    service (LimitMEMLOCK=infinity, or the capability IPC_LOCK for the pod); an image without
    libfabric. A node without EFA devices has nothing to be ready for; node.efa.devices says whether
    it should have any.
    """
    devices = result["devices"]
    closed = [f"{d['address']} {d['name']}" for d in devices if not d["uverbs"]]
    measure(
        "without uverbs",
        len(closed),
        at_most=0,
        detail=f"{_listed(closed)}: load ib_uverbs (modprobe ib_uverbs)",
    )
    if not devices:
        return
    locked = result["memlock_bytes"]
    unlimited = locked == -1 or result["ipc_lock"]
    measure(
        "memlock",
        (_UNLIMITED if unlimited else locked) / _MIB,
        unit="MiB",
        at_least=limits.memlock_mib,
        detail="set LimitMEMLOCK=infinity for the container runtime's service, or give the pod IPC_LOCK",
    )
    free = result["huge_free_bytes"]
    if limits.huge_free_mib > 0:
        if free is None:
            raise CannotMeasure(
                "huge pages are asked for and this kernel shows none under /sys/kernel/mm/hugepages"
            )
        measure(
            "huge pages free",
            free / _MIB,
            unit="MiB",
            at_least=limits.huge_free_mib,
            detail="reserve them at boot, or with sysctl vm.nr_hugepages before anything else runs",
        )
    elif free is not None:
        measure("huge pages free", free / _MIB, unit="MiB")
    said = result["fi_info"]
    if limits.fi_info:
        measure(
            "libfabric answers",
            int(said["answered"] and bool(said["devices"])),
            at_least=1,
            detail=f"{said['says']}; install libfabric, or say in the spec that this image has none",
        )
