"""The fused kernel compiled and assembled for real GPUs, which needs none of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs Triton, which comes with torch for CUDA only")

COMPILE = Path(__file__).parent / "fused_compile.py"
FP8 = ("float8_e4m3fn", "float8_e5m2")
DTYPES = ("bfloat16", "float16", "tfloat32", "float32", "int8")
# Shared memory that one program may have, and the instruction that multiplies.
ARCHITECTURES = {
    "8.0": (163, "mma"),
    "8.9": (99, "mma"),
    "9.0": (227, "wgmma"),
    "10.0": (227, "tcgen05"),
    "12.0": (99, "mma"),
}
# A spill in the main loop costs thousands of bytes; what the comparison spills, it does once a tile.
_SPILLED = 1024
SHORT = {("bfloat16", "9.0", "wide")}


@pytest.mark.parametrize(
    ("dtype", "architecture", "answer"),
    [
        pytest.param(*case, marks=[] if case in SHORT else pytest.mark.long)
        for case in (
            (dtype, architecture, answer)
            for architecture in ARCHITECTURES
            for dtype in DTYPES + (FP8 if architecture != "8.0" else ())
            for answer in ("closed", "wide")
        )
    ],
)
def test_the_kernel_compiles_fits_and_multiplies_by_the_right_unit(
    tmp_path, dtype, architecture, answer
):
    done = subprocess.run(
        [sys.executable, "-P", str(COMPILE), dtype, architecture, answer],
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": ""},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    kernel = json.loads(done.stdout)
    memory, unit = ARCHITECTURES[architecture]
    assert kernel["cubin"] > 0
    assert kernel["smid"] > 0
    assert kernel["shared"] <= memory * 1024
    assert kernel["fma" if dtype == "float32" else unit] > 0
    assert kernel["spilled"]
    assert sum(kernel["spilled"]) <= _SPILLED
