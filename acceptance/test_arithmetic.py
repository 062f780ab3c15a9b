"""Known-answer arithmetic: every number format a model uses, every bit of every product."""

from __future__ import annotations

from nodeproof.acceptance.products import judge_products
from nodeproof.checks import (
    COMPUTE,
    Cause,
    Device,
    DeviceKind,
    Load,
    Measure,
    Plant,
    Remedy,
    Result,
    Results,
    Work,
    altered,
    check,
)

_LOAD = Load(quick=1, gate=5, deep=60, soak=600)
_PLANTS = (
    Plant(args={"plant": "flip"}, breaks=("wrong elements",)),
    altered("checked elements", "elements unaccounted for", checked_elements=0),
    altered("families of operands", proved=[]),
)
_FAMILIES = {  # on a processor, on a GPU
    "float64": (3, 4),
    "float32": (3, 4),
    "bfloat16": (1, 4),
    "float16": (1, 4),
    "int8": (3, 4),
    "float8_e4m3fn": (3, 4),
    "float8_e5m2": (3, 4),
    "tfloat32": (0, 5),
    "float4_e2m1": (0, 3),
}


def _families(device: Device, result: Result) -> int:
    """How many families of operands have to be multiplied, each by units or bits of its own."""
    on_cpu, on_gpu = _FAMILIES[result["dtype"]]
    gpu = device.kind is DeviceKind.GPU
    if gpu and result["dtype"] in {"bfloat16", "float16"} and not result["versions"]["cuda"]:
        return on_cpu  # torch gives wide output on CUDA only
    return on_gpu if gpu else on_cpu


def _work(dtype: str) -> Work:
    return Work(
        call="nodeproof.kernels.gemm:exact", args={"dtype": dtype}, load=_LOAD, deadline_s=120
    )


def _judge(device: Device, result: Result, peers: Results, measure: Measure) -> None:
    judge_products(result, peers, measure)
    measure(
        "families of operands",
        len(result["proved"]),
        at_least=_families(device, result),
        cause=Cause.ENVIRONMENT,
        detail=f"compared: {', '.join(result['proved'])}",
    )
    measure("rate", result["tflops"], unit="TFLOP/s")


@check(
    "device.arithmetic.fp64",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    work=_work("float64"),
    plant=_PLANTS,
)
def test_fp64(device: Device, result: Result, peers: Results, measure: Measure) -> None:
    """A device that multiplies float64 wrongly corrupts simulations and solvers in silence.

    Operands are chosen so that the exact product does not depend on library, algorithm or model:
    one bit that differs is a fault of this device. No driver counter or log line has to accompany
    it. A result that is right when repeated is no relief: the fault is then intermittent. Resetting
    or updating does not help; take the node out and return the device. The same wrong bits on two
    devices are no hardware's, and leave the node undecided: look at versions and settings.

    What it can't see: faults that no product shows, and those in states (heat, clocks, other
    kernels) that the run did not reach. Without a wrong element, errors are rarer than "error rate
    below" with 95 % confidence, in the states that were tested and in no others.
    """
    _judge(device, result, peers, measure)


@check(
    "device.arithmetic.fp32",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    work=_work("float32"),
    plant=_PLANTS,
)
def test_fp32(device: Device, result: Result, peers: Results, measure: Measure) -> None:
    """A device that multiplies float32 wrongly spoils optimiser states and reductions in silence.

    TF32 is switched off, and operands hold more bits than TF32 keeps, so that the float32 units
    themselves answer. One differing bit is a fault of this device, repeatable or not; the same on
    two devices is software's. Resetting or updating does not help; take the node out and return the
    device.

    What it can't see: faults that no product shows, and those in states (heat, clocks, other
    kernels) that the run did not reach. Without a wrong element, errors are rarer than "error rate
    below" with 95 % confidence, in the states that were tested and in no others.
    """
    _judge(device, result, peers, measure)


@check(
    "device.arithmetic.bf16",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    work=_work("bfloat16"),
    plant=_PLANTS,
)
def test_bf16(device: Device, result: Result, peers: Results, measure: Measure) -> None:
    """A device that multiplies bfloat16 wrongly trains models that diverge, or are just worse.

    This is the format most training runs in. On a GPU the tensor cores answer twice: in float32,
    where every accumulator bit shows, and in bfloat16, as models use them. A loss curve does not
    show such a fault for days; one differing bit here does. Reset and update do not help: replace.
    The same wrong bits on two devices are software's.

    What it can't see: on a CPU, the low bits of the accumulator, since torch gives no wide output
    there; faults that no product shows, and those in states (heat, clocks, other kernels) that the
    run did not reach. Without a wrong element, errors are rarer than "error rate below" with 95 %
    confidence, in the states that were tested and in no others.
    """
    _judge(device, result, peers, measure)


@check(
    "device.arithmetic.fp16",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    work=_work("float16"),
    plant=_PLANTS,
)
def test_fp16(device: Device, result: Result, peers: Results, measure: Measure) -> None:
    """A device that multiplies float16 wrongly gives wrong answers in inference and mixed training.

    Accumulation in float16 is switched off, as in production, so that the answer is exact. One
    differing bit is a fault of this device, repeatable or not; the same on two devices is
    software's. Resetting or updating does not help; take the node out and return the device.

    What it can't see: on a CPU, the low bits of the accumulator, since torch gives no wide output
    there; faults that no product shows, and those in states (heat, clocks, other kernels) that the
    run did not reach. Without a wrong element, errors are rarer than "error rate below" with 95 %
    confidence, in the states that were tested and in no others.
    """
    _judge(device, result, peers, measure)


