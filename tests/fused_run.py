"""Run by tests as a process of its own: Triton's interpreter is chosen before Triton is imported.

    TRITON_INTERPRET=1 python fused_run.py SCENE...

Prints one JSON object with what each scene came to, for the tests to judge.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from nodeproof.kernels import fused_triton
from nodeproof.kernels.formats import Family
from nodeproof.kernels.fused import EMULATED_SMS, fused
from nodeproof.kernels.fused_cell import Cell
from nodeproof.kernels.fused_fault import Fault
from nodeproof.kernels.fused_tiling import tiling
from nodeproof.kernels.operands import make
from nodeproof.worker import Context


def context(seed=7, device="cpu0"):
    return Context(
        device_kind="gpu",
        device_id=device,
        device_label=device,
        torch_device="cpu",
        threads=1,
        peers=1,
        profile="quick",
        seed=seed,
        host_root=Path("/"),
    )


def cell(dtype="float32", family=Family.CANCEL_LIFT, **cut):
    return Cell(
        make(dtype, family, size=128, seed=5),
        size=128,
        device=torch.device("cpu"),
        cut=replace(tiling(dtype, None), **cut),
        programs=EMULATED_SMS,
        emulated_sms=EMULATED_SMS,
        kernels=fused_triton,
    )


def told(made, *args, **more):
    launched = made.launch(*args, **more)
    return {
        "wrong": dict(launched.wrong),
        "tiles": dict(launched.tiles),
        "items": launched.items,
        "faults": [{**f.report(), **f.origin()} for f in launched.faults],
        "intact": made.intact(),
        "host": [made.by_host(f) for f in launched.faults[:1]],
        "closed": made.closed,
    }


def operand(side):
    made = cell()
    bits = getattr(made, side).view(torch.int32)
    bits[37, 100] = bits[37, 100] ^ (1 << 20)
    return told(made)


def nan():
    made = cell(family=Family.LONG)
    made.a[70, 3] = float("nan")
    return told(made)


def reference():
    made = cell(family=Family.LONG)
    bits = made.reference.view(torch.int32)
    bits[64, 9] = bits[64, 9] ^ 1
    return told(made)


def whole_sm():
    made = cell()
    fault = made.planned([0, 5, 6, 3], lowest=False)
    return told(made, fault, whole_sm=2)


def wrong_already():
    """Something is planted where the device is wrong by itself, among faults everywhere."""
    made = cell()
    made.a.mul_(-1)
    fault = made.planned([3, 5, 6, 4], lowest=False)
    return {"planted": fault.report(), **told(made, fault)}


def sweeps():
    """Which SM each tile was on, sweep after sweep: everything is wrong, so all is written down."""
    made = cell()
    made.a.mul_(-1)
    return [[(f["tile"], f["multiprocessor"]) for f in told(made)["faults"]] for _ in range(4)]


def order():
    """Host and kernel number tiles alike, also where the last group is not full."""
    made = cell(rows=16, columns=64, group=3)
    seen = []
    for item in range(made.tiles):
        fault = made.planned([item, item * 5, item * 7, item], lowest=False)
        launched = made.launch(fault)
        seen.append([f.report() for f in launched.faults] == [fault.report()])
    return {"tiles": made.tiles, "seen": seen}


def pointers():
    made = cell(described=False)
    fault = made.planned([1, 2, 3, 4], lowest=False)
    return {
        "clean": told(made),
        "planted": fault.report(),
        "found": told(made, replan(made, fault)),
    }


def replan(made: Cell, fault: Fault) -> Fault:
    """The same place in the next launch, in which that tile has another number."""
    return replace(fault, item=(fault.tile - made.sweep) % made.tiles, sweep=made.sweep)


SCENES = {
    "clean": lambda: fused(context()),
    "one": lambda: fused(context(), plant="flip"),
    "planted": lambda: [fused(context(s, f"cpu{s % 2}"), plant="flip") for s in range(3)],
    "a": lambda: operand("a"),
    "b": lambda: operand("b"),
    "nan": nan,
    "reference": reference,
    "whole_sm": whole_sm,
    "wrong_already": wrong_already,
    "sweeps": sweeps,
    "order": order,
    "pointers": pointers,
}


def main() -> None:
    print(json.dumps({name: SCENES[name]() for name in sys.argv[1:]}, allow_nan=False))


if __name__ == "__main__":
    main()
