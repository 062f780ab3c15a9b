"""Sustained load: is it still right when hot, does it keep its pace, and do all keep the same?"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from nodeproof.acceptance.products import judge_products
from nodeproof.checks import (
    COMPUTE,
    LONGER,
    Cause,
    Device,
    DeviceKind,
    Load,
    Measure,
    Plant,
    Remedy,
    Result,
    Results,
    Work,
    altered,
    check,
)

_PAUSE_S = 2.0  # a worker beats twice a second; one that was silent for longer did not run


def _blame(result: Result) -> Cause | None:
    """Whom a slow window blames: nobody's hardware where the process itself was held up."""
    return Cause.ENVIRONMENT if result["telemetry"]["silence_s"] > _PAUSE_S else None


_NO_PRODUCTS = altered("products", "sets of operands", products=0, sets=1)


def _judge(result: Result, peers: Results, measure: Measure) -> None:
    """Hold the products of a full load, and that all that were asked for were compared."""
    judge_products(result, peers, measure)
    measure(
        "products", result["products"], at_least=max(1, result["asked"]), cause=Cause.ENVIRONMENT
    )
    # Their answers differ, so that one that was left over from the product before shows.
    measure("sets of operands", result["sets"], at_least=2, cause=Cause.ENVIRONMENT)


_BURN = Work(
    call="nodeproof.kernels.burn:burn",
    load=Load(quick=20, gate=60, deep=1800, soak=14400),
    deadline_s=120,
)


@check(
    "device.burnin.exact",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    work=_BURN,
    plant=(
        Plant(args={"plant": "flip"}, breaks=("wrong elements",)),
        _NO_PRODUCTS,
        altered("checked elements", "elements unaccounted for", checked_elements=0),
    ),
)
def test_exact(result: Result, peers: Results, measure: Measure) -> None:
    """A device that computes wrongly only when hot passes every short test and fails in the job.

    Products with known answers like those of the arithmetic checks, back to back at full power,
    each compared bit for bit. One differing bit is a fault of this device, repeatable or not. Better
    cooling may make it rarer and does not make the device sound: replace it. Without a wrong element, errors of
    this format under this load are rarer than "error rate below" with 95 % confidence; other
    formats are tested cooler.
    """
    _judge(result, peers, measure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """What a device has to keep up."""

    median_tflops: float = 0.0  # 0: no figure is known for this kind of device, so none is asked
    p5_of_median: float = 0.9
    # The cores of a rehearsal are shared, with this machine's other work or another machine's.
    cpu_p5_of_median: float = 0.1
    drift: float = 0.05  # from the first quarter of the load to the last, both as medians
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
        altered("telemetry", telemetry={"hz": 0.0, "silence_s": 0.0}, median_tflops=-1.0),
        altered("drift", drift=1.0),
    ),
)
def test_throughput(device: Device, result: Result, measure: Measure, limits: Throughput) -> None:
    """A device that slows down under load holds up every other device of the same job.

    Usual causes: heat (dust, a dead fan, a hot neighbour), a power cap or a weak supply, clocks
    left locked, somebody else's process. The telemetry of the run shows which. A reset clears
    locked clocks and a wedged power state; it does not cool anything. Read over wall time in short
    windows, so that a stall shows as well as a slow device.
    """
    measure(
        "median",
        result["median_tflops"],
        unit="TFLOP/s",
        at_least=limits.median_tflops or None,
        cause=_blame(result),
        detail="slow throughout: look at power cap, clocks and temperature",
    )
    slow = result["slow"]
    silent = result["telemetry"]["silence_s"]
    cpu = device.kind is DeviceKind.CPU
    measure(
        "slowest twentieth of the median",
        result["p5_of_median"],
        at_least=limits.cpu_p5_of_median if cpu else limits.p5_of_median,
        cause=_blame(result),
        detail=(
            f"{result['p5_tflops']:.4g} of {result['median_tflops']:.4g} TFLOP/s in "
            f"{len(result['windows'])} windows of {result['window_s']:.3g} s; stalled in {slow[:8]}; "
            f"its process was held up for up to {silent:.1f} s"
        ),
    )
    measure(
        "drift",
        result["drift"],
        at_most=limits.cpu_drift if cpu else limits.drift,
        cause=_blame(result),
        detail="slower at the end of the load than at its start: heat that is not carried off",
    )
    measure(
        "telemetry",
        result["telemetry"]["hz"],
        unit="Hz",
        at_least=limits.telemetry_hz,
        cause=Cause.ENVIRONMENT,
        detail="temperature, power and clocks were not sampled while the load ran",
    )


