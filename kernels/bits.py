"""Bits as torch holds them, in signed integers, and as people read them, unsigned and in hex."""

from __future__ import annotations

from typing import Any

import torch

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def raw(tensor: Any) -> Any:
    """The same memory as integers: a tolerance, a NaN or a negative zero hides nothing there."""
    return tensor.view(_INTEGERS[tensor.element_size()])


def signed(number: int, width: int = 64) -> int:
    """The lowest `width` bits as torch's integers take them."""
    number &= (1 << width) - 1
    return number - (1 << width) if number >> (width - 1) else number


def unsigned(number: int, width: int = 64) -> int:
    """The same bits as torch's integers give them, as a number from 0."""
    return number & (1 << width) - 1


def likeness(other: int, *, expected: int, got: int) -> str:
    """Say what another way gives where `got` was wrong: "right", the "same" wrong bits or "other"."""
    if other == expected:
        return "right"
    return "same" if other == got else "other"


def difference(expected: int, got: int, width: int) -> dict[str, Any]:
    """What is said of a word that may be wrong. Both may be signed."""
    expected, got = unsigned(expected, width), unsigned(got, width)
    xor, digits = expected ^ got, width // 4 + 2
    return {
        "expected": f"{expected:#0{digits}x}",
        "got": f"{got:#0{digits}x}",
        "xor": f"{xor:#0{digits}x}",
        "bits": [bit for bit in range(width) if xor >> bit & 1],
    }
