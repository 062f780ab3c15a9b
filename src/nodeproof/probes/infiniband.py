"""Ports of RDMA adapters other than EFA: InfiniBand and RoCE, as /sys/class/infiniband shows them.

The words and units are those of the kernel (drivers/infiniband/core/sysfs.c). A port that is not
active shows a rate and a lid all the same; they are placeholders, and not read here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nodeproof.probes import nic, nic_counters, nic_files
from nodeproof.probes.pci import or_none
from nodeproof.probes.tree import Tree
from nodeproof.worker import Context

_STATE = re.compile(r"\d+: *(\S.*)")
_RATE = re.compile(r"(\d+(?:\.\d+)?) Gb/sec")
_GIDS = 16  # looked at; a port has up to 256, and the first ones are those of its own addresses
# What checks ask of a port hangs on its layer. EFA, which has another, is not among these ports.
_LAYERS = frozenset({"InfiniBand", "Ethernet"})
_NO_GID = frozenset({"", "0", ":"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One port. `None` is what its driver did not say.

    `rate_gbs` is the rate in Gb/s as the link trained, and only known of an active port. `carrier`
    is that of the network interface where the link is Ethernet's: there the interface is the port,
    while on InfiniBand it is IP over it, which a node need not use.
    """

    device: str
    address: str | None
    driver: str | None
    virtual: bool
    port: int
    state: str | None  # DOWN, INIT, ARMED, ACTIVE, ACTIVE_DEFER
    physical: str | None  # Polling, Disabled, LinkUp, ...
    rate_gbs: float | None
    link_layer: str | None  # InfiniBand, Ethernet
    interfaces: tuple[str, ...]
    carrier: bool | None
    gid_types: tuple[str, ...]  # of the addresses it has: "IB/RoCE v1", "RoCE v2"
    unread: tuple[str, ...]  # files that say what the port is or does, and could not be read
    errors: dict[str, int]  # over the life of the port, those above zero
    saturated: tuple[str, ...]  # counters that stand at their top, so at least that much


def ports(context: Context) -> dict[str, Any]:
    """Work function: `ports`, a list of `Port`, and what the ports need beside them.

    `unclaimed`: physical Mellanox functions (`address`, `driver`, `present`) that are on the PCI bus
    and have no RDMA device; `lost`: addresses of physical ones whose configuration space reads as all
    ones, whether they still have theirs or not; `unseen`: of physical ones for which that can't be
    told; `no_uverbs`: devices without that file; `no_issm`: InfiniBand ports without theirs, as
    "mlx5_0 port 1". Raises `Unreadable` where /sys can't be read.
    """
    tree = Tree(root=context.host_root)
    devices = [d for d in nic.rdma(tree) if not d.efa]
    functions = [f for f in nic.functions(tree) if not f.efa]
    found = []
    for device in devices:
        context.progress(step=f"reading {device.label} in /sys")
        found += [_port(tree, device, n) for n in _numbers(tree, device)]
    files, issm = nic_files.uverbs(tree), nic_files.management(tree, "issm")
    return {
        "ports": [asdict(port) for port in found],
        "unclaimed": [asdict(f) for f in nic.unclaimed(functions, devices)],
        "lost": [f.address for f in functions if f.present is False and not f.virtual],
        "unseen": [f.address for f in functions if f.present is None and not f.virtual],
        "no_uverbs": [d.label for d in devices if d.name not in files],
        "no_issm": [
            f"{p.device} port {p.port}"
            for p in found
            if p.link_layer == "InfiniBand" and (p.device, p.port) not in issm
        ],
    }


def _numbers(tree: Tree, device: nic.Rdma) -> list[int]:
    return sorted(int(n) for n in tree.names(f"{nic.RDMA}/{device.name}/ports") if n.isdecimal())


def _port(tree: Tree, device: nic.Rdma, number: int) -> Port:
    folder = f"{nic.RDMA}/{device.name}/ports/{number}"
    state = or_none(tree, f"{folder}/state", _word)
    layer = or_none(tree, f"{folder}/link_layer", str)
    rate = or_none(tree, f"{folder}/rate", _rate)
    interfaces = _interfaces(tree, device)
    states = _states(tree, device, interfaces) if layer == "Ethernet" else {}
    counted = nic_counters.of_port(tree, device.name, number)
    return Port(
        device=device.name,
        address=device.address,
        driver=device.driver,
        virtual=device.virtual,
        port=number,
        state=state,
        physical=or_none(tree, f"{folder}/phys_state", _word),
        rate_gbs=rate if state == "ACTIVE" else None,
        link_layer=layer,
        interfaces=interfaces,
        carrier=_carrier(states),
        gid_types=_gids(tree, folder),
        unread=(
            *(() if layer in _LAYERS else ("link_layer",)),
            *(f"operstate of {name}" for name, state in states.items() if state is None),
        ),
        errors={name: counted[name] for name in nic_counters.FAULTS if counted.get(name)},
        saturated=tuple(n for n, v in counted.items() if nic_counters.saturated(n, v)),
    )


def _interfaces(tree: Tree, device: nic.Rdma) -> tuple[str, ...]:
    folder = f"{nic.RDMA}/{device.name}/device"
    if "net" not in nic.names_if_any(tree, folder):
        return ()
    return tuple(nic.names_if_any(tree, f"{folder}/net"))


def _states(tree: Tree, device: nic.Rdma, interfaces: tuple[str, ...]) -> dict[str, str | None]:
    """What the interfaces of a device say of themselves; one that went away meanwhile is left out."""
    folder = f"{nic.RDMA}/{device.name}/device/net"
    said = {name: or_none(tree, f"{folder}/{name}/operstate", str) for name in interfaces}
    return {n: s for n, s in said.items() if s is not None or (tree.root / folder / n).exists()}


def _carrier(states: Mapping[str, str | None]) -> bool | None:
    """Whether any interface of the device is up; those in another network namespace don't show."""
    known = [state for state in states.values() if state not in {None, "unknown"}]
    return any(state == "up" for state in known) if known else None


def _gids(tree: Tree, folder: str) -> tuple[str, ...]:
    types = set()
    for index in range(_GIDS):
        gid = or_none(tree, f"{folder}/gids/{index}", str)
        if gid is not None and set(gid) - _NO_GID:
            types.add(or_none(tree, f"{folder}/gid_attrs/types/{index}", str) or "unknown")
    return tuple(sorted(types))


def _word(text: str) -> str:
    """The word of "4: ACTIVE". Raises `ValueError`."""
    found = _STATE.fullmatch(text)
    if not found:
        raise ValueError(text)
    return found[1]


def _rate(text: str) -> float:
    """Gb/s of "400 Gb/sec (4X NDR)". Raises `ValueError`."""
    found = _RATE.match(text)
    if not found:
        raise ValueError(text)
    return float(found[1])
