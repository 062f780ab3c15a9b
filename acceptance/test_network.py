"""What the network adapters of a node show: links, and errors that they count while it works."""

from collections import Counter
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

_SILENT = {
    "address": "0000:ff:1f.0",
    "physical": True,
    "up": None,
    "carrier": None,
    "operstate": None,
    "speed_mbs": None,
    "carrier_losses": None,
}


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words) or "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLimits:
    """Ethernet interfaces that have to have a link; others are shown."""

    expected: int = 0  # physical interfaces with a link
    mbs: int = 0  # Mb/s, the least speed of those named
    names: str = ""  # separated by spaces, bonds and bridges too; each has to have a link


@check(
    "node.ethernet.links",
    kinds=(DeviceKind.NODE,),
    remedy=Remedy.RETEST,
    cause=Cause.ENVIRONMENT,
    limits=LinkLimits,
    work=Work(call="nodeproof.probes.ethernet:interfaces", deadline_s=60),
    plant=(
        altered(
            "interfaces without a state",
            interfaces=[{**_SILENT, "name": "planted"}],
        ),
        Plant(alter=lambda result: _slowed(result, 0), breaks=("interfaces without a state",)),
        Plant(alter=lambda result: _slowed(result, None), breaks=("interfaces without a state",)),
    ),
)
def test_ethernet_links(result: Result, measure: Measure, limits: LinkLimits) -> None:
    """An interface that jobs use and that has no link leaves the node alone.

    Judged are those that the spec names or counts; one that is switched on without a link and that
    nobody expects is shown. Usual cause: a cable, a transceiver or the switch; a speed below its
    kind, the same. All of them may be at the far end, and show on every node of a switch at once, so
    they blame no hardware. A speed that the driver does not tell, as of a virtual card, is no speed
    of zero. A reboot seldom helps.
    """
    interfaces = result["interfaces"]
    silent = [_card(i) for i in interfaces if i["up"] is None]
    measure(
        "interfaces without a state",
        len(silent),
        at_most=0,
        detail=f"{_listed(silent)}: the driver does not answer in /sys: see dmesg",
    )
    physical = [i for i in interfaces if i["physical"]]
    linked = [i for i in physical if i["carrier"]]
    dark = [i for i in physical if i["up"] and not i["carrier"]]
    if limits.expected > 0:
        measure(
            "links",
            len(linked),
            at_least=limits.expected,
            detail=f"without a link: {_listed(_card(i) for i in physical if not i['carrier'])}",
        )
    else:
        measure("links", len(linked))
    measure("on and without a link", len(dark), detail=_listed(_card(i) for i in dark))
    if limits.names:
        _measure_interfaces(frozenset(limits.names.split()), interfaces, limits, measure)
    for each in physical:
        if each["carrier_losses"]:
            measure(f"links lost by {_card(each)}", each["carrier_losses"], unit="in its life")


def _measure_interfaces(
    wanted: frozenset[str], interfaces: list[Any], limits: LinkLimits, measure: Measure
) -> None:
    data = [i for i in interfaces if i["name"] in wanted]
    missing = sorted(wanted - {i["name"] for i in data})
    dark = [i for i in data if not i["carrier"]]
    measure(
        "without a link",
        len(dark) + len(missing),
        at_most=0,
        detail=f"{_listed(_card(i) for i in dark)}; not there: {_listed(missing)}",
    )
    linked = [i for i in data if i["carrier"]]
    if limits.mbs > 0 and linked:
        slow = [i for i in linked if i["speed_mbs"] is not None and i["speed_mbs"] < limits.mbs]
        unknown = [i for i in linked if i["speed_mbs"] is None]
        for said, those in (("slow", slow), ("of unknown speed", unknown)):
            detail = _listed(f"{_card(i)} {i['speed_mbs']} Mb/s" for i in those)
            measure(said, len(those), at_most=0, detail=detail)


def _card(interface: Mapping[str, Any]) -> str:
    return f"{interface['address'] or 'virtual'} {interface['name']}"


def _slowed(result: Result, speed: int | None) -> dict[str, Any]:
    """Every interface with a link at this speed, and one more that has no state."""
    planted = {**_SILENT, "name": "planted"}
    changed = [{**i, "carrier": True, "speed_mbs": speed} for i in result["interfaces"]]
    return {**result, "interfaces": [*changed, planted]}


# --- errors during the run ------------------------------------------------------------------

