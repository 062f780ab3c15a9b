"""What the kernels of `onchip_triton` have to come to, reckoned on the host by other means.

Totals come from sorting instead of from updates, and many turns from one step by their closed form.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nodeproof.kernels.draws import Words, mix

MASK = 0xFFFFFFFF
OPERATIONS = ("add", "xor", "max", "cas")
LEAST = -(2**31)  # what maxima begin with
NONE = -1  # no update, no block


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """Updates of one launch, and what they come to, by sorting instead of by updating."""

    salt: int
    addresses: int
    blocks: int
    updates: int  # of a block
    width: int

    def drawn(self) -> tuple[Any, Any]:
        """Address and value (int64) of each update of the first three operations."""
        return self._spread(np.arange(self.blocks * self.updates, dtype=np.uint32), self.salt)

    def totals(self, lost: int = NONE, lost_block: int = NONE) -> Any:
        """All totals, (4, width) int32, without one update and the one of one block."""
        address, value = self.drawn()
        all_but = np.arange(len(address)) != lost
        totals = np.zeros((len(OPERATIONS), self.width), np.int64)
        totals[2] = LEAST
        totals[0] = self._summed(address[all_but], value[all_but])
        order = np.argsort(address[all_but], kind="stable")
        places, starts = np.unique(address[all_but][order], return_index=True)
        totals[1, places] = np.bitwise_xor.reduceat(value[all_but][order], starts)
        totals[2, places] = np.maximum.reduceat(value[all_but][order], starts)
        block, more = self._spread(np.arange(self.blocks, dtype=np.uint32), ~self.salt & MASK)
        there = np.arange(self.blocks) != lost_block
        totals[3] = self._summed(block[there], more[there])
        return (totals & MASK).astype(np.uint32).view(np.int32)

    def to_lose(self, draw: int) -> tuple[int, int]:
        """Return an update that decides the maximum of its address, and a block."""
        address, value = self.drawn()
        same = np.flatnonzero(address == address[draw % len(address)])
        best = same[value[same] == value[same].max()]
        return int(best[0]), draw % self.blocks

    def _spread(self, numbers: Words, salt: int) -> tuple[Any, Any]:
        draw = scrambled(numbers ^ np.uint32(salt))
        value = scrambled(draw ^ np.uint32(0x9E3779B1)).view(np.int32) | np.int32(1)
        return (draw % np.uint32(self.addresses)).astype(np.int64), value.astype(np.int64)

    def _summed(self, address: Any, value: Any) -> Any:
        """Sums by address, exact: halves of 16 bits stay far below what a float64 holds."""
        low = np.bincount(address, weights=value & 0xFFFF, minlength=self.width)
        high = np.bincount(address, weights=value >> 16, minlength=self.width)
        return low.astype(np.int64) + (high.astype(np.int64) << 16)


def turned(state: int, turns: int, spins: int, size: int) -> tuple[int, int, int]:
    """Return what all turns together do: the bits they invert, and the permutation they are.

    A word that ends at `e` began at `(factor * e + shift) % size`. Returns bits, factor, shift.
    """
    step, plus = jump(spins)
    total, factor, shift = 0, 1, 0
    for turn in range(turns):
        total ^= state ^ (MASK if turn % 2 else 0)
        odd = state >> 16 | 1
        factor, shift = factor * odd % size, (factor * state + shift) % size
        state = (state * step + plus) & MASK
    return total, factor, shift


def jump(steps: int) -> tuple[int, int]:
    """Factor and summand of so many steps of the kernels' generator at once."""
    factor, plus = 1, 0
    step, more = 1664525, 1013904223
    while steps:
        if steps & 1:
            factor, plus = factor * step & MASK, (plus * step + more) & MASK
        step, more = step * step & MASK, (more * step + more) & MASK
        steps >>= 1
    return factor, plus


def scrambled(numbers: Iterable[int] | Words) -> Words:
    """The same function as the kernels', on the host."""
    x = numbers if isinstance(numbers, np.ndarray) else np.array(list(numbers), np.uint32)
    return mix(x)
