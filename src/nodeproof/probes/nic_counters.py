"""What network adapters count of their errors, and what a run adds to it.

`ports/N/counters` are those of the InfiniBand architecture, of 4 to 32 bits, which stop at their top
(drivers/infiniband/core/sysfs.c gives the widths); a difference of a counter at its top proves
nothing. `hw_counters` are the driver's own, of 64 bits. A file that is not there is a counter that
this driver or card has not, which is not zero; one that is there and can't be read is kept by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from nodeproof.probes import nic
from nodeproof.probes.tree import Tree, Unreadable, whole
from nodeproof.worker import Context

_BITS = {
    **dict.fromkeys(("local_link_integrity_errors", "excessive_buffer_overrun_errors"), 4),
    **dict.fromkeys(("link_downed", "link_error_recovery"), 8),
    **dict.fromkeys(("port_xmit_constraint_errors", "port_rcv_constraint_errors"), 8),
    **dict.fromkeys(("symbol_error", "port_rcv_errors", "port_xmit_discards"), 16),
    **dict.fromkeys(("port_rcv_remote_physical_errors", "port_rcv_switch_relay_errors"), 16),
    "VL15_dropped": 16,
}
# A sound link adds none of these, whatever the load.
FAULTS = (
    *("symbol_error", "link_error_recovery", "link_downed"),
    *("local_link_integrity_errors", "excessive_buffer_overrun_errors"),
)
# Work that failed and commands that were not answered (efa_verbs.c of amzn-drivers, r3.1.0).
EFA_FAULTS = (
    *("rdma_read_wr_err", "rdma_write_wr_err", "unresponsive_remote_events"),
    *("impaired_remote_conn_events", "cmds_err", "no_completion_cmds"),
)
# Congestion and its repair: shown, since sound fabrics have some.
_SHOWN = (
    *("port_rcv_errors", "port_xmit_discards", "out_of_sequence", "packet_seq_err"),
    *("local_ack_timeout_err", "rnr_nak_retry_err", "implied_nak_seq_err"),
    *("rx_drops", "retrans_pkts", "retrans_timeout_events"),
)
_CARRIER = "carrier_down_count"  # of a network interface
_BUILT_IN = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:|virtio")  # on the PCI bus
_KNOWN = frozenset({*_BITS, *FAULTS, *EFA_FAULTS, *_SHOWN})

Counters = dict[str, dict[str, int]]  # by "mlx5_0 port 1 (0000:3b:00.0)", then by counter
Told = tuple[dict[str, int], list[str]]  # counters by name, and names of those that can't be read


def read(context: Context) -> dict[str, Any]:
    """Work function: `counters` of every RDMA port, EFA device and physical interface, now.

    `unreadable`: where a counter is there and can't be read, its names by where. Raises
    `Unreadable` where /sys can't be read.
    """
    counters, unreadable = _all(Tree(root=context.host_root), context)
    return {"counters": counters, "unreadable": unreadable}


def growth(context: Context, *, before: Mapping[str, Any]) -> dict[str, Any]:
    """Work function: what the counters grew by since `before`, which `read` gave at the start.

    `compared` (how many were read both times), `grown` (`where`, `counter`, `by`, `now`), `at_top`
    (counters that stood at their top already: nothing is known of them), `unreadable` (counters
    that were there at the start and could not be read then), `went_back` (a driver or
    a device was reset meanwhile), `gone` (what is no longer there), `unread` (counters that could be
    read at the start only), `ports` (of RDMA devices, as `where` names them), `mute` (those of which
    no counter could be compared, or only such as stood at their top). Raises `Unreadable` where
    /sys can't be read.
    """
    now, _ = _all(Tree(root=context.host_root), context)
    unreadable = [f"{w}/{n}" for w, names in before["unreadable"].items() for n in names]
    return {**compared(before["counters"], now), "unreadable": sorted(unreadable)}


def compared(before: Counters, now: Counters) -> dict[str, Any]:
    """See `growth`."""
    grown, at_top, back, unread, count = [], [], [], [], 0
    watched = set()
    for where in before.keys() & now.keys():
        unread += [f"{where}/{name}" for name in before[where].keys() - now[where].keys()]
        for name in before[where].keys() & now[where].keys():
            old, new = before[where][name], now[where][name]
            count += 1
            if saturated(name, old):
                at_top.append(f"{where}/{name}")
                continue
            watched.add(where)
            if new < old:
                back.append(f"{where}/{name}")
            elif new > old:
                grown.append({"where": where, "counter": name, "by": new - old, "now": new})
    ports = [where for where in now if " port " in where]
    return {
        "compared": count,
        "grown": sorted(grown, key=lambda g: (g["where"], g["counter"])),
        "at_top": sorted(at_top),
        "went_back": sorted(back),
        "gone": sorted(before.keys() - now.keys()),
        "unread": sorted(unread),
        "ports": sorted(ports),
        "mute": sorted(port for port in ports if port not in watched),
    }


def saturated(name: str, value: int) -> bool:
    """Whether a counter stands at the top of its width, and so means "at least"."""
    bits = _BITS.get(name)
    return bits is not None and value >= (1 << bits) - 1


def of_port(tree: Tree, device: str, port: int) -> dict[str, int]:
    """The known counters of one port that its driver has and that can be read, by name."""
    return _port(tree, device, port)[0]


def _all(tree: Tree, context: Context) -> tuple[Counters, dict[str, list[str]]]:
    """Counters by where, and the names of those that are there and can't be read."""
    told: dict[str, Told] = {}
    for device in nic.rdma(tree):
        context.progress(step=f"reading the counters of {device.label}")
        told[device.label] = _folder(tree, f"{nic.RDMA}/{device.name}/hw_counters")
        for port in tree.names(f"{nic.RDMA}/{device.name}/ports"):
            where = f"{device.name} port {port} ({device.address})"
            told[where] = _port(tree, device.name, int(port))
    for name in nic.interfaces(tree):
        folder = f"sys/class/net/{name}"
        # A virtual interface comes and goes with its container, one of the board's controller on
        # USB when it likes.
        if _BUILT_IN.match(nic.link(tree, f"{folder}/device") or ""):
            lost = _files(tree, folder, [_CARRIER] if _there(tree, f"{folder}/{_CARRIER}") else [])
            if any(lost):
                told[name] = lost
    counters = {where: values for where, (values, _) in told.items()}
    return counters, {where: names for where, (_, names) in told.items() if names}


