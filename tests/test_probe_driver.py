"""NVML and CUDA asked through the real bindings, with libraries that do what a bad driver does."""

from __future__ import annotations

import pytest

from nodeproof.acceptance import test_inventory as inventory
from nodeproof.child import Loss, Lost, Raised
from nodeproof.model import Cause, Outcome
from tests.standin.build import GPUS, Driver, build, judged, planted, put_gpu

COUNT = inventory.test_device_count
ALONE = inventory.test_alone_on_gpu
VERSIONS = inventory.test_software_versions
BOTH = {"NVML": " ".join(GPUS), "CUDA": " ".join(GPUS)}
DEVICES = "nodeproof.probes.devices:enumerate_devices"
ON_GPU = "nodeproof.probes.processes:on_gpu"
AUTO = {"device": "auto", "cpu_devices": 2}


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    build("nvml.c", folder / "libnvidia-ml.so.1")
    build("cuda.c", folder / "libcuda.so.1")
    return folder


@pytest.fixture
def bus(tmp_path):
    """A machine with two GPUs on its bus and a network card."""
    root = tmp_path / "machine"
    put_gpu(root, "0000:3b:00.0")
    put_gpu(root, "0000:3c:00.0")
    put_gpu(root, "0000:01:00.0", vendor="0x15b3", kind="0x020700")
    return root


@pytest.fixture
def driver(libraries, bus, pool, context):
    return Driver(libraries, bus, pool, context)


def listed(driver, **plan):
    return driver.answer(DEVICES, args=AUTO, **{**BOTH, **plan})


def count(result, expected=None):
    return judged(COUNT, result, inventory.DeviceLimits(expected=expected))


def test_gpus_are_named_by_uuid_and_numbered_in_pci_order(driver):
    first, second = GPUS
    result = listed(driver, NVML=f"{second} {first}", CUDA=f"{second} {first}")
    assert [(d["kind"], d["id"], d["label"]) for d in result["devices"]] == [
        ("gpu", second, "gpu0"),
        ("gpu", first, "gpu1"),
    ]
    assert result["devices"][0]["facts"] == {
        "product": "NVIDIA Stand-in",
        "serial": "165400",
        "vbios": "96.00.5E.00.01",
        "pci": "0000:3b:00.0",
        "memory_bytes": 80 << 30,
        "capability": [9, 0],
    }
    assert result["cuda"] == result["nvml"] == [second, first]
    assert result["pci"] == ["0000:3b:00.0", "0000:3c:00.0"]
    assert result["versions"] == {"driver": "570.124.06", "cuda": "12.8", "nvml": "12.570.124.06"}
    assert count(result, expected=2)[0].outcome is Outcome.PASS


@pytest.mark.parametrize("expected", [None, 2])
def test_a_withheld_gpu_is_missed_and_blamed_on_the_hardware(driver, expected):
    judgement, broken = count(planted(COUNT, listed(driver)), expected)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.HARDWARE)
    assert list(broken) == ["devices"]


def test_the_last_gpu_of_a_node_is_missed_too(driver, tmp_path):
    one = tmp_path / "one"
    put_gpu(one, "0000:3b:00.0")
    result = driver.answer(DEVICES, args=AUTO, host_root=one, NVML=GPUS[0], CUDA=GPUS[0])
    assert count(result)[0].outcome is Outcome.PASS
    judgement, _ = count(planted(COUNT, result))
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.HARDWARE)


