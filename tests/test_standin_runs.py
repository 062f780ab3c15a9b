"""Whole runs on a node of four GPUs of which each has a fault of its own."""

from __future__ import annotations

import pytest
from pytest_run import run_pytest

from tests.standin.build import build
from tests.standin.node import SCENARIOS

STATE = ("test_gpu_memory", "test_gpu_state", "test_nvlink")
WORDS = (
    "-p",
    "no:cacheprovider",
    "--nodeproof-device=cuda",
    "--nodeproof-output=out",
    "--nodeproof-profile=quick",
    "--pyargs",
)
REBOOT, LOST, SILENT = 1, 2, 3  # numbers of GPUs; number 0 is sound


def run(factory, *also, suites=STATE):
    """One run of the suites of GPUs' state, and what it found by check and device."""
    folder = factory.mktemp("run")
    build("nvml.c", folder / "libnvidia-ml.so.1")
    build("cuda.c", folder / "libcuda.so.1")
    scenario = folder / "scenario.txt"
    text = (SCENARIOS / "gb200.txt").read_text()
    scenario.write_text("\n".join([text, *also]) + "\n")
    uuids = next(line for line in text.splitlines() if line.startswith("gpus="))[5:]
    return run_pytest(
        folder,
        *WORDS,
        *(f"nodeproof.acceptance.{suite}" for suite in suites),
        LD_LIBRARY_PATH=str(folder),
        STANDIN_SCENARIO=str(scenario),
        STANDIN_CUDA=uuids,
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    return run(
        tmp_path_factory,
        f"nvmlDeviceGetFieldValues@{REBOOT}/230=2",
        f"nvmlDeviceGetHandleByUUID@{LOST}=error:15",
        f"nvmlDeviceGetRemappedRows@{SILENT}=0 0 0 1",
        suites=("test_inventory", *STATE),
    )


def outcomes(ran, label, outcome):
    return {
        c for (c, device), f in ran.findings().items() if (device, f["outcome"]) == (label, outcome)
    }


def test_a_sound_gpu_beside_faulty_ones_passes(ran):
    assert outcomes(ran, "gpu0", "fail") == outcomes(ran, "gpu0", "error") == set()
    assert "gpu.fabric.state" in outcomes(ran, "gpu0", "pass")


def test_each_fault_is_found_on_its_gpu_with_its_remedy(ran):
    found = ran.findings()
    assert outcomes(ran, "gpu1", "fail") == {"gpu.recovery.action"}
    assert found["gpu.recovery.action", "gpu1"]["remedy"] == "reboot"
    assert outcomes(ran, "gpu3", "fail") == {"gpu.memory.remap"}
    assert found["gpu.memory.remap", "gpu3"]["remedy"] == "replace"


def test_a_lost_gpu_passes_nothing_and_is_named_in_every_finding(ran):
    of_it = {c: f for (c, device), f in ran.findings().items() if device == "gpu2"}
    assert {f["outcome"] for f in of_it.values()} == {"error"}
    assert all(f["device"]["id"] in f["summary"] for f in of_it.values())
    assert all("the GPU is lost" in f["summary"] for f in of_it.values())


def test_the_verdict_is_a_reject_by_the_gravest_fault(ran):
    told = ran.verdict()
    assert told.decision.value == "reject"
    assert told.remedy.value == "replace"
    assert {r.check for r in told.failed} == {"gpu.recovery.action", "gpu.memory.remap"}


@pytest.mark.long
def test_a_call_that_hangs_costs_one_idea_its_deadline_and_the_verdict_names_it(tmp_path_factory):
    ran = run(tmp_path_factory, "nvmlDeviceGetEccMode@3=hang")
    silent = outcomes(ran, "gpu3", "error")
    assert silent == {"gpu.ecc.mode", "gpu.ecc.errors", "gpu.memory.remap"}
    assert "gpu.fabric.state" in outcomes(ran, "gpu3", "pass")
    for check in silent:
        assert (
            "while asking NVML: nvmlDeviceGetEccMode of GPU-"
            in ran.findings()[check, "gpu3"]["summary"]
        )
    told = ran.verdict()
    assert told.decision.value == "undecided"
    assert told.failed == ()
