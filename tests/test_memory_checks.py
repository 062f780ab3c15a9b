"""The checks of memory, whole: planted faults, faults of the memory's own, and dead comparisons."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_detectors import PACKAGE, caught, run_with

from nodeproof.acceptance import test_memory as memory
from nodeproof.checks import Device, DeviceKind, spec_of
from nodeproof.kernels.march import march
from nodeproof.kernels.neighbours import neighbours
from nodeproof.kernels.retention import hold
from nodeproof.model import Measurement
from nodeproof.worker import Context

CPU = Device(kind=DeviceKind.CPU, id="cpu0", label="cpu0")
CHECKS = {
    "march": (march, memory.test_march),
    "neighbours": (neighbours, memory.test_neighbours),
    "hold": (hold, memory.test_hold),
}


def worked(work, given, listen=None, **args):
    send = listen or (lambda _kind, _what: None)
    made = Context(**{**given, "host_root": Path("/"), "send": send})
    return work(made, **{"cpu_mib": 2.0, "gpu_share": 0.9, **args})


def broken(function, result):
    """The measurements that are out of bounds."""
    seen = []

    def measure(name, value, **bounds):
        seen.append(Measurement(name=name, value=float(value), **bounds))

    function(device=CPU, result=result, measure=measure)
    return [m.name for m in seen if not m.held]


@pytest.mark.parametrize("name", CHECKS)
def test_sound_memory_passes(context, name):
    work, function = CHECKS[name]
    result = worked(work, context())
    assert (result["wrong"], result["found"], result["planted"]) == (0, [], [])
    assert result["compared"] * 8 >= 2 * result["bytes"]
    assert 0 < result["share"] < 1
    assert 0 < result["share_of_total"] < 1
    assert broken(function, result) == []


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", CHECKS)
def test_what_is_planted_is_what_is_found_elsewhere_on_each_device(context, name, seed):
    work, function = CHECKS[name]
    places = []
    for device in ("cpu0", "cpu1"):
        result = worked(work, context(device_id=device, seed=seed), plant="flip")
        assert result["found"] == result["planted"]
        planted = [fault["offset"] for fault in result["planted"] if "offset" in fault]
        assert result["wrong"] == len(planted) >= 2
        spoilt = ["damaged pattern words"] if name == "hold" else []
        assert broken(function, result) == ["wrong words", *spoilt]
        places.append(planted)
    assert places[0] != places[1]


@pytest.mark.parametrize("name", CHECKS)
def test_the_least_load_is_the_asked_for_seconds(context, name):
    assert worked(CHECKS[name][0], context(), seconds=0.3)["loaded_s"] >= 0.3


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("args", [{"plant": "fire"}, {"cpu_mib": 0.0}, {"cpu_mib": 1e9}])
def test_what_cannot_be_meant_is_refused(context, name, args):
    with pytest.raises(ValueError, match=r"fire|MiB"):
        worked(CHECKS[name][0], context(), **args)


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("mib", [0.001, (1 << 20) - 1.0])
def test_memory_that_cannot_be_had_is_refused_with_a_sentence(context, name, mib):
    with pytest.raises(RuntimeError, match=r"cpu0: .* MiB to test could not be had"):
        worked(CHECKS[name][0], context(), cpu_mib=mib)


@pytest.mark.parametrize("value", [0, 1])
def test_a_bit_that_fades_while_memory_is_left_alone_is_found_whatever_it_fades_to(context, value):
    start = []

    def fading(kind, what):
        if kind == "event":
            start.append(int(what["address"], 16) + what["bytes"] // 2)
        elif str(what["phase"]).startswith("holding"):
            cell = ctypes.c_uint64.from_address(start[0])
            cell.value = cell.value | 1 << 44 if value else cell.value & ~(1 << 44)

    result = worked(hold, context(), fading, seconds=1.4)
    assert [f["bits"] for f in result["found"]] == [[44]]  # in one of the two states it was there
    assert result["wrong"] == 1
    assert broken(memory.test_hold, result) == ["wrong words"]


def test_a_hold_shows_that_it_is_alive(context):
    said = []
    worked(hold, context(), lambda kind, what: said.append((kind, what)), seconds=2.2)
    phases = [what["phase"] for kind, what in said if kind == "progress"]
    assert {"holding as written", "holding inverted"} <= set(phases)


@pytest.mark.parametrize("name", CHECKS)
def test_a_device_with_faults_of_its_own_still_reports_the_planted_ones(context, name):
    """So many that none of the planted ones would be among the first."""

    def listen(kind, what):
        if kind == "event" and name == "hold":
            start = int(what["address"], 16)
            for word in range(what["bytes"] // 8 - 5000, what["bytes"] // 8):
                ctypes.c_uint64.from_address(start + 8 * word).value ^= 1

    result = worked(CHECKS[name][0], context(), listen, plant="flip")
    own = [fault for fault in result["planted"] if "offset" in fault]
    assert [f for f in result["planted"] if f not in own] == [
        f for f in result["found"] if "pattern" in f
    ]
    places = [(f["offset"], f["phase"], *f["bits"]) for f in result["found"] if "offset" in f]
    for fault in own:
        assert (fault["offset"], fault["phase"], *fault["bits"]) in places
    if name == "hold":
        assert result["wrong"] == 5000 + len(own)


# What breaks: file, what stands there, what then stands there, check that must notice.
DEAD = [
    ("kernels/mismatches.py", "if bool(differ):", "if False:", "march"),
    ("kernels/mismatches.py", "if not bool(torch.stack(", "if True or not bool(torch.stack(", "neighbours"),
    ("kernels/mismatches.py", "(block.cells != expected)", "(block.cells != block.cells)", "march"),
    ("kernels/march.py", "for block in reversed(blocks) if element.downwards else blocks:", "for block in blocks[:1]:", "march"),
    ("kernels/neighbours.py", "self.settle(compared, ", "self.settle(compared[:1], ", "neighbours"),
    ("kernels/mismatches.py", "(block.cells != expected)", "(block.cells != block.cells)", "neighbours"),
    ("kernels/mismatches.py", "for start in range(0, rows, step):", "for start in range(0, 0, step):", "neighbours"),
    ("kernels/cells.py", "if not same(expected, block.cells):", "if False:", "hold"),
    ("kernels/cells.py", "_memcmp(a.data_ptr(), b.data_ptr(), size)", "_memcmp(a.data_ptr(), a.data_ptr(), size)", "hold"),
    ("kernels/cells.py", "_memcmp(a.data_ptr(), b.data_ptr(), size)", "_memcmp(a.data_ptr(), b.data_ptr(), 1 << 16)", "pattern"),
    ("kernels/mismatches.py", "(expected != cells)", "(cells != cells)", "march"),
    ("kernels/mismatches.py", "self.wrong += int(places.shape[0])", "pass", "neighbours"),
    ("acceptance/test_memory.py", 'result["wrong"], at_most=0', 'result["wrong"]', "march"),
    ("acceptance/test_memory.py", 'result["rounds"], at_least=1', 'result["rounds"]', "march"),
    ("kernels/cells.py", "int(torch.count_nonzero(now.cpu() != was))", "0", "hold"),
    ("acceptance/test_memory.py", "        at_least=_TURNS,\n", "", "neighbours"),
    ("acceptance/test_memory.py", 'result["programme"], at_least=_MARCHES', 'result["programme"]', "march"),
    ("acceptance/test_memory.py", 'result["held"], at_least=2', 'result["held"]', "hold"),
    ("acceptance/test_memory.py", 'result["compared"], unit="words", at_least=words', 'result["compared"], unit="words"', "hold"),
    ("acceptance/test_memory.py", 'result["bytes"], unit="bytes", at_least=1', 'result["bytes"], unit="bytes"', "neighbours"),
]  # fmt: skip


def selftested(monkeypatch, profile="deep"):
    """Only the planted runs: a broken detector shows there, and a load would take its minute."""
    monkeypatch.setenv("PYTEST_ADDOPTS", f"--nodeproof-profile={profile} --nodeproof-selftest-only")


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "old", "new", "check"),
    [pytest.param(*row, id=f"{row[3]}: {row[1][:40]}") for row in DEAD],
)
def test_a_comparison_that_is_broken_is_a_self_test_that_is_missed(
    tmp_path, monkeypatch, file, old, new, check
):
    selftested(monkeypatch)
    assert False in caught(run_with(tmp_path, file, old, new, check), f"memory.{check}")


def test_the_same_copy_unbroken_catches_every_planted_fault(tmp_path, monkeypatch):
    selftested(monkeypatch)
    same = 'result["wrong"], at_most=0'
    told = run_with(
        tmp_path, "acceptance/test_memory.py", same, same, "march or test_neighbours or test_hold"
    )
    for check in CHECKS:
        assert caught(told, f"memory.{check}") == {True}


def test_nothing_of_it_is_asked_under_the_quick_profile():
    for name, profiles in (("march", 3), ("neighbours", 3), ("hold", 2)):
        spec = spec_of(CHECKS[name][1])
        assert "quick" not in spec.profiles
        assert len(spec.profiles) == profiles


# Runs a check's work clean and with each fault that its worker plants, and its own judgement.
JUDGED = """
import importlib, inspect, json, sys
from pathlib import Path
from nodeproof.checks import Device, DeviceKind, spec_of
from nodeproof.model import Measurement
from nodeproof.worker import Context

