"""Known values as a device stores them: the formats of torch, layouts, packing, and slabs of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nodeproof.kernels.bits import raw
from nodeproof.kernels.draws import Integers
from nodeproof.kernels.formats import FP8, TILE, Unprovable
from nodeproof.kernels.operands import Operands, Values

FP4 = "float4_e2m1"
TF32 = "tfloat32"
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # by the three bits below the sign
_ONE_E4M3 = 0x38  # 1.0 in float8_e4m3fn
_BLOCK = 16  # numbers of float4 that share a scale


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loaded:
    """Operands on a device, and what their product has to be, as integers of its bits.

    `a` is (size, depth), `b` is (depth, size), two numbers to a byte along the depth for float4;
    `reference` is (span, span) on the device and `expected` the same on the host. `way` is the
    format that multiplies, `output` the dtype of the product. A slab of other operands has its
    `origin` in their product, and gives the transposed product if it is `transposed`; `turn` is by
    how many lanes both operands are turned.
    """

    operands: Operands
    size: int
    way: str
    output: str
    a: Any
    b: Any
    scales: tuple[Any, Any] | None
    reference: Any
    expected: Any
    turn: int = 0
    origin: tuple[int, int] = (0, 0)
    transposed: bool = False

    @property
    def span(self) -> int:
        """Rows and columns after which the answer repeats."""
        return int(self.expected.shape[0])

    @property
    def width(self) -> int:
        """Bits of one element of the product."""
        return int(self.expected.element_size()) * 8

    @property
    def operations(self) -> float:
        """Floating-point (or integer) operations of one product, those with a zero left out."""
        return 2.0 * self.size * self.size * self.operands.terms

    def place(self, row: int, column: int) -> tuple[int, int]:
        """Where an element of this product stands in the whole one."""
        if self.transposed:
            row, column = column, row
        return self.origin[0] + row, self.origin[1] + column


def load(operands: Operands, *, size: int, output: str, device: Any) -> Loaded:
    """Put operands on a device, as many times over as `size` asks for.

    Raises `Unprovable` if torch's formats do not hold operands or answer exactly.
    """
    way, times = operands.dtype, size // operands.span
    a, b = exact(operands.a, operands.a_dtype), exact(operands.b.T, operands.b_dtype)
    a = raw(a).to(device).repeat(times, 1).view(a.dtype)
    if way in FP8 or way == FP4:  # these kernels take B by columns
        b = raw(b).to(device).repeat(times, 1).view(b.dtype).t()
    else:
        b = raw(b.t().contiguous()).to(device).repeat(1, times).view(b.dtype)
    expected = raw(exact(operands.answer, output))
    return Loaded(
        operands=operands,
        size=size,
        way=way,
        output=output,
        a=a,
        b=b,
        scales=_scales(way, size, operands.depth, device),
        reference=expected.to(device),
        expected=expected,
    )


def turned(loaded: Loaded, lanes: int) -> Loaded:
    """The same product with both operands turned by so many lanes (bytes, where two share one)."""
    if not lanes:
        return loaded
    a = torch.roll(raw(loaded.a), lanes, 1).view(loaded.a.dtype)
    if loaded.b.stride(0) == 1:
        b = torch.roll(raw(loaded.b).t(), lanes, 1).view(loaded.b.dtype).t()
    else:
        b = torch.roll(raw(loaded.b), lanes, 0).view(loaded.b.dtype)
    return dataclasses.replace(loaded, a=a, b=b, turn=loaded.turn + lanes)


def turned_over(loaded: Loaded, place: tuple[int, int]) -> Loaded:
    """The tile around an element, from the same memory, as (B^T A^T)^T: another way through."""
    down, across = (where // TILE * TILE for where in place)
    inside = _tile(loaded, place)
    return dataclasses.replace(
        loaded,
        size=TILE,
        a=loaded.b[:, across : across + TILE].t(),
        b=loaded.a[down : down + TILE].t(),
        scales=_scales(loaded.way, TILE, loaded.operands.depth, loaded.a.device),
        reference=loaded.reference[inside].t().contiguous(),
        expected=loaded.expected[inside].t().contiguous(),
        origin=(down, across),
        transposed=True,
    )


def on_host(loaded: Loaded, fresh: Operands, place: tuple[int, int]) -> Loaded:
    """The tile around an element, of operands made anew, for the processor of the host.

    Multiplied in the format of the product, which holds all operands and adds them up exactly:
    processors lack some formats, and the answer depends on none.
    """
    rows, columns = _tile(loaded, place)
    way = "int8" if loaded.way == "int8" else loaded.output
    expected = loaded.expected[rows, columns].contiguous()
    return Loaded(
        operands=fresh,
        size=TILE,
        way=way,
        output=loaded.output,
        a=exact(fresh.a[rows], way),
        b=exact(fresh.b[:, columns], way),
        scales=None,
        reference=expected,
        expected=expected,
        origin=(place[0] // TILE * TILE, place[1] // TILE * TILE),
    )


def intact(loaded: Loaded, fresh: Operands) -> tuple[bool, bool]:
    """Whether operands, and the reference, are still stored as they were made."""
    span = fresh.span
    known = turned(
        load(fresh, size=span, output=loaded.output, device=torch.device("cpu")), loaded.turn
    )
    a, b = raw(known.a), raw(known.b)
    starts = range(0, loaded.size, span)
    # Piece by piece, since all at once is much memory of the host.
    rows = all(torch.equal(raw(loaded.a[s : s + span]).cpu(), a) for s in starts)
    columns = all(torch.equal(raw(loaded.b[:, s : s + span]).cpu(), b) for s in starts)
    return rows and columns, bool(torch.equal(loaded.reference.cpu(), known.expected))


def exact(values: Values | Integers, dtype: str) -> Any:
    """Return values in a torch dtype, on the host, having seen that nothing was lost.

    float4 comes as bytes, each with two neighbours of a row, the first in the lower half.
    """
    whole = torch.from_numpy(np.ascontiguousarray(values))
    if dtype == FP4:
        packed = _pack(whole)
        back, same = _unpack(packed), whole.to(torch.float64)
        tensor = packed
    else:
        tensor = whole.to(getattr(torch, "float32" if dtype == TF32 else dtype))
        back, same = tensor.to(whole.dtype), whole
    if not torch.equal(back, same):
        raise Unprovable(f"{dtype} does not hold the known values exactly")
    return tensor


def _tile(loaded: Loaded, place: tuple[int, int]) -> tuple[slice, slice]:
    down, across = (where % loaded.span // TILE * TILE for where in place)
    return slice(down, down + TILE), slice(across, across + TILE)


def _scales(way: str, size: int, depth: int, device: Any) -> tuple[Any, Any] | None:
    """All 1.0: one for each operand of FP8, one for 16 numbers of float4, whose order is then free."""
    if way in FP8:
        one = torch.ones((), dtype=torch.float32, device=device)
        return one, one
    if way == FP4:
        count = -(-size // 128) * 128 * (-(-(depth // _BLOCK) // 4) * 4)
        ones = torch.full((count,), _ONE_E4M3, dtype=torch.uint8, device=device)
        return ones.view(torch.float8_e4m3fn), ones.view(torch.float8_e4m3fn)
    return None


def _pack(whole: Any) -> Any:
    values = whole.to(torch.float64)
    table = torch.tensor(_E2M1, dtype=torch.float64)
    codes = torch.searchsorted(table, values.abs()).clamp_(max=7).to(torch.uint8)
    codes |= (values < 0).to(torch.uint8) << 3
    return codes[:, 0::2] | codes[:, 1::2] << 4


def _unpack(packed: Any) -> Any:
    table = torch.tensor((*_E2M1, *(-value for value in _E2M1)), dtype=torch.float64)
    halves = torch.stack((packed & 15, packed >> 4), dim=2)
    return table[halves.to(torch.int64)].flatten(1)
