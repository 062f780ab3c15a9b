"""Ports of RDMA adapters other than EFA: InfiniBand, and RoCE on Ethernet.

How many a node has to have, and which, stands in its spec. Without one they are shown.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nodeproof.checks import (
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

_PORT = {
    "device": "planted",
    "address": "0000:ff:1f.0",
    "driver": "planted",
    "virtual": False,
    "port": 1,
    "state": None,
    "physical": None,
    "rate_gbs": None,
    "link_layer": "Ethernet",
    "interfaces": [],
    "carrier": None,
    "gid_types": [],
    "unread": ["link_layer"],
    "errors": {},
    "saturated": [],
}
_FUNCTION = {"address": "0000:ff:1f.1", "driver": None, "present": True}


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words) or "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class PortLimits:
    """Ports of RDMA adapters that jobs use, other than EFA.

    `names` are the RDMA devices or network interfaces of data, separated by spaces: each has to be
    up. Without names any physical port counts towards `expected`, those for storage too, so name
    them where a node has both.
    """

    expected: int = 0
    gbs: float = 0.0  # Gb/s, the least rate of one of these ports
    names: str = ""
    issm: bool = False  # whether InfiniBand ports need their file for a subnet manager


@check(
    "node.infiniband.ports",
    kinds=(DeviceKind.NODE,),
    remedy=Remedy.REBOOT,
    cause=Cause.ENVIRONMENT,
    limits=PortLimits,
    work=Work(call="nodeproof.probes.infiniband:ports", deadline_s=60),
    plant=(
        altered(
            "ports without a state",
            ports=[_PORT],
            unclaimed=[_FUNCTION],
            lost=[_FUNCTION["address"]],
            unseen=[_FUNCTION["address"]],
            no_uverbs=["planted (0000:ff:1f.0)"],
            no_issm=["planted port 1"],
        ),
        # Whatever ports there are: down and slow, or without an address.
        Plant(
            alter=lambda result: _all_ports(result, state="DOWN", rate_gbs=0.0),
            breaks=("ports without a state",),
        ),
        Plant(
            alter=lambda result: _all_ports(
                result,
                state="ACTIVE",
                physical="LinkUp",
                carrier=True,
                gid_types=[],
                rate_gbs=None,
            ),
            breaks=("ports without a state",),
        ),
    ),
)
def test_infiniband_ports(result: Result, measure: Measure, limits: PortLimits) -> None:
    """A node with a data port down, or slower than its kind, holds back every job that spans nodes.

    A data port has to be ACTIVE and LinkUp, at its rate. On Ethernet (RoCE) its interface has to be
    up too, and it needs a RoCE v2 address; on InfiniBand the interface is IP over it, which a node
    need not use. Usual causes: Polling or a low rate, a cable, a transceiver or the switch; INIT, no
    subnet manager; Disabled, somebody switched it off; an adapter without an RDMA device, its driver
    (mlx5_ib). A link has two ends, and a switch that is down shows on every node at once, so a port
    alone blames no hardware; an adapter that reads all ones on the bus does. A reboot helps a
    driver, never a cable. What a port does not tell in /sys, such as whether it is InfiniBand's or
    Ethernet's, was not measured. What a port counted over its life is shown and not judged: it says
    nothing of today. Ports that nobody expects may be down.
    """
    ports = result["ports"]
    silent = [_at(p) for p in ports if p["state"] is None and not p["virtual"]]
    measure(
        "ports without a state",
        len(silent),
        at_most=0,
        detail=f"{_listed(silent)}: the driver does not answer in /sys: see dmesg",
    )
    wanted = frozenset(limits.names.split())
    data = [p for p in ports if _counts(p, wanted)]
    up = [p for p in data if _up(p)]
    quick = [p for p in up if limits.gbs <= 0 or (p["rate_gbs"] or 0) >= limits.gbs]
    if limits.expected > 0:
        measure(
            "ports up",
            len(quick),
            at_least=limits.expected,
            detail=f"not up or too slow: {_listed(_at(p) for p in data if p not in quick)}; {_absent(result)}",
        )
    else:
        measure("ports up", len(up))
    if wanted:
        _measure_named(wanted, data, limits, measure, result)
    if limits.expected > 0 or wanted:
        _measure_needs(result, up, measure, issm=limits.issm)
        _measure_untold(result, ports if limits.issm else up, measure)
    for port in ports:
        for name, count in port["errors"].items():
            least = "at least, the counter stands at its top" if name in port["saturated"] else ""
            measure(f"{name} of {_at(port)}", count, unit="in its life", detail=least)


def _all_ports(result: Result, **changes: Any) -> dict[str, Any]:
    return {**result, "ports": [_PORT, *({**port, **changes} for port in result["ports"])]}


def _counts(port: Mapping[str, Any], wanted: frozenset[str]) -> bool:
    """Whether jobs use this port, by its name or because it is a physical one of a card."""
    if wanted:
        return bool(wanted & {port["device"], *port["interfaces"]})
    return port["address"] is not None and not port["virtual"]


def _up(port: Mapping[str, Any]) -> bool:
    linked = port["physical"] == "LinkUp" and port["carrier"] is not False
    return bool(port["state"] == "ACTIVE" and linked)


def _at(port: Mapping[str, Any]) -> str:
    rate = "" if port["rate_gbs"] is None else f" {port['rate_gbs']:g} Gb/s"
    return (
        f"{port['address'] or 'no PCI device'} {port['device']} port {port['port']} "
        f"({port['state'] or 'no state'}, {port['physical'] or 'no physical state'}{rate})"
    )


def _driven(function: Mapping[str, Any]) -> str:
    return f"{function['address']} (driver {function['driver'] or 'none'})"


def _absent(result: Result) -> str:
    return f"adapters without an RDMA device: {_listed(_driven(f) for f in result['unclaimed'])}"


def _measure_named(
    wanted: frozenset[str],
    data: list[Any],
    limits: PortLimits,
    measure: Measure,
    result: Result,
) -> None:
    found = {name for p in data for name in (p["device"], *p["interfaces"])}
    missing = sorted(wanted - found)
    measure(
        "data ports missing",
        len(missing),
        at_most=0,
        detail=f"{_listed(missing)}; {_absent(result)}; if they have other names, correct the spec",
    )
    if data:
        down = [p for p in data if not _up(p)]
        measure(
            "data ports down",
            len(down),
            at_most=0,
            detail=f"{_listed(_at(p) for p in down)}: look at the cable and the switch, then at its driver",
        )
    if limits.gbs > 0 and data:
        mute = [_at(p) for p in data if _up(p) and p["rate_gbs"] is None]
        measure(
            "data ports of unknown rate",
            len(mute),
            at_most=0,
            detail=f"{_listed(mute)}: the driver does not tell it in /sys: see dmesg",
        )
    rates = [p["rate_gbs"] for p in data if p["rate_gbs"] is not None]
    if limits.gbs > 0 and rates:
        slow = [_at(p) for p in data if p["rate_gbs"] is not None and p["rate_gbs"] < limits.gbs]
        measure(
            "slowest data port", min(rates), unit="Gb/s", at_least=limits.gbs, detail=_listed(slow)
        )


def _measure_needs(result: Result, up: list[Any], measure: Measure, *, issm: bool) -> None:
    """What programs need besides a link, on a node that has to have one."""
    measure(
        "adapters off the bus",
        len(result["lost"]),
        at_most=0,
        cause=Cause.HARDWARE,
        detail=f"{_listed(result['lost'])}: in the kernel's list, and the bus reads all ones there",
    )
    measure(
        "adapters without an RDMA device",
        len(result["unclaimed"]),
        at_most=0,
        detail=f"{_listed(_driven(f) for f in result['unclaimed'])}: load mlx5_ib, and see dmesg",
    )
    measure(
        "without uverbs",
        len(result["no_uverbs"]),
        at_most=0,
        detail=f"{_listed(result['no_uverbs'])}: load ib_uverbs; no RDMA program starts without it",
    )
    if issm:
        measure(
            "without issm",
            len(result["no_issm"]),
            at_most=0,
            detail=f"{_listed(result['no_issm'])}: load ib_umad",
        )
    roce = [p for p in up if p["link_layer"] == "Ethernet"]
    if roce:
        bare = [_at(p) for p in roce if "RoCE v2" not in p["gid_types"]]
        measure(
            "RoCE ports without a v2 address",
            len(bare),
            at_most=0,
            detail=f"{_listed(bare)}: give their interfaces an IP address",
        )


def _measure_untold(result: Result, ports: list[Any], measure: Measure) -> None:
    """What was asked of nobody: without its layer a port is held to no carrier, address or issm."""
    mute = [f"{_at(p)}: {', '.join(p['unread'])}" for p in ports if p["unread"]]
    mute += [f"{address}: whether it is still on the bus" for address in result["unseen"]]
    measure(
        "not told",
        len(mute),
        at_most=0,
        detail=f"{_listed(mute)}; see dmesg, and mount the node's /sys with --host-root",
    )
