"""A GPU that is cut into slices is one GPU of the node, and the node is not accepted."""

from __future__ import annotations

import dataclasses

import pytest
from pytest_run import run_pytest

from nodeproof.acceptance import test_inventory as inventory
from nodeproof.model import Cause, Outcome
from nodeproof.verdict import Decision, Why
from tests.shipped_run import RUN, decided
from tests.standin.build import GPUS, Driver, build, judged, put_gpu
from tests.standin.node import SCENARIOS

DEVICES = "nodeproof.probes.devices:enumerate_devices"
ARGS = {"device": "cuda", "cpu_devices": 1}
SLICE = "GPU-11111111-2222-3333-4444-888888880000"  # as CUDA writes what NVML calls MIG-...
SUITES = ("test_inventory", "test_gpu_state", "test_mig", "test_peers")
SPEC = """
["node.devices.count"]
mig = 1

["gpu.mode.mig"]
on = {on}
slices = "{slices}"
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    build("nvml.c", folder / "libnvidia-ml.so.1")
    build("cuda.c", folder / "libcuda.so.1")
    return folder


@pytest.fixture
def listed(libraries, tmp_path, pool, context):
    for address in ("0000:3b:00.0", "0000:3c:00.0"):
        put_gpu(tmp_path, address)

    def ask(cuda, *, mig="nvmlDeviceGetMigMode@0=1 1"):
        told = tmp_path / "scenario.txt"
        told.write_text(f"{mig}\n")
        driver = Driver(libraries, tmp_path, pool, context)
        said = {"NVML": " ".join(GPUS), "CUDA": " ".join(cuda), "SCENARIO": str(told)}
        return driver.answer(DEVICES, args=ARGS, **said)

    return ask


@pytest.mark.parametrize(
    "cuda", [(SLICE, GPUS[1]), (SLICE,), ()], ids=["both", "a slice alone", "none"]
)
def test_a_slice_that_cuda_names_is_no_gpu_more(listed, cuda):
    result = listed(
        cuda, mig="nvmlDeviceGetMigMode=1 1" if len(cuda) < 2 else "nvmlDeviceGetMigMode@0=1 1"
    )
    assert [d["id"] for d in result["devices"]] == list(GPUS)
    assert result["devices"][0]["facts"]["mig"] is True
    assert SLICE not in (result["cuda"] or [])
    judgement, broken = judged(inventory.test_device_count, result)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert list(broken) == ["mig"]
    allowed = inventory.DeviceLimits(mig=2, expected=2)
    assert judged(inventory.test_device_count, result, allowed)[0].outcome is Outcome.PASS


def test_a_whole_gpu_does_not_say_that_it_is_cut(listed):
    result = listed(GPUS, mig="nvmlDeviceGetMigMode=error:3")
    assert all("mig" not in d["facts"] for d in result["devices"])


def test_a_whole_gpu_that_cuda_does_not_list_beside_a_cut_one_is_missed(listed):
    _, broken = judged(inventory.test_device_count, listed([SLICE]))
    assert GPUS[1] in broken["only_nvml"].detail
    assert GPUS[0] not in broken["only_nvml"].detail


def test_a_gpu_with_mig_on_is_not_accepted_though_all_else_passed():
    assert decided(RUN).decision is Decision.ACCEPT
    devices = [
        dataclasses.replace(d, facts={**d.facts, "mig": True}) if d.kind == "gpu" else d
        for d in RUN.plan.devices
    ]
    told = decided(RUN.replan(devices=tuple(devices)))
    assert told.decision is Decision.UNDECIDED
    reasons = [r.text for r in told.undecided if r.why is Why.RUN]
    cut = [d for d in devices if d.kind == "gpu"]
    assert len(reasons) == len(cut)
    assert all(d.id in text and "MIG" in text for d, text in zip(cut, reasons, strict=True))


@pytest.mark.long
@pytest.mark.parametrize(
    ("on", "slices", "short"),
    [
        ("true", " ".join(["1g.10gb"] * 7), set()),
        ("true", "3g.40gb 4g.40gb", {"gpu.mode.mig"}),
        ("false", "", {"gpu.mode.mig"}),
    ],
    ids=["as the spec says", "other slices", "not expected"],
)
def test_a_run_on_a_cut_gpu_ends_undecided(libraries, tmp_path, on, slices, short):
    scenario, spec = tmp_path / "scenario.txt", tmp_path / "spec.toml"
    scenario.write_text(f"gpus={GPUS[0]}\n" + (SCENARIOS / "mig.txt").read_text())
    spec.write_text('name = "cut"\n' + SPEC.format(on=on, slices=slices))
    ran = run_pytest(
        tmp_path,
        *("-p", "no:cacheprovider", "--nodeproof-device=cuda", "--nodeproof-output=out"),
        *("--nodeproof-profile=quick", f"--nodeproof-spec={spec}", "--pyargs"),
        *(f"nodeproof.acceptance.{suite}" for suite in SUITES),
        LD_LIBRARY_PATH=str(libraries),
        STANDIN_SCENARIO=str(scenario),
        STANDIN_CUDA=SLICE,
    )  # fmt: skip
    found = {c: f["outcome"] for (c, _), f in ran.findings().items()}
    assert found["node.devices.count"] == "pass"
    failed = {c for c, outcome in found.items() if outcome != "pass"}
    # torch has no CUDA here: the slices go untested, and that is no pass.
    assert failed - {"node.software.versions"} == {"gpu.mig.slices", *short}
    own = ("gpu.mig.slices", "gpu.peers.paths", "gpu.mode.mig")
    assert all(t["caught"] for (c, _), t in ran.selftests().items() if c in own)
    told = ran.verdict()
    assert told.decision is Decision.UNDECIDED
    assert not told.failed
    assert any("cut into slices" in r.text for r in told.undecided)
