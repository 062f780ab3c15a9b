"""What it costs to compare every bit of every product: time with the comparison over time without.

    python benchmarks/checking_cost.py [--device cpu|cuda:0] [--seconds 2]

Both halves alternate within one run, in rounds, so that a machine that changes its pace changes it
for both. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

from nodeproof.kernels.formats import SPAN, Family
from nodeproof.kernels.operands import make
from nodeproof.kernels.product import Prover, product, settle, wide_output
from nodeproof.kernels.stored import load


def main() -> None:
    """Measure each number format that the burn-in or the arithmetic checks multiply in."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each format")
    args = parser.parse_args()
    device = torch.device(args.device)
    settle(torch.get_num_threads())
    ratios = {}
    for dtype in ("float32", "bfloat16"):
        wide = dtype == "float32" or wide_output(device)
        family = Family.LONG if wide else Family.CANCEL_LIFT
        size = 8192 if device.type == "cuda" else 2 * SPAN
        loaded = load(
            make(dtype, family, size=size, seed=1),
            size=size,
            output="float32" if wide else dtype,
            device=device,
        )
        prover = Prover(seed=1, device_id=args.device)
        plain, checked = _alternate(
            lambda loaded=loaded: product(loaded),
            lambda prover=prover, loaded=loaded: prover.prove(loaded, spoil=False),
            device,
            args.seconds,
        )
        if prover.wrong:
            raise SystemExit(f"{dtype}: {prover.wrong} wrong elements: {prover.found[0]}")
        ratios[dtype] = round(checked / plain, 3)
    print(json.dumps({"benchmark": "checking_cost", "device": args.device, "ratio": ratios}))


def _alternate(
    first: Callable[[], object], second: Callable[[], object], device: torch.device, seconds: float
) -> tuple[float, float]:
    """Median seconds of each, over rounds that alternate; the first round of each warms up."""
    times: tuple[list[float], list[float]] = ([], [])
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends or len(times[0]) < 4:
        for work, taken in zip((first, second), times, strict=True):
            begun = time.perf_counter()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            taken.append(time.perf_counter() - begun)
    return statistics.median(times[0][1:]), statistics.median(times[1][1:])


if __name__ == "__main__":
    main()
