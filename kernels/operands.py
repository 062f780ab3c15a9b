"""Matrices whose product is known bit for bit, whoever computes it and in whatever order.

Operands are integers times powers of two, small enough that no partial sum of any order of
addition leaves what the accumulator holds exactly. The product then does not depend on the
library, the algorithm or the model of the device: one differing bit is a fault. Every element is a
hash of seed, tag, row and column, so that nothing has to be stored to check an operand later.

Everything here is numpy on the host. The known answer is found without the device, twice, and by
different means; two answers that differ raise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nodeproof.kernels import families, formats
from nodeproof.kernels.draws import Integers, words
from nodeproof.kernels.formats import FORMATS, SPAN, TILE, Family, Format, Unprovable

Values = NDArray[np.float64]
_ROUNDED_OFF = 0.25  # of the last place TF32 keeps: both rounding and cutting off drop it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operands:
    """One span of A and of B, and what their product is.

    `a` is (span, depth) and exact in `a_dtype`, `b` is (depth, span) and exact in `b_dtype`;
    `answer` is (span, span), integers. `bound` is what no partial sum exceeds in any order,
    `budget` what an accumulator of `accumulator` bits allows. `dtype` names the product.
    """

    dtype: str
    family: Family
    seed: int
    a: Values
    b: Values
    answer: Integers
    bound: int
    budget: int
    accumulator: int
    a_dtype: str
    b_dtype: str

    @property
    def span(self) -> int:
        """Rows of A and columns of B that are given; larger operands repeat them."""
        return int(self.answer.shape[0])

    @property
    def depth(self) -> int:
        """Terms of each sum, those with a zero included."""
        return int(self.a.shape[1])

    @property
    def terms(self) -> int:
        """Terms of each sum that say something."""
        return 1 if self.family is Family.OUTER else self.depth

    def facts(self) -> dict[str, Any]:
        """What the results file keeps of the proof that the answer is exact."""
        return {
            "family": str(self.family),
            "a": self.a_dtype,
            "b": self.b_dtype,
            "depth": self.depth,
            "bound": self.bound,
            "budget": self.budget,
            "accumulator": self.accumulator,
            "largest_answer": int(np.abs(self.answer).max()),
        }


def make(dtype: str, family: Family, *, size: int, seed: int, accumulator: int = 0) -> Operands:
    """Make the operands of a `size` by `size` product and the known answer.

    `accumulator` is the significand bits that sums keep, 0 for the least that any device has.
    Raises `Unprovable` for a dtype or family without a recipe, for a size that is no multiple of
    the tile, and when certificate, representation or the two ways to the answer do not hold.
    """
    bits = accumulator or (FORMATS[dtype].accumulator if dtype in FORMATS else 0)
    recipe = formats.recipe(dtype, family, bits=bits)
    if size < TILE or size % min(SPAN, size) or size % TILE:
        raise Unprovable(f"size {size} is no multiple of {TILE}, and above {SPAN} none of {SPAN}")
    span, depth = min(size, SPAN), min(size, recipe.depth) // 16 * 16
    a, b, answer = families.made(family, recipe, span=span, depth=depth, seed=seed)
    outer = family is Family.OUTER
    if not b.all() or not (_one_in_each_row(a) if outer else a.all()):
        raise Unprovable(f"{dtype} {family}: an operand is zero, which would hide faults")
    bound, budget = certify(a, b, answer, bits=bits)
    agree(a, b, answer, seed=seed)
    stored = a.astype(np.float64)
    if family is Family.ROUNDED:
        stored += np.sign(stored) * _ROUNDED_OFF
        whole = (stored / _ROUNDED_OFF).astype(np.int64)
        certify(whole, b, families.product(whole, b), bits=bits)
    low, high = recipe.gauge
    # The same power of two on both sides of each product: the answer stays, the exponents toggle.
    draw = words(seed, "gauge", 1, depth)[0] % np.uint32(high - low + 1)
    shift = (draw.astype(np.int64) + low).astype(np.int32)
    operands = Operands(
        dtype=dtype,
        family=family,
        seed=seed,
        a=np.ldexp(stored, shift[None, :]),
        b=np.ldexp(b.astype(np.float64), -shift[:, None]),
        answer=answer,
        bound=bound,
        budget=budget,
        accumulator=bits,
        a_dtype="float32" if family is Family.ROUNDED else recipe.a_dtype or dtype,
        b_dtype=recipe.b_dtype or dtype,
    )
    sides = ((operands.a, operands.a_dtype), (operands.b, operands.b_dtype))
    for values, name in sides:
        if not representable(values[values != 0] if outer else values, FORMATS[name]):
            raise Unprovable(f"{dtype} {family}: an operand is no normal number of {name}")
    return operands


def certify(a: Integers, b: Integers, answer: Integers, *, bits: int) -> tuple[int, int]:
    """Prove that no order of additions leaves what `bits` of significand hold exactly.

    With S the sum of the terms' magnitudes and C the answer, positive and negative terms sum to at
    most (S + |C|) / 2 each. S is |C| where A has one number in each row, and otherwise at most the
    product of the norms of row and column (Cauchy and Schwarz). Returns that bound and the budget,
    2**bits - 1. Raises `Unprovable` beyond it.
    """
    largest = int(np.abs(answer).max())
    sums = largest if _one_in_each_row(a) else families.norms(a, b)
    bound = (sums + largest + 1) // 2
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


def _one_in_each_row(a: Integers) -> bool:
    return bool((np.count_nonzero(a, axis=1) == 1).all())
