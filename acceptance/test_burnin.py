"""Sustained load: is it still right when hot, does it keep its pace, and do all keep the same?"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from nodeproof.checks import (
    COMPUTE,
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
        altered("products", products=0),
        altered("checked elements", checked_elements=0),
    ),
)
def test_exact(result: Result, measure: Measure) -> None:
    """A device that computes wrongly only when hot passes every short test and fails in the job.

    The same products as in the arithmetic checks, back to back at full power, each of them compared
    bit for bit. One differing bit is a fault of this device, repeatable or not. Better cooling may
    make it rarer and does not make the device sound: replace it.
    """
    detail = ""
    if result["wrong"]:
        first = result["found"][0]
        detail = (
            f"first in {first['dtype']} product {first['product']}, row {first['row']}, column {first['column']}: "
            f"{first['got']} instead of {first['expected']}, bits {first['bits']}; operands "
            f"intact: {result['operands_intact']}; wrong again in {result['replay']} of 3 repeats, "
            f"which excuses nothing"
        )
    measure("wrong elements", result["wrong"], at_most=0, detail=detail)
    measure("products", result["products"], at_least=1)
    measure("checked elements", result["checked_elements"], at_least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """What a device has to keep up."""

    median_tflops: float = 0.0  # 0: no figure is known for this kind of device, so none is asked
    p5_of_median: float = 0.9
    # The cores of a rehearsal are shared, with this machine's other work or another machine's.
    cpu_p5_of_median: float = 0.1
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
        "telemetry",
        result["telemetry"]["hz"],
        unit="Hz",
        at_least=limits.telemetry_hz,
        cause=Cause.ENVIRONMENT,
        detail="temperature, power and clocks were not sampled while the load ran",
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
