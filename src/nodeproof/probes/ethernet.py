"""Network interfaces: who is switched on, and who has a link.

Sources: the kernel's ABI of /sys/class/net. `carrier` and `speed` answer with an error while an
interface is switched off, and `speed` with -1 where it is not known; neither is zero.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from nodeproof.probes import nic
from nodeproof.probes.pci import hexadecimal, or_none
from nodeproof.probes.tree import Tree, Unreadable, whole
from nodeproof.worker import Context

_UP = 1  # IFF_UP, linux/if.h
_ETHERNET = 1  # ARPHRD_ETHER, linux/if_arp.h; IP over InfiniBand is 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """One interface. `None` is what the kernel does not say."""

    name: str
    address: str | None  # of its PCI function, or of what else the kernel calls its device
    physical: bool  # stands for a device, and is no virtual function
    up: bool | None  # switched on by the administrator
    carrier: bool | None  # whether it has a link
    operstate: str | None
    speed_mbs: int | None  # Mb/s
    carrier_losses: int | None  # since the interface was made


def interfaces(context: Context) -> dict[str, Any]:
    """Work function: `interfaces`, a list of `Interface` for Ethernet.

    Raises `Unreadable` where they can't be listed: mount the node's /sys under the host root.
    """
    tree = Tree(root=context.host_root)
    found = []
    for name in nic.interfaces(tree):
        context.progress(step=f"reading the interface {name} in /sys")
        folder = f"{nic.NET}/{name}"
        try:
            kind = tree.value(f"{folder}/type", whole)
        except Unreadable:
            if name not in tree.names(nic.NET):  # it went away meanwhile
                continue
            raise
        if kind == _ETHERNET:
            found.append(_interface(tree, name, folder))
    return {"interfaces": [asdict(each) for each in found]}


def _interface(tree: Tree, name: str, folder: str) -> Interface:
    address = nic.link(tree, f"{folder}/device")
    flags = or_none(tree, f"{folder}/flags", hexadecimal)
    carrier = or_none(tree, f"{folder}/carrier", whole)
    speed = or_none(tree, f"{folder}/speed", int)
    return Interface(
        name=name,
        address=address,
        physical=address is not None and nic.link(tree, f"{folder}/device/physfn") is None,
        up=None if flags is None else bool(flags & _UP),
        carrier=None if carrier is None else bool(carrier),
        operstate=or_none(tree, f"{folder}/operstate", str),
        speed_mbs=speed if speed is not None and speed > 0 else None,
        carrier_losses=or_none(tree, f"{folder}/carrier_down_count", whole),
    )
