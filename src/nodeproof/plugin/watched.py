"""What the telemetry of a device showed while it did one piece of work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def watched(
    samples: Sequence[Mapping[str, Any]],
    *,
    since: Mapping[str, Any],
    seconds: float,
    silence_s: float,
) -> dict[str, Any]:
    """Sum up the samples that came in during `seconds`; `since` is the first of the run.

    - `samples`, `hz`: how many, and how many a second;
    - `throttle`: in how many of them each bit of the clock event reasons was set, by "0x8";
      `throttle_read`: in how many those bits could be read at all;
    - `at_start`: the device's counters of its errors in the first sample of the run;
    - `hottest_c`: the highest temperature that was read, `None` where none was;
    - `pcie`: of the link to the host, the least `width` while the device worked, and the most that
      is `width_able`; the highest `generation` (idle samples have a lower one) and the highest that
      is `able` to be; `None` where none was read; `virtual`: see `nodeproof.probes.telemetry`;
    - `silence_s`: for how long the worker itself was not heard.

    By bit and over all samples: a mask compared as a whole loses combined reasons, and the state
    at the end is not that under load.
    """
    bits: Counter[str] = Counter()
    masks = [m for s in samples if isinstance(m := s.get("throttle"), int)]
    for mask in masks:
        bits.update(hex(1 << n) for n in range(mask.bit_length()) if mask >> n & 1)
    heat = _numbers(samples, "temperature_c")
    return {
        "samples": len(samples),
        "hz": len(samples) / seconds if seconds > 0 else 0.0,
        "throttle": dict(bits),
        "throttle_read": len(masks),
        "at_start": dict(since.get("counters") or {}),
        "hottest_c": max(heat, default=None),
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


def _numbers(samples: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [value for s in samples if isinstance(value := s.get(name), int | float)]
