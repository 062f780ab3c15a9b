"""Modes, recovery action, heat, clocks and the link to the host, judged."""

from __future__ import annotations

import pytest

from nodeproof.acceptance import test_gpu_memory as memory
from nodeproof.acceptance import test_gpu_state as state
from nodeproof.model import Cause, Outcome, Remedy
from tests.standin.build import judged
from tests.standin.node import standing

MODES = "nodeproof.probes.gpu_state:modes"
HEAT = "nodeproof.probes.gpu_state:heat"
PCIE = "nodeproof.probes.gpu_state:pcie"
SEVEN = " ".join(["1g.10gb"] * 7)


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with standing(tmp_path_factory) as one:
        yield one


@pytest.mark.parametrize(
    ("action", "cause", "remedy"),
    [
        (1, Cause.HARDWARE, Remedy.RESET_GPU),
        (2, Cause.HARDWARE, Remedy.REBOOT),
        (3, Cause.HARDWARE, Remedy.RESET_GPU),
        (4, Cause.HARDWARE, Remedy.RESET_GPU),
        (5, Cause.ENVIRONMENT, Remedy.RETEST),
        (6, Cause.HARDWARE, Remedy.REBOOT),
        (7, Cause.HARDWARE, Remedy.REBOOT),
        (42, Cause.ENVIRONMENT, Remedy.RETEST),
    ],
)
def test_what_the_driver_asks_for_is_what_helps(node, action, cause, remedy):
    node.says("hgx-h100", also=f"nvmlDeviceGetFieldValues@0/230={action}")
    judgement, broken = node.judged(state.test_recovery_action)
    assert (judgement.outcome, judgement.cause, judgement.remedy) == (Outcome.FAIL, cause, remedy)
    assert broken["recovery action"].detail.startswith("the driver asks")


@pytest.mark.parametrize("status", ["error:2", "error:3"])
def test_a_driver_too_old_to_ask_is_no_driver_that_asks_for_nothing(node, status):
    """Its answer holds a number all the same, which is undefined."""
    node.says("hgx-h100", also=f"nvmlDeviceGetFieldValues/230={status}")
    assert node.answer(MODES)["recovery_action"] is None
    judgement, broken = node.judged(state.test_recovery_action)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert "570" in broken["recovery action told"].detail
    allowed = state.RecoveryLimits(told=False)
    assert node.judged(state.test_recovery_action, limits=allowed)[0].outcome is Outcome.PASS


@pytest.mark.parametrize(("number", "mode"), [(2, "prohibited"), (3, "exclusive-process")])
def test_a_compute_mode_is_named(node, number, mode):
    node.says("hgx-h100", also=f"nvmlDeviceGetComputeMode={number}")
    judgement, broken = node.judged(state.test_compute_mode)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert mode in broken["compute mode other than expected"].detail
    as_it_is = state.ModeLimits(compute=mode)
    assert node.judged(state.test_compute_mode, limits=as_it_is)[0].outcome is Outcome.PASS


def test_persistence_is_judged_where_the_spec_names_it(node):
    node.says("hgx-h100", also="nvmlDeviceGetPersistenceMode=0")
    assert node.judged(state.test_compute_mode)[0].outcome is Outcome.PASS
    wanted = state.ModeLimits(persistence=True)
    _, broken = node.judged(state.test_compute_mode, limits=wanted)
    assert list(broken) == ["persistence mode other than expected"]


def test_a_gpu_in_slices_is_one_gpu_and_unjudged(node):
    node.says("hgx-h100", "mig")
    answer = node.answer(MODES)
    assert len(node.uuids) == 8
    assert [part["profile"] for part in answer["slices"]] == ["1g.10gb"] * 7
    judgement, broken = node.judged(state.test_mig)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert "7 slices: 7 of 1g.10gb" in broken["MIG"].detail
    assert node.judged(state.test_mig, gpu=1)[0].outcome is Outcome.PASS
    # With MIG on, nobody tells of remapped rows.
    judgement, broken = node.judged(memory.test_remap)
    assert judgement.cause is Cause.ENVIRONMENT
    assert "turn MIG off" in broken["records of repairs"].detail
    untold = memory.RepairLimits(told=False)
    assert node.judged(memory.test_remap, limits=untold)[0].outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("slices", "breaks"),
    [
        (SEVEN, []),
        ("", []),
        (f"{SEVEN} 1g.10gb", ["slices missing"]),
        ("1g.10gb 3g.40gb", ["slices missing", "slices too many"]),
    ],
)
def test_slices_are_held_against_the_spec_as_a_set(node, slices, breaks):
    node.says("hgx-h100", "mig")
    limits = state.MigLimits(on=True, slices=slices)
    judgement, broken = node.judged(state.test_mig, limits=limits)
    assert list(broken) == breaks
    assert judgement.cause is (Cause.CONFIG if breaks else None)
    assert node.selftest(state.test_mig, limits=limits).caught


