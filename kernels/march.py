"""March C-: read and write memory block after block, upwards and downwards, in every order of digits.

A march finds a fault between two words for certain if it treats them one after the other. A GPU
treats thousands at once. So the number of a word is written in digits, and the march is made once
for each digit: all words that share its value are one block, and blocks come one after the other.
Two words differ in a digit at least, and in that digit's march they are apart. Bits of one word are
told apart by six backgrounds in which any two of them differ at least once.

The algorithm is A. J. van de Goor's (Testing Semiconductor Memories, 1991): up or down (w0); up
(r0, w1); up (r1, w0); down (r0, w1); down (r1, w0); up or down (r0).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from nodeproof.kernels import alone
from nodeproof.kernels.bits import signed
from nodeproof.kernels.claim import MIB, claim, free_and_total
from nodeproof.kernels.draws import words
from nodeproof.kernels.faults import PLACES, known, sound
from nodeproof.kernels.memory import Meter, finish
from nodeproof.kernels.mismatches import ALL_BITS, WORD, Block, Mismatches, differs
from nodeproof.kernels.place import place
from nodeproof.worker import Context

SOLID = 0
# In the k-th, bit b of a word is bit k of the number b.
STRIPES = tuple(sum(1 << bit for bit in range(64) if bit >> k & 1) for k in range(6))
DIGITS = 5
SPARE = 64 * MIB  # of a GPU: which words of a block of 128 MiB are wrong, and where


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """One pass of a march: what is read, what is written at once after it, in which order."""

    name: str
    reads: int  # 0: the background, 1: its complement
    writes: int | None
    downwards: bool = False


ELEMENTS = (
    Element(name="up r0 w1", reads=0, writes=1),
    Element(name="up r1 w0", reads=1, writes=0),
    Element(name="down r0 w1", reads=0, writes=1, downwards=True),
    Element(name="down r1 w0", reads=1, writes=0, downwards=True),
    Element(name="r0", reads=0, writes=None),
)


class March(Mismatches):
    """Marches over memory, and remembers what was wrong."""

    def __init__(self, pieces: list[Any], *, values: int, digits: int) -> None:
        """Number the words of `pieces`, each a multiple of `values ** (digits - 1)` words.

        All digits but the first have `values` values; the first, which counts through the pieces,
        has as many as are needed.
        """
        super().__init__(pieces)
        self.digits = digits
        self._values = values
        shape = (-1, *(values,) * (digits - 1))
        self._views = [(piece, piece.cells.view(shape)) for piece in self.pieces]
        self.read = 0  # bytes
        self.turned = 0  # elements that were read from the last block to the first

    def march(
        self, digit: int, background: int, before: Callable[[Element], None] = lambda _: None
    ) -> Iterator[int]:
        """March over the blocks of one digit; yield the bytes read so far, now and then.

        `before` is called before each element, when all memory holds what it reads.
        """
        blocks = list(self.blocks(digit))
        states = (signed(background), signed(background ^ ALL_BITS))
        for block in blocks:
            for part in block:
                part.cells.fill_(states[0])
        for element in ELEMENTS:
            before(element)
            phase = named(digit, background, element)
            offsets: list[int] = []
            for block in reversed(blocks) if element.downwards else blocks:
                expected = states[element.reads]
                # Waited for before the next is written, which takes the place of what was wrong.
                self.settle([(part, differs(part, expected)) for part in block], expected, phase)
                for part in block:
                    if element.writes is not None:
                        part.cells.fill_(states[element.writes])
                    self.read += part.cells.numel() * WORD
                offsets.append(block[0].offset)
                yield self.read
            self.turned += offsets == sorted(offsets, reverse=True) != sorted(offsets)

    def blocks(self, digit: int) -> Iterator[list[Block]]:
        """All words that share a value of the digit, in order; of each piece one part.

        The first digit counts through the pieces, so a block of that lies in one of them.
        """
        if digit:
            for value in range(self._values):
                yield [_part(piece, view, digit, value) for piece, view in self._views]
            return
        for piece, view in self._views:
            for value in range(view.shape[0]):
                yield [_part(piece, view, 0, value)]


def _part(piece: Block, view: Any, digit: int, value: int) -> Block:
    cells = view.select(digit, value)
    skipped = cells.storage_offset() - piece.cells.storage_offset()
    return Block(offset=piece.offset + skipped * WORD, cells=cells)


def values_of_digit(kind: str, free: int) -> int:
    """How many values a digit has, but the first, where `free` bytes are to be marched over.

    The device is waited for once in each block, and most blocks are those of the first digit, of
    which a round has seven marches. On a GPU they have 128 MiB, which take longer than to wait, or
    8 MiB where more would be a hundredth of all.
    """
    if kind == "cpu":
        return 8
    return 64 if free >= 12 << 30 else 32


def named(digit: int, background: int, element: Element) -> str:
    """How one element of one march is called."""
    return f"digit {digit} background {background:#018x} {element.name}"


def march(
    context: Context, *, cpu_mib: float, gpu_share: float, seconds: float = 0.0, plant: str = ""
) -> dict[str, Any]:
    """March over a share of a GPU's free memory, or `cpu_mib` MiB, for whole rounds of `seconds`.

    A round is a march with plain zeros and ones for each digit, and one for each background of
    stripes over the blocks of the first digit: faults inside a word do not depend on the order of
    words. With `plant="flip"` one bit is flipped before a drawn element of each march. Returns
    `wrong` (words), `found`, `planted`, `compared` (words), `strides`, `rounds`, `marches`,
    `programme` (marches that differ), `turned` (elements that went downwards), `gb_per_s` (read), `loaded_s` and how much was tested of what, as `Claim.facts` has it. Raises
    `ValueError` for a share or size that is none, `RuntimeError` where that much memory cannot be
    had.
    """
    known(plant, "flip")
    torch.set_num_threads(context.threads)
    device = place(context)
    values = values_of_digit(device.type, free_and_total(device)[0])
    block = values ** (DIGITS - 1)
    taken = claim(
        context,
        device,
        gpu_share=gpu_share,
        cpu_mib=cpu_mib,
        block=block,
        spare=SPARE,
        planting=bool(plant),
    )
    over = March(taken.pieces, values=values, digits=DIGITS)
    programme = [*((d, SOLID) for d in range(DIGITS)), *((0, stripe) for stripe in STRIPES)]
    meter = Meter(context)
    planted: list[dict[str, Any]] = []
    marched: set[tuple[int, int]] = set()
    begun, rounds, marches = time.perf_counter(), 0, 0
    while not rounds or time.perf_counter() - begun < seconds:
        for number, (digit, background) in enumerate(programme):
            fault = _Fault(over, context, number, background, planted)
            strike = fault.strike if plant and not rounds else _spare
            meter.follow("marching", over.march(digit, background, strike), over.bytes)
            finish(taken)
            marched.add((digit, background))
            marches += 1
        rounds += 1
    spent = time.perf_counter() - begun
    return {
        "wrong": over.wrong,
        "found": over.found,
        "planted": planted,
        "compared": over.read // WORD,
        "strides": over.strides(),
        "rounds": rounds,
        "marches": marches,
        "programme": len(marched),
        "turned": over.turned,
        "gb_per_s": over.read / spent / 1e9,
        "loaded_s": spent,
        **taken.facts(),
    }


def _spare(_: Element) -> None:
    """Plant nothing before an element."""


@dataclass(frozen=True, slots=True)
class _Fault:
    """A bit that is flipped in one march, before an element and at a place that are drawn."""

    over: March
    context: Context
    number: int
    background: int
    planted: list[dict[str, Any]]

    def strike(self, element: Element) -> None:
        """Flip a bit if this is the element for it."""
        tag = f"march flip {self.number} {self.context.device_id}"
        drawn = words(self.context.seed, tag, PLACES + 1, 3).tolist()
        if element is not ELEMENTS[drawn[0][0] % len(ELEMENTS)]:
            return
        expected = self.background ^ (ALL_BITS if element.reads else 0)
        offset = sound(
            (self.over.offset(high, low) for high, low, _ in drawn[1:]),
            lambda place: self.over.word(place) == expected,
        )
        digit = self.number if self.number < self.over.digits else 0
        phase = named(digit, self.background, element)
        self.planted.append(self.over.plant(offset, drawn[0][1] % 64, phase, expected))


def main() -> None:
    """Prove that planted faults are found, then march and say how fast."""
    context = alone.context()
    planted = march(context, cpu_mib=1, gpu_share=0.9, plant="flip")
    alone.caught(planted, planted["marches"])
    print(f"{len(planted['planted'])} planted faults found")
    result = march(context, cpu_mib=32, gpu_share=0.9)
    if result["wrong"]:
        raise SystemExit(f"{result['wrong']} words wrong: {result['found']}")
    print(
        f"{result['marches']} marches over {result['bytes'] / MIB:.0f} MiB in "
        f"{result['loaded_s']:.1f} s: {result['gb_per_s']:.1f} GB/s read"
    )


if __name__ == "__main__":
    main()
