"""How many faults of each class the checks of a product find, and what looser ones would let pass.

    python benchmarks/detection.py [--device cpu|cuda:0] [--faults 10000] [--size 0] [--seed S]

Each fault goes in between torch and `Prover`, which every check of arithmetic uses, and which
multiplies and compares without knowing. The other methods then judge the same output. Faults
that changed no bit of the product (a flip that a sum rounds away) nobody could see: they are
counted as masked, and another is drawn. Prints one JSON line for each class and method, with the
95 % interval of Clopper and Pearson, and one that sums up. The status is 1 if a method missed what
it is certain to find, or found something in a product without a fault.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from nodeproof.kernels.bits import raw
from nodeproof.kernels.checksum import checks
from nodeproof.kernels.formats import Family
from nodeproof.kernels.inject import Fault, Where
from nodeproof.kernels.operands import make
from nodeproof.kernels.product import Prover, product, settle, wide_output
from nodeproof.kernels.stored import Loaded, load
from nodeproof.kernels.strike import Struck, strike

# What is certain by proof: of the other classes these methods miss fewer than could be counted.
_ALL = tuple(Where)
CERTAIN = {
    "prover": _ALL,
    "comparison": _ALL,
    "freivalds": (Where.ELEMENT,),
    "skinny": (Where.ELEMENT,),
}
CONTRAST = ("allclose rtol=1e-2", "bits rounded to bfloat16")
_LOADS = (  # dtype, family and dtype of the product, where torch has it
    ("float32", Family.WIDE, "float32"),
    ("float32", Family.CANCEL_LIFT, "float32"),
    ("bfloat16", Family.CANCEL_LIFT, "bfloat16"),
    ("int8", Family.WIDE, "int32"),
    ("float64", Family.CANCEL_LIFT, "float64"),
)


def main() -> int:
    """Run the campaign and print what it found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--faults", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=0, help="rows and columns; 0 for the device's")
    parser.add_argument("--seed", type=int, default=time.time_ns() & 0xFFFFFFFF)
    parser.add_argument(
        "--clean", type=float, default=0.0, help="elements without a fault to check as well"
    )
    args = parser.parse_args()
    begun = time.perf_counter()
    device = torch.device(args.device)
    gpu = device.type == "cuda"
    size = args.size or (2048 if gpu else 256)
    # Small products: threads would wait for each other for longer than they compute.
    settle(1 if size < 1024 else torch.get_num_threads())
    rows = [*_LOADS, ("bfloat16", Family.WIDE, "float32")] if wide_output(device) else _LOADS
    ranges = [Range(*row, size=size, seed=args.seed, device=device) for row in rows if args.faults]
    # A processor takes the others element by element, and would need days for them.
    quick = rows if gpu else [row for row in rows if row[0] == "float32"]
    tally = Tally()
    for number in range(args.faults):
        ranges[number % len(ranges)].hit(number, tally)
    clean, false = 0, sum(part.false_alarms for part in ranges)
    renewed = args.seed
    while clean < args.clean:
        renewed += 1  # other operands each time: nothing may depend on one set
        for row in quick:
            fresh = Range(*row, size=size, seed=renewed, device=device)
            clean += fresh.checked
            false += fresh.false_alarms
    missed = tally.missed()
    for line in tally.lines():
        print(json.dumps(line))
    summary = {
        "benchmark": "detection",
        "device": args.device,
        "size": size,
        "seed": args.seed,
        "faults": args.faults,
        "masked": sum(tally.masked.values()),
        "classes": len({name for name, _ in tally.total}),
        "missed_where_certain": missed,
        "missed": {name: count for name, count in tally.by_method().items() if count},
        "clean_elements": clean + sum(part.checked for part in ranges),
        "false_alarms": false,
        "seconds": round(time.perf_counter() - begun, 1),
    }
    print(json.dumps(summary))
    return 1 if missed or false else 0


