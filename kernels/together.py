"""Products and memory at the same time: each alone is a lighter load than both.

Tensor cores and memory draw power from one supply and heat one package, and a fault can need both.
Two threads of one process, each with a stream of its own on a GPU; both are verified as ever.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from nodeproof.kernels import alone
from nodeproof.kernels.cells import Pattern, Sweep
from nodeproof.kernels.faults import known
from nodeproof.kernels.full_load import FullLoad
from nodeproof.kernels.memory import flip as flip_word
from nodeproof.kernels.memory import reference
from nodeproof.kernels.mismatches import WORD
from nodeproof.kernels.place import place
from nodeproof.worker import Context

_MIB = 1 << 20
_REGION = {"cuda": 8192 * _MIB, "cpu": 16 * _MIB}
_PLANTED_REGION = {"cuda": 256 * _MIB, "cpu": 2 * _MIB}
_BLOCK = {"cuda": 64 * _MIB, "cpu": _MIB // 4}
_SIZE = {"cuda": 8192, "cpu": 512}
_SHARE_OF_FREE = 4  # the region is at most the fourth part of what a GPU has free
_APART_S = 1.0  # at most, between the halves' beginnings
_ROUNDS = 2  # at least: products and passes over the memory


def together(context: Context, *, seconds: float = 0.0, plant: str = "") -> dict[str, Any]:
    """Multiply and sweep memory at once for `seconds`, at least twice each.

    `plant="flip"` flips one bit of a product, one of the memory and at the end one of
    its pattern in each polarity. Returns what `FullLoad.report`
    gives, with what was planted and found in memory at the end of its `planted` and `found`; and
    `wrong_words`, `passes`, `verified_bytes`, `region_bytes`, `reference_wrong`, `overlap_s` (how
    long both ran) and `loaded_s` (the same, and never below 0). Raises `ValueError` for an unknown
    plant, and what either half raised.
    """
    known(plant, "flip")
    device = place(context)
    load = FullLoad(context, device, size=_SIZE[device.type])
    sweep = _sweep(context, device, small=bool(plant))
    memory_planted: list[dict[str, Any]] = []
    begun = time.monotonic()
    # What counts is how long both ran, and they do not begin and end at the same moment.
    lasts_s = seconds + _APART_S if seconds else 0.0
    stop = threading.Event()  # set when a half breaks off, so that the other does not go on alone
    passes = 0

    def multiply() -> None:
        done = 0
        while not stop.is_set() and (done < _ROUNDS or time.monotonic() - begun < lasts_s):
            load.multiply(flip=plant == "flip" and done == 0)
            done += 1

    def remember() -> None:
        nonlocal passes
        while not stop.is_set() and (passes < _ROUNDS or time.monotonic() - begun < lasts_s):
            odd = passes % 2 == 1
            phase = "backwards" if odd else "forwards"
            if plant and not memory_planted:
                memory_planted.append(flip_word(context, sweep, phase, inverted=odd))
            for _ in sweep.verify(phase, inverted=odd, backwards=odd):
                pass
            passes += 1

    spans = _both(device, stop, multiply, remember)
    report = load.report()
    memory = reference(context, sweep, memory_planted)
    overlap_s = min(end for _, end in spans) - max(start for start, _ in spans)
    return {
        **report,
        "planted": report["planted"] + memory["planted"],
        "found": report["found"] + memory["found"],
        "reference_wrong": memory["reference_wrong"],
        "wrong_words": sweep.wrong,
        "passes": passes,
        "verified_bytes": sweep.verified,
        "region_bytes": sweep.bytes,
        "overlap_s": overlap_s,
        "loaded_s": max(0.0, overlap_s),
    }


def _both(
    device: Any, stop: threading.Event, here: Callable[[], None], there: Callable[[], None]
) -> list[tuple[float, float]]:
    """Run one half here and one in a thread; return when each began and ended.

    Raises what a half raised.
    """
    ready = threading.Barrier(2)
    spans: list[tuple[float, float]] = []
    raised: list[BaseException] = []

    def run(half: Callable[[], None]) -> None:
        try:
            stream = torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else None
            with stream or contextlib.nullcontext():
                ready.wait(timeout=60)
                start = time.monotonic()
                half()
            spans.append((start, time.monotonic()))
        except BaseException as error:  # noqa: BLE001  a thread's own trace would reach nobody
            raised.append(error)
            stop.set()
            ready.abort()

    if device.type == "cuda":
        torch.cuda.synchronize(device)  # what was loaded before has to be there for both streams
    thread = threading.Thread(target=run, args=(there,))
    thread.start()
    run(here)
    thread.join()
    try:
        if device.type == "cuda":
            # Memory is given on when it is freed here, whatever a stream still does with it.
            torch.cuda.synchronize(device)
    finally:
        if raised:
            raise raised[0]
    return spans


def _sweep(context: Context, device: Any, *, small: bool) -> Sweep:
    block = _BLOCK[device.type] // WORD
    size = (_PLANTED_REGION if small else _REGION)[device.type]
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what earlier work in this process holds is not in use
        free, _ = torch.cuda.mem_get_info(device)
        size = min(size, free // _SHARE_OF_FREE)
    cells = size // WORD // block * block
    if cells <= 0:
        raise RuntimeError(
            f"{context.device_id}: too little memory is free to test it beside products: end what "
            "else uses the device"
        )
    piece = (
        torch.empty(cells, dtype=torch.int64, device=device)
        if device.type == "cuda"
        else torch.from_numpy(np.empty(cells, np.int64))
    )
    pattern = Pattern(seed=context.seed, block=block, device=device)
    sweep = Sweep(pattern=pattern, pieces=[piece], block=block)
    for _ in sweep.fill():
        pass
    return sweep


def main() -> None:
    """Prove that planted faults are found, then load both for five seconds."""
    context = alone.context()
    planted = alone.caught(together(context, plant="flip"))
    print(f"planted faults caught: {planted}")
    result = together(context, seconds=5.0)
    if result["wrong"] or result["wrong_words"] or result["reference_wrong"]:
        raise SystemExit(f"wrong: {result['found']}")
    print(
        f"{result['products']} products and {result['passes']} passes exact in "
        f"{result['overlap_s']:.1f} s at once"
    )


if __name__ == "__main__":
    main()
