"""What held a device down under load, and whether it speaks of this device or of where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodeproof.checks import Result, Results

HZ = 0.5  # readings a second of load that watching takes at least; they are asked for once a second
_TWICE = 2  # a device is not condemned by one reading: eight of them are read one after another


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One way to be held down: a bit of NVML's clock event reasons (nvml.h)."""

    name: str
    bit: str  # as the summary of the telemetry writes it
    shared: tuple[str, ...]  # bits that show the same cause at work on another device


HEAT = Hold(name="hardware thermal slowdown", bit="0x40", shared=("0x20", "0x40"))
BRAKE = Hold(name="power brake", bit="0x80", shared=("0x80",))
# Idle, clock settings, sync boost, display clocks and the power cap are no faults of a full load.
WARMTH = Hold(name="software thermal slowdown", bit="0x20", shared=("0x20", "0x40"))


def watched(seen: Mapping[str, Any]) -> bool:
    """Whether the reasons were read often enough to say that something was not there."""
    return bool(seen["throttle_read"] >= max(_TWICE, HZ * seen["load_s"]))


def times(seen: Mapping[str, Any], hold: Hold) -> int:
    """In how many samples under load it was read."""
    return int(seen["throttle"].get(hold.bit, 0))


def alone(hold: Hold, result: Result, peers: Results) -> bool:
    """Whether it held this very device and no other under the same load.

    A hot room and a supply that gives way reach more than one, and a short brake is caught on one
    of eight by chance. So it takes two readings, and others that were watched and stayed clear.
    """
    others = [other["telemetry"] for _, other in peers]
    clear = [
        watched(seen) and not any(seen["throttle"].get(bit, 0) for bit in hold.shared)
        for seen in others
    ]
    return times(result["telemetry"], hold) >= _TWICE and bool(others) and all(clear)


def stuck(result: Result, peers: Results) -> bool:
    """Whether the hardware slowed this device alone, for half of the load, and named no reason.

    Clocks change all the time under a power cap, and this may show meanwhile; for that long it
    does not. What others of its kind show too is a habit of the driver's, or a common supply.
    """
    seen = result["telemetry"]
    others = [other["telemetry"] for _, other in peers]
    clear = [watched(other) and other["unnamed_in_a_row"] < _TWICE for other in others]
    half = watched(seen) and 2 * seen["unnamed"] >= seen["throttle_read"]
    return bool(half) and bool(others) and all(clear)


def own(result: Result, peers: Results) -> str:
    """What held this device down and can only be its own, "" for nothing."""
    names = [hold.name for hold in (HEAT, BRAKE) if alone(hold, result, peers)]
    names += ["hardware slowdown"] if stuck(result, peers) else []
    return " and ".join(names)


def explained(result: Result, peers: Results) -> bool:
    """Whether heat or a brake that need not be the device's own held it for half of the load."""
    seen = result["telemetry"]
    held = [
        times(seen, hold)
        for hold in (HEAT, BRAKE, WARMTH)
        if hold is WARMTH or not alone(hold, result, peers)
    ]
    return bool(seen["throttle_read"]) and 2 * max(held) >= seen["throttle_read"]


def said(result: Result) -> str:
    """What the telemetry of the load showed, in a few words for whoever has to look for the cause."""
    seen = result["telemetry"]
    if not seen["throttle_read"]:
        return "what holds its clocks down was not read"
    held = [(hold.name, times(seen, hold)) for hold in (HEAT, BRAKE, WARMTH)]
    held.append(("hardware slowdown without a reason", seen["unnamed"]))
    words = [f"{name} in {count}" for name, count in held if count]
    return (
        f"{', '.join(words) or 'held down by nothing'} of {seen['throttle_read']} readings; hottest "
        f"{seen['hottest_c']} C, median clock {seen['sm_mhz']} MHz"
    )
