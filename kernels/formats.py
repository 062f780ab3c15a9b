"""Number formats, the accumulators behind them, and ranges that keep a product in them exact."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

TILE = 128  # rows of A and columns of B of a repeated tile; triage looks at one
SPAN = 1024  # operands are made up to this size; larger ones repeat


class Unprovable(ValueError):  # noqa: N818  a property of the operands, not of the device
    """Operands whose product would not be exact, or a known answer that cannot be trusted."""

    cause = "config"


class Family(StrEnum):
    """How operands are made."""

    WIDE = "wide"  # full significands, each element its own: the answer needs a wide output
    REPLICA = "replica"  # one tile with other signs: every tile of the answer is the same tile
    LONG = "long"  # a replica of smaller significands and longer sums: more arithmetic per element
    CANCEL_LIFT = "cancel_lift"  # sums that cancel, down to an answer any output type holds
    OUTER = "outer"  # one term in each sum: every pair of significands in every lane
    ROUNDED = "rounded"  # bits that TF32 drops: wrong in every element if float32 computed


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """What a number format holds, and the significand bits of the accumulator behind it.

    Accumulators as published for the tensor cores (arXiv:2511.10909) and by IEEE 754; the least
    that any supported device has, see `accumulator`.
    """

    significand: int  # bits, the leading one included
    lowest: int  # binary exponent of the smallest normal number
    highest: int  # binary exponent up to which every significand is a number
    accumulator: int


_WIDE_FP8 = 24
FORMATS = {
    "float64": Format(significand=53, lowest=-1022, highest=1023, accumulator=53),
    "float32": Format(significand=24, lowest=-126, highest=127, accumulator=24),
    "tfloat32": Format(significand=11, lowest=-126, highest=127, accumulator=24),
    "bfloat16": Format(significand=8, lowest=-126, highest=127, accumulator=24),
    "float16": Format(significand=11, lowest=-14, highest=15, accumulator=24),
    "float8_e4m3fn": Format(significand=4, lowest=-6, highest=7, accumulator=14),
    "float8_e5m2": Format(significand=3, lowest=-14, highest=15, accumulator=14),
    "float4_e2m1": Format(significand=2, lowest=0, highest=2, accumulator=24),
    "int8": Format(significand=7, lowest=0, highest=6, accumulator=31),
}
FP8 = frozenset({"float8_e4m3fn", "float8_e5m2"})


def accumulator(dtype: str, capability: tuple[int, int] | None) -> int:
    """Bits of significand that sums of `dtype` keep: of a CPU (`None`) or a compute capability.

    FP8 sums keep 14 bits on Ada and Hopper (8.9, 9.0) and 24 on data-centre Blackwell (10, 11) and
    in software. What is not known counts as 14: operands that are exact there are exact anywhere.
    """
    if dtype in FP8 and (capability is None or capability[0] in {10, 11}):
        return _WIDE_FP8
    return FORMATS[dtype].accumulator


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Ranges that keep one family exact in one format. Magnitudes are of integers, before gauges."""

    a_max: int
    b_max: int
    depth: int  # the longest sum; the certificate has the last word
    gauge: tuple[int, int] = (0, 0)  # binary exponents between which operands are scaled
    least: int = 1  # smallest magnitude
    signature: int = 127  # largest of the numbers that a cancelling product leaves
    grid: tuple[int, ...] = ()  # what 1, 2, ... stand for in a format that lacks some integers
    a_dtype: str = ""  # formats of the sides, where they differ from the name of the product
    b_dtype: str = ""


