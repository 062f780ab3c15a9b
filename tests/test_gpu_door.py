"""`nodeproof run` on a machine whose driver libraries are stand-ins: GPUs that torch cannot use."""

from __future__ import annotations

import json
import threading
import time

import pytest
from nodeproof_command import nodeproof
from rehearsal import FIVE, leftovers

from nodeproof.manifest import shipped
from tests.standin.build import GPUS, build, put_gpu

HOPPER = (9, 0)  # the compute capability that the stand-in tells


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    build("nvml.c", folder / "libnvidia-ml.so.1")
    build("cuda.c", folder / "libcuda.so.1")
    build("klogctl.c", folder / "klogctl.so")
    return folder


@pytest.fixture
def node(tmp_path):
    """A machine with two GPUs on its bus; the rest of it is this one."""
    root = tmp_path / "root"
    put_gpu(root, "0000:3b:00.0")
    put_gpu(root, "0000:3c:00.0")
    (root / "proc").symlink_to("/proc")
    return tmp_path


class Run:
    """One run to its end, and what it left behind."""

    def __init__(self, node, libraries, *words, nvml=GPUS, cuda=GPUS, preload="", **plan):
        told = {f"STANDIN_{k}": v for k, v in plan.items()}
        if preload:
            told["LD_PRELOAD"] = str(libraries / preload)
        done = nodeproof(
            *("run", "--output=out", "--host-root=root", "--deadline=60", *words),
            cwd=node,
            LD_LIBRARY_PATH=str(libraries),
            STANDIN_NVML=" ".join(nvml),
            STANDIN_CUDA=" ".join(cuda),
            **told,
        )
        self.status, self.text, self.errors = done.returncode, done.stdout, done.stderr
        self.output = node / "out"
        self.told = json.loads((self.output / "verdict.json").read_text())
        lines = (self.output / "results.jsonl").read_text().splitlines()
        self.records = [json.loads(line) for line in lines]
        self.findings = {
            (r["check"], r["device"]["id"]): r for r in self.records if r["type"] == "finding"
        }

    def count(self):
        """The finding on the number of devices."""
        return next(f for (check, _), f in self.findings.items() if check == "node.devices.count")

    def complete(self):
        assert all((self.output / name).stat().st_size > 0 for name in FIVE)
        assert self.records[-1]["type"] == "end"
        assert leftovers(self.output) == []
        assert "Traceback" not in self.text + self.errors


@pytest.fixture(scope="module")
def two(libraries, tmp_path_factory):
    """The driver and CUDA list two GPUs, and torch was built without CUDA."""
    folder = tmp_path_factory.mktemp("two")
    put_gpu(folder / "root", "0000:3b:00.0")
    put_gpu(folder / "root", "0000:3c:00.0")
    (folder / "root/proc").symlink_to("/proc")
    return Run(folder, libraries, "--device=auto", "--expect-gpus=2", preload="klogctl.so")


def test_gpus_that_torch_cannot_use_are_unjudged_and_not_condemned(two):
    assert two.status == 11, two.text
    two.complete()
    assert two.told["verdict"] == "undecided"
    assert two.told["failed"] == []
    assert two.told["rehearsal"] is False
    assert "REHEARSAL" not in two.text


def test_every_check_of_a_gpu_has_a_finding_on_each_by_uuid(two):
    of_gpus = [e for e in shipped().entries.values() if "gpu" in e.kinds and "quick" in e.profiles]
    wanted = {e.id for e in of_gpus if (e.capability or (0, 0)) <= HOPPER}
    newer = {e.id for e in of_gpus} - wanted
    found = {uuid: {c for c, device in two.findings if device == uuid} for uuid in GPUS}
    assert found == dict.fromkeys(GPUS, wanted)
    assert two.count()["outcome"] == "pass"
    assert newer == {"device.arithmetic.fp4"}  # the stand-in says 9.0, and is let off that
    assert two.told["verdict"] == "undecided"


def test_it_is_said_that_torch_has_no_cuda_and_what_to_do(two):
    for uuid in GPUS:
        finding = two.findings["device.arithmetic.fp32", uuid]
        assert finding["outcome"] == "error"
        assert finding["cause"] in {"environment", "config"}
        assert "CUDA" in finding["summary"]
    versions = next(f for (c, _), f in two.findings.items() if c == "node.software.versions")
    assert versions["outcome"] == "fail"
    assert "built without CUDA: install a build with it" in versions["summary"]
    assert all(uuid in two.text for uuid in GPUS)


def test_a_kernel_log_that_may_not_be_read_is_no_log_without_xids(two):
    for uuid in GPUS:
        finding = two.findings["device.burnin.xid", uuid]
        assert finding["outcome"] == "error"
        assert "when the run began" in finding["summary"]


