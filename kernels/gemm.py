"""Matrix products in each number format, every element held bit for bit against a known answer."""

from __future__ import annotations

import time
from typing import Any

from nodeproof.kernels import alone
from nodeproof.kernels.operands import Family, Unprovable, make
from nodeproof.kernels.place import place
from nodeproof.kernels.product import Loaded, Prover, about, load, settle, wide_output
from nodeproof.worker import Context

DTYPES = ("float64", "float32", "bfloat16", "float16", "int8")
# Rows and columns. A processor without the instructions for a format takes it element by element.
_SIZES = {
    "cuda": {"float64": 4096, "float32": 8192, "bfloat16": 8192, "float16": 8192, "int8": 8192},
    "cpu": {"float64": 512, "float32": 512, "bfloat16": 256, "float16": 128, "int8": 256},
}
_ROUNDS = 2  # of each family at least: the first product warms up, and is compared like any other
_REPORT_S = 0.5


def exact(
    context: Context, *, dtype: str, size: int = 0, seconds: float = 0.0, plant: str = ""
) -> dict[str, Any]:
    """Multiply known operands of `dtype` for `seconds`, at least twice for each family of operands.

    `size` is the number of rows and columns, 0 for what suits the device. With `plant="flip"` one
    bit is flipped in each of the first two products of each family. Returns what `Prover.report` gives and
    `families` (the certificates), `size`, `flags`, `versions`, `loaded_s` and `tflops` (over wall
    time, comparing included). Raises `ValueError` for an unknown dtype or plant, `RuntimeError`
    where the device cannot do the product.
    """
    if plant not in {"", "flip"}:
        raise ValueError(f"plant {plant!r}: this kernel knows 'flip'")
    flags = settle(context.threads)
    device = place(context)
    loads = _loads(device, dtype, size, context.seed)
    prover = Prover(seed=context.seed, device_id=context.device_id)
    operations, begun = 0.0, time.perf_counter()
    spent = reported = 0.0
    done = 0
    while done < _ROUNDS or spent < seconds:
        for loaded in loads:
            prover.prove(loaded, flip=plant == "flip" and done < _ROUNDS)
            operations += loaded.operations
        done += 1
        spent = time.perf_counter() - begun
        if spent - reported >= _REPORT_S:
            reported = spent
            share = min(spent / seconds, 1.0) if seconds else 1.0
            context.progress(tflops=operations / spent / 1e12, done=share)
    return {
        **prover.report(),
        "dtype": dtype,
        "size": loads[0].size,
        "families": [{**loaded.operands.facts(), "output": loaded.output} for loaded in loads],
        "flags": flags,
        "versions": about(device),
        "loaded_s": spent,
        "tflops": operations / spent / 1e12,
    }


def _loads(device: Any, dtype: str, size: int, seed: int) -> list[Loaded]:
    if dtype not in DTYPES:
        raise Unprovable(f"dtype {dtype!r}: known are {', '.join(DTYPES)}")
    if device.type not in _SIZES:
        raise ValueError(f"torch device {str(device)!r}: known are cuda and cpu")
    size = size or _SIZES[device.type][dtype]
    narrow = dtype in {"bfloat16", "float16"}
    outputs = {Family.CANCEL_LIFT: dtype, Family.WIDE: "float32" if narrow else dtype}
    if dtype == "int8":
        outputs = dict.fromkeys(outputs, "int32")
    if narrow and not wide_output(device):
        del outputs[Family.WIDE]
    return [
        load(make(dtype, family, size=size, seed=seed), size=size, output=output, device=device)
        for family, output in outputs.items()
    ]


def main() -> None:
    """Prove each format and its planted faults first, then say how fast it is."""
    context = alone.context()
    for dtype in DTYPES:
        clean = exact(context, dtype=dtype)
        planted = exact(context, dtype=dtype, plant="flip")
        caught = planted["planted"] == planted["found"] and bool(planted["planted"])
        if clean["wrong"] or not caught:
            raise SystemExit(f"{dtype}: {clean['wrong']} wrong, planted faults caught: {caught}")
        print(f"{dtype:9} {clean['checked_elements']} elements exact, planted faults caught")
    for dtype in DTYPES:
        timed = exact(context, dtype=dtype, seconds=1.0)
        if timed["wrong"]:
            raise SystemExit(f"{dtype}: {timed['wrong']} wrong while timing: {timed['found'][0]}")
        print(f"{dtype:9} size {timed['size']}: {timed['tflops']:.3f} TFLOP/s, comparing included")


if __name__ == "__main__":
    main()