_FLOAT, _DOUBLE, _E4M3 = (-60, 60), (-400, 400), (-4, 4)
_LANES = 64  # of one term: at least those of one instruction of any tensor core
_E2M1 = (1, 2, 3, 4, 6)
RECIPES = {
    ("float64", Family.WIDE): Recipe(a_max=2**20, b_max=2**20, depth=2048, gauge=_DOUBLE),
    ("float64", Family.REPLICA): Recipe(a_max=2**20, b_max=2**20, depth=4096, gauge=_DOUBLE),
    ("float64", Family.CANCEL_LIFT): Recipe(a_max=2**20, b_max=2**20, depth=4096, gauge=_DOUBLE),
    ("float64", Family.OUTER): Recipe(
        a_max=2**26 - 1, b_max=2**26 - 1, least=2**25, gauge=_DOUBLE, depth=_LANES
    ),
    # More than the 11 bits that TF32 keeps: a product that went through TF32 shows.
    ("float32", Family.WIDE): Recipe(a_max=4095, b_max=31, depth=512, gauge=_FLOAT),
    ("float32", Family.LONG): Recipe(a_max=127, b_max=127, depth=4096, gauge=_FLOAT),
    ("float32", Family.CANCEL_LIFT): Recipe(a_max=4094, b_max=30, depth=512, gauge=_FLOAT),
    ("float32", Family.OUTER): Recipe(
        a_max=4095, b_max=4095, least=2048, gauge=_FLOAT, depth=_LANES
    ),
    ("tfloat32", Family.WIDE): Recipe(a_max=2047, b_max=15, depth=2048, gauge=_FLOAT),
    ("tfloat32", Family.REPLICA): Recipe(a_max=31, b_max=1023, depth=2048, gauge=_FLOAT),
    ("tfloat32", Family.CANCEL_LIFT): Recipe(a_max=2046, b_max=14, depth=4096, gauge=_FLOAT),
    ("tfloat32", Family.OUTER): Recipe(
        a_max=2047, b_max=2047, least=1024, gauge=_FLOAT, depth=_LANES
    ),
    # So short that the product is exact with those bits, too: then it is known what went wrong.
    ("tfloat32", Family.ROUNDED): Recipe(a_max=2047, b_max=15, least=1024, depth=384, gauge=_FLOAT),
    ("bfloat16", Family.WIDE): Recipe(a_max=255, b_max=255, depth=1024, gauge=_FLOAT),
    ("bfloat16", Family.REPLICA): Recipe(a_max=255, b_max=255, depth=1024, gauge=_FLOAT),
    ("bfloat16", Family.LONG): Recipe(a_max=127, b_max=63, depth=8192, gauge=_FLOAT),
    ("bfloat16", Family.CANCEL_LIFT): Recipe(a_max=254, b_max=254, depth=1024, gauge=_FLOAT),
    ("bfloat16", Family.OUTER): Recipe(a_max=255, b_max=255, least=128, gauge=_FLOAT, depth=_LANES),
    ("float16", Family.WIDE): Recipe(a_max=2047, b_max=15, depth=2048, gauge=(-12, 5)),
    ("float16", Family.REPLICA): Recipe(a_max=15, b_max=2047, depth=2048, gauge=(-5, 12)),
    ("float16", Family.CANCEL_LIFT): Recipe(a_max=254, b_max=254, depth=1024, gauge=(-7, 7)),
    ("float16", Family.OUTER): Recipe(
        a_max=2047, b_max=2047, least=1024, gauge=(-5, 5), depth=_LANES
    ),
    ("float8_e4m3fn", Family.WIDE): Recipe(a_max=15, b_max=15, depth=224, gauge=_E4M3),
    ("float8_e4m3fn", Family.REPLICA): Recipe(a_max=7, b_max=7, depth=1024, gauge=_E4M3),
    ("float8_e4m3fn", Family.CANCEL_LIFT): Recipe(
        a_max=14, b_max=14, depth=768, gauge=_E4M3, signature=15
    ),
    ("float8_e4m3fn", Family.OUTER): Recipe(a_max=15, b_max=15, least=8, gauge=_E4M3, depth=_LANES),
    # cuBLAS multiplies no two matrices of e5m2: it is the format of gradients, which meet e4m3.
    ("float8_e5m2", Family.WIDE): Recipe(
        a_max=7, b_max=15, depth=512, gauge=_E4M3, b_dtype="float8_e4m3fn"
    ),
    ("float8_e5m2", Family.REPLICA): Recipe(
        a_max=7, b_max=7, depth=1024, gauge=_E4M3, a_dtype="float8_e4m3fn"
    ),
    ("float8_e5m2", Family.CANCEL_LIFT): Recipe(
        a_max=14, b_max=6, depth=1536, gauge=_E4M3, signature=7, a_dtype="float8_e4m3fn"
    ),
    ("float8_e5m2", Family.OUTER): Recipe(
        a_max=7, b_max=15, least=4, gauge=_E4M3, b_dtype="float8_e4m3fn", depth=_LANES
    ),
    # Without 0.5: a subnormal number misleads the alignment of a tensor core.
    ("float4_e2m1", Family.WIDE): Recipe(a_max=5, b_max=5, depth=2048, grid=_E2M1),
    ("float4_e2m1", Family.CANCEL_LIFT): Recipe(a_max=4, b_max=4, depth=4096, signature=4),
    ("float4_e2m1", Family.OUTER): Recipe(a_max=5, b_max=5, grid=_E2M1, depth=_LANES),
    ("int8", Family.WIDE): Recipe(a_max=127, b_max=127, depth=2048),
    ("int8", Family.REPLICA): Recipe(a_max=127, b_max=127, depth=4096),
    ("int8", Family.CANCEL_LIFT): Recipe(a_max=126, b_max=126, depth=4096),
    ("int8", Family.OUTER): Recipe(a_max=127, b_max=127, depth=_LANES),
}
# The same where the accumulator keeps 24 bits: longer sums of full significands.
_WIDER = {
    ("float8_e4m3fn", Family.WIDE): Recipe(a_max=15, b_max=15, depth=2048, gauge=_E4M3),
    ("float8_e4m3fn", Family.REPLICA): Recipe(a_max=15, b_max=15, depth=4096, gauge=_E4M3),
    ("float8_e4m3fn", Family.CANCEL_LIFT): Recipe(
        a_max=14, b_max=14, depth=4096, gauge=_E4M3, signature=15
    ),
}


def recipe(dtype: str, family: Family, *, bits: int) -> Recipe:
    """Return the ranges for an accumulator of `bits`. Raises `Unprovable` where there are none."""
    found = _WIDER.get((dtype, family)) if bits >= _WIDE_FP8 else None
    found = found or RECIPES.get((dtype, family))
    if found is None:
        known = ", ".join(sorted({name for name, _ in RECIPES}))
        raise Unprovable(f"no exact operands of family {family} for {dtype!r}; known: {known}")
    return found
