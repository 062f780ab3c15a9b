"""DCGM asked through a `dcgmi` on the PATH that does what the real one does on a bad day."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from fake_dcgmi import (
    FAULTY_MEMORY,
    PERSISTENCE,
    UUIDS,
    WARNING,
    Dcgmi,
    refused,
    styled,
    v2,
    v3,
    v4,
)

from nodeproof.acceptance import test_dcgm as suite
from nodeproof.checks import spec_of
from nodeproof.model import Cause, Outcome, Remedy
from nodeproof.probes import dcgm
from tests.standin.build import judged, put_gpu

DIAG = suite.test_diag
HEALTH = suite.test_health
REQUIRED = suite.DiagLimits(required=True)
HEALTHY = """\
+---------------------------+----------------------------------------------------------+
| Health Monitor Report                                                                |
+===========================+==========================================================+
| Overall Health            | Healthy                                                  |
+---------------------------+----------------------------------------------------------+
"""
FAILING = """\
+---------------------------+----------------------------------------------------------+
| Health Monitor Report                                                                |
+===========================+==========================================================+
| Overall Health            | Failure                                                  |
| GPU                       |                                                          |
| -> 1                      | Failure                                                  |
|    -> Errors              |                                                          |
|       -> Memory system    | Failure                                                  |
|                           | Uncorrectable errors were found in the memory of the     |
|                           | device.                                                  |
+---------------------------+----------------------------------------------------------+
"""


@pytest.fixture
def dcgmi(tmp_path, monkeypatch):
    """A machine with two GPUs on its bus."""
    folder, root = tmp_path / "bin", tmp_path / "machine"
    folder.mkdir()
    put_gpu(root, "0000:1b:00.0")
    put_gpu(root, "0000:1c:00.0")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return Dcgmi(folder, root)


def gone(pid, within_s=10.0):
    """Whether a process ends: the kernel takes a moment over one that was killed."""
    ends = time.monotonic() + within_s
    while time.monotonic() < ends:
        stat = Path("/proc", pid, "stat")
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_without_dcgm_a_node_passes_unless_its_spec_asks_for_it(dcgmi, monkeypatch):
    monkeypatch.setenv("PATH", str(dcgmi.folder))
    for check, work, limits in (
        (DIAG, dcgm.diag, suite.DiagLimits(required=True)),
        (HEALTH, dcgm.health, suite.HealthLimits(required=True)),
    ):
        result = work(dcgmi.context())
        assert result["state"] == "absent"
        assert judged(check, result)[0].outcome is Outcome.PASS
        judgement, _ = judged(check, result, limits)
        assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
        assert "install DCGM" in judgement.summary


@pytest.mark.parametrize(
    "document",
    [v2(), v3(), v4({"software": ["Pass", "Pass"]})],
    ids=["2", "3", "4"],
)
def test_a_healthy_node_passes_in_every_version(dcgmi, document):
    dcgmi.says(styled(document))
    result = dcgm.diag(dcgmi.context())
    assert (result["state"], result["grade"], result["failed"]) == ("ran", "pass", [])
    assert judged(DIAG, result, REQUIRED)[0].outcome is Outcome.PASS
    assert dcgmi.asked.read_text() == "diag -j -r 1\n"


@pytest.mark.parametrize(
    ("profile", "given", "level"),
    [("quick", None, 1), ("gate", None, 1), ("deep", None, 2), ("soak", None, 3), ("quick", 4, 4)],
)
def test_the_level_is_what_the_profile_has_time_for_or_what_the_spec_says(
    dcgmi, profile, given, level
):
    dcgmi.says(styled(v4({"software": ["Pass", "Pass"]})))
    dcgm.diag(dcgmi.context(profile), level=given, host="192.0.2.7:5555")
    assert dcgmi.asked.read_text() == f"diag --host 192.0.2.7:5555 -j -r {level}\n"


def test_a_level_that_dcgm_does_not_have_is_refused(dcgmi):
    dcgmi.says("")
    with pytest.raises(ValueError, match="level 7"):
        dcgm.diag(dcgmi.context(), level=7)
    assert not dcgmi.asked.exists()


def test_a_failed_memory_test_condemns_and_names_the_gpu_by_uuid(dcgmi):
    tests = {"software": ["Pass", "Pass"], "memory": ["Pass", ("Fail", FAULTY_MEMORY)]}
    dcgmi.says(styled(v4(tests)), status=205)
    result = dcgm.diag(dcgmi.context())
    judgement, broken = judged(DIAG, result)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.HARDWARE)
    assert judgement.remedy is Remedy.RESET_GPU
    assert list(broken) == ["failures of the hardware"]
    assert UUIDS[1] in judgement.summary
    assert "00000000:1C:00.0" in judgement.summary
    assert "Found 3 faulty memory elements" in judgement.summary


def test_a_failure_without_an_error_number_is_read_by_its_words(dcgmi):
    dcgmi.says(styled(v2(("Pass", "Fail"), "Found 3 faulty memory elements on GPU 1")), status=226)
    assert judged(DIAG, dcgm.diag(dcgmi.context()))[0].cause is Cause.HARDWARE
    for words in (
        "Error using CUDA API cuCtxCreate",
        "GPU 1's NvLink link 3 is currently down",
        "",
    ):
        dcgmi.says(styled(v2(("Pass", "Fail"), words)), status=226)
        judgement, _ = judged(DIAG, dcgm.diag(dcgmi.context()))
        assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)


LINK_DOWN = {
    **WARNING,
    "warning": "GPU 1's NvLink link 3 is currently down",
    "error_id": 14,
    "error_category": 11,
}
XID = {**WARNING, "warning": "Detected XID 45 for GPU 1", "error_id": 101, "error_category": 5}
NO_ECC = {**WARNING, "warning": "ECC is not enabled", "error_id": 55, "error_category": 10}
NO_CUDA = {**WARNING, "warning": "Error using CUDA API", "error_id": 51, "error_category": 6}


@pytest.mark.parametrize(
    "warning",
    [PERSISTENCE, LINK_DOWN, XID, NO_ECC, NO_CUDA],
    ids=["persistence", "link", "xid", "ecc", "cuda"],
)
def test_a_failure_that_more_than_hardware_explains_condemns_nobody(dcgmi, warning):
    dcgmi.says(styled(v4({"software": ["Pass", ("Fail", warning)]})), status=226)
    judgement, broken = judged(DIAG, dcgm.diag(dcgmi.context()))
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert list(broken) == ["failures of the set-up"]
    assert UUIDS[1] in judgement.summary


def test_hardware_beside_a_setting_is_still_hardware(dcgmi):
    tests = {"software": ["Pass", ("Fail", PERSISTENCE)], "memory": [("Fail", FAULTY_MEMORY)] * 2}
    dcgmi.says(styled(v4(tests)), status=205)
    judgement, broken = judged(DIAG, dcgm.diag(dcgmi.context()))
    assert judgement.cause is Cause.HARDWARE
    assert len(broken) == 2


UNJUDGED = {
    "prints nothing": ("", 0, "refused"),
    "prints nothing and fails": ("", 255, "refused"),
    "prints rubbish": ("\x00\x01{{{]", 0, "refused"),
    "prints half and dies": (styled(v4({"software": ["Pass", "Pass"]}))[:620], 139, "ran"),
    "skips everything and ends with 0": (styled(v4({"memory": ["Skip", "Skip"]})), 0, "ran"),
    "skips what uses the GPUs": (
        styled(v4({"software": ["Pass", "Pass"], "memory": ["Skip", "Skip"]})),
        0,
        "ran",
    ),
    "passes and ends with an error": (styled(v4({"software": ["Pass", "Pass"]})), 226, "ran"),
    "tests one GPU of two": (styled(v4({"software": ["Pass"]}, gpus=1)), 0, "ran"),
    "says a runtime error": (styled(refused("Unable to launch.")), 226, "refused"),
    "has no tests": (styled({"DCGM Diagnostic": {"test_categories": []}}), 0, "refused"),
    "finds one running": (
        styled(refused("Error: A diag instance is already running, cannot run a new diag")),
        217,
        "busy",
    ),
    "ends busy without a word": ("", 217, "busy"),
    "is paused": (
        styled(refused("Diagnostic could not be run while DCGM is paused.")),
        202,
        "busy",
    ),
    "gives up waiting": ("", 245, "timed out"),
}


@pytest.mark.parametrize(("text", "status", "state"), UNJUDGED.values(), ids=UNJUDGED)
def test_what_did_not_test_the_node_leaves_it_unjudged(dcgmi, text, status, state):
    dcgmi.says(text, status=status)
    result = dcgm.diag(dcgmi.context())
    assert result["state"] == state
    for limits in (suite.DiagLimits(), REQUIRED):
        judgement, _ = judged(DIAG, result, limits)
        assert judgement.outcome is Outcome.ERROR
        assert judgement.cause is Cause.ENVIRONMENT


@pytest.mark.parametrize(
    "text",
    [
        "Error: Unable to connect to host engine. Host engine connection invalid/disconnected.\n",
        "",
    ],
)
@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize(("check", "work"), [(DIAG, dcgm.diag), (HEALTH, dcgm.health)])
def test_a_host_engine_that_does_not_answer_leaves_the_node_unjudged(
    dcgmi, check, work, required, text
):
    dcgmi.says(text, status=235)
    result = work(dcgmi.context())
    assert result["state"] == "unreachable"
    judgement, _ = judged(check, result, spec_of(check).limits(required=required))
    assert (judgement.outcome, judgement.cause) == (Outcome.ERROR, Cause.ENVIRONMENT)
    assert "start it" in judgement.summary


def test_a_host_engine_that_dies_during_the_diagnostic_is_no_pass(dcgmi):
    text = styled(refused("Host engine connection invalid/disconnected."))
    for said in (text, styled(v4({"software": ["Pass", "Pass"]})) + text):
        dcgmi.says(said, status=235)
        judgement, _ = judged(DIAG, dcgm.diag(dcgmi.context()))
        assert (judgement.outcome, judgement.cause) == (Outcome.ERROR, Cause.ENVIRONMENT)


def test_no_dcgm_at_all_matters_where_it_is_required(dcgmi):
    for check, work in ((DIAG, dcgm.diag), (HEALTH, dcgm.health)):
        result = work(dcgmi.context())
        assert result["state"] == "absent"
        assert judged(check, result)[0].outcome is Outcome.PASS
        told = judged(check, result, spec_of(check).limits(required=True))[0]
        assert (told.outcome, told.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)


def test_watches_are_no_business_of_the_diagnostic(dcgmi):
    dcgmi.says("Error: Health watches not enabled. Please enable watches. \n", status=253)
    assert judged(DIAG, dcgm.diag(dcgmi.context()))[0].outcome is Outcome.ERROR


def test_a_grade_of_fail_without_a_failed_test_is_no_pass(dcgmi):
    dcgmi.says(styled(v4({"software": ["Pass", "Pass"]})))
    result = {**dcgm.diag(dcgmi.context()), "grade": "fail", "why": "ECC is off"}
    judgement, broken = judged(DIAG, result)
    assert (judgement.outcome, list(broken)) == (Outcome.FAIL, ["failures of the set-up"])
    assert "ECC is off" in judgement.summary


def test_a_command_that_can_not_be_started_is_no_pass(dcgmi):
    command = dcgmi.folder / "dcgmi"
    command.write_text("#!/no/such/interpreter\n")
    command.chmod(0o755)
    judgement, _ = judged(DIAG, dcgm.diag(dcgmi.context()))
    assert judgement.outcome is Outcome.ERROR
    assert "No such file" in judgement.summary


def test_one_that_hangs_costs_its_deadline_and_leaves_no_process(dcgmi):
    dcgmi.script('trap "" TERM\nsleep 600 &\necho $$ $! >pids\nwhile :; do wait; done')
    began = time.monotonic()
    result = dcgm.diag(dcgmi.context(), deadline_s=2, grace_s=0.3)
    assert time.monotonic() - began < 30
    assert result["state"] == "timed out"
    pids = (dcgmi.folder / "pids").read_text().split()
    assert [gone(pid) for pid in pids] == [True, True]
    judgement, _ = judged(DIAG, result)
    assert judgement.outcome is Outcome.ERROR
    assert "did not come back within 2 s" in judgement.summary


def test_one_that_hangs_is_told_first_so_that_it_stops_the_tests_on_the_gpus(dcgmi):
    dcgmi.script('trap "echo stopped >end; exit 143" TERM\nsleep 600 &\necho $! >pids\nwait')
    dcgm.diag(dcgmi.context(), deadline_s=2, grace_s=10)
    assert (dcgmi.folder / "end").read_text() == "stopped\n"
    assert gone((dcgmi.folder / "pids").read_text().strip())


def test_a_process_that_keeps_the_output_open_does_not_hold_the_answer(dcgmi):
    (dcgmi.folder / "text").write_text(styled(v4({"software": ["Pass", "Pass"]})))
    dcgmi.script("setsid sleep 600 &\necho $! >pids\ncat text")
    began = time.monotonic()
    assert dcgm.diag(dcgmi.context())["grade"] == "pass"
    assert time.monotonic() - began < 30
    os.kill(int((dcgmi.folder / "pids").read_text()), 9)


def test_one_that_never_stops_printing_is_stopped(dcgmi, monkeypatch):
    monkeypatch.setattr(dcgm, "_MOST", 1 << 16)
    dcgmi.script("while :; do echo '{\"a\": 1}'; done")
    result = dcgm.diag(dcgmi.context(), grace_s=0.5)
    assert result["state"] == "timed out"
    assert judged(DIAG, result)[0].outcome is Outcome.ERROR


def test_a_gpu_that_discovery_does_not_name_is_named_as_dcgm_does(dcgmi):
    tests = {"memory": ["Pass", ("Fail", FAULTY_MEMORY)]}
    dcgmi.says(styled(v4(tests)), status=205, gpus=1)
    assert "on DCGM's GPU 1: Found" in judged(DIAG, dcgm.diag(dcgmi.context()))[0].summary


def test_a_healthy_answer_of_a_command_that_failed_is_not_judged(dcgmi):
    dcgmi.says(HEALTHY, status=255)
    assert judged(HEALTH, dcgm.health(dcgmi.context()))[0].outcome is Outcome.ERROR


def test_a_gpu_that_the_diagnostic_left_out_is_not_judged(dcgmi):
    document = v4({"software": ["Pass", "Pass"], "memory": ["Pass"]})
    dcgmi.says(styled(document))
    assert judged(DIAG, dcgm.diag(dcgmi.context()))[0].outcome is Outcome.ERROR


def test_watches_that_saw_a_failure_leave_the_node_unjudged(dcgmi):
    dcgmi.says(HEALTHY)
    assert judged(HEALTH, dcgm.health(dcgmi.context()))[0].outcome is Outcome.PASS
    dcgmi.says(FAILING)
    judgement, broken = judged(HEALTH, dcgm.health(dcgmi.context()))
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert list(broken) == ["GPUs or systems that failed"]
    assert UUIDS[1] in judgement.summary
    assert "Memory: Uncorrectable errors were found in the memory" in judgement.summary


@pytest.mark.parametrize(
    ("text", "outcomes"),
    [
        ("Error: Health watches not enabled. Please enable watches. \n", ["pass", "fail"]),
        ("", ["error", "error"]),
        (HEALTHY[:200], ["error", "error"]),
        ("Error: Unable to check health watches. Return: Timeout\n", ["error", "error"]),
    ],
)
def test_watches_that_say_nothing_are_no_health(dcgmi, text, outcomes):
    dcgmi.says(text, status=253 if text else 0)
    result = dcgm.health(dcgmi.context())
    limits = [suite.HealthLimits(), suite.HealthLimits(required=True)]
    assert [judged(HEALTH, result, of)[0].outcome.value for of in limits] == outcomes


@pytest.mark.parametrize("check", [DIAG, HEALTH])
def test_every_fault_that_is_planted_is_found_whatever_dcgm_does(dcgmi, check):
    answers = []
    work = dcgm.diag if check is DIAG else dcgm.health
    for text, status in ((styled(v4({"software": ["Pass", "Pass"]})), 0), ("", 217), ("", 235)):
        dcgmi.says(text, status=status)
        answers.append(work(dcgmi.context()))
    answers.append(dcgm._absent())
    limits = (REQUIRED, suite.DiagLimits())
    for answer in answers:
        for given in limits if check is DIAG else (None,):
            for plant in spec_of(check).plants:
                judgement, _ = judged(check, plant.alter(answer), given)
                assert judgement.outcome is Outcome.FAIL
                assert set(plant.breaks) <= judgement.broken
