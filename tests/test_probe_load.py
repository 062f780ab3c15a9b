"""Who else uses the machine, and what the devices show while the work runs."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import pynvml
import pytest

from nodeproof.acceptance import test_inventory as inventory
from nodeproof.child import Answer, Call, Raised
from nodeproof.model import Outcome
from nodeproof.probes import nvml, telemetry
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
    counted = {"counters": dict.fromkeys(NAMES, 0)}
    assert (
        first
        == {**third, **counted}
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
            "virtual": False,
            **counted,
        }
    )
    assert "counters" not in third  # they are read every fifth time
    assert second == {**fourth, **counted}
    assert (second["power_w"], second["temperature_c"], second["sm_mhz"]) == (None, None, 1980)
    assert "the GPU is lost" in second["refusal"]
    events = [content for _, kind, content in heard if kind == "event"]
    assert [e["device"] for e in events] == [GPUS[1]]  # once, not with every sample


class Watching(Exception):  # noqa: N818  the end of a watch that has none
    pass


def ticks(monkeypatch, *, takes, devices, seconds):
    """When each sample was sent in a watch whose GPUs take so long to answer, and what it had."""
    clock, sent = [0.0], []

    class Time:
        @staticmethod
        def monotonic():
            return clock[0]

        @staticmethod
        def sleep(pause):
            assert pause >= 0
            clock[0] += pause

    class Told:
        host_root = Path("/")

        def telemetry(self, *, device, **sample):
            if clock[0] > seconds:
                raise Watching
            sent.append((clock[0], device, sample))

    def answer(uuid, *, counting):
        clock[0] += takes
        return {"counters": {}} if counting else {"uuid": uuid}

    monkeypatch.setattr(telemetry, "time", Time)
    monkeypatch.setattr(telemetry, "gpu_sample", answer)
    monkeypatch.setattr(telemetry.nvml, "session", nullcontext)
    rows = [{"kind": "gpu", "id": f"GPU-{n}"} for n in range(devices)]
    with pytest.raises(Watching):
        telemetry.watch(Told(), devices=rows)
    return sent


@pytest.mark.parametrize(("takes", "hz"), [(0.01, 1.0), (0.12, 1.0), (0.13, 0.96), (0.2, 0.62)])
def test_gpus_that_answer_slowly_are_read_as_often_as_they_can_be(monkeypatch, takes, hz):
    sent = ticks(monkeypatch, takes=takes, devices=8, seconds=100)
    for number in range(8):
        moments = [at for at, device, _ in sent if device == f"GPU-{number}"]
        assert len(moments) / 100 == pytest.approx(hz, abs=0.02)


def test_counters_come_first_and_then_of_each_gpu_in_another_tick(monkeypatch):
    sent = ticks(monkeypatch, takes=0.01, devices=8, seconds=20)
    by_tick = [
        [bool(s.get("counters") is not None) for _, _, s in sent[n : n + 8]]
        for n in range(0, 160, 8)
    ]
    assert by_tick[0] == [True] * 8
    assert all(1 <= sum(tick) <= 2 for tick in by_tick[1:])
    for number in range(8):
        read = [n for n, tick in enumerate(by_tick) if tick[number]]
        assert all(later - earlier <= 5 for earlier, later in pairwise(read))


@pytest.mark.parametrize(("counting", "most"), [(False, 12), (True, 36)])
def test_a_sample_asks_for_the_gpu_once(monkeypatch, counting, most):
    asked = []

    def ask(call, *_arguments, about=""):
        asked.append((call, about))
        if call == "nvmlDeviceGetHandleByUUID":
            return object()
        raise nvml.NvmlError(pynvml.NVML_ERROR_NOT_SUPPORTED, call=call, about=about)

    monkeypatch.setattr(nvml, "ask", ask)
    sample = telemetry.gpu_sample("GPU-1", counting=counting)
    assert [call for call, _ in asked].count("nvmlDeviceGetHandleByUUID") == 1
    assert len(asked) <= most
    assert ("counters" in sample) is counting
    assert "refusal" not in sample


def test_a_gpu_that_is_gone_is_asked_for_once_and_has_no_readings(monkeypatch):
    asked = []

    def ask(call, *_arguments, about=""):
        asked.append(call)
        raise nvml.NvmlError(pynvml.NVML_ERROR_GPU_IS_LOST, call=call, about=about)

    monkeypatch.setattr(nvml, "ask", ask)
    sample = telemetry.gpu_sample("GPU-1")
    assert len(asked) == 1
    assert "the GPU is lost" in sample.pop("refusal")
    assert set(sample.values()) == {None}
    assert {"throttle", "power_w", "temperature_c", "sm_mhz"} <= set(sample)


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