@check(
    "device.burnin.pulses",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    profiles=LONGER,
    work=Work(
        call="nodeproof.kernels.pulses:pulses",
        group=True,
        load=Load(quick=8, gate=8, deep=120, soak=1200),
        deadline_s=120,
    ),
    plant=(
        Plant(args={"plant": "flip"}, breaks=("wrong elements",)),
        altered(
            "bursts left out",
            "bursts",
            "checked elements",
            "elements unaccounted for",
            untried=1,
            bursts=0,
            checked_elements=0,
        ),
        _NO_PRODUCTS,
    ),
)
def test_pulses(result: Result, peers: Results, measure: Measure) -> None:
    """A device that computes wrongly when the load sets in corrupts each step of a training job.

    Training is bursts: compute, then wait for the others. Voltage and clock swing most at those
    edges, and a weak supply or regulator shows there and nowhere in a steady load. Bursts of 1 to
    300 ms with pauses as long, on all devices together and then in turn, every product compared bit
    for bit. One differing bit is a fault of this device, repeatable or not. If several devices of
    one node show it, have the supply looked at first; else replace the device. Zero wrong elements
    bound the rate for bursts such as these (below 3/N at 95 %), not for every rhythm.
    """
    _judge(result, peers, measure)
    measure("bursts left out", result["untried"], at_most=0, detail=f"{result['cells']}")
    measure("bursts", result["bursts"], at_least=1)
    measure("bursts that began late", result["late"] / max(1, result["bursts"]), unit="share")


@check(
    "device.burnin.together",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    profiles=LONGER,
    work=Work(
        call="nodeproof.kernels.together:together",
        load=Load(quick=5, gate=8, deep=120, soak=1200),
        deadline_s=120,
    ),
    plant=(
        Plant(
            args={"plant": "flip"},
            breaks=("wrong elements", "wrong words", "damaged pattern words"),
        ),
        _NO_PRODUCTS,
        altered(
            "passes",
            "memory verified",
            "checked elements",
            "elements unaccounted for",
            passes=0,
            verified_bytes=0,
            checked_elements=0,
        ),
    ),
)
def test_together(result: Result, peers: Results, measure: Measure) -> None:
    """A device that fails under products and memory traffic at once fails in every real model.

    Both draw from one supply and heat one package, so that each alone is the lighter load. Products
    are compared bit for bit and memory word for word meanwhile. A wrong word with right products
    speaks of the memory, the reverse of arithmetic. One differing bit is a fault of this device,
    repeatable or not: replace it. What else runs beside a model (copies, collectives) is not part.
    """
    _judge(result, peers, measure)
    words = [fault for fault in result["found"] if "offset" in fault]
    measure(
        "wrong words",
        result["wrong_words"],
        at_most=0,
        detail=f"first at offset {words[0]['offset']}, bits {words[0]['bits']}"
        if words
        else "none of them located",
    )
    measure("damaged pattern words", result["reference_wrong"], at_most=0)
    measure("passes", result["passes"], at_least=2, cause=Cause.ENVIRONMENT)  # one each way
    measure(
        "memory verified",
        result["verified_bytes"],
        unit="bytes",
        at_least=max(1, result["passes"] * result["region_bytes"]),
        cause=Cause.ENVIRONMENT,
    )


