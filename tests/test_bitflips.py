"""One bit flipped from outside, in the whole of nodeproof: never an accept, and named where it was."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rehearsal import SMALL, Rehearsal

from nodeproof import manifest, results
from nodeproof.verdict import Decision, Reason, Verdict, Why, decide

INTRUDER = Path(__file__).parent / "intruder"
ROW, COLUMN, BIT = 3, 5, 4
CHECKS = {
    "float64": "device.arithmetic.fp64",
    "float32": "device.arithmetic.fp32",
    "bfloat16": "device.arithmetic.bf16",
    "float16": "device.arithmetic.fp16",
    "int8": "device.arithmetic.int8",
    "float8_e4m3fn": "device.arithmetic.fp8_e4m3",
    "float8_e5m2": "device.arithmetic.fp8_e5m2",
}


def flipping(
    dtype: str,
    number: int | str,
    *,
    rows: int = 0,
    mark: Path = Path("/dev/null"),
    devices: tuple[str, ...] = ("cpu1",),
) -> dict[str, str]:
    order = {
        "label": devices,
        "dtype": dtype,
        "rows": rows,
        "mark": str(mark),
        "number": number,
        "row": ROW,
        "column": COLUMN,
        "bit": BIT,
    }
    return {"PYTHONPATH": str(INTRUDER), "FLIP": json.dumps(order)}


def suites(folder: Path, check: str, environment: dict[str, str]) -> results.Results:
    """Run one check with its self-tests on two devices."""
    spec = folder / "small.toml"
    spec.write_text(SMALL)
    subprocess.run(
        [
            *(sys.executable, "-P", "-m", "pytest", "--pyargs", "nodeproof.acceptance"),
            *("-p", "no:cacheprovider", "-q", "--nodeproof-device=cpu"),
            *(f"--nodeproof-spec={spec}", f"--nodeproof-output={folder / 'out'}"),
            *("-k", f"test_{check.rpartition('.')[2]}"),
        ],
        env={**os.environ, **environment},
        cwd=folder,
        check=False,
        capture_output=True,
    )
    return results.read(folder / "out" / "results.jsonl")


def against(told: Verdict, device: str) -> list[Reason]:
    """What speaks against a device, besides that not all checks were selected."""
    reasons = (*told.failed, *told.undecided)
    return [r for r in reasons if r.device == device and r.why is not Why.UNPLANNED]


@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(d, marks=[] if d in {"float32", "bfloat16"} else pytest.mark.long)
        for d in CHECKS
    ],
)
def test_a_bit_in_the_product_under_test_names_device_dtype_row_column_and_bit(tmp_path, dtype):
    found = suites(tmp_path, CHECKS[dtype], flipping(dtype, 1))
    told = decide(found, manifest.shipped())
    assert told.decision is Decision.REJECT
    ((reason),) = [r for r in told.failed if r.check == CHECKS[dtype]]
    assert reason.device == "cpu1"
    for word in (dtype, f"row {ROW}", f"column {COLUMN}", f"bits [{BIT}]"):
        assert word in reason.text
    assert reason.remedy == "replace"
    assert not against(told, "cpu0")


@pytest.mark.parametrize("dtype", [pytest.param("int8", marks=pytest.mark.long), "bfloat16"])
def test_a_device_that_is_broken_for_good_is_condemned_and_not_excused(tmp_path, dtype):
    """Its own faults are in the planted run too, and may not make the detector look broken."""
    told = decide(suites(tmp_path, CHECKS[dtype], flipping(dtype, "every")), manifest.shipped())
    assert told.decision is Decision.REJECT
    assert {r.device for r in told.failed} == {"cpu1"}


@pytest.mark.long
@pytest.mark.parametrize("dtype", CHECKS)
def test_whichever_product_of_a_worker_is_hit_the_node_is_not_accepted(tmp_path, dtype):
    """Warm-up, test, replay and planted run alike: every product the worker does is compared."""
    sound = tmp_path / "sound"
    sound.mkdir()
    clean = suites(sound, CHECKS[dtype], {})
    (of_cpu1,) = [f for f in clean.findings if f.device.id == "cpu1"]
    products = int(of_cpu1.evidence["products"])
    assert not against(decide(clean, manifest.shipped()), "cpu1")
    hit = 0
    for number in (0, 2, products // 2, products - 1, products, products + 1, products + 3):
        folder = tmp_path / str(number)
        folder.mkdir()
        environment = flipping(dtype, number, mark=folder / "mark")
        told = decide(suites(folder, CHECKS[dtype], environment), manifest.shipped())
        if (folder / "mark").exists():  # a run may do fewer products than the one before it
            hit += 1
            assert against(told, "cpu1"), f"product {number} of {products} was not looked at"
    assert hit >= 3


@pytest.mark.long
def test_a_bit_in_the_long_load_condemns_its_device_alone(tmp_path):
    # The burn-in of one thread is the only one with products of this size.
    run = Rehearsal(tmp_path, environment=flipping("float32", 60, rows=768))
    status, text = run.finish()
    assert status == 10, text
    assert re.search(
        rf"device\.burnin\.exact on cpu1.*row {ROW}, column {COLUMN}.*bits \[{BIT}\]", text
    )
    assert {r["device"] for r in run.verdict()["failed"]} == {"cpu1"}
    assert "have the named part replaced" in text


@pytest.mark.long
def test_a_bit_flipped_in_the_test_memory_from_outside_is_found_and_located(tmp_path):
    run = Rehearsal(tmp_path)
    filled = run.wait_for(lambda r: r.get("name") == "memory.filled" and r["device"] == "cpu0")
    place = int(filled["address"], 16) + filled["bytes"] // 2
    with Path(f"/proc/{filled['pid']}/mem").open("r+b", buffering=0) as memory:
        memory.seek(place)
        (byte,) = memory.read(1)
        memory.seek(place)
        memory.write(bytes([byte ^ 0x10]))
    status, text = run.finish()
    assert status == 10, text
    (failed,) = run.verdict()["failed"]
    assert failed["device"] == "cpu0"
    assert failed["check"] == "device.memory.pattern"
    word = run.findings()["device.memory.pattern", "cpu0"]["evidence"]["found"][0]
    assert int(word["address"], 16) == place - place % 8
    assert word["bits"] == [4 + 8 * (place % 8)]
