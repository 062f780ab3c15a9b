"""Keep chains of arithmetic running on a device for a time, and account for what was wrong.

On a GPU with Triton each program does all lanes in registers, and the multiprocessors that did so
are counted: one that was never asked is no pass. Elsewhere torch does the steps one by one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from nodeproof.kernels import alone
from nodeproof.kernels.bits import signed, unsigned
from nodeproof.kernels.faults import KEEP, known
from nodeproof.kernels.lanes import (
    Chain,
    Fault,
    HostError,
    Ledger,
    Loaded,
    described,
    load,
    walk,
)
from nodeproof.kernels.place import place, written_in_triton
from nodeproof.kernels.product import about
from nodeproof.kernels.stopwatch import Stopwatch
from nodeproof.worker import Context

_TABLE = 1024  # multiprocessors at most, by number
_FIELDS = 7
_EMULATED = 2  # multiprocessors that the interpreter pretends to have
_RESIDENT = 16  # programs for each multiprocessor: more than run at once
_LAUNCH_S = 0.05
_MOST = 1 << 14  # passes of one launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How large the chains are made, and how often each lane is there at a time."""

    lanes: int
    segments: int
    steps: int  # of a segment
    copies: int = 1
    epoch_s: float = 1.0  # after which all lanes start anew from other values


_SHAPES = {
    ("triton", "cuda"): Shape(lanes=256, segments=8, steps=256, epoch_s=10.0),
    ("triton", "cpu"): Shape(lanes=32, segments=2, steps=4),  # the interpreter, for tests
    ("torch", "cuda"): Shape(lanes=2048, segments=4, steps=64, copies=1024, epoch_s=10.0),
    ("torch", "cpu"): Shape(lanes=512, segments=4, steps=32, epoch_s=2.0),
}
Make = Callable[[int, Shape, bool], list[Chain]]  # from a seed, with fused steps or without


def chase(
    context: Context, make: Make, *, seconds: float, plant: str, path: str = ""
) -> dict[str, Any]:
    """Run the chains that `make` makes for `seconds`, each at least once, and compare every lane.

    `path` is "triton" or "torch", "" for Triton on a GPU of NVIDIA and torch elsewhere. With
    `plant="flip"` each chain gets its planted faults first (`Chain.faults`). Returns `wrong`
    (lanes, after segments), `found`, `planted`, `path`, `chains` (names of those that were compared
    in every round), `proven` (lanes whose end the host found in two ways), `rounds`, `passes`, `operations`, `units` and `units_covered` (multiprocessors, and those that were seen to answer; torch does not say
    which did, so there the device is one), `wrong_by_unit`, `loaded_s`, `gops` and `versions`.
    Raises `ValueError` for an unknown plant or path, `RuntimeError` without Triton where it is
    needed and where the host contradicts itself.
    """
    known(plant, "flip")
    torch.set_num_threads(context.threads)
    device = place(context)
    nvidia = device.type == "cuda" and torch.version.hip is None
    path = path or ("triton" if nvidia else "torch")
    shape = _SHAPES.get((path, device.type))
    if shape is None:
        raise ValueError(f"path {path!r} on {device}: known are triton and torch, on cuda and cpu")
    ledger = Ledger()
    runner = Registers(device, context) if path == "triton" else Steps(shape)
    clock = _Clock(context, ledger, seconds)
    while not clock.epochs or clock.spent < seconds:
        seed = context.seed + clock.epochs
        chains = make(seed, shape, path == "triton")
        for chain in chains:
            ledger.proven += chain.prove(seed)
        loads = [load(chain, device) for chain in chains]
        if not clock.epochs:
            for loaded in loads:
                if plant:
                    _doubt(loaded.chain, seed)
                    _plant(loaded, runner, ledger, context)
                # Compiles, and is compared like any other, but not timed.
                runner.run(loaded, ledger)
        clock.epoch(partial(_round, loads, runner, ledger), shape.epoch_s)
    return {
        "wrong": ledger.wrong,
        "found": ledger.found,
        "planted": ledger.planted,
        "path": path,
        "chains": [name for name, runs in ledger.runs.items() if runs > clock.rounds],
        "proven": ledger.proven,
        "rounds": clock.rounds,
        "epochs": clock.epochs,
        "passes": ledger.passes,
        "operations": ledger.operations,
        **runner.coverage(),
        "versions": about(device),
        "loaded_s": clock.spent,
        "gops": clock.gops,
    }


