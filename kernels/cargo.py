"""What a copy carries, made twice, and the comparison of what has arrived, byte for byte.

Each byte is a hash of its place at the destination, the way it takes and the number of the copy:
what is stale, shifted, swapped or came another way differs. The host makes it with numpy and the
device with torch, neither from the other's, so that no transfer under test has a part in what is
expected of it.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nodeproof.kernels.bits import signed, unsigned
from nodeproof.kernels.draws import key, long_words, words

WORD = 8  # bytes
_TAG = "cargo"
_LOW = (1 << 32) - 1
_SAMPLE = 64  # words of the device's data that are held against the host's one by one
# Around each power of two, where code changes from one kind of load to another.
_ODD_SIZES = (
    *(1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 255, 256, 257),
    *(511, 513, 1023, 1025, 4095, 4096, 4097, 16385, 65535),
)
_ALIGNMENTS = 16
_PAGE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One copy: `size` bytes from `source` in the one arena to `start` in the other."""

    size: int
    start: int
    source: int

    @property
    def stop(self) -> int:
        """The byte after the last, at the destination."""
        return self.start + self.size


class Data(abc.ABC):
    """What every byte of an arena has to be, by way and number, as one side makes it."""

    def __init__(self, *, seed: int, arena: int) -> None:
        self.seed = seed
        self.arena = arena

    def write(self, out: Any, way: str, number: int) -> None:
        """Fill a whole arena, on this side, with what copy `number` brings."""
        self._make(way, number, 0, self.arena // WORD, out.view(torch.int64))

    def expected(self, way: str, number: int, pieces: tuple[Piece, ...]) -> Any:
        """The whole arena after copy `number`: between the pieces what was there before.

        uint8, (arena,); valid until the next call.
        """
        made = self._make(way, number, 0, self.arena // WORD, self._scratch)
        whole = made.view(torch.uint8)
        for start, stop in gaps(pieces, self.arena):
            whole[start:stop] = self.part(way, number - 1, start, stop)
        return whole

    def part(self, way: str, number: int, start: int, stop: int) -> Any:
        """Bytes `start` to `stop` of what copy `number` brings, uint8."""
        first, last = start // WORD, -(-stop // WORD)
        made = self._make(way, number, first, last, None)
        return made.view(torch.uint8)[start - first * WORD : stop - first * WORD]

    @abc.abstractmethod
    def word(self, index: int) -> int:
        """One word of what all data is derived from, unsigned."""

    @abc.abstractmethod
    def digest(self) -> int:
        """A number that changes with any word: their sum modulo 2^64, all with odd weights."""

    @property
    @abc.abstractmethod
    def _scratch(self) -> Any:
        """An arena of int64 to write to."""

    @abc.abstractmethod
    def _make(self, way: str, number: int, first: int, last: int, out: Any) -> Any:
        """Words `first` to `last`, int64, in `out` if there is one."""

    def _numbers(self, way: str, number: int) -> tuple[int, int]:
        name = f"{_TAG} {way} {number}"
        return key(self.seed, name) | 1, key(self.seed, f"{name} plus")


class HostData(Data):
    """As the host makes it, with numpy."""

    def __init__(self, *, seed: int, arena: int) -> None:
        super().__init__(seed=seed, arena=arena)
        self._base = long_words(seed, _TAG, arena // WORD)
        self._out = np.empty_like(self._base)

    def byte(self, way: str, number: int, place: int) -> int:
        """One byte, by Python's arithmetic."""
        factor, plus = self._numbers(way, number)
        word = unsigned(int(self._base[place // WORD]) * factor + plus)
        return word >> 8 * (place % WORD) & 0xFF

    def word(self, index: int) -> int:
        """One word of the base."""
        return int(self._base[index])

    def digest(self) -> int:
        """One number for the whole base."""
        weights = np.arange(len(self._base), dtype=np.uint64)
        weights *= np.uint64(2)
        weights += np.uint64(1)
        weights *= self._base
        return int(weights.sum(dtype=np.uint64))

    @property
    def _scratch(self) -> Any:
        return torch.from_numpy(self._out.view(np.int64))

    def _make(self, way: str, number: int, first: int, last: int, out: Any) -> Any:
        factor, plus = self._numbers(way, number)
        into = None if out is None else out.numpy().view(np.uint64)
        made = np.multiply(self._base[first:last], np.uint64(factor), out=into)
        made += np.uint64(plus)
        return torch.from_numpy(made.view(np.int64))


class DeviceData(Data):
    """As the device makes it, with torch: from the same hash, and from nothing of the host's."""

    def __init__(self, *, seed: int, arena: int, device: Any) -> None:
        super().__init__(seed=seed, arena=arena)
        self._base = _derive(seed, arena // WORD, device)
        self._out = torch.empty_like(self._base)

    def word(self, index: int) -> int:
        """One word of the base."""
        return unsigned(int(self._base[index]))

    def digest(self) -> int:
        """One number for the whole base."""
        count = self._base.numel()
        weights = torch.arange(count, dtype=torch.int64, device=self._base.device)
        weights.mul_(2).add_(1).mul_(self._base)
        return unsigned(int(weights.sum()))

    def flip(self, index: int, bit: int) -> None:
        """Flip one bit of what all data is derived from: a planted fault."""
        self._base[index] = self._base[index] ^ signed(1 << bit)

    @property
    def _scratch(self) -> Any:
        return self._out

    def _make(self, way: str, number: int, first: int, last: int, out: Any) -> Any:
        factor, plus = self._numbers(way, number)
        base = self._base[first:last]
        return torch.add(torch.tensor(signed(plus)), base, alpha=signed(factor), out=out)


def sample(host: HostData) -> list[int]:
    """Return which words of the device's data are held against the host's one by one."""
    drawn = words(host.seed, f"{_TAG} sample", _SAMPLE, 1)[:, 0] % np.uint32(host.arena // WORD)
    return sorted({int(place) for place in drawn})


def damage(host: HostData, device: DeviceData) -> list[dict[str, Any]]:
    """Say in what respects the two sides' data differ: words of a sample, and the digest of all."""
    pairs = [(str(place), host.word(place), device.word(place)) for place in sample(host)]
    pairs.append(("all", host.digest(), device.digest()))
    return [damaged(name, wanted, seen) for name, wanted, seen in pairs if wanted != seen]


def damaged(name: str, expected: int, got: int) -> dict[str, Any]:
    """One respect in which the device's data are not the host's: a word, or "all" by the digest."""
    return {
        "region": "base",
        "word": name,
        "expected": f"{expected:#018x}",
        "got": f"{got:#018x}",
        "xor": f"{expected ^ got:#018x}",
    }


def strike(
    host: HostData, device: DeviceData, place: int, bit: int, *, into: list[dict[str, Any]]
) -> None:
    """Flip one bit of the device's data, and note in `into` what `damage` has to say of it."""
    right = host.word(place)
    struck = right ^ 1 << bit
    device.flip(place, bit)
    if place in sample(host):
        into.append(damaged(str(place), right, struck))
    digest = host.digest()
    into.append(damaged("all", digest, unsigned(digest + (2 * place + 1) * (struck - right))))


def odd(number: int) -> tuple[Piece, ...]:
    """Copies of all odd sizes, at other alignments of both ends for each number."""
    pieces, end = list[Piece](), 0
    for index, size in enumerate(_ODD_SIZES):
        # At least 16 bytes are left between neighbours, at either end.
        at = (end // _ALIGNMENTS + 2) * _ALIGNMENTS
        start = at + (index + number) % _ALIGNMENTS
        source = at + (7 * index + number // _ALIGNMENTS) % _ALIGNMENTS
        pieces.append(Piece(size=size, start=start, source=source))
        end = max(start, source) + size
    return tuple(pieces)


def shifted(number: int, arena: int) -> tuple[Piece, ...]:
    """One large copy of an odd size, its ends at different alignments."""
    start = _ALIGNMENTS + number % _ALIGNMENTS
    source = _ALIGNMENTS + 7 * number % _ALIGNMENTS
    size = arena - 4 * _ALIGNMENTS - (2 * number + 1) % 61
    return (Piece(size=size, start=start, source=source),)


def aligned(arena: int, parts: int) -> tuple[Piece, ...]:
    """Large copies of whole pages, a page between them: how fast it can be."""
    size = (arena // _PAGE - 2 * parts) // parts * _PAGE
    starts = [_PAGE + part * (size + _PAGE) for part in range(parts)]
    return tuple(Piece(size=size, start=start, source=start) for start in starts)


def gaps(pieces: tuple[Piece, ...], arena: int) -> Iterator[tuple[int, int]]:
    """What lies before, between and after the pieces, which no copy may touch."""
    end = 0
    for piece in pieces:
        yield end, piece.start
        end = piece.stop
    yield end, arena


def wrong(got: Any, expected: Any, pieces: tuple[Piece, ...]) -> list[dict[str, Any]]:
    """Where `got` is not `expected`: one entry for each piece or gap that has wrong bytes.

    Both are uint8, (arena,), on one device. An entry says what it is (`region` data or fence), its
    `start` and `size`, the `offset` of its first wrong byte from there, how many `bytes` are wrong,
    and of the first what was `expected`, `got` and their `xor`.
    Raises `ValueError` for another type or shape.
    """
    if got.dtype != torch.uint8 or got.shape != expected.shape:
        raise ValueError(f"{tuple(got.shape)} of {got.dtype} where an arena of bytes should be")
    if torch.equal(got.view(torch.int64), expected.view(torch.int64)):  # the same bits, faster
        return []
    regions = [(p.start, p.stop, "data") for p in pieces]
    regions += [(start, stop, "fence") for start, stop in gaps(pieces, got.numel())]
    found = []
    for start, stop, region in sorted(regions):
        differs = got[start:stop] != expected[start:stop]
        count = int(torch.count_nonzero(differs))
        if count:
            first = int(differs.to(torch.uint8).argmax())
            wanted, seen = int(expected[start + first]), int(got[start + first])
            found.append(entry(region, start, stop, first, count, wanted, seen))
    return found


def entry(
    region: str, start: int, stop: int, first: int, count: int, expected: int, got: int
) -> dict[str, Any]:
    """One piece or gap with wrong bytes, in plain values."""
    return {
        "region": region,
        "start": start,
        "size": stop - start,
        "offset": first,
        "bytes": count,
        "expected": f"{expected:#04x}",
        "got": f"{got:#04x}",
        "xor": f"{expected ^ got:#04x}",
    }


def _derive(seed: int, count: int, device: Any) -> Any:
    """`draws.long_words`, in torch and on the device."""
    both = key(seed, _TAG)
    high, low = both >> 32, both & _LOW
    row = _mix(torch.arange(count, dtype=torch.int64, device=device) ^ high)
    left, right = (_mix((row + column + low) & _LOW) for column in (0, 0x9E3779B1))
    return (left << 32) | right


def _mix(x: Any) -> Any:
    """`draws.mix` on 32-bit words that are held in int64."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _LOW
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _LOW
    return x ^ (x >> 16)
