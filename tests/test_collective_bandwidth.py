"""The definitions of nccl-tests, doc/PERFORMANCE.md."""

import pytest

from nodeproof.nccl_tests.bandwidth import Collective, algbw_gbs, busbw_gbs, factor, slowest


@pytest.mark.parametrize(
    ("collective", "by_ranks"),
    [
        (Collective.ALL_REDUCE, {2: 1.0, 4: 1.5, 8: 1.75}),
        (Collective.ALL_GATHER, {2: 0.5, 4: 0.75, 8: 0.875}),
        (Collective.REDUCE_SCATTER, {2: 0.5, 4: 0.75, 8: 0.875}),
        (Collective.ALL_TO_ALL, {2: 0.5, 4: 0.75, 8: 0.875}),
        (Collective.BROADCAST, {2: 1.0, 4: 1.0, 8: 1.0}),
        (Collective.SENDRECV, {2: 1.0, 4: 1.0, 8: 1.0}),
    ],
)
def test_a_collective_loads_its_busiest_link_as_nccl_tests_define_it(collective, by_ranks):
    assert {n: factor(collective, n) for n in by_ranks} == by_ranks


def test_bandwidth_is_decimal_while_sizes_are_binary():
    assert algbw_gbs(1024**3, 1.0) == 1.073741824
    assert busbw_gbs(Collective.ALL_REDUCE, 8_000_000_000, 1.0, 8) == 14.0


@pytest.mark.parametrize("collective", list(Collective))
def test_one_rank_moves_nothing(collective):
    assert busbw_gbs(collective, 1024, 1.0, 1) == 0.0


def test_a_collective_takes_as_long_as_its_slowest_rank_in_its_median_repeat():
    fast, late = [1.0, 1.0, 9.0, 1.0, 1.0], [2.0, 3.0, 1.0, 4.0, 2.5]
    assert slowest([fast, late]) == 3.0  # of 2, 3, 9, 4 and 2.5


@pytest.mark.parametrize("times", [[[1.0] * 4], [[1.0] * 5, [1.0] * 6], [[]]])
def test_too_few_or_unequal_repeats_are_no_measurement(times):
    with pytest.raises(ValueError, match="repeats by rank"):
        slowest(times)


@pytest.mark.parametrize(("size", "seconds"), [(0, 1.0), (8, 0.0), (8, -1.0), (8, float("nan"))])
def test_no_size_or_no_time_is_no_bandwidth(size, seconds):
    with pytest.raises(ValueError, match="no bandwidth"):
        algbw_gbs(size, seconds)


def test_a_collective_of_nobody_has_no_factor():
    with pytest.raises(ValueError, match="at least one"):
        factor(Collective.BROADCAST, 0)
