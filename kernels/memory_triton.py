"""Verify and invert memory in one pass of a GPU: each word is read once and written once.

Every program holds some of the pattern's random words in registers and goes through the blocks
with them: what a word has to be costs one XOR, and nothing but the tested memory is read.
Needs Triton, which comes with torch's CUDA builds. With TRITON_INTERPRET=1 it runs on a processor.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch

try:
    import triton
    import triton.language as tl
except ImportError as error:
    if __name__ == "__main__":
        print(
            f"not tested: Triton can't be imported ({error}): install the triton package that "
            "belongs to this torch",
            file=sys.stderr,
        )
        raise SystemExit(2) from None  # 1 says that something was wrong
    raise

from nodeproof.kernels import alone
from nodeproof.kernels.cells import Pattern, Sweep
from nodeproof.kernels.mismatches import WORD, Block
from nodeproof.kernels.place import NoPlaceError, place

TILE = 2048  # words that a program holds: 16 for each of its threads
_GROUP = 64  # blocks of one launch
_ROWS = 8  # programs that share the blocks of a launch, for each tile
_WARPS = 4
_ALIKE = 16  # Triton compiles anew for numbers that are multiples of it


class Verifier:
    """Verifies blocks of a pattern. Implements `cells.Fused`."""

    group = _GROUP

    def __init__(self, pattern: Pattern, blocks: int) -> None:
        """Prepare the masks of all `blocks`. Raises `ValueError` for blocks that tiles don't fill."""
        self._base = pattern.base
        if self._base.numel() % TILE:
            raise ValueError(f"a block of {self._base.numel()} words is no multiple of {TILE}")
        self._masks = {
            inverted: torch.tensor(
                [pattern.mask(number, inverted=inverted) for number in range(blocks)],
                dtype=torch.int64,
                device=self._base.device,
            )
            for inverted in (False, True)
        }

    def __call__(self, blocks: list[Block], *, inverted: bool, invert: bool) -> Any:
        """Return how many words of `blocks` were wrong: int32, (1,), not waited for.

        The blocks are whole, lie side by side and are numbered in that order.
        """
        wrong = torch.zeros(1, dtype=torch.int32, device=self._base.device)
        words = self._base.numel()
        assert all(block.cells.numel() == words for block in blocks)
        _verify[(words // TILE, min(_ROWS, len(blocks)))](
            blocks[0].cells,
            self._base,
            self._masks[inverted][blocks[0].number :],
            wrong,
            len(blocks),
            BLOCK=words,
            TILE=TILE,
            INVERT=invert,
            num_warps=_WARPS,
        )
        return wrong


def usable(device: Any, block: int) -> bool:
    """Whether the kernels for blocks of so many words can be compiled and run here.

    Triton makes one for each of what follows, and needs a C compiler at first use.
    """
    pattern = Pattern(seed=0, block=block, device=device, windowed=False)
    try:
        cells = pattern.base.repeat(_ALIKE)
        verifier = Verifier(pattern, _ALIKE)
        blocks = [
            Block(offset=0, number=n, cells=cells[n * block : (n + 1) * block])
            for n in range(_ALIKE)
        ]
        for part in (blocks[:1], blocks[:2], blocks):  # one, some, and a multiple of sixteen
            for invert in (True, False):
                verifier(part, inverted=False, invert=invert).item()
    except Exception:  # noqa: BLE001  Triton raises whatever its compiler, linker and driver do
        return False
    return True


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]  # Triton has no types
def _verify(  # type: ignore[no-untyped-def]  # noqa: ANN202  Triton types arguments at launch
    cells,  # noqa: ANN001  int64 pointer
    base,  # noqa: ANN001  int64 pointer
    masks,  # noqa: ANN001  int64 pointer
    wrong,  # noqa: ANN001  int32 pointer
    blocks,  # noqa: ANN001  int32
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    INVERT: tl.constexpr,
):
    lanes = tl.program_id(0) * TILE + tl.arange(0, TILE)
    held = tl.load(base + lanes)
    differs = tl.zeros((TILE,), dtype=tl.int32)
    for block in range(tl.program_id(1), blocks, tl.num_programs(1)):
        places = cells + tl.cast(block, tl.int64) * BLOCK + lanes
        got = tl.load(places, eviction_policy="evict_first")
        differs += (got != (held ^ tl.load(masks + block))).to(tl.int32)
        if INVERT:
            tl.store(places, ~got, eviction_policy="evict_first")
    # Counted once at the end: a reduction for each block would make the warps wait for each other.
    count = tl.sum(differs, axis=0)
    if count > 0:
        tl.atomic_add(wrong, count)


def compiled(capability: int) -> str:
    """Return the PTX of the verifying and inverting kernel for a GPU that need not be there."""
    target = triton.backends.compiler.GPUTarget("cuda", capability, 32)
    source = triton.compiler.ASTSource(
        fn=_verify,
        signature={
            "cells": "*i64",
            "base": "*i64",
            "masks": "*i64",
            "wrong": "*i32",
            "blocks": "i32",
            "BLOCK": "constexpr",
            "TILE": "constexpr",
            "INVERT": "constexpr",
        },
        constexprs={"BLOCK": 1 << 19, "TILE": TILE, "INVERT": True},
        attrs={(0,): [["tt.divisibility", 16]], (1,): [["tt.divisibility", 16]]},
    )
    made = triton.compile(source, target=target, options={"num_warps": _WARPS})
    return str(made.asm["ptx"])


def main() -> None:
    """Prove that each planted bit is counted, then say how fast memory is verified."""
    context = alone.context()
    device = place(context)
    gpu = device.type == "cuda"
    if not gpu and os.environ.get("TRITON_INTERPRET") != "1":
        raise NoPlaceError(
            "this machine has no GPU that torch can use: set TRITON_INTERPRET=1 to run the kernel on "
            "the processor"
        )
    block, blocks = (1 << 19, 2048) if gpu else (TILE, 16)
    pattern = Pattern(seed=context.seed, block=block, device=device, windowed=False)
    cells = torch.empty(block * blocks, dtype=torch.int64, device=device)
    sweep = Sweep(pattern=pattern, pieces=[cells], block=block, fused=Verifier(pattern, blocks))
    for _ in sweep.fill():
        pass
    planted = []
    for number, inverted in enumerate((False, True)):
        offset = sweep.bytes // 3 // WORD * WORD
        planted.append(sweep.flip(offset, number * 63, "plant", inverted=inverted))
        for _ in sweep.verify("plant", inverted=inverted):
            pass
    if sweep.found != planted or sweep.wrong != len(planted):
        raise SystemExit(f"planted {planted}, found {sweep.found}")
    print(f"{len(planted)} planted bits found")
    begun, passes = time.perf_counter(), 10 if gpu else 2
    for number in range(passes):
        for _ in sweep.verify("timed", inverted=number % 2 == 1):
            pass
    spent = time.perf_counter() - begun
    if sweep.wrong != len(planted):
        raise SystemExit(f"{sweep.wrong} words wrong: {sweep.found}")
    print(f"{passes * sweep.bytes / spent / 1e9:.3f} GB/s verified and inverted")


if __name__ == "__main__":
    alone.run(main)
