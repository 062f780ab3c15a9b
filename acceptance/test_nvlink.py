"""NVLinks and the fabric behind them, as each GPU's driver sees them before any load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nodeproof.checks import (
    CannotMeasure,
    Cause,
    DeviceKind,
    Measure,
    Remedy,
    Result,
    Results,
    Work,
    altered,
    check,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLimits:
    """What the product has. Without a number, as many and as fast as the node's other GPUs have.

    Behind switches all of a GPU's links are up, and on a board that is made for links some are.
    """

    active: int | None = None  # links
    speed_mbs: float | None = None  # MB/s of one link, as the driver counts: 26562 on Hopper


_ROUNDING = 0.01  # of a speed that the driver tells


@check(
    "gpu.nvlink.links",
    kinds=(DeviceKind.GPU,),
    remedy=Remedy.RESET_GPU,
    limits=LinkLimits,
    work=Work(call="nodeproof.probes.nvlink:links", deadline_s=20),
    plant=altered(
        "links missing",
        "slowest link",
        "links of unknown speed",
        active=-1,
        links=[
            {"link": 0, "active": True, "speed_mbs": 100, "end": None},
            {"link": 1, "active": True, "speed_mbs": -1, "end": None},
            {"link": 2, "active": True, "speed_mbs": None, "end": None},
        ],
    ),
)
def test_links(result: Result, peers: Results, measure: Measure, limits: LinkLimits) -> None:
    """A GPU with a link fewer than the others holds up every collective that crosses it.

    How many there are is a matter of the product, and links that are down by design (a PCIe card
    without a bridge) are no fault, so a spec gives the number; without one the GPUs of the node are
    held against each other, and where there are NVSwitches, against all links that they tell of. A
    product that is made for NVLink and has none up beside other GPUs is not judged sound, nor is one
    that the catalogue does not know: say in the spec how many links are up (`active`, 0 for a card
    without a bridge). One GPU that is short where another is not is at fault itself; where several
    are short, or all, a link between them, a switch or the spec may be, and nobody is blamed. Look
    for Xid 74 and 144 to 150 and for SXids; a reset of all GPUs trains the links anew.
    """
    active = [result["active"], *(other["active"] for _, other in peers)]
    expected = _expected(result, peers) if limits.active is None else limits.active
    if limits.active is None and expected <= 0:
        _refuse_all_down(result)
    down = [row["link"] for row in result["links"] if not row["active"]]
    measure(
        "links missing",
        expected - result["active"],
        unit="links",
        at_most=0,
        cause=_blame([expected - count for count in active], spec=limits.active is not None),
        detail=(
            f"{result['active']} of {expected} are up, down are {down or 'none'}; the other GPUs "
            f"have {active[1:] or 'not been asked'}"
        ),
    )
    measure("links", len(result["links"]))
    own, others = _speeds(result), [_speeds(other) for _, other in peers]
    if own or (limits.speed_mbs is not None and expected):
        fastest = max([*own, *(speed for speeds in others for speed in speeds)], default=0)
        wanted = fastest if limits.speed_mbs is None else limits.speed_mbs
        least = wanted - abs(wanted) * _ROUNDING
        alone = fastest >= least and all(min(speeds, default=least) >= least for speeds in others)
        measure(
            "slowest link",
            min(own, default=0),
            unit="MB/s",
            at_least=least,
            cause=None if alone else Cause.ENVIRONMENT,
            detail=f"of {sorted(set(own)) or 'none that tells its speed'}; the fastest of the node has {fastest}",
        )
    silent = [r["link"] for r in result["links"] if r["active"] and r["speed_mbs"] is None]
    measure(
        "links of unknown speed",
        len(silent),
        at_most=0 if own else None,
        cause=Cause.ENVIRONMENT,
        detail=f"{silent} are up and do not tell their speed, as the others do: test again, and reset the GPU if it stays",
    )


def _expected(result: Result, peers: Results) -> int:
    """How many links have to be up without a word of the spec."""
    everyone = [result, *(other for _, other in peers)]
    most: int = max((one["active"] for one in everyone[1:]), default=0)
    switched = any(row["end"] == "switch" for one in everyone for row in one["links"])
    if result["switches"] or (switched and peers):
        return max(most, len(result["links"]), 1)
    # A single GPU has nobody at the other end, and may have been given out without its links.
    alone = not peers or any(one["active"] for one in everyone)
    return most if alone else int(result["built_in"] or 0)


def _refuse_all_down(result: Result) -> None:
    """Raise `CannotMeasure` for links of which none is up, where nobody knows how many should be."""
    if result["active"] == 0 and result["links"] and not result["known"]:
        raise CannotMeasure(
            f"{result['product'] or 'a product without a name'} has {len(result['links'])} NVLinks, "
            "none of them is up, and the catalogue does not know this product: say in a spec how "
            'many have to be, ["gpu.nvlink.links"] active = 18, or 0 for a card without a bridge'
        )


def _speeds(result: Result) -> list[float]:
    rows = [row["speed_mbs"] for row in result["links"] if row["active"]]
    return [speed for speed in rows if speed is not None]


def _blame(short: Sequence[int], *, spec: bool) -> Cause | None:
    """The hardware, where this GPU alone is short of what the spec says and others show."""
    alone = short[0] > 0 and len(short) > 1 and all(missing <= 0 for missing in short[1:])
    return None if spec and alone else Cause.ENVIRONMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricLimits:
    """Whether the GPU registers with a fabric: Hopper and later behind NVSwitches do."""

    expected: bool | None = None


_OF_NONE = frozenset({"not supported", "not started", "in progress"})


@check(
    "gpu.fabric.state",
    kinds=(DeviceKind.GPU,),
    remedy=Remedy.REBOOT,
    cause=Cause.ENVIRONMENT,
    limits=FabricLimits,
    work=Work(call="nodeproof.probes.nvlink:fabric", deadline_s=20),
    plant=(
        altered("fabric not registered", state="planted"),
        altered(
            "registration status",
            "unhealthy routes",
            "recoveries under way",
            "wrong configuration",
            "health other than sound",
            state="completed",
            status=999,
            cluster="00" * 16,
            health={
                "degraded_bandwidth": True,
                "route_recovery": True,
                "route_unhealthy": True,
                "access_timeout_recovery": True,
            },
            configuration="planted",
            summary="planted",
        ),
    ),
)
def test_fabric(result: Result, measure: Measure, limits: FabricLimits) -> None:
    """A GPU that is not registered with its fabric can't start CUDA, or can't reach its peers.

    That a product has no fabric is right on a card and wrong behind NVSwitches, so a spec says
    which; without one only what the GPU reports is judged. It has to be completed with success.
    Not started, or in progress for long: look at the fabric manager (nvidia-fabricmanager, NVLSM)
    and IMEX, wait, and test again. Degraded bandwidth or an unhealthy route of a fabric that is this
    node's own is this node's fault; of one that spans nodes, anybody's.
    """
    state = result["state"]
    missing = state != "completed"
    if state in _OF_NONE:
        none = state == "not supported"
        missing = limits.expected is True or (limits.expected is None and not none)
    measure(
        "fabric not registered",
        int(missing),
        at_most=0,
        detail=f"the driver says: {state}; look at the fabric manager and IMEX, wait and test again, or correct the spec",
    )
    if state != "completed":
        return
    measure(
        "registration status",
        result["status"],
        at_most=0,
        detail=f"completed with an error: {result['status_says']}; restart the fabric manager",
    )
    told = [name for name, yes in result["health"].items() if yes is not None]
    bad = [name for name in ("degraded_bandwidth", "route_unhealthy") if result["health"][name]]
    own = not result["cluster"].strip("0")  # all zeros: it spans no other node
    measure("health flags told", len(told))
    measure(
        "unhealthy routes",
        len(bad),
        at_most=0,
        cause=Cause.HARDWARE if own else None,
        detail=f"{', '.join(bad)}; cluster {result['cluster']}",
    )
    recovering = ("route_recovery", "access_timeout_recovery")
    measure(
        "recoveries under way",
        sum(bool(result["health"][name]) for name in recovering),
        at_most=0,
        detail="wait until they are over, and test again",
    )
    measure(
        "wrong configuration",
        int(bool(result["configuration"])),
        at_most=0,
        detail=f"of the fabric: {result['configuration']}",
    )
    measure(
        "health other than sound",
        int(result["summary"] not in {None, "healthy"}),
        at_most=0,
        detail=f"the driver sums it up as {result['summary']}",
    )
