"""The ways to make operands: each gives A, B and their product as integers."""

from __future__ import annotations

import math

import numpy as np

from nodeproof.kernels.draws import Integers, integers, words
from nodeproof.kernels.formats import TILE, Family, Recipe

_SIGNATURE = 16  # columns of a cancelling operand that carry the answer
Made = tuple[Integers, Integers, Integers]


def made(family: Family, recipe: Recipe, *, span: int, depth: int, seed: int) -> Made:
    """Return A (span, depth), B (depth, span) and their product, of integers before gauges."""
    match family:
        case Family.WIDE | Family.ROUNDED:
            return _wide(recipe, span, depth, seed)
        case Family.REPLICA | Family.LONG:
            return _signed_tiles(recipe, span, depth, seed)
        case Family.CANCEL_LIFT:
            return _cancelling(recipe, span, depth, seed)
        case Family.OUTER:
            return _outer(recipe, span, depth, seed)


def norms(a: Integers, b: Integers) -> int:
    """What the magnitudes of the terms of no element sum to more than (Cauchy and Schwarz)."""
    rows = int(np.einsum("ik,ik->i", a, a).max())
    columns = int(np.einsum("kj,kj->j", b, b).max())
    return math.isqrt(rows * columns) + 1


def product(a: Integers, b: Integers) -> Integers:
    """Multiply exactly: in floating point where that is exact, since it is faster by far."""
    if norms(a, b) < 2**53:
        return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)
    return a @ b


def _onto(grid: tuple[int, ...], drawn: Integers) -> Integers:
    if not grid:
        return drawn
    table = np.array((0, *grid), dtype=np.int64)
    return np.sign(drawn) * table[np.abs(drawn)]


def _wide(recipe: Recipe, span: int, depth: int, seed: int) -> Made:
    """Every element is its own."""
    a = _onto(recipe.grid, integers(seed, "a", span, depth, recipe.a_max, least=recipe.least))
    b = _onto(recipe.grid, integers(seed, "b", depth, span, recipe.b_max))
    return a, b, product(a, b)


def _signed_tiles(recipe: Recipe, span: int, depth: int, seed: int) -> Made:
    """One tile with a sign for each row and column, so that one small product is all answers."""
    a = integers(seed, "a", TILE, depth, recipe.a_max)
    b = integers(seed, "b", depth, TILE, recipe.b_max)
    rows = integers(seed, "row signs", span, 1, 1)
    columns = integers(seed, "column signs", 1, span, 1)
    times = span // TILE
    whole = np.tile(product(a, b), (times, times))
    return np.tile(a, (times, 1)) * rows, np.tile(b, (1, times)) * columns, whole * rows * columns


def _cancelling(recipe: Recipe, span: int, depth: int, seed: int) -> Made:
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
    most = np.uint32(recipe.signature)
    u = 1 + (words(seed, "u", span, 1) % most).astype(np.int64)
    v = 1 + (words(seed, "v", 1, span) % most).astype(np.int64)
    small = min(recipe.a_max, recipe.b_max, 15)
    x = integers(seed, "x", span, _SIGNATURE // 2 - 1, small)
    y = integers(seed, "y", _SIGNATURE // 2 - 1, span, small)
    one = np.ones_like
    a = [a1, np.roll(a1 + a2, 3, 1), np.roll(a1, 5, 1), np.roll(a2, 11, 1), u, one(u), x, x]
    b = [b1 - b2, np.roll(b2, 3, 0), -np.roll(b1, 5, 0), -np.roll(b2, 11, 0), one(v), v, y, -y]
    return np.concatenate(a, axis=1), np.concatenate(b, axis=0), u + v


def _outer(recipe: Recipe, span: int, depth: int, seed: int) -> Made:
    """One term in each sum: row i of A has its only number in lane i, so C_ij = a_i b_lj.

    Where no more significands exist than rows, every one of A meets every one of B in a single
    product; turning both operands by one lane at a time takes each pair through every lane. Zeros
    are right here and nowhere else: they keep the other lanes silent.
    """
    signs = integers(seed, "a signs", span, 1, 1), integers(seed, "b signs", depth, span, 1)
    a = signs[0] * _everyone(recipe, recipe.a_max, seed, "a", 1, span).T
    b = signs[1] * _everyone(recipe, recipe.b_max, seed, "b", depth, span)
    a, b = _onto(recipe.grid, a), _onto(recipe.grid, b)
    lane = np.arange(span) % depth
    whole = np.zeros((span, depth), dtype=np.int64)
    whole[np.arange(span), lane] = a[:, 0]
    return whole, b, a * b[lane]


def _everyone(
    recipe: Recipe, largest: int, seed: int, tag: str, rows: int, columns: int
) -> Integers:
    """Each magnitude in each row, in random order, if there are as many columns; else a choice."""
    # The significands of an operand of fewer bits begin at another power of two.
    least = recipe.least if recipe.least == 1 else (largest + 1) // 2
    count = largest - least + 1
    drawn = words(seed, f"{tag} order", rows, columns)
    if count > columns:
        return least + (drawn % np.uint32(count)).astype(np.int64)
    return least + np.argsort(drawn, axis=1, kind="stable") % count