class Range:
    """Operands to put faults into the products of, and every check of these products.

    Checks a product without a fault first: what each method says of that is a false alarm.
    """

    def __init__(
        self, dtype: str, family: Family, output: str, *, size: int, seed: int, device: Any
    ) -> None:
        self._seed = seed

        def loaded(seed: int) -> Loaded:
            operands = make(dtype, family, size=size, seed=seed)
            return load(operands, size=size, output=output, device=device)

        self._loaded, self._other = loaded(seed), lambda: loaded(seed + 1_000_003)
        self._prover = Prover(seed=seed, device_id=str(device))
        self._checks = checks(self._loaded, seed=seed)
        self._prover.prove(self._loaded, spoil=False)
        clean = product(self._loaded)
        self.checked = 2 * size * size
        self.false_alarms = int(self._prover.wrong > 0) + sum(
            check.check(clean).wrong > 0 for check in self._checks.values()
        )

    @cached_property
    def _before(self) -> Any:
        """What the memory held before: the product of other operands."""
        return _whole(self._other())

    @cached_property
    def _answer(self) -> Any:
        return _whole(self._loaded).view(getattr(torch, self._loaded.output))

    def hit(self, number: int, tally: Tally) -> None:
        """Put one fault in, and count who sees it."""
        before = self._prover.wrong
        self._prover.found.clear()  # or the first faults would take the room of all others
        fault, outcome, masked = strike(
            self._prover, self._loaded, seed=self._seed, number=number, before=self._before
        )
        tally.masked.update(unseen.name for unseen in masked)
        found = self._prover.found
        place = found and (found[0]["row"], found[0]["column"], int(found[0]["xor"], 16))
        tally.count(
            fault, "prover", detected=self._prover.wrong > before, located=place == outcome.first
        )
        for name, check in self._checks.items():
            seen = check.check(outcome.output)
            first = seen.first and (seen.first.row, seen.first.column, seen.first.xor)
            tally.count(fault, name, detected=seen.wrong > 0, located=first == outcome.first)
        for name, detected in zip(CONTRAST, self._loosely(outcome), strict=True):
            tally.count(fault, name, detected=detected, located=False)

    def _loosely(self, outcome: Struck) -> tuple[bool, bool]:
        output = outcome.output
        close = torch.allclose(output.double(), self._answer.double(), rtol=1e-2)
        rounded, right = (raw(values.to(torch.bfloat16)) for values in (output, self._answer))
        return not close, not torch.equal(rounded, right)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts by class and method."""

    total: Counter[tuple[str, str]] = field(default_factory=Counter)
    detected: Counter[tuple[str, str]] = field(default_factory=Counter)
    located: Counter[tuple[str, str]] = field(default_factory=Counter)
    masked: Counter[str] = field(default_factory=Counter)
    certain: set[tuple[str, str]] = field(default_factory=set)

    def count(self, fault: Fault, method: str, *, detected: bool, located: bool) -> None:
        """Count one fault for one method."""
        key = (fault.name, method)
        self.total[key] += 1
        self.detected[key] += detected
        self.located[key] += located
        if fault.where in CERTAIN.get(method, ()):
            self.certain.add(key)

    def missed(self) -> int:
        """Faults not seen by a method that is certain to see them."""
        return sum(self.total[key] - self.detected[key] for key in self.certain)

    def by_method(self) -> dict[str, int]:
        """Faults not seen, by method."""
        methods = dict.fromkeys(method for _, method in self.total)
        return {
            method: sum(self.total[k] - self.detected[k] for k in self.total if k[1] == method)
            for method in methods
        }

    def lines(self) -> list[dict[str, Any]]:
        """One for each class and method, the classes by name."""
        lines = []
        for name, method in sorted(self.total, key=lambda key: key[0]):
            key = (name, method)
            low, high = interval(self.detected[key], self.total[key])
            lines.append(
                {
                    "class": name,
                    "method": method,
                    "detected": self.detected[key],
                    "total": self.total[key],
                    "low": round(low, 6),
                    "high": round(high, 6),
                    "located": self.located[key],
                    "certain": key in self.certain,
                    "masked": self.masked[name],
                }
            )
        return lines


def interval(hits: int, total: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's interval of a share, from the exact binomial distribution.

    The ends are where `hits` or more, and `hits` or fewer, have half of what confidence leaves;
    found by bisection. Raises `ValueError` where there is nothing to count.
    """
    if not 0 <= hits <= total or total < 1:
        raise ValueError(f"{hits} of {total}: no share")
    half = (1 - confidence) / 2
    counts = np.arange(total + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, total + 1)))])
    ways = logs[total] - logs[counts] - logs[total - counts]

    def tail(share: float, *, upper: bool) -> float:
        chosen = counts >= hits if upper else counts <= hits
        logged = ways + counts * np.log(share) + (total - counts) * np.log1p(-share)
        return float(np.exp(logged[chosen]).sum())

    def end(*, upper: bool) -> float:
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            beyond = tail(middle, upper=upper) > half
            low, high = (low, middle) if beyond == upper else (middle, high)
        return (low + high) / 2

    return (0.0 if hits == 0 else end(upper=True)), (1.0 if hits == total else end(upper=False))


def _whole(loaded: Loaded) -> Any:
    """The known answer of the whole product, as integers of its bits, on the device."""
    times = loaded.size // loaded.operands.span
    return loaded.reference.repeat(times, times)


if __name__ == "__main__":
    sys.exit(main())
