"""Faults: which of them a work can plant, and where, and how many that it finds are described."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

KEEP = 16  # wrong words, elements or lanes that are described; all are counted
PLACES = 64  # drawn for a planted fault, until the device is right at one

Place = TypeVar("Place")


def known(plant: str, *plants: str) -> None:
    """Raise `ValueError` for a plant that a work does not know; "" plants nothing."""
    if plant not in {"", *plants}:
        raise ValueError(f"plant {plant!r}: this kernel knows {', '.join(map(repr, plants))}")


def sound(drawn: Iterable[Place], right: Callable[[Place], bool]) -> Place:
    """Return the first place where the device is right, or else the first of all.

    Where it is wrong by itself, the planted fault might undo that.
    """
    places = list(drawn)
    return next((place for place in places if right(place)), places[0])
