"""What memory under test has to hold, and the sweeps that compare it word for word.

What a word holds is a function of its address and the seed, so that an address that reaches
another's cell shows. Each sweep verifies and inverts, forwards then backwards: every bit holds
both values, and every cell is read after all of its neighbours changed.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nodeproof.kernels.operands import key, words

KEEP = 16  # mismatches that are described; all are counted
WORD = 8  # bytes
_OFFSETS = 4096  # mismatches from whose offsets strides are counted
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A piece of the tested memory, small enough for a cache on a processor."""

    number: int
    offset: int  # bytes from the start of the tested memory
    cells: Any  # int64


class Pattern:
    """What each word has to hold: a random block, times an odd number and plus another per block.

    The random block is on the device; it and all numbers can be derived again from the seed.
    """

    def __init__(self, *, seed: int, block: int, device: Any) -> None:
        self._seed = seed
        self._base = torch.from_numpy(self._derive(block)).to(device)
        self._scratch = torch.empty_like(self._base)

    def expected(self, block: Block, *, inverted: bool) -> Any:
        """All words of a block; valid until the next call."""
        size = block.cells.numel()
        factor, plus = self._numbers(block.number)
        out = self._scratch[:size]
        # -x - 1 inverts all bits of x: the same arithmetic with other numbers.
        sign, less = (-1, -1) if inverted else (1, 0)
        return torch.add(
            torch.tensor(_signed(sign * plus + less)),
            self._base[:size],
            alpha=_signed(sign * factor),
            out=out,
        )

    def word(self, block: int, index: int, *, inverted: bool) -> int:
        """One word as an unsigned number, by Python's arithmetic and from the seed alone."""
        pair = words(self._seed, "memory base", self._base.numel(), 2)[index]
        factor, plus = self._numbers(block)
        value = ((int(pair[0]) << 32 | int(pair[1])) * factor + plus) & _MASK
        return value ^ _MASK if inverted else value

    def damage(self) -> int:
        """Words of the random block that are no longer what they were made as."""
        fresh = torch.from_numpy(self._derive(self._base.numel()))
        return int(torch.count_nonzero(self._base.cpu() != fresh))

    def _numbers(self, block: int) -> tuple[int, int]:
        return key(self._seed, f"factor {block}") | 1, key(self._seed, f"plus {block}")

    def _derive(self, block: int) -> Any:
        pairs = words(self._seed, "memory base", block, 2).astype(np.uint64)
        return (pairs[:, 0] << np.uint64(32) | pairs[:, 1]).view(np.int64)


class Sweep:
    """Goes over the tested memory, verifying, and remembers what was wrong."""

    def __init__(self, *, pattern: Pattern, pieces: list[Any], block: int) -> None:
        self.pattern = pattern
        self.blocks: list[Block] = []
        offset = 0
        for piece in pieces:
            for start in range(0, piece.numel(), block):
                cells = piece[start : start + block]
                self.blocks.append(Block(number=len(self.blocks), offset=offset, cells=cells))
                offset += cells.numel() * WORD
        self.bytes = offset
        self.verified = 0
        self.wrong = 0
        self._planted: set[int] = set()  # offsets
        self.found: list[dict[str, Any]] = []
        self.offsets: list[int] = []

    def fill(self) -> Iterator[int]:
        """Write the pattern; yield the bytes done so far, now and then."""
        for block in self.blocks:
            block.cells.copy_(self.pattern.expected(block, inverted=False))
            yield block.offset

    def verify(
        self, phase: str, *, inverted: bool, backwards: bool = False, invert: bool = True
    ) -> Iterator[int]:
        """Compare every word and invert it in place.

        In place, so that a bit that changes between the two is carried on and found by the next
        pass. What was found wrong is put right first: each fault is reported once, unless it is
        there again.
        """
        for block in reversed(self.blocks) if backwards else self.blocks:
            expected = self.pattern.expected(block, inverted=inverted)
            if not torch.equal(expected, block.cells):
                self._locate(block, expected, phase)
                block.cells.copy_(expected)
            if invert:
                torch.bitwise_not(block.cells, out=block.cells)
            self.verified += block.cells.numel() * WORD
            yield self.verified

    def address(self, offset: int) -> int:
        """Virtual address of a byte of the tested memory."""
        block = self._holding(offset)
        return int(block.cells.data_ptr()) + offset - block.offset

    def flip(self, offset: int, bit: int, phase: str, *, inverted: bool) -> dict[str, Any]:
        """Flip one bit of the word at `offset`, and return what has to be reported for it."""
        block = self._holding(offset)
        index, mask = (offset - block.offset) // WORD, _signed(1 << bit)
        self._planted.add(offset)
        block.cells[index] = block.cells[index] ^ mask
        expected = self.pattern.word(block.number, index, inverted=inverted)
        return self._described(offset, phase, expected, expected ^ (1 << bit))

    def strides(self) -> list[dict[str, int]]:
        """How often which distance lies between neighbouring mismatches, the most frequent first."""
        places = sorted(set(self.offsets))
        steps = Counter(b - a for a, b in itertools.pairwise(places))
        return [{"bytes": step, "count": count} for step, count in steps.most_common(8)]

    def _holding(self, offset: int) -> Block:
        return next(b for b in reversed(self.blocks) if b.offset <= offset)

    def _locate(self, block: Block, expected: Any, phase: str) -> None:
        places = (expected != block.cells).nonzero().flatten()
        self.wrong += int(places.numel())
        shown = places[: max(_OFFSETS - len(self.offsets), 0)].tolist()
        # Many faults of the memory's own must not crowd out a planted one, or none would count.
        for offset in sorted(self._planted):
            index = (offset - block.offset) // WORD
            if 0 <= index < block.cells.numel() and index not in shown:
                shown += [index] if bool(expected[index] != block.cells[index]) else []
        for index in shown:
            offset = block.offset + index * WORD
            self.offsets.append(offset)
            if len(self.found) < KEEP or offset in self._planted:
                wanted, got = int(expected[index]) & _MASK, int(block.cells[index]) & _MASK
                self.found.append(self._described(offset, phase, wanted, got))

    def _described(self, offset: int, phase: str, expected: int, got: int) -> dict[str, Any]:
        xor = expected ^ got
        return {
            "offset": offset,
            "address": f"{self.address(offset):#x}",
            "phase": phase,
            "expected": f"{expected:#018x}",
            "got": f"{got:#018x}",
            "xor": f"{xor:#018x}",
            "bits": [bit for bit in range(64) if xor >> bit & 1],
        }


def _signed(number: int) -> int:
    """The same 64 bits as torch's int64 takes them."""
    number &= _MASK
    return number - (1 << 64) if number >> 63 else number
