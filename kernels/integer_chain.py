"""Chains of integer arithmetic whose end is known in closed form, every lane of it compared.

Seven recurrences cover what index arithmetic, hashing, random numbers and cryptography use: low and
wide multiplication, addition with carry, shifts, rotations, exclusive or, in 32 and 64 bits. None
forgets an error: all but the last map different states to different states, and the last loses
nothing but the sign of a power modulo a prime. The host jumps to each end without going there:
powers of affine maps, of matrices over GF(2) and of residues. Some lanes it also walks, in Python's
integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nodeproof.kernels.chase import Shape, chase, show
from nodeproof.kernels.draws import words
from nodeproof.kernels.lanes import Chain, State
from nodeproof.worker import Context

Jump = Callable[[int, int, int], int]  # start, parameter, steps: the end
Walk = Callable[[int, int], int]  # state, parameter: the next state
Advance = Callable[[Any, Any], Any]  # the same on tensors

PRIME = (1 << 31) - 1
_M32, _M64 = (1 << 32) - 1, (1 << 64) - 1
_A32, _C32 = 1664525, 1013904223  # Numerical Recipes
_A64, _C64 = 6364136223846793005, 1442695040888963407  # Knuth
_CARRY = 698769069  # Marsaglia: multiply with carry, base 2**32


def exact(
    context: Context, *, seconds: float = 0.0, plant: str = "", path: str = ""
) -> dict[str, Any]:
    """Run the integer chains for `seconds`. What is returned and raised is said at `chase.chase`."""
    return chase(context, _chains, seconds=seconds, plant=plant, path=path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """One step three ways: on tensors, in Python's integers, and many at once."""

    width: int
    bits: int  # that a state may have
    operations: int
    advance: Advance
    walk: Walk
    jump: Jump


@dataclass(frozen=True, kw_only=True, eq=False)
class Integers(Chain):
    """Lanes of one recurrence."""

    recurrence: Recurrence

    def advance(self, state: Any, parameter: Any, steps: int) -> Any:
        """As torch does it: signed, wrapping, with arithmetic shifts that are masked."""
        (x,) = state
        for _ in range(steps):
            x = self.recurrence.advance(x, parameter)
        return (x if steps else x.clone(),)

    def replay(self, lane: int, state: State, steps: int) -> State:
        """Step by step in Python's integers."""
        (x,) = state
        own = int(self.parameter[lane])
        for _ in range(steps):
            x = self.recurrence.walk(x, own)
        return (x,)


def make(name: str, shape: Shape, seed: int) -> Integers:
    """Make one chain and jump to each of its marks."""
    recurrence = RECURRENCES[name]
    width = recurrence.width
    low, high = words(seed, name, shape.lanes, 2).astype(np.uint64).T
    both = (high << np.uint64(32)) | low
    if name == "power31":
        both = both % np.uint64(PRIME - 2) + np.uint64(2)
    elif name == "mwc64":  # below its modulus, and not zero
        both = both % np.uint64(_CARRY * 2**32 - 2) + np.uint64(1)
    starts = both & np.uint64((1 << width) - 1)
    starts |= np.uint64(starts == 0)  # zero stays zero under shifts
    marks = [
        [recurrence.jump(start, start, shape.steps * segment) for start in starts.tolist()]
        for segment in range(shape.segments + 1)
    ]
    return Integers(
        name=name,
        marks=np.array(marks, np.dtype(f"u{width // 8}"))[:, None, :],
        parameter=starts.astype(np.dtype(f"i{width // 8}")),
        steps=shape.steps,
        operations=recurrence.operations,
        bits=recurrence.bits,
        recurrence=recurrence,
    )


