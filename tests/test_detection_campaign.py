"""The campaign of faults and the verified product, as scripts, whole and with a dead comparison."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import nodeproof
from conftest import need

PACKAGE = Path(nodeproof.__file__).parent
BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def script(name, *args, path=None, timeout=600):
    file = BENCHMARKS / f"{name}.py"
    need(there=file.exists(), what="the benchmarks beside the tests")
    done = subprocess.run(
        [sys.executable, "-P", str(file), "--device", "cpu", *map(str, args)],
        env={**os.environ, **({"PYTHONPATH": str(path)} if path else {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, lines, done.stderr


def broken(folder, file, old, new):
    """A copy of the package in which one place is another."""
    shutil.copytree(PACKAGE, folder / "nodeproof", ignore=shutil.ignore_patterns("__pycache__"))
    text = (folder / "nodeproof" / file).read_text()
    assert old in text, f"{file} has no {old!r} any more"
    (folder / "nodeproof" / file).write_text(text.replace(old, new))
    return folder


def sound(lines, faults):
    *rows, last = lines
    total = {}
    for row in rows:
        assert 0 <= row["low"] <= row["detected"] / row["total"] <= row["high"] <= 1
        assert row["located"] <= row["detected"] <= row["total"]
        if row["certain"]:
            assert row["detected"] == row["total"], row
        total[row["method"]] = total.get(row["method"], 0) + row["total"]
    for method in ("prover", "comparison", "freivalds", "allclose rtol=1e-2"):
        assert total[method] == faults
    assert 0 < total["skinny"] < faults
    assert all(row["certain"] for row in rows if row["method"] in {"prover", "comparison"})
    assert (last["missed_where_certain"], last["false_alarms"]) == (0, 0)
    assert {"prover", "comparison", "freivalds", "skinny"}.isdisjoint(last["missed"])
    assert last["missed"]["allclose rtol=1e-2"] > faults // 10
    assert last["missed"]["bits rounded to bfloat16"] > faults // 10
    for row in rows:  # where the whole product is compared, the first wrong bits are known
        if row["method"] in {"prover", "comparison"}:
            assert row["located"] == row["total"], row
    return rows, last


def test_a_campaign_finds_every_fault_and_says_what_looser_checks_would_miss():
    status, lines, _ = script(
        *("detection", "--faults", 200, "--size", 128, "--seed", 3, "--clean", 5e5)
    )
    assert status == 0
    rows, last = sound(lines, 200)
    assert last["clean_elements"] >= 5e5
    assert last["classes"] == len({row["class"] for row in rows}) >= 12
    assert last["faults"] == 200


DEAD = [
    ("kernels/checksum.py", "if torch.equal(wide, ", "if True or torch.equal(wide, "),
    ("kernels/checksum.py", "wrong.append((residual != 0) | ~right.all(1))", "wrong.append(residual != residual)"),
    ("kernels/checksum.py", "(raw(sums) != raw(self._sums[top : top + step]))", "(sums > sums)"),
    ("kernels/product.py", "wrong = int(torch.count_nonzero(differs))", "wrong = 0"),
]  # fmt: skip


@pytest.mark.parametrize("row", range(len(DEAD)))
@pytest.mark.long
def test_a_campaign_with_a_dead_comparison_fails(tmp_path, row):
    path = broken(tmp_path, *DEAD[row])
    status, lines, _ = script("detection", "--faults", 60, "--size", 128, "--seed", 3, path=path)
    assert status == 1
    assert lines[-1]["missed_where_certain"] > 0


@pytest.mark.parametrize(
    "method",
    ["prover", *(pytest.param(m, marks=pytest.mark.long) for m in ("comparison", "freivalds"))],
)
def test_a_verified_product_is_timed_and_catches_its_flip(method):
    status, (line,), _ = script(
        "verified_gemm", "--json", "--size", 256, "--rounds", 3, "--method", method
    )
    assert status == 0
    assert (line["flips"], line["caught"], line["false_alarms"]) == (1, 1, 0)
    assert line["checked_elements"] == 2 * (3 + 2) * 256**2
    assert line["ratio"] == pytest.approx(line["verified_gflops"] / line["raw_gflops"], rel=0.02)


@pytest.mark.parametrize(
    ("method", "row"),
    [
        ("prover", 3),
        pytest.param("comparison", 0, marks=pytest.mark.long),
        pytest.param("freivalds", 1, marks=pytest.mark.long),
    ],
)
def test_a_verified_product_with_a_dead_comparison_is_none(tmp_path, method, row):
    path = broken(tmp_path, *DEAD[row])
    status, (line,), said = script(
        *("verified_gemm", "--json", "--size", 256, "--rounds", 2, "--method", method), path=path
    )
    assert status == 1
    assert line["caught"] == 0
    assert "dead" in said


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    [
        (0, 10, 0.0, 0.30850),  # tables of the exact interval
        (5, 10, 0.18709, 0.81291),
        (9, 10, 0.55498, 0.99747),
        (300, 300, 0.98778, 1.0),
        (1, 1, 0.025, 1.0),
        (10_000, 10_000, 0.99963, 1.0),
    ],
)
def test_the_interval_is_the_exact_one(hits, total, low, high):
    need(there=(BENCHMARKS / "detection.py").exists(), what="the benchmarks beside the tests")
    at = importlib.util.spec_from_file_location("detection_script", BENCHMARKS / "detection.py")
    module = importlib.util.module_from_spec(at)
    sys.modules["detection_script"] = module
    at.loader.exec_module(module)
    assert module.interval(hits, total) == pytest.approx((low, high), abs=2e-5)
    with pytest.raises(ValueError, match="no share"):
        module.interval(0, 0)


@pytest.mark.long
def test_a_thousand_faults_in_products_of_full_size():
    """test_kernel_inject has ten thousand in small ones: at this size they take over an hour."""
    status, lines, _ = script(
        "detection", "--faults", 1_000, "--size", 1024, "--seed", 1, timeout=7200
    )
    assert status == 0
    rows, _ = sound(lines, 1_000)
    assert {row["class"].split(",")[0] for row in rows} >= {"operand A", "stale buffer", "tile"}


@pytest.mark.long
def test_no_false_alarm_in_a_milliard_elements():
    status, (last,), _ = script(
        "detection", "--faults", 0, "--size", 2048, "--clean", 1e9, timeout=7200
    )
    assert status == 0
    assert last["clean_elements"] >= 1e9
    assert last["false_alarms"] == 0
