"""A run of these suites on a node made of files, with GPUs that a stand-in driver lists."""

from __future__ import annotations

import pytest
from bus_tree import at, count, hgx, put, put_gpu_under_port
from pytest_run import run_pytest

from tests.standin.build import GPUS, build

SUITES = [
    f"nodeproof.acceptance.test_{name}"
    for name in ("buses", "bus_errors", "services", "host_faults")
]
NARROW = "0000:3c:00.0"
SPEC = """\
name = "site"
["node.services.ready"]
wait_s = 0.2
services = "nvidia-fabricmanager"
["gpu.bus.link"]
speed_gts = 32.0
bar1_mib = 131072.0
["node.bus.errors"]
counting = 1
["node.gpudirect.ready"]
translated = 0
["host.disk.state"]
nvme = 1
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two GPUs, one on half its lanes; one bad memory module; no fabric manager; all else sound."""
    folder = tmp_path_factory.mktemp("run")
    root = hgx(folder / "node")
    for number, address in enumerate(("0000:3b:00.0", NARROW)):
        put_gpu_under_port(root, f"0000:3{number}:01.0", address)
        count(root, address)
    at(root, NARROW, "current_link_width", "8\n")
    put(root, "proc/2/comm", "kthreadd\n")
    put(root, "proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n")
    put(root, "proc/1/mountinfo", "27 1 259:1 / / rw - ext4 /dev/nvme0n1p1 rw\n")
    put(root, "sys/block/nvme0n1/size", "1\n")
    put(root, "sys/class/nvme/nvme0/state", "live\n")
    put(root, "sys/devices/system/edac/mc/mc0/ue_count", "1\n")
    put(root, "sys/devices/system/edac/mc/mc0/ce_count", "0\n")
    put(folder, "spec.toml", SPEC)
    build("nvml.c", folder / "libnvidia-ml.so.1")
    build("cuda.c", folder / "libcuda.so.1")
    return run_pytest(
        folder,
        *("-p", "no:cacheprovider", "--nodeproof-device=cuda", "--nodeproof-output=out"),
        *("--nodeproof-host-root=node", "--nodeproof-spec=spec.toml", "--pyargs", *SUITES),
        LD_LIBRARY_PATH=str(folder),
        STANDIN_NVML=" ".join(GPUS),
        STANDIN_CUDA=" ".join(GPUS),
    )


def test_each_fault_is_found_with_its_cause_and_nothing_else_is(run):
    ill = {
        (check, device): (f["outcome"], f["cause"])
        for (check, device), f in run.findings().items()
        if f["outcome"] != "pass"
    }
    node = next(device for check, device in ill if check == "node.bus.links")
    assert ill == {
        ("gpu.bus.link", "gpu1"): ("fail", "hardware"),
        ("node.bus.links", node): ("fail", "hardware"),
        ("host.memory.errors", node): ("fail", "hardware"),
        ("node.services.ready", node): ("fail", "environment"),
        ("node.services.needed", node): ("fail", "environment"),
    }
    found = run.findings()
    assert NARROW in found["gpu.bus.link", "gpu1"]["summary"]
    assert "nvidia-fabricmanager (absent)" in found["node.services.ready", node]["summary"]
    assert "NVSwitch" in found["node.services.needed", node]["summary"]


def test_every_planted_fault_is_caught_with_the_limits_of_the_spec(run):
    tests = run.selftests()
    missed = {key: test["summary"] for key, test in tests.items() if not test["caught"]}
    assert missed == {}
    assert len(tests) == 13  # eleven checks, one of them on two GPUs, and the verdict's own


def test_the_errors_of_the_bus_are_held_against_the_start_of_the_run(run):
    finding = next(f for (c, _), f in run.findings().items() if c == "node.bus.new_errors")
    assert finding["outcome"] == "pass"
    assert set(finding["evidence"]["before"]) == {"0000:3b:00.0", NARROW}


def test_the_wait_is_told_to_whoever_watches(run):
    events = [r for r in run.records if r["type"] == "event"]
    assert [e["text"] for e in events if e["name"] == "readiness.blocked"] == [
        "services nvidia-fabricmanager (absent)"
    ]
