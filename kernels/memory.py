"""Memory that has to hold what was written to it, every 64-bit word of it compared."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from typing import Any

import torch

from nodeproof.kernels import alone
from nodeproof.kernels.cells import Fused, Pattern, Sweep
from nodeproof.kernels.claim import MIB, Claim, claim
from nodeproof.kernels.draws import words
from nodeproof.kernels.faults import PLACES, known, sound
from nodeproof.kernels.mismatches import WORD
from nodeproof.kernels.place import place
from nodeproof.kernels.stopwatch import Stopwatch
from nodeproof.worker import Context

_PASSES = 2  # at least, before the last: one each way


def pattern(
    context: Context, *, cpu_share: float, gpu_share: float, seconds: float = 0.0, plant: str = ""
) -> dict[str, Any]:
    """Fill a share of the memory and verify it for `seconds`, at least once both ways.

    On a processor `cpu_share` is of what all devices under test may take together; on a GPU
    `gpu_share` is of what is free. With `plant="flip"` a small region is taken and one bit is
    flipped before each kind of pass, and in the pattern after the last. When the memory is filled an event `memory.filled` says where
    it is. Returns `wrong` (words), `found`, `planted`, `compared` (words), `strides`,
    `reference_wrong` (words of the pattern itself), `bytes`, `asked` (bytes), `share` (of what was
    free, over all devices), `share_of_total`, `free_of_total`, `passes`, `path` ("fused" or
    "torch"), `gb_per_s` (verified) and `loaded_s`. Raises `ValueError` for a share that is none,
    `RuntimeError` where that much memory cannot be had.
    """
    taken, sweep = filled(context, cpu_share=cpu_share, gpu_share=gpu_share, plant=plant)
    meter = Meter(context)
    planted = []
    begun, passes = time.perf_counter(), 0
    last = False
    while not last:
        last = passes >= _PASSES and time.perf_counter() - begun >= seconds
        odd = passes % 2 == 1  # what odd passes read, even ones have inverted
        phase = "last" if last else "backwards" if odd else "forwards"
        if plant and (last or passes < _PASSES):
            planted.append(flip(context, sweep, phase, inverted=odd))
        steps = sweep.verify(phase, inverted=odd, backwards=odd and not last, invert=not last)
        meter.follow(phase, steps, sweep.bytes)
        finish(taken)  # or the time would be that of asking, not of doing
        passes += 1
    spent = time.perf_counter() - begun
    return {
        **outcome(context, taken, sweep, planted),
        "passes": passes,
        "gb_per_s": sweep.verified / spent / 1e9,
        "loaded_s": spent,
    }


def filled(
    context: Context,
    *,
    gpu_share: float,
    plant: str,
    cpu_share: float | None = None,
    cpu_mib: float | None = None,
) -> tuple[Claim, Sweep]:
    """Take memory and write the pattern to it. Raises as `claim` does, and for an unknown plant."""
    known(plant, "flip")
    torch.set_num_threads(context.threads)
    device = place(context)
    fast = fused_kernel(device)
    block = words_of_block(device, fused=fast is not None)
    taken = claim(
        context,
        device,
        gpu_share=gpu_share,
        cpu_share=cpu_share,
        cpu_mib=cpu_mib,
        block=block,
        spare=2 * block * WORD,
        planting=bool(plant),
    )
    held = Pattern(seed=context.seed, block=block, device=device)
    fused: Fused | None = fast.Verifier(held, taken.bytes // WORD // block) if fast else None
    sweep = Sweep(pattern=held, pieces=taken.pieces, block=block, fused=fused)
    Meter(context).follow("filling", sweep.fill(), sweep.bytes)
    taken.announce(context)
    return taken, sweep


def outcome(
    context: Context, taken: Claim, sweep: Sweep, planted: list[dict[str, Any]]
) -> dict[str, Any]:
    """What a work that has swept memory returns of it, when it sweeps no more."""
    return {
        "wrong": sweep.wrong,
        **reference(context, sweep, planted),
        "compared": sweep.verified // WORD,
        "strides": sweep.strides(),
        "path": sweep.path,
        **taken.facts(),
    }


def flip(context: Context, sweep: Sweep, phase: str, *, inverted: bool) -> dict[str, Any]:
    """Flip a bit of a word that is right: elsewhere on each device and in each run."""
    drawn = words(context.seed, f"memory flip {phase} {context.device_id}", PLACES, 3).tolist()
    offset = sound(
        (sweep.offset(high, low) for high, low, _ in drawn),
        lambda place: sweep.word(place) == sweep.wanted(place, inverted=inverted),
    )
    return sweep.flip(offset, drawn[0][2] % 64, phase, inverted=inverted)


def reference(context: Context, sweep: Sweep, planted: list[dict[str, Any]]) -> dict[str, Any]:
    """Whether the pattern itself is as it was made, after the last sweep.

    Where faults were planted, one is planted in each polarity of the pattern too. Returns `planted`
    and `found`, with which polarity is damaged at their ends, and `reference_wrong` (words).
    """
    spoilt = []
    if planted:
        drawn = words(context.seed, f"memory pattern {context.device_id}", PLACES, 2).tolist()
        spoilt = sweep.pattern.spoil(drawn)
    damage = sweep.pattern.damage()
    return {
        "planted": planted + [{"pattern": name} for name in spoilt],
        "found": sweep.found + [{"pattern": name} for name, wrong in damage.items() if wrong],
        "reference_wrong": sum(damage.values()),
    }


class Meter:
    """Tells the live view how far a pass is."""

    def __init__(self, context: Context) -> None:
        self._watch = Stopwatch(context)

    def follow(self, phase: str, steps: Iterator[int], whole: int) -> None:
        """Take all steps."""
        for count, _ in enumerate(steps):
            self.tell(phase, count, whole)

    def tell(self, phase: str, count: float, whole: int) -> None:
        """Say where the work is, unless it was said just now."""
        self._watch.tell(phase=phase, blocks=float(count), bytes=float(whole))


def finish(taken: Claim) -> None:
    """Wait until the device has done what it was asked to."""
    device = taken.pieces[0].device
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def words_of_block(device: Any, *, fused: bool) -> int:
    """How much is compared at once: on a GPU what hides the time of asking for it."""
    mib = 1 if device.type != "cuda" else 4 if fused else 64
    return mib * MIB // WORD


def fused_kernel(device: Any) -> Any:
    """Return the module that verifies in one pass, or `None` where it can't run."""
    if device.type != "cuda":
        return None
    try:
        module = importlib.import_module("nodeproof.kernels.memory_triton")
    except ImportError:  # a build of torch without Triton; slower, and compares the same bits
        return None
    block = words_of_block(device, fused=True)
    return module if module.usable(device, block) else None


def main() -> None:
    """Prove that planted faults are found, then verify a quarter of the memory and say how fast."""
    context = alone.context()
    planted = pattern(context, cpu_share=0.25, gpu_share=0.9, plant="flip")
    alone.caught(planted)
    print(f"planted faults caught in {planted['bytes'] / MIB:.0f} MiB")
    result = pattern(context, cpu_share=0.1, gpu_share=0.9)
    if result["wrong"] or result["reference_wrong"]:
        raise SystemExit(f"{result['wrong']} words wrong: {result['found']}")
    print(
        f"{result['bytes'] / MIB:.0f} MiB exact in {result['loaded_s']:.1f} s by {result['path']}: "
        f"{result['gb_per_s']:.1f} GB/s verified"
    )


if __name__ == "__main__":
    main()
