"""Chaotic chains of float32 and float64 arithmetic, every bit of every lane held to its answer.

Each lane iterates x -> r x (1 - x), the logistic map, with a start and a rate of its own: full
significands in every operand. A map that contracts would forget an error; this one doubles it from
step to step, and what rounding might still swallow is kept by a digest of all states, which never
forgets. Multiplication, addition and fused multiply-add are correctly rounded by IEEE 754 on every
device, so that the answer does not depend on it.

The host's answer comes from numpy for separate steps, and for fused ones, which numpy does not
have, from float64 arithmetic rounded to odd. Some lanes are worked out again in exact fractions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nodeproof.kernels.chase import Shape, chase, show
from nodeproof.kernels.draws import words
from nodeproof.kernels.lanes import Chain, State
from nodeproof.worker import Context

Floats = NDArray[Any]  # float32 or float64

_FACTOR = {32: 0x2545F491, 64: 0x2545F4914F6CDD1D}  # of the digests: odd, so that nothing is lost
_SIGNIFICAND = {32: 24, 64: 53}
_FLOATS = {32: torch.float32, 64: torch.float64}
_SPLIT = 134217729.0  # 2**27 + 1, which parts a float64 into halves


def exact(
    context: Context, *, seconds: float = 0.0, plant: str = "", path: str = ""
) -> dict[str, Any]:
    """Run logistic chains in float32 and float64 for `seconds`; the words of a lane are state, digest.

    On a GPU with Triton each chain is there twice: of separate multiplications and additions, and
    with fused multiply-add. What is returned and raised is said at `chase.chase`.
    """
    return chase(context, _chains, seconds=seconds, plant=plant, path=path)


@dataclass(frozen=True, kw_only=True, eq=False)
class Logistic(Chain):
    """Lanes of x -> r x (1 - x), each state folded into a digest before it is used."""

    fused: bool

    def advance(self, state: Any, parameter: Any, steps: int) -> Any:
        """Each step separately rounded: (r x) times (1 - x)."""
        if self.fused:
            raise RuntimeError("torch promises no fused multiply-add: only Triton runs this chain")
        bits, digest = state
        x, digest = bits.view(_FLOATS[self.width]).clone(), digest.clone()
        scaled, rest = torch.empty_like(x), torch.empty_like(x)
        one = torch.ones((), dtype=x.dtype, device=x.device)
        for _ in range(steps):
            torch.add(x.view(bits.dtype), digest, alpha=_FACTOR[self.width], out=digest)
            torch.mul(x, parameter, out=scaled)
            torch.sub(one, x, out=rest)
            torch.mul(scaled, rest, out=x)
        return x.view(bits.dtype), digest

    def replay(self, lane: int, state: State, steps: int) -> State:
        """In exact fractions, rounded after each operation."""
        bits, digest = state
        x = _value(bits, self.width)
        rate = Fraction(float(self.parameter[lane]))
        if not math.isfinite(x):
            raise RuntimeError("a logistic chain is replayed from finite states only")
        for _ in range(steps):
            folded = digest * _FACTOR[self.width] + _bits(x, self.width)
            digest = folded & ((1 << self.width) - 1)
            scaled = rounded(rate * Fraction(x), self.width)
            if self.fused:
                x = rounded(Fraction(scaled) - Fraction(scaled) * Fraction(x), self.width)
            else:
                rest = rounded(1 - Fraction(x), self.width)
                x = rounded(Fraction(scaled) * Fraction(rest), self.width)
        return _bits(x, self.width), digest


def make(width: int, shape: Shape, seed: int, *, fused: bool) -> Logistic:
    """Make a chain of `width` bits and follow it to its end on the host."""
    name = f"float{width} fma" if fused else f"float{width}"
    kind = np.dtype(f"f{width // 8}")
    drawn = words(seed, name, shape.lanes, 4).astype(np.float64)
    low = (drawn[:, 1] + drawn[:, 0] / 2**32) / 2**32
    high = (drawn[:, 3] + drawn[:, 2] / 2**32) / 2**32
    x = (0.1 + 0.8 * low).astype(kind)
    # Below 4, so that no lane reaches 1 and from there 0; where a lane is periodic, few are.
    rate = (3.9 + 0.09 * high).astype(kind)
    word = np.dtype(f"u{width // 8}")
    marks = np.empty((shape.segments + 1, 2, shape.lanes), word)
    digest = np.zeros(shape.lanes, word)
    marks[0] = x.view(word), digest
    factor, one = word.type(_FACTOR[width]), kind.type(1)
    for segment in range(shape.segments):
        for _ in range(shape.steps):
            digest = digest * factor + x.view(word)
            scaled = rate * x
            x = fma(-scaled, x, scaled) if fused else scaled * (one - x)
        marks[segment + 1] = x.view(word), digest
    return Logistic(
        name=name,
        marks=marks,
        parameter=rate,
        steps=shape.steps,
        operations=2 if fused else 3,
        bits=_SIGNIFICAND[width] - 1,  # of the significand: any other might leave the map's range
        fused=fused,
    )


def fma(a: Floats, b: Floats, c: Floats) -> Floats:
    """Multiply and add with one rounding, as IEEE 754 has it, without an instruction for it.

    For values whose products and errors neither overflow nor fall below the normal numbers. After
    Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using
    rounding to odd", IEEE Transactions on Computers 57(4), 2008.
    """
    if a.dtype == np.float32:
        # The product is exact in float64, and a sum rounded to odd may be rounded once more.
        wide = a.astype(np.float64) * b.astype(np.float64)
        return _odd_sum(wide, c.astype(np.float64)).astype(np.float32)
    product, rest = _two_product(a, b)
    upper, lower = _two_sum(c, rest)
    high, middle = _two_sum(product, upper)
    return np.asarray(high + _odd_sum(middle, lower))


def rounded(value: Fraction, width: int) -> float:
    """Round to the nearest float of that width, ties to even. `OverflowError` beyond its range."""
    if value == 0:
        return 0.0
    bits = _SIGNIFICAND[width]
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    scale = max(exponent - bits, -149 if width == 32 else -1074)
    whole = round(value / Fraction(2) ** scale)
    if abs(whole).bit_length() > bits:  # one bit too many kept: not rounded yet, so start again
        scale += 1
        whole = round(value / Fraction(2) ** scale)
    return math.ldexp(float(whole), scale)


def _odd_sum(a: Floats, b: Floats) -> Floats:
    """Add; where the sum is inexact, take of its two neighbours the one whose last bit is odd."""
    total, error = _two_sum(a, b)
    even = (total.view(np.uint64) & np.uint64(1)) == 0
    toward = np.where(error > 0, np.inf, -np.inf)
    return np.where((error != 0) & even, np.nextafter(total, toward), total)


def _two_sum(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _two_product(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    product = a * b
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    return product, ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2


def _halves(a: Floats) -> tuple[Floats, Floats]:
    scaled = a * _SPLIT
    high = scaled - (scaled - a)
    return high, a - high


def _value(bits: int, width: int) -> float:
    return float(np.array(bits, np.dtype(f"u{width // 8}")).view(np.dtype(f"f{width // 8}")))


def _bits(value: float, width: int) -> int:
    return int(np.array(value, np.dtype(f"f{width // 8}")).view(np.dtype(f"u{width // 8}")))


def _chains(seed: int, shape: Shape, fused: bool) -> list[Chain]:  # noqa: FBT001  as `chase` asks
    kinds = (False, True) if fused else (False,)
    return [make(width, shape, seed, fused=kind) for width in (32, 64) for kind in kinds]


def main() -> None:
    """Prove the chains and their planted faults first, then say how fast they run."""
    show(exact)


if __name__ == "__main__":
    main()
