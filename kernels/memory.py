"""Memory that has to hold what was written to it, every 64-bit word of it compared.

On a processor the share is of what the control group leaves, so that the test itself does not
provoke the kernel; on a GPU it is of what is free, in pieces, short of what the driver needs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from nodeproof.kernels import alone
from nodeproof.kernels.cells import WORD, Pattern, Sweep
from nodeproof.kernels.headroom import available
from nodeproof.kernels.operands import words
from nodeproof.kernels.place import place
from nodeproof.worker import Context

_MIB = 1 << 20
_GPU_RESERVE = 512 * _MIB  # for the driver and the library's own buffers
_CHUNK = 1024 * _MIB  # of one allocation on a GPU, where free memory may be in pieces
_REGION = 64 * _MIB  # in which faults are planted
_PASSES = 2  # at least, before the last: one each way
_REPORT_S = 0.5
# A machine with less than the rest does not go on; of a GPU's free memory the driver's part is gone.
_MOST = {"cuda": 0.99, "cpu": 0.95}


def pattern(
    context: Context, *, cpu_share: float, gpu_share: float, seconds: float = 0.0, plant: str = ""
) -> dict[str, Any]:
    """Fill a share of the memory and verify it for `seconds`, at least once both ways.

    On a processor `cpu_share` is of what all devices under test may take together; on a GPU
    `gpu_share` is of what is free. With `plant="flip"` a small region is taken and one bit is
    flipped before each kind of pass. When the memory is filled an event `memory.filled` says where
    it is. Returns `wrong` (words), `found`, `planted`, `strides`, `reference_wrong` (words of the
    pattern itself), `bytes`, `asked` (bytes), `share` (of what was free, over all devices),
    `share_of_total`, `free_of_total`, `passes`, `gb_per_s` (verified) and `loaded_s`. Raises
    `ValueError` for a share that is none, `RuntimeError` where that much memory cannot be had.
    """
    if plant not in {"", "flip"}:
        raise ValueError(f"plant {plant!r}: this kernel knows 'flip'")
    torch.set_num_threads(context.threads)
    device = place(context)
    gpu = device.type == "cuda"
    share, peers = (gpu_share, 1) if gpu else (cpu_share, context.peers)
    most = _MOST[device.type]
    if not 0 < share <= most:
        raise ValueError(
            f"a share of {share} of the memory: more than 0 and at most {most} can be tested"
        )
    free, total = _free(device)
    block = (64 * _MIB if gpu else _MIB // 4) // WORD
    asked = int(free * share) // peers
    if plant:
        asked = min(asked, _REGION if not gpu else 8 * _REGION)
    # The pattern itself takes two blocks.
    wanted = min(asked, free - _GPU_RESERVE - 2 * block * WORD) if gpu else asked
    pieces = _take(wanted // (block * WORD) * block, device, context, free)
    held = Pattern(seed=context.seed, block=block, device=device)
    sweep = Sweep(pattern=held, pieces=pieces, block=block)
    meter = _Meter(context)
    meter.follow("filling", sweep.fill(), sweep.bytes)
    starts = [
        {"address": f"{piece.data_ptr():#x}", "bytes": piece.numel() * WORD} for piece in pieces
    ]
    context.event(
        "memory.filled",
        pid=os.getpid(),
        bytes=sweep.bytes,
        address=starts[0]["address"],
        pieces=starts,
    )
    planted = []
    begun, passes = time.perf_counter(), 0
    while passes < _PASSES or time.perf_counter() - begun < seconds:
        odd = passes % 2 == 1  # what odd passes read, even ones have inverted
        phase = "backwards" if odd else "forwards"
        if plant and passes < _PASSES:
            planted.append(_flip(sweep, context.seed, phase, inverted=odd))
        meter.follow(phase, sweep.verify(phase, inverted=odd, backwards=odd), sweep.bytes)
        passes += 1
    odd = passes % 2 == 1
    if plant:
        planted.append(_flip(sweep, context.seed, "last", inverted=odd))
    meter.follow("last", sweep.verify("last", inverted=odd, invert=False), sweep.bytes)
    _finish(device)
    spent = time.perf_counter() - begun
    return {
        "wrong": sweep.wrong,
        "found": sweep.found,
        "planted": planted,
        "strides": sweep.strides(),
        "reference_wrong": sweep.pattern.damage(),
        "bytes": sweep.bytes,
        "share": sweep.bytes * peers / free,
        "asked": asked,
        "share_of_total": sweep.bytes * peers / total,
        "free_of_total": free / total,
        "passes": passes + 1,
        "gb_per_s": sweep.verified / spent / 1e9,
        "loaded_s": spent,
    }


class _Meter:
    """Tells the live view how far a pass is, twice a second."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._told = 0.0

    def follow(self, phase: str, steps: Iterator[int], whole: int) -> None:
        for count, _ in enumerate(steps):
            now = time.perf_counter()
            if now - self._told >= _REPORT_S:
                self._told = now
                self._context.progress(phase=phase, blocks=float(count), bytes=float(whole))


def _flip(sweep: Sweep, seed: int, phase: str, *, inverted: bool) -> dict[str, Any]:
    draw = words(seed, f"memory flip {phase}", 1, 2)[0]
    offset = int(draw[0]) % (sweep.bytes // WORD) * WORD
    return sweep.flip(offset, int(draw[1]) % 64, phase, inverted=inverted)


def _free(device: Any) -> tuple[int, int]:
    if device.type != "cuda":
        return available()
    torch.cuda.empty_cache()  # what earlier work in this process still holds is not in use
    free, total = torch.cuda.mem_get_info(device)
    return int(free), int(total)


def _take(cells: int, device: Any, context: Context, free: int) -> list[Any]:
    """Take memory, in chunks on a GPU. Raises `RuntimeError` where there is not enough."""
    lack = (
        f"{context.device_id}: {max(cells, 0) * WORD / _MIB:.0f} MiB to test could not be had, "
        f"{free / _MIB:.0f} MiB are free: end what else uses the memory, or lower the share"
    )
    if cells <= 0:
        raise RuntimeError(lack)
    try:
        if device.type != "cuda":
            # By numpy, which asks for huge pages where the system leaves that to the program.
            return [torch.from_numpy(np.empty(cells, np.int64))]
        chunk = _CHUNK // WORD
        return [
            torch.empty(min(chunk, cells - start), dtype=torch.int64, device=device)
            for start in range(0, cells, chunk)
        ]
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise RuntimeError(f"{lack} ({error})") from error


def _finish(device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    """Prove that planted faults are found, then verify a quarter of the memory and say how fast."""
    context = alone.context()
    planted = pattern(context, cpu_share=0.25, gpu_share=0.9, plant="flip")
    if planted["planted"] != planted["found"] or not planted["planted"]:
        raise SystemExit(f"planted {planted['planted']}, found {planted['found']}")
    print(f"planted faults caught in {planted['bytes'] / _MIB:.0f} MiB")
    result = pattern(context, cpu_share=0.1, gpu_share=0.9)
    if result["wrong"] or result["reference_wrong"]:
        raise SystemExit(f"{result['wrong']} words wrong: {result['found']}")
    print(
        f"{result['bytes'] / _MIB:.0f} MiB exact in {result['loaded_s']:.1f} s: "
        f"{result['gb_per_s']:.1f} GB/s verified"
    )


if __name__ == "__main__":
    main()
