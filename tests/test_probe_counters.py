"""A GPU's counters of its own errors, and what a check makes of their growth."""

from __future__ import annotations

import pytest

from nodeproof.acceptance import test_aftermath as aftermath
from nodeproof.checks import spec_of
from nodeproof.model import Cause, Outcome
from nodeproof.probes.counters import NAMES
from tests.standin.build import GPUS, Driver, build, judged

READ = "nodeproof.probes.counters:read"


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    build("nvml.c", folder / "libnvidia-ml.so.1")
    return folder


@pytest.fixture
def driver(libraries, pool, context):
    return Driver(libraries, "/", pool, context)


def read(driver, folder, **plan):
    return driver.answer(READ, device=GPUS[0], NVML=" ".join(GPUS), COUNTERS=str(folder), **plan)


def after(driver, folder, before, **plan):
    """The answer after the load, with what stood at its start."""
    return read(driver, folder, args={"before": before}, **plan)


def test_all_counters_are_read(driver, tmp_path):
    for number, name in enumerate(NAMES):
        (tmp_path / name).write_text(str(int(number in {3, 4}) or number + 7))
    found = read(driver, tmp_path)
    wanted = {name: int(n in {3, 4}) or n + 7 for n, name in enumerate(NAMES)}
    assert found == {"counters": wanted, "refusals": []}


def test_what_a_gpu_does_not_have_is_none_and_what_it_refuses_is_said(driver, tmp_path):
    found = read(
        driver,
        tmp_path,
        FAIL="nvmlDeviceGetTotalEccErrors@0=3 nvmlDeviceGetRemappedRows@0=15",
        NO_NVLINK="1",
    )
    there = ("pcie_replays", "sram_uncorrected", "dram_uncorrected", "retired_pages")
    assert found["counters"] == {
        **dict.fromkeys(NAMES),
        **dict.fromkeys((*there, "recovery_action", "thermal_violation_ns"), 0),
    }
    (refusal,) = found["refusals"]
    assert "the GPU is lost" in refusal
    assert GPUS[0] in refusal


def test_counters_that_stand_still_pass(driver, tmp_path):
    (tmp_path / "ecc_uncorrected").write_text("5")
    before = read(driver, tmp_path)
    told, _ = judged(aftermath.test_errors, after(driver, tmp_path, before))
    assert told.outcome is Outcome.PASS


@pytest.mark.parametrize(
    "name", ["ecc_uncorrected", "rows_remapped", "nvlink_replays", "nvlink_recoveries"]
)
def test_one_more_error_after_the_load_is_a_fail_of_the_hardware(driver, tmp_path, name):
    (tmp_path / name).write_text("5")
    before = read(driver, tmp_path)
    (tmp_path / name).write_text("6")
    told, broken = judged(aftermath.test_errors, after(driver, tmp_path, before))
    assert (told.outcome, told.cause) == (Outcome.FAIL, Cause.HARDWARE)
    assert len(broken) == 1


@pytest.mark.parametrize("name", ["remap_pending", "remap_failed"])
def test_a_remap_that_is_pending_or_failed_is_a_fail_whenever_it_began(driver, tmp_path, name):
    (tmp_path / name).write_text("1")
    before = read(driver, tmp_path)
    told, _ = judged(aftermath.test_errors, after(driver, tmp_path, before))
    assert (told.outcome, told.cause) == (Outcome.FAIL, Cause.HARDWARE)


@pytest.mark.parametrize("name", ["ecc_corrected", "pcie_replays"])
def test_what_no_figure_is_known_for_is_shown_and_not_judged(driver, tmp_path, name):
    before = read(driver, tmp_path)
    (tmp_path / name).write_text("900")
    told, _ = judged(aftermath.test_errors, after(driver, tmp_path, before))
    assert told.outcome is Outcome.PASS


def test_a_counter_that_went_back_was_reset_by_somebody(driver, tmp_path):
    (tmp_path / "ecc_uncorrected").write_text("5")
    before = read(driver, tmp_path)
    (tmp_path / "ecc_uncorrected").write_text("0")
    told, broken = judged(aftermath.test_errors, after(driver, tmp_path, before))
    assert (told.outcome, told.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert set(broken) == {"counters that went back"}


@pytest.mark.parametrize("start", [{}, dict.fromkeys(NAMES)])
def test_without_a_counter_from_the_start_nothing_passes(driver, tmp_path, start):
    told, broken = judged(aftermath.test_errors, after(driver, tmp_path, {"counters": start}))
    assert (told.outcome, told.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert set(broken) == {"counters compared"}


def test_each_limit_is_broken_by_one_of_the_planted_faults(driver, tmp_path):
    own = after(driver, tmp_path, read(driver, tmp_path))
    sound, _ = judged(aftermath.test_errors, own)
    broken = set()
    for plant in spec_of(aftermath.test_errors).plants:
        told, names = judged(aftermath.test_errors, plant.alter(own))
        assert told.outcome is Outcome.FAIL
        assert set(plant.breaks) <= set(names)
        broken |= set(names)
    assert sound.bounded <= broken