@pytest.mark.parametrize(
    ("nvml", "cuda", "only"),
    [pytest.param(2, 1, "nvml", marks=pytest.mark.long), (1, 2, "cuda")],
)
def test_a_gpu_that_only_one_of_two_lists_is_named_and_not_lost(node, libraries, nvml, cuda, only):
    run = Run(node, libraries, nvml=GPUS[:nvml], cuda=GPUS[:cuda])
    assert run.status == 11, run.text
    run.complete()
    count = run.count()
    assert (count["outcome"], count["cause"]) == ("fail", "environment")
    assert f"only_{only} 1" in count["summary"]
    assert GPUS[1] in count["summary"]
    assert GPUS[1] in {d["id"] for d in run.told["devices"]}


@pytest.mark.long
def test_fewer_gpus_than_expected_are_a_reject_since_the_driver_answered(node, libraries):
    put_gpu(node / "root", "0000:3d:00.0")
    run = Run(node, libraries, "--expect-gpus=3")
    run.complete()
    assert run.status == 10, run.text
    assert [r["check"] for r in run.told["failed"]] == ["node.devices.count"]
    assert "devices 2 (wants at least 3)" in run.text
    assert "0000:3d:00.0" in run.text


def test_fewer_gpus_than_expected_are_undecided_where_the_driver_does_not_answer(node, libraries):
    run = Run(node, libraries, "--expect-gpus=3", cuda=(), FAIL="nvmlInitWithFlags=999")
    run.complete()
    assert run.status == 11, run.text
    assert run.told["failed"] == []
    assert run.count()["outcome"] == "error"
    assert "internal error" in run.count()["summary"]
    assert "2 NVIDIA controllers on the PCI bus" in run.count()["summary"]


@pytest.mark.long
def test_more_gpus_than_expected_are_undecided(node, libraries):
    run = Run(node, libraries, "--expect-gpus=1")
    assert run.status == 11, run.text
    assert (run.count()["outcome"], run.count()["cause"]) == ("fail", "config")


@pytest.mark.long
def test_the_gpu_behind_a_driver_that_hangs_is_named_by_the_kernels_log(node, libraries):
    log = node / "log"
    log.write_text(
        "<3>[  100.000000] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    )
    plan = {"HANG": "nvmlInitWithFlags", "LOG": str(log)}
    run = Run(node, libraries, "--deadline=120", preload="klogctl.so", **plan)
    run.complete()
    assert run.count()["outcome"] == "error"
    assert "deadline" in run.count()["summary"]
    assert "GPU 0000:3b:00.0: the kernel's log has xid 79" in run.count()["summary"]
    assert run.status == 10, run.text
    assert {r["check"] for r in run.told["failed"]} == {"node.log.events"}


@pytest.mark.long
def test_a_driver_that_hangs_costs_the_run_its_devices_and_not_its_end(node, libraries):
    run = Run(node, libraries, "--deadline=30", HANG="nvmlInitWithFlags")
    run.complete()
    assert run.status == 11, run.text
    assert run.told["failed"] == []
    assert run.count()["outcome"] == "error"
    assert "deadline" in run.count()["summary"]
    assert "asking NVML" in run.text


def test_an_xid_and_an_error_counted_while_the_run_goes_on_condemn_the_gpu(node, libraries):
    """Both come once the checks have begun: what stood there before is no fault of this run."""
    counters, log = node / "counters", node / "log"
    counters.mkdir()
    (counters / "nvlink_replays").write_text("3")
    log.write_text("<3>[  100.000000] NVRM: Xid (PCI:0000:3b:00): 31, before the run\n")

    def meanwhile():
        results, ends = node / "out/results.jsonl", time.monotonic() + 60
        while time.monotonic() < ends:
            if results.exists() and "check.started" in results.read_text():
                break
            time.sleep(0.05)
        (counters / "nvlink_replays").write_text("4")
        with log.open("a") as more:
            more.write("<3>[  200.000000] NVRM: Xid (PCI:0000:3c:00): 94, contained\n")

    thread = threading.Thread(target=meanwhile)
    thread.start()
    run = Run(node, libraries, COUNTERS=str(counters), LOG=str(log), preload="klogctl.so")
    thread.join()
    assert run.status == 10, run.text
    run.complete()
    failed = {(r["check"], r["device"]) for r in run.told["failed"]}
    assert failed == {
        ("device.burnin.errors", GPUS[0]),
        ("device.burnin.errors", GPUS[1]),
        ("device.burnin.xid", GPUS[1]),
    }
    assert "first 94 at 200.000000: contained" in run.text
    assert run.findings["device.burnin.xid", GPUS[0]]["outcome"] == "pass"


@pytest.mark.long
def test_a_gpu_that_hangs_when_asked_is_undecided_too(node, libraries):
    run = Run(node, libraries, "--deadline=30", HANG="nvmlDeviceGetMemoryInfo@1")
    run.complete()
    assert run.status == 11, run.text
    assert run.told["failed"] == []
