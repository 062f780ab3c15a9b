"""Who comes late waits for nobody, so the shortest time inside a collective is the culprit's."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeproof.nccl_tests.bandwidth import Collective
from nodeproof.nccl_tests.straggler import WAITING, lateness

COUNT = 20


def inside(*late_ms, base_ms=20.0, noise_ms=1.0, slow=0.0, seed=7, count=COUNT):
    """Times inside a collective of ranks that came so late, over a network that jitters.

    `slow` adds to the collective as a whole, a share of it at random: a network that is slow for
    all is so for all alike.
    """
    draw = random.Random(seed)
    times = {f"r{rank}": list[float]() for rank in range(len(late_ms))}
    for _ in range(count):
        came = [late + draw.uniform(0, noise_ms) for late in late_ms]
        done = max(came) + base_ms * (1 + slow * draw.random())
        for rank, at in enumerate(came):
            times[f"r{rank}"].append((done - at + draw.uniform(0, noise_ms) / 2) / 1e3)
    return times


def named(times):
    return {rank for rank, told in lateness(times).items() if told.consistently}


# What eight hosts over Gloo measured when the fourth slept for 50 ms (medians, in ms), and when the
# network of one was slow and nobody late.
SLEPT = [67.0, 68.5, 71.0, 19.5, 70.0, 67.5, 69.0, 70.5]

FLEETS = {
    "the measured straggler": ({f"r{n}": [ms / 1e3] * COUNT for n, ms in enumerate(SLEPT)}, {"r3"}),
    "nobody": (inside(*[0] * 8), set()),
    "one of eight": (inside(0, 0, 0, 50, 0, 0, 0, 0), {"r3"}),
    "two of eight, one later than the other": (inside(0, 0, 100, 50, 0, 0, 0, 0), {"r2", "r3"}),
    "half of them": (inside(0, 0, 50, 50), {"r2", "r3"}),
    "most of them, so that the first may be early": (inside(0, 50, 50, 50), set()),
    "all of them, and so nobody": (inside(50, 50, 50, 50), set()),
    "one of two": (inside(0, 50), {"r1"}),
    "one of three": (inside(0, 50, 0), {"r1"}),
    "two of three, so that the first may be early": (inside(50, 50, 0), set()),
    "late by less than a scheduler's noise": (inside(0, 0, 0, 3), set()),
    "late by less than the network's noise": (inside(0, 0, 0, 8, slow=1.0), set()),
    "late by more than the network's noise": (inside(0, 0, 0, 90, slow=1.0), {"r3"}),
    "a slow network, and nobody late": (inside(*[0] * 8, base_ms=200, slow=0.5), set()),
    "one rank alone": (inside(0), set()),
}


@pytest.mark.parametrize("name", FLEETS)
def test_the_late_are_named_and_their_victims_are_not(name):
    times, late = FLEETS[name]
    assert named(times) == late
    for rank, told in lateness(times).items():
        assert rank in told.why
        assert 0 <= told.share <= 1
        assert told.median_s >= 0


def test_a_rank_that_is_late_now_and_then_is_told_with_its_share_and_not_named():
    times = inside(0, 0, 0, 0)
    for iteration in range(0, COUNT, 2):
        for rank in ("r0", "r1", "r2"):
            times[rank][iteration] += 0.08
    told = lateness(times)["r3"]
    assert (told.share, told.consistently) == (0.5, False)
    assert "50% of the iterations" in told.why


def test_lateness_that_varies_is_lateness_all_the_same():
    draw = random.Random(3)
    times = inside(*[0] * 6)
    for iteration in range(COUNT):
        waited = draw.uniform(0.03, 0.3)
        for rank in range(1, 6):
            times[f"r{rank}"][iteration] += waited
    assert named(times) == {"r0"}


def test_how_late_is_measured_against_the_first():
    told = lateness(inside(0, 0, 100, 50, 0, 0, noise_ms=0))
    assert told["r2"].median_s == pytest.approx(0.1)
    assert told["r3"].median_s == pytest.approx(0.05)
    assert "100.0 ms" in told["r2"].why


def test_when_most_come_late_the_sentence_names_who_may_be_early():
    told = lateness(inside(0, *[50] * 7))
    assert "7 of 8: r0 may as well be early" in told["r1"].why


BAD = {
    "no ranks": {},
    "no iterations": {"a": [], "b": []},
    "too few iterations": {"a": [0.1] * 4, "b": [0.1] * 4},
    "unequal numbers of iterations": {"a": [0.1] * 6, "b": [0.1] * 5},
    "NaN": {"a": [0.1] * 5, "b": [0.1] * 4 + [math.nan]},
    "endless": {"a": [0.1] * 5, "b": [0.1] * 4 + [math.inf]},
    "no time at all": {"a": [0.1] * 5, "b": [0.1] * 4 + [0.0]},
    "backwards": {"a": [0.1] * 5, "b": [0.1] * 4 + [-0.1]},
}


@pytest.mark.parametrize("name", BAD)
def test_what_was_not_measured_does_not_show_that_nobody_was_late(name):
    with pytest.raises(ValueError, match=r"iterations by rank|no time that anybody measured"):
        lateness(BAD[name])


def test_collectives_whose_ranks_may_be_done_before_others_came_do_not_count():
    assert {each.value for each in Collective} - WAITING == {"broadcast", "sendrecv"}
    assert {each.value for each in Collective} > WAITING


@settings(deadline=None)
@given(
    st.integers(3, 24).flatmap(
        lambda size: st.tuples(st.just(size), st.sets(st.integers(0, size - 1), max_size=size // 2))
    ),
    st.floats(20, 500),
    st.integers(0, 99),
)
def test_up_to_half_of_the_ranks_are_named_whoever_they_are(fleet, ms, seed):
    size, late = fleet
    times = inside(*[ms if rank in late else 0 for rank in range(size)], seed=seed)
    assert named(times) == {f"r{rank}" for rank in late}
    assert lateness(dict(reversed(times.items()))) == lateness(times)


@settings(deadline=None)
@given(st.integers(1, 24), st.floats(1, 5_000), st.floats(0, 1), st.integers(0, 99))
def test_a_group_in_which_nobody_is_late_blames_nobody(size, base_ms, slow, seed):
    assert named(inside(*[0] * size, base_ms=base_ms, slow=slow, seed=seed)) == set()