# Bits of NVML's clock event reasons (nvml.h) that mean a device was held down by more than its
# own power limit, which a full load is meant to reach. Idle, clock settings, sync boost and display
# clocks are no faults of a load.
_HELD_DOWN = {
    "0x8": "hardware slowdown",
    "0x20": "software thermal slowdown",
    "0x40": "hardware thermal slowdown",
    "0x80": "power brake",
}


@check(
    "device.burnin.throttling",
    kinds=(DeviceKind.GPU,),
    remedy=Remedy.RESET_GPU,
    work=_BURN,
    plant=(
        altered(
            "samples of a device held down",
            telemetry={"throttle": {"0x4": 9, "0x40": 1}, "throttle_read": 9, "hottest_c": 95},
        ),
        altered("samples", telemetry={"throttle": {}, "throttle_read": 0, "hottest_c": None}),
    ),
)
def test_throttling(result: Result, measure: Measure) -> None:
    """A device that is held down by heat or by its supply is slow when it is needed most.

    One sample under load with a hardware or thermal slowdown or a power brake is a fail; the power
    cap alone is not, since a full load is meant to reach it. Look at fans, dust, air or coolant, the
    power cables and the supply; a reset clears a state that stuck and cools nothing. Sampled once a
    second: what is shorter than that is seen only by chance, and shows as a slow window.
    """
    seen = result["telemetry"]
    held = {name: seen["throttle"].get(bit, 0) for bit, name in _HELD_DOWN.items()}
    said = ", ".join(f"{name} in {count}" for name, count in held.items() if count)
    measure(
        "samples of a device held down",
        sum(held.values()),
        at_most=0,
        detail=f"{said}; hottest {seen['hottest_c']} C",
    )
    measure(
        "samples",
        seen["throttle_read"],
        at_least=1,
        cause=Cause.ENVIRONMENT,
        detail="the driver did not say why clocks are what they are",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How far a device may lag behind the others of its node."""

    below_median: float = 0.05  # of the median over the devices
    alone_below_median: float = 0.1  # slowest twentieth of its windows, where there is no other
    cpu_below_median: float = 0.4  # the cores of a rehearsal are shared
    cpu_alone_below_median: float = 0.9


@check(
    "node.burnin.spread",
    kinds=(DeviceKind.NODE,),
    remedy=Remedy.RESET_GPU,
    limits=Spread,
    work=_BURN,
    plant=Plant(alter=_laggard),
)
def test_spread(results: Results, measure: Measure, limits: Spread) -> None:
    """A job runs at the pace of its slowest device.

    All devices of a node are of one kind and carry the same load at the same time, so one that lags
    has a cause of its own: cooling, power, a lower clock, a wrong part. A reset may clear it. With
    one device there is nobody to compare with; its windows are then held against their own median.
    """
    measure("devices compared", len(results))
    cpu = any(device.kind is DeviceKind.CPU for device, _ in results)
    if len(results) == 1:
        device, result = results[0]
        measure(
            "largest shortfall of the only device's windows",
            1.0 - result["p5_of_median"],
            at_most=limits.cpu_alone_below_median if cpu else limits.alone_below_median,
            cause=_blame(result),
            detail=f"{device} did not keep its own pace",
        )
        return
    medians = [(result["median_tflops"], device) for device, result in results]
    middle = statistics.median(value for value, _ in medians)
    slowest, laggard = min(medians, key=lambda pair: pair[0])
    measure("median over the devices", middle, unit="TFLOP/s")
    measure(
        "largest shortfall",
        (middle - slowest) / middle,
        at_most=limits.cpu_below_median if cpu else limits.below_median,
        cause=next((c for _, r in results if (c := _blame(r))), None),
        detail=f"{laggard} at {slowest:.4g} of {middle:.4g} TFLOP/s",
    )
