"""The buses between processors, GPUs and network adapters, as the kernel shows them.

The driver's own view of a GPU's link stands elsewhere; this one is there without the driver, and
for the ports and adapters that the driver knows nothing of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodeproof.checks import (
    Alter,
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

_MIB = 1 << 20
_PLANTED = "0000:ff:1f.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLimits:
    """The link of a GPU. A spec states what the kind of node gives, also where that is less."""

    width: int | None = None  # lanes; without it, as many as the GPU has
    speed_gts: float | None = None  # GT/s that both ends have to be able to do
    bar1_mib: float | None = None
    hidden: bool = False  # the hypervisor shows no link at all


def _in_device(**changes: Any) -> Alter:
    return lambda result: {
        **result,
        "device": {**result["device"], **changes},
        "bar1_bytes": -_MIB,
    }


@check(
    "gpu.bus.link",
    kinds=(DeviceKind.GPU,),
    remedy=Remedy.REPLACE,
    limits=LinkLimits,
    work=Work(call="nodeproof.probes.pcie:link", deadline_s=30),
    plant=(
        altered("answers", present=False),
        Plant(
            alter=_in_device(width=0, width_max=16, speed_max_gts=-1.0),
            breaks=("width",),
        ),
    ),
)
def test_gpu_link(result: Result, measure: Measure, limits: LinkLimits) -> None:
    """A GPU on too few lanes loads its data at half speed or less, in every job.

    Lanes never drop to save power, so fewer than the card has are a fault wherever they are read:
    of the hardware if the port above could do more, or if the spec says what there has to be. If
    the port has no more, or no port is shown, it may be the platform's design: then the spec has
    to say so. Usual causes: a card or riser that is not seated, a bent or dirty contact, a port
    that lost lanes. Reseat it; a reboot trains the link again and rarely brings lanes back. The
    speed is shown only, since idle links slow down.
    """
    address, device, port = result["address"], result["device"], result["port"]
    measure(
        "answers",
        int(_told(result["present"], address, "whether it answers on the bus")),
        at_least=1,
        remedy=Remedy.REBOOT,
        detail=f"{address} is in the kernel's list, and the bus reads all ones there: read the kernel log for Xid 79, reboot, and replace the GPU if it comes again",
    )
    if not result["present"]:
        return
    if not (limits.hidden and device["width"] is None and not device["unread"]):
        wanted = limits.width or _told(device["width_max"], address, "how wide its link may be")
        measure(
            "width",
            _told(device["width"], address, "the width of its link"),
            unit="lanes",
            at_least=wanted,
            cause=_blame(result, limits),
            detail=f"{address} can have {device['width_max']}, {_of(port)}: reseat the card; if this platform gives no more, say so in the spec",
        )
    speeds = [end["speed_max_gts"] for end in (device, port or device)]
    if limits.speed_gts is not None or None not in speeds:
        measure(
            "speed possible",
            min(_told(speed, address, "how fast its link may be") for speed in speeds),
            unit="GT/s",
            at_least=limits.speed_gts,
            cause=Cause.CONFIG,
            detail=f"{address}, {_of(port)}: look for an older slot, riser or setting of the firmware",
        )
    if device["speed_gts"] is not None:
        measure("speed now", device["speed_gts"], unit="GT/s", detail="idle links slow down")
    if limits.bar1_mib is not None or result["bar1_bytes"] is not None:
        measure(
            "bar1",
            _told(result["bar1_bytes"], address, "the size of its memory window") / _MIB,
            unit="MiB",
            at_least=limits.bar1_mib,
            cause=Cause.CONFIG,
            detail=f"{address}: turn on decoding above 4G and resizable BARs in the firmware",
        )


def _told(value: Any, address: str, what: str) -> Any:
    if value is None:
        raise CannotMeasure(
            f"{address}: the kernel does not show {what}; mount the node's /sys and name its place "
            "with --host-root; for a hypervisor that hides it, the spec has to say so"
        )
    return value


def _of(port: Mapping[str, Any] | None) -> str:
    if port is None:
        return "no port above it is shown"
    return f"the port {port['address']} above it {port['width_max']} lanes and {port['speed_max_gts']} GT/s"


def _blame(result: Result, limits: LinkLimits) -> Cause:
    """Hardware where something says that more lanes were there to be had."""
    if limits.width is not None:
        return Cause.HARDWARE
    port, device = result["port"], result["device"]
    known = port is not None and port["width_max"] is not None and result["virtual"] is False
    if known and device["width"] < min(device["width_max"], port["width_max"]):
        return Cause.HARDWARE
    return Cause.CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class PathLimits:
    """Links from the roots to GPUs, NVSwitches and RDMA adapters."""

    devices: int = 0  # GPUs, NVSwitches and RDMA adapters that have to be on the bus
    by_design: str = ""  # addresses of the lower ends of links that are narrow, or mute, by design
    unplaced: int | None = None  # GPUs and adapters that may be without a NUMA node


@check(
    "node.bus.links",
    kinds=(DeviceKind.NODE,),
    remedy=Remedy.REPLACE,
    limits=PathLimits,
    work=Work(call="nodeproof.probes.pcie:links", deadline_s=30),
    plant=(
        Plant(alter=lambda result: {**result, "movers": None}, breaks=("devices",)),
        Plant(
            alter=lambda result: {
                **result,
                "narrow": [_PLANTED],
                "mute": [_PLANTED],
                "virtual": False,
                "numa_nodes": 2,
                "movers": [
                    *result["movers"],
                    *[{"address": _PLANTED, "kind": "gpu", "numa_node": None}] * 1000,
                ],
            },
            breaks=("narrow links", "links that tell no width"),
        ),
    ),
)
def test_links(result: Result, measure: Measure, limits: PathLimits) -> None:
    """One narrow link above a switch slows down every GPU and adapter under it.

    Looked at is each link on the way from a GPU, an NVSwitch or an RDMA adapter to its root. It is
    narrow if it has fewer lanes than both its ends can use; one with a small slot at one end is
    not. Usual cause: a card, riser or cable that is not seated. In a virtual machine the ports are
    the hypervisor's invention: there a narrow link blames nobody, and the spec has to name it if
    it is by design; one without lanes is taken for such an invention, unless its files can't be
    read. On bare metal every link tells its lanes. Without a NUMA node for a GPU, programs run on
    the wrong processors; clouds often name none, so that is judged only where the spec asks.
    """
    movers = result["movers"]
    measure(
        "devices",
        -1 if movers is None else len(movers),
        at_least=limits.devices,
        cause=Cause.ENVIRONMENT,
        detail="GPUs, NVSwitches and RDMA adapters on the bus: give the node's devices to this run, or correct the spec",
    )
    designed = set(limits.by_design.split())
    narrow = [address for address in result["narrow"] if address not in designed]
    measure(
        "narrow links",
        len(narrow),
        at_most=0,
        cause=Cause.HARDWARE if result["virtual"] is False else Cause.CONFIG,
        detail=f"{', '.join(narrow)}: fewer lanes than both ends can use; reseat what is plugged in there",
    )
    mute = [address for address in result["mute"] if address not in designed]
    measure(
        "links that tell no width",
        len(mute),
        at_most=0,
        cause=Cause.ENVIRONMENT,
        detail=f"{', '.join(mute)}: the kernel shows a link and not its lanes at both ends: see dmesg; if that is so by design, name it in the spec",
    )
    measure("links not told", len(result["untold"]))
    unplaced = [
        m["address"] for m in movers or () if m["numa_node"] is None and m["kind"] != "nvswitch"
    ]
    nodes = result["numa_nodes"]
    if limits.unplaced is not None and nodes is None:
        raise CannotMeasure(
            "the kernel shows no NUMA nodes: mount the node's /sys, and name its place with --host-root"
        )
    measure(
        "without NUMA node",
        len(unplaced) if nodes is None or nodes > 1 else 0,
        at_most=limits.unplaced,
        cause=Cause.CONFIG,
        detail=f"{', '.join(unplaced[:16])} of a machine with {nodes} nodes: update the firmware, or state them in the spec",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLimits:
    """What a spec asks for adapters that reach GPUs' memory themselves. Without it, all is shown."""

    ways: int = 0
    redirecting: int | None = None  # ports that send traffic between devices over the root
    translated: int | None = None  # GPUs, NVSwitches and adapters behind a translating IOMMU


