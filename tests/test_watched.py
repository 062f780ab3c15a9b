"""What is made of the telemetry that came in during a piece of work."""

from __future__ import annotations

import pytest

from nodeproof.child import Answer
from nodeproof.plugin.performing import Done
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
        "load_s": 2.0,
        "hz": 0.0,
        "throttle": {},
        "throttle_read": 0,
        "gap_s": None,
        "unnamed": 0,
        "unnamed_in_a_row": 0,
        "sm_mhz": None,
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


def loaded(*samples, load=(10.0, 20.0)):
    return watched(samples, since=FIRST, seconds=60.0, silence_s=0.5, load=load)


@pytest.mark.parametrize(
    ("sample", "told"),
    [
        ({"throttle": 0}, 1),
        ({"power_w": None, "utilisation": 0.0}, 1),
        ({"power_w": None, "refusal": "lost", "counters": {}, "device": "GPU-1", "at": 12.0}, 0),
        ({"power_w": None, "refusal": "lost", "virtual": False}, 0),
        ({"device": "cpu0", "mhz": 2000.0}, 1),
        ({}, 0),
    ],
)
def test_a_sample_that_was_refused_is_none(sample, told):
    assert of(sample)["hz"] == told / 2


def test_only_samples_under_load_are_of_the_load():
    seen = loaded(
        {"at": 9.9, "throttle": 0x8, "temperature_c": 99},
        {"at": 10.0, "throttle": 0x4, "temperature_c": 60, "sm_mhz": 1500},
        {"at": 19.0, "throttle": 0x4, "temperature_c": 70, "sm_mhz": 1700},
        {"at": 20.1, "throttle": 0x40, "temperature_c": 98},
        {"throttle": 0x80},
    )
    assert seen["throttle"] == {"0x4": 2}
    assert (seen["samples"], seen["throttle_read"], seen["load_s"]) == (5, 2, 10.0)
    assert (seen["hz"], seen["hottest_c"], seen["sm_mhz"]) == (0.2, 70, 1600)
    assert seen["gap_s"] == 9.0


@pytest.mark.parametrize(
    ("moments", "gap"),
    [
        ([], 10.0),
        ([15.0], 5.0),
        ([11.0, 12.0], 8.0),
        ([18.0, 19.0], 8.0),
        ([12.0, 14.0, 16.0, 18.0], 2.0),
    ],
)
def test_a_gap_counts_from_the_start_of_the_load_and_to_its_end(moments, gap):
    assert loaded(*({"at": at, "throttle": 0} for at in moments))["gap_s"] == gap
    unread = [{"at": 10.0 + n, "throttle": None} for n in range(11)]
    read = [{"at": at, "throttle": 0} for at in moments]
    assert loaded(*sorted(unread + read, key=lambda s: s["at"]))["gap_s"] == gap


@pytest.mark.parametrize(
    ("masks", "unnamed", "in_a_row"),
    [
        ([0x8, 0x4, 0xC], 2, 1),
        ([0x8, 0xC, 0x4, 0x8], 3, 2),
        ([0x48, 0x88, 0x28], 0, 0),
        ([0x8, None, 0x8], 2, 2),  # what could not be read does not part two that could
        ([0x48, 0x8], 1, 1),
        ([0x4] * 3, 0, 0),
    ],
)
def test_a_slowdown_without_a_reason_is_counted_by_how_long_it_lasts(masks, unnamed, in_a_row):
    seen = of(*({"throttle": mask} for mask in masks))
    assert (seen["unnamed"], seen["unnamed_in_a_row"]) == (unnamed, in_a_row)


@pytest.mark.parametrize(
    ("answer", "load_s", "read"),
    [
        ({"loaded_between": [1.0, 3.0]}, 2.0, 2),
        ({}, 60.0, 3),
        ({"loaded_between": [1.0]}, 60.0, 3),
        ({"loaded_between": None}, 60.0, 3),
    ],
)
def test_an_answer_says_itself_when_its_device_was_under_load(answer, load_s, read):
    samples = tuple({"at": at, "throttle": 0} for at in (0.5, 1.5, 2.5))
    done = Done(reply=Answer(result=answer), seconds=60.0, samples=samples, since={})
    seen = done.result()["telemetry"]
    assert (seen["load_s"], seen["throttle_read"]) == (load_s, read)
    assert (seen["gap_s"] is None) is (load_s == 60.0)
