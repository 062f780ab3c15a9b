"""What a GPU's memory says of itself, judged: errors, repairs done, waiting and failed."""

from __future__ import annotations

import pytest

from nodeproof.acceptance import test_gpu_memory as memory
from nodeproof.child import Raised
from nodeproof.model import Cause, Outcome, Remedy
from tests.standin.node import standing

CALL = "nodeproof.probes.gpu_state:memory"
HARDWARE, ENVIRONMENT = Cause.HARDWARE, Cause.ENVIRONMENT


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with standing(tmp_path_factory) as one:
        yield one


@pytest.mark.parametrize(
    ("said", "breaks", "remedy"),
    [
        ("nvmlDeviceGetRemappedRows@0=1 0 1 0", "remap waits for a reset", Remedy.RESET_GPU),
        ("nvmlDeviceGetRemappedRows@0=0 3 0 1", "remap failed", Remedy.REPLACE),
        (
            "nvmlDeviceGetRemappedRows@0=0 512 0 0",
            "rows remapped for uncorrectable errors",
            Remedy.REPLACE,
        ),
    ],
    ids=["one correctable and pending", "failed", "too many"],
)
def test_a_repair_that_waits_or_failed_is_a_fault_of_the_gpu(node, said, breaks, remedy):
    node.says("hgx-h100", also=said)
    judgement, broken = node.judged(memory.test_remap)
    assert (judgement.outcome, judgement.cause, judgement.remedy) == (
        Outcome.FAIL,
        HARDWARE,
        remedy,
    )
    assert list(broken) == [breaks]
    assert node.judged(memory.test_remap, gpu=1)[0].outcome is Outcome.PASS


def test_repairs_that_were_done_and_corrected_errors_are_no_fault(node):
    node.says(
        "hgx-h100",
        also="nvmlDeviceGetRemappedRows=7 9 0 0\nnvmlDeviceGetTotalEccErrors/0/0=208\n"
        "nvmlDeviceGetTotalEccErrors/0/1=208\nnvmlDeviceGetTotalEccErrors/1/1=2",
    )
    assert node.judged(memory.test_remap)[0].outcome is Outcome.PASS
    assert node.judged(memory.test_ecc_errors)[0].outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("causes", "pending", "breaks"),
    [
        ((57, 8), 0, ["retired pages"]),
        ((31, 33), 1, ["page waits for a reset", "retired pages"]),
        ((0, 4), 1, ["page waits for a reset"]),
        ((60, 3), 0, []),
    ],
    ids=["sum past the limit", "at it and pending", "few and pending", "just below"],
)
def test_retired_pages_are_added_up_and_pending_is_another_matter(node, causes, pending, breaks):
    single, double = causes
    node.says(
        "t4",
        also=f"nvmlDeviceGetRetiredPages/0={single}\nnvmlDeviceGetRetiredPages/1={double}\n"
        f"nvmlDeviceGetRetiredPagesPendingStatus={pending}",
    )
    judgement, broken = node.judged(memory.test_remap)
    assert list(broken) == breaks
    assert judgement.outcome is (Outcome.FAIL if breaks else Outcome.PASS)


@pytest.mark.parametrize(
    "said",
    [
        "nvmlDeviceGetTotalEccErrors/1/0=1",
        "nvmlDeviceGetMemoryErrorCounter/1/0/2=1",
        "nvmlDeviceGetMemoryErrorCounter/1/0/7=1",
        "nvmlDeviceGetSramEccErrorStatus=0 0 0 1 0 0",
        "nvmlDeviceGetSramEccErrorStatus=0 0 0 0 1 0",
    ],
    ids=["total", "DRAM", "SRAM", "parity", "SEC-DED"],
)
def test_one_uncorrected_error_since_the_driver_was_loaded_asks_for_a_reset(node, said):
    node.says("hgx-h100", also=said)
    judgement, broken = node.judged(memory.test_ecc_errors)
    assert (judgement.cause, judgement.remedy) == (HARDWARE, Remedy.RESET_GPU)
    assert broken["uncorrected errors"].value == 1


def test_parity_and_secded_are_one_count(node):
    node.says("hgx-h100", also="nvmlDeviceGetSramEccErrorStatus=2 3 0 4 5 0 0 0 0 0 0 0")
    sram = node.answer(CALL)["sram"]
    assert sram == {"uncorrected": 9, "uncorrected_ever": 5, "exceeded": False}
    limits = memory.ErrorLimits(sram_uncorrected_ever=4)
    _, broken = node.judged(memory.test_ecc_errors, limits=limits)
    assert broken["SRAM uncorrected ever"].value == 5
    assert broken["uncorrected errors"].value == 9