def _port(tree: Tree, device: str, port: int) -> Told:
    folder = f"{nic.RDMA}/{device}/ports/{port}"
    standard, unread = _standard(tree, folder)
    own, own_unread = _folder(tree, f"{folder}/hw_counters")
    return {**standard, **own}, [*unread, *own_unread]


def _standard(tree: Tree, folder: str) -> Told:
    """The counters of InfiniBand's, which the kernel shows all or none of."""
    values, unread = _folder(tree, f"{folder}/counters")
    if values:
        return values, sorted({*unread, *FAULTS} - values.keys())
    # A driver without them has no such files, or an older kernel that answers "N/A (no PMA)" there
    # (drivers/infiniband/core/sysfs.c before and since 5.1). InfiniBand itself asks them of a port.
    layer = _layer(tree, folder)
    if layer == "InfiniBand":
        return {}, sorted({*unread, *FAULTS})
    return {}, [] if layer else unread


def _layer(tree: Tree, folder: str) -> str:
    """The link layer of a port, "" where it can't be read."""
    try:
        return tree.text(f"{folder}/link_layer")
    except Unreadable:
        return ""


def _folder(tree: Tree, folder: str) -> Told:
    return _files(tree, folder, _KNOWN.intersection(nic.names_if_any(tree, folder)))


def _files(tree: Tree, folder: str, names: Iterable[str]) -> Told:
    values, unread = {}, []
    for name in sorted(names):
        try:
            values[name] = tree.value(f"{folder}/{name}", whole)
        except Unreadable:
            if _there(tree, f"{folder}/{name}"):  # and not gone meanwhile
                unread.append(name)
    return values, unread


def _there(tree: Tree, path: str) -> bool:
    return (tree.root / path).exists()