def test_mig_that_is_expected_and_off_is_a_matter_of_the_spec(node):
    node.says("hgx-h100")
    judgement, _ = node.judged(state.test_mig, limits=state.MigLimits(on=True))
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.CONFIG)


def test_mig_that_changes_with_the_next_reset_is_not_settled(node):
    node.says("hgx-h100", also="nvmlDeviceGetMigMode=0 1")
    _, broken = node.judged(state.test_mig)
    assert list(broken) == ["MIG change waits for a reset"]


@pytest.mark.parametrize(
    ("said", "breaks"),
    [
        ("nvmlDeviceGetTemperature=83", ["temperature"]),
        ("nvmlDeviceGetTemperature=82", []),
        ("nvmlDeviceGetMarginTemperature=4", ["degrees left"]),
        ("nvmlDeviceGetMarginTemperature=-2", ["degrees left"]),
        ("nvmlDeviceGetFieldValues/82=91", ["memory temperature"]),
        ("nvmlDeviceGetFieldValues/82=0", []),  # no sensor there
        (
            "nvmlDeviceGetTemperatureThreshold=error:3\nnvmlDeviceGetTemperature=86",
            ["temperature"],
        ),
        ("nvmlDeviceGetTemperatureThreshold=0\nnvmlDeviceGetTemperature=80", []),
    ],
)
def test_heat_is_held_against_the_gpus_own_thresholds(node, said, breaks):
    node.says("hgx-h100", also=said)
    judgement, broken = node.judged(state.test_heat)
    assert list(broken) == breaks
    assert judgement.cause is (Cause.ENVIRONMENT if breaks else None)


@pytest.mark.parametrize(
    ("call", "check"),
    [
        ("nvmlDeviceGetTemperature", state.test_heat),
        ("nvmlDeviceGetComputeMode", state.test_compute_mode),
        ("nvmlDeviceGetCurrentClocksEventReasons", state.test_throttle),
    ],
)
def test_what_every_gpu_tells_and_this_one_does_not_is_an_error(node, call, check):
    node.says("hgx-h100", also=f"{call}=error:3")
    assert node.judged(check)[0].outcome is Outcome.ERROR


@pytest.mark.parametrize(
    ("bits", "held"),
    [(0x1, 0), (0x4, 0), (0x112, 0), (0x8, 1), (0x84, 1), (0x48, 2), (0x20, 1), (0x1E9, 4)],
)
def test_reasons_are_taken_bit_by_bit(node, bits, held):
    node.says("hgx-h100", also=f"nvmlDeviceGetCurrentClocksEventReasons={bits:#x}")
    judgement, broken = node.judged(state.test_throttle)
    assert judgement.outcome is (Outcome.FAIL if held else Outcome.PASS)
    assert [m.value for m in broken.values()] == ([held] if held else [])


def test_totals_since_the_driver_was_loaded_are_shown_and_nothing_that_holds_now(node):
    node.says("hgx-h100", also="nvmlDeviceGetViolationStatus/1=7220418133000")
    answer = node.answer(HEAT)
    assert answer["held_s"]["thermal"] == pytest.approx(7220.418)
    assert node.judged(state.test_throttle)[0].outcome is Outcome.PASS


def test_a_lowered_power_limit_or_clock_is_seen_where_the_spec_knows_the_product(node):
    said = "nvmlDeviceGetEnforcedPowerLimit=500000\nnvmlDeviceGetMaxClockInfo/1=1755"
    node.says("hgx-h100", also=said)
    assert node.judged(state.test_throttle)[0].outcome is Outcome.PASS
    limits = state.ClockLimits(power_limit_w=700, sm_mhz_max=1980)
    judgement, broken = node.judged(state.test_throttle, limits=limits)
    assert judgement.cause is Cause.ENVIRONMENT
    assert list(broken) == ["power limit", "greatest SM clock"]