_LOSSES = frozenset({"link_downed", "link_error_recovery"})
_CARRIER = frozenset({"carrier_down_count"})
_ERRORS = frozenset(
    {"symbol_error", "local_link_integrity_errors", "excessive_buffer_overrun_errors"}
)
_OF_EFA = frozenset(
    {
        *("rdma_read_wr_err", "rdma_write_wr_err", "unresponsive_remote_events"),
        *("impaired_remote_conn_events", "cmds_err", "no_completion_cmds"),
    }
)
_JUDGED = _LOSSES | _CARRIER | _ERRORS | _OF_EFA


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorLimits:
    """How often one port may lose its link, and how many errors it may count, in one run."""

    losses: int = 0
    errors: int = 0
    untold: int = 0  # counters of these that may tell nothing, where a virtual function hides them


@check(
    "node.network.errors",
    kinds=(DeviceKind.NODE,),
    remedy=Remedy.RETEST,
    cause=Cause.ENVIRONMENT,
    limits=ErrorLimits,
    work=Work(
        call="nodeproof.probes.nic_counters:growth",
        before="nodeproof.probes.nic_counters:read",
        last=True,
        deadline_s=60,
    ),
    plant=altered(
        *("link losses", "interface losses", "link errors", "EFA errors"),
        *("counters that went back", "adapters gone", "counters gone", "ports without counters"),
        "counters that tell nothing",
        grown=[
            {"where": "planted", "counter": name, "by": 1 << 40, "now": 1 << 40}
            for name in ("link_downed", "carrier_down_count", "symbol_error", "cmds_err")
        ],
        went_back=["planted/link_downed"],
        gone=["planted"],
        unread=["planted/link_downed"],
        unreadable=[f"planted {n}/link_downed" for n in range(10_000)],
        mute=["planted"],
    ),
)
def test_network_errors(result: Result, measure: Measure, limits: ErrorLimits) -> None:
    """A link that fails while the node is tested fails in the job, and takes the job with it.

    Read before the first check and after the last, for every RDMA port, EFA device and interface
    on the bus: losses and recoveries of the link, symbol and integrity errors, work that EFA could
    not do. Usual cause of a lost link on one port: its cable or transceiver, which a reboot does
    not help; on all ports at once, or on one port of every node, the switch. Both ends count the
    same loss, so it asks for another test and blames nobody, and so do single errors of a fast link,
    which can be within its specification. Congestion (discards, retransmissions) is shown and not
    judged. A counter that stood at its top, or that is there and can't be read, tells nothing: one more
    loss would not move it, so where it counts for a limit the port was not watched. Reset it
    (perfquery -R) and test again. A counter that a driver has not is not asked for, but a port
    without any was not watched either.
    """
    grown = result["grown"]
    for said, names, most in (
        ("link losses", _LOSSES, limits.losses),
        ("interface losses", _CARRIER, limits.losses),
        ("link errors", _ERRORS, limits.errors),
        ("EFA errors", _OF_EFA, 0),
    ):
        those = [g for g in grown if g["counter"] in names]
        by_port = Counter[str]()
        for each in those:
            by_port[each["where"]] += each["by"]
        detail = _listed(f"{g['where']}: {g['by']} {g['counter']}" for g in those)
        measure(said, max(by_port.values(), default=0), at_most=most, detail=detail)
    for said, where in (
        ("counters that went back", result["went_back"]),
        ("adapters gone", result["gone"]),
        ("counters gone", result["unread"]),
        ("ports without counters", result["mute"]),
    ):
        measure(said, len(where), at_most=0, detail=_listed(where))
    blind = _blind(result)
    measure(
        "counters that tell nothing",
        len(blind),
        at_most=limits.untold,
        detail=f"{_listed(blind[:16])}: reset them (perfquery -R), or see dmesg for why they can't be read",
    )
    top = f"at their top, so not known: {_listed(result['at_top'])}"
    measure("counters compared", result["compared"], detail=top)
    for each in grown:
        if each["counter"] not in _JUDGED:
            measure(f"{each['counter']} of {each['where']}", each["by"])


def _blind(result: Result) -> list[str]:
    """Counters that count for a limit and could not have moved, of ports that told others."""
    blind = []
    for said, counters in (("at its top", "at_top"), ("not readable", "unreadable")):
        for each in result[counters]:
            where, _, name = each.rpartition("/")
            if name in _JUDGED and where not in result["mute"]:
                blind.append(f"{each} ({said})")
    return blind