def test_past_nvidias_threshold_for_sram_the_gpu_is_replaced(node):
    node.says("hgx-h100", also="nvmlDeviceGetSramEccErrorStatus=9 0 0 0 0 0 9 0 0 0 0 1")
    judgement, broken = node.judged(memory.test_ecc_errors)
    assert (judgement.cause, judgement.remedy) == (HARDWARE, Remedy.REPLACE)
    assert list(broken) == ["SRAM threshold exceeded"]


def test_counters_that_are_not_supported_are_none_and_with_ecc_on_no_pass(node):
    node.says(
        "hgx-h100",
        also="nvmlDeviceGetTotalEccErrors=error:3\nnvmlDeviceGetMemoryErrorCounter=error:2\n"
        "nvmlDeviceGetSramEccErrorStatus=error:13\nnvmlDeviceGetRemappedRows=error:3\n"
        "nvmlDeviceGetRetiredPages=error:3\nnvmlDeviceGetRetiredPagesPendingStatus=error:3",
    )
    answer = node.answer(CALL)
    assert set(answer["errors"].values()) == {None}
    assert answer["sram"] is answer["rows"] is answer["pages"] is None
    for check, breaks in (
        (memory.test_ecc_errors, "ECC counters"),
        (memory.test_remap, "records of repairs"),
    ):
        judgement, broken = node.judged(check)
        assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, ENVIRONMENT)
        assert list(broken) == [breaks]


def test_all_ones_mean_that_there_is_no_value(node):
    node.says("hgx-h100", also="nvmlDeviceGetTotalEccErrors/1/0=0xFFFFFFFFFFFFFFFF")
    assert node.answer(CALL)["errors"]["uncorrected"] is None


TOTAL, DRAM, SRAM, STATUS = (
    *("nvmlDeviceGetTotalEccErrors/1/0", "nvmlDeviceGetMemoryErrorCounter/1/0/2"),
    *("nvmlDeviceGetMemoryErrorCounter/1/0/7", "nvmlDeviceGetSramEccErrorStatus"),
)
ONES = "0xFFFFFFFFFFFFFFFF"


@pytest.mark.parametrize(
    ("silent", "outcome"),
    [
        ((TOTAL, DRAM, SRAM, STATUS), Outcome.FAIL),
        ((TOTAL, DRAM), Outcome.FAIL),  # one place says nothing of the other
        ((TOTAL, SRAM, STATUS), Outcome.FAIL),
        ((TOTAL,), Outcome.PASS),
        ((TOTAL, SRAM), Outcome.PASS),  # the status of on-chip memory tells it too
        ((DRAM, SRAM, STATUS), Outcome.PASS),  # the total is of all places
        (("nvmlDeviceGetTotalEccErrors/1/1", "nvmlDeviceGetTotalEccErrors/0/0"), Outcome.PASS),
    ],
)
@pytest.mark.parametrize("says", ["error:3", ONES])
def test_uncorrected_errors_that_nobody_tells_are_no_pass_with_ecc_on(node, silent, outcome, says):
    said = {call: f"{says} {ONES} 0 {says} {ONES}" if call == STATUS else says for call in silent}
    if says != ONES and STATUS in said:
        said[STATUS] = says
    node.says("hgx-h100", also="\n".join(f"{call}={value}" for call, value in said.items()))
    judgement, broken = node.judged(memory.test_ecc_errors)
    fails = outcome is Outcome.FAIL
    assert (judgement.outcome, list(broken)) == (outcome, ["ECC counters"] if fails else [])
    assert judgement.cause is (ENVIRONMENT if fails else None)
    assert node.selftest(memory.test_ecc_errors).caught


def test_with_ecc_off_nobody_asks_for_uncorrected_errors(node):
    silent = "\n".join(f"{call}=error:3" for call in (TOTAL, DRAM, SRAM, STATUS))
    node.says("hgx-h100", also=f"nvmlDeviceGetEccMode=0 0\n{silent}")
    assert node.judged(memory.test_ecc_errors)[0].outcome is Outcome.PASS
    assert node.selftest(memory.test_ecc_errors).caught


def test_a_limit_of_the_spec_that_nothing_is_told_for_is_no_pass(node):
    limits = memory.ErrorLimits(sram_uncorrected_ever=4)
    silent = f"{STATUS}=error:3\nnvmlDeviceGetMemoryErrorCounter/1/1/7"
    for said, outcome in (("0", Outcome.PASS), ("5", Outcome.FAIL), ("error:2", Outcome.ERROR)):
        node.says("hgx-h100", also=f"{silent}={said}")
        assert node.judged(memory.test_ecc_errors, limits=limits)[0].outcome is outcome
        assert node.judged(memory.test_ecc_errors)[0].outcome is Outcome.PASS


def test_rows_that_are_no_number_condemn_nobody_and_pass_nobody(node):
    node.says("hgx-h100", also="nvmlDeviceGetRemappedRows=0 0xFFFFFFFF 0 0")
    judgement, _ = node.judged(memory.test_remap)
    assert (judgement.outcome, judgement.cause) == (Outcome.ERROR, ENVIRONMENT)