def affine(x: int, a: int, c: int, steps: int, modulus: int) -> int:
    """Apply x -> a x + c `steps` times: a^n x + c (a^n - 1) / (a - 1), the division being exact."""
    power = pow(a, steps, modulus * (a - 1))
    return (power * x + c * ((power - 1) // (a - 1))) % modulus


class Linear:
    """A step that is linear over GF(2), as the images of the single bits, and its powers."""

    def __init__(self, width: int, walk: Walk) -> None:
        self._squares = [[walk(1 << bit, 0) for bit in range(width)]]

    def jump(self, x: int, _own: int, steps: int) -> int:
        """Apply the step `steps` times."""
        power = 0
        while steps:
            if power == len(self._squares):
                last = self._squares[-1]
                self._squares.append([_times(last, column) for column in last])
            if steps & 1:
                x = _times(self._squares[power], x)
            steps, power = steps >> 1, power + 1
        return x


def _times(columns: list[int], x: int) -> int:
    image = 0
    while x:
        low = x & -x
        image ^= columns[low.bit_length() - 1]
        x ^= low
    return image


def _shifts(width: int, shifts: tuple[int, int, int]) -> tuple[Advance, Walk]:
    a, b, c = shifts
    rest, whole = (1 << (width - b)) - 1, (1 << width) - 1

    def advance(x: Any, _own: Any) -> Any:
        x = x ^ (x << a)
        x = x ^ ((x >> b) & rest)
        return x ^ (x << c)

    def walk(x: int, _own: int) -> int:
        x ^= (x << a) & whole
        x ^= x >> b
        return x ^ ((x << c) & whole)

    return advance, walk


def _rotations_advance(x: Any, _own: Any) -> Any:
    low = x & _M32
    high = ((x >> 32) & _M32) ^ low
    low = (((low << 26) | (low >> 6)) ^ high ^ (high << 9)) & _M32
    high = ((high << 13) | (high >> 19)) & _M32
    return (high << 32) | low


def _rotations_walk(x: int, _own: int) -> int:
    low, high = x & _M32, x >> 32
    high ^= low
    low = ((low << 26 | low >> 6) ^ high ^ high << 9) & _M32
    high = (high << 13 | high >> 19) & _M32
    return high << 32 | low


def _fold(t: Any) -> Any:
    """A residue modulo 2**31 - 1 from a product of two: 2**31 is 1."""
    t = (t & PRIME) + (t >> 31)
    return (t & PRIME) + (t >> 31)


def _power(x: Any, own: Any) -> Any:
    return _fold(_fold(x * x) * own)


def _power_jump(x: int, _own: int, steps: int) -> int:
    # x -> x x s from s: s^(2^(n+1) - 1); by Fermat, exponents count modulo PRIME - 1.
    return pow(x, (pow(2, steps + 1, PRIME - 1) - 1) % (PRIME - 1), PRIME)


def _carry_jump(x: int, _own: int, steps: int) -> int:
    # The next state times 2**32 is this one, modulo a 2**32 - 1.
    modulus = _CARRY * 2**32 - 1
    return x * pow(2**32, -steps, modulus) % modulus


def _congruential(width: int, a: int, c: int, name: str) -> tuple[str, Recurrence]:
    modulus = 1 << width
    return name, Recurrence(
        width=width,
        bits=width,
        operations=2,
        advance=lambda x, _own: x * a + c,
        walk=lambda x, _own: (x * a + c) % modulus,
        jump=lambda x, _own, steps: affine(x, a, c, steps, modulus),
    )


def _linear(
    name: str, width: int, advance: Advance, walk: Walk, operations: int
) -> tuple[str, Recurrence]:
    return name, Recurrence(
        width=width,
        bits=width,
        operations=operations,
        advance=advance,
        walk=walk,
        jump=Linear(width, walk).jump,
    )


RECURRENCES = dict(
    [
        _congruential(32, _A32, _C32, "lcg32"),
        _congruential(64, _A64, _C64, "lcg64"),
        _linear("xorshift32", 32, *_shifts(32, (13, 17, 5)), 6),
        _linear("xorshift64", 64, *_shifts(64, (13, 7, 17)), 6),
        _linear("xoroshiro64", 64, _rotations_advance, _rotations_walk, 6),
    ]
)
RECURRENCES["mwc64"] = Recurrence(
    width=64,
    bits=64,
    operations=3,
    advance=lambda x, _own: (x & _M32) * _CARRY + ((x >> 32) & _M32),
    walk=lambda x, _own: (x & _M32) * _CARRY + (x >> 32),
    jump=_carry_jump,
)
RECURRENCES["power31"] = Recurrence(
    width=64, bits=31, operations=14, advance=_power, walk=_power, jump=_power_jump
)


def _chains(seed: int, shape: Shape, _fused: bool) -> list[Chain]:  # noqa: FBT001  as `chase` asks
    return [make(name, shape, seed) for name in RECURRENCES]


def main() -> None:
    """Prove the chains and their planted faults first, then say how fast they run."""
    show(exact)


if __name__ == "__main__":
    main()
