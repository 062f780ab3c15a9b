"""What moved between the start of a run and its end, by the GPU's own counters, judged."""

from __future__ import annotations

import pytest

from nodeproof.acceptance import test_aftermath as aftermath
from nodeproof.model import Cause, Outcome, Remedy
from tests.standin.node import standing

READ = "nodeproof.probes.counters:read"
ERRORS = aftermath.test_errors


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with standing(tmp_path_factory) as one:
        yield one


def moved(node, product, said, *, start="", limits=None):
    """Judge a run that began with `start` and ended with `said`; and what its plants come to."""
    node.says(product, also=start)
    args = {"before": node.answer(READ)}
    node.says(product, also=said)
    assert node.selftest(ERRORS, args=args, limits=limits).caught
    return node.judged(ERRORS, args=args, limits=limits)


@pytest.mark.parametrize("product", ["hgx-h100", "gb200", "l40s", "t4"])
def test_where_nothing_moves_the_run_leaves_nothing_behind(node, product):
    judgement, broken = moved(node, product, "")
    assert judgement.outcome is Outcome.PASS, broken


@pytest.mark.parametrize(
    ("product", "said", "breaks"),
    [
        ("hgx-h100", "nvmlDeviceGetTotalEccErrors/1/0=1", "uncorrected ECC errors"),
        ("hgx-h100", "nvmlDeviceGetMemoryErrorCounter/1/0/7=1", "uncorrected ECC errors in SRAM"),
        ("hgx-h100", "nvmlDeviceGetMemoryErrorCounter/1/0/2=1", "uncorrected ECC errors in DRAM"),
        ("hgx-h100", "nvmlDeviceGetRemappedRows=1 0 0 0", "rows of memory remapped"),
        ("t4", "nvmlDeviceGetRetiredPages/1=1", "pages of memory retired"),
        ("hgx-h100", "nvmlDeviceGetFieldValues/52=1", "NVLink replays"),
        ("hgx-h100", "nvmlDeviceGetFieldValues/59=1", "NVLink recoveries"),
        ("hgx-h100", "nvmlDeviceGetFieldValues/38=100", "NVLink CRC errors"),
        ("gb200", "nvmlDeviceGetFieldValues/206/17=1", "NVLink packet errors"),
        ("gb200", "nvmlDeviceGetFieldValues/211/0=1", "NVLink packet errors"),
        ("gb200", "nvmlDeviceGetFieldValues/215/3=1", "NVLinks trained anew"),
        ("hgx-h100", "nvmlDeviceGetRemappedRows=0 0 1 0", "remaps pending"),
        ("hgx-h100", "nvmlDeviceGetFieldValues/230=1", "recovery action"),
    ],
)
def test_what_grew_by_the_least_that_counts_is_the_gpus_fault(node, product, said, breaks):
    judgement, broken = moved(node, product, said)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.HARDWARE)
    assert list(broken) == [breaks]


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("nvmlDeviceGetTotalEccErrors/1/0=1", Remedy.RESET_GPU),
        ("nvmlDeviceGetRemappedRows=0 0 0 1", Remedy.REPLACE),
        ("nvmlDeviceGetFieldValues/230=2", Remedy.REBOOT),
        ("nvmlDeviceGetFieldValues/230=4", Remedy.RESET_GPU),
        (
            "nvmlDeviceGetFieldValues/230=2\nnvmlDeviceGetRemappedRows=0 0 0 1",
            Remedy.REPLACE,
        ),
    ],
)
def test_the_gravest_remedy_is_asked_for(node, said, remedy):
    assert moved(node, "hgx-h100", said)[0].remedy is remedy


@pytest.mark.parametrize(
    "said",
    [
        "nvmlDeviceGetFieldValues/38=99",
        "nvmlDeviceGetPcieReplayCounter=4000",
        "nvmlDeviceGetTotalEccErrors/0/0=208",
        "nvmlDeviceGetViolationStatus/1=900000000",
    ],
)
def test_what_sound_devices_show_too_is_no_fault(node, said):
    assert moved(node, "hgx-h100", said)[0].outcome is Outcome.PASS