def show(work: Callable[..., dict[str, Any]]) -> None:
    """Prove the chains of a work and their planted faults first, then say how fast they run."""
    context = alone.context()
    clean = work(context)
    if clean["wrong"]:
        raise SystemExit(f"{clean['wrong']} wrong: {clean['found'][:1]}")
    alone.caught(work(context, plant="flip"))
    print(f"{', '.join(clean['chains'])} by {clean['path']}: exact, planted faults caught")
    timed = work(context, seconds=2.0)
    if timed["wrong"]:
        raise SystemExit(f"{timed['wrong']} wrong while timing: {timed['found'][:1]}")
    print(f"{timed['gops']:.3f} Gop/s, {timed['units_covered']} of {timed['units']} units")


class _Clock:
    """Counts the seconds in which chains ran, and tells the live view."""

    def __init__(self, context: Context, ledger: Ledger, seconds: float) -> None:
        self._ledger = ledger
        self._seconds = seconds
        self._watch = Stopwatch(context)
        self._done = 0
        self.spent = 0.0
        self.epochs = 0
        self.rounds = 0

    def epoch(self, do: Callable[[], None], lasts: float) -> None:
        """Repeat `do` until the epoch or the whole time is over, but once at least."""
        self.epochs += 1
        until = self.spent + lasts
        while True:
            before, begun = self._ledger.operations, time.perf_counter()
            do()
            self.spent += time.perf_counter() - begun
            self.rounds += 1
            self._done += self._ledger.operations - before
            self._watch.tell(gops=self.gops, wrong=self._ledger.wrong)
            if self.spent >= min(until, self._seconds):
                break

    @property
    def gops(self) -> float:
        """Operations in a billionth of a second."""
        return self._done / self.spent / 1e9


def _round(loads: list[Loaded], runner: Steps | Registers, ledger: Ledger) -> None:
    for loaded in loads:
        runner.run(loaded, ledger)


def _doubt(chain: Chain, seed: int) -> None:
    """Have the host contradict itself, which it has to notice."""
    marks = chain.marks.copy()
    marks[1:] ^= marks.dtype.type(1)
    try:
        replace(chain, marks=marks).prove(seed)
    except HostError:
        return
    raise RuntimeError(
        f"a wrong answer to {chain.name} was taken for a known one: the host does not check itself"
    )


def _plant(loaded: Loaded, runner: Steps | Registers, ledger: Ledger, context: Context) -> None:
    chain = loaded.chain
    for fault in chain.faults(context.seed, context.device_id, runner.copies, ledger.passes):
        ledger.plant(chain, fault)
        runner.run(loaded, ledger, fault)


class Steps:
    """Each step an operation of torch, on any device."""

    def __init__(self, shape: Shape) -> None:
        self.copies = shape.copies
        self._passes = 0

    def run(self, loaded: Loaded, ledger: Ledger, fault: Fault | None = None) -> None:
        """Do one pass."""
        walk(loaded, ledger, copies=self.copies, number=ledger.passes, fault=fault)
        self._passes += 1

    def coverage(self) -> dict[str, Any]:
        """The device as one: torch does not say which of its parts did what."""
        return {"units": 1, "units_covered": min(self._passes, 1), "wrong_by_unit": {}}