def test_fewer_gpus_than_expected_are_a_fault_of_the_hardware(driver):
    judgement, broken = count(listed(driver, NVML=GPUS[0], CUDA=GPUS[0]), expected=2)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.HARDWARE)
    assert "0000:3c:00.0" in broken["devices"].detail


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ({"NVML": GPUS[0], "CUDA": GPUS[0]}, None),  # the other may be another container's
        ({"NVML": "", "CUDA": ""}, 2),
        ({"NVML": GPUS[0], "CUDA": GPUS[0], "NVIDIA_VISIBLE_DEVICES": GPUS[0]}, 2),
        ({"CUDA": GPUS[0], "FAIL": "nvmlDeviceGetHandleByIndex_v2@1=4"}, 2),
    ],
    ids=["nothing expected", "none given", "one given", "one forbidden"],
)
def test_a_gpu_that_was_not_given_to_the_run_is_no_fault_of_the_hardware(driver, plan, expected):
    judgement, broken = count(listed(driver, **plan), expected)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert "devices" in broken


def test_more_gpus_than_expected_are_a_fault_of_the_configuration(driver):
    judgement, broken = count(listed(driver), expected=1)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.CONFIG)
    assert list(broken) == ["surplus"]


@pytest.mark.parametrize(
    ("one", "plan"), [("nvml", {"CUDA": GPUS[0]}), ("cuda", {"NVML": GPUS[0]})]
)
def test_a_gpu_that_only_one_of_nvml_and_cuda_lists_is_named(driver, one, plan):
    result = listed(driver, **plan)
    assert [d["id"] for d in result["devices"]] == list(GPUS)  # it must not go unjudged
    judgement, broken = count(result)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert list(broken) == [f"only_{one}"]
    assert GPUS[1] in broken[f"only_{one}"].detail
    assert GPUS[0] not in broken[f"only_{one}"].detail


def test_cuda_that_does_not_start_leaves_every_gpu_to_nvml_alone_and_says_why(driver):
    judgement, broken = count(listed(driver, FAIL="cuInit=802"))
    assert judgement.outcome is Outcome.FAIL
    assert "fabric manager" in broken["only_nvml"].detail


def test_mig_is_named_unless_the_spec_allows_it(driver):
    result = listed(driver, MIG="1")
    judgement, broken = count(result)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert GPUS[1] in broken["mig"].detail
    assert judged(COUNT, result, inventory.DeviceLimits(mig=2))[0].outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("call", "uuid"),
    [("nvmlDeviceGetHandleByIndex_v2@1", None), ("nvmlDeviceGetMemoryInfo@1", GPUS[1])],
)
def test_a_lost_gpu_is_a_fault_of_the_hardware_wherever_it_falls_silent(driver, call, uuid):
    result = listed(driver, FAIL=f"{call}=15")
    assert [u["uuid"] for u in result["unanswered"]] == [uuid]
    judgement, broken = count(result, expected=2)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.HARDWARE)
    assert "the GPU is lost" in broken["lost"].detail


def test_a_gpu_off_the_bus_is_seen_without_the_driver(driver, tmp_path):
    root = tmp_path / "fallen"
    put_gpu(root, "0000:3b:00.0")
    put_gpu(root, "0000:3c:00.0", head=b"\xff\xff\xff\xff")
    judgement, broken = count(driver.answer(DEVICES, args=AUTO, host_root=root, **BOTH), expected=2)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.HARDWARE)
    assert "0000:3c:00.0" in broken["off_bus"].detail


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (4, "no permission"),
        (9, "kernel module is not loaded"),
        (10, "gave up waiting"),
        (18, "differ in version"),
        (999, "internal error"),
        (77, "error 77, unknown"),
    ],
)
def test_a_driver_that_does_not_answer_leaves_the_node_unjudged_and_says_why(driver, code, says):
    result = listed(driver, FAIL=f"nvmlInitWithFlags={code} cuInit=100")
    assert result["answered"] is False
    assert result["nvml"] is None
    assert result["devices"] == []
    judgement, _ = count(result, expected=2)
    assert judgement.outcome is Outcome.ERROR
    assert says in judgement.summary
    assert "2 NVIDIA controllers on the PCI bus" in judgement.summary