def test_a_spec_may_hold_what_is_otherwise_only_shown(node):
    limits = aftermath.Growth(pcie_replays=10, ecc_corrected=5)
    said = "nvmlDeviceGetPcieReplayCounter=11\nnvmlDeviceGetTotalEccErrors/0/0=6"
    judgement, broken = moved(node, "hgx-h100", said, limits=limits)
    assert judgement.cause is Cause.HARDWARE
    assert list(broken) == ["corrected ECC errors", "PCIe replays"]


def test_clocks_that_heat_held_down_ask_for_a_look_at_the_cooling(node):
    judgement, broken = moved(node, "hgx-h100", "nvmlDeviceGetViolationStatus/1=1500000000")
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert broken["held down by heat"].value == pytest.approx(1.5)


def test_an_imex_domain_that_is_to_be_recovered_blames_no_gpu(node):
    judgement, broken = moved(node, "gb200", "nvmlDeviceGetFieldValues/230=5")
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert "IMEX" in broken["recovery action"].detail


def test_what_stood_there_before_is_no_fault_of_the_run(node):
    both = "nvmlDeviceGetTotalEccErrors/1/0=3\nnvmlDeviceGetFieldValues/52=7"
    assert moved(node, "hgx-h100", both, start=both)[0].outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("start", "said", "breaks"),
    [
        ("", "nvmlDeviceGetTotalEccErrors=error:15", ["counters compared", "counters refused"]),
        ("", "nvmlDeviceGetTotalEccErrors=error:3", ["counters compared"]),
        ("nvmlDeviceGetFieldValues/52=error:3", "", ["counters compared"]),
        ("nvmlDeviceGetTotalEccErrors=error:4", "", ["counters compared"]),
        (
            "nvmlDeviceGetTotalEccErrors=error:4",
            "nvmlDeviceGetTotalEccErrors=error:4",
            ["counters refused"],
        ),
        ("nvmlDeviceGetPcieReplayCounter=9", "", ["counters that went back"]),
    ],
    ids=["lost at the end", "gone", "not at the start", "refused then", "refused", "reset"],
)
def test_a_counter_that_is_not_read_at_both_ends_is_no_counter_that_stood_still(
    node, start, said, breaks
):
    node.says("hgx-h100", also=start)
    args = {"before": node.answer(READ)}
    node.says("hgx-h100", also=said)
    judgement, broken = node.judged(ERRORS, args=args)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert list(broken) == breaks


ONES = "0xFFFFFFFFFFFFFFFF"
TOTAL = f"nvmlDeviceGetTotalEccErrors/1/0={ONES}"
SRAM, DRAM = (f"nvmlDeviceGetMemoryErrorCounter/1/0/{place}={ONES}" for place in (7, 2))


@pytest.mark.parametrize(
    ("said", "breaks"),
    [
        ((TOTAL, SRAM, DRAM), ["counters refused"]),
        ((TOTAL, DRAM), ["counters refused"]),
        (("nvmlDeviceGetRemappedRows=0 0xFFFFFFFF 0 0",), ["counters refused"]),
        (("nvmlDeviceGetRemappedRows=0xFFFFFFFF 0xFFFFFFFF 0 0",), ["counters refused"]),
        # What something else counts, or nobody judges.
        ((TOTAL,), []),
        ((SRAM, DRAM), []),
        ((f"nvmlDeviceGetTotalEccErrors/0/0={ONES}",), []),
        (("nvmlDeviceGetPcieReplayCounter=0xFFFFFFFF",), []),
    ],
)
def test_all_ones_at_both_ends_are_no_counter_that_stood_still(node, said, breaks):
    node.says("hgx-h100", also="\n".join(said))
    args = {"before": node.answer(READ)}
    judgement, broken = node.judged(ERRORS, args=args)
    assert list(broken) == breaks
    assert judgement.cause is (Cause.ENVIRONMENT if breaks else None)
