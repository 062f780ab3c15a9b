"""The integers behind Freivalds' check of a product: odd weights, and what a residual tells.

    python -m nodeproof.kernels.residual

Everything is modulo 2**64, as 64-bit integers are by nature, on the host and on any device.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from nodeproof.kernels import alone
from nodeproof.kernels.draws import Integers, long_words
from nodeproof.kernels.formats import Unprovable
from nodeproof.kernels.operands import Operands

Weights = NDArray[np.uint64]
_WORD = 1 << 64


def odd_weights(seed: int, size: int) -> Weights:
    """Return `size` odd 64-bit numbers that belong to the seed."""
    return long_words(seed, "freivalds", size) | np.uint64(1)


def inverses(odd: Weights) -> Weights:
    """Return y with x y = 1 modulo 2**64, by Newton's method: each step doubles the right bits."""
    y = odd.copy()  # right in its three lowest bits, as odd squares are 1 modulo 8
    for _ in range(5):
        y *= np.uint64(2) - odd * y
    return y


def decode(residual: int, inverse: Weights, limit: int) -> tuple[int, int] | None:
    """Return column and error of the one wrong element that explains the residual of its row.

    The error is residual / weight, modulo 2**64, which is small for the right column and uniform
    for any other: two columns answer with a probability of about columns * limit / 2**63. `None`
    where not exactly one column explains it with an error of at most `limit`, 0 excluded.
    """
    if residual % _WORD == 0:
        return None
    errors = (np.uint64(residual % _WORD) * inverse).view(np.int64)
    # Not by np.abs, which leaves the lowest int64 negative.
    columns = ((errors >= -limit) & (errors <= limit)).nonzero()[0]
    if len(columns) != 1:
        return None
    return int(columns[0]), int(errors[columns[0]])


def integer_operands(operands: Operands) -> tuple[Integers, Integers]:
    """Return integers with the same product: the powers of two of A's columns are moved to B's rows.

    Raises `Unprovable` where what is left is no integer, so that the operands are not what this
    suite makes.
    """
    fraction, exponent = np.frexp(operands.a)
    # The lowest set bit of each element says which power of two divides it.
    whole = np.ldexp(np.abs(fraction), 53).astype(np.int64)
    lowest = np.frexp((whole & -whole).astype(np.float64))[1] - 1 + exponent - 53
    shift = np.where(whole != 0, lowest, np.iinfo(np.int32).max).min(0)
    shift = np.where((whole != 0).any(0), shift, 0).astype(np.int32)
    a, b = np.ldexp(operands.a, -shift[None, :]), np.ldexp(operands.b, shift[:, None])
    for side in (a, b):
        if not ((side == np.rint(side)) & (np.abs(side) < 2.0**53)).all():
            raise Unprovable(f"{operands.dtype} {operands.family}: operands of no integer product")
    return a.astype(np.int64), b.astype(np.int64)


def main() -> None:
    """Decode an error in each column, of each size that matters, then say how fast."""
    context = alone.context()
    odd = odd_weights(context.seed, 8192)
    inverse = inverses(odd)
    if not (odd * inverse == np.uint64(1)).all():
        raise SystemExit("a weight has no inverse")
    limit = 2**25
    begun = time.perf_counter()
    for column, weight in enumerate(odd.tolist()):
        error = (-1) ** column * (1 + column * 4095)
        if decode(error * weight, inverse, limit) != (column, error):
            raise SystemExit(f"column {column}: an error of {error} is not decoded")
    spent = time.perf_counter() - begun
    print(f"errors in 8192 columns decoded, {spent / 8192 * 1e6:.0f} us each")


if __name__ == "__main__":
    main()
