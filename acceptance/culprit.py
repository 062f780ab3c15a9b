"""Which GPU of a node wrong or slow traffic names, and what else to look at where it names none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Way = tuple[int, int]  # from a sender to a receiver, by rank

# Of three cards in two sockets one is alone by the design of the board.
_LEAST = 4
# CUDA supports no peer-to-peer copies over PCI Express on bare metal with the IOMMU on, and says
# that they may corrupt data without a word (CUDA C++ Programming Guide, "IOMMU on Linux").
COMMON = (
    "look at the IOMMU and ACS first (on bare metal they spoil peer-to-peer copies over PCI "
    "Express), then at NVLink and PCI Express error counters, driver and NCCL"
)


def culprit(ways: Iterable[Way], ranks: int) -> int | None:
    """The one device that all these ways have in common, `None` where they name nobody.

    One way has two ends and blames neither: it takes a device with two others at the far ends.
    """
    found = {frozenset(way) for way in ways}
    if ranks < _LEAST or len(found) < 2:
        return None
    common = frozenset.intersection(*found)
    return next(iter(common)) if len(common) == 1 else None


def whole(short: set[Way], ranks: int) -> int | None:
    """The one device of which all that it sends, or all that it receives, is `short`.

    `None` where there is none, or where a pair is short that it has no part in.
    """
    one = culprit(short, ranks)
    others = set(range(ranks)) - {one}
    if one is None:
        return None
    if {(one, r) for r in others} <= short or {(s, one) for s in others} <= short:
        return one
    return None


def told(settings: Mapping[str, Any]) -> str:
    """Say what was set that changes the transport, "" if nothing was."""
    if not settings:
        return ""
    named = ", ".join(f"{name}={value}" for name, value in settings.items())
    return f"set for this run, and inherited: {named}: test again without"
