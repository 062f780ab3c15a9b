"""What goes into a collective and what has to come out, for every element of every rank.

Both are pure functions of seed, collective, type, size, repeat, rank and element, so that every
rank can verify its whole output to the bit without having seen the others' data, and so that a
stale, swapped, shifted or dropped piece shows: no two of those share their data.

Sums are exact in every order and tree, which is what makes bits comparable at all:
floating-point inputs are whole numbers of at most 2^p/R, for p bits of significand and R ranks,
times a power of two that depends on the element alone (so that the exponent bits move as well);
no partial sum then needs rounding. Integers use all their bits and wrap. Copies carry raw bits.
The expected sum is formed in integers, never by the arithmetic under test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from nodeproof.nccl_tests.bandwidth import Collective

SUMS = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER)
# By name: the type, the integer type of the same width, and bits of significand (0: wraps).
_TYPES = {
    "float32": (torch.float32, torch.int32, 24),
    "bfloat16": (torch.bfloat16, torch.int16, 8),
    "int32": (torch.int32, torch.int32, 0),
    "int64": (torch.int64, torch.int64, 0),
}
_GAUGES = tuple(2.0**power for power in range(-8, 8))
# SplitMix64 (Steele, Lea, Flood, OOPSLA 2014; finaliser: Stafford's mix 13), as signed numbers.
_GAMMA, _FIRST, _SECOND = (
    c - (1 << 64) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
# Elements at a time: what stays in a core's cache, and what does not crowd a GPU's memory.
_CHUNK = {"cpu": 1 << 16, "cuda": 1 << 24}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One collective, done once.

    `size_bytes` is at least one element per rank and a multiple of that; `sized` makes it so.
    Raises `ValueError` for a type or size that no exact data exists for.
    """

    collective: Collective
    dtype: str
    size_bytes: int
    ranks: int
    seed: int
    repeat: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in _TYPES:
            raise ValueError(f"{self.dtype!r} is none of {', '.join(_TYPES)}")
        if self.ranks < 1:
            raise ValueError(f"{self.ranks} ranks: there is at least one")
        step = self.itemsize * self.ranks
        if self.size_bytes < step or self.size_bytes % step:
            raise ValueError(
                f"{self.size_bytes} bytes do not divide into {self.dtype} for {self.ranks} ranks"
            )
        if self.collective in SUMS and self._precision and self._magnitude < 1:
            raise ValueError(f"sums of {self.ranks} ranks are not exact in {self.dtype}")
        if self.collective not in SUMS and self.dtype != "int32":
            raise ValueError(f"{self.collective.value} copies raw bits, as int32: no {self.dtype}")

    @property
    def type(self) -> Any:
        """The torch type of the buffers."""
        return _TYPES[self.dtype][0]

    @property
    def view(self) -> Any:
        """The integer type of the same width, in which bits are compared."""
        return _TYPES[self.dtype][1]

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(self.type.itemsize)

    @property
    def count(self) -> int:
        """Elements in `size_bytes`."""
        return self.size_bytes // self.itemsize

    @property
    def share(self) -> int:
        """Elements of one rank's part of `size_bytes`."""
        return self.count // self.ranks

    @property
    def count_in(self) -> int:
        """Elements that each rank puts in."""
        return self.share if self.collective is Collective.ALL_GATHER else self.count

    @property
    def count_out(self) -> int:
        """Elements that each rank gets out."""
        return self.share if self.collective is Collective.REDUCE_SCATTER else self.count

    @property
    def root(self) -> int:
        """Whose data a broadcast spreads. It moves on with each repeat, to try every direction."""
        return self.repeat % self.ranks

    def given(self, rank: int, start: int, stop: int, device: str) -> Any:
        """Elements `start` to `stop` of what `rank` puts in, as integers (`view`)."""
        return self._encode(self._units(rank, start, stop, device), start)

    def wanted(self, rank: int, start: int, stop: int, device: str) -> Any:
        """Elements `start` to `stop` of what `rank` has to get out, as integers (`view`)."""
        match self.collective:
            case Collective.ALL_REDUCE:
                return self._sum(start, stop, device)
            case Collective.REDUCE_SCATTER:
                mine = rank * self.share
                return self._sum(mine + start, mine + stop, device)
            case Collective.BROADCAST:
                return self.given(self.root, start, stop, device)
            case Collective.SENDRECV:
                return self.given((rank - 1) % self.ranks, start, stop, device)
            case Collective.ALL_GATHER | Collective.ALL_TO_ALL:
                # Every rank's piece in turn: all that it has, or what it has for this rank.
                mine = rank * self.share if self.collective is Collective.ALL_TO_ALL else 0
                pieces = [
                    self.given(sender, mine + low, mine + high, device)
                    for sender, low, high in self._pieces(start, stop)
                ]
                return torch.cat(pieces)

    def chunks(self, count: int, device: str) -> Iterator[tuple[int, int]]:
        """`count` elements in pieces that are good to work on."""
        step = _CHUNK[torch.device(device).type]
        for start in range(0, count, step):
            yield start, min(start + step, count)

    @property
    def _precision(self) -> int:
        return _TYPES[self.dtype][2]

    @property
    def _magnitude(self) -> int:
        """The largest power of two of which `ranks` add up exactly; 0 without one."""
        most: int = (1 << self._precision) // self.ranks
        return 1 << (most.bit_length() - 1) if most else 0

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        for sender in range(start // self.share, (stop - 1) // self.share + 1):
            first = sender * self.share
            yield sender, max(start - first, 0), min(stop - first, self.share)

    def _sum(self, start: int, stop: int, device: str) -> Any:
        total = self._units(0, start, stop, device)
        for rank in range(1, self.ranks):
            total += self._units(rank, start, stop, device)
        return self._encode(total, start)

    def _units(self, rank: int, start: int, stop: int, device: str) -> Any:
        """The whole numbers behind the elements, before the power of two, in int64."""
        words = raw_words(self._key(rank), start, stop, device)
        if self._precision:
            # Signed, and never a negative zero, whose sign a sum may or may not keep.
            words.bitwise_and_(2 * self._magnitude - 1).sub_(self._magnitude)
        return words

    def _encode(self, units: Any, start: int) -> Any:
        if not self._precision:
            return units.to(self.view)  # drops the high bits, as the type under test does
        powers = torch.tensor(_GAUGES, device=units.device).roll(-(start % len(_GAUGES)))
        powers = powers.repeat(len(units) // len(_GAUGES) + 1)[: len(units)]
        return units.to(torch.float32).mul_(powers).to(self.type).view(self.view)

    def _key(self, rank: int) -> int:
        name = (self.seed, self.collective.value, self.dtype, self.size_bytes, self.repeat, rank)
        digest = hashlib.blake2b(repr(name).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little", signed=True)


def sized(size_bytes: int, dtype: str, ranks: int) -> int:
    """`size_bytes`, rounded up to the same number of whole elements for every rank.

    Up, not down as nccl-tests do, so that no small size vanishes.
    """
    step = _TYPES[dtype][0].itemsize * ranks
    return int(-(-size_bytes // step) * step)


def fill(case: Case, rank: int, buffer: Any) -> None:
    """Write into `buffer` (integers, `count_in` long) what `rank` puts in."""
    device = str(buffer.device)
    for start, stop in case.chunks(case.count_in, device):
        buffer[start:stop] = case.given(rank, start, stop, device)


def compare(
    case: Case, rank: int, output: Any, *, most: int, always: int | None = None
) -> tuple[int, list[dict[str, Any]]]:
    """Hold every element of `output` (integers, `count_out` long) against what is wanted.

    Returns how many are wrong, and the first `most` of them (see `difference`), element `always`
    in any case if it is wrong.
    Raises `ValueError` for an output of another type or length.
    """
    if output.dtype != case.view or tuple(output.shape) != (case.count_out,):
        raise ValueError(
            f"{case.collective.value} gave {tuple(output.shape)} of {output.dtype}, "
            f"not {case.count_out} of {case.view}"
        )
    device = str(output.device)
    wrong, found = 0, list[dict[str, Any]]()
    for start, stop in case.chunks(case.count_out, device):
        wanted = case.wanted(rank, start, stop, device)
        got = output[start:stop]
        differs = got != wanted
        number = int(differs.count_nonzero())
        if number:
            places = differs.nonzero()[: max(most - len(found), 0), 0].tolist()
            if always is not None and start <= always < stop and always - start not in places:
                places += [always - start] if bool(differs[always - start]) else []
            for place in places:
                found.append(
                    difference(
                        case,
                        element=start + place,
                        expected=int(wanted[place]),
                        got=int(got[place]),
                    )
                )
        wrong += number
    return wrong, found


def difference(case: Case, *, element: int, expected: int, got: int) -> dict[str, Any]:
    """One wrong element in plain values; `expected` and `got` are its bits as an integer."""
    width = 8 * case.itemsize
    mask = (1 << width) - 1
    xor = (expected ^ got) & mask
    digits = width // 4
    return {
        "collective": case.collective.value,
        "bytes": case.size_bytes,
        "dtype": case.dtype,
        "repeat": case.repeat,
        "element": element,
        "expected": f"0x{expected & mask:0{digits}x}",
        "got": f"0x{got & mask:0{digits}x}",
        "xor": f"0x{xor:0{digits}x}",
        "bits": [bit for bit in range(width) if xor >> bit & 1],
    }


def raw_words(key: int, start: int, stop: int, device: str) -> Any:
    """64 well mixed bits for each element, in int64."""
    x = torch.arange(start, stop, dtype=torch.int64, device=device)
    x.mul_(_GAMMA).add_(key)
    # The masks make torch's arithmetic shift the logical one.
    x.bitwise_xor_((x >> 30).bitwise_and_((1 << 34) - 1)).mul_(_FIRST)
    x.bitwise_xor_((x >> 27).bitwise_and_((1 << 37) - 1)).mul_(_SECOND)
    return x.bitwise_xor_((x >> 31).bitwise_and_((1 << 33) - 1))
