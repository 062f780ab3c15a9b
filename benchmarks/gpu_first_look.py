"""The first thing to run on a machine with a GPU: does each path that only a GPU takes work there?

    PYTHONPATH=src python benchmarks/gpu_first_look.py [--output DIR] [--only NAME,NAME]

Each part runs in a process of its own under a deadline, so that one that hangs or crashes costs
itself alone; one JSON line for each, then one that sums up. Needs no installation beyond the
libraries: give missing wheels on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS: dict[str, tuple[list[str], float]] = {
    "devices": (["-m", "nodeproof", "record", "--device", "cuda", "-o", "{output}/node.json"], 60),
    "gemm": (["-m", "nodeproof.kernels.gemm"], 180),
    "memory": (["-m", "nodeproof.kernels.memory"], 180),
    **{
        name: (["-m", f"nodeproof.kernels.{name}"], 300)
        for name in (
            *("march", "neighbours", "retention", "cache", "atomics", "onchip", "fused"),
            *("float_chain", "integer_chain", "special", "transfers", "training_step"),
            *("pulses", "together"),
        )
    },
    "burn": (["-m", "nodeproof.kernels.burn"], 120),
    "verified_gemm": ([str(ROOT / "benchmarks" / "verified_gemm.py"), "--device", "cuda:0"], 120),
    "memory_check": ([str(ROOT / "benchmarks" / "memory_check.py"), "--device", "cuda:0"], 120),
    "fused_gemm": ([str(ROOT / "benchmarks" / "fused_gemm.py")], 180),
    "selftest": (["-m", "nodeproof", "selftest", "--device", "cuda"], 200),
    "run": (
        ["-m", "nodeproof", "run", "--device", "cuda", "--output", "{output}/run"],
        240,
    ),
}


def main() -> int:
    """Run every part; 0 if all of them ended with status 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(os.environ.get("OUT", "first-look")))
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run: all")
    args = parser.parse_args()
    output: Path = args.output.absolute()
    chosen = args.only.split(",")
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"no part {', '.join(unknown)}; known: {', '.join(PARTS)}")
    output.mkdir(parents=True, exist_ok=True)
    good = 0
    for name in chosen:
        command, limit_s = PARTS[name]
        status, seconds = _part(name, [c.format(output=output) for c in command], limit_s, output)
        good += status == 0
        line = {"part": name, "status": status, "seconds": round(seconds, 1)}
        print(json.dumps(line), flush=True)
    print(json.dumps({"benchmark": "gpu_first_look", "ratio": good / len(chosen)}))
    return 0 if good == len(chosen) else 1


def _part(name: str, command: list[str], limit_s: float, output: Path) -> tuple[int | str, float]:
    begun = time.perf_counter()
    with (output / f"{name}.log").open("wb") as log:
        try:
            done = subprocess.run(
                [sys.executable, "-P", *command],
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"over {limit_s:g} s", time.perf_counter() - begun
    return done.returncode, time.perf_counter() - begun


if __name__ == "__main__":
    sys.exit(main())