@check(
    "device.arithmetic.int8",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    work=_work("int8"),
    plant=_PLANTS,
)
def test_int8(device: Device, result: Result, peers: Results, measure: Measure) -> None:
    """A device that multiplies int8 wrongly breaks quantised inference: tokens change at random.

    Integer sums have one answer, without any rounding; one differing bit is a fault of this device,
    repeatable or not; the same on two devices is software's. Resetting or updating does not help;
    take the node out and return the device.

    What it can't see: faults that no product shows, and those in states (heat, clocks, other
    kernels) that the run did not reach. Without a wrong element, errors are rarer than "error rate
    below" with 95 % confidence, in the states that were tested and in no others.
    """
    _judge(device, result, peers, measure)


@check(
    "device.arithmetic.tf32",
    kinds=(DeviceKind.GPU,),
    remedy=Remedy.REPLACE,
    work=_work("tfloat32"),
    plant=_PLANTS,
    capability=(8, 0),
)
def test_tf32(device: Device, result: Result, peers: Results, measure: Measure) -> None:
    """A device that multiplies TF32 wrongly spoils float32 training where TF32 is allowed.

    Many frameworks allow it by default for convolutions and for float32 layers. It is switched on
    for these products alone. One family of operands holds bits that TF32 drops: if those are wrong
    in every element and the host's processor agrees, float32 was computed and TF32 was not tested;
    a driver setting or library does that. Anything else is a fault of this device, repeatable or
    not: resetting or updating does not help, return the device.

    What it can't see: faults that no product shows, and those in states (heat, clocks, other
    kernels) that the run did not reach. Without a wrong element, errors are rarer than "error rate
    below" with 95 % confidence, in the states that were tested and in no others.
    """
    _judge(device, result, peers, measure)


@check(
    "device.arithmetic.fp8_e4m3",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    work=_work("float8_e4m3fn"),
    plant=_PLANTS,
    capability=(8, 9),
)
def test_fp8_e4m3(device: Device, result: Result, peers: Results, measure: Measure) -> None:
    """A device that multiplies FP8 (e4m3) wrongly breaks inference and the forward pass of training.

    Tensor cores of Ada and Hopper add FP8 products up in 14 bits; operands are chosen so that even
    those are exact, whether the library promotes its partial sums or not. One differing bit is a
    fault of this device, repeatable or not; the same on two devices is software's. Resetting or
    updating does not help; take the node out and return the device. On a CPU, torch converts to
    float32 and multiplies that: there it rehearses and says nothing of FP8 units.

    What it can't see: faults that no product shows, and those in states (heat, clocks, other
    kernels) that the run did not reach. Without a wrong element, errors are rarer than "error rate
    below" with 95 % confidence, in the states that were tested and in no others.
    """
    _judge(device, result, peers, measure)


@check(
    "device.arithmetic.fp8_e5m2",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    work=_work("float8_e5m2"),
    plant=_PLANTS,
    capability=(8, 9),
)
def test_fp8_e5m2(device: Device, result: Result, peers: Results, measure: Measure) -> None:
    """A device that multiplies FP8 (e5m2) wrongly spoils gradients, and training with them.

    e5m2 is the format of gradients: it is multiplied by e4m3, on either side, as libraries do (they
    have no product of two e5m2 matrices). Sums are exact in the 14 bits that Ada and Hopper keep.
    One differing bit is a fault of this device, repeatable or not; the same on two devices is
    software's. Resetting or updating does not help; take the node out and return the device. On a
    CPU, torch converts to float32: there it rehearses and says nothing of FP8 units.

    What it can't see: faults that no product shows, and those in states (heat, clocks, other
    kernels) that the run did not reach. Without a wrong element, errors are rarer than "error rate
    below" with 95 % confidence, in the states that were tested and in no others.
    """
    _judge(device, result, peers, measure)


@check(
    "device.arithmetic.fp4",
    kinds=(DeviceKind.GPU,),
    remedy=Remedy.REPLACE,
    work=_work("float4_e2m1"),
    plant=_PLANTS,
    capability=(10, 0),
    trial=True,
)
def test_fp4(device: Device, result: Result, peers: Results, measure: Measure) -> None:
    """A device that multiplies FP4 (e2m1) wrongly breaks inference with four-bit weights.

    On trial: no GPU has run it yet, so it is reported and counts for nothing. All block scales are
    1.0, so that their order in memory does not matter; the units that apply scales are not tested,
    nor is 0.5, which is subnormal. One differing bit is a fault of this device or of the library
    that packs the operands; see whether another device of the kind gives the same.

    What it can't see: faults that no product shows, and those in states (heat, clocks, other
    kernels) that the run did not reach. Without a wrong element, errors are rarer than "error rate
    below" with 95 % confidence, in the states that were tested and in no others.
    """
    _judge(device, result, peers, measure)