def test_an_unsupported_reading_is_absent_and_never_zero(driver):
    result = listed(driver, FAIL="nvmlDeviceGetSerial=3 nvmlDeviceGetMemoryInfo=3")
    facts = result["devices"][0]["facts"]
    assert (facts["serial"], facts["memory_bytes"]) == (None, None)
    assert result["unanswered"] == []


def test_a_gpu_that_times_out_is_named_and_blames_nobody_alone(driver):
    judgement, broken = count(listed(driver, FAIL="nvmlDeviceGetMigMode@1=10"))
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert GPUS[1] in broken["refusing"].detail


def test_a_driver_that_hangs_is_ended_by_the_deadline_and_the_last_step_says_where(driver, heard):
    reply = driver.run(DEVICES, args=AUTO, deadline_s=2, HANG="nvmlInitWithFlags", **BOTH)
    assert isinstance(reply, Lost)
    assert reply.how is Loss.DEADLINE
    assert heard[-1][1:] == ("progress", {"step": "asking NVML: nvmlInitWithFlags"})


def test_no_card_and_a_card_without_a_driver_are_told_apart(pool, context, bus, tmp_path):
    bare = tmp_path / "bare"
    (bare / "sys/bus/pci/devices").mkdir(parents=True)
    nothing = Driver(tmp_path, bare, pool, context)
    says = nothing.answer(DEVICES, args=AUTO)["says"]
    assert says.startswith("no GPU: no NVIDIA controller on the PCI bus")
    assert "--device cpu" in says
    says = nothing.answer(DEVICES, args=AUTO, host_root=bus)["says"]
    assert says.startswith("2 NVIDIA controllers on the PCI bus")
    assert "install the NVIDIA driver" in says
    assert "--device cpu" not in says


def test_another_process_on_the_gpu_is_found_and_our_own_are_not(driver, pool):
    result = driver.answer(ON_GPU, device=GPUS[0], host_root="/", **BOTH, PIDS="1")
    assert result["others"] == [{"pid": 1, "kind": "compute", "name": result["others"][0]["name"]}]
    judgement, broken = judged(ALONE, result)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert broken["others"].detail.startswith("on this GPU: 1 (")

    pool.add("sibling")
    pool.run({"sibling": driver.call_of("nodeproof.probes.pci:controllers")}, deadline_s=20)
    ours = str(pool.pid("sibling"))
    result = driver.answer(ON_GPU, device=GPUS[0], host_root="/", **BOTH, PIDS=ours)
    assert [row["pid"] for row in result["listed"]] == [int(ours)]
    assert judged(ALONE, result)[0].outcome is Outcome.PASS
    assert judged(ALONE, planted(ALONE, result))[0].outcome is Outcome.FAIL


def test_processes_that_cannot_be_listed_are_not_an_idle_gpu(driver):
    fail = "nvmlDeviceGetComputeRunningProcesses_v3=3"
    reply = driver.run(ON_GPU, device=GPUS[0], host_root="/", **BOTH, FAIL=fail)
    assert isinstance(reply, Raised)
    assert GPUS[0] in reply.message


def test_a_library_that_does_not_answer_is_named(driver):
    result = driver.answer(
        "nodeproof.probes.software:versions", args={"device": "cuda"}, FAIL="nvmlInitWithFlags=18"
    )
    judgement, broken = judged(VERSIONS, result)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert (
        "driver: NvmlError: the driver's library and its kernel module differ"
        in broken["answering"].detail
    )


def test_a_driver_older_than_the_cuda_of_torch_is_a_fault_of_the_environment(driver):
    result = driver.answer("nodeproof.probes.software:versions", args={"device": "cpu"})
    assert judged(VERSIONS, result)[0].outcome is Outcome.PASS
    result["versions"] |= {"driver_cuda": "12.8", "torch_cuda": "13.0"}
    judgement, broken = judged(VERSIONS, result)
    assert (judgement.outcome, list(broken)) == (Outcome.FAIL, ["driver_cuda"])