@check(
    "node.gpudirect.ready",
    kinds=(DeviceKind.NODE,),
    remedy=Remedy.RETEST,
    cause=Cause.ENVIRONMENT,
    limits=PeerLimits,
    work=Work(call="nodeproof.probes.peer_memory:ready", deadline_s=30),
    plant=(
        Plant(
            alter=lambda result: {
                **result,
                "ways": None,
                "redirecting": [_PLANTED] * 1000,
                "untold": [],
                "iommu": {"DMA": 1 << 20},
            },
            breaks=("ways",),
        ),
    ),
)
def test_gpudirect(result: Result, measure: Measure, limits: PeerLimits) -> None:
    """Without GPUDirect, data between nodes goes through the host's memory, at a fraction of the speed.

    It takes the module nvidia_peermem, or dma-buf: a kernel since 5.12 with the open modules of
    NVIDIA's driver; EFA's driver says itself whether it reads GPUs. It works and is slow where the
    ports of a switch redirect (ACS) or an IOMMU translates: turn both off on bare metal; virtual
    machines need them. What is asked for stands in the spec; without it all this is shown only.
    """
    ways, why_not = result["ways"], "; ".join(result["why_not"])
    measure(
        "ways",
        -1 if ways is None else len(ways),
        at_least=limits.ways,
        detail=f"{', '.join(ways or ['none'])}; {why_not}",
    )
    if limits.redirecting is not None and result["untold"]:
        raise CannotMeasure(
            f"the registers of {', '.join(result['untold'])} may not be read: run as root, or "
            "leave `redirecting` out of the spec"
        )
    measure(
        "redirecting",
        len(result["redirecting"]),
        unit="ports",
        at_most=limits.redirecting,
        cause=Cause.CONFIG,
        detail=f"{', '.join(result['redirecting'])}: turn ACS off in the firmware, or with setpci",
    )
    if limits.translated is not None and "not shown" in result["iommu"]:
        raise CannotMeasure(
            "the kernel does not show what the IOMMU does with some of the devices: mount the node's "
            "/sys, or leave `translated` out of the spec"
        )
    translated = sum(n for kind, n in result["iommu"].items() if kind.startswith("DMA"))
    measure(
        "translated",
        translated,
        unit="devices",
        at_most=limits.translated,
        cause=Cause.CONFIG,
        detail="boot the kernel with iommu=pt",
    )