@pytest.mark.parametrize(
    "said",
    [
        "nvmlDeviceGetRetiredPagesPendingStatus=error:3",
        "nvmlDeviceGetRetiredPages=error:3",
    ],
)
def test_records_that_are_told_in_part_are_no_records(node, said):
    node.says("t4", also=said)
    judgement, broken = node.judged(memory.test_remap)
    assert (judgement.cause, list(broken)) == (ENVIRONMENT, ["records of repairs"])
    node.says("hgx-h100", also=said)  # which keeps rows instead
    assert node.judged(memory.test_remap)[0].outcome is Outcome.PASS


WITHOUT = "\n".join(
    f"nvmlDeviceGet{call}=error:3"
    for call in (
        *("EccMode", "DefaultEccMode", "TotalEccErrors", "MemoryErrorCounter"),
        *("SramEccErrorStatus", "RemappedRows", "RetiredPages", "RetiredPagesPendingStatus"),
    )
)
PLAYERS = ["NVIDIA GeForce RTX 4090", "NVIDIA TITAN V"]
UNKNOWN = ["NVIDIA Z900", "NVIDIA RTX A2000", "NVIDIA L40S-48C", ""]
FAMILIAR = ["NVIDIA L40S", "NVIDIA GB300", "NVIDIA A10G", "Tesla T4"]
ON, OFF = memory.EccLimits(on=True), memory.EccLimits(on=False)


@pytest.mark.parametrize(
    ("names", "limits", "outcome"),
    [
        (PLAYERS, None, Outcome.PASS),
        (PLAYERS, OFF, Outcome.PASS),
        (PLAYERS, ON, Outcome.FAIL),
        (UNKNOWN, None, Outcome.ERROR),
        (UNKNOWN, OFF, Outcome.PASS),
        (UNKNOWN, ON, Outcome.FAIL),
        (FAMILIAR, None, Outcome.FAIL),
        (FAMILIAR, OFF, Outcome.FAIL),
        (FAMILIAR, ON, Outcome.FAIL),
    ],
)
def test_a_gpu_that_tells_of_no_ecc_is_held_against_what_is_known_of_it(
    node, names, limits, outcome
):
    for name in names:
        node.says("l40s", also=f"{WITHOUT}\nnvmlDeviceGetName={name}")
        judgement, _ = node.judged(memory.test_ecc_mode, limits=limits)
        assert (judgement.outcome, judgement.cause) == (
            outcome,
            None if outcome is Outcome.PASS else ENVIRONMENT,
        ), name
        told = node.selftest(memory.test_ecc_mode, limits=limits)
        assert told.caught, (name, told.summary)


def test_one_that_nobody_knows_is_told_what_to_write_into_a_spec(node):
    node.says("l40s", also=f"{WITHOUT}\nnvmlDeviceGetName=NVIDIA Z900")
    judgement, _ = node.judged(memory.test_ecc_mode)
    assert "NVIDIA Z900" in judgement.summary
    assert '["gpu.ecc.mode"] on = true, or false' in judgement.summary


def test_without_ecc_nobody_asks_for_its_counters_but_of_a_product_that_has_it(node):
    for name, outcome in ((PLAYERS[0], Outcome.PASS), (FAMILIAR[0], Outcome.FAIL)):
        node.says("l40s", also=f"{WITHOUT}\nnvmlDeviceGetName={name}")
        for check in (memory.test_ecc_errors, memory.test_remap):
            assert node.judged(check)[0].outcome is outcome


@pytest.mark.parametrize(
    ("said", "limits", "breaks"),
    [
        ("0 0", None, ["ECC other than expected"]),
        ("0 0\nnvmlDeviceGetDefaultEccMode=error:3", None, ["ECC other than expected"]),
        ("1 1\nnvmlDeviceGetDefaultEccMode=error:3", None, []),
        ("1 0", None, ["ECC waits for a reset"]),
        ("0 1", None, ["ECC other than expected", "ECC waits for a reset"]),
        ("0 0", memory.EccLimits(on=False), []),
        ("1 1", memory.EccLimits(on=False), ["ECC other than expected"]),
    ],
)
def test_ecc_is_held_against_the_spec_or_else_against_the_product(node, said, limits, breaks):
    node.says("hgx-h100", also=f"nvmlDeviceGetEccMode={said}")
    judgement, broken = node.judged(memory.test_ecc_mode, limits=limits)
    assert list(broken) == breaks
    assert judgement.cause is (ENVIRONMENT if breaks else None)


def test_a_question_without_permission_is_an_error_and_says_so(node):
    node.says("hgx-h100", also="nvmlDeviceGetSramEccErrorStatus=error:4")
    reply = node.reply(CALL)
    assert isinstance(reply, Raised)
    assert "as root" in reply.message
