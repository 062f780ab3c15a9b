"""Matrix products in each number format, every element held bit for bit against a known answer."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

import torch

from nodeproof.kernels import alone
from nodeproof.kernels.faults import known
from nodeproof.kernels.formats import Family, Unprovable, accumulator
from nodeproof.kernels.operands import Operands, make
from nodeproof.kernels.place import place
from nodeproof.kernels.product import Prover, about, settle, wide_output
from nodeproof.kernels.stopwatch import Stopwatch
from nodeproof.kernels.stored import Loaded, load, turned
from nodeproof.worker import Context

CPU_DTYPES = (
    "float64",
    "float32",
    "bfloat16",
    "float16",
    "int8",
    "float8_e4m3fn",
    "float8_e5m2",
)
DTYPES = (*CPU_DTYPES, "tfloat32", "float4_e2m1")
# Rows and columns. A processor without the instructions for a format takes it element by element.
_GPU_SIZE, _GPU_SIZES = 8192, {"float64": 4096}
_CPU_SIZE, _CPU_SIZES = 256, {"float64": 512, "float32": 512, "float16": 128}
_LEAST = {  # compute capability that has tensor cores for a format
    "tfloat32": (8, 0),
    "float8_e4m3fn": (8, 9),
    "float8_e5m2": (8, 9),
    "float4_e2m1": (10, 0),
}
_OUTPUTS = {"float64": "float64", "int8": "int32"}  # all others can have float32
_ROUNDS = 2  # of each family at least: the first product warms up, and is compared like any other


class NoUnitError(RuntimeError):
    """The device has no unit for a number format, or may not use it."""

    cause = "environment"


def exact(
    context: Context, *, dtype: str, size: int = 0, seconds: float = 0.0, plant: str = ""
) -> dict[str, Any]:
    """Multiply known operands of `dtype` for `seconds`, at least twice for each family of operands.

    `size` is the number of rows and columns, 0 for what suits the device. With `plant="flip"` one
    bit is flipped in each of the first two products of each family. Returns what `Prover.report`
    gives and `families` (the certificates), `proved` (families whose products were compared),
    `size`, `rounds` (products of each family, each with the next lane in those of one term),
    `flags`, `versions`, `loaded_s` and `tflops` (over wall time, comparing included). Raises `ValueError` for an unknown dtype or plant, `RuntimeError`
    where the device cannot do the product.
    """
    known(plant, "flip")
    flags = settle(context.threads)
    device = place(context)
    loads = _loads(device, context, dtype, size)
    prover = Prover(seed=context.seed, device_id=context.device_id)
    operations, done = 0.0, 0
    proved: set[Family] = set()
    watch = Stopwatch(context, seconds)
    while done < _ROUNDS or watch.spent < seconds:
        for loaded in loads:
            lanes = done % loaded.operands.depth if loaded.operands.family is Family.OUTER else 0
            prover.prove(turned(loaded, lanes), flip=plant == "flip" and done < _ROUNDS)
            proved.add(loaded.operands.family)
            operations += loaded.operations
        done += 1
        watch.tell(tflops=operations / watch.read() / 1e12, done=watch.share)
    return {
        **prover.report(),
        "dtype": dtype,
        "size": loads[0].size,
        "rounds": done,
        "proved": sorted(proved),
        "families": [{**loaded.operands.facts(), "output": loaded.output} for loaded in loads],
        "flags": {**flags, "tf32_in_its_products": dtype == "tfloat32"},
        "versions": about(device),
        "loaded_s": watch.spent,
        "tflops": operations / watch.spent / 1e12,
    }


def _loads(device: Any, context: Context, dtype: str, size: int) -> list[Loaded]:
    if dtype not in DTYPES:
        raise Unprovable(f"dtype {dtype!r}: known are {', '.join(DTYPES)}")
    if device.type not in {"cuda", "cpu"}:
        raise ValueError(f"torch device {str(device)!r}: known are cuda and cpu")
    gpu = device.type == "cuda"
    capability = _capability(device, context, dtype)
    if not size:
        size = _GPU_SIZES.get(dtype, _GPU_SIZE) if gpu else _CPU_SIZES.get(dtype, _CPU_SIZE)
    keeps = accumulator(dtype, capability)
    return [
        load(
            _made(dtype, family, size, context.seed, keeps),
            size=size,
            output=output,
            device=device,
        )
        for family, output in outputs(dtype, device).items()
    ]


@lru_cache(maxsize=4)  # the planted run multiplies what the one before it did
def _made(dtype: str, family: Family, size: int, seed: int, keeps: int) -> Operands:
    return make(dtype, family, size=size, seed=seed, accumulator=keeps)


def outputs(dtype: str, device: Any) -> dict[Family, str]:
    """Which families are multiplied on a device, and the dtype of their product."""
    wide = _OUTPUTS.get(dtype, "float32")
    chosen = dict.fromkeys((Family.WIDE, Family.CANCEL_LIFT, Family.OUTER), wide)
    if dtype in {"bfloat16", "float16"}:
        chosen[Family.CANCEL_LIFT] = dtype  # as models use it
        if not wide_output(device):  # the others' answers need more bits
            return {Family.CANCEL_LIFT: dtype}
    if dtype == "float4_e2m1":
        chosen[Family.CANCEL_LIFT] = "bfloat16"
    elif device.type == "cuda":  # a processor has less time than these take to make
        chosen[Family.LONG if dtype == "float32" else Family.REPLICA] = wide
    if dtype == "tfloat32":
        chosen[Family.ROUNDED] = wide
    return chosen


def _capability(device: Any, context: Context, dtype: str) -> tuple[int, int] | None:
    """What accumulator and units follow from; `None` for a processor. Raises `NoUnitError`."""
    who, least = f"{context.device_label} {context.device_id}", _LEAST.get(dtype, (0, 0))
    if device.type != "cuda":
        if dtype not in CPU_DTYPES:
            raise NoUnitError(f"{who} is a processor, which has no {dtype} products: ask a GPU")
        return None
    if torch.version.hip is not None:  # its numbers are not CUDA's
        return (0, 0)
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < least:
        raise NoUnitError(
            f"{who} has compute capability {major}.{minor}, {dtype} needs {least[0]}.{least[1]}: "
            "leave this check out for it"
        )
    if dtype == "tfloat32" and os.environ.get("NVIDIA_TF32_OVERRIDE"):
        raise NoUnitError(
            f"NVIDIA_TF32_OVERRIDE forbids TF32 on {who}, so that it can't be tested: unset it"
        )
    return int(major), int(minor)


def main() -> None:
    """Prove each format and its planted faults first, then say how fast it is."""
    context = alone.context()
    tested = []
    for dtype in DTYPES:
        try:
            clean = exact(context, dtype=dtype)
        except NoUnitError as error:
            print(f"{dtype:14} not tested: {error}")
            continue
        if clean["wrong"]:
            raise SystemExit(f"{dtype}: {clean['wrong']} wrong: {clean['found'][0]}")
        alone.caught(exact(context, dtype=dtype, plant="flip"))
        tested.append(dtype)
        print(f"{dtype:14} {clean['checked_elements']} elements exact, planted faults caught")
    for dtype in tested:
        timed = exact(context, dtype=dtype, seconds=1.0)
        if timed["wrong"]:
            raise SystemExit(f"{dtype}: {timed['wrong']} wrong while timing: {timed['found'][0]}")
        print(f"{dtype:14} size {timed['size']}: {timed['tflops']:.3f} TFLOP/s, comparing included")


if __name__ == "__main__":
    main()
