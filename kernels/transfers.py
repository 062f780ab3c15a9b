"""Copies between the host's memory and the device's, and inside the device, every byte compared.

Three ways: host to device, device to host, device to device; from pinned and from pageable memory
on a GPU; in odd sizes at all alignments, large and odd, large and aligned, and all ways at once on
streams of their own. On a processor the device's memory is other memory of the same process.

    python -m nodeproof.kernels.transfers
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from nodeproof.kernels import alone, cargo
from nodeproof.kernels.cargo import Data, DeviceData, HostData, Piece
from nodeproof.kernels.draws import words
from nodeproof.kernels.faults import KEEP, known
from nodeproof.kernels.place import place
from nodeproof.worker import Context

DIRECTIONS = ("h2d", "d2h", "d2d")
_MIB = 1 << 20
# GPU: device to device both ends together do not fit into the L2 of an H100 or H200.
_ARENA = {"cuda": 64 * _MIB, "cpu": _MIB // 2}
_PLANTED_ARENA = 4 * _MIB  # a planted run exercises the comparison, not the wires
_PARTS = 4  # copies of each way, where all ways go at once
_PLANTS = ("flip", "stale")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """From one arena to another. `data` is of the side that the arena lies on."""

    direction: str
    memory: str  # of the host's end: pinned or pageable; device where there is none
    source: Any  # uint8
    source_data: Data
    target: Any  # uint8
    target_data: Data
    stream: Any  # None on a processor

    @property
    def name(self) -> str:
        """Part of what every byte is a hash of."""
        return f"{self.direction} {self.memory}"


@dataclass(slots=True, kw_only=True)
class Flight:
    """Copies of one way that are prepared, done and verified together."""

    way: Way
    number: int
    kind: str  # odd, shifted, aligned or together
    pieces: tuple[Piece, ...]
    left_out: frozenset[int] = frozenset()  # indices of pieces that a plant does not copy
    events: tuple[Any, Any] | None = None
    seconds: float = 0.0

    def prepare(self) -> None:
        """Write the source, and over the whole target what the copy before this one brings."""
        way = self.way
        way.target_data.write(way.target, way.name, self.number - 1)
        for p in self.pieces:
            part = way.source_data.part(way.name, self.number, p.start, p.stop)
            way.source[p.source : p.source + p.size].copy_(part)

    def start(self) -> None:
        """Copy, on the way's stream; on a processor it is done on return."""
        begun = time.perf_counter()
        with _on(self.way.stream):
            begin, end = self._events()
            for index, p in enumerate(self.pieces):
                if index not in self.left_out:
                    source = self.way.source[p.source : p.source + p.size]
                    self.way.target[p.start : p.stop].copy_(source, non_blocking=True)
            if begin is not None:
                end.record(self.way.stream)
                self.events = (begin, end)
        self.seconds = time.perf_counter() - begun

    def rate(self) -> float:
        """GB/s of the copies alone. Raises `RuntimeError` where no time has passed."""
        if self.events is not None:
            begin, end = self.events
            self.seconds = float(begin.elapsed_time(end)) / 1e3
        if not self.seconds > 0:
            raise RuntimeError(
                f"{self.way.name}: {self.size} bytes were copied in {self.seconds} s by the clock: "
                "the clock or the copy is not to be trusted; see host.clock.source"
            )
        return self.size / self.seconds / 1e9

    @property
    def size(self) -> int:
        """Bytes of all pieces."""
        return sum(p.size for p in self.pieces)

    def expected(self) -> Any:
        """The whole target as it has to be, made on its own side."""
        return self.way.target_data.expected(self.way.name, self.number, self.pieces)

    def wrong(self) -> list[dict[str, Any]]:
        """What has arrived otherwise, as `cargo.wrong` gives it, with its way and number."""
        found = cargo.wrong(self.way.target, self.expected(), self.pieces)
        return [self.described(entry) for entry in found]

    def described(self, entry: dict[str, Any]) -> dict[str, Any]:
        """An entry of `cargo.wrong`, with where it belongs."""
        named = {"direction": self.way.direction, "memory": self.way.memory}
        return {**named, "round": self.number, "kind": self.kind, **entry}

    def _events(self) -> tuple[Any, Any]:
        if self.way.stream is None:
            return None, None
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(self.way.stream)
        return begin, end


