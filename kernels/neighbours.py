"""Memory whose neighbours are written again and again: every twentieth word has to stay as it is.

The modulo-20 test of memtest86, which MemtestG80 (Haque and Pande, 2010) found the most sensitive
on GPUs: twenty shares no pattern with rows, banks and channels, so that a word's neighbours are
never the same, and writes that a cache combines cannot hide what reaches the cell.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from nodeproof.kernels import alone
from nodeproof.kernels.bits import signed
from nodeproof.kernels.claim import MIB, claim
from nodeproof.kernels.draws import key, words
from nodeproof.kernels.faults import PLACES, known, sound
from nodeproof.kernels.memory import Meter, finish
from nodeproof.kernels.mismatches import ALL_BITS, WORD, Block, Mismatches, differs
from nodeproof.kernels.place import place
from nodeproof.worker import Context

STEP = 20  # words from one that is kept to the next
TURNS = 2 * STEP  # of a round
_WRITES = 2  # of all others, one over the whole memory after the other
# Words of one operation, which on a GPU has to take longer than to ask for it, and of which memory is
# taken in multiples.
_BLOCK = {"cuda": STEP << 21, "cpu": STEP << 9}
GRAIN = {"cuda": STEP << 14, "cpu": STEP << 9}
SPARE = 96 * MIB  # of a GPU: which words of a block are wrong, and where


class Neighbours(Mismatches):
    """Keeps every twentieth word, disturbs the others, and remembers what was wrong."""

    def __init__(self, pieces: list[Any], *, seed: int, block: int) -> None:
        """Take pieces of multiples of twenty words; so is `block`, what is treated at once."""
        super().__init__(pieces)
        self._seed = seed
        self._blocks: list[Block] = []
        for piece in self.pieces:
            for start in range(0, piece.cells.numel(), block):
                self._blocks.append(
                    Block(
                        offset=piece.offset + start * WORD,
                        cells=piece.cells[start : start + block].view(-1, STEP),
                        number=len(self._blocks),
                    )
                )
        self._row = torch.empty(STEP, dtype=torch.int64, device=self.pieces[0].cells.device)
        self.read = self.written = 0  # bytes; written are those of the words that are not kept

    def disturb(self, turn: int) -> Iterator[int]:
        """Write every twentieth word, and then all the others twice with its complement.

        Over the whole memory each time, so that a write is not just replaced in a cache; and with
        one value for all of it, so that whatever lies around a word holds the opposite.
        """
        kept = _kept(turn)
        value, other = signed(self.value(turn)), signed(self.value(turn) ^ ALL_BITS)
        for block in self._blocks:
            block.cells[:, kept].fill_(value)
            yield block.number
        for _ in range(_WRITES):
            for block in self._blocks:
                rows = block.cells
                rows[:, :kept].fill_(other)
                rows[:, kept + 1 :].fill_(other)
                self.written += (rows.numel() - rows.shape[0]) * WORD
                yield block.number

    def verify(self, turn: int) -> Iterator[int]:
        """Compare every word, those that were kept and the others.

        Nothing is written meanwhile, so that the device need not be waited for before the end.
        """
        value = self.value(turn)
        self._row.fill_(signed(value ^ ALL_BITS))
        self._row[_kept(turn)] = signed(value)
        compared = []
        for block in self._blocks:
            compared.append((block, differs(block, self._row)))
            self.read += block.cells.numel() * WORD
            yield block.number
        self.settle(compared, self._row, phase(turn))

    def flip(self, draw: list[list[int]], turn: int, *, kept: bool) -> dict[str, Any]:
        """Flip one bit of a word that is right: one of those kept, or one beside them."""
        expected = self.value(turn) ^ (0 if kept else ALL_BITS)

        def offset(high: int, low: int, more: int) -> int:
            row = (high << 32 | low) % (self.bytes // WORD // STEP)
            beside = 0 if kept else 1 + more // 64 % (STEP - 1)
            return (row * STEP + (_kept(turn) + beside) % STEP) * WORD

        place = sound((offset(*each) for each in draw), lambda at: self.word(at) == expected)
        return self.plant(place, draw[0][2] % 64, phase(turn), expected)

    def value(self, turn: int) -> int:
        """What the kept words hold: random bits in even turns, in odd ones the opposite."""
        drawn = key(self._seed, f"neighbours {turn // 2}")
        return drawn ^ ALL_BITS if turn % 2 else drawn


def phase(turn: int) -> str:
    """How one turn is called."""
    return f"turn {turn}, words {_kept(turn)} of {STEP} kept"


def _kept(turn: int) -> int:
    """Which of twenty words are kept: each in two turns one after the other."""
    return turn // 2 % STEP


def neighbours(
    context: Context, *, cpu_mib: float, gpu_share: float, seconds: float = 0.0, plant: str = ""
) -> dict[str, Any]:
    """Disturb a share of a GPU's free memory, or `cpu_mib` MiB, in whole rounds for `seconds`.

    A round is forty turns, so that every word is kept twice, with opposite bits. With
    `plant="flip"` a bit of a kept word is flipped in one turn and a bit of another in the next.
    Returns `wrong` (words), `found`, `planted`, `compared` (words), `strides`, `rounds`, `kept` (which
    of twenty words, times two), `disturbed` (words written beside kept ones), `gb_per_s` (read), `loaded_s` and how much was tested of what, as `Claim.facts` has it. Raises `ValueError`
    for a share or size that is none, `RuntimeError` where that much memory cannot be had.
    """
    known(plant, "flip")
    torch.set_num_threads(context.threads)
    device = place(context)
    taken = claim(
        context,
        device,
        gpu_share=gpu_share,
        cpu_mib=cpu_mib,
        block=GRAIN[device.type],
        spare=SPARE,
        planting=bool(plant),
    )
    over = Neighbours(taken.pieces, seed=context.seed, block=_BLOCK[device.type])
    drawn = words(context.seed, f"neighbours flip {context.device_id}", 2 * PLACES + 1, 3).tolist()
    struck = drawn[0][0] % (TURNS - 1) if plant else -2
    meter = Meter(context)
    planted = []
    kept: set[tuple[int, int]] = set()
    begun, rounds = time.perf_counter(), 0
    while not rounds or time.perf_counter() - begun < seconds:
        for turn in range(rounds * TURNS, (rounds + 1) * TURNS):
            meter.follow("disturbing", over.disturb(turn), over.bytes)
            if turn == struck:
                planted.append(over.flip(drawn[1 : PLACES + 1], turn, kept=True))
            if turn == struck + 1:
                planted.append(over.flip(drawn[PLACES + 1 :], turn, kept=False))
            meter.follow("verifying", over.verify(turn), over.bytes)
            finish(taken)
            kept.add((_kept(turn), turn % 2))
        rounds += 1
    spent = time.perf_counter() - begun
    return {
        "wrong": over.wrong,
        "found": over.found,
        "planted": planted,
        "compared": over.read // WORD,
        "strides": over.strides(),
        "rounds": rounds,
        "kept": len(kept),
        "disturbed": over.written // WORD,
        "gb_per_s": over.read / spent / 1e9,
        "loaded_s": spent,
        **taken.facts(),
    }


def main() -> None:
    """Prove that planted faults are found, then disturb memory and say how fast."""
    context = alone.context()
    alone.caught(neighbours(context, cpu_mib=1, gpu_share=0.9, plant="flip"), 2)
    print("2 planted faults found")
    result = neighbours(context, cpu_mib=32, gpu_share=0.9)
    if result["wrong"]:
        raise SystemExit(f"{result['wrong']} words wrong: {result['found']}")
    print(
        f"{TURNS} turns over {result['bytes'] / MIB:.0f} MiB in {result['loaded_s']:.1f} s: "
        f"{result['gb_per_s']:.1f} GB/s read"
    )


if __name__ == "__main__":
    main()
