"""Products that every multiprocessor (SM) of a GPU has to get right, compared where they are made.

A product that a library computes is compared by reading it back, and which SM computed a tile of it
is not known. Here one persistent program on each SM multiplies tile after tile, compares its
accumulator bit for bit with the known answer while it is still in registers, and counts the tile
for the SM it ran on. The product is never written: nothing else's memory traffic slows it down, and
no rounding to an output format hides a bit. Each sweep moves all tiles on by one program, so that
in time every SM computes every tile.

The known answer is the sum of a term of the row and a term of the column where the operands cancel,
which costs next to nothing to compare with; or else a matrix that is read tile by tile, with few
bytes for each operation.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from nodeproof.kernels import alone, formats
from nodeproof.kernels.draws import words
from nodeproof.kernels.faults import KEEP, known
from nodeproof.kernels.formats import Family
from nodeproof.kernels.fused_cell import TABLE, Cell
from nodeproof.kernels.fused_fault import Fault
from nodeproof.kernels.fused_tiling import Capability, tiling
from nodeproof.kernels.operands import make
from nodeproof.kernels.place import NoPlaceError, place, written_in_triton
from nodeproof.kernels.product import about, settle
from nodeproof.kernels.stopwatch import Stopwatch
from nodeproof.worker import Context

# Full significands in both families; the long one is for speed.
CELLS: dict[str, tuple[Family, ...]] = {
    "bfloat16": (Family.CANCEL_LIFT, Family.WIDE, Family.LONG),
    "float16": (Family.CANCEL_LIFT, Family.WIDE),
    "tfloat32": (Family.CANCEL_LIFT, Family.WIDE),
    "float32": (Family.CANCEL_LIFT, Family.LONG),
    "int8": (Family.CANCEL_LIFT, Family.WIDE),
    "float8_e4m3fn": (Family.CANCEL_LIFT, Family.WIDE),
    "float8_e5m2": (Family.CANCEL_LIFT, Family.WIDE),
}
# Each kernel takes seconds to compile, each set of operands seconds to make.
QUICK: dict[str, tuple[Family, ...]] = {
    "bfloat16": (Family.CANCEL_LIFT,),
    "float8_e4m3fn": (Family.CANCEL_LIFT,),
}
EMULATED_DTYPES = ("float32", "float16")  # what Triton's interpreter multiplies rightly
EMULATED_SMS = 4
_FP8_FROM = (8, 9)
_SIZES = {"cuda": 8192, "cpu": 128}
_DEPTH = 4096  # of a sum at most: longer operands take more of the host's memory than they gain
_LEAST = 8  # tiles of each dtype that an SM has to have checked
_LAUNCH_S = 0.1  # of one launch: long enough not to wait for launches, short enough to stop
_MOST_ITEMS = 1 << 22
_PATIENCE = 8  # launches of a cell after the time is over, for SMs that are not covered yet
_PLANTS = 2  # in each cell: the lowest bit, then any


@dataclass(slots=True)
class _Tally:
    """What all launches together came to."""

    wrong: int
    elements: int
    unaccounted: int
    operations: float
    tiles: dict[str, Counter[int]]  # of each dtype, by SM
    by_sm: Counter[int]
    found: list[Fault]
    own: int  # faults in `found` that nobody planted
    intact: bool | None
    host: str


def fused(context: Context, *, seconds: float = 0.0, plant: str = "") -> dict[str, Any]:
    """Multiply known operands in every dtype until `seconds` are over and every SM is covered.

    Under the profile "quick" bfloat16 and, where the GPU has it, FP8 stand for all.

    With `plant="flip"` one bit of the accumulator is flipped in each of two launches of each kind
    of operands, before the comparison, in a tile that the seed draws. Returns `wrong` (elements),
    `found` and `planted` (one entry for each wrong tile: dtype, family, tile, sweep, row and column
    of its first wrong element, its bits), `found_on` (for each of `found`: the SM, and how much of
    the tile was wrong), `by_sm` (wrong elements, where there are any), `multiprocessors` (how many
    the GPU says it has), `covered` (how many of them checked at least `least_tiles_wanted` tiles of
    each dtype), `least_tiles` (of the SM that checked fewest), `unaccounted` (tiles that no SM says
    it checked), `checked_elements`, `operations` (all compared), `operands_intact` (`None` where
    nothing was wrong), `dtypes`, `cells` (the certificates), `versions`, `flags`, `tflops` and
    `loaded_s` (both without compiling). Raises `ValueError` for an unknown plant, `NoPlaceError`
    where there is no whole GPU or no Triton to use.
    """
    known(plant, "flip")
    flags = settle(context.threads)
    device = place(context)
    capability, multiprocessors = _whole(context, device)
    kernels = _kernels(context, device)
    cells = _cells(context, device, capability, multiprocessors, kernels)
    dtypes = list(dict.fromkeys(cell.dtype for cell in cells))
    tally = _Tally(
        wrong=0,
        elements=0,
        unaccounted=0,
        operations=0.0,
        tiles={dtype: Counter() for dtype in dtypes},
        by_sm=Counter(),
        found=[],
        own=0,
        intact=None,
        host="",
    )
    planted: list[Fault] = []
    for cell in cells:
        _add(tally, cell)  # compiles, so it is compared but no measure of speed
        for number in range(_PLANTS if plant else 0):
            draw = words(context.seed, f"fused {cell.name} {number} {context.device_id}", 1, 4)[0]
            fault = cell.planned(draw.tolist(), lowest=number == 0)
            planted.append(fault)
            _add(tally, cell, fault)
    before, watch = tally.operations, Stopwatch(context, seconds)
    for number, cell in enumerate(itertools.cycle(cells)):
        late = number - len(cells) * _PATIENCE
        enough = _coverage(tally, multiprocessors)[0] >= multiprocessors or late > 0
        if number >= len(cells) and watch.spent >= seconds and enough:
            break
        started = watch.read()
        _add(tally, cell)
        cell.pace(watch.read() - started, _LAUNCH_S, _MOST_ITEMS)
        tflops = (tally.operations - before) / watch.spent / 1e12
        watch.tell(tflops=tflops, done=watch.share)
    covered, least_tiles = _coverage(tally, multiprocessors)
    return {
        "wrong": tally.wrong,
        "found": [fault.report() for fault in tally.found],
        "planted": [fault.report() for fault in planted],
        "found_on": [fault.origin() for fault in tally.found],
        "by_sm": {str(sm): count for sm, count in sorted(tally.by_sm.items())},
        "multiprocessors": multiprocessors,
        "covered": covered,
        "least_tiles": least_tiles,
        "least_tiles_wanted": _LEAST,
        "unaccounted": tally.unaccounted,
        "checked_elements": tally.elements,
        "operations": tally.operations,
        "operands_intact": tally.intact,
        "host": tally.host,
        "dtypes": dtypes,
        "cells": [cell.facts() for cell in cells],
        "versions": {**about(device), "triton": kernels.VERSION},
        "flags": flags,
        "loaded_s": watch.spent,
        "tflops": (tally.operations - before) / watch.spent / 1e12,
    }


def _whole(context: Context, device: Any) -> tuple[Capability | None, int]:
    """Compute capability and number of SMs of a GPU that is there as a whole.

    `None` on a processor, for which Triton's interpreter stands in where it is switched on.
    """
    who = f"{context.device_label} {context.device_id}"
    emulated = os.environ.get("TRITON_INTERPRET") == "1"
    if device.type != "cuda":
        if emulated:
            return None, EMULATED_SMS
        raise NoPlaceError(f"{who} has no multiprocessors of a GPU: nothing to test SM by SM")
    if torch.version.hip is not None:
        raise NoPlaceError(
            f"{who}: which multiprocessor computes what is asked by CUDA's means only"
        )
    if emulated:
        raise NoPlaceError(
            f"TRITON_INTERPRET is set, so the processor would compute in place of {who}: unset it"
        )
    facts = torch.cuda.get_device_properties(device)
    if "MIG" in facts.name or "MIG" in context.device_id:
        raise NoPlaceError(
            f"{who} is a slice of a GPU, and a GPU is proven as a whole: disable MIG and test again"
        )
    share = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100")
    if share != "100":
        raise NoPlaceError(
            f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is {share}, so only some multiprocessors of {who} "
            "are there to be tested: unset it"
        )
    return (facts.major, facts.minor), int(facts.multi_processor_count)


def _kernels(context: Context, device: Any) -> ModuleType:
    """Import the kernels. Raises `NoPlaceError` where Triton is missing or would not use the GPU."""
    module = written_in_triton("fused_triton", context, what="a single multiprocessor")
    # The variable may have been otherwise when the module was first imported.
    if module.COMPILED is not (device.type == "cuda"):
        raise NoPlaceError(
            f"{context.device_label} {context.device_id}: TRITON_INTERPRET was set or unset after "
            "Triton's kernels were loaded: set it for the whole process or not at all"
        )
    return module


def _cells(
    context: Context,
    device: Any,
    capability: Capability | None,
    multiprocessors: int,
    kernels: ModuleType,
) -> list[Cell]:
    size = _SIZES[device.type]
    return [
        Cell(
            make(
                dtype,
                family,
                size=min(size, _DEPTH),
                seed=context.seed,
                accumulator=formats.accumulator(dtype, capability),
            ),
            size=size,
            device=device,
            cut=tiling(dtype, capability),
            programs=multiprocessors,
            emulated_sms=EMULATED_SMS if capability is None else 0,
            kernels=kernels,
        )
        for dtype, families in _chosen(context, capability).items()
        if _has(dtype, capability)
        for family in families
    ]


def _chosen(context: Context, capability: Capability | None) -> dict[str, tuple[Family, ...]]:
    return QUICK if capability is not None and context.profile == "quick" else CELLS


def _has(dtype: str, capability: Capability | None) -> bool:
    """Whether the device multiplies a dtype; all that it does not say it lacks, it has to."""
    if capability is None:
        return dtype in EMULATED_DTYPES
    return dtype not in formats.FP8 or capability >= _FP8_FROM


def _add(tally: _Tally, cell: Cell, fault: Fault | None = None) -> None:
    """Launch, and add what came of it. Raises `NoPlaceError` where the kernel cannot be had."""
    try:
        launched = cell.launch(fault)
    except Exception as error:  # compiler, assembler, linker and driver have an error each
        raise NoPlaceError(
            f"the kernel for {cell.name} could not be compiled or run, so nothing is known of it: "
            f"{type(error).__name__}: {error}"
        ) from error
    checked = launched.tiles.total()
    tally.tiles[cell.dtype].update(launched.tiles)
    tally.unaccounted += abs(launched.items - checked)
    tally.elements += checked * cell.cut.rows * cell.cut.columns
    tally.operations += checked * cell.operations_per_tile
    tally.wrong += launched.wrong.total()
    tally.by_sm.update(launched.wrong)
    for found in launched.faults:
        planted = fault is not None and found.item == fault.item
        if planted or tally.own < KEEP:
            tally.found.append(found)
            tally.own += not planted
    if launched.wrong and tally.intact is None:
        tally.intact = cell.intact()
    if launched.faults and not tally.host:
        tally.host = cell.by_host(launched.faults[0])


def _coverage(tally: _Tally, multiprocessors: int) -> tuple[int, int]:
    """How many SMs checked enough of each dtype, and the tiles of the SM and dtype with fewest."""
    seen = set().union(*tally.tiles.values())
    # What ran on an SM beyond the table covers none, and shows that the table is not all there is.
    beyond = TABLE - 1 in seen
    least = [min(tiles[sm] for tiles in tally.tiles.values()) for sm in seen - {TABLE - 1}]
    covered = sum(tiles >= _LEAST for tiles in least)
    if beyond:
        covered = min(covered, multiprocessors - 1)
    return covered, min(least, default=0) if len(least) >= multiprocessors and not beyond else 0


def main() -> None:
    """Prove each dtype, its planted faults and every SM first, then say how fast it is."""
    context = alone.context()
    planted = fused(context, plant="flip")
    alone.caught(planted)
    print(f"{len(planted['planted'])} planted faults caught in {', '.join(planted['dtypes'])}")
    timed = fused(context, seconds=3.0)
    if timed["wrong"] or timed["unaccounted"]:
        raise SystemExit(f"{timed['wrong']} wrong, {timed['unaccounted']} lost: {timed['found']}")
    print(
        f"{timed['covered']} of {timed['multiprocessors']} SMs exact, {timed['least_tiles']} tiles "
        f"of each dtype at least: {timed['tflops']:.3f} TFLOP/s over all dtypes"
    )


if __name__ == "__main__":
    alone.run(main)