def copies(context: Context, *, seconds: float = 0.0, plant: str = "") -> dict[str, Any]:
    """Copy every way for `seconds`, at least once each, and compare every byte.

    With `plant="flip"` one bit is flipped after the copy, in each kind of flight of each way, in
    what was copied and, beside the aligned copies, in what no copy may touch. With `plant="stale"`
    one copy of each flight is left out, so that what the round before brought is still there.

    Returns `wrong` (bytes), `found` and `planted` (see `cargo.wrong`), `reference_wrong` (how far
    the device's data is not the host's), `checked` {direction: bytes}, `copies`, `rounds`, `gbs`
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
    before = cargo.damage(host, there)
    trip = _Trip(context=context, host=host, device=device, plant=plant)
    begun = time.perf_counter()
    while trip.rounds == 0 or time.perf_counter() - begun < seconds:
        trip.round(all_ways)
    spent = time.perf_counter() - begun
    result = trip.result(all_ways) | {
        "reference_wrong": before + cargo.damage(host, there),
        "arena": arena,
        "loaded_s": spent,
    }
    del all_ways, host, there, trip
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what comes next on this device may want all of its memory
    return result


def ways(host: HostData, there: DeviceData, device: Any) -> list[Way]:
    """All ways with their arenas. Raises what torch raises where there is too little memory."""
    gpu = device.type == "cuda"
    size = host.arena

    def on_host(*, pinned: bool) -> Any:
        return torch.empty(size, dtype=torch.uint8, pin_memory=pinned)

    def on_device() -> Any:
        return torch.empty(size, dtype=torch.uint8, device=device)

    streams = [torch.cuda.Stream(device) if gpu else None for _ in DIRECTIONS]
    arrive, leave = on_device(), on_device()
    made = []
    # Pageable copies never go at the same time, so one arena of the host is enough for them.
    pageable = on_host(pinned=False)
    pairs = [("pageable", pageable, pageable if gpu else on_host(pinned=False))]
    if gpu:
        pairs.insert(0, ("pinned", on_host(pinned=True), on_host(pinned=True)))
    for memory, out, back in pairs:
        to = {"source": out, "source_data": host, "target": arrive, "target_data": there}
        made.append(Way(direction="h2d", memory=memory, stream=streams[0], **to))
        fro = {"source": leave, "source_data": there, "target": back, "target_data": host}
        made.append(Way(direction="d2h", memory=memory, stream=streams[1], **fro))
    inside = {"source": on_device(), "source_data": there, "target_data": there}
    target = on_device()
    made.append(Way(direction="d2d", memory="device", stream=streams[2], target=target, **inside))
    return made


@dataclass(slots=True, kw_only=True)
class _Trip:
    """Flies every way, plants, and remembers what was seen."""

    context: Context
    host: HostData
    device: Any
    plant: str
    rounds: int = 0
    number: int = 0
    copies: int = 0
    wrong: int = 0
    found: list[dict[str, Any]] = field(default_factory=list)
    planted: list[dict[str, Any]] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=dict)
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
            "copies": self.copies,
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
            self._verify(flight)
            self.copies += len(flight.pieces)
            if self.plant:
                self._plant(flight)

    def _verify(self, flight: Flight, *, always: bool = False) -> None:
        found = flight.wrong()
        self.wrong += sum(entry["bytes"] for entry in found)
        # Many faults of the device's own must not crowd out a planted one, or none would count.
        self.found += found if always else found[: max(KEEP - len(self.found), 0)]
        way = flight.way
        self.checked[way.direction] = self.checked.get(way.direction, 0) + way.target.numel()

    def _plant(self, flight: Flight) -> None:
        """Put right what the device did wrong, plant a fault, and have it looked for.

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
        self._verify(flight, always=True)

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


@contextlib.contextmanager
def _on(stream: Any) -> Iterator[None]:
    if stream is None:
        yield
        return
    with torch.cuda.stream(stream):
        yield


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
