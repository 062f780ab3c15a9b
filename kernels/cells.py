"""What memory under test has to hold, and the sweeps that compare it word for word.

What a word holds is a function of its address and the seed, so that an address that reaches
another's cell shows. Each sweep verifies and inverts, forwards then backwards: every bit holds
both values, and every cell is read after all of its neighbours changed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch

from nodeproof.kernels.bits import signed
from nodeproof.kernels.draws import key, long_words, words
from nodeproof.kernels.faults import sound
from nodeproof.kernels.mismatches import ALL_BITS, WORD, Block, Mismatches

_WINDOWS = 2  # a processor's random words are this many blocks long


class Fused(Protocol):
    """Verify, and invert, several blocks by one kernel of the device."""

    group: int  # blocks, at most, of one call

    def __call__(self, blocks: list[Block], *, inverted: bool, invert: bool) -> Any:
        """Return how many words were wrong as a tensor of the device, without waiting for it."""


class Pattern:
    """What each word has to hold: random words, and for each block another view of them.

    On a GPU a block is the random words XOR a number of the block's own, which registers do for
    nothing. On a processor it is a window of them with a start of its own: nothing has to be
    computed, and memory is compared almost as fast as it can be read. Words that a fault of one
    address line confuses always differ there (in the first `block` blocks); of others two hold the
    same once in `block` times. The random words are on the device; they and all numbers can be
    derived again from the seed.
    """

    def __init__(self, *, seed: int, block: int, device: Any, windowed: bool | None = None) -> None:
        """Make the random words; `block` is a power of two, `windowed` the processor's way."""
        self._seed = seed
        self._windowed = device.type == "cpu" if windowed is None else windowed
        self._length = block * (_WINDOWS if self._windowed else 1)
        self._block = block
        # No two blocks start at one place, and words a power of two apart are never the same word:
        # for that the step from one start to the next is odd, and not one short of a block.
        self._turn = key(seed, "window turn") % (block // 2 - 1) * 2 + 1
        self._first = key(seed, "window first")
        self.base = torch.from_numpy(self._derive()).to(device)
        self._inverse = ~self.base if self._windowed else self.base
        self._scratch = None if self._windowed else torch.empty_like(self.base)

    def expected(self, block: Block, *, inverted: bool) -> Any:
        """All words of a block, not to be written to; valid until the next call."""
        size = block.cells.numel()
        if self._scratch is None:
            start = self._start(block.number)
            return (self._inverse if inverted else self.base)[start : start + size]
        mask = torch.tensor(self.mask(block.number, inverted=inverted))
        return torch.bitwise_xor(self.base[:size], mask, out=self._scratch[:size])

    def mask(self, block: int, *, inverted: bool) -> int:
        """What the random words are XORed with in this block, as int64."""
        own = 0 if self._windowed else key(self._seed, f"mask {block}")
        return signed(own ^ ALL_BITS if inverted else own)

    def word(self, block: int, index: int, *, inverted: bool) -> int:
        """One word as an unsigned number, by Python's arithmetic and from the seed alone."""
        drawn = words(self._seed, "memory base", self._length, 2)
        pair = drawn[self._start(block) + index]
        value = int(pair[0]) << 32 | int(pair[1])
        return (value ^ self.mask(block, inverted=inverted)) & ALL_BITS

    def damage(self) -> dict[str, int]:
        """Words that are no longer what they were made as, by the polarity that is stored."""
        return {
            name: int(torch.count_nonzero(now.cpu() != was)) for name, now, was in self._stored()
        }

    def spoil(self, draws: list[list[int]]) -> list[str]:
        """Flip one bit of each polarity, when no more is to be verified; return their names."""
        spoilt = []
        for name, now, was in self._stored():
            drawn = ((at % now.numel(), bit % 64) for at, bit in draws)
            at, bit = sound(drawn, lambda d, now=now, was=was: int(now[d[0]]) == int(was[d[0]]))  # type: ignore[misc]  # mypy infers no lambda with defaults
            now[at] = now[at] ^ signed(1 << bit)
            spoilt.append(name)
        return spoilt

    def _stored(self) -> list[tuple[str, Any, Any]]:
        """Each polarity on the device: its name, what is stored, and what it was made as."""
        fresh = torch.from_numpy(self._derive())
        stored = [("as made", self.base, fresh)]
        return [*stored, ("inverted", self._inverse, ~fresh)] if self._windowed else stored

    def _start(self, block: int) -> int:
        return (self._turn * block + self._first) % self._block if self._windowed else 0

    def _derive(self) -> Any:
        return long_words(self._seed, "memory base", self._length).view(np.int64)


class Sweep(Mismatches):
    """Goes over the tested memory, verifying, and remembers what was wrong."""

    def __init__(
        self, *, pattern: Pattern, pieces: list[Any], block: int, fused: Fused | None = None
    ) -> None:
        super().__init__(pieces)
        self.pattern = pattern
        self._fused = fused
        self._groups = [list(_cut(piece, block)) for piece in self.pieces]
        self.blocks: list[Block] = []
        for group in self._groups:
            for block_ in group:
                block_.number = len(self.blocks)
                self.blocks.append(block_)
        self.verified = 0

    @property
    def path(self) -> str:
        """Which code compares: a kernel of the device's own, or torch."""
        return "fused" if self._fused else "torch"

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
        pass. What was found wrong is put right: each fault is reported once, unless it is there
        again.
        """
        if self._fused:
            yield from self._verify_fused(
                self._fused, phase, inverted=inverted, backwards=backwards, invert=invert
            )
            return
        for block in reversed(self.blocks) if backwards else self.blocks:
            expected = self.pattern.expected(block, inverted=inverted)
            if not same(expected, block.cells):
                self.locate(block, expected, phase)
                block.cells.copy_(expected)
            if invert:
                torch.bitwise_not(block.cells, out=block.cells)
            self.verified += block.cells.numel() * WORD
            yield self.verified

    def flip(self, offset: int, bit: int, phase: str, *, inverted: bool) -> dict[str, Any]:
        """Flip one bit of the word at `offset`, and return what has to be reported for it."""
        return self.plant(offset, bit, phase, self.wanted(offset, inverted=inverted))

    def wanted(self, offset: int, *, inverted: bool) -> int:
        """What the word at `offset` has to hold, as an unsigned number."""
        block = next(b for b in reversed(self.blocks) if b.offset <= offset)
        return self.pattern.word(block.number, (offset - block.offset) // WORD, inverted=inverted)

    def _verify_fused(
        self, fused: Fused, phase: str, *, inverted: bool, backwards: bool, invert: bool
    ) -> Iterator[int]:
        """Let one kernel do many blocks, and look for the place only where it counted."""
        counted = []
        for group in reversed(self._groups) if backwards else self._groups:
            parts = [group[i : i + fused.group] for i in range(0, len(group), fused.group)]
            for part in reversed(parts) if backwards else parts:
                counted.append((part, fused(part, inverted=inverted, invert=invert)))
                self.verified += sum(b.cells.numel() for b in part) * WORD
                yield self.verified
        # One wait for the whole pass. The kernel has inverted what was wrong, so it is still there.
        for part, wrong in counted:
            if count := int(wrong):
                self._locate_after(part, count, phase, inverted=inverted, invert=invert)

    def _locate_after(
        self, part: list[Block], count: int, phase: str, *, inverted: bool, invert: bool
    ) -> None:
        before = self.wrong
        for block in part:
            now = self.pattern.expected(block, inverted=inverted != invert)
            if not same(now, block.cells):
                self.locate(block, now, phase, inverted=invert)
                block.cells.copy_(now)
        if (gone := count - (self.wrong - before)) > 0:
            self.vanished(part[0], gone, phase)


def same(a: Any, b: Any) -> bool:
    """Whether two tensors hold the same bits, each of them compared.

    On a processor by the C library, which compares as fast as memory is read; torch goes word by
    word there.
    """
    if a.device.type == "cpu" and a.is_contiguous() and b.is_contiguous():
        size = a.numel() * a.element_size()
        assert size == b.numel() * b.element_size()
        return bool(_memcmp(a.data_ptr(), b.data_ptr(), size) == 0)
    return bool(torch.equal(a, b))


def _c_compare() -> Any:
    compare = ctypes.CDLL(None).memcmp
    compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    compare.restype = ctypes.c_int
    return compare


_memcmp = _c_compare()


def _cut(piece: Block, block: int) -> Iterator[Block]:
    for start in range(0, piece.cells.numel(), block):
        yield Block(offset=piece.offset + start * WORD, cells=piece.cells[start : start + block])
