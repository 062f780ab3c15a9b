"""What the telemetry of a device showed while it did one piece of work."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

# nvml.h, clock event reasons. A hardware slowdown that names neither heat nor the power brake can
# show while clocks change, by the same file, so one such reading says nothing.
_SLOWDOWN, _NAMED = 0x8, 0x20 | 0x40 | 0x80
_NO_READINGS = frozenset({"device", "refusal", "counters", "virtual", "at"})  # of a sample


def watched(
    samples: Sequence[Mapping[str, Any]],
    *,
    since: Mapping[str, Any],
    seconds: float,
    silence_s: float,
    load: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """Sum up the samples that came in during `seconds`; `since` is the first of the run.

    A sample is dated by `at`. With `load`, from when to when the device was loaded by the same
    clock, only samples from within count for what follows, down to `hottest_c`; making operands and
    the change from idle to full clocks are no load.

    - `load_s`: for how long that was; `hz`: how many samples a second that had any reading;
    - `throttle`: in how many of them each bit of the clock event reasons was set, by "0x8";
      `throttle_read`: in how many those bits could be read at all;
    - `gap_s`: the longest time without such a reading, `None` without `load`;
    - `unnamed`: in how many a hardware slowdown was set with neither heat nor brake beside it, and
      `unnamed_in_a_row`: in how many of them one after another;
    - `sm_mhz`: the median clock, and `hottest_c`, the highest temperature; `None` where none was
      read;
    - `samples`: how many there were in all;
    - `at_start`: the device's counters of its errors in the first sample of the run;
    - `pcie`: of the link to the host, the least `width` while the device worked, and the most that
      is `width_able`; the highest `generation` (idle samples have a lower one) and the highest that
      is `able` to be; `None` where none was read; `virtual`: see `nodeproof.probes.telemetry`;
    - `silence_s`: for how long the worker itself was not heard.

    By bit and over all samples: a mask compared as a whole loses combined reasons, and the state
    at the end is not that under load.
    """
    taken = [s for s in samples if load is None or _within(load, s.get("at"))]
    load_s = seconds if load is None else load[1] - load[0]
    read = [s for s in taken if _mask(s) is not None]
    masks = [mask for s in read if (mask := _mask(s)) is not None]
    bits: Counter[str] = Counter()
    for mask in masks:
        bits.update(hex(1 << n) for n in range(mask.bit_length()) if mask >> n & 1)
    unnamed = [bool(mask & _SLOWDOWN) and not mask & _NAMED for mask in masks]
    return {
        "samples": len(samples),
        "load_s": load_s,
        "hz": sum(map(_told, taken)) / load_s if load_s > 0 else 0.0,
        "throttle": dict(bits),
        "throttle_read": len(masks),
        "gap_s": None if load is None else _gap(load, [s["at"] for s in read]),
        "unnamed": sum(unnamed),
        "unnamed_in_a_row": max((len(list(run)) for so, run in groupby(unnamed) if so), default=0),
        "sm_mhz": statistics.median(clocks) if (clocks := _numbers(taken, "sm_mhz")) else None,
        "hottest_c": max(_numbers(taken, "temperature_c"), default=None),
        "at_start": dict(since.get("counters") or {}),
        "pcie": {
            "width": min(_numbers(_working(samples), "pcie_width"), default=None),
            "width_able": max(_numbers(samples, "pcie_width_able"), default=None),
            "generation": max(_numbers(samples, "pcie_generation"), default=None),
            "able": max(_numbers(samples, "pcie_generation_able"), default=None),
            "virtual": next((v for s in samples if (v := s.get("virtual")) is not None), None),
        },
        "silence_s": silence_s,
    }


def _working(samples: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Without those in which the device idled and may have spared lanes.

    Where it idled in all of them that is not believed of it, and where nobody says, it worked.
    """
    return [s for s in samples if s.get("utilisation") != 0] or samples


def _within(load: tuple[float, float], at: object) -> bool:
    return isinstance(at, int | float) and load[0] <= at <= load[1]


def _mask(sample: Mapping[str, Any]) -> int | None:
    mask = sample.get("throttle")
    return mask if isinstance(mask, int) else None


def _told(sample: Mapping[str, Any]) -> bool:
    """Whether there is a reading in it: where every query was refused nothing was watched."""
    return any(v is not None for name, v in sample.items() if name not in _NO_READINGS)


def _gap(load: tuple[float, float], moments: Sequence[float]) -> float:
    return max(after - before for before, after in pairwise([load[0], *moments, load[1]]))


def _numbers(samples: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [value for s in samples if isinstance(value := s.get(name), int | float)]
