"""Matrices whose product is known bit for bit, whoever computes it and in whatever order.

Operands are non-zero integers times powers of two, small enough that no partial sum of any order
of addition leaves what the accumulator holds exactly. The product then does not depend on the
library, the algorithm or the model of the device: one differing bit is a fault. Every element is a
hash of seed, tag, row and column, so that nothing has to be stored to check an operand later.

Everything here is numpy on the host. The known answer is found without the device, twice, and by
different means; two answers that differ raise.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Values = NDArray[np.float64]
Words = NDArray[np.uint32]

TILE = 128  # rows of A and columns of B repeat with this period, but for their signs
SPAN = 1024  # operands are made up to this size; larger ones repeat
_SIGNATURE = 16  # columns of a cancelling operand that carry the answer


class Unprovable(ValueError):  # noqa: N818  a property of the operands, not of the device
    """Operands whose product would not be exact, or a known answer that cannot be trusted."""

    cause = "config"


class Family(StrEnum):
    """How operands are made."""

    WIDE = "wide"  # full significands: the answer needs a wide output
    LONG = "long"  # smaller significands and longer sums: more arithmetic for each element
    CANCEL_LIFT = "cancel_lift"  # sums that cancel, down to an answer any output type holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """What a number format holds, and the significand bits of the accumulator behind it.

    Accumulators as published for the tensor cores (arXiv:2511.10909) and by IEEE 754.
    """

    significand: int  # bits, the leading one included
    lowest: int  # binary exponent of the smallest normal number
    highest: int  # binary exponent of the largest number
    accumulator: int


FORMATS = {
    "float64": Format(significand=53, lowest=-1022, highest=1023, accumulator=53),
    "float32": Format(significand=24, lowest=-126, highest=127, accumulator=24),
    "bfloat16": Format(significand=8, lowest=-126, highest=127, accumulator=24),
    "float16": Format(significand=11, lowest=-14, highest=15, accumulator=24),
    "int8": Format(significand=7, lowest=0, highest=6, accumulator=31),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Ranges that keep one family exact in one format."""

    a_max: int
    b_max: int
    depth: int  # the longest sum; the certificate has the last word
    gauge: tuple[int, int] = (0, 0)  # binary exponents between which operands are scaled


