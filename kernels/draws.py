"""Random numbers that are pure functions of seed, tag and place, so that none has to be stored."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Words = NDArray[np.uint32]
LongWords = NDArray[np.uint64]


def key(seed: int, tag: str) -> int:
    """64 bits that belong to `tag` in the run of this seed, and to nothing else."""
    text = f"{seed}/{tag}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def words(seed: int, tag: str, rows: int, columns: int) -> Words:
    """Return uniform 32-bit words, (rows, columns), each a pure function of its place."""
    both = key(seed, tag)
    high, low = np.uint32(both >> 32), np.uint32(both & 0xFFFFFFFF)
    row = mix(np.arange(rows, dtype=np.uint32) ^ high)[:, None]
    # The golden ratio spreads neighbouring columns over the whole range.
    column = (np.arange(columns, dtype=np.uint32) * np.uint32(0x9E3779B1))[None, :]
    return mix(row + column + low)


def long_words(seed: int, tag: str, count: int) -> LongWords:
    """Return uniform 64-bit words, (count,): the two columns of `words`, the first in the high half."""
    pairs = words(seed, tag, count, 2)
    drawn = pairs[:, 0].astype(np.uint64)
    drawn <<= np.uint64(32)  # in place: what copies carry is large
    drawn |= pairs[:, 1]
    return drawn


def mix(x: Words) -> Words:
    """Scramble words by a bijection (C. Wellons' `lowbias32`, in the public domain)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def integers(
    seed: int, tag: str, rows: int, columns: int, largest: int, *, least: int = 1
) -> Integers:
    """Return uniform integers of magnitude `least` to `largest` and either sign, without zero.

    Zero is left out: what it is multiplied with, and its own sign, cannot be seen in a product.
    """
    w = words(seed, tag, rows, columns).astype(np.uint64)
    count = largest - least + 1
    draw = ((w * np.uint64(2 * count)) >> np.uint64(32)).astype(np.int64)
    return np.where(draw < count, draw - largest, draw - count + least)
