"""The last cache before memory: words that one core writes and another reads, all of them compared.

Everything that is touched fits the cache together, so that most of what is read was never in
memory in between. Which word the cache answered and which the memory behind it, no program can
tell: `device.memory.pattern` tests the memory, and this the way to it and back, many times as often.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nodeproof.kernels import alone
from nodeproof.kernels.bits import difference, signed, unsigned
from nodeproof.kernels.draws import long_words, words
from nodeproof.kernels.faults import KEEP, PLACES, known, sound
from nodeproof.kernels.place import place
from nodeproof.kernels.stopwatch import Stopwatch
from nodeproof.worker import Context

WORD = 8  # bytes
_MIB = 1 << 20
_SHARE = 0.75  # of the cache: what else is in it would push words of a larger set out
_BUFFERS = 3 + 1 / WORD  # cells, what was read, what it has to be, and one byte for each word
_ROW = {"cuda": 4096, "cpu": 512}  # words of what is shuffled
_MOST = 2 * _MIB  # on a processor, whose last cache is everybody's, or does not say
_SWEEPS = 4  # of a round: every bit is read with both values, twice


def sweep(context: Context, *, seconds: float = 0.0, plant: str = "") -> dict[str, Any]:
    """Write, verify and invert a working set of the cache's size for `seconds`, one round at least.

    A round has a pattern of its own and four sweeps, in shuffled orders of rows. With
    `plant="flip"` one bit is flipped before each sweep of the first round. Returns `wrong` (words),
    `found`, `planted`, `host` (of a wrong word: whether the host makes it right), `cache_bytes` (0
    if a processor does not say), `bytes` (of the working set: everything that is touched),
    `cells_bytes` (of what is compared), `verified_bytes`, `values` {value of the bits: bytes verified}, `rounds`, `sweeps`, `gb_per_s` (verified)
    and `loaded_s`. Raises `ValueError` for an unknown plant, `RuntimeError` for a GPU that does not
    say how large its cache is.
    """
    known(plant, "flip")
    torch.set_num_threads(context.threads)
    device = place(context)
    cache = size_of_cache(context, device)
    taken = cache if device.type == "cuda" else min(cache or _MOST, _MOST)
    row = _ROW[device.type]
    rows = max(int(taken * _SHARE / _BUFFERS) // (row * WORD), 8)
    cells = Cells(context, device, rows=rows, row=row)
    watch = Stopwatch(context, seconds)
    done = 0
    while not done or watch.spent < seconds:
        cells.round(done, flip=plant == "flip" and not done)
        done += 1
        watch.tell(gb_per_s=cells.verified / watch.read() / 1e9, done=watch.share)
    return {
        "wrong": cells.wrong,
        "host": cells.host,
        "found": cells.found,
        "planted": cells.planted,
        "cache_bytes": cache,
        "bytes": int(cells.bytes * _BUFFERS),
        "cells_bytes": cells.bytes,
        "verified_bytes": cells.verified,
        "values": cells.values,
        "rounds": done,
        "sweeps": done * _SWEEPS,
        "gb_per_s": cells.verified / watch.spent / 1e9,
        "loaded_s": watch.spent,
    }


def size_of_cache(context: Context, device: Any) -> int:
    """Return the bytes of the last cache, 0 where a processor does not say."""
    if device.type == "cuda":
        size = int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))
        if size <= 0:
            raise RuntimeError(
                f"{context.device_id}: torch {torch.__version__} does not say how large the L2 "
                f"cache is, so nothing of its size can be tested: use torch 2.8 or later"
            )
        return size
    largest = (0, 0)  # level, bytes
    for index in (context.host_root / "sys/devices/system/cpu/cpu0/cache").glob("index*"):
        level, text = _read(index / "level"), _read(index / "size")
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        number = text.rstrip("KMG")
        if level.isdigit() and number.isdigit():
            largest = max(largest, (int(level), int(number) * unit))
    return largest[1]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Numbers:
    """Factor (odd) and summand of each row in one round; uint64, on the host."""

    factor: Any
    plus: Any

    def on(self, device: Any, order: Any, *, inverted: bool) -> tuple[Any, Any]:
        """Both as columns on a device, for rows in `order`."""
        factor, plus = self.factor[order], self.plus[order]
        if inverted:  # -x - 1 inverts all bits of x: the same arithmetic with other numbers
            factor, plus = ~factor + np.uint64(1), ~plus
        columns = [c.view(np.int64)[:, None].copy() for c in (factor, plus)]
        return torch.from_numpy(columns[0]).to(device), torch.from_numpy(columns[1]).to(device)


class Cells:
    """The working set, and what was wrong in it.

    A word is a random one, times an odd number and plus another, both of its row and round. Writer
    and reader have the random words and the numbers each from the host, in copies of their own: a
    fault in one of these shows like any other.
    """

    def __init__(self, context: Context, device: Any, *, rows: int, row: int) -> None:
        self._seed, self._id, self._device = context.seed, context.device_id, device
        self._rows, self._row = rows, row
        self._known = long_words(context.seed, "cache base", row)
        whole = torch.from_numpy(self._known.view(np.int64))
        self._written, self._wanted = (whole.clone().to(device)[None, :] for _ in range(2))
        self._cells, self._got, self._expected = (
            torch.empty((rows, row), dtype=torch.int64, device=device) for _ in range(3)
        )
        self._differs = torch.empty((rows, row), dtype=torch.bool, device=device)
        self.bytes = rows * row * WORD
        self.verified = 0
        self.values = {"as written": 0, "inverted": 0}
        self.wrong = 0
        self.found: list[dict[str, Any]] = []
        self.planted: list[dict[str, Any]] = []
        self.host: str | None = None  # where a word was wrong: whether the host has another

    def round(self, number: int, *, flip: bool) -> None:
        """Write a new pattern, then verify and invert it, each time in another order of rows."""
        draw = words(self._seed, f"cache round {number}", self._rows, 4 + _SWEEPS)
        pairs = draw[:, :4].astype(np.uint64)
        numbers = Numbers(
            factor=pairs[:, 0] << np.uint64(32) | pairs[:, 1] | np.uint64(1),
            plus=pairs[:, 2] << np.uint64(32) | pairs[:, 3],
        )
        self._write(numbers, inverted=False)
        for count in range(_SWEEPS):
            inverted = count % 2 == 1
            order = np.argsort(draw[:, 4 + count], kind="stable")
            at = self._flip(numbers, number, count, inverted=inverted) if flip else None
            self._verify(numbers, order, (number, count), at, inverted=inverted)
            torch.bitwise_not(self._cells, out=self._cells)

    def word(self, numbers: Numbers, row: int, column: int, *, inverted: bool) -> int:
        """One word as an unsigned number, by Python's arithmetic."""
        factor, plus = int(numbers.factor[row]), int(numbers.plus[row])
        value = unsigned(int(self._known[column]) * factor + plus)
        return unsigned(~value) if inverted else value

    def _write(self, numbers: Numbers, *, inverted: bool) -> None:
        every = np.arange(self._rows)
        factor, plus = numbers.on(self._device, every, inverted=inverted)
        torch.addcmul(plus, self._written, factor, out=self._cells)

    def _verify(
        self,
        numbers: Numbers,
        order: Any,
        when: tuple[int, int],
        at: tuple[int, int] | None,
        *,
        inverted: bool,
    ) -> None:
        """Read the rows in `order`, so that most are read by another core than the one that wrote."""
        torch.index_select(self._cells, 0, torch.from_numpy(order).to(self._device), out=self._got)
        factor, plus = numbers.on(self._device, order, inverted=inverted)
        torch.addcmul(plus, self._wanted, factor, out=self._expected)
        torch.ne(self._got, self._expected, out=self._differs)
        wrong = int(torch.count_nonzero(self._differs))
        self.verified += self.bytes
        self.values["inverted" if inverted else "as written"] += self.bytes
        if not wrong:
            return
        self.wrong += wrong
        places = [
            (int(order[place]), column) for place, column in self._differs.nonzero()[:KEEP].tolist()
        ]
        position = np.argsort(order)  # of each row in what was read
        # Many faults of the device's own must not crowd out a planted one, or none would count.
        if at is not None and at not in places and bool(self._differs[position[at[0]], at[1]]):
            places.append(at)
        for row, column in places:
            if len(self.found) < KEEP or (row, column) == at:
                right = self.word(numbers, row, column, inverted=inverted)
                got = unsigned(int(self._got[position[row], column]))
                self.found.append(self._described((row, column), right, got, when))
                own = self._device.type == "cpu"
                self.host = "itself" if own else "right" if got != right else self.host
        # What was wrong is put right: each fault is reported once, unless it is there again.
        self._write(numbers, inverted=inverted)

    def _flip(
        self, numbers: Numbers, number: int, count: int, *, inverted: bool
    ) -> tuple[int, int]:
        """Flip one bit where the device is right, and note what has to be reported for it."""
        draws = words(self._seed, f"cache flip {number} {count} {self._id}", PLACES, 3).tolist()
        drawn = ((r % self._rows, c % self._row, b % 64) for r, c, b in draws)

        def right(row: int, column: int) -> int:
            return self.word(numbers, row, column, inverted=inverted)

        row, column, bit = sound(
            drawn, lambda d: unsigned(int(self._cells[d[0], d[1]])) == right(d[0], d[1])
        )
        self._cells[row, column] = self._cells[row, column] ^ signed(1 << bit)
        expected = right(row, column)
        self.planted.append(
            self._described((row, column), expected, expected ^ 1 << bit, (number, count))
        )
        return row, column

    def _described(
        self, place: tuple[int, int], expected: int, got: int, when: tuple[int, int]
    ) -> dict[str, Any]:
        return {
            "offset": (place[0] * self._row + place[1]) * WORD,
            "round": when[0],
            "sweep": when[1],
            **difference(expected, got, 64),
        }


def main() -> None:
    """Prove that planted faults are found, then sweep for a while and say how fast."""
    context = alone.context()
    planted = alone.caught(sweep(context, plant="flip"))
    print(f"planted faults caught: {len(planted)}")
    result = sweep(context, seconds=2.0)
    if result["wrong"]:
        raise SystemExit(f"{result['wrong']} words wrong: {result['found']}")
    print(
        f"{result['bytes'] / _MIB:.1f} of {result['cache_bytes'] / _MIB:.1f} MiB of cache exact in "
        f"{result['sweeps']} sweeps: {result['gb_per_s']:.2f} GB/s verified"
    )


if __name__ == "__main__":
    main()
