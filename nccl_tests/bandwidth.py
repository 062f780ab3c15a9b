"""What a measured time says of a fabric: algorithm and bus bandwidth as nccl-tests define them.

Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md and src/*.cu at v2.19.6. Pure: no torch, no clock.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from enum import StrEnum

GB = 1e9  # bandwidths are decimal, sizes are binary, as in nccl-tests
LEAST_REPEATS = 5


class Collective(StrEnum):
    """What ranks do together. `bytes` of one counts the same buffer as nccl-tests' size column."""

    ALL_REDUCE = "all_reduce"  # bytes: each rank's buffer
    ALL_GATHER = "all_gather"  # bytes: what each rank receives, of all ranks together
    REDUCE_SCATTER = "reduce_scatter"  # bytes: what each rank sends, for all ranks together
    ALL_TO_ALL = "all_to_all"  # bytes: what each rank sends, its share for itself included
    BROADCAST = "broadcast"  # bytes: the root's buffer
    SENDRECV = "sendrecv"  # bytes: what each rank sends to the next, and receives of the one before


def factor(collective: Collective, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth: the part of `bytes` that the busiest link carries.

    It is 0 for one rank in every collective but broadcast and sendrecv: there, nothing has to move.
    Raises `ValueError` for fewer than one rank.
    """
    if ranks < 1:
        raise ValueError(f"{collective.value} among {ranks} ranks: there is at least one")
    match collective:
        case Collective.ALL_REDUCE:
            return 2 * (ranks - 1) / ranks
        case Collective.ALL_GATHER | Collective.REDUCE_SCATTER | Collective.ALL_TO_ALL:
            return (ranks - 1) / ranks
        case Collective.BROADCAST | Collective.SENDRECV:
            return 1.0


def algbw_gbs(size_bytes: int, seconds: float) -> float:
    """GB/s as the caller sees it. Raises `ValueError` for what is no size or no time."""
    if size_bytes <= 0 or not seconds > 0:
        raise ValueError(f"{size_bytes} bytes in {seconds} s are no bandwidth")
    return size_bytes / seconds / GB


def busbw_gbs(collective: Collective, size_bytes: int, seconds: float, ranks: int) -> float:
    """GB/s on the busiest link, comparable between collectives and numbers of ranks.

    One rank exchanges nothing, so its bus bandwidth is 0, for a broadcast too.
    """
    moved = algbw_gbs(size_bytes, seconds) * factor(collective, ranks)
    return moved if ranks > 1 else 0.0


def slowest(by_rank: Sequence[Sequence[float]]) -> float:
    """Seconds of a collective: the median, over its repeats, of the slowest rank's time.

    `by_rank` holds each rank's times of the same repeats. Raises `ValueError` for fewer than
    `LEAST_REPEATS` repeats, or ranks that don't have equally many.
    """
    counts = {len(times) for times in by_rank}
    if len(counts) != 1 or min(counts) < LEAST_REPEATS:
        raise ValueError(
            f"{sorted(counts)} repeats by rank: wants the same on every rank, {LEAST_REPEATS} or more"
        )
    return float(statistics.median(max(times) for times in zip(*by_rank, strict=True)))
