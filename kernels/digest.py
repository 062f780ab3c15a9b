"""64 bits that stand for every bit of a tensor, found on the device that holds it.

Each word of 8 bytes goes through a bijection that belongs to its place, and the results are added
modulo 2**64. A single wrong word always changes the sum. Several cancel only by chance, about once
in 2**32: the bijection spreads a word's high bits first, or an even number of wrong sign bits
would add up to nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from nodeproof.kernels.bits import raw, signed
from nodeproof.kernels.draws import long_words

WORD = 8  # bytes
_FULL, _LOW = (1 << 64) - 1, (1 << 32) - 1
_SPREAD = 0x9E3779B97F4A7C15  # odd: the golden ratio, in 64 bits


class Digest:
    """Digests of tensors of up to `largest` bytes. The factors are the same for ever."""

    def __init__(self, *, largest: int, device: Any) -> None:
        self._factors = long_words(0, "digest", -(-largest // WORD)) | np.uint64(1)
        self._on_device = torch.from_numpy(self._factors.view(np.int64)).to(device)

    def of(self, tensor: Any) -> Any:
        """Return the digest as a scalar int64 on the tensor's device, without waiting for it."""
        flat = as_words(tensor)
        x = flat * signed(_SPREAD)
        x ^= (x >> 32) & _LOW  # what a shift brings in from the sign is masked
        x *= self._on_device[: flat.numel()]
        x ^= (x >> 32) & _LOW
        return x.sum()

    def of_host(self, array: NDArray[Any]) -> int:
        """Return the same for an array in memory, by numpy, unsigned."""
        raw = np.ascontiguousarray(array).view(np.uint8).ravel()
        flat = np.pad(raw, (0, -raw.size % WORD)).view(np.uint64)
        x = flat * np.uint64(_SPREAD)
        x ^= x >> np.uint64(32)
        x *= self._factors[: flat.size]
        x ^= x >> np.uint64(32)
        return int(x.sum(dtype=np.uint64))

    def replaced(self, digest: int, index: int, before: int, after: int) -> int:
        """Say what `digest` becomes when a word changes, by Python's own arithmetic."""
        return (digest - self._image(index, before) + self._image(index, after)) & _FULL

    def _image(self, index: int, word: int) -> int:
        x = word * _SPREAD & _FULL
        x ^= x >> 32
        x = x * int(self._factors[index]) & _FULL
        return x ^ x >> 32


def as_words(tensor: Any) -> Any:
    """All bytes of a tensor as int64, (words,), with zeros after the end; a view where it can be."""
    flat = tensor.detach().contiguous().reshape(-1)
    size = flat.element_size()
    integers = raw(flat)
    lack = -integers.numel() % (WORD // size)
    if lack:
        integers = functional.pad(integers, (0, lack))
    elif integers.storage_offset() * size % WORD:
        integers = integers.clone()
    return integers.view(torch.int64)


def flip(tensor: Any, element: int, bit: int) -> tuple[int, int, int]:
    """Flip one bit of one element in place; return its word's index, and that word before and after.

    The tensor has to be contiguous; torch's own record of changes does not see this one.
    """
    integers = raw(tensor.data.view(-1))
    size = integers.element_size()
    index, lane = divmod(element * size, WORD)
    start = index * (WORD // size)
    mask = (1 << 8 * size) - 1
    elements = [int(i) & mask for i in integers[start : start + WORD // size].tolist()]
    before = sum(value << 8 * size * place for place, value in enumerate(elements))
    integers[element] = integers[element] ^ signed(1 << bit, 8 * size)
    return index, before, before ^ (1 << 8 * lane + bit)
