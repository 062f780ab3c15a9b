"""Updates of shared addresses whose totals are known, reckoned on the host by sorting.

Sums stay below what their type holds exactly, whatever the order of additions. Of what goes into a
maximum or a minimum no two values are alike, so that one update alone decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from nodeproof.kernels.draws import integers, words
from nodeproof.kernels.formats import Unprovable

FEW = 3  # addresses: all of them in one line of a cache
_LIMITS = {"int32": 2**31 - 1, "int64": 2**62, "float32": 2**24 - 1}  # of sums, in any order


class Operation(StrEnum):
    """How totals are come by."""

    INDEX_ADD = "index_add"
    SCATTER_ADD = "scatter_add"
    AMAX = "scatter_amax"
    AMIN = "scatter_amin"
    BINCOUNT = "bincount"

    @property
    def sums(self) -> bool:
        """Whether a second update of the same value changes the total."""
        return self not in {Operation.AMAX, Operation.AMIN}

    @property
    def start(self) -> int:
        """What a total is before the first update."""
        return 2**30 if self is Operation.AMIN else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many updates a launch has, and to how many addresses where these are many."""

    many: int
    drawn: int  # updates that the host draws and sorts
    times: int  # a launch has them so many times


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One operation on one type, to few addresses or to many."""

    operation: Operation
    dtype: str
    many: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Updates:
    """What one launch is given, and what it comes to; all on the host.

    `index` and `value` are one-dimensional and drawn; a launch has them `times` over, for maxima
    and minima each time with another number of `raised` added, so that one update alone decides.
    """

    case: Case
    width: int
    index: Any
    value: Any
    raised: Any

    def whole(self) -> tuple[Any, Any]:
        """Index and value of every update."""
        value = (self.value[None, :] + self.raised[:, None]).ravel()
        return np.tile(self.index, len(self.raised)), value

    def come_to(self) -> Any:
        """All totals, (width,) int64, from one sort of what was drawn."""
        operation, times = self.case.operation, len(self.raised)
        order = np.argsort(self.index, kind="stable")
        index, value = self.index[order], self.value[order]
        places, starts = np.unique(index, return_index=True)
        out = np.full(self.width, operation.start)
        if operation is Operation.BINCOUNT:
            out[places] = np.diff(np.append(starts, len(index))) * times
        elif operation.sums:
            out[places] = np.add.reduceat(value, starts) * times
        else:
            best = np.maximum if operation is Operation.AMAX else np.minimum
            out[places] = best.reduceat(value, starts) + int(best.reduce(self.raised))
        if operation.sums and int(out.sum()) != self._sum():
            raise Unprovable(
                "two ways to the known totals differ, so the host itself may compute wrongly: "
                "test its processor and memory before it judges a device"
            )
        return out

    def altered(self, at: int, *, plant: str) -> tuple[Any, Any, int]:
        """Return index and value with the update at `at` missing or twice, and the total there then."""
        index, value = self.whole()
        there = index[at]
        if plant == "lost":
            index, value = np.delete(index, at), np.delete(value, at)
        else:
            index, value = np.append(index, there), np.append(value, value[at])
        rest = value[index == there]
        operation = self.case.operation
        if operation is Operation.BINCOUNT:
            return index, value, len(rest)
        if operation.sums:
            return index, value, int(rest.sum())
        best = np.max if operation is Operation.AMAX else np.min
        return index, value, int(best(rest, initial=operation.start))

    def place(self, at: int) -> int:
        """Return the address of the update at `at`."""
        return int(self.index[at % len(self.index)])

    def deciding(self, draw: int) -> int:
        """Return an update whose loss changes the total of its address."""
        index, value = self.whole()
        at = draw % len(index)
        if self.case.operation.sums:
            return at
        same = np.flatnonzero(index == index[at])
        best = np.argmax if self.case.operation is Operation.AMAX else np.argmin
        return int(same[best(value[same])])

    def _sum(self) -> int:
        if self.case.operation is Operation.BINCOUNT:
            return len(self.index) * len(self.raised)
        return int(self.value.sum()) * len(self.raised)


def draw(case: Case, size: Size, *, seed: int, tag: str) -> Updates:
    """Draw the updates of one launch. Raises `Unprovable` where sums could leave what is exact."""
    width, number, times = size.many if case.many else FEW, size.drawn, size.times
    index = (words(seed, f"{tag} index", 1, number)[0] % np.uint32(width)).astype(np.int64)
    most = int(np.bincount(index).max()) * times
    raised = np.zeros(times, np.int64)
    if case.operation.sums:
        largest = min(_LIMITS[case.dtype] // most, 2**31 - 1)
        if largest < 1:
            raise Unprovable(f"{most} updates of one address leave what {case.dtype} holds exactly")
        value = integers(seed, f"{tag} value", 1, number, largest)[0]
    else:
        # No two alike: the one that decides is the only one, and its loss shows.
        value = np.argsort(words(seed, f"{tag} value", 1, number)[0], kind="stable") + 1
        raised = np.argsort(words(seed, f"{tag} raised", 1, times)[0]).astype(np.int64) * number
    return Updates(case=case, width=width, index=index, value=value, raised=raised)
