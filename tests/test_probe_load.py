"""Who else uses the machine, and what the devices show while the work runs."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from nodeproof.acceptance import test_inventory as inventory
from nodeproof.child import Answer, Call, Raised
from nodeproof.model import Outcome
from nodeproof.probes.counters import NAMES
from nodeproof.probes.processes import shares, snapshot
from nodeproof.probes.telemetry import Machine
from nodeproof.probes.tree import Tree
from tests.standin.build import GPUS, Driver, build, judged, planted

ON_CPU = "nodeproof.probes.processes:on_cpu"
WATCH = "nodeproof.probes.telemetry:watch"
TICKS = "cpu  {user} 0 0 {idle} 0 0 0 0 0 0\n"


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    build("nvml.c", folder / "libnvidia-ml.so.1")
    return folder


def put(root, name, text):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def moment(root, *, user, idle, ours, other):
    """A machine where process 20, a child of 10, is this run's, and 30 somebody else's."""
    put(root, "proc/stat", TICKS.format(user=user, idle=idle))
    for pid, parent, ticks in ((10, 1, 0), (20, 10, ours), (21, 20, ours), (30, 1, other)):
        # A name may hold what looks like the end of it.
        put(root, f"proc/{pid}/stat", f"{pid} (a) R 30) S {parent} {'0 ' * 9}{ticks} 0 0 0 20 0\n")
    if not (root / "proc/self").is_symlink():
        (root / "proc/self").symlink_to("20")
    return snapshot(Tree(root=root))


def test_time_of_our_own_processes_is_not_counted_as_somebody_elses(tmp_path):
    before = moment(tmp_path, user=1000, idle=1000, ours=100, other=100)
    after = moment(tmp_path, user=1080, idle=1120, ours=120, other=140)
    assert shares(before, after) == {"others_share": 40 / 200, "ours_share": 40 / 200}


def test_a_proc_that_does_not_count_says_nothing_about_load(tmp_path, pool, context):
    moment(tmp_path, user=1000, idle=1000, ours=100, other=100)
    pool.add("w")
    work = Call(call=ON_CPU, args={"window_s": 0.05}, context=context(host_root=str(tmp_path)))
    reply = pool.run({"w": work}, deadline_s=20)["w"]
    assert isinstance(reply, Raised)
    assert "did not count any time" in reply.message


def test_a_process_of_somebody_else_is_load(pool, context):
    pool.add("w")
    burn = "import time; e = time.time() + 4\nwhile time.time() < e: pass"
    # Left by its parent at once, it belongs to nobody of this run.
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {burn!r}])"
    subprocess.run([sys.executable, "-c", code], check=True)
    work = Call(call=ON_CPU, args={"window_s": 1.0}, context=context())
    reply = pool.run({"w": work}, deadline_s=20)["w"]
    assert isinstance(reply, Answer)
    result = dict(reply.result)
    assert result["others_share"] > 0
    strict = inventory.LoadLimits(share=0.0)
    assert judged(inventory.test_foreign_load, result, strict)[0].outcome is Outcome.FAIL
    altered = planted(inventory.test_foreign_load, result)
    assert judged(inventory.test_foreign_load, altered)[0].outcome is Outcome.FAIL


def watched(pool, heard, name, call, *, samples):
    """Samples of work that never ends, until there are enough of them."""
    assert pool.beside(name, call) is None
    ends = time.monotonic() + 30
    while time.monotonic() < ends:
        pool.poll()
        got = [content for worker, kind, content in heard if (worker, kind) == (name, "telemetry")]
        if len(got) >= samples:
            return got
        time.sleep(0.02)
    pytest.fail(f"no {samples} samples: {heard}")
    return []


def test_a_gpu_is_sampled_in_units_and_what_it_does_not_support_is_none(
    libraries, pool, context, heard, tmp_path
):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("flags : fpu\n")
    driver = Driver(libraries, tmp_path, pool, context)
    devices = [{"kind": "gpu", "id": uuid} for uuid in GPUS]
    environment = {
        "LD_LIBRARY_PATH": str(libraries),
        "STANDIN_NVML": " ".join(GPUS),
        "STANDIN_FAIL": "nvmlDeviceGetPowerUsage@1=3 nvmlDeviceGetTemperature@1=15",
    }
    pool.add("telemetry", environment)
    call = driver.call_of(WATCH, args={"devices": devices, "hz": 20})
    first, second, third, fourth = watched(pool, heard, "telemetry", call, samples=4)[:4]
    assert (
        first
        == third
        == {
            "device": GPUS[0],
            "power_w": pytest.approx(123.456),
            "temperature_c": 41,
            "sm_mhz": 1980,
            "memory_mhz": 2619,
            "throttle": 0x4,
            "utilisation": 0.5,
            "pcie_width": 16,
            "pcie_width_able": 16,
            "pcie_generation": 5,
            "pcie_generation_able": 5,
            "counters": dict.fromkeys(NAMES, 0),
            "virtual": False,
        }
    )
    assert second == fourth
    assert (second["power_w"], second["temperature_c"], second["sm_mhz"]) == (None, None, 1980)
    assert "the GPU is lost" in second["refusal"]
    events = [content for _, kind, content in heard if kind == "event"]
    assert [e["device"] for e in events] == [GPUS[1]]  # once, not with every sample


def test_a_cpu_device_shows_the_machine(pool, context, heard):
    pool.add("telemetry")
    devices = [{"kind": "cpu", "id": "cpu0"}, {"kind": "cpu", "id": "cpu1"}]
    call = Call(call=WATCH, args={"devices": devices, "hz": 10}, context=context())
    samples = watched(pool, heard, "telemetry", call, samples=6)
    assert [s["device"] for s in samples[:4]] == ["cpu0", "cpu1", "cpu0", "cpu1"]
    assert all(s["memory_available_bytes"] > 0 for s in samples)
    assert samples[0]["utilisation"] is None  # it takes two readings
    assert 0 <= samples[5]["utilisation"] <= 1


def test_the_hottest_sensor_of_a_processor_is_its_temperature(tmp_path):
    put(tmp_path, "sys/class/hwmon/hwmon0/name", "coretemp\n")
    put(tmp_path, "sys/class/hwmon/hwmon0/temp1_input", "51000\n")
    put(tmp_path, "sys/class/hwmon/hwmon0/temp2_input", "64500\n")
    put(tmp_path, "sys/class/hwmon/hwmon1/name", "nvme\n")
    put(tmp_path, "sys/class/hwmon/hwmon1/temp1_input", "99000\n")
    put(tmp_path, "proc/stat", TICKS.format(user=1, idle=1))
    machine = Machine(Tree(root=tmp_path))
    machine.sample()
    put(tmp_path, "proc/stat", TICKS.format(user=4, idle=2))
    sample = machine.sample()
    assert sample == {
        "utilisation": 0.75,
        "mhz": None,
        "temperature_c": 64.5,
        "memory_available_bytes": None,
    }
