"""The fused product under Triton's interpreter, which stands in for a GPU with four SMs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import nodeproof
from nodeproof.acceptance.test_multiprocessors import test_multiprocessors as judged
from nodeproof.checks import Device, DeviceKind, spec_of
from nodeproof.child import Call, Raised
from nodeproof.kernels.fused import fused
from nodeproof.kernels.place import NoPlaceError
from nodeproof.model import Outcome
from nodeproof.plugin.judging import Measurements, judge
from nodeproof.results import read
from nodeproof.worker import Context
from tests.standin.build import GPUS, build, put_gpu

pytest.importorskip("triton", reason="needs Triton, which comes with torch for CUDA only")

TESTS = Path(__file__).parent
PACKAGE = Path(nodeproof.__file__).parent
SPEC = spec_of(judged)
INTERPRETED = {"TRITON_INTERPRET": "1"}
SCENES = ("clean", "planted", "a", "b", "nan", "reference", "whole_sm", "wrong_already", "sweeps", "order", "pointers")  # fmt: skip


def interpreted(*scenes, path=TESTS.parent):
    done = subprocess.run(
        [sys.executable, "-P", str(TESTS / "fused_run.py"), *scenes],
        env={**os.environ, **INTERPRETED, "PYTHONPATH": str(path)},
        check=True,
        capture_output=True,
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def ran():
    return interpreted(*SCENES)


def judgement(result, peers=()):
    measure = Measurements()
    judged(result=result, peers=list(peers), measure=measure)
    return judge(SPEC, measure.taken, None)


def test_sound_multiprocessors_are_all_covered_and_pass(ran):
    clean = ran["clean"]
    assert (clean["wrong"], clean["found"], clean["planted"], clean["by_sm"]) == (0, [], [], {})
    assert clean["covered"] == clean["multiprocessors"] == 4
    assert clean["least_tiles"] >= clean["least_tiles_wanted"]
    assert clean["unaccounted"] == 0
    assert clean["dtypes"] == ["float16", "float32"]
    # Each of four cells was launched twice at least: to warm up, and for the clock.
    assert clean["checked_elements"] >= 4 * 2 * 128 * 128
    assert clean["operations"] == 2 * 128 * clean["checked_elements"]
    assert clean["loaded_s"] > 0
    assert judgement(clean).outcome is Outcome.PASS


def test_what_is_planted_in_each_cell_is_what_is_found(ran):
    for result in ran["planted"]:
        assert result["found"] == result["planted"]
        assert [(f["dtype"], f["family"]) for f in result["planted"]] == [
            (dtype, family)
            for dtype, families in (
                ("float16", ("cancel_lift", "wide")),
                ("float32", ("cancel_lift", "long")),
            )
            for family in families
            for _ in range(2)
        ]
        assert [f["bits"] for f in result["planted"][::2]] == [[0]] * 4
        assert result["wrong"] == len(result["planted"]) == sum(result["by_sm"].values())
        assert result["operands_intact"] is True
        assert (result["covered"], result["unaccounted"], result["host"]) == (4, 0, "right")


def test_a_planted_fault_is_elsewhere_on_another_device_and_in_another_run(ran):
    places = [[(f["row"], f["column"]) for f in result["planted"]] for result in ran["planted"]]
    assert all(a != b for n, a in enumerate(places) for b in places[:n])


def test_a_planted_fault_fails_the_check_and_names_multiprocessor_tile_row_column_and_bit(ran):
    for result in ran["planted"]:
        told = judgement(result)
        first, on = result["found"][0], result["found_on"][0]
        assert (told.outcome, told.broken) == (Outcome.FAIL, {"wrong elements"})
        assert told.cause == "hardware"
        for word in (
            f"SM {on['multiprocessor']}",
            f"tile {first['tile']}",
            f"row {first['row']}",
            f"column {first['column']}",
            f"bits {first['bits']}",
        ):
            assert word in told.summary


@pytest.mark.parametrize("plant", [p for p in SPEC.plants if p.alter], ids=lambda p: p.breaks[0])
def test_each_altered_answer_breaks_the_limit_it_is_for(ran, plant):
    told = judgement(plant.alter(ran["clean"]))
    assert (told.outcome, told.broken) == (Outcome.FAIL, set(plant.breaks))


def test_every_limit_is_broken_by_a_plant(ran):
    assert judgement(ran["clean"]).bounded == {name for p in SPEC.plants for name in p.breaks}


def test_a_multiprocessor_that_is_not_seen_is_no_pass_but_the_environments_fault(ran):
    told = judgement({**ran["clean"], "covered": 3})
    assert (told.outcome, told.cause) == (Outcome.FAIL, "environment")


def test_the_same_fault_on_two_devices_is_softwares(ran):
    bad = ran["planted"][0]
    peer = Device(kind=DeviceKind.GPU, id="GPU-1", label="gpu1")
    assert judgement(bad, [(peer, ran["clean"])]).cause == "hardware"
    told = judgement(bad, [(peer, bad)])
    assert (told.outcome, told.cause) == (Outcome.FAIL, "config")
    assert "software" in told.summary


@pytest.mark.parametrize(("side", "along"), [("a", "row"), ("b", "column")])
def test_a_bit_of_an_operand_is_found_in_every_tile_that_uses_it(ran, side, along):
    seen = ran[side]
    assert sum(seen["wrong"].values()) == 128  # one whole row, or column, of the product
    assert {fault[along] for fault in seen["faults"]} == {37}
    assert {fault[f"{along}s"] for fault in seen["faults"]} == {1}
    assert len(seen["faults"]) == (2 if side == "a" else 4)
    assert seen["intact"] is False


def test_what_is_no_number_is_wrong_too(ran):
    assert sum(ran["nan"]["wrong"].values()) == 128
    assert {fault["got"] for fault in ran["nan"]["faults"]} == {"0x7fc00000"}


def test_a_known_answer_that_changed_on_the_device_is_found_and_told_apart(ran):
    seen = ran["reference"]
    assert (seen["closed"], seen["intact"]) == (False, False)
    ((fault),) = seen["faults"]
    assert (fault["row"], fault["column"], fault["bits"]) == (64, 9, [0])


def test_a_fault_of_one_multiprocessor_is_found_on_that_one_alone(ran):
    seen = ran["whole_sm"]
    assert seen["wrong"] == {"2": seen["tiles"]["2"]}
    assert {fault["multiprocessor"] for fault in seen["faults"]} == {2}


def test_a_device_that_is_wrong_everywhere_still_reports_what_is_planted(ran):
    seen = ran["wrong_already"]
    first = {name: seen["faults"][0][name] for name in seen["planted"]}
    assert first == seen["planted"]
    assert sum(seen["wrong"].values()) == 128 * 128


def test_every_tile_visits_every_multiprocessor(ran):
    visits = {}
    for sweep in ran["sweeps"]:
        for tile, sm in sweep:
            visits.setdefault(tile, set()).add(sm)
    assert visits == {tile: {0, 1, 2, 3} for tile in range(8)}


def test_host_and_kernel_agree_which_tile_is_where(ran):
    assert ran["order"]["tiles"] == 16
    assert all(ran["order"]["seen"])


def test_the_way_without_descriptors_computes_and_finds_the_same(ran):
    seen = ran["pointers"]
    assert seen["clean"]["wrong"] == {}
    (fault,) = seen["found"]["faults"]
    assert {name: fault[name] for name in seen["planted"]} == {**seen["planted"], "sweep": 1}


def test_without_a_gpu_nothing_is_tested_and_that_is_said(monkeypatch, context):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(NoPlaceError, match="no multiprocessors"):
        fused(Context(**context()))


def test_without_triton_nothing_is_tested_and_that_is_said(pool, context, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['triton'] = None\n")
    pool.add("cpu0", {**INTERPRETED, "PYTHONPATH": str(tmp_path)})
    call = Call(call="nodeproof.kernels.fused:fused", args={}, context=context())
    reply = pool.run({"cpu0": call}, deadline_s=60)["cpu0"]
    assert isinstance(reply, Raised), reply
    assert (reply.type, reply.cause) == ("NoPlaceError", "environment")
    assert "Triton can't be imported" in reply.message
    assert "cpu0" in reply.message


def test_an_unknown_plant_is_refused(context):
    with pytest.raises(ValueError, match="knows 'flip'"):
        fused(Context(**context()), plant="fire")


def test_gpus_that_torch_cannot_use_are_an_error_and_no_pass(tmp_path):
    build("nvml.c", tmp_path / "libnvidia-ml.so.1")
    build("cuda.c", tmp_path / "libcuda.so.1")
    for address in ("0000:3b:00.0", "0000:3c:00.0"):
        put_gpu(tmp_path / "root", address)
    (tmp_path / "root/proc").symlink_to("/proc")
    subprocess.run(
        [
            *(sys.executable, "-P", "-m", "pytest", "--pyargs", "nodeproof.acceptance"),
            *("-p", "no:cacheprovider", "-q", "-k", "test_multiprocessors"),
            *("--nodeproof-device=cuda", "--nodeproof-output=out", "--nodeproof-host-root=root"),
        ],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(tmp_path),
            "STANDIN_NVML": " ".join(GPUS),
            "STANDIN_CUDA": " ".join(GPUS),
        },
        cwd=tmp_path,
        check=False,
        capture_output=True,
    )
    told = [f for f in read(tmp_path / "out/results.jsonl").findings if f.check == SPEC.id]
    assert len(told) == 2
    assert {f.outcome for f in told} == {Outcome.ERROR}


def mutated(folder, file, old, new, *scenes):
    """Run scenes from a copy of the package in which one place is another."""
    copy = folder / "nodeproof"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / "kernels" / file).read_text()
    assert text.count(old) >= 1, f"{file} has no {old!r} any more"
    (copy / "kernels" / file).write_text(text.replace(old, new))
    return interpreted(*scenes, path=folder)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("fused_triton.py", "differs = bits ^ answer", "differs = bits ^ bits"),
        pytest.param("fused_triton.py", "differs = bits ^ answer", "differs = (bits ^ answer) & ~1", marks=pytest.mark.long),
        pytest.param("fused_triton.py", "if wrong > 0", "if wrong > 1", marks=pytest.mark.long),
        pytest.param("fused_triton.py", "bits = accumulator.to(tl.int32, bitcast=True)", "bits = accumulator.to(tl.int32)", marks=pytest.mark.long),
        pytest.param("fused_triton.py", "tl.store(entry + 1, tile)", "tl.store(entry + 1, tile + 1)", marks=pytest.mark.long),
        pytest.param("fused_cell.py", "self._faults(counts[2 * TABLE], fault) if wrong else []", "[]", marks=pytest.mark.long),
        pytest.param("fused_cell.py", "if not len(places)", "if True", marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_a_comparison_that_is_broken_does_not_find_what_was_planted(tmp_path, file, old, new):
    result = mutated(tmp_path, file, old, new, "one")["one"]
    assert result["planted"] != result["found"]
    assert result["planted"] != []


@pytest.mark.parametrize(
    ("file", "old", "new", "broken"),
    [
        ("fused.py", "programs=multiprocessors", "programs=multiprocessors - 1", "multiprocessors covered"),
        # An SM id beyond the table, and one below it: neither may write where it does not belong.
        pytest.param("fused_triton.py", "sm = program % EMULATED", "sm = program % EMULATED + TABLE_TOP", "multiprocessors covered", marks=pytest.mark.long),
        pytest.param("fused_triton.py", "sm = program % EMULATED", "sm = program % EMULATED - 1", "multiprocessors covered", marks=pytest.mark.long),
        pytest.param("fused_triton.py", "in range(program, items, programs)", "in range(program, items - 1, programs)", "tiles unaccounted for", marks=pytest.mark.long),
        pytest.param("fused_triton.py", "tl.atomic_add(tiles_by_sm + sm, 1,", "tl.atomic_add(tiles_by_sm + sm, 2,", "tiles unaccounted for", marks=pytest.mark.long),
        pytest.param("fused_triton.py", "accumulator = tl.dot(", "accumulator += 1 + 0 * tl.dot(", "wrong elements", marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_what_was_not_done_is_no_pass(tmp_path, file, old, new, broken):
    result = mutated(tmp_path, file, old, new.replace("TABLE_TOP", "1021"), "clean")["clean"]
    told = judgement(result)
    assert told.outcome is Outcome.FAIL
    assert broken in told.broken
