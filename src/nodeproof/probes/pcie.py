"""The PCI Express links between processors and what moves data: GPUs, NVSwitches, RDMA adapters.

A link has two ends, and each says in sysfs how wide and fast it is and could be. Ports stand in
pairs on the way from a device to its root: device and port are one link, then comes the inside of
a switch, then the next link. Files: Linux ABI, sysfs-bus-pci.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nodeproof.probes import pci
from nodeproof.probes.tree import Tree, Unreadable
from nodeproof.worker import Context

_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NVSWITCH_CLASS = 0x0680  # "other bridge"
_INFINIBAND_CLASS = 0x0207
_AMAZON = 0x1D0F
_EFA = frozenset({0xEFA0, 0xEFA1, 0xEFA2, 0xEFA3})  # amzn-drivers, efa_main.c
# Lines of `resource`. The window into a GPU's memory, NVIDIA's BAR1, is the first up to Ampere and
# the second since Hopper, whose registers take two lines before it; the other one is empty.
_BAR1 = slice(1, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One end of a link. `None` is what the kernel doesn't show, or what no link has."""

    address: str
    width: int | None  # lanes now; saving power changes the speed, never these
    width_max: int | None
    speed_gts: float | None  # GT/s now; an idle link trains down
    speed_max_gts: float | None
    shown: bool  # the kernel has a file for its lanes, as for every PCI Express device
    unread: bool  # such a file can't be read, or one of the two is not there


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link by its lower end; `port` is the upper one, `None` where the machine shows no port."""

    device: End
    port: End | None

    @property
    def narrow(self) -> bool | None:
        """Whether it has fewer lanes than both ends can use; `None` where that can't be told."""
        if self.port is None or self.device.width is None:
            return None
        if self.device.width_max is None or self.port.width_max is None:
            return None
        return self.device.width < min(self.device.width_max, self.port.width_max)

    def mute(self, *, virtual: bool | None) -> bool:
        """Whether its lanes should be told and are not.

        A link without a port is not to be compared. Virtual machines show a link and no lanes for
        sound devices: a virtual function's register of them is reserved (PCI-SIG, SR-IOV), and
        ports are the hypervisor's invention. Only files that can't be read are a fault there.
        """
        if self.port is None or self.narrow is not None:
            return False
        ends = (self.device, self.port)
        real = virtual is False and any(end.shown for end in ends)
        return real or any(end.unread for end in ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mover:
    """A device that moves data between GPUs, or between nodes."""

    address: str
    kind: str  # "gpu", "nvswitch" or "rdma"
    present: bool | None  # see `pci.Controller`
    numa_node: int | None
    links: tuple[Link, ...]  # from the device up to the root


def link(context: Context) -> dict[str, Any]:
    """Work function: the link of one GPU, as the bus shows it.

    Returns `address`, `present`, `numa_node`, `device` and `port` (each an `End`, `port` may be
    `None`), `bar1_bytes` (`None`: not shown) and `virtual` (see `is_virtual`). Raises `Unreadable`
    where the GPU has no address or isn't on the bus.
    """
    tree = Tree(root=context.host_root)
    given = context.facts.get("pci")
    if not given:
        raise Unreadable(f"{context.device_id}: the driver gave no PCI address for it")
    address = pci.normalised(str(given))
    folder = f"{pci.DEVICES}/{address}"
    if address not in tree.names(pci.DEVICES):
        raise Unreadable(
            f"{context.device_id}: the bus has no {address}; "
            "mount the node's /sys and name its place with --host-root"
        )
    tell(context)(address)
    own = _links(tree, address)[0]
    return {
        "address": address,
        "present": pci.answers(tree, folder),
        "numa_node": pci.or_none(tree, f"{folder}/numa_node", pci.numa),
        "device": asdict(own.device),
        "port": own.port and asdict(own.port),
        "bar1_bytes": pci.or_none(tree, f"{folder}/resource", _bar1),
        "virtual": is_virtual(tree),
    }


def links(context: Context) -> dict[str, Any]:
    """Work function: every mover of data on the bus and the links above it.

    Returns `movers` (each a `Mover`), `narrow` (addresses of the lower ends of links with fewer
    lanes than both ends can use), `untold` (those whose lanes can't be compared), `mute` (those of
    them whose lanes should be told), `numa_nodes` (how many the machine has, `None`: not shown) and
    `virtual`. Raises `Unreadable` without a bus.
    """
    tree = Tree(root=context.host_root)
    found = movers(tree, tell(context))
    virtual = is_virtual(tree)
    each = {way.device.address: way for mover in found for way in mover.links}
    return {
        "movers": [asdict(mover) for mover in found],
        "narrow": sorted(a for a, way in each.items() if way.narrow),
        "untold": sorted(a for a, way in each.items() if way.narrow is None),
        "mute": sorted(a for a, way in each.items() if way.mute(virtual=virtual)),
        "numa_nodes": numa_nodes(tree),
        "virtual": virtual,
    }


def movers(tree: Tree, at: Callable[[str], None] = lambda _: None) -> list[Mover]:
    """GPUs, NVSwitches and RDMA adapters by address. Raises `Unreadable` without a bus.

    `at` is told each address before its registers are read, where a dead device may hang. A virtual function is left out: its link is its parent's, and its registers say nothing.
    """
    found = []
    for address, kind in _kinds(tree):
        at(address)
        folder = f"{pci.DEVICES}/{address}"
        found.append(
            Mover(
                address=address,
                kind=kind,
                present=pci.answers(tree, folder),
                numa_node=pci.or_none(tree, f"{folder}/numa_node", pci.numa),
                links=tuple(_links(tree, address)),
            )
        )
    return found


def switches(tree: Tree) -> list[str]:
    """Addresses of the NVSwitches on the bus, whose registers are left alone. Raises `Unreadable`."""
    return [address for address, kind in _kinds(tree) if kind == "nvswitch"]


def tell(context: Context) -> Callable[[str], None]:
    """Say which device is read next: the last that is heard from a worker that hangs."""
    return lambda address: context.progress(step=f"reading {address} on the PCI bus")


def above(tree: Tree, address: str) -> list[str]:
    """The ports between a device and its root, nearest first, from where the kernel puts it."""
    try:
        target = str((tree.root / pci.DEVICES / address).readlink())
    except OSError:  # no link: a flat listing, which shows no ports
        return []
    steps = [part for part in Path(target).parts if _ADDRESS.fullmatch(part)]
    return steps[-2::-1]


def is_virtual(tree: Tree) -> bool | None:
    """Whether this is a virtual machine, whose ports are the hypervisor's invention.

    `None` where the processor has no such flag to tell (arm64). Raises `Unreadable`.
    """
    for line in tree.text("proc/cpuinfo", keep=False).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "flags":
            return "hypervisor" in value.split()
    return None


def virtual_if_told(tree: Tree) -> bool | None:
    """As `is_virtual`, and `None` also where the processors can't be read."""
    try:
        return is_virtual(tree)
    except Unreadable:
        return None


def numa_nodes(tree: Tree) -> int | None:
    """How many NUMA nodes have memory or processors, `None` where the kernel doesn't say."""
    try:
        names = tree.names("sys/devices/system/node")
    except Unreadable:
        return None
    return sum(re.fullmatch(r"node\d+", name) is not None for name in names)


def _kinds(tree: Tree) -> Iterator[tuple[str, str]]:
    for address, vendor, group in pci.identities(tree):
        folder = f"{pci.DEVICES}/{address}"
        if (tree.root / folder / "physfn").is_symlink():
            continue
        if vendor == pci.NVIDIA and group in pci.GPU_CLASSES:
            yield address, "gpu"
        elif vendor == pci.NVIDIA and group == _NVSWITCH_CLASS:
            yield address, "nvswitch"
        elif (
            group == _INFINIBAND_CLASS or _is_efa(tree, folder, vendor) or _has_verbs(tree, folder)
        ):
            yield address, "rdma"


def _is_efa(tree: Tree, folder: str, vendor: int) -> bool:
    return vendor == _AMAZON and tree.value(f"{folder}/device", pci.hexadecimal) in _EFA


def _has_verbs(tree: Tree, folder: str) -> bool:
    return (tree.root / folder / "infiniband").is_dir()


def _links(tree: Tree, address: str) -> list[Link]:
    way = [address, *above(tree, address)]
    ends = [_end(tree, step) for step in way]
    if len(ends) == 1:
        return [Link(device=ends[0], port=None)]
    return [Link(device=low, port=high) for low, high in zip(ends[::2], ends[1::2], strict=False)]


def _end(tree: Tree, address: str) -> End:
    folder = f"{pci.DEVICES}/{address}"
    # The kernel makes both files or, for what is not PCI Express, neither (pci-sysfs.c).
    files = [f"{folder}/{name}" for name in ("current_link_width", "max_link_width")]
    there = [(tree.root / file).exists() for file in files]
    said = [pci.or_none(tree, file, pci.number_of_lanes) for file in files]
    return End(
        address=address,
        width=pci.or_none(tree, f"{folder}/current_link_width", pci.lanes),
        width_max=pci.or_none(tree, f"{folder}/max_link_width", pci.lanes),
        speed_gts=pci.or_none(tree, f"{folder}/current_link_speed", pci.gigatransfers),
        speed_max_gts=pci.or_none(tree, f"{folder}/max_link_speed", pci.gigatransfers),
        shown=any(there),
        unread=any(there) and None in said,
    )


def _bar1(text: str) -> int:
    """Size in bytes from lines of "start end flags", all zero where none is assigned."""
    regions = [[int(word, 16) for word in line.split()] for line in text.splitlines()[_BAR1]]
    return max(end - start + 1 if end > start else 0 for start, end, _ in regions)
