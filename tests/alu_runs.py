"""Run one check of acceptance/test_alu.py under pytest, with a device that computes wrongly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from rehearsal import SMALL

from nodeproof import results

INTRUDER = Path(__file__).parent / "alu_intruder"


def suite(
    folder: Path, check: str, *options: str, fault: dict[str, object] | None = None
) -> results.Results:
    """Run a check with its self-tests; `fault` is what the intruder is told."""
    spec = folder / "small.toml"
    spec.write_text(SMALL)
    subprocess.run(
        [
            *(sys.executable, "-P", "-m", "pytest", "--pyargs", "nodeproof.acceptance"),
            *("-p", "no:cacheprovider", "-q", "--nodeproof-device=cpu", "-k", f"test_{check}"),
            *(f"--nodeproof-spec={spec}", f"--nodeproof-output={folder / 'out'}", *options),
        ],
        env={**os.environ, "PYTHONPATH": str(INTRUDER), "ALU_FAULT": json.dumps(fault or {})},
        cwd=folder,
        check=False,
        capture_output=True,
    )
    return results.read(folder / "out" / "results.jsonl")


def outcomes(found: results.Results) -> dict[str, tuple[str, str | None]]:
    """Outcome and cause, by device."""
    return {f.device.id: (f.outcome.value, f.cause and f.cause.value) for f in found.findings}


def interpreted(program: str, folder: Path, **more: str) -> str:
    """Run Python with Triton's interpreter in place of a GPU; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TRITON_INTERPRET": "1", **more},
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
