"""Break any comparison in the code, and the run itself says that this detector is dead."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rehearsal import SMALL

import nodeproof
from nodeproof import results
from nodeproof.verdict import WITHHELD

PACKAGE = Path(nodeproof.__file__).parent

# What breaks: file, what stands there, what then stands there, test to run, check that must notice.
COMPUTED = [
    ("kernels/product.py", "differs = tiles != ", "differs = tiles > 0 * ", "int8", "arithmetic.int8"),
    ("kernels/product.py", "int(torch.count_nonzero(differs))", "0", "fp32", "arithmetic.fp32"),
    ("kernels/product.py", "if wrong:", "if False:", "fp64", "arithmetic.fp64"),
    ("kernels/cells.py", "if not same(expected, block.cells)", "if False", "pattern", "memory.pattern"),
    ("kernels/mismatches.py", "places = (expected != cells)", "places = (expected != expected)", "pattern", "memory.pattern"),
    ("kernels/burn.py", "if rate < _SLOW[device.type] * median", "if rate < 0", "throughput", "burnin.throughput"),
    ("nccl_tests/exactness.py", "differs = got != wanted", "differs = got != got", "collective_data", "collective.data"),
]  # fmt: skip
JUDGED = [
    ("acceptance/products.py", 'result["wrong"], at_most=0', 'result["wrong"]', "bf16", "arithmetic.bf16"),
    ("acceptance/products.py", 'result["checked_elements"], at_least=1', 'result["checked_elements"]', "fp16", "arithmetic.fp16"),
    ("acceptance/test_memory.py", 'result["wrong"], at_most=0', 'result["wrong"]', "pattern", "memory.pattern"),
    ("acceptance/test_collectives.py", "at_least=floor if len(results) > 1 else None,", "", "collective_bandwidth", "collective.bandwidth"),
    ("acceptance/test_burnin_pace.py", "at_least=limits.cpu_p5_of_median if cpu else limits.p5_of_median,", "", "throughput", "burnin.throughput"),
    ("acceptance/test_burnin_pace.py", "at_least=limits.telemetry_hz,", "", "throughput", "burnin.throughput"),
    ("acceptance/test_burnin_pace.py", "at_most=limits.cpu_below_median if cpu else limits.below_median,", "", "spread", "burnin.spread"),
    ("acceptance/test_inventory.py", "at_least=wanted,", "", "device_count", "devices.count"),
    ("acceptance/test_inventory.py", "at_least=len(wanted),", "", "software", "software.versions"),
    ("acceptance/test_host.py", "at_least=limits.usable,", "", "cores", "cpu.cores"),
    ("acceptance/test_host.py", "at_least=limits.online,", "", "cores", "cpu.cores"),
    ("acceptance/test_host.py", "at_least=limits.total_gib,", "", "memory", "memory.size"),
    ("acceptance/test_host.py", "at_most=limits.max_error_s,", "", "time_sync", "time.sync"),
    ("acceptance/test_host.py", "at_least=limits.mib,", "", "memlock", "limits.memlock"),
    ("acceptance/test_host.py", "at_least=limits.free_mib,", "", "shm", "shm.size"),
    ("acceptance/test_host.py", "at_least=floor,", "", "disk", "disk.free"),
    ("model.py", "return low and high and math.isfinite(self.value)", "return True", "cores", "cpu.cores"),
    ("model.py", "self.at_most is None or self.value <= self.at_most", "True", "time_sync", "time.sync"),
    ("plugin/judging.py", "broken = [m for m in taken if not m.held]", "broken: list[Measurement] = []", "clock", "clock.source"),
    ("case.py", "elif found[key] == 0 and", "elif False and", "cores", WITHHELD),
]  # fmt: skip
SHORT = {"int8", "collective_data", "cores", "time_sync", "clock"}


def run_with(folder: Path, file: str, old: str, new: str, test: str) -> results.Results:
    """Run one test from a copy of the package in which one place is another."""
    copy = folder / "nodeproof"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / file).read_text()
    assert text.count(old) >= 1, f"{file} has no {old!r} any more"
    (copy / file).write_text(text.replace(old, new))
    spec = folder / "small.toml"
    spec.write_text(SMALL)
    subprocess.run(
        [
            *(sys.executable, "-P", "-m", "pytest", "--pyargs", "nodeproof.acceptance"),
            *("-p", "no:cacheprovider", "-q", "--nodeproof-device=cpu", "-k", f"test_{test}"),
            *(f"--nodeproof-spec={spec}", f"--nodeproof-output={folder / 'out'}"),
        ],
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=folder,
        check=False,
        capture_output=True,
    )
    return results.read(folder / "out" / "results.jsonl")


def caught(found: results.Results, check: str) -> set[bool]:
    return {t.caught for t in found.selftests if t.check.endswith(check)}


@pytest.mark.parametrize(
    ("file", "old", "new", "test", "check"),
    [
        pytest.param(*row, id=f"{row[4]}: {row[1][:40]}", marks=[] if row[3] in SHORT else pytest.mark.long)
        for row in (*COMPUTED, *JUDGED)
    ],
)  # fmt: skip
def test_a_comparison_that_is_broken_is_a_self_test_that_is_missed(
    tmp_path, file, old, new, test, check
):
    assert False in caught(run_with(tmp_path, file, old, new, test), check)


def test_the_same_copy_unbroken_catches_every_planted_fault(tmp_path):
    same = "return low and high and math.isfinite(self.value)"
    found = run_with(tmp_path, "model.py", same, same, "cores or test_collective_data or test_int8")
    for check in ("cpu.cores", "collective.data", "arithmetic.int8", WITHHELD):
        assert caught(found, check) == {True}
