"""The cache sweep in a real context: what is planted is found, and what is broken is noticed."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from test_detectors import caught, run_with

from nodeproof.acceptance import test_onchip as onchip
from nodeproof.checks import Device, DeviceKind, spec_of
from nodeproof.kernels import cache
from nodeproof.model import Measurement
from nodeproof.plugin.judging import judge
from nodeproof.worker import Context

CPU = Device(kind=DeviceKind.CPU, id="cpu0", label="cpu0")


@pytest.fixture
def here(context):
    told = context()
    return Context(**{**told, "host_root": Path("/")})


def judged(result, peers=(), device=CPU):
    taken = []

    def measure(name, value, **bounds):
        taken.append(Measurement(name=name, value=float(value), **bounds))

    onchip.test_cache_sweep(device=device, result=result, peers=list(peers), measure=measure)
    return judge(spec_of(onchip.test_cache_sweep), taken, None)


def test_a_sound_cache_gives_back_what_was_written(here):
    result = cache.sweep(here, seconds=0.2)
    assert (result["wrong"], result["found"], result["planted"]) == (0, [], [])
    assert result["host"] is None
    assert result["loaded_s"] >= 0.2
    assert result["verified_bytes"] == result["sweeps"] * result["cells_bytes"]
    assert result["verified_bytes"] == sum(result["values"].values())
    assert judged(result).outcome == "pass"


def test_sweeps_or_words_that_are_left_out_are_no_pass(here):
    result = cache.sweep(here)
    for value in result["values"]:
        lacks = {**result, "values": {**result["values"], value: result["cells_bytes"]}}
        assert judged(lacks).broken == {"sweeps"}
    assert judged({**result, "rounds": result["rounds"] + 1}).broken == {"sweeps"}
    assert judged({**result, "bytes": 1 << 12}).broken == {"working set"}
    gpu = Device(kind=DeviceKind.GPU, id="cuda:0", label="gpu0")
    assert judged({**result, "cache_bytes": 50 << 20}, device=gpu).broken == {"working set"}


@pytest.mark.parametrize("seed", range(5))
def test_what_is_planted_before_each_sweep_is_what_is_found(here, seed):
    result = cache.sweep(dataclasses.replace(here, seed=seed), plant="flip")
    assert [fault["sweep"] for fault in result["planted"]] == [0, 1, 2, 3]
    assert result["found"] == result["planted"]
    assert result["wrong"] == 4
    assert judged(result).broken == {"wrong words"}
    assert json.loads(json.dumps(result)) == result


def test_faults_are_planted_elsewhere_on_each_device(here):
    other = dataclasses.replace(here, device_id="cpu1")
    both = [cache.sweep(each, plant="flip")["planted"] for each in (here, other)]
    assert not {f["offset"] for f in both[0]} & {f["offset"] for f in both[1]}


def cells(here, rows=8, row=64):
    return cache.Cells(here, torch.device("cpu"), rows=rows, row=row)


def test_a_device_with_many_faults_of_its_own_still_reports_the_planted_ones(here):
    broken = cells(here)
    broken._wanted[0, :20] ^= 1  # all that is compared with these is wrong: 160 words a sweep
    broken.round(0, flip=True)
    assert broken.wrong == 4 * (8 * 20 + 1)
    assert all(fault in broken.found for fault in broken.planted)
    assert len(broken.planted) == 4


def test_faults_are_not_planted_where_the_device_is_wrong_already(here):
    struck = cells(here)
    struck._written[0, 1:] ^= 1 << 7  # one column of 64 is right
    struck.round(0, flip=True)
    assert {fault["offset"] // 8 % 64 for fault in struck.planted[:1]} == {0}


@pytest.mark.parametrize("bit", [0, 31, 63])
def test_a_bit_that_does_not_hold_is_reported_with_its_place(here, bit):
    stuck = cells(here)
    numbers = []
    write = stuck._write

    def and_strike(given, *, inverted):
        write(given, inverted=inverted)
        numbers.append(given)
        if len(numbers) == 1:
            stuck._cells[3, 9] ^= (1 << bit) - (1 << 64 if bit == 63 else 0)

    stuck._write = and_strike
    stuck.round(5, flip=False)
    (fault,) = stuck.found
    assert (fault["offset"], fault["bits"]) == ((3 * 64 + 9) * 8, [bit])
    assert (fault["round"], fault["sweep"]) == (5, 0)
    assert fault["expected"] == f"{stuck.word(numbers[0], 3, 9, inverted=False):#018x}"


def test_words_of_an_earlier_round_are_stale_and_wrong(here):
    stale = cells(here)
    stale.round(0, flip=False)
    stale._write = lambda *_args, **_more: None
    stale.round(1, flip=False)
    assert stale.wrong >= 8 * 64


def test_no_two_rounds_and_no_two_rows_hold_the_same(here):
    held = cells(here)
    seen = []
    for number in (0, 1):
        held.round(number, flip=False)
        seen.append(held._expected.clone())
    assert len(torch.cat(seen).unique()) == 2 * 8 * 64


@pytest.mark.parametrize(
    ("files", "size"),
    [
        ({}, 0),
        ({"index0/level": "1", "index0/size": "32K", "index3/level": "3", "index3/size": "32M"}, 32 << 20),
        ({"index2/level": "2", "index2/size": "1024K"}, 1 << 20),
        ({"index0/level": "x", "index0/size": "32K"}, 0),
        ({"index0/level": "1"}, 0),
        ({"index0/level": "1", "index0/size": "huge"}, 0),
    ],
)  # fmt: skip
def test_the_largest_cache_that_a_processor_names_is_its_last(here, tmp_path, files, size):
    folder = tmp_path / "sys/devices/system/cpu/cpu0/cache"
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    elsewhere = dataclasses.replace(here, host_root=tmp_path)
    assert cache.size_of_cache(elsewhere, torch.device("cpu")) == size
    result = cache.sweep(elsewhere)
    assert result["cache_bytes"] == size
    assert 0 < result["bytes"] <= 2 << 20
    assert judged(result).outcome == "pass"


def test_the_same_wrong_words_on_two_devices_are_softwares(here):
    result = cache.sweep(here, plant="flip")
    assert judged(result).cause == "hardware"
    other = Device(kind=DeviceKind.CPU, id="cpu1", label="cpu1")
    assert judged(result, [(other, result)]).cause == "config"


def test_an_unknown_plant_is_refused(here):
    with pytest.raises(ValueError, match="flip"):
        cache.sweep(here, plant="fire")


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        pytest.param("kernels/cache.py", "if not wrong:", "if True:", marks=pytest.mark.long),
        pytest.param("kernels/cache.py", "torch.ne(self._got, self._expected,", "torch.ne(self._got, self._got,", marks=pytest.mark.long),
        pytest.param("kernels/cache.py", "torch.from_numpy(order).to(self._device), out=self._got", "torch.from_numpy(order * 0).to(self._device), out=self._got", marks=pytest.mark.long),
        pytest.param("acceptance/test_onchip.py", "at_most=0,\n        cause=", "cause=", marks=pytest.mark.long),
        pytest.param("acceptance/test_onchip.py", "        at_least=2,\n", "", marks=pytest.mark.long),
        pytest.param("acceptance/test_onchip.py", ", at_least=cache / 2, cause=Cause.ENVIRONMENT", "", marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_a_comparison_that_is_broken_is_a_self_test_that_is_missed(tmp_path, file, old, new):
    found = run_with(tmp_path, file, old, new, "cache_sweep")
    assert False in caught(found, "cache.sweep")


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        pytest.param("kernels/cache.py", "_SWEEPS = 4", "_SWEEPS = 2", marks=pytest.mark.long),
        pytest.param("kernels/cache.py", "_SHARE = 0.75", "_SHARE = 0.1", marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_sweeps_that_are_left_out_are_no_pass_of_a_whole_run(tmp_path, file, old, new):
    found = run_with(tmp_path, file, old, new, "cache_sweep")
    assert "pass" not in {f.outcome for f in found.findings if f.key.check.endswith("cache.sweep")}
