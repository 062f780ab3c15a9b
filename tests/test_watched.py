"""What is made of the telemetry that came in during a piece of work."""

from __future__ import annotations

import pytest

from nodeproof.plugin.watched import watched

FIRST = {"counters": {"ecc_uncorrected": 3, "pcie_replays": None}}


def of(*samples):
    return watched(samples, since=FIRST, seconds=2.0, silence_s=0.5)


def test_combined_reasons_are_counted_bit_by_bit():
    seen = of({"throttle": 0x44}, {"throttle": 0x4}, {"throttle": 0})
    assert seen["throttle"] == {"0x4": 2, "0x40": 1}
    assert (seen["samples"], seen["throttle_read"], seen["hz"]) == (3, 3, 1.5)


@pytest.mark.parametrize(
    "sample", [{}, {"throttle": None}, {"refusal": "lost"}, {"throttle": "0x4"}]
)
def test_what_could_not_be_read_is_counted_as_not_read(sample):
    seen = of(sample)
    assert (seen["throttle"], seen["throttle_read"], seen["samples"]) == ({}, 0, 1)


def test_without_samples_nothing_is_claimed():
    assert of() == {
        "samples": 0,
        "hz": 0.0,
        "throttle": {},
        "throttle_read": 0,
        "at_start": {"ecc_uncorrected": 3, "pcie_replays": None},
        "hottest_c": None,
        "pcie": dict.fromkeys(("width", "width_able", "generation", "able", "virtual")),
        "silence_s": 0.5,
    }


def test_the_hottest_sample_is_kept():
    assert (
        of({"temperature_c": 70}, {"temperature_c": 91.5}, {"temperature_c": None})["hottest_c"]
        == 91.5
    )


def test_a_link_counts_by_its_narrowest_and_its_fastest_sample():
    able = {"pcie_generation_able": 5, "pcie_width_able": 16}
    idle = {"pcie_width": 4, "pcie_generation": 1, "utilisation": 0.0, "virtual": False, **able}
    wide = {"pcie_width": 16, "pcie_generation": 5, "utilisation": 0.9, **able}
    narrow = {"pcie_width": 8, "pcie_generation": 5, "utilisation": None, **able}
    unread = {"pcie_width": None, "pcie_generation": None, "virtual": None}
    seen = {"width": 8, "width_able": 16, "generation": 5, "able": 5, "virtual": False}
    assert of(unread, idle, wide, narrow, unread)["pcie"] == seen
    assert of(idle)["pcie"] == {**seen, "width": 4, "generation": 1}
