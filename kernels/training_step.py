"""The same training steps again and again, every value in them held against the first time.

Fixed weights and data go forward, backward and through the optimiser. Each activation, gradient,
weight and moment leaves a digest of all its bits, in order of computation, so that two runs that
part name the module at which they did. The weights that each run begins with are known answers;
the rest is compared with the device's own first run, with other devices and with a recorded answer.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from nodeproof.kernels import alone, golden
from nodeproof.kernels.digest import Digest
from nodeproof.kernels.draws import words
from nodeproof.kernels.faults import KEEP, known
from nodeproof.kernels.place import place
from nodeproof.kernels.product import about, settle
from nodeproof.kernels.stopwatch import Stopwatch
from nodeproof.kernels.tape import Fault, Place, Tape, Trail
from nodeproof.kernels.transformer import (
    RECIPES,
    VERSION,
    AdamW,
    Model,
    Recipe,
    initial,
    shapes,
    tokens,
)
from nodeproof.worker import Context

_RUNS = 2  # at least: the first can only be judged by another
_PARTS = ("forward", "backward", "gradient", "optimiser")  # where a fault is planted in turn
_TO_NONE = 30  # the bit that is off in the exponent of a float32 of 1 to 2: set, it is no number
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_REPRODUCIBLE = (":4096:8", ":16:8")  # cuBLAS documentation, "Results reproducibility"
_ERROR = 2  # of torch's debug mode: what has no deterministic form raises


class Replay:
    """Runs the recipe on one device, compares, and remembers what parted."""

    def __init__(self, recipe: Recipe, device: Any, context: Context) -> None:
        self._recipe = recipe
        self._context = context
        self._device = device
        size = {"weights": 4, "values": torch.finfo(getattr(torch, recipe.dtype)).bits // 8}
        seen = recipe.batch * recipe.length
        largest = max(
            *(rows * columns * size["weights"] for rows, columns in shapes(recipe).values()),
            seen * recipe.vocabulary * 4,  # the logarithms of the softmax are float32
            seen * 4 * recipe.width * size["values"],
            seen * recipe.heads * recipe.length * size["values"],
        )
        self._digest = Digest(largest=largest, device=device)
        self.known: Trail = {}  # what the host says of the values that a run begins with
        self._weights: dict[str, Any] = {}
        for name, values in initial(recipe):
            self.known[_start(name)] = self._digest.of_host(values)
            self._weights[name] = torch.from_numpy(values).to(device)
        data = tokens(recipe)
        self.known[_start("tokens")] = self._digest.of_host(data)
        self._data = torch.from_numpy(data).to(device)
        self._model = Model(recipe, self._data)
        self.reference: Trail = {}
        self.runs = self.diverged = self.compared = self.unfinite = 0
        self.found: list[dict[str, Any]] = []
        self.planted: list[dict[str, Any]] = []

    def run(self) -> None:
        """Run once; the first time is what all others are held against."""
        trail = self._once(Tape(self._digest))
        self._judge(trail, self.reference)
        self.reference = self.reference or trail

    def plant(self) -> Trail:
        """Run with a fault in each part in turn, and return the last of these runs.

        Twice each, so that every value of these runs counts too: what comes after the fault is
        nobody's known answer, but has to be the same again. A weight is hit once and as in a first
        run, of which the host alone can tell, and so that no loss is a number; what is not a number
        hides what else is wrong with it.
        """
        self._planted(self._spoiling(), {})
        for part in _PARTS:
            fault = self._draw(part)
            trail = self._planted(fault, self.reference)
            self._hold(self._once(Tape(self._digest, fault)), trail)
        return trail

    def _planted(self, fault: Fault, reference: Trail) -> Trail:
        tape = Tape(self._digest, fault)
        trail = self._once(tape)
        if tape.flipped is None:
            raise RuntimeError(f"no run came to {fault.place}, where a fault was to be planted")
        right = {**self.reference, **self.known}[fault.place]
        self.planted.append(
            self._described(fault.place, right, self._digest.replaced(right, *tape.flipped))
        )
        self._judge(trail, reference, also=fault.place)
        return trail

    def _judge(self, trail: Trail, reference: Trail, *, also: Place | None = None) -> None:
        """Hold a run against the host's word, and for the rest against the first run if there was."""
        stop = None if reference else len(self.known)
        self._hold(trail, {**reference, **self.known}, stop=stop, also=also)

    def _once(self, tape: Tape) -> Trail:
        weights = {
            name: tape.see(_start(name), weight.clone()).requires_grad_()
            for name, weight in self._weights.items()
        }
        tape.see(_start("tokens"), self._data)
        optimiser = AdamW(weights)
        for step in range(self._recipe.steps):
            self._step(step, weights, optimiser, tape)
        self.runs += 1
        self.unfinite += tape.unfinite()
        return tape.read()

    def _step(self, step: int, weights: dict[str, Any], optimiser: AdamW, tape: Tape) -> None:
        loss = self._model.loss(weights, lambda name, value: tape.forward(step, name, value))
        given = torch.autograd.grad(loss, list(weights.values()))
        gradients = {
            # In the order in which the backward pass came to them: from the end.
            name: tape.see(Place(step=step, part="gradient", module=name), gradient.contiguous())
            for name, gradient in reversed(list(zip(weights, given, strict=True)))
        }
        with torch.no_grad():
            optimiser.step(
                gradients,
                lambda name, value: tape.see(
                    Place(step=step, part="optimiser", module=name), value
                ),
            )

    def _hold(
        self, trail: Trail, against: Trail, *, stop: int | None = None, also: Place | None = None
    ) -> None:
        """Compare digests, and describe the first that differs, and the one at `also` if it does.

        Raises `RuntimeError` if the two do not speak of the same values in the same order.
        """
        mine = list(trail.items())[:stop]
        if [at for at, _ in mine] != list(against):
            raise RuntimeError(
                f"{self._context.device_id}: two runs of the same steps computed other values, or "
                "in another order: the torch build is not usable here"
            )
        self.compared += len(mine)
        parted = [at for at, number in mine if number != against[at]]
        if not parted:
            return
        self.diverged += 1
        # A device that parts everywhere must not crowd out the planted fault.
        for at in dict.fromkeys((parted[0], *(a for a in parted if a == also))):
            if len(self.found) < KEEP or also is not None:
                self.found.append(self._described(at, against[at], trail[at]))

    def _described(self, at: Place, expected: int, got: int) -> dict[str, Any]:
        return {
            "run": self.runs - 1,
            **at.facts(),
            "expected": f"{expected:016x}",
            "got": f"{got:016x}",
        }

    def _draw(self, part: str) -> Fault:
        which, element, bit = self._words(part)
        places = [at for at in self.reference if at.part == part]
        return Fault(place=places[which % len(places)], element=element, bit=bit)

    def _spoiling(self) -> Fault:
        """Draw a gain of the last norm that one bit makes no finite number, and with it the loss."""
        gains = self._weights["norm"][0].cpu()
        able = torch.nonzero((gains >= 1) & (gains < 2)).flatten().tolist()
        which, *_ = self._words("start")
        element = able[which % len(able)] if able else 0
        return Fault(place=_start("norm"), element=element, bit=_TO_NONE)

    def _words(self, part: str) -> list[int]:
        # Elsewhere on each device: the same fault on two of them would be no hardware's.
        tag = f"training {part} {self._context.device_id}"
        found: list[int] = words(self._context.seed, tag, 1, 3)[0].tolist()
        return found