class Registers:
    """All steps of a pass in one kernel, in every program on every multiprocessor."""

    def __init__(self, device: Any, context: Context) -> None:
        emulated = device.type != "cuda"
        if emulated and os.environ.get("TRITON_INTERPRET") != "1":
            raise ValueError("without a GPU the path triton needs TRITON_INTERPRET=1")
        what = "the registers of each multiprocessor"
        self._kernel = written_in_triton("alu_triton", context, what=what).chase
        self._who = f"{context.device_label} {context.device_id}"
        self._launched = 0
        self._device = device
        self._emulated = _EMULATED if emulated else 0
        units = (
            _EMULATED
            if emulated
            else torch.cuda.get_device_properties(device).multi_processor_count
        )
        self._units = int(units)
        self.copies = self._units * (1 if emulated else _RESIDENT)
        self._passes: dict[str, int] = {}  # of one launch, by chain
        self._by_unit = self._zeros(_TABLE)
        self._wrong_by_unit = self._zeros(_TABLE)

    def run(self, loaded: Loaded, ledger: Ledger, fault: Fault | None = None) -> None:
        """Do one launch: as many passes as take some time, but one for a planted fault."""
        chain = loaded.chain
        first = chain.name not in self._passes
        passes = 1 if first or fault else self._passes[chain.name]
        orders = [passes, 0, -1, -1, -1, -1, -1, 0]
        if fault:
            mask = signed(1 << fault.bit, 64 if chain.width == 64 else 33)
            where = (fault.copy, fault.segment, fault.lane, fault.word, mask)
            orders = [passes, fault.cut, 0, *where]
        given = torch.tensor(orders, dtype=torch.int64).to(self._device)
        logged = self._zeros(1)
        log = torch.full((KEEP + 1, _FIELDS), -1, dtype=torch.int64, device=self._device)
        begun = time.perf_counter()
        self._kernel[(self.copies,)](
            loaded.marks,
            loaded.parameter,
            given,
            self._by_unit,
            self._wrong_by_unit,
            logged,
            log,
            KIND=chain.name,
            WORDS=chain.words,
            LANES=chain.lanes,
            SEGMENTS=chain.segments,
            STEPS=chain.steps,
            KEEP=KEEP,
            FIELDS=_FIELDS,
            EMULATED=self._emulated,
            enable_fp_fusion=False,
            num_warps=4,
        )
        wrong = int(logged)  # waits for the end
        took = time.perf_counter() - begun
        self._launched += self.copies * passes
        if int(self._by_unit.sum()) != self._launched:
            raise RuntimeError(
                f"{self._who}: of {self._launched} passes {int(self._by_unit.sum())} were done: the "
                "driver lost programs that it was given; see the kernel log for XIDs, and reset it"
            )
        if first:
            self._passes[chain.name] = 1  # that launch was compiled: its time says nothing
        elif not fault:
            more = int(passes * _LAUNCH_S / max(took, 1e-6))
            self._passes[chain.name] = 1 if self._emulated else max(1, min(more, _MOST))
        if wrong:
            ledger.wrong += wrong
            self._describe(log, chain, ledger)
        ledger.did(chain, copies=self.copies, passes=passes)

    def coverage(self) -> dict[str, Any]:
        """How many multiprocessors did at least one pass of all lanes, and which went wrong."""
        wrong = self._wrong_by_unit.tolist()
        return {
            "units": self._units,
            "units_covered": int(torch.count_nonzero(self._by_unit)),
            "wrong_by_unit": {str(sm): count for sm, count in enumerate(wrong) if count},
        }

    def _zeros(self, size: int) -> Any:
        return torch.zeros(size, dtype=torch.int64, device=self._device)

    def _describe(self, log: Any, chain: Chain, ledger: Ledger) -> None:
        rows = log.cpu().tolist()
        own = sorted(row for row in rows[:KEEP] if row[0] >= 0)
        for row in own[: max(KEEP - len(ledger.found), 0)] + [r for r in rows[KEEP:] if r[0] >= 0]:
            number, program, _, segment, lane, *found = row
            got = tuple(unsigned(word, chain.width) for word in found[: chain.words])
            where = (ledger.passes + number, program, segment, lane)
            ledger.found.append(described(chain, where, got))
