"""What remains of a device's speed when every element of every product is held against its answer.

    python benchmarks/verified_gemm.py [--device cpu|cuda:0] [--method prover] [--rounds 15] [--json]

Plain and verified products alternate within one run. Verified is: multiply, then compare the whole
output, bit for bit, with an answer that the host made from the operands by integer arithmetic.
Products of the plain half are compared too, outside of the time taken. In one of the verified ones,
within the time taken, one bit is flipped at a place drawn from the seed: if that is not found, or
anything else is, the status is 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from nodeproof.kernels.bits import raw
from nodeproof.kernels.checksum import Comparison, Freivalds
from nodeproof.kernels.draws import words
from nodeproof.kernels.formats import Family
from nodeproof.kernels.operands import make
from nodeproof.kernels.product import Prover, product, settle, wide_output
from nodeproof.kernels.stored import Loaded, load

METHODS = ("prover", "comparison", "freivalds")
_WARM = 2  # rounds before any time counts


def main() -> int:
    """Measure, and print one JSON line or a sentence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--method", default="prover", choices=METHODS)
    parser.add_argument("--size", type=int, default=0, help="rows and columns; 0 for the device's")
    parser.add_argument("--rounds", type=int, default=15, help="products of each half")
    parser.add_argument("--seed", type=int, default=time.time_ns() & 0xFFFFFFFF)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds: at least one product of each half")
    device = torch.device(args.device)
    settle(torch.get_num_threads())
    loaded = _loaded(device, args.size, args.seed)
    run = Run(loaded, method=args.method, seed=args.seed, rounds=args.rounds)
    run.measure()
    line = {"benchmark": "verified_gemm", "device": args.device, "method": args.method}
    line |= {"dtype": loaded.operands.dtype, "output": loaded.output, "size": loaded.size}
    line |= {"depth": loaded.operands.depth, "seed": args.seed, **run.result()}
    if args.json:
        print(json.dumps(line))
    else:
        print(
            f"{line['dtype']} {loaded.size}: {line['raw_gflops']} GFLOP/s plain, "
            f"{line['verified_gflops']} verified by {args.method}: {line['ratio']}"
        )
    for sentence in run.wrong():
        print(sentence, file=sys.stderr)
    return 1 if run.wrong() else 0


def _loaded(device: torch.device, size: int, seed: int) -> Loaded:
    gpu = device.type == "cuda"
    size = size or (8192 if gpu else 2048)
    dtype = "bfloat16" if gpu and wide_output(device) else "float32"
    operands = make(dtype, Family.LONG, size=size, seed=seed)
    return load(operands, size=size, output="float32", device=device)


class Run:
    """Alternates plain and verified products, and keeps what was found."""

    def __init__(self, loaded: Loaded, *, method: str, seed: int, rounds: int) -> None:
        self._loaded, self._rounds = loaded, rounds
        draws = words(seed, "verified gemm", 1, 4)[0].tolist()
        self._at = _WARM + draws[0] % rounds
        # The lowest bits are those that a tolerance would miss.
        self._place = (draws[1] % loaded.size, draws[2] % loaded.size, draws[3] % 4)
        self._plain = Comparison(loaded)
        self._prover = Prover(seed=seed, device_id=str(loaded.a.device))
        self._verify: Callable[[bool], bool] = {
            "prover": self._by_prover,
            "comparison": lambda flip: self._by(self._plain, flip=flip),
            "freivalds": lambda flip: self._by(freivalds, flip=flip),
        }[method]
        freivalds = Freivalds(loaded, seed=seed) if method == "freivalds" else self._plain
        self._times: tuple[list[float], list[float]] = ([], [])
        self._false = 0
        self._missed = 0
        self._caught = 0
        self._checked = 0

    def measure(self) -> None:
        """Run all rounds: the halves take turns in going first."""
        for number in range(self._rounds + _WARM):
            for half in (0, 1) if number % 2 else (1, 0):
                flip = bool(half) and number == self._at
                self._finish()
                begun = time.perf_counter()
                if half:
                    seen = self._verify(flip)
                else:
                    output = product(self._loaded)
                    self._finish()
                spent = time.perf_counter() - begun
                if not half:
                    seen = self._plain.check(output).wrong > 0
                    del output
                self._checked += self._loaded.size**2
                self._caught += flip and seen
                self._missed += flip and not seen
                self._false += seen and not flip
                if number >= _WARM:
                    self._times[half].append(spent)

    def result(self) -> dict[str, Any]:
        """The figures: of medians, so that the product with the flip does not tilt them."""
        plain, verified = (statistics.median(times) for times in self._times)
        giga = self._loaded.operations / 1e9
        return {
            "rounds": self._rounds,
            "raw_gflops": round(giga / plain, 2),
            "verified_gflops": round(giga / verified, 2),
            "ratio": round(plain / verified, 4),
            "best_ratio": round(min(self._times[0]) / min(self._times[1]), 4),
            "checked_elements": self._checked,
            "flips": 1,
            "caught": self._caught,
            "false_alarms": self._false,
        }

    def wrong(self) -> list[str]:
        """Why the run proves nothing, if so."""
        reasons = []
        if self._caught != 1 or self._missed:
            reasons.append("the flipped bit was not found: the comparison is dead")
        if self._false:
            reasons.append(f"{self._false} products were wrong without a fault of ours")
        return reasons

    def _by_prover(self, flip: bool) -> bool:  # noqa: FBT001  one of three alike
        wrong = self._prover.wrong
        self._prover.prove(self._loaded, flip=flip, spoil=False)
        return self._prover.wrong > wrong

    def _by(self, check: Comparison | Freivalds, *, flip: bool) -> bool:
        output = product(self._loaded)
        if flip:
            row, column, bit = self._place
            raw(output)[row, column] ^= 1 << bit
        return check.check(output).wrong > 0

    def _finish(self) -> None:
        if self._loaded.a.device.type == "cuda":
            torch.cuda.synchronize(self._loaded.a.device)


if __name__ == "__main__":
    sys.exit(main())