module, name = sys.argv[1:]
check = getattr(importlib.import_module(f"nodeproof.acceptance.{module}"), name)
spec = spec_of(check)
file, function = spec.work.call.split(":")
work = getattr(importlib.import_module(file), function)
small = {"cpu_share": 0.002, "cpu_mib": 2.0, "gpu_share": 0.9}
args = {**spec.work.args, **{limit: small[limit] for limit in spec.work.from_limits}}
context = Context(
    device_kind="cpu", device_id="cpu0", device_label="cpu0", torch_device="cpu", threads=1,
    peers=1, profile="quick", seed=7, host_root=Path("/"),
)

def broken(result):
    out = []
    def measure(name, value, **bounds):
        if not Measurement(name=name, value=float(value), **bounds).held:
            out.append(name)
    device = Device(kind=DeviceKind.CPU, id="cpu0", label="cpu0")
    given = {"device": device, "result": result, "peers": [], "measure": measure, "limits": spec.limits()}
    check(**{name: given[name] for name in inspect.signature(check).parameters})
    return out

clean, missed = broken(work(context, **args)), []
for plant in spec.plants:
    if plant.args:
        result = work(context, **args, **plant.args)
        seen = result["planted"] and result["planted"] == result["found"]
        if not seen or set(plant.breaks) - set(broken(result)):
            missed.append(dict(plant.args))