_FLOAT, _DOUBLE = (-60, 60), (-400, 400)
RECIPES = {
    ("float64", Family.WIDE): Recipe(a_max=2**20, b_max=2**20, depth=8192, gauge=_DOUBLE),
    ("float64", Family.CANCEL_LIFT): Recipe(a_max=2**20, b_max=2**20, depth=4096, gauge=_DOUBLE),
    # More than the 11 bits that TF32 keeps: a product that went through TF32 shows.
    ("float32", Family.WIDE): Recipe(a_max=4095, b_max=31, depth=512, gauge=_FLOAT),
    ("float32", Family.LONG): Recipe(a_max=127, b_max=127, depth=4096, gauge=_FLOAT),
    ("float32", Family.CANCEL_LIFT): Recipe(a_max=4094, b_max=30, depth=512, gauge=_FLOAT),
    ("bfloat16", Family.WIDE): Recipe(a_max=255, b_max=255, depth=1024, gauge=_FLOAT),
    ("bfloat16", Family.LONG): Recipe(a_max=127, b_max=63, depth=8192, gauge=_FLOAT),
    ("bfloat16", Family.CANCEL_LIFT): Recipe(a_max=254, b_max=254, depth=1024, gauge=_FLOAT),
    ("float16", Family.WIDE): Recipe(a_max=2047, b_max=15, depth=2048, gauge=(-12, 5)),
    ("float16", Family.CANCEL_LIFT): Recipe(a_max=254, b_max=254, depth=1024, gauge=(-7, 7)),
    ("int8", Family.WIDE): Recipe(a_max=127, b_max=127, depth=8192),
    ("int8", Family.CANCEL_LIFT): Recipe(a_max=126, b_max=126, depth=8192),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operands:
    """One span of A and of B, and what their product is.

    `a` is (span, depth), `b` is (depth, span), both exact in `dtype`; `answer` is (span, span),
    integers. `bound` is what no partial sum exceeds in any order, `budget` what is allowed.
    """

    dtype: str
    family: Family
    seed: int
    a: Values
    b: Values
    answer: Integers
    bound: int
    budget: int

    @property
    def span(self) -> int:
        """Rows of A and columns of B that are given; larger operands repeat them."""
        return int(self.answer.shape[0])

    @property
    def depth(self) -> int:
        """Terms of each sum."""
        return int(self.a.shape[1])

    def facts(self) -> dict[str, Any]:
        """What the results file keeps of the proof that the answer is exact."""
        return {
            "family": str(self.family),
            "depth": self.depth,
            "bound": self.bound,
            "budget": self.budget,
            "largest_answer": int(np.abs(self.answer).max()),
        }


def key(seed: int, tag: str) -> int:
    """64 bits that belong to `tag` in the run of this seed, and to nothing else."""
    text = f"{seed}/{tag}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def words(seed: int, tag: str, rows: int, columns: int) -> Words:
    """Return uniform 32-bit words, (rows, columns), each a pure function of its place."""
    both = key(seed, tag)
    high, low = np.uint32(both >> 32), np.uint32(both & 0xFFFFFFFF)
    row = _mix(np.arange(rows, dtype=np.uint32) ^ high)[:, None]
    # The golden ratio spreads neighbouring columns over the whole range.
    column = (np.arange(columns, dtype=np.uint32) * np.uint32(0x9E3779B1))[None, :]
    return _mix(row + column + low)


def _mix(x: Words) -> Words:
    """Scramble words by a bijection (C. Wellons' `lowbias32`, in the public domain)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def integers(seed: int, tag: str, rows: int, columns: int, largest: int) -> Integers:
    """Return uniform integers from -largest to largest, without zero.

    Zero is left out: what it is multiplied with, and its own sign, cannot be seen in a product.
    """
    w = words(seed, tag, rows, columns).astype(np.uint64)
    draw = ((w * np.uint64(2 * largest)) >> np.uint64(32)).astype(np.int64)
    return np.where(draw < largest, draw - largest, draw - largest + 1)


def make(dtype: str, family: Family, *, size: int, seed: int) -> Operands:
    """Make the operands of a `size` by `size` product and the known answer.

    Raises `Unprovable` for a dtype or family without a recipe, for a size that is no multiple of
    the tile, and when certificate, representation or the two ways to the answer do not hold.
    """
    recipe = RECIPES.get((dtype, family))
    if recipe is None:
        known = ", ".join(sorted({name for name, _ in RECIPES}))
        raise Unprovable(f"no exact operands of family {family} for {dtype!r}; known: {known}")
    if size < TILE or size % min(SPAN, size) or size % TILE:
        raise Unprovable(f"size {size} is no multiple of {TILE}, and above {SPAN} none of {SPAN}")
    span, depth = min(size, SPAN), min(size, recipe.depth) // 16 * 16
    made = _cancelling if family is Family.CANCEL_LIFT else _signed_tiles
    a, b, answer = made(recipe, span, depth, seed)
    if not a.all() or not b.all():
        raise Unprovable(f"{dtype} {family}: an operand is zero, which would hide faults")
    bound, budget = certify(a, b, answer, bits=FORMATS[dtype].accumulator)
    agree(a, b, answer, seed=seed)
    low, high = recipe.gauge
    # The same power of two on both sides of each product: the answer stays, the exponents toggle.
    draw = words(seed, "gauge", 1, depth)[0] % np.uint32(high - low + 1)
    shift = (draw.astype(np.int64) + low).astype(np.int32)
    operands = Operands(
        dtype=dtype,
        family=family,
        seed=seed,
        a=np.ldexp(a.astype(np.float64), shift[None, :]),
        b=np.ldexp(b.astype(np.float64), -shift[:, None]),
        answer=answer,
        bound=bound,
        budget=budget,
    )
    for side in (operands.a, operands.b):
        if not representable(side, FORMATS[dtype]):
            raise Unprovable(f"{dtype} {family}: an operand is no normal number of that format")
    return operands


def certify(a: Integers, b: Integers, answer: Integers, *, bits: int) -> tuple[int, int]:
    """Prove that no order of additions leaves what `bits` of significand hold exactly.

    With S the sum of the terms' magnitudes and C the answer, positive and negative terms sum to at
    most (S + |C|) / 2 each, and S is at most the product of the norms of row and column (Cauchy
    and Schwarz). Returns that bound and the budget, 2**bits - 1. Raises `Unprovable` beyond it.
    """
    rows = int(np.einsum("ik,ik->i", a, a).max())
    columns = int(np.einsum("kj,kj->j", b, b).max())
    bound = (math.isqrt(rows * columns) + 1 + int(np.abs(answer).max()) + 1) // 2
    budget = 2**bits - 1
    if bound > budget:
        raise Unprovable(
            f"a partial sum may reach {bound}, an accumulator of {bits} bits is exact to {budget}"
        )
    return bound, budget


def agree(a: Integers, b: Integers, answer: Integers, *, seed: int) -> None:
    """Hold the known answer against two other ways to it. Raises `Unprovable` if they differ.

    One tile in floating point, where it is exact below 2**53, on another unit of the host than
    integers use; and all rows as A(Bx) against Cx, modulo 2**64, where a single wrong element can't
    hide because every weight in x is odd.
    """
    tile = a[:TILE].astype(np.float64) @ b[:, :TILE].astype(np.float64)
    integer = a[:TILE] @ b[:, :TILE]
    odd = words(seed, "weights", 1, answer.shape[1])[0].astype(np.int64) * 2 + 1
    if not (
        np.array_equal(integer, answer[:TILE, :TILE])
        and np.array_equal(tile, integer.astype(np.float64))
        and np.array_equal(a @ (b @ odd), answer @ odd)
    ):
        raise Unprovable(
            "two ways to the known answer differ, so the host itself may compute wrongly: "
            "test its processor and memory before it judges a device"
        )


def representable(values: Values, form: Format) -> bool:
    """Whether every value is a normal number of the format, exactly."""
    fraction, exponent = np.frexp(np.abs(values))
    whole = np.ldexp(fraction, form.significand)
    normal = (exponent - 1 >= form.lowest) & (exponent - 1 <= form.highest)
    return bool((normal & (whole == np.rint(whole))).all())


def _signed_tiles(
    recipe: Recipe, span: int, depth: int, seed: int
) -> tuple[Integers, Integers, Integers]:
    """One tile with a sign for each row and column, so that one small product is all answers."""
    a = integers(seed, "a", TILE, depth, recipe.a_max)
    b = integers(seed, "b", depth, TILE, recipe.b_max)
    rows = integers(seed, "row signs", span, 1, 1)
    columns = integers(seed, "column signs", 1, span, 1)
    times = span // TILE
    whole = np.tile(a @ b, (times, times))
    return np.tile(a, (times, 1)) * rows, np.tile(b, (1, times)) * columns, whole * rows * columns


def _cancelling(
    recipe: Recipe, span: int, depth: int, seed: int
) -> tuple[Integers, Integers, Integers]:
    """Four products that cancel, none like another, and a signature that remains.

    a1 (b1 - b2) + (a1 + a2) b2 - a1 b1 - a2 b2 = 0. Partners stand in other lanes of a tensor core
    (each quarter is turned by another odd number), since a stuck lane would else cancel itself.
    The answer is u_i + v_j in 2..254: exact in every output format, bfloat16 included.
    """
    quarter = (depth - _SIGNATURE) // 4
    a1 = integers(seed, "a1", span, quarter, recipe.a_max // 2)
    b1 = integers(seed, "b1", quarter, span, recipe.b_max // 2)
    a2 = integers(seed, "a2", span, quarter, recipe.a_max // 2)
    b2 = integers(seed, "b2", quarter, span, recipe.b_max // 2)
    a2 = np.where(a1 + a2 == 0, a1, a2)  # no zero among the sums and differences
    b2 = np.where(b1 == b2, -b1, b2)
    u = 1 + (words(seed, "u", span, 1) % np.uint32(127)).astype(np.int64)
    v = 1 + (words(seed, "v", 1, span) % np.uint32(127)).astype(np.int64)
    small = min(recipe.a_max, recipe.b_max, 15)
    x = integers(seed, "x", span, _SIGNATURE // 2 - 1, small)
    y = integers(seed, "y", _SIGNATURE // 2 - 1, span, small)
    one = np.ones_like
    a = [a1, np.roll(a1 + a2, 3, 1), np.roll(a1, 5, 1), np.roll(a2, 11, 1), u, one(u), x, x]
    b = [b1 - b2, np.roll(b2, 3, 0), -np.roll(b1, 5, 0), -np.roll(b2, 11, 0), one(v), v, y, -y]
    return np.concatenate(a, axis=1), np.concatenate(b, axis=0), u + v
