"""One kind of operands on a GPU, the launches that multiply them, and what these found wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import torch

from nodeproof.kernels.bits import likeness, raw, signed
from nodeproof.kernels.draws import Integers
from nodeproof.kernels.fused_fault import ALL, BITS, NOWHERE, Fault
from nodeproof.kernels.fused_tiling import Tiling
from nodeproof.kernels.operands import Operands
from nodeproof.kernels.stored import exact

TABLE = 1024  # SM ids that are told apart; the last place is for all beyond
KEEP = 192  # wrong tiles of a launch that are kept: those of each SM's first, at least
FIELDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """What one launch came to. `faults` is sorted by sweep and tile, and may be cut off."""

    tiles: Counter[int]  # by SM; TABLE - 1 stands for every SM with a higher number
    wrong: Counter[int]  # elements, by SM
    faults: list[Fault]
    items: int


class Cell:
    """Operands of one dtype and family, as large as the device takes them, and their kernel."""

    def __init__(
        self,
        operands: Operands,
        *,
        size: int,
        device: Any,
        cut: Tiling,
        programs: int,
        emulated_sms: int,
        kernels: ModuleType,
    ) -> None:
        """Put operands on the device. Raises `Unprovable` if its formats do not hold them."""
        # What the host needs later, without the operands themselves: those are large.
        self.dtype = operands.dtype
        self.family = str(operands.family)
        self.depth = operands.depth
        self._span = operands.span
        self._facts = operands.facts()
        self.size = size
        self.cut = cut
        self.programs = programs
        self.sweep = 0
        self._sweeps = 1  # of the next launch
        self._emulated = emulated_sms
        self._kernels = kernels
        times = size // operands.span
        self._spans = (
            exact(operands.a, operands.a_dtype),
            exact(operands.b.T, operands.b_dtype),
        )
        # B is stored by columns, which is how a tensor core takes every format.
        self.a, self.b = (span.to(device).repeat(times, 1) for span in self._spans)
        self._integer = operands.dtype == "int8"
        self._kind = "int32" if self._integer else "float32"
        terms = split(operands.answer)
        self.closed = terms is not None
        self._known = exact(operands.answer if terms is None else terms, self._kind)
        self.reference = self._known.to(device, copy=True).contiguous()
        self._answer = raw(exact(operands.answer, self._kind))
        self._counts = torch.zeros(2 * TABLE + 1, dtype=torch.int32, device=device)
        self._log = torch.zeros((KEEP + 1, FIELDS), dtype=torch.int32, device=device)
        self._pictures = torch.zeros(
            (KEEP + 1, cut.rows, cut.columns), dtype=torch.int32, device=device
        )

    @property
    def name(self) -> str:
        """What tells it from other cells."""
        return f"{self.dtype} {self.family}"

    @property
    def tiles(self) -> int:
        """Tiles of one sweep."""
        return (self.size // self.cut.rows) * (self.size // self.cut.columns)

    @property
    def operations_per_tile(self) -> float:
        """Multiplications and additions of one tile."""
        return 2.0 * self.cut.rows * self.cut.columns * self.depth

    def facts(self) -> dict[str, Any]:
        """What the results file keeps of the proof that the answer is exact."""
        return {"dtype": self.dtype, "size": self.size, **self._facts}

    def planned(self, draw: list[int], *, lowest: bool) -> Fault:
        """Return the fault that four random words mean for the next launch."""
        item = draw[0] % (self.tiles * self._sweeps)
        sweep = self.sweep + item // self.tiles
        tile = (item + sweep) % self.tiles
        place = draw[1] % self.cut.rows, draw[2] % self.cut.columns
        top, left = self._corner(tile)
        fault = self._fault(tile, sweep, top + place[0], left + place[1], 1)
        # The lowest bit is the least that can be wrong: a comparison with a tolerance misses it.
        return replace(fault, xor=1 if lowest else 1 << draw[3] % BITS, item=item, place=place)

    def launch(self, fault: Fault | None = None, *, whole_sm: int = NOWHERE) -> Launched:
        """Multiply and compare, for as many sweeps as `pace` said, and read what was counted.

        `fault` is planted where it says; with `whole_sm` in every tile of that SM instead.
        """
        items = self.tiles * self._sweeps
        self._counts.zero_()
        self._log.zero_()
        self._pictures[KEEP].zero_()  # or what was planted before would be found again
        cut = self.cut
        row, column = fault.place if fault else (0, 0)
        mask = fault.xor if fault else 0
        self._kernels.multiply_and_compare[(self.programs,)](
            *self._sides(),
            self.reference,
            self._counts,
            self._counts[TABLE:],
            self._counts[2 * TABLE :],
            self._log,
            self._pictures,
            self.size // cut.rows,
            self.size // cut.columns,
            self.depth,
            self._span,
            self.sweep,
            items,
            fault.item if fault and whole_sm == NOWHERE else NOWHERE,
            whole_sm,
            row,
            column,
            signed(mask, BITS),
            BM=cut.rows,
            BN=cut.columns,
            BK=cut.depth,
            GROUP=cut.group,
            TABLE=TABLE,
            KEEP=KEEP,
            FIELDS=FIELDS,
            CLOSED=self.closed,
            DESCRIBED=cut.described,
            INTEGER=self._integer,
            PRECISION="tf32" if self.dtype == "tfloat32" else "ieee",
            EMULATED=self._emulated,
            num_warps=cut.warps,
            num_stages=cut.stages,
            enable_fp_fusion=True,
        )
        counts = self._counts.tolist()  # waits for the launch to end
        self.sweep += self._sweeps
        wrong = Counter({sm: n for sm, n in enumerate(counts[TABLE : 2 * TABLE]) if n})
        return Launched(
            tiles=Counter({sm: n for sm, n in enumerate(counts[:TABLE]) if n}),
            wrong=wrong,
            faults=self._faults(counts[2 * TABLE], fault) if wrong else [],
            items=items,
        )

    def pace(self, took_s: float, wanted_s: float, most: int) -> None:
        """Let the next launch take about `wanted_s`, judged by what the last one took."""
        if self._emulated:
            return
        sweeps = int(self._sweeps * wanted_s / max(took_s, 1e-6))
        self._sweeps = max(1, min(sweeps, most // self.tiles))

    def intact(self) -> bool:
        """Whether operands and known answer on the device are still what was put there."""
        sides = zip((self.a, self.b), self._spans, strict=True)
        return bool(
            torch.equal(raw(self.reference.cpu()), raw(self._known))
            and all(
                bool((raw(held.cpu()).view(-1, *span.shape) == raw(span)).all())
                for held, span in sides
            )
        )

    def by_host(self, fault: Fault) -> str:
        """What the host's processor computes for that element: "right", "same" bits or "other"."""
        a, b = self._spans
        row, column = a[fault.row % self._span], b[fault.column % self._span]
        total = torch.dot(row.to(torch.float64), column.to(torch.float64))
        bits = int(raw(total.to(getattr(torch, self._kind)).reshape(1))[0]) & ALL
        return likeness(bits, expected=fault.expected, got=fault.expected ^ fault.xor)

    def _sides(self) -> tuple[Any, Any]:
        if not self.cut.described:
            return self.a, self.b
        from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: PLC0415  needs Triton

        blocks = ([self.cut.rows, self.cut.depth], [self.cut.columns, self.cut.depth])
        a, b = (
            TensorDescriptor.from_tensor(side, block)
            for side, block in zip((self.a, self.b), blocks, strict=True)
        )
        return a, b

    def _corner(self, tile: int) -> tuple[int, int]:
        """Row and column of a tile's first element, by the same order as in the kernel."""
        down, across = self.size // self.cut.rows, self.size // self.cut.columns
        group, within = divmod(tile, self.cut.group * across)
        high = min(down - group * self.cut.group, self.cut.group)
        row = group * self.cut.group + within % high
        return row * self.cut.rows, within // high * self.cut.columns

    def _fault(self, tile: int, sweep: int, row: int, column: int, xor: int) -> Fault:
        span = self._span
        return Fault(
            dtype=self.dtype,
            family=self.family,
            tile=tile,
            sweep=sweep,
            row=row,
            column=column,
            expected=int(self._answer[row % span, column % span]) & ALL,
            xor=xor & ALL,
        )

    def _faults(self, logged: int, planted: Fault | None) -> list[Fault]:
        """Describe the first wrong element of each tile that was kept, the planted one first."""
        log, faults = self._log.tolist(), []
        slots = list(range(max(0, min(logged, KEEP))))
        if planted is not None and planted.item != NOWHERE:
            slots.append(KEEP)
        for slot in slots:
            sm, tile, sweep, top, left, wrong, *_ = log[slot]
            picture = self._pictures[slot].cpu()
            places = picture.nonzero()
            if not len(places):
                continue  # the last row, if nothing was found where something was planted
            place = places[0].tolist()
            own = slot == KEEP and planted is not None
            if own and planted is not None and picture[planted.place]:
                place = list(planted.place)
            xor = int(picture[place[0], place[1]])
            fault = self._fault(tile, sweep, top + place[0], left + place[1], xor)
            faults.append(
                replace(
                    fault,
                    sm=sm,
                    wrong_in_tile=wrong,
                    rows=len(places[:, 0].unique()),
                    columns=len(places[:, 1].unique()),
                    item=planted.item if own and planted is not None else NOWHERE,
                )
            )
        return sorted(faults, key=lambda f: (f.item == NOWHERE, f.sweep, f.tile))


def split(answer: Integers) -> Integers | None:
    """Return terms of rows and of columns (2, span) that sum to the answer, if there are any."""
    rows, columns = answer[:, 0], answer[0] - answer[0, 0]
    if not np.array_equal(rows[:, None] + columns[None, :], answer):
        return None
    return np.stack([rows, columns])
