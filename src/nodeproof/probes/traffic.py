"""What every network device of a node has sent, received and got wrong so far.

Two readings around a run tell what carried it. Byte counters count from when the device was made,
for all that use the node, so only differences mean anything. Sources: the kernel's ABI of
/sys/class/net/*/statistics and /sys/class/infiniband/*/ports/*/counters, where port_xmit_data and
port_rcv_data count words of four bytes (drivers/infiniband/core/sysfs.c), and efa_verbs.c of
amzn-drivers (r3.1.0), which counts bytes.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from nodeproof.probes import nic
from nodeproof.probes.nic_counters import EFA_FAULTS, FAULTS, saturated
from nodeproof.probes.pci import or_none
from nodeproof.probes.tree import Tree, Unreadable, whole
from nodeproof.worker import Context

_WORD = 4  # bytes
# Adapters without the extended counters stop here and stay (IBTA, PortCounters).
_LAST_WORD = (1 << 32) - 1
_ETHERNET, _LOOPBACK = 1, 772  # linux/if_arp.h
_SHOWN = (
    *("rdma_read_bytes", "rdma_write_bytes", "rdma_read_resp_bytes", "rdma_write_recv_bytes"),
    *("send_bytes", "recv_bytes", "retrans_bytes", "retrans_pkts", "retrans_timeout_events"),
    *("rx_drops", "port_xmit_discards", "port_rcv_errors", "port_xmit_wait"),
    *("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err"),
)
_LOST = ("tx_errors", "rx_errors", "tx_dropped", "rx_dropped")


class Kind(StrEnum):
    """What a device carries bytes by."""

    EFA = "efa"
    INFINIBAND = "infiniband"
    ROCE = "roce"
    ETHERNET = "ethernet"
    LOOPBACK = "loopback"
    UNKNOWN = "unknown"  # an RDMA port whose driver does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One port or interface. A counter that is not there is `None`, or missing: never zero."""

    where: str  # for people: "mlx5_0 port 1 (0000:3b:00.0)", "eth0 (0000:00:05.0)"
    name: str
    kind: Kind
    address: str | None  # of its PCI function
    physical: bool  # stands for a device of its own, and is no bridge, tunnel or end of a pair
    tx_bytes: int | None
    rx_bytes: int | None
    faults: dict[str, int]  # a sound link adds none, whatever the load
    shown: dict[str, int]  # retransmits, drops and bytes by operation: not faults by themselves
    at_top: tuple[str, ...]  # of faults and bytes those at the top of their width: nothing is known


def read(context: Context) -> dict[str, Any]:
    """Work function: `devices`, a list of `Device`, and `own`: is this what the process uses?

    `own` is true where /sys shows the very interfaces of this process's network namespace, false
    where it was mounted for another, and `None` where it gives them no numbers to compare.
    Raises `Unreadable` where /sys can't be read.
    """
    tree = Tree(root=context.host_root)
    found = []
    for device in nic.rdma(tree):
        context.progress(step=f"reading the counters of {device.label}")
        found += [_port(tree, device, number) for number in _ports(tree, device)]
    names = nic.interfaces(tree)
    for name in names:
        context.progress(step=f"reading the counters of {name}")
        if (interface := _interface(tree, name)) is not None:
            found.append(interface)
    return {"devices": [asdict(device) for device in found], "own": _own(tree, names)}


def _ports(tree: Tree, device: nic.Rdma) -> list[int]:
    return sorted(int(n) for n in tree.names(f"{nic.RDMA}/{device.name}/ports") if n.isdecimal())


def _port(tree: Tree, device: nic.Rdma, number: int) -> Device:
    folder = f"{nic.RDMA}/{device.name}/ports/{number}"
    own = {
        **_numbers(tree, f"{nic.RDMA}/{device.name}/hw_counters"),
        **_numbers(tree, f"{folder}/counters"),
        **_numbers(tree, f"{folder}/hw_counters"),
    }
    faults = EFA_FAULTS if device.efa else FAULTS
    tx, rx = (own.get(f"{way}_bytes") for way in ("tx", "rx"))
    full = [name for name in faults if saturated(name, own.get(name, 0))]
    if not device.efa:
        words = {way: own.get(f"port_{way}_data") for way in ("xmit", "rcv")}
        full += [f"port_{way}_data" for way, count in words.items() if count == _LAST_WORD]
        tx, rx = (None if count is None else count * _WORD for count in words.values())
    place = f" ({device.address})" if device.address else ""
    return Device(
        where=f"{device.name} port {number}{place}",
        name=device.name,
        kind=_kind(tree, device, folder),
        address=device.address,
        physical=device.address is not None and not device.virtual,
        tx_bytes=tx,
        rx_bytes=rx,
        faults=_of(own, faults),
        shown=_of(own, _SHOWN),
        at_top=tuple(sorted(full)),
    )


def _kind(tree: Tree, device: nic.Rdma, folder: str) -> Kind:
    if device.efa:
        return Kind.EFA
    layer = or_none(tree, f"{folder}/link_layer", str)
    return {"InfiniBand": Kind.INFINIBAND, "Ethernet": Kind.ROCE}.get(layer, Kind.UNKNOWN)


def _interface(tree: Tree, name: str) -> Device | None:
    """One interface; `None` for what carries no Ethernet, and for one that went away meanwhile."""
    folder = f"{nic.NET}/{name}"
    try:
        number = tree.value(f"{folder}/type", whole)
    except Unreadable:
        if name not in tree.names(nic.NET):
            return None
        raise
    kind = {_ETHERNET: Kind.ETHERNET, _LOOPBACK: Kind.LOOPBACK}.get(number)
    if kind is None:
        return None  # IP over InfiniBand counts at its port, tunnels at what they go over
    address = nic.link(tree, f"{folder}/device")
    counted = _numbers(tree, f"{folder}/statistics")
    return Device(
        where=f"{name} ({address})" if address else name,
        name=name,
        kind=kind,
        address=address,
        physical=address is not None,
        tx_bytes=counted.get("tx_bytes"),
        rx_bytes=counted.get("rx_bytes"),
        faults={},
        shown=_of(counted, _LOST),
        at_top=(),
    )


def _numbers(tree: Tree, folder: str) -> dict[str, int]:
    """Every file of a folder that holds a whole number; none where the folder is not there."""
    known = {name: or_none(tree, f"{folder}/{name}", whole) for name in _files(tree, folder)}
    return {name: value for name, value in known.items() if value is not None}


def _files(tree: Tree, folder: str) -> Iterable[str]:
    wanted = {*FAULTS, *EFA_FAULTS, *_SHOWN, *_LOST}
    wanted |= {"tx_bytes", "rx_bytes", "port_xmit_data", "port_rcv_data"}
    return wanted.intersection(nic.names_if_any(tree, folder))


def _of(counted: Mapping[str, int], names: Iterable[str]) -> dict[str, int]:
    return {name: counted[name] for name in names if name in counted}


def _own(tree: Tree, names: list[str]) -> bool | None:
    numbers = {name: or_none(tree, f"{nic.NET}/{name}/ifindex", whole) for name in names}
    if None in numbers.values():
        return None
    return {(number, name) for name, number in numbers.items()} == set(socket.if_nameindex())
