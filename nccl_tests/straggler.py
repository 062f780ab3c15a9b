"""Who came late to a collective, from how long each rank was inside it. No clocks are compared.

A collective that needs something of every rank ends at about the same time on all of them. Who
comes last waits for nobody and is inside for the shortest time, and everybody else was inside for
longer by as much as he was late. So the rank with the longest times is a victim, not the cause. A
slow network makes all times longer and alike: then nobody was late, and pairs have to tell.

Measured on eight hosts over Gloo, where one slept for 50 ms: it was inside for 19.5 ms, all others
for 67 to 71. Pure: standard library only.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LEAST_S = 0.005  # later than that, or it is the noise of a scheduler
DEVIATIONS = 5.0  # of the noise that is seen
CLEAR = 0.75  # of the iterations
LEAST_ITERATIONS = 5

# Those in which nobody is done before the last one came. The root of a broadcast may be done before
# anybody listens, and who passes on waits for one neighbour only.
WAITING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """How late one rank came."""

    median_s: float  # after the first one, over all iterations
    share: float  # of the iterations in which that was more than noise
    consistently: bool  # in a clear majority of them, and told apart from the others
    why: str


def lateness(own_times: Mapping[str, Sequence[float]]) -> dict[str, Late]:
    """Tell by rank how late it came, from the seconds that each was inside in each iteration.

    The times have to be of a collective in `WAITING`, of the same iterations on every rank. Late is
    what exceeds 5 ms and five times the noise: of the time that the last rank needs, who waits for
    nobody, over the iterations, and among the half that waited longest in the same iteration. If
    more than half of the ranks come late, it can't be told from one that is early, and nobody is
    called so. Two ranks can be told apart; one has nobody to come after.

    Raises `ValueError` for no ranks, fewer than five iterations, unequal numbers of them, and for
    times that are none: what wasn't measured doesn't show that nobody was late.
    """
    counts = {len(times) for times in own_times.values()}
    if len(counts) != 1 or min(counts) < LEAST_ITERATIONS:
        raise ValueError(
            f"{sorted(counts)} iterations by rank: wants the same on every rank, "
            f"{LEAST_ITERATIONS} or more"
        )
    for rank, times in own_times.items():
        if wrong := [took for took in times if not (math.isfinite(took) and took > 0)]:
            raise ValueError(f"{rank} was inside for {wrong[0]} s: no time that anybody measured")
    iterations = list(zip(*own_times.values(), strict=True))
    noise = max(
        _deviation([min(times) for times in iterations]),
        statistics.median(_deviation(_longest(times)) for times in iterations),
    )
    least = max(LEAST_S, DEVIATIONS * noise)
    latest = [max(times) for times in iterations]
    late = {
        rank: [most - took for most, took in zip(latest, times, strict=True)]
        for rank, times in own_times.items()
    }
    shares = {
        rank: sum(gap > least for gap in gaps) / len(iterations) for rank, gaps in late.items()
    }
    named = {rank for rank, share in shares.items() if share >= CLEAR}
    medians = {rank: statistics.median(gaps) for rank, gaps in late.items()}
    return {
        rank: Late(
            median_s=medians[rank],
            share=share,
            consistently=rank in named and 2 * len(named) <= len(late),
            why=_why(rank, medians, share, named, least),
        )
        for rank, share in shares.items()
    }


def _longest(times: Sequence[float]) -> list[float]:
    """Return the longer half: whoever is in it came early, and all of them at about the same time."""
    return sorted(times)[-max(len(times) // 2, 1) :]


def _deviation(values: Sequence[float]) -> float:
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values)


def _why(
    rank: str, medians: Mapping[str, float], share: float, named: set[str], least: float
) -> str:
    if len(medians) == 1:
        return f"{rank} is alone: there is nobody to come after"
    said = (
        f"{rank} came {medians[rank] * 1e3:.1f} ms after the first in the median, and by more than "
        f"{least * 1e3:.1f} ms in {share:.0%} of the iterations"
    )
    if rank not in named:
        return said
    if 2 * len(named) > len(medians):
        rest = ", ".join(sorted(medians.keys() - named)) or "nobody"
        return f"{said}; so did {len(named)} of {len(medians)}: {rest} may as well be early"
    return f"{said}: the others waited for it, or one of those that are as late"
