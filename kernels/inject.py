"""Faults to put into a product, drawn in the mix that permanent faults of a processor were seen in.

    python -m nodeproof.kernels.inject

Of the outcomes of stuck gates in a data-centre GPU fewer than 40 % are one flipped bit, 1 % are NaN
or infinite, and wrong addresses are periodic with a warp (arXiv:2605.04213). To these come faults
of control: a tile that is not written, or that another's values are written to, a whole output left
over from before, and a bit of a stored operand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

from nodeproof.kernels.bits import signed
from nodeproof.kernels.draws import words
from nodeproof.kernels.stored import Loaded

STRIDES = (2, 4, 8, 16, 32)
WARP = 32  # elements at most that one periodic fault hits
_TILE = 128
_DRAWS = 16  # words for each fault
_FRACTION = {  # bits of it, in formats that have infinities
    "float64": 52,
    "float32": 23,
    "bfloat16": 7,
    "float16": 10,
    "float8_e5m2": 2,
}


class Where(StrEnum):
    """What is hit."""

    ELEMENT = "element"
    PERIODIC = "periodic"  # elements of a row, a fixed number of columns apart
    ROW = "row"
    TILE = "tile"
    DROPPED = "dropped tile"  # holds what was there before
    DUPLICATED = "duplicated tile"  # holds what belongs to another
    STALE = "stale buffer"  # the whole output is that of a product before
    OPERAND_A = "operand A"
    OPERAND_B = "operand B"


class What(StrEnum):
    """How the bits of what is hit change."""

    SINGLE = "one bit"
    CLUSTER = "2-8 bits"
    NOT_FINITE = "NaN or Inf"
    FOREIGN = "other values"


_WHERE = (  # out of a hundred
    *(Where.ELEMENT,) * 45,
    *(Where.PERIODIC,) * 15,
    *(Where.ROW,) * 8,
    *(Where.TILE,) * 8,
    *(Where.DROPPED,) * 4,
    *(Where.DUPLICATED,) * 4,
    *(Where.STALE,) * 4,
    *(Where.OPERAND_A,) * 6,
    *(Where.OPERAND_B,) * 6,
)
_WHAT = (*(What.SINGLE,) * 40, *(What.CLUSTER,) * 59, What.NOT_FINITE)
_FOREIGN = {Where.DROPPED, Where.DUPLICATED, Where.STALE}
OPERANDS = {Where.OPERAND_A, Where.OPERAND_B}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The product that faults are drawn for: its shape, and torch's dtypes of all three matrices."""

    rows: int
    columns: int
    depth: int
    a: str
    b: str
    output: str

    @property
    def tile(self) -> int:
        """Rows and columns of a tile: there are always several."""
        return min(_TILE, self.rows // 2, self.columns // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. `row` and `column` are its first element, in the operand if one is hit.

    `mask` is XORed to each element that is hit; `value`, if there is one, replaces it. Both are
    unsigned. `source` is the first element of the tile whose values are duplicated.
    """

    number: int
    where: Where
    what: What
    row: int
    column: int
    stride: int
    tile: int
    mask: int
    value: int | None
    source: tuple[int, int]

    @property
    def name(self) -> str:
        """The class that a campaign counts it in."""
        return str(self.where) if self.what is What.FOREIGN else f"{self.where}, {self.what}"


def target(loaded: Loaded) -> Target:
    """Describe the product of these operands."""
    return Target(
        rows=loaded.size,
        columns=loaded.size,
        depth=int(loaded.a.shape[1]),
        a=str(loaded.a.dtype).removeprefix("torch."),
        b=str(loaded.b.dtype).removeprefix("torch."),
        output=loaded.output,
    )


def draw(seed: int, number: int, aim: Target, *, attempt: int = 0) -> Fault:
    """Draw fault `number`, which is a pure function of the arguments.

    A fault that changed nothing is drawn again as another `attempt`. Raises `ValueError` for a
    product too small to have a second tile.
    """
    if min(aim.rows, aim.columns) < 2 * max(STRIDES):
        raise ValueError(f"{aim.rows} x {aim.columns} elements: faults need {2 * max(STRIDES)}")
    deal = iter(words(seed, f"fault {number} {attempt}", 1, _DRAWS)[0].tolist())
    where = _WHERE[next(deal) % len(_WHERE)]
    what = What.FOREIGN if where in _FOREIGN else _WHAT[next(deal) % len(_WHAT)]
    rows, columns = aim.rows, aim.columns
    if where is Where.OPERAND_A:
        columns = aim.depth
    elif where is Where.OPERAND_B:
        rows = aim.depth
    name = {Where.OPERAND_A: aim.a, Where.OPERAND_B: aim.b}.get(where, aim.output)
    width = getattr(torch, name).itemsize * 8
    value = _not_finite(name, width, next(deal)) if what is What.NOT_FINITE else None
    if what is What.NOT_FINITE and value is None:
        what = What.CLUSTER  # a format without
    row, column, stride = next(deal), next(deal), STRIDES[next(deal) % len(STRIDES)]
    source = (next(deal), next(deal))
    across, down = columns // aim.tile, rows // aim.tile
    if where in {Where.TILE, Where.DROPPED, Where.DUPLICATED}:
        row, column = row % down * aim.tile, column % across * aim.tile
    elif where is Where.PERIODIC:
        column %= columns - stride  # two at least
    return Fault(
        number=number,
        where=where,
        what=what,
        row=row % rows,
        column=0 if where in {Where.ROW, Where.STALE} else column % columns,
        stride=stride,
        tile=aim.tile,
        mask=_mask(what, width, deal),
        value=value,
        source=(source[0] % down * aim.tile, source[1] % across * aim.tile),
    )


def apply(fault: Fault, bits: Any, *, before: Any = None) -> None:
    """Put a fault into a matrix of integers, in place: an operand or an output, as the fault says.

    `before` is what the memory held before this product, of the same shape and type. Raises
    `ValueError` where a fault leaves old values and there is no `before`.
    """
    tile = (
        slice(fault.row, fault.row + fault.tile),
        slice(fault.column, fault.column + fault.tile),
    )
    if fault.where in {Where.DROPPED, Where.STALE}:
        if before is None:
            raise ValueError(f"{fault.where}: what did the memory hold before?")
        whole = slice(None), slice(None)
        place = tile if fault.where is Where.DROPPED else whole
        bits[place] = before[place]
    elif fault.where is Where.DUPLICATED:
        row, column = fault.source
        bits[tile] = bits[row : row + fault.tile, column : column + fault.tile].clone()
    else:
        ends = fault.column + fault.stride * (WARP - 1) + 1
        hit = {
            Where.PERIODIC: (fault.row, slice(fault.column, ends, fault.stride)),
            Where.ROW: (fault.row, slice(None)),
            Where.TILE: tile,
        }.get(fault.where, (fault.row, fault.column))
        width = bits.element_size() * 8
        if fault.value is not None:
            bits[hit] = signed(fault.value, width)
        else:
            bits[hit] ^= signed(fault.mask, width)


def _mask(what: What, width: int, deal: Iterator[int]) -> int:
    """One bit, or 2 to 8 within twice as many neighbours, the lowest and highest included."""
    if what is not What.CLUSTER:
        return 1 << next(deal) % width
    count = min(2 + next(deal) % 7, width)
    extent = min(count + next(deal) % (count + 1), width)
    start = next(deal) % (width - extent + 1)
    word = next(deal)
    between = sorted(range(1, extent - 1), key=lambda bit: word * (2 * bit + 1) & 0xFFFFFFFF)
    bits = {0, extent - 1, *between[: count - 2]}
    return sum(1 << start + bit for bit in bits)


def _not_finite(name: str, width: int, word: int) -> int | None:
    """An infinity or a NaN of either sign, quiet or with any other fraction."""
    fraction = _FRACTION.get(name)
    if fraction is None:
        return None
    exponent = (1 << width - 1) - (1 << fraction)
    payload = (0, 1 << fraction - 1, 1, (1 << fraction) - 1)[word % 4]
    return exponent | payload | (word >> 2 & 1) << width - 1


def main() -> None:
    """Show the mix, and that each fault changes what it says and nothing else."""
    aim = Target(rows=256, columns=256, depth=256, a="float32", b="float32", output="float32")
    before = torch.full((256, 256), -1, dtype=torch.int32)
    counts: dict[str, int] = {}
    faults = 2000
    for number in range(faults):
        fault = draw(1, number, aim)
        bits = torch.arange(256 * 256, dtype=torch.int32).view(256, 256)
        right = bits.clone()
        apply(fault, bits, before=before)
        changed = int(torch.count_nonzero(bits != right))
        most = {Where.PERIODIC: WARP, Where.ROW: 256, Where.STALE: 256 * 256}
        tiled = {Where.TILE, Where.DROPPED, Where.DUPLICATED}
        limit = fault.tile**2 if fault.where in tiled else most.get(fault.where, 1)
        if not 0 <= changed <= limit:
            raise SystemExit(f"{fault} changed {changed} elements")
        counts[fault.name] = counts.get(fault.name, 0) + 1
    for name, count in sorted(counts.items()):
        print(f"{name}: {100 * count / faults:.1f} %")


if __name__ == "__main__":
    main()
