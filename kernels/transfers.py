"""Copies between the host's memory and the device's, and inside the device, every byte compared.

Three ways: host to device, device to host, device to device; from pinned and from pageable memory
on a GPU; in odd sizes at all alignments, large and odd, large and aligned, and all ways at once on
streams of their own. On a processor the device's memory is other memory of the same process.

    python -m nodeproof.kernels.transfers
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from nodeproof.kernels import alone, cargo
from nodeproof.kernels.cargo import DeviceData, HostData, Piece
from nodeproof.kernels.draws import words
from nodeproof.kernels.faults import KEEP, PLACES, known, sound
from nodeproof.kernels.flights import DIRECTIONS, Flight, Way, ways
from nodeproof.kernels.place import place
from nodeproof.worker import Context

_MIB = 1 << 20
# GPU: device to device both ends together do not fit into the L2 of an H100 or H200.
_ARENA = {"cuda": 64 * _MIB, "cpu": _MIB // 2}
_PLANTED_ARENA = 4 * _MIB  # a planted run exercises the comparison, not the wires
_PARTS = 4  # copies of each way, where all ways go at once
_PLANTS = ("flip", "stale")


def copies(context: Context, *, seconds: float = 0.0, plant: str = "") -> dict[str, Any]:
    """Copy every way for `seconds`, at least once each, and compare every byte.

    With `plant="flip"` one bit is flipped after the copy, in each kind of flight of each way, in
    what was copied and, beside the aligned copies, in what no copy may touch. With `plant="stale"`
    one copy of each flight is left out, so that what the round before brought is still there. With
    either one bit of what the device's bytes are made from is flipped at the end.

    Returns `wrong` (bytes), `found` and `planted` (see `cargo.wrong` and `cargo.damage`),
    `reference_wrong` (in how many respects the device's data is not the host's), `checked`
    {direction: bytes}, `flown` {way: {kind: [copies, bytes]}}, `copies`, `rounds`, `gbs`
    {direction: GB/s of the large aligned copies, the median, from pinned memory on a GPU}, `ways`
    {way: {gbs, together_gbs}}, `arena` (bytes) and `loaded_s`. Raises `ValueError` for an unknown
    plant, `RuntimeError` where the memory can't be had.
    """
    known(plant, *_PLANTS)
    device = place(context)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # On a processor one thread: copies wait for memory, and threads that share cores for each other.
    torch.set_num_threads(context.threads if device.type == "cuda" else 1)
    arena = min(_ARENA[device.type], _PLANTED_ARENA if plant else _ARENA[device.type])
    try:
        host = HostData(seed=context.seed, arena=arena)
        there = DeviceData(seed=context.seed, arena=arena, device=device)
        all_ways = ways(host, there, device)
    except (MemoryError, RuntimeError) as error:  # torch's own for memory is a RuntimeError
        raise RuntimeError(
            f"{context.device_id}: {arena // _MIB} MiB in several places, some of them pinned, "
            f"could not be had to copy: end what else uses the memory ({error})"
        ) from error
    trip = _Trip(context=context, host=host, device=device, plant=plant)
    begun = time.perf_counter()
    while trip.rounds == 0 or time.perf_counter() - begun < seconds:
        trip.round(all_ways)
    spent = time.perf_counter() - begun
    # Nothing writes what all bytes come from: what was wrong of it at the start still is.
    if plant:
        trip.strike(there)
    damage = cargo.damage(host, there)
    trip.found += damage
    result = trip.result(all_ways) | {
        "reference_wrong": len(damage),
        "arena": arena,
        "loaded_s": spent,
    }
    del all_ways, host, there, trip
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what comes next on this device may want all of its memory
    return result


@dataclass(slots=True, kw_only=True)
class _Trip:
    """Flies every way, plants, and remembers what was seen."""

    context: Context
    host: HostData
    device: Any
    plant: str
    rounds: int = 0
    number: int = 0
    wrong: int = 0
    found: list[dict[str, Any]] = field(default_factory=list)
    planted: list[dict[str, Any]] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=dict)
    flown: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    rates: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def round(self, all_ways: list[Way]) -> None:
        """Fly each way alone in all kinds, then all ways at once."""
        arena = self.host.arena
        for way in all_ways:
            self.context.progress(phase=way.name, round=float(self.rounds))
            self._fly([self._flight(way, "odd", cargo.odd(self.rounds))])
            self._fly([self._flight(way, "shifted", cargo.shifted(self.rounds, arena))])
            self._fly([self._flight(way, "aligned", cargo.aligned(arena, 1))])
        # One way of each direction: the first, which is from pinned memory where there is such.
        first = {way.direction: way for way in reversed(all_ways)}
        self.context.progress(phase="all at once", round=float(self.rounds))
        parts = cargo.aligned(arena, _PARTS)
        self._fly([self._flight(first[d], "together", parts) for d in DIRECTIONS])
        self.rounds += 1

    def result(self, all_ways: list[Way]) -> dict[str, Any]:
        gbs = {key: statistics.median(rates) for key, rates in self.rates.items()}
        first = {way.direction: way.name for way in reversed(all_ways)}
        return {
            "wrong": self.wrong,
            "found": self.found,
            "planted": self.planted,
            "checked": self.checked,
            "flown": self.flown,
            "copies": sum(copies for kinds in self.flown.values() for copies, _ in kinds.values()),
            "rounds": self.rounds,
            "gbs": {direction: gbs[first[direction], "aligned"] for direction in DIRECTIONS},
            "ways": {
                way.name: {"gbs": gbs[way.name, "aligned"]}
                | (
                    {"together_gbs": gbs[way.name, "together"]}
                    if way.name == first[way.direction]
                    else {}
                )
                for way in all_ways
            },
        }

    def _flight(self, way: Way, kind: str, pieces: tuple[Piece, ...]) -> Flight:
        self.number += 1
        return Flight(way=way, number=self.number, kind=kind, pieces=pieces)

    def _fly(self, flights: list[Flight]) -> None:
        for flight in flights:
            flight.prepare()
        self._done()
        for flight in flights:
            flight.start()
        self._done()
        for flight in flights:
            if flight.kind in {"aligned", "together"}:
                self.rates.setdefault((flight.way.name, flight.kind), []).append(flight.rate())
            # One comparison for both, so that none can be left out that no planted fault misses.
            for planted in (False, True) if self.plant else (False,):
                if planted:
                    self._plant(flight)
                self._verify(flight, always=planted)

    def _verify(self, flight: Flight, *, always: bool = False) -> None:
        found = flight.wrong()
        self.wrong += sum(entry["bytes"] for entry in found)
        # Many faults of the device's own must not crowd out a planted one, or none would count.
        self.found += found if always else found[: max(KEEP - len(self.found), 0)]
        way = flight.way
        self.checked[way.direction] = self.checked.get(way.direction, 0) + way.target.numel()
        flown = self.flown.setdefault(way.name, {}).setdefault(flight.kind, [0, 0])
        flown[0] += len(flight.pieces)
        flown[1] += flight.size

    def strike(self, there: DeviceData) -> None:
        """Flip one bit of the device's data, after all that is compared with it."""
        draw = words(self.context.seed, f"transfers base {self.context.device_id}", PLACES, 2)
        # Among the words that are held one by one, or anywhere, where the digest alone can tell.
        few, every = cargo.sample(self.host), range(self.host.arena // cargo.WORD)
        places = few if self.plant == "flip" else every
        drawn = [(places[at % len(places)], bit % 64) for at, bit in draw.tolist()]
        place, bit = sound(drawn, lambda d: there.word(d[0]) == self.host.word(d[0]))
        cargo.strike(self.host, there, place, bit, into=self.planted)

    def _plant(self, flight: Flight) -> None:
        """Put right what the device did wrong, and plant a fault.

        What stands in `found` before that is the device's own: it was found like any other.
        """
        way = flight.way
        way.target.copy_(flight.expected())
        draw = words(self.context.seed, f"transfers {self.context.device_id} {flight.number}", 1, 3)
        index, within, bit = (int(word) for word in draw[0])
        if self.plant == "flip":
            self._flip(flight, flight.pieces[index % len(flight.pieces)], within, bit % 8)
            if flight.kind == "aligned":
                self._flip_fence(flight, within, bit % 8)
        else:
            self._leave_out(flight, index)
        self._done()

    def _flip(self, flight: Flight, piece: Piece, within: int, bit: int) -> None:
        at = within % piece.size
        expected = self.host.byte(flight.way.name, flight.number, piece.start + at)
        flight.way.target[piece.start + at] ^= 1 << bit
        entry = cargo.entry("data", piece.start, piece.stop, at, 1, expected, expected ^ (1 << bit))
        self.planted.append(flight.described(entry))

    def _flip_fence(self, flight: Flight, within: int, bit: int) -> None:
        *_, (start, stop) = cargo.gaps(flight.pieces, self.host.arena)  # after the last piece
        at = within % (stop - start)
        expected = self.host.byte(flight.way.name, flight.number - 1, start + at)
        flight.way.target[start + at] ^= 1 << bit
        entry = cargo.entry("fence", start, stop, at, 1, expected, expected ^ (1 << bit))
        self.planted.append(flight.described(entry))

    def _leave_out(self, flight: Flight, index: int) -> None:
        """Do the flight again, but for one piece of at least 16 bytes."""
        candidates = [k for k, p in enumerate(flight.pieces) if p.size >= 16]
        chosen = candidates[index % len(candidates)]
        again = Flight(
            way=flight.way,
            number=flight.number,
            kind=flight.kind,
            pieces=flight.pieces,
            left_out=frozenset({chosen}),
        )
        again.prepare()
        self._done()
        again.start()
        self._done()
        # Only what was left out is to speak: what the device does wrong of itself is put right.
        piece, target = flight.pieces[chosen], flight.way.target
        left = target[piece.start : piece.stop].clone()
        target.copy_(flight.expected())
        target[piece.start : piece.stop].copy_(left)
        name = flight.way.name
        fresh = self.host.part(name, flight.number, piece.start, piece.stop)
        stale = self.host.part(name, flight.number - 1, piece.start, piece.stop)
        differs = fresh != stale
        at = int(differs.to(torch.uint8).argmax())
        count = int(torch.count_nonzero(differs))
        entry = cargo.entry(
            "data", piece.start, piece.stop, at, count, int(fresh[at]), int(stale[at])
        )
        self.planted.append(flight.described(entry))

    def _done(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def main() -> None:
    """Prove that planted faults are found, then copy for three seconds and say how fast."""
    context = alone.context()
    for plant in _PLANTS:
        planted = alone.caught(copies(context, plant=plant))
        print(f"{len(planted)} planted faults ({plant}) caught")
    result = copies(context, seconds=3.0)
    if result["wrong"] or result["reference_wrong"]:
        raise SystemExit(f"{result['wrong']} bytes wrong: {result['found']}")
    for name, rates in result["ways"].items():
        together = rates.get("together_gbs")
        beside = f", {together:.1f} GB/s beside the others" if together else ""
        print(f"{name}: {rates['gbs']:.1f} GB/s alone{beside}")
    print(
        f"{sum(result['checked'].values()) / 1e9:.2f} GB exact in {result['copies']} copies and "
        f"{result['loaded_s']:.1f} s"
    )


if __name__ == "__main__":
    main()
