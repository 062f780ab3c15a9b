"""Which words of the tested memory were wrong: all are counted, and some described."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from nodeproof.kernels.bits import difference, signed, unsigned
from nodeproof.kernels.faults import KEEP

WORD = 8  # bytes
ALL_BITS = (1 << 64) - 1
_OFFSETS = 4096  # mismatches from whose offsets strides are counted
_AT_ONCE = 1 << 18  # words looked through at once: the places of all may need more than is free


@dataclass(slots=True, kw_only=True, eq=False)
class Block:
    """Some words of the tested memory that are read and written together."""

    offset: int  # bytes from the start of the tested memory to the first of them
    cells: Any  # int64, of any shape; strided where the words do not lie side by side
    number: int = 0


def differs(block: Block, expected: Any) -> Any:
    """Whether any word of a block is wrong, as a tensor of the device, without waiting for it."""
    return (block.cells != expected).any()


class Mismatches:
    """The tested memory, in pieces that lie wherever the device gave them, and what was wrong in it.

    Offsets count through all pieces, in bytes, as if they lay side by side.
    """

    def __init__(self, pieces: list[Any]) -> None:
        """Take pieces: contiguous int64 tensors of one dimension, which the caller keeps alive."""
        self.pieces: list[Block] = []
        self.bytes = 0
        for number, cells in enumerate(pieces):
            self.pieces.append(Block(offset=self.bytes, cells=cells, number=number))
            self.bytes += cells.numel() * WORD
        self.wrong = 0
        self.found: list[dict[str, Any]] = []
        self.offsets: list[int] = []
        self._planted: set[int] = set()  # offsets

    def plant(self, offset: int, bit: int, phase: str, expected: int) -> dict[str, Any]:
        """Flip one bit of the word at `offset`, and return what has to be reported for it.

        `expected` is what the word has to hold now, as an unsigned number.
        """
        piece = self._holding(offset)
        index = (offset - piece.offset) // WORD
        self._planted.add(offset)
        piece.cells[index] = piece.cells[index] ^ signed(1 << bit)
        return self._described(offset, phase, expected, expected ^ (1 << bit))

    def settle(self, compared: list[tuple[Block, Any]], expected: Any, phase: str) -> None:
        """Wait for what `differs` said of blocks, once for all, and look for what was wrong.

        Nothing may have been written to them since. A block that is right when it is read again
        counts as one word: it was read wrong.
        """
        if not bool(torch.stack([differ for _, differ in compared]).any()):
            return
        for block, differ in compared:
            if bool(differ):
                before = self.wrong
                self.locate(block, expected, phase)
                if self.wrong == before:
                    self.vanished(block, 1, phase)

    def locate(self, block: Block, expected: Any, phase: str, *, inverted: bool = False) -> None:
        """Count and describe every word of a block that differs from `expected`.

        `expected` is a tensor that has the shape of the block's cells or can be spread to it, or one
        number for all. With `inverted` both have been inverted since the comparison.
        """
        rows = block.cells.shape[0]
        step = max(1, _AT_ONCE * rows // block.cells.numel())
        for start in range(0, rows, step):
            part = Block(
                offset=block.offset + start * block.cells.stride(0) * WORD,
                cells=block.cells[start : start + step],
            )
            wanted = expected
            if not isinstance(expected, int):
                wanted = expected.expand_as(block.cells)[start : start + step]
            self._locate(part, wanted, phase, inverted=inverted)

    def _locate(self, block: Block, expected: Any, phase: str, *, inverted: bool) -> None:
        cells = block.cells
        places = (expected != cells).nonzero()
        self.wrong += int(places.shape[0])
        shown = places[: max(_OFFSETS - len(self.offsets), 0)].tolist()
        # Many faults of the memory's own must not crowd out a planted one, or none would count.
        shown += [p for p in self._planted_in(places, block) if p not in shown]
        for place in shown:
            steps = zip(place, cells.stride(), strict=True)
            offset = block.offset + WORD * sum(index * stride for index, stride in steps)
            self.offsets.append(offset)
            if len(self.found) < KEEP or offset in self._planted:
                at = tuple(place)
                wanted = unsigned(int(expected if isinstance(expected, int) else expected[at]))
                got = unsigned(int(cells[at]))
                if inverted:
                    wanted, got = wanted ^ ALL_BITS, got ^ ALL_BITS
                self.found.append(self._described(offset, phase, wanted, got))

    def vanished(self, block: Block, count: int, phase: str) -> None:
        """Count words that were read wrong once, near the start of `block`, and then right."""
        self.wrong += count
        if len(self.found) < KEEP:
            self.found.append(
                {
                    "offset": block.offset,
                    "address": f"{self.address(block.offset):#x}",
                    "phase": phase,
                    "expected": "as written",
                    "got": f"{count} words at or after this place that were right when read again",
                    "xor": "",
                    "bits": [],
                }
            )

    def offset(self, high: int, low: int) -> int:
        """Return the word that two draws mean: one is too few for the largest memories."""
        return (high << 32 | low) % (self.bytes // WORD) * WORD

    def word(self, offset: int) -> int:
        """What the word at `offset` holds now, as an unsigned number."""
        piece = self._holding(offset)
        return unsigned(int(piece.cells[(offset - piece.offset) // WORD]))

    def address(self, offset: int) -> int:
        """Virtual address of a byte of the tested memory."""
        piece = self._holding(offset)
        return int(piece.cells.data_ptr()) + offset - piece.offset

    def strides(self) -> list[dict[str, int]]:
        """How often which distance lies between neighbouring mismatches, the most frequent first."""
        places = sorted(set(self.offsets))
        steps = Counter(b - a for a, b in itertools.pairwise(places))
        return [{"bytes": step, "count": count} for step, count in steps.most_common(8)]

    def _planted_in(self, places: Any, block: Block) -> list[list[int]]:
        """Those of the wrong places where a fault was planted."""
        if not self._planted or not places.shape[0]:
            return []
        offsets = places.new_full((places.shape[0],), block.offset)
        for dimension, stride in enumerate(block.cells.stride()):
            offsets = offsets + places[:, dimension] * (stride * WORD)
        planted = offsets.new_tensor(sorted(self._planted))
        return list(places[(offsets[:, None] == planted).any(1)].tolist())

    def _holding(self, offset: int) -> Block:
        return next(b for b in reversed(self.pieces) if b.offset <= offset)

    def _described(self, offset: int, phase: str, expected: int, got: int) -> dict[str, Any]:
        return {
            "offset": offset,
            "address": f"{self.address(offset):#x}",
            "phase": phase,
            **difference(expected, got, 64),
        }
