"""Scattered updates in a real context: each that is lost or doubled shows in its total."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from test_bitflips import suites
from test_detectors import caught, run_with

from nodeproof.acceptance import test_onchip as onchip
from nodeproof.checks import Device, DeviceKind, spec_of
from nodeproof.kernels import atomics
from nodeproof.kernels.formats import Unprovable
from nodeproof.kernels.updates import Case, Operation, Size, draw
from nodeproof.model import Measurement
from nodeproof.plugin.judging import judge
from nodeproof.worker import Context

SMALL = Size(many=17, drawn=200, times=3)


@pytest.fixture
def here(context):
    return Context(**{**context(), "host_root": Path("/")})


def judged(result, peers=()):
    taken = []

    def measure(name, value, **bounds):
        taken.append(Measurement(name=name, value=float(value), **bounds))

    onchip.test_atomics_totals(result=result, peers=list(peers), measure=measure)
    return judge(spec_of(onchip.test_atomics_totals), taken, None)


def test_a_sound_device_comes_to_the_known_totals(here):
    result = atomics.totals(here, seconds=0.2)
    assert (result["wrong"], result["found"], result["planted"]) == (0, [], [])
    assert result["host"] is None
    assert result["loaded_s"] >= 0.2
    assert result["updates"] == sum(done["updates"] for done in result["cases"].values())
    assert len(result["cases"]) == 14
    assert judged(result).outcome == "pass"


def test_kinds_of_updates_that_are_left_out_are_no_pass(here):
    result = atomics.totals(here)
    for name, done in result["cases"].items():
        rest = {other: n for other, n in result["cases"].items() if other != name}
        for cases in (rest, *({**rest, name: {**done, what: n - 1}} for what, n in done.items())):
            told = judged({**result, "cases": cases})
            assert told.broken == {"kinds of updates"}
            assert name in told.summary
    assert judged({**result, "rounds": 2}).broken == {"kinds of updates"}


def test_wrong_totals_that_nothing_describes_fail_with_a_sentence(here):
    told = judged({**atomics.totals(here), "wrong": 2})
    assert told.broken == {"wrong totals"}
    assert "could be described" in told.summary


@pytest.mark.parametrize("plant", atomics.PLANTS)
@pytest.mark.parametrize("seed", range(4))
def test_each_update_that_is_lost_or_doubled_is_found_where_it_was(here, seed, plant):
    result = atomics.totals(dataclasses.replace(here, seed=seed), plant=plant)
    assert len(result["planted"]) == {"lost": 14, "twice": 10}[plant]
    assert result["found"] == result["planted"]
    assert judged(result).broken == {"wrong totals"}
    assert json.loads(json.dumps(result)) == result


@pytest.mark.parametrize("plant", ["", *atomics.PLANTS])
def test_the_sizes_of_a_gpu_have_the_same_totals(here, monkeypatch, plant):
    monkeypatch.setitem(atomics.SIZES, "cpu", atomics.SIZES["cuda"])
    result = atomics.totals(here, plant=plant)
    assert result["found"] == result["planted"]
    assert result["wrong"] == len(result["planted"])


@pytest.mark.parametrize("case", atomics.CASES, ids=str)
def test_known_totals_are_those_of_one_update_after_the_other(case):
    updates = draw(case, SMALL, seed=3, tag="t")
    totals = [case.operation.start] * updates.width
    for at, value in zip(*(a.tolist() for a in updates.whole()), strict=True):
        totals[at] = {
            Operation.BINCOUNT: totals[at] + 1,
            Operation.AMAX: max(totals[at], value),
            Operation.AMIN: min(totals[at], value),
        }.get(case.operation, totals[at] + value)
    assert updates.come_to().tolist() == totals


@pytest.mark.parametrize("case", atomics.CASES, ids=str)
def test_the_loss_of_any_drawn_update_changes_its_total_and_no_other(case):
    updates = draw(case, SMALL, seed=4, tag="t")
    known = updates.come_to()
    for at in (updates.deciding(each) for each in range(0, 600, 37)):
        index, _, got = updates.altered(at, plant="lost")
        assert len(index) == 599
        assert got != known[updates.index[at % 200]]


def test_float32_totals_and_all_their_parts_are_exact(here):
    for size in (atomics.SIZES["cpu"], atomics.SIZES["cuda"]):
        for many in (False, True):
            case = Case(operation=Operation.INDEX_ADD, dtype="float32", many=many)
            index, value = draw(case, size, seed=here.seed, tag="t").whole()
            assert np.bincount(index, weights=np.abs(value)).max() < 2**24


def test_more_updates_than_float32_can_add_exactly_are_refused():
    case = Case(operation=Operation.INDEX_ADD, dtype="float32", many=False)
    with pytest.raises(Unprovable, match="float32"):
        draw(case, Size(many=5, drawn=1 << 16, times=1 << 10), seed=1, tag="t")


def broken(monkeypatch, change, operation=Operation.INDEX_ADD):
    sound = atomics._KERNELS[operation]
    monkeypatch.setitem(atomics._KERNELS, operation, lambda *given: change(sound(*given)))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.0, 0.5])
def test_a_total_that_is_no_integer_is_wrong_and_told(here, monkeypatch, value):
    def spoil(out):
        if out.dtype is torch.float32:
            out[1] = value
        return out

    broken(monkeypatch, spoil)
    result = atomics.totals(here)
    assert result["wrong"] == 2
    assert {f["index"] for f in result["found"]} == {1}
    json.dumps(result, allow_nan=False)
    told = judged(result)
    assert told.outcome == "fail"
    assert told.cause == "hardware"


@pytest.mark.parametrize(
    "change", [lambda out: out[:-1], lambda out: out.double(), lambda out: out[None]]
)
def test_totals_of_another_shape_or_type_are_no_totals(here, monkeypatch, change):
    broken(monkeypatch, change)
    with pytest.raises(RuntimeError, match="cpu0: totals of index_add"):
        atomics.totals(here)


def test_a_device_with_many_faults_of_its_own_still_reports_the_planted_ones(here, monkeypatch):
    def spoil(out):
        out[1:40] += 1
        return out

    for operation in Operation:
        broken(monkeypatch, spoil, operation)
    result = atomics.totals(here, plant="lost")
    assert result["wrong"] > 100

    def place(fault):
        return {k: v for k, v in fault.items() if k != "got"}

    seen = [place(fault) for fault in result["found"]]
    assert all(place(fault) in seen for fault in result["planted"])
    # None where the device was wrong already.
    assert not {f["index"] for f in result["planted"]} & set(range(1, 40))


def test_determinate_algorithms_which_sort_instead_are_switched_off_inside_only(here, monkeypatch):
    seen = []
    broken(
        monkeypatch, lambda out: seen.append(torch.are_deterministic_algorithms_enabled()) or out
    )
    torch.set_deterministic_debug_mode("error")
    try:
        atomics.totals(here)
        assert torch.get_deterministic_debug_mode() == 2
    finally:
        torch.set_deterministic_debug_mode("default")
    assert set(seen) == {False}


def test_the_same_wrong_totals_on_two_devices_are_softwares(here):
    result = atomics.totals(here, plant="lost")
    other = Device(kind=DeviceKind.CPU, id="cpu1", label="cpu1")
    assert judged(result, [(other, result)]).cause == "config"
    theirs = atomics.totals(dataclasses.replace(here, device_id="cpu1"), plant="lost")
    assert judged(result, [(other, theirs)]).cause == "hardware"


def test_an_unknown_plant_is_refused(here):
    with pytest.raises(ValueError, match="'lost', 'twice'"):
        atomics.totals(here, plant="fire")


def test_planted_faults_turn_the_checks_to_fail_in_a_run_of_their_own(tmp_path):
    found = suites(tmp_path, "cache_sweep or test_atomics_totals", {})
    for check in ("device.atomics.totals", "device.cache.sweep"):
        tests = [t for t in found.selftests if t.check == check]
        assert {t.device.id for t in tests} == {"cpu0", "cpu1"}
        assert all(t.caught for t in tests), [t.summary for t in tests]
    assert {f.outcome for f in found.findings} == {"pass"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("kernels/atomics.py", "right = bits == wanted", "right = bits == bits"),
        ("kernels/atomics.py", "np.flatnonzero(~right).tolist()", "[]"),
        ("kernels/atomics.py", "self.wrong += len(wrong)", "self.wrong += 0"),
        ("kernels/atomics.py", "right = self._compare(case, number, expected, given, place)", "right = right"),
        ("acceptance/test_onchip.py", "        at_least=due,\n", ""),
        ("acceptance/test_onchip.py", 'result["updates"], at_least=1)', 'result["updates"])'),
    ],
)  # fmt: skip
def test_a_comparison_that_is_broken_is_a_self_test_that_is_missed(tmp_path, file, old, new):
    found = run_with(tmp_path, file, old, new, "atomics_totals")
    assert False in caught(found, "atomics.totals")


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        pytest.param("kernels/atomics.py", "for many in (False, True)", "for many in (False,)", marks=pytest.mark.long),
        pytest.param("kernels/atomics.py", "for case in CASES:", "for case in CASES[:-1]:", marks=pytest.mark.long),
        pytest.param("kernels/atomics.py", "many=61, drawn=1 << 10", "many=61, drawn=1 << 9", marks=pytest.mark.long),
        pytest.param("kernels/updates.py", "size.many if case.many else FEW", "FEW", marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_updates_that_are_left_out_are_no_pass_of_a_whole_run(tmp_path, file, old, new):
    found = run_with(tmp_path, file, old, new, "atomics_totals")
    assert "pass" not in {
        f.outcome for f in found.findings if f.key.check.endswith("atomics.totals")
    }
