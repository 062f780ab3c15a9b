"""Memory that is left alone: every bit has to be there after a while, as one and as zero.

A cell of DRAM loses its charge and is refreshed some tens of times a second. Whoever goes over
memory all the time refreshes it by reading; only memory that nobody touches shows whether the
device refreshes it itself.
"""

from __future__ import annotations

import time
from typing import Any

from nodeproof.kernels import alone
from nodeproof.kernels.claim import MIB
from nodeproof.kernels.memory import Meter, filled, finish, flip, outcome
from nodeproof.worker import Context

_LEAST_S = 0.01  # each state is held for a moment at least
_LOOK_S = 0.5  # from one sign of life to the next


def hold(
    context: Context, *, cpu_mib: float, gpu_share: float, seconds: float = 0.0, plant: str = ""
) -> dict[str, Any]:
    """Fill memory, leave it for half of `seconds`, verify and invert it, and once more.

    Of a GPU's free memory a share, or `cpu_mib` MiB. With `plant="flip"` one bit is flipped in each
    of the two states, and in the pattern at the end. Returns `wrong` (words), `found`, `planted`, `compared`, `strides`,
    `reference_wrong` (words of the pattern itself), `held` (states that were held and verified),
    `held_s` (the shorter of the two), `path` ("fused" or "torch"), `loaded_s` (both) and how much
    was tested of what, as `Claim.facts` has it. Raises `ValueError` for a share or size that is
    none, `RuntimeError` where that much memory cannot be had.
    """
    taken, sweep = filled(context, cpu_mib=cpu_mib, gpu_share=gpu_share, plant=plant)
    meter = Meter(context)
    planted, times = [], []
    for inverted, phase in ((False, "as written"), (True, "inverted")):
        finish(taken)
        begun = time.perf_counter()
        _leave(meter, phase, seconds / 2, sweep.bytes)
        times.append(time.perf_counter() - begun)
        if plant:
            planted.append(flip(context, sweep, phase, inverted=inverted))
        steps = sweep.verify(phase, inverted=inverted, invert=not inverted)
        meter.follow(f"verifying {phase}", steps, sweep.bytes)
    finish(taken)
    return {
        **outcome(context, taken, sweep, planted),
        "held": sweep.verified // sweep.bytes,
        "held_s": min(times),
        "loaded_s": sum(times),
    }


def _leave(meter: Meter, phase: str, seconds: float, size: int) -> None:
    """Touch nothing for a while, and show that we are alive."""
    begun = time.perf_counter()
    while (spent := time.perf_counter() - begun) < max(seconds, _LEAST_S):
        meter.tell(f"holding {phase}", spent, size)
        time.sleep(min(max(seconds, _LEAST_S) - spent, _LOOK_S))


def main() -> None:
    """Prove that planted faults are found, then hold memory for ten seconds."""
    context = alone.context()
    alone.caught(hold(context, cpu_mib=64, gpu_share=0.9, plant="flip"))
    print("planted faults found")
    result = hold(context, cpu_mib=256, gpu_share=0.9, seconds=10)
    if result["wrong"] or result["reference_wrong"]:
        raise SystemExit(f"{result['wrong']} words wrong: {result['found']}")
    print(f"{result['bytes'] / MIB:.0f} MiB held twice for {result['held_s']:.1f} s")


if __name__ == "__main__":
    main()