def replay(context: Context, *, seconds: float = 0.0, plant: str = "") -> dict[str, Any]:
    """Run the recipe of this kind of device for `seconds`, at least twice.

    With `plant="flip"` the two are followed by runs in which one bit of one value is flipped: of a
    weight that is begun with, an activation, what flows back, a gradient, a weight or moment, each
    drawn from the seed. Returns `diverged` (runs that parted from what they were held against),
    `found` (the first value at which each did), `planted`, `runs` and `compared` (digests) without
    what was planted, `unfinite` (losses that are no number), `trail` (the digests of the first run,
    in order), `digest` (of the trail), `golden` (what a recorded answer for exactly this `key` says,
    or ""), `key` (all that decides the bits), `asks` (what another device's result has to say to be
    a witness), `recipes` (their version), `devices` (under test), `flags`, `loaded_s` and
    `steps_per_s`. With a plant, `trail` is of the last planted run, and `golden` of the first run.
    Raises `ValueError` for an unknown plant, `RuntimeError` where torch can't be made deterministic
    or memory is short.
    """
    known(plant, "flip")
    device = place(context)
    # Threads of a processor divide sums among them, so that their number is in the answer.
    flags = settle(context.threads if device.type == "cuda" else 1)
    if device.type not in RECIPES:
        raise ValueError(f"torch device {str(device)!r}: known are {', '.join(RECIPES)}")
    recipe = RECIPES[device.type]
    with _deterministic(device, context), _memory(context):
        key = _key(device, recipe, context)
        runner = Replay(recipe, device, context)
        watch = Stopwatch(context, seconds)
        while runner.runs < _RUNS or watch.spent < seconds:
            runner.run()
            watch.read()
            watch.tell(runs=float(runner.runs), done=watch.share)
        runs, compared = runner.runs, runner.compared
        rate = runs * recipe.steps / watch.spent
        recorded, trail = golden.answer(golden.SHIPPED, key), _lines(runner.reference)
        if plant:
            recorded, trail = _summary(trail), _lines(runner.plant())
    return {
        "diverged": runner.diverged,
        "found": runner.found,
        "planted": runner.planted,
        "runs": runs,
        "compared": compared,
        "unfinite": runner.unfinite,
        "digest": _summary(trail),
        "golden": recorded,
        "key": key,
        "recipes": VERSION,
        "asks": {"recipes": VERSION, "key": key, "diverged": 0},
        "devices": context.peers,
        "flags": flags,
        "loaded_s": watch.spent,
        "steps_per_s": rate,
        "trail": trail,
    }


