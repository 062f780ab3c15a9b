"""The pace of a sustained load: does a device keep it, what holds it down, do all keep the same?"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from nodeproof.acceptance import held_down, test_burnin
from nodeproof.checks import (
    COMPUTE,
    Cause,
    Device,
    DeviceKind,
    Measure,
    Plant,
    Remedy,
    Result,
    Results,
    Work,
    altered,
    check,
    spec_of,
)

_SHORTFALL = "largest shortfall"
_PAUSE_S = 2.0  # a worker beats twice a second; one that was silent for longer did not run


def _blame(result: Result, peers: Results) -> Cause | None:
    """Whom it blames to be short of a figure that was measured on sound devices of this kind.

    Nobody's hardware where the process was held up, or where heat or a power brake explains it that
    need not be this device's own.
    """
    held_up = result["telemetry"]["silence_s"] > _PAUSE_S
    explained = held_up or held_down.explained(result, peers)
    return Cause.ENVIRONMENT if explained else None


def _blame_unmeasured(result: Result, peers: Results) -> Cause | None:
    """Whom it blames to be uneven, or slower than others, by more than is usual.

    How far sound devices differ depends on how each was made and where it stands, so this alone
    condemns none. It does where the telemetry shows that the device held itself down.
    """
    return _blame(result, peers) if held_down.own(result, peers) else Cause.ENVIRONMENT


def _telemetry(*breaks: str, **changes: Any) -> Plant:
    """Plant telemetry that differs in `changes`."""
    return Plant(
        alter=lambda result: {**result, "telemetry": {**result["telemetry"], **changes}},
        breaks=breaks,
    )


def _load() -> Work:
    """The long load of the run, which is done once whoever looks at it."""
    declared = spec_of(test_burnin.test_exact)
    assert declared is not None
    return declared.work


_BURN = _load()


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """What a device has to keep up. Only `median_tflops`, which a spec measured, blames hardware."""

    median_tflops: float = 0.0  # 0: no figure is known for this kind of device, so none is asked
    p5_of_median: float = 0.9
    # The cores of a rehearsal are shared, with this machine's other work or another machine's.
    cpu_p5_of_median: float = 0.1
    drift: float = 0.05  # from the second quarter of the load to the last, both as medians
    cpu_drift: float = 0.95
    telemetry_hz: float = 0.5


@check(
    "device.burnin.throughput",
    kinds=COMPUTE,
    remedy=Remedy.RESET_GPU,
    limits=Throughput,
    work=_BURN,
    plant=(
        Plant(args={"plant": "slow"}, breaks=("slowest twentieth of the median",)),
        # The median is held against a limit only where a spec gives one.
        Plant(
            alter=lambda result: {
                **result,
                "telemetry": {**result["telemetry"], "hz": 0.0},
                "median_tflops": -1.0,
            },
            breaks=("telemetry",),
        ),
        altered("drift", drift=1.0),
    ),
)
def test_throughput(
    device: Device, result: Result, peers: Results, measure: Measure, limits: Throughput
) -> None:
    """A device that slows down under load holds up every other device of the same job.

    Usual causes: heat (dust, a dead fan, a hot neighbour), a power cap or a weak supply, clocks
    left locked, somebody else's process. The telemetry of the run shows which. A reset clears
    locked clocks and a wedged power state; it does not cool anything. Read over wall time in short
    windows, so that a stall shows as well as a slow device. The drift leaves out the first quarter,
    in which a device warms up. Uneven or drifting, it asks for another test and blames nobody,
    unless the telemetry shows that this device and no other was held down in hardware. To be short
    of the median that a spec gives blames the device: a site gets that figure from nodes it knows
    (nodeproof baseline). Heat or a power brake that others show too, for half of the load, excuses.
    """
    measure(
        "median",
        result["median_tflops"],
        unit="TFLOP/s",
        at_least=limits.median_tflops or None,
        cause=_blame(result, peers),
        detail=f"slow throughout: look at power cap, clocks and temperature; {held_down.said(result)}",
    )
    slow = result["slow"]
    silent = result["telemetry"]["silence_s"]
    cpu = device.kind is DeviceKind.CPU
    measure(
        "slowest twentieth of the median",
        result["p5_of_median"],
        at_least=limits.cpu_p5_of_median if cpu else limits.p5_of_median,
        cause=_blame_unmeasured(result, peers),
        detail=(
            f"{result['p5_tflops']:.4g} of {result['median_tflops']:.4g} TFLOP/s in "
            f"{len(result['windows'])} windows of {result['window_s']:.3g} s; stalled in {slow[:8]}; "
            f"its process was held up for up to {silent:.1f} s; {held_down.said(result)}"
        ),
    )
    measure(
        "drift",
        result["drift"],
        at_most=limits.cpu_drift if cpu else limits.drift,
        cause=_blame_unmeasured(result, peers),
        detail=(
            "slower at the end of the load than when it had warmed up: heat that is not carried "
            f"off, or other work on this machine; {held_down.said(result)}"
        ),
    )
    measure(
        "telemetry",
        result["telemetry"]["hz"],
        unit="Hz",
        at_least=limits.telemetry_hz,
        cause=Cause.ENVIRONMENT,
        detail="temperature, power and clocks were not sampled while the load ran",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttling:
    """How closely a device has to be watched under load."""

    hz: float = held_down.HZ  # readings of the reasons a second of load
    gap_s: float = 5.0  # between two of them; a watcher that dies in mid-load leaves the rest


@check(
    "device.burnin.throttling",
    kinds=(DeviceKind.GPU,),
    remedy=Remedy.RESET_GPU,
    limits=Throttling,
    work=_BURN,
    plant=(
        _telemetry("held down by heat", throttle={"0x4": 9, "0x40": 1}),
        _telemetry("held down by a power brake", throttle={"0x4": 9, "0x80": 1}),
        _telemetry("held down by the driver for heat", throttle={"0x4": 9, "0x20": 1}),
        _telemetry("held down without a reason, in a row", unnamed=2, unnamed_in_a_row=2),
        _telemetry("readings", "longest gap", throttle_read=0, gap_s=1e9),
    ),
)
def test_throttling(result: Result, peers: Results, measure: Measure, limits: Throttling) -> None:
    """A device that is held down by heat or by its supply is slow when it is needed most.

    One reading under load of a thermal slowdown or a power brake is a fail, and two in a row of a
    hardware slowdown that names neither; one of those alone can be a change of clocks. The power
    cap is none, since a full load is meant to reach it. The device is blamed where the hardware
    held it down twice or more, or slowed it for half of the load without a reason, while all others
    under the same load stayed clear of that. Else, and with a lone device, the room or the supply
    may be the cause: look at fans, dust, air or coolant, the power cables and the supply, then test
    again. A reset clears a state that stuck and cools nothing. Read once a second: what is shorter
    than that is seen only by chance, and shows as a slow window.
    """
    seen = result["telemetry"]
    told = held_down.said(result)
    for name, hold, look in (
        ("held down by heat", held_down.HEAT, "look at fans, air or coolant"),
        ("held down by a power brake", held_down.BRAKE, "look at cables, supply and controller"),
    ):
        alone = held_down.alone(hold, result, peers)
        whose = "this device alone" if alone else "not shown to be this device's own fault"
        measure(
            name,
            held_down.times(seen, hold),
            unit="readings",
            at_most=0,
            cause=None if alone else Cause.ENVIRONMENT,
            detail=f"{whose}: {look}; {told}",
        )
    measure(
        "held down by the driver for heat",
        held_down.times(seen, held_down.WARMTH),
        unit="readings",
        at_most=0,
        cause=Cause.ENVIRONMENT,
        detail=f"it was too warm: look at fans, air or coolant; {told}",
    )
    measure(
        "held down without a reason, in a row",
        seen["unnamed_in_a_row"],
        unit="readings",
        at_most=1,  # a change of clocks can show as one (nvml.h)
        cause=None if held_down.stuck(result, peers) else Cause.ENVIRONMENT,
        detail=told,
    )
    measure(
        "readings",
        seen["throttle_read"],
        at_least=max(1.0, limits.hz * seen["load_s"]),
        cause=Cause.ENVIRONMENT,
        detail="the driver did not say why clocks are what they are, or was asked too seldom",
    )
    measure(
        "longest gap",
        seen["gap_s"],
        unit="s",
        at_most=limits.gap_s,
        cause=Cause.ENVIRONMENT,
        detail="nobody watched the device for that long while the load ran",
    )


def _laggard(results: Results) -> Results:
    """One device at a hundredth of its pace, in level and in evenness."""
    device, result = results[-1]
    slowed: dict[str, Any] = {
        **result,
        "median_tflops": result["median_tflops"] / 100,
        "p5_of_median": result["p5_of_median"] / 100,
    }
    return [*results[:-1], (device, slowed)]


def _braked(results: Results) -> Results | None:
    """A device far behind whose brake was pulled all the while, and no other's."""
    if len(results) == 1 or any(device.kind is DeviceKind.CPU for device, _ in results):
        return None  # there is nobody to tell by that the supply is not to blame
    held: Results = []
    for number, (device, result) in enumerate(_laggard(results), 1):
        seen = result["telemetry"]
        read = max(10, round(seen["load_s"]))
        throttle = {"0x80": read} if number == len(results) else {}
        quiet = {
            "throttle": throttle,
            "throttle_read": read,
            "unnamed": 0,
            "unnamed_in_a_row": 0,
            "silence_s": 0.0,
        }
        held.append((device, {**result, "telemetry": {**seen, **quiet}}))
    return held


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How far a device may lag behind the others of its node.

    A twentieth is usual between sound GPUs of one node, by how each was made and is cooled. A tenth
    is what gpu-fryer allows (its README, --tflops-tolerance, read in 2026), of the best of them.
    """

    below_median: float = 0.1  # of the median over the devices
    alone_below_median: float = 0.1  # slowest twentieth of its windows, where there is no other
    cpu_below_median: float = 0.4  # the cores of a rehearsal are shared
    cpu_alone_below_median: float = 0.9


@check(
    "node.burnin.spread",
    kinds=(DeviceKind.NODE,),
    remedy=Remedy.RESET_GPU,
    limits=Spread,
    work=_BURN,
    plant=(Plant(alter=_laggard, breaks=(_SHORTFALL,)), Plant(alter=_braked)),
)
def test_spread(results: Results, measure: Measure, limits: Spread) -> None:
    """A job runs at the pace of its slowest device.

    All devices of a node are of one kind and carry the same load at the same time, so one that lags
    has a cause: cooling, power, a lower clock, a wrong part, or the processor that drives it. Which
    one this figure can't tell, so it asks for another test after a look at what the telemetry says
    of the laggard. It blames hardware where the laggard, and no other, was held down in hardware. A
    floor for each device condemns by itself: median_tflops of device.burnin.throughput. With one
    device there is nobody to compare with; its windows are then held against their own median.
    """
    measure("devices compared", len(results))
    cpu = any(device.kind is DeviceKind.CPU for device, _ in results)
    if len(results) == 1:
        device, result = results[0]
        measure(
            _SHORTFALL,
            1.0 - result["p5_of_median"],
            at_most=limits.cpu_alone_below_median if cpu else limits.alone_below_median,
            cause=_blame_unmeasured(result, []),
            detail=f"the only device, {device}, did not keep its own pace; {held_down.said(result)}",
        )
        return
    medians = [result["median_tflops"] for _, result in results]
    middle = statistics.median(medians)
    slowest = min(medians)
    device, laggard = results[medians.index(slowest)]
    others = [(d, r) for d, r in results if d != device]
    held_up = any(r["telemetry"]["silence_s"] > _PAUSE_S for _, r in results)
    measure("median over the devices", middle, unit="TFLOP/s")
    measure(
        _SHORTFALL,
        (middle - slowest) / middle,
        at_most=limits.cpu_below_median if cpu else limits.below_median,
        cause=Cause.ENVIRONMENT if held_up else _blame_unmeasured(laggard, others),
        detail=(
            f"{device} at {slowest:.4g} of {middle:.4g} TFLOP/s; {held_down.said(laggard)}; median "
            f"clocks of the others {[r['telemetry']['sm_mhz'] for _, r in others][:8]} MHz"
        ),
    )
