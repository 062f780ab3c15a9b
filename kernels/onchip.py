"""Registers, shared memory and atomic units of every SM, held against words known beforehand.

The kernels are in `onchip_triton`, which is loaded when this runs: Triton comes with torch for
CUDA, and a machine without a GPU need not have it. What each word has to be in the end the host
reckons beforehand, by other means; a block that does not report, or an SM that was never used, is
counted like a wrong word and not passed over.

What Triton can't force is which physical register holds a word, or in which bank of shared memory
it lies. Tests see to it that the compiled code has the registers, the stores and the loads.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from nodeproof.kernels import alone
from nodeproof.kernels.faults import known
from nodeproof.kernels.onchip_bench import Bench
from nodeproof.kernels.place import NoPlaceError, place, written_in_triton
from nodeproof.kernels.stopwatch import Stopwatch
from nodeproof.worker import Context

_ROUNDS = 2  # at least; the planted faults are in these


def cells(context: Context, *, seconds: float = 0.0, plant: str = "") -> dict[str, Any]:
    """Hold known words on every SM for `seconds`, at least twice in each part.

    With `plant="flip"` each part gets faults in its first two rounds: bits of a register, bits of a
    word before it goes through shared memory, a lost update. Returns `wrong` (words), `found` (the
    first of them), `planted`, `host`, `checked` (words by part), `unreported` (blocks whose report
    did not come), `sms`, `covered` (SMs that reported for registers and for shared memory),
    `blocks_of_sm` (the fewest reports of one), `wrong_on` (words by SM), `shared_bytes` (of a
    block), `versions`, `word_turns_per_s`, `rounds` and `loaded_s`.

    Raises `ValueError` for an unknown plant, `RuntimeError` without a GPU, without Triton, or where
    Triton can't compile.
    """
    known(plant, "flip")
    device = place(context)
    bench = Bench(context, device, kernels(context, device))
    shared = bench.compile()
    watch = Stopwatch(context, seconds)
    done = 0
    while done < _ROUNDS or watch.spent < seconds:
        planted = plant == "flip" and done < _ROUNDS
        for launch in range(bench.shape.launches):
            number = done * bench.shape.launches + launch
            bench.held("registers", number, planted=planted and not launch)
            bench.held("shared", number, planted=planted and not launch)
        bench.contended(bench.shape.few, done, planted=planted)
        bench.contended(bench.shape.many, done, planted=planted)
        done += 1
        watch.read()
        watch.tell(rounds=float(done), done=watch.share)
    return {**bench.report(), "rounds": done, "shared_bytes": shared, "loaded_s": watch.spent}


def kernels(context: Context, device: Any) -> ModuleType:
    """Return the module of Triton kernels. Raises `NoPlaceError` where they can't run."""
    who = context.device_id
    what = "registers and shared memory"
    module = written_in_triton("onchip_triton", context, what=what)
    if module.COMPILED is not (device.type == "cuda"):
        raise NoPlaceError(
            f"{who}: TRITON_INTERPRET is set, so nothing would run on the GPU: unset it"
            if device.type == "cuda"
            else f"{who}: registers and shared memory of an SM can be tested on a GPU only"
        )
    if device.type == "cuda" and torch.version.hip is not None:
        raise NoPlaceError(
            f"{who}: these kernels are written for NVIDIA's GPUs, torch is for AMD's"
        )
    return module


def main() -> None:
    """Prove that planted faults are found in every part, then hold for a while and say how fast."""
    context = alone.context()
    planted = alone.caught(cells(context, plant="flip"))
    print(f"planted faults caught: {len(planted)}")
    result = cells(context, seconds=2.0)
    if result["wrong"] or result["unreported"] or result["covered"] != result["sms"]:
        raise SystemExit(f"{result}")
    print(
        f"{result['sms']} SMs exact in {result['loaded_s']:.1f} s, at least "
        f"{result['blocks_of_sm']} blocks on each: {result['word_turns_per_s']:.3g} words turned "
        f"over a second, words checked: {result['checked']}"
    )


if __name__ == "__main__":
    alone.run(main)
