"""What the fused product costs against the library's: rate of one over rate of the other.

    python benchmarks/fused_gemm.py [--seconds 6] [--size 8192]

Both multiply the same bfloat16 operands and alternate within one run, in rounds, so that a GPU that
changes its clock changes it for both. torch.mm writes its product and compares nothing; the fused
kernel compares every bit and writes nothing. Prints one JSON line. Needs a GPU: without one it says
so and ends with status 2.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

import torch

from nodeproof.kernels.formats import Family
from nodeproof.kernels.fused_cell import Cell
from nodeproof.kernels.fused_tiling import tiling
from nodeproof.kernels.operands import make
from nodeproof.kernels.product import settle

_ROUND_S = 0.1  # of each half: much longer than a launch takes to start


def main() -> int:
    """Measure the median rate of each half."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--size", type=int, default=8192)
    args = parser.parse_args()
    if not torch.cuda.is_available() or torch.version.cuda is None:
        print("this measures a GPU, and torch finds none that it can use by CUDA", file=sys.stderr)
        return 2
    from nodeproof.kernels import fused_triton  # noqa: PLC0415  comes with torch for CUDA only

    settle(torch.get_num_threads())
    device = torch.device("cuda:0")
    facts = torch.cuda.get_device_properties(device)
    cell = Cell(
        make("bfloat16", Family.LONG, size=args.size, seed=1),
        size=args.size,
        device=device,
        cut=tiling("bfloat16", (facts.major, facts.minor)),
        programs=facts.multi_processor_count,
        emulated_sms=0,
        kernels=fused_triton,
    )
    right = cell.b.t()
    times = 1

    def library() -> float:
        begun = time.perf_counter()
        for _ in range(times):
            torch.mm(cell.a, right)
        torch.cuda.synchronize(device)
        return 2.0 * args.size**2 * cell.depth * times / (time.perf_counter() - begun)

    def fused() -> float:
        begun = time.perf_counter()
        launched = cell.launch()
        spent = time.perf_counter() - begun
        if launched.wrong or launched.tiles.total() != launched.items:
            raise SystemExit(f"wrong elements by SM: {launched.wrong}, first {launched.faults[:1]}")
        cell.pace(spent, _ROUND_S, 1 << 22)
        return launched.items * cell.operations_per_tile / spent

    library()
    fused()  # compiles
    work = 2.0 * args.size**2 * cell.depth
    times = max(1, int(_ROUND_S * library() / work))
    rates: tuple[list[float], list[float]] = ([], [])
    ends = time.perf_counter() + args.seconds
    while time.perf_counter() < ends or len(rates[0]) < 6:
        rates[0].append(library() / 1e12)
        rates[1].append(fused() / 1e12)
    # The first rounds find the pace.
    plain, checked = (statistics.median(each[2:]) for each in rates)
    print(
        json.dumps(
            {
                "benchmark": "fused_gemm",
                "device": facts.name,
                "size": args.size,
                "depth": cell.depth,
                "cublas_tflops": round(plain, 1),
                "fused_tflops": round(checked, 1),
                "ratio": round(checked / plain, 3),
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