def _start(module: str) -> Place:
    return Place(step=0, part="start", module=module)


def _lines(trail: Trail) -> list[str]:
    return [f"{at} {number:016x}" for at, number in trail.items()]


def _summary(trail: list[str]) -> str:
    return hashlib.blake2b("\n".join(trail).encode(), digest_size=8).hexdigest()


def _key(device: Any, recipe: Recipe, context: Context) -> dict[str, Any]:
    """All that decides which bits come out of sound hardware."""
    facts = {**about(device), **recipe.facts()}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return {
            **facts,
            "processors": int(properties.multi_processor_count),
            "workspace": os.environ[_WORKSPACE],
        }
    return {
        **facts,
        "processor": _processor(context.host_root),
        "threads": torch.get_num_threads(),
        "mkldnn": bool(torch.backends.mkldnn.is_available()),
    }


def _processor(root: Path) -> str:
    """Return the model of the processor, which libraries choose their code by."""
    with contextlib.suppress(OSError):
        for line in (root / "proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return "unknown"


@contextlib.contextmanager
def _deterministic(device: Any, context: Context) -> Iterator[None]:
    """Have torch use deterministic algorithms and nothing else, and put back what was set."""
    if device.type == "cuda":
        _fix_workspace(context)
    before = torch.get_deterministic_debug_mode()
    # Not use_deterministic_algorithms, which sets the same and loads torch's compiler for it.
    torch.set_deterministic_debug_mode(_ERROR)
    try:
        if not torch.are_deterministic_algorithms_enabled():
            raise RuntimeError(
                "torch does not keep deterministic algorithms switched on: use the torch version "
                "that this suite was tested with"
            )
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def _fix_workspace(context: Context) -> None:
    """Give cuBLAS the workspace with which it is reproducible, or say that it is too late."""
    late = torch.cuda.is_initialized() and _WORKSPACE not in os.environ
    found = os.environ.setdefault(_WORKSPACE, _REPRODUCIBLE[0])
    if late or found not in _REPRODUCIBLE:
        if late:
            del os.environ[_WORKSPACE]  # so that the next call does not take it for having held
        raise RuntimeError(
            f"{context.device_id}: {_WORKSPACE} is {'not set' if late else repr(found)}, with which "
            f"cuBLAS need not repeat itself: set it to {_REPRODUCIBLE[0]} before the run starts"
        )


@contextlib.contextmanager
def _memory(context: Context) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RuntimeError(
            f"{context.device_id}: too little free memory for the training steps: end what else "
            f"uses the device ({error})"
        ) from error


def main() -> None:
    """Prove that planted faults are found, then say how fast it is; or print a golden entry."""
    context = alone.context()
    planted = alone.caught(replay(context, plant="flip"))
    timed = replay(context, seconds=1.0)
    if timed["diverged"] or timed["unfinite"]:
        raise SystemExit(f"{timed['diverged']} runs parted: {timed['found']}")
    if "--golden" in sys.argv[1:]:
        print(golden.entry(timed))
        return
    print(f"planted faults caught: {', '.join(f['module'] for f in planted)}")
    print(
        f"{timed['runs']} runs alike, {timed['compared']} digests, {timed['steps_per_s']:.1f} "
        f"steps/s, answer {timed['digest']}, recorded {timed['golden'] or 'none'}"
    )


if __name__ == "__main__":
    main()
