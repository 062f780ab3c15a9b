"""Sustained load whose every product is compared, and how evenly the device kept it up."""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

import torch

from nodeproof.kernels import alone
from nodeproof.kernels.draws import words
from nodeproof.kernels.faults import known
from nodeproof.kernels.formats import SPAN
from nodeproof.kernels.full_load import FullLoad
from nodeproof.kernels.place import place
from nodeproof.kernels.stopwatch import Stopwatch
from nodeproof.worker import Context

_WINDOW_S = 0.25
_MOST_WINDOWS = 2000
_PLANTED_WINDOWS = 14  # the slowest of up to 20 is their fifth percentile
_PLANTED_WINDOW_S = 0.1
_STALL = 25  # how many times slower the planted window is than the slowest before it
_FLIPS = 2  # planted bits, one in a window
# Of the median. Processors are shared: virtual ones were seen at a quarter of their pace.
_SLOW = {"cuda": 0.5, "cpu": 1 / 16}
_GPU_NEED = 3 << 30  # bytes for two sets of the largest operands, the product and its comparison


def burn(context: Context, *, seconds: float = 0.0, plant: str = "") -> dict[str, Any]:
    """Multiply for `seconds`, in windows of a quarter of a second (longer where many are needed).

    Each product is compared in full, on the device. `plant="flip"` flips one bit in two products;
    `plant="slow"` makes one window 25 times slower than any before it. Returns what
    `FullLoad.report` gives, except that a stalled window is planted and found as `{"window": n}`;
    and `windows` (TFLOP/s over wall time, comparing included), `median_tflops`, `p5_tflops`
    (nearest rank), `p5_of_median`, `drift` (see there), `slow` (windows below half of the median, a
    sixteenth on a processor), `window_s`, `loaded_s` and `loaded_between` (when the first window
    began and the last ended, by the monotonic clock, which all processes of a machine share). Raises
    `ValueError` for an unknown plant.
    """
    known(plant, "flip", "slow")
    device = place(context)
    load = FullLoad(context, device, size=_size(device, context))
    load.warm_up()
    window_s = max(_WINDOW_S, seconds / _MOST_WINDOWS)
    count, stalled = 1, -1
    if plant == "flip":
        window_s, count = _PLANTED_WINDOW_S, _FLIPS
    if plant == "slow":
        window_s, count = _PLANTED_WINDOW_S, _PLANTED_WINDOWS
        # In the later half, when the pace is known that the stall has to fall short of.
        half = count // 2
        stalled = half + int(words(context.seed, "stall", 1, 1)[0, 0]) % (count - half)
    rates: list[float] = []
    begun = time.monotonic()
    watch = Stopwatch(context, seconds)
    while len(rates) < count or watch.spent < seconds:
        stall_to = min(rates) / _STALL if len(rates) == stalled else 0.0
        flip = plant == "flip" and load.flipped < _FLIPS
        rates.append(_window(load, window_s, stall_to=stall_to, flip=flip))
        watch.read()
        watch.tell(tflops=rates[-1], done=watch.share)
    ended = time.monotonic()
    median, low = statistics.median(rates), percentile(rates, 5)
    slow = [index for index, rate in enumerate(rates) if rate < _SLOW[device.type] * median]
    report = load.report()
    if plant == "slow":
        report["planted"] = [{"window": stalled}]
        # A wrong product stays in the list, so that it can't hide behind the planted stall.
        report["found"] = [{"window": index} for index in slow] + report["found"]
    return {
        **report,
        "windows": rates,
        "window_s": window_s,
        "median_tflops": median,
        "p5_tflops": low,
        "p5_of_median": low / median,
        "drift": drift(rates),
        "slow": slow,
        "loaded_s": watch.spent,
        "loaded_between": [begun, ended],
    }


def drift(values: list[float]) -> float:
    """By how much the median of the last quarter is below that of the second, as a share of it.

    Negative where it rose. The first quarter is left out: a cold device starts at clocks that no
    device keeps, because a warm one leaks more and its power is capped.
    """
    quarter = max(1, len(values) // 4)
    early = statistics.median(values[quarter : 2 * quarter] or values)
    return 1.0 - statistics.median(values[-quarter:]) / early


def percentile(values: list[float], percent: int) -> float:
    """The nearest-rank percentile: a value that was measured, never one between two."""
    return sorted(values)[max(math.ceil(len(values) * percent / 100), 1) - 1]


def _window(load: FullLoad, window_s: float, *, stall_to: float, flip: bool) -> float:
    """TFLOP/s of one window. Comparing waits for the device, so both ends are synchronised.

    With `stall_to` the window is one product, and then a stall until its rate has fallen to that:
    others who stall at the same moment leave this device more of a shared machine, so a stall of
    a set length would not make it slow for certain.
    """
    operations, begun = 0.0, time.perf_counter()
    while True:
        operations += load.multiply(flip=flip and not operations)
        spent = time.perf_counter() - begun
        if stall_to:
            time.sleep(max(0.0, operations / 1e12 / stall_to - spent))
            return operations / (time.perf_counter() - begun) / 1e12
        if spent >= window_s:
            return operations / spent / 1e12


def _size(device: Any, context: Context) -> int:
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what earlier work in this process holds is not in use
        free, _ = torch.cuda.mem_get_info(device)
        return 8192 if free >= _GPU_NEED else 4096
    # Some 10 ms for each product, whatever the number of threads.
    side: float = 768 * context.threads ** (1 / 3)
    step = 128 if side < SPAN else SPAN
    return round(side / step) * step


def main() -> None:
    """Prove that planted faults are found, then burn for five seconds and say how evenly."""
    context = alone.context()
    for plant in ("flip", "slow"):
        planted = alone.caught(burn(context, plant=plant))
        print(f"planted fault caught: {planted[0]}")
    result = burn(context, seconds=5.0)
    if result["wrong"]:
        raise SystemExit(f"{result['wrong']} elements wrong: {result['found'][0]}")
    print(
        f"{result['products']} products of {result['dtype']} {result['size']} exact: median "
        f"{result['median_tflops']:.3f} TFLOP/s, slowest 5 % at {result['p5_of_median']:.2f} of it"
    )


if __name__ == "__main__":
    main()
