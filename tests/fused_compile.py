"""Run by tests as a process of its own: compile the fused kernel for GPUs that are not here.

    python fused_compile.py DTYPE MAJOR.MINOR wide|closed ...

Prints for each three words a JSON line: what the assembler said of the finished kernel.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys

os.environ["TRITON_DUMP_PTXAS_LOG"] = "1"
os.environ["TRITON_ALWAYS_COMPILE"] = "1"

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from nodeproof.kernels import fused_cell
from nodeproof.kernels.formats import RECIPES, Family
from nodeproof.kernels.fused_tiling import tiling
from nodeproof.kernels.fused_triton import multiply_and_compare

KINDS = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "tfloat32": "fp32",
    "float32": "fp32",
    "int8": "i8",
    "float8_e4m3fn": "fp8e4nv",
    "float8_e5m2": "fp8e5",
}
POINTERS = ("tiles_by_sm", "wrong_by_sm", "logged", "log", "pictures")


def compiled(dtype, capability, *, closed):
    cut = tiling(dtype, capability)
    family = Family.CANCEL_LIFT if closed else Family.WIDE
    recipe = RECIPES[dtype, family]
    a, b = KINDS[recipe.a_dtype or dtype], KINDS[recipe.b_dtype or dtype]
    fixed = {
        "BM": cut.rows,
        "BN": cut.columns,
        "BK": cut.depth,
        "GROUP": cut.group,
        "TABLE": fused_cell.TABLE,
        "KEEP": fused_cell.KEEP,
        "FIELDS": fused_cell.FIELDS,
        "CLOSED": closed,
        "DESCRIBED": cut.described,
        "INTEGER": dtype == "int8",
        "PRECISION": "tf32" if dtype == "tfloat32" else "ieee",
        "EMULATED": 0,
    }
    names = multiply_and_compare.arg_names
    signature = dict.fromkeys(names, "i32")
    signature |= dict.fromkeys(fixed, "constexpr") | dict.fromkeys(POINTERS, "*i32")
    signature["reference"] = "*i32" if dtype == "int8" else "*fp32"
    signature["a"] = f"tensordesc<{a}[{cut.rows},{cut.depth}]>" if cut.described else f"*{a}"
    signature["b"] = f"tensordesc<{b}[{cut.columns},{cut.depth}]>" if cut.described else f"*{b}"
    # What a launch knows by itself: memory is aligned, and sizes are multiples of 16.
    aligned = {"reference", *POINTERS, "depth", "span", "tiles_down", "tiles_across"}
    aligned |= set() if cut.described else {"a", "b"}
    attributes = {
        (place,): [["tt.divisibility", 16]] for place, name in enumerate(names) if name in aligned
    }
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        kernel = triton.compile(
            ASTSource(multiply_and_compare, signature, fixed, attributes),
            target=GPUTarget("cuda", capability[0] * 10 + capability[1], 32),
            options={
                "num_warps": cut.warps,
                "num_stages": cut.stages,
                "enable_fp_fusion": True,
            },
        )
    ptx = kernel.asm["ptx"]
    return {
        "dtype": dtype,
        "cubin": len(kernel.asm["cubin"]),
        "shared": kernel.metadata.shared,
        "spilled": [int(n) for n in re.findall(r"(\d+) bytes spill", said.getvalue())],
        "wgmma": ptx.count("wgmma.mma_async"),
        "mma": ptx.count("mma.sync"),
        "tcgen05": ptx.count("tcgen05.mma"),
        "fma": ptx.count("fma.rn.f32"),
        "smid": ptx.count("%smid"),
    }


def main() -> None:
    words = sys.argv[1:]
    for dtype, capability, answer in zip(words[::3], words[1::3], words[2::3], strict=True):
        major, minor = capability.split(".")
        result = compiled(dtype, (int(major), int(minor)), closed=answer == "closed")
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