print(json.dumps([clean, missed]))
"""
_LOADS, _PROVE = (
    "for loaded in loads:\n            lanes",
    "self._prover.prove(loaded, flip=flip, spoil=False)",
)
# Work that is left out, or done where a fault is planted only; and a check that must notice.
LEFT_OUT = [
    ("kernels/gemm.py", _LOADS, _LOADS.replace("loads:", "loads[:1]:"), "arithmetic", "fp32"),
    ("kernels/gemm.py", _LOADS, _LOADS.replace("loads:", "loads[1:2]:"), "arithmetic", "int8"),
    ("kernels/product.py", "self.elements += seen.numel()", "self.elements += seen.numel() * 1000", "arithmetic", "fp32"),
    ("kernels/march.py", "for block in reversed(blocks) if element.downwards else blocks:", "for block in blocks:", "memory", "march"),
    ("kernels/march.py", "for d in range(DIGITS))", "for d in range(1))", "memory", "march"),
    ("kernels/march.py", "for d in range(DIGITS))", "for d in [0] * DIGITS)", "memory", "march"),
    ("kernels/march.py", "*((0, stripe) for stripe in STRIPES)", "", "memory", "march"),
    ("kernels/neighbours.py", "(rounds + 1) * TURNS)", "rounds * TURNS + (TURNS if plant else 1))", "memory", "neighbours"),
    ("kernels/neighbours.py", "_WRITES = 2", "_WRITES = 1", "memory", "neighbours"),
    ("kernels/memory.py", "meter.follow(phase, steps, ", "meter.follow(phase, steps if plant or not last else iter(()), ", "memory", "pattern"),
    ("kernels/memory.py", "meter.follow(phase, steps, ", "meter.follow(phase, steps if plant or not passes else iter(()), ", "memory", "pattern"),
    ("kernels/cells.py", "int(torch.count_nonzero(now.cpu() != was))", "0", "memory", "pattern"),
    ("kernels/cells.py", "int(torch.count_nonzero(now.cpu() != was))", "int(torch.count_nonzero(now.cpu() != was)) if now is self.base else 0", "burnin", "together"),
    ("kernels/retention.py", "        _leave(meter, phase, seconds / 2, sweep.bytes)\n", "", "memory", "hold"),
    ("kernels/full_load.py", "self._asked % len(self._loads)", "0", "burnin", "together"),
    ("kernels/full_load.py", _PROVE, f"{_PROVE} if flip else None", "burnin", "exact"),
    ("kernels/full_load.py", _PROVE, f"{_PROVE} if flip or self._asked < 2 else None", "burnin", "together"),
    ("kernels/together.py", "in sweep.verify(phase, inverted=odd, backwards=odd):", "in sweep.verify(phase, inverted=odd, backwards=odd) if plant or not passes else ():", "burnin", "together"),
]  # fmt: skip


def judged(folder, module, check):
    done = subprocess.run(
        [sys.executable, "-P", "-c", JUDGED, f"test_{module}", f"test_{check}"],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def copied(folder, file, old, new):
    copy = folder / "nodeproof"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / file).read_text()
    assert text.count(old) == 1, f"{file} has not one {old!r}"
    (copy / file).write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("file", "old", "new", "module", "check"),
    [
        pytest.param(*row, id=f"{n} {row[4]}", marks=[pytest.mark.long] if n else [])
        for n, row in enumerate(LEFT_OUT)
    ],
)
def test_work_that_is_left_out_is_no_pass(tmp_path, file, old, new, module, check):
    copied(tmp_path, file, old, new)
    clean, missed = judged(tmp_path, module, check)
    assert clean or missed


@pytest.mark.parametrize(
    ("module", "check"),
    [
        pytest.param(*pair, marks=[pytest.mark.long] if n else [])
        for n, pair in enumerate(sorted({row[3:] for row in LEFT_OUT}))
    ],
)
def test_the_same_work_whole_passes_and_finds_what_is_planted(tmp_path, module, check):
    assert judged(tmp_path, module, check) == [[], []]
