"""What one device sends another: every byte known to both ends, and compared where it arrives.

Each byte is a hash of its place, of sender and receiver and of the round, so that what is stale,
swapped, shifted or another's differs. Both ends make it for themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from nodeproof.nccl_tests.exactness import raw_words

_WORD = 8  # bytes
# Bytes at a time: what stays in a core's cache, and what does not crowd a GPU's memory.
_CHUNK = {"cpu": 1 << 18, "cuda": 1 << 26}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What one rank sends to another, once. Its bytes are a function of this and of their place."""

    sender: int
    receiver: int
    phase: str  # odd, alone, together or loopback
    round: int
    size: int  # bytes

    def content(self, seed: int, start: int, stop: int, device: str) -> Any:
        """Bytes `start` (a multiple of 8) to `stop`, uint8 on `device`."""
        name = (seed, self.sender, self.receiver, self.phase, self.round, self.size)
        digest = hashlib.blake2b(repr(name).encode(), digest_size=8).digest()
        key = int.from_bytes(digest, "little", signed=True)
        words = raw_words(key, start // _WORD, -(-stop // _WORD), device)
        return words.view(torch.uint8)[: stop - start]

    def byte(self, seed: int, index: int) -> int:
        """One byte of it, as the host makes it."""
        word = index // _WORD * _WORD
        return int(self.content(seed, word, index + 1, "cpu")[index - word])

    def chunks(self, device: str) -> Iterator[tuple[int, int]]:
        """All of it, in pieces that are good to work on."""
        step = _CHUNK[torch.device(device).type]
        for start in range(0, self.size, step):
            yield start, min(start + step, self.size)


def rounds(ranks: int) -> list[list[tuple[int, int]]]:
    """Every pair of `ranks` once, in rounds in which no rank is twice (the circle method)."""
    seats = ranks + ranks % 2
    still = seats - 1  # for an odd number of ranks nobody sits there
    made = []
    for turn in range(still):
        met = [(turn, still)]
        met += [((turn + k) % still, (turn - k) % still) for k in range(1, seats // 2)]
        made.append(sorted((min(p), max(p)) for p in met if max(p) < ranks))
    return made


def compare(message: Message, got: Any, seed: int) -> dict[str, Any] | None:
    """Hold every byte that arrived against what was sent; `None` where all are right.

    Else `sender, receiver, phase, round, size`, how many `bytes` are wrong and, of the first, its
    `index` and what was `expected`, `got` and their `xor`.
    Raises `ValueError` for another type or length.
    """
    if got.dtype != torch.uint8 or tuple(got.shape) != (message.size,):
        raise ValueError(f"{message} came as {tuple(got.shape)} of {got.dtype}")
    device, count, first = str(got.device), 0, (0, 0, 0)
    for start, stop in message.chunks(device):
        wanted = message.content(seed, start, stop, device)
        differs = got[start:stop] != wanted
        number = int(differs.count_nonzero())
        if number and not count:
            place = int(differs.to(torch.uint8).argmax())
            first = (start + place, int(wanted[place]), int(got[start + place]))
        count += number
    return described(message, count, *first) if count else None


def described(message: Message, count: int, index: int, expected: int, got: int) -> dict[str, Any]:
    """One message with wrong bytes, in plain values."""
    return {
        "sender": message.sender,
        "receiver": message.receiver,
        "phase": message.phase,
        "round": message.round,
        "size": message.size,
        "bytes": count,
        "index": index,
        "expected": f"{expected:#04x}",
        "got": f"{got:#04x}",
        "xor": f"{expected ^ got:#04x}",
    }
