"""Known-answer arithmetic: every number format a model uses, every bit of every product."""

from __future__ import annotations

from nodeproof.checks import COMPUTE, Load, Measure, Plant, Remedy, Result, Work, altered, check

_LOAD = Load(quick=1, gate=5, deep=60, soak=600)
_PLANTS = (
    Plant(args={"plant": "flip"}, breaks=("wrong elements",)),
    altered("checked elements", checked_elements=0),
)


def _work(dtype: str) -> Work:
    return Work(
        call="nodeproof.kernels.gemm:exact", args={"dtype": dtype}, load=_LOAD, deadline_s=120
    )


def _judge(result: Result, measure: Measure) -> None:
    detail = ""
    if result["wrong"]:
        first = result["found"][0]
        detail = (
            f"first in {first['dtype']} product {first['product']} ({first['family']}), row {first['row']}, column "
            f"{first['column']}: {first['got']} instead of {first['expected']}, bits {first['bits']}"
            f"; operands intact: {result['operands_intact']}; wrong again in {result['replay']} of "
            f"3 repeats, which excuses nothing"
        )
    measure("wrong elements", result["wrong"], at_most=0, detail=detail)
    measure("checked elements", result["checked_elements"], at_least=1)
    measure("rate", result["tflops"], unit="TFLOP/s")


@check(
    "device.arithmetic.fp64",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    work=_work("float64"),
    plant=_PLANTS,
)
def test_fp64(result: Result, measure: Measure) -> None:
    """A device that multiplies float64 wrongly corrupts simulations and solvers in silence.

    Operands are chosen so that the exact product does not depend on library, algorithm or model:
    one bit that differs is a fault of this device. No driver counter or log line has to accompany
    it. A result that is right when repeated is no relief: the fault is then intermittent. Resetting
    or updating does not help; take the node out and return the device.
    """
    _judge(result, measure)


@check(
    "device.arithmetic.fp32",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    work=_work("float32"),
    plant=_PLANTS,
)
def test_fp32(result: Result, measure: Measure) -> None:
    """A device that multiplies float32 wrongly spoils optimiser states and reductions in silence.

    TF32 is switched off, and operands hold more bits than TF32 keeps, so that the float32 units
    themselves answer. One differing bit is a fault of this device, repeatable or not. Resetting or
    updating does not help; take the node out and return the device.
    """
    _judge(result, measure)


@check(
    "device.arithmetic.bf16",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    work=_work("bfloat16"),
    plant=_PLANTS,
)
def test_bf16(result: Result, measure: Measure) -> None:
    """A device that multiplies bfloat16 wrongly trains models that diverge, or are just worse.

    This is the format most training runs in. On a GPU the tensor cores answer twice: in float32,
    where every accumulator bit shows, and in bfloat16, as models use them. A loss curve does not
    show such a fault for days; one differing bit here does. Reset and update do not help: replace.
    """
    _judge(result, measure)


@check(
    "device.arithmetic.fp16",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    work=_work("float16"),
    plant=_PLANTS,
)
def test_fp16(result: Result, measure: Measure) -> None:
    """A device that multiplies float16 wrongly gives wrong answers in inference and mixed training.

    Accumulation in float16 is switched off, as in production, so that the answer is exact. One
    differing bit is a fault of this device, repeatable or not. Resetting or updating does not help;
    take the node out and return the device.
    """
    _judge(result, measure)


@check(
    "device.arithmetic.int8",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    work=_work("int8"),
    plant=_PLANTS,
)
def test_int8(result: Result, measure: Measure) -> None:
    """A device that multiplies int8 wrongly breaks quantised inference: tokens change at random.

    Integer sums have one answer, without any rounding; one differing bit is a fault of this device,
    repeatable or not. Resetting or updating does not help; take the node out and return the device.
    """
    _judge(result, measure)
