"""The ways that copies take, and the flights: copies of one way that are done and verified together."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from nodeproof.kernels import cargo
from nodeproof.kernels.cargo import Data, DeviceData, HostData, Piece

DIRECTIONS = ("h2d", "d2h", "d2d")


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


@contextlib.contextmanager
def _on(stream: Any) -> Iterator[None]:
    if stream is None:
        yield
        return
    with torch.cuda.stream(stream):
        yield
