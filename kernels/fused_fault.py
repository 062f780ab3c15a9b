"""A wrong element of a fused product: one that was planted, or the first found in its tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nodeproof.kernels.bits import difference

NOWHERE = -1
BITS = 32  # of one element of the accumulator
ALL = (1 << BITS) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Which element, and which of its bits.

    `tile` is numbered within a `sweep` over all of them. `row` and `column` are the element's in
    the product, `place` within the tile. `expected` and `xor` are bits, as unsigned numbers.
    """

    dtype: str
    family: str
    tile: int
    sweep: int
    row: int
    column: int
    expected: int
    xor: int
    item: int = NOWHERE  # of the launch: where it was planted
    place: tuple[int, int] = (0, 0)  # row and column of the tile
    sm: int = NOWHERE
    wrong_in_tile: int = 1
    rows: int = 1  # of the tile, that are not all right
    columns: int = 1

    def report(self) -> dict[str, Any]:
        """What has to be the same for a planted fault and the one that is found."""
        return {
            "dtype": self.dtype,
            "family": self.family,
            "tile": self.tile,
            "sweep": self.sweep,
            "row": self.row,
            "column": self.column,
            **difference(self.expected, self.expected ^ self.xor, BITS),
        }

    def origin(self) -> dict[str, Any]:
        """Where it was made, and how much of its tile was wrong."""
        return {
            "multiprocessor": self.sm,
            "wrong_in_tile": self.wrong_in_tile,
            "rows": self.rows,
            "columns": self.columns,
        }
