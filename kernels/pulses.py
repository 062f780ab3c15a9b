"""Verified load in bursts: what a supply and a clock do between idle and full is tried as well.

Faults depend on voltage, clock and temperature, and those swing most where a load begins and ends.
Bursts of 1 to 300 ms alternate with pauses of the same length, first on all devices at once, then on
half of them while the other half pauses. Every product of every burst is compared.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nodeproof.kernels import alone
from nodeproof.kernels.faults import known
from nodeproof.kernels.full_load import FullLoad
from nodeproof.kernels.place import place
from nodeproof.kernels.stopwatch import Stopwatch
from nodeproof.worker import Context

LENGTHS_MS = (1, 3, 10, 30, 100, 300)
PHASES = ("together", "in turn")
_PLANTED_MS = 10  # up to this length a planted run tries every burst once
_FLIPS = 2
_SIZE = {"cuda": 4096, "cpu": 256}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One length of burst in one phase."""

    length_ms: int
    phase: str

    def __str__(self) -> str:
        return f"{self.length_ms} ms {self.phase}"


def pulses(context: Context, *, seconds: float = 0.0, plant: str = "") -> dict[str, Any]:
    """Multiply in bursts, over every length and phase, again and again for `seconds`.

    All devices of the machine keep the same beat, by the clock that they share: burst number n of a
    length begins at a whole multiple of twice that length, and a half of the devices (by their rank
    in the group) one length later where the phase is "in turn". `plant="flip"` flips one bit in
    two bursts. Returns what `FullLoad.report` gives and `cells` (bursts by length and phase),
    `untried` (how many of the cells had none), `late` (bursts that began after half of their length
    was over: the beat was not kept), `bursts` and `loaded_s` (wall time, pauses included). Raises
    `ValueError` for an unknown plant.
    """
    known(plant, "flip")
    device = place(context)
    load = FullLoad(context, device, size=_SIZE[device.type])
    load.warm_up()
    rank = context.group.rank if context.group else 0
    lengths = [n for n in LENGTHS_MS if not plant or n <= _PLANTED_MS]
    cells = {str(Cell(length_ms=n, phase=p)): 0 for n in lengths for p in PHASES}
    late, watch = 0, Stopwatch(context, seconds)
    while not all(cells.values()) or watch.spent < seconds:
        for cell in _cells(lengths):
            # A burst of each in a planted run; else as many as make the cell last like any other.
            for _ in range(1 if plant else max(1, lengths[-1] // cell.length_ms)):
                flip = plant == "flip" and load.flipped < _FLIPS
                late += _burst(load, cell, rank, flip=flip)
                cells[str(cell)] += 1
                watch.read()
                watch.tell(pulse=str(cell), done=watch.share)
                if seconds and all(cells.values()) and watch.spent >= seconds:
                    break
    return {
        **load.report(),
        "cells": cells,
        "untried": sum(not count for count in cells.values()),
        "bursts": sum(cells.values()),
        "late": late,
        "loaded_s": watch.spent,
    }


def _cells(lengths: list[int]) -> Iterator[Cell]:
    for phase in PHASES:
        for length in lengths:
            yield Cell(length_ms=length, phase=phase)


def _burst(load: FullLoad, cell: Cell, rank: int, *, flip: bool) -> bool:
    """Wait for the beat, multiply for the length of the burst; say whether the beat was missed."""
    length_s = cell.length_ms / 1000
    shift = length_s if cell.phase == "in turn" and rank % 2 else 0.0
    period = 2 * length_s
    beats = (time.monotonic() - shift) // period + 1
    starts = beats * period + shift
    time.sleep(max(0.0, starts - time.monotonic()))
    late = time.monotonic() - starts > length_s / 2
    ends = starts + length_s
    while True:
        load.multiply(flip=flip)
        flip = False
        if time.monotonic() >= ends:
            return late


def main() -> None:
    """Prove that planted faults are found, then pulse for five seconds."""
    context = alone.context()
    planted = alone.caught(pulses(context, plant="flip"), _FLIPS)
    print(f"planted fault caught: {planted[0]}")
    result = pulses(context, seconds=5.0)
    if result["wrong"]:
        raise SystemExit(f"{result['wrong']} elements wrong: {result['found'][0]}")
    print(f"{result['products']} products in {result['bursts']} bursts exact: {result['cells']}")


if __name__ == "__main__":
    main()
