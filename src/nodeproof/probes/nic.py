"""Network adapters as the PCI bus shows them, and the RDMA devices that their drivers made of them.

An adapter that is on the bus and has no RDMA device is one whose driver was not loaded or gave up.
Sources: the kernel's ABI of /sys/bus/pci and /sys/class/infiniband; the PCI ids of the efa driver
(amzn-drivers, efa_main.c, r3.1.0).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nodeproof.probes.pci import DEVICES, answers, hexadecimal, identities, or_none
from nodeproof.probes.tree import Tree, Unreadable

AMAZON, MELLANOX = 0x1D0F, 0x15B3
_EFA = range(0xEFA0, 0xEFB0)  # 0xefa0 to 0xefa3 are known; the series goes on
_NETWORK = frozenset({0x0200, 0x0207})  # Ethernet and InfiniBand controller
RDMA = "sys/class/infiniband"
NET = "sys/class/net"
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One network function on the PCI bus. `None` is what the kernel does not show."""

    address: str  # dddd:bb:dd.f
    vendor: int
    device: int
    driver: str | None
    present: bool | None  # false: its configuration space reads as all ones
    virtual: bool  # a virtual function beside its physical one

    @property
    def efa(self) -> bool:
        """Whether it is an Elastic Fabric Adapter."""
        return self.vendor == AMAZON and self.device in _EFA


@dataclass(frozen=True, slots=True, kw_only=True)
class Rdma:
    """One RDMA device of the kernel's, by the name that libraries know it by."""

    name: str
    address: str | None  # of its PCI function; `None` for one that is made of software
    vendor: int | None
    driver: str | None
    virtual: bool

    @property
    def efa(self) -> bool:
        """Whether it belongs to the efa driver."""
        return self.driver == "efa" or self.vendor == AMAZON

    @property
    def label(self) -> str:
        """Name and address, for people."""
        return f"{self.name} ({self.address})" if self.address else self.name


def functions(tree: Tree) -> list[Function]:
    """EFA and Mellanox network functions by address. Raises `Unreadable`, as `identities` does."""
    found = []
    for address, vendor, kind in identities(tree):
        folder = f"{DEVICES}/{address}"
        if vendor not in {AMAZON, MELLANOX}:
            continue
        device = tree.value(f"{folder}/device", hexadecimal)
        if (vendor == MELLANOX and kind in _NETWORK) or (vendor == AMAZON and device in _EFA):
            found.append(
                Function(
                    address=address.lower(),
                    vendor=vendor,
                    device=device,
                    driver=link(tree, f"{folder}/driver"),
                    present=answers(tree, folder),
                    virtual=link(tree, f"{folder}/physfn") is not None,
                )
            )
    return found


def rdma(tree: Tree) -> list[Rdma]:
    """RDMA devices by name; none where the kernel has no RDMA. Raises `Unreadable` without /sys."""
    # Without a driver that needs it the class is not there, which is no refusal.
    if "infiniband" not in tree.names("sys/class"):
        return []
    return [_device(tree, name) for name in tree.names(RDMA)]


def unclaimed(functions: list[Function], devices: list[Rdma]) -> list[Function]:
    """Physical functions that no RDMA device stands for.

    A bond is one RDMA device for all functions of its card.
    """
    taken = {d.address for d in devices}
    cards = {d.address.rpartition(".")[0] for d in devices if d.address and "bond" in d.name}
    return [
        f
        for f in functions
        if not f.virtual and f.address not in taken and f.address.rpartition(".")[0] not in cards
    ]


def interfaces(tree: Tree) -> list[str]:
    """Names of the network interfaces. Raises `Unreadable` where they are not shown.

    Every network namespace has its loopback, so a folder without one is no view of a kernel's.
    """
    names = tree.names(NET)
    if "lo" not in names:
        raise Unreadable(f"{tree.root / NET} has no loopback: mount the node's /sys there")
    return names


def names_if_any(tree: Tree, path: str) -> list[str]:
    """Names in a directory, none where it is not there. Raises `Unreadable` for one that is."""
    try:
        return tree.names(path)
    except Unreadable:
        if (tree.root / path).is_dir():
            raise
        return []


def link(tree: Tree, path: str) -> str | None:
    """Last part of what a symbolic link points to, `None` without one."""
    try:
        return (tree.root / path).readlink().name
    except OSError:
        return None


def _device(tree: Tree, name: str) -> Rdma:
    folder = f"{RDMA}/{name}/device"
    target = (link(tree, folder) or "").lower()
    return Rdma(
        name=name,
        address=target if _ADDRESS.fullmatch(target) else None,
        vendor=or_none(tree, f"{folder}/vendor", hexadecimal),
        driver=link(tree, f"{folder}/driver"),
        virtual=link(tree, f"{folder}/physfn") is not None,
    )
