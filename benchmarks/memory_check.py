"""What it costs to compare every bit of memory: speed of verifying over speed of just reading.

    python benchmarks/memory_check.py [--device cpu|cuda:0] [--seconds 4] [--mib N] [--json]

Both go over the same memory, in alternation within one run, so that a machine that changes its pace
changes it for both; and so do verifying with inversion, and inverting alone, which read and write.
Prints one line; with --json as JSON. On a processor one thread works, and its CPU seconds count, so
that what else the machine does is left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from nodeproof.kernels.cells import Pattern, Sweep
from nodeproof.kernels.memory import fused_kernel, words_of_block

_MIB = 1 << 20


def main() -> None:
    """Measure, and refuse to report a speed at which a planted bit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--mib", type=int, default=0, help="128 on a processor, 16384 on a GPU")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    device = torch.device(args.device)
    gpu = device.type == "cuda"
    if not gpu:
        torch.set_num_threads(1)
    sweep, cells = _filled(device, args.mib or (16384 if gpu else 128))
    planted = sweep.flip(sweep.bytes // 16 * 8, 21, "planted", inverted=False)
    _take(sweep.verify("planted", inverted=False, invert=False))
    if sweep.found != [planted]:
        raise SystemExit(f"planted {planted}, found {sweep.found}")
    raw, verify, invert, both = _alternate(
        [
            lambda: _read(cells),
            lambda: _take(sweep.verify("timed", inverted=False, invert=False)),
            lambda: _invert(cells),
            lambda: _take(sweep.verify("timed", inverted=True)),  # puts right what _invert turned
        ],
        device,
        args.seconds,
    )
    if sweep.wrong != 1:
        raise SystemExit(f"{sweep.wrong} words wrong: {sweep.found}")
    size = sweep.bytes / 1e9
    line: dict[str, Any] = {
        "benchmark": "memory_check",
        "device": args.device,
        "path": sweep.path,
        "mib": sweep.bytes // _MIB,
        "raw_gb_per_s": round(size / raw, 2),
        "verify_gb_per_s": round(size / verify, 2),
        "ratio": round(raw / verify, 3),
        "invert_gb_per_s": round(2 * size / invert, 2),
        "verify_and_invert_gb_per_s": round(2 * size / both, 2),
        "ratio_of_both": round(invert / both, 3),
    }
    print(json.dumps(line) if args.json else "  ".join(f"{k}={v}" for k, v in line.items()))


def _filled(device: torch.device, mib: int) -> tuple[Sweep, Any]:
    fast = fused_kernel(device)
    block = words_of_block(device, fused=fast is not None)
    size = max(mib * _MIB // 8 // block, 1) * block
    pattern = Pattern(seed=1, block=block, device=device)
    cells = (
        torch.empty(size, dtype=torch.int64, device=device)
        if device.type == "cuda"
        else torch.from_numpy(np.empty(size, np.int64))
    )
    fused = fast.Verifier(pattern, size // block) if fast else None
    sweep = Sweep(pattern=pattern, pieces=[cells], block=block, fused=fused)
    _take(sweep.fill())
    return sweep, cells


def _read(cells: Any) -> None:
    cells.sum()


def _invert(cells: Any) -> None:
    torch.bitwise_not(cells, out=cells)


def _take(steps: Iterator[int]) -> None:
    for _ in steps:
        pass


def _alternate(
    works: list[Callable[[], None]], device: torch.device, seconds: float
) -> list[float]:
    """Median seconds of each, over rounds that alternate; the first round of each warms up."""
    clock = time.perf_counter if device.type == "cuda" else time.thread_time
    times: list[list[float]] = [[] for _ in works]
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends or len(times[0]) < 6:
        for work, taken in zip(works, times, strict=True):
            begun = clock()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            taken.append(clock() - begun)
    return [statistics.median(taken[1:]) for taken in times]


if __name__ == "__main__":
    main()