BARE, GUEST, ARM = "flags : fpu\n", "flags : fpu hypervisor\n", "Features : fp\n"
X8, X16 = state.LinkLimits(width=8), state.LinkLimits(width=16)


@pytest.mark.parametrize(
    ("machine", "width", "able", "limits", "cause"),
    [
        (BARE, 8, 16, None, Cause.HARDWARE),
        (BARE, 8, 16, X16, Cause.HARDWARE),
        (BARE, 4, 16, X8, Cause.HARDWARE),
        (BARE, 8, 16, X8, None),
        (BARE, 16, 16, None, None),
        (BARE, 16, 16, X16, None),
        (BARE, 8, 8, None, None),  # the slot has no more, and nobody said that it should
        (BARE, 8, 8, X16, Cause.CONFIG),
        (GUEST, 8, 16, None, Cause.CONFIG),
        (GUEST, 8, 16, X16, Cause.CONFIG),
        (GUEST, 8, 16, X8, None),
        (GUEST, 4, 16, X8, Cause.CONFIG),
        (GUEST, 16, 16, None, None),
        (ARM, 8, 16, None, Cause.CONFIG),
        (ARM, 16, 16, None, None),
        (None, 8, 16, None, Cause.CONFIG),
        (None, 16, 16, None, None),
    ],
)
def test_a_narrow_link_is_the_gpus_fault_on_bare_metal_where_both_ends_could_do_more(
    node, tmp_path, machine, width, able, limits, cause
):
    if machine:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/cpuinfo").write_text(machine)
    node.says(
        "hgx-h100",
        also=f"nvmlDeviceGetCurrPcieLinkWidth={width}\nnvmlDeviceGetMaxPcieLinkWidth={able}",
    )
    answer = node.answer(PCIE, host_root=tmp_path)
    assert answer["virtual"] is {BARE: False, GUEST: True}.get(machine)
    judgement, broken = judged(state.test_pcie_link, answer, limits)
    assert judgement.cause is cause
    assert list(broken) == (["width"] if cause else [])


@pytest.mark.parametrize(
    ("width", "able", "generation", "limits", "cause"),
    [
        (8, 16, 1, None, None),  # under load it is judged
        (8, 16, 4, None, Cause.HARDWARE),
        (8, 16, "error:3", None, Cause.HARDWARE),
        (8, 8, 1, X16, Cause.CONFIG),  # an idle link may have fewer lanes than it can, this has all
        (8, "error:3", 1, X16, Cause.CONFIG),
        (16, 16, 1, X16, None),
    ],
)
def test_lanes_that_an_idle_link_may_have_given_up_are_judged_under_load(
    node, tmp_path, width, able, generation, limits, cause
):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(BARE)
    node.says(
        "l40s",
        also=f"nvmlDeviceGetCurrPcieLinkWidth={width}\nnvmlDeviceGetMaxPcieLinkWidth={able}\n"
        f"nvmlDeviceGetCurrPcieLinkGeneration={generation}",
    )
    judgement, _ = judged(state.test_pcie_link, node.answer(PCIE, host_root=tmp_path), limits)
    assert judgement.cause is cause
    assert node.selftest(state.test_pcie_link, limits=limits).caught


@pytest.mark.parametrize(
    ("limits", "cause"),
    [
        (None, Cause.ENVIRONMENT),
        (state.LinkLimits(width=16), Cause.CONFIG),
        (state.LinkLimits(width=1), None),
        (state.LinkLimits(told=False), None),
    ],
)
def test_a_width_of_one_lane_is_no_pass_where_nobody_says_what_it_could_be(node, limits, cause):
    said = "nvmlDeviceGetCurrPcieLinkWidth=1\nnvmlDeviceGetMaxPcieLinkWidth=error:3"
    node.says("hgx-h100", also=said)
    assert node.judged(state.test_pcie_link, limits=limits)[0].cause is cause


def test_a_link_that_nobody_tells_of_is_no_pass_unless_the_spec_allows_it(node):
    node.says("hgx-h100", also="nvmlDeviceGetCurrPcieLinkWidth=error:3")
    judgement, _ = node.judged(state.test_pcie_link)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    hidden = state.LinkLimits(told=False)
    assert node.judged(state.test_pcie_link, limits=hidden)[0].outcome is Outcome.PASS
