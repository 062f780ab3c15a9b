"""How the fused product is cut into tiles on which architecture: fixed, never searched for.

A search at run time would choose another kernel on another day, and two GPUs that disagree would
not have done the same. The sizes are those that keep the main loop free of spilled registers, which
`tests/test_kernel_fused_compiled.py` holds them to.
"""

from __future__ import annotations

from dataclasses import dataclass

Capability = tuple[int, int]

# Bytes of the inner dimension in one block: what a swizzled line of shared memory holds.
_LINE = 128
_WIDTHS = {"bfloat16": 2, "float16": 2, "tfloat32": 4, "int8": 1}
_HOPPER = (9, 0)
_SMALL_MEMORY = ((8, 6), (8, 9), (12, 0), (12, 1))  # 99 KiB of shared memory for a program


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """One configuration of the kernel.

    A program holds an accumulator of `rows` by `columns` and takes `depth` terms at a time, from
    memory by descriptors (by the bulk copy engine) where `described`, by pointers otherwise.
    """

    rows: int
    columns: int
    depth: int
    group: int  # tiles that share rows, one below the other, and run at the same time
    warps: int
    stages: int
    described: bool


def tiling(dtype: str, capability: Capability | None) -> Tiling:
    """Return the configuration for a dtype on a compute capability; `None` is the interpreter."""
    if capability is None:
        return Tiling(rows=32, columns=64, depth=64, group=2, warps=1, stages=1, described=True)
    described = capability >= _HOPPER
    if dtype == "float32":
        # The units for float32 take operands from registers: more depth at a time would spill.
        return Tiling(
            rows=128, columns=128, depth=8, group=8, warps=8, stages=3, described=described
        )
    small = capability in _SMALL_MEMORY
    return Tiling(
        rows=128,
        columns=128 if small else 256,
        depth=_LINE // _WIDTHS.get(dtype, 1),
        group=8,
        warps=8,
        stages=3 if small else 4,
        described=described,
    )
