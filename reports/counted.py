"""Numbers with their nouns: 1 node, 2 nodes."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return the number and its noun, in the plural where it isn't one; the plural takes an s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
