"""Launches the kernels of `onchip_triton` on one device, and reads what each block reported."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import torch

from nodeproof.kernels.bits import difference
from nodeproof.kernels.draws import words
from nodeproof.kernels.faults import KEEP
from nodeproof.kernels.onchip_answers import (
    LEAST,
    MASK,
    NONE,
    OPERATIONS,
    Contention,
    scrambled,
    turned,
)
from nodeproof.kernels.place import NoPlaceError
from nodeproof.worker import Context

_LONG = 16  # one round of so many holds for long


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of the launches on a kind of device."""

    size: int  # words of a block
    launches: int  # of each kernel in a round
    blocks: int  # for each SM
    contending: int  # the same, where blocks contend
    turns: int
    spins: int  # steps of the generator between turns, at most
    long: int  # the same, in a long hold
    updates: int  # of a block that contends
    width: int  # addresses of a table
    many: int  # of these used, where they are to be many

    few: int = 3


# 64 words for each thread of 4 warps: as many registers as leave room to reckon in, unspilled.
_GPU = Shape(
    size=8192,
    launches=16,
    blocks=16,
    contending=2,
    turns=64,
    spins=512,
    long=1 << 16,
    updates=256,
    width=4096,
    many=4093,
)
_INTERPRETED = Shape(
    size=128,
    launches=1,
    blocks=1,
    contending=1,
    turns=3,
    spins=3,
    long=5,
    updates=64,
    width=128,
    many=101,
)
_INTERPRETED_SMS = 4  # what the stand-in for %smid counts to


@dataclass(slots=True, kw_only=True)
class Part:
    """What was seen of one part of the SMs."""

    checked: int = 0  # words
    wrong: int = 0
    unreported: int = 0  # blocks
    blocks: dict[int, int] = field(default_factory=dict)  # reports by SM
    wrong_on: dict[int, int] = field(default_factory=dict)  # words by SM


class Bench:
    """Launches the kernels on one device and keeps what they reported."""

    def __init__(self, context: Context, device: Any, module: ModuleType) -> None:
        self._device, self._module = device, module
        self._seed, self._id = context.seed, context.device_id
        gpu = device.type == "cuda"
        self._options: dict[str, Any] = {"num_warps": 4} if gpu else {}
        self.shape = _GPU if gpu else _INTERPRETED
        self.sms = _INTERPRETED_SMS
        if gpu:
            self.sms = int(torch.cuda.get_device_properties(device).multi_processor_count)
        self._grid = self.sms * self.shape.blocks
        self.parts = {name: Part() for name in ("registers", "shared", "atomics")}
        self.found: list[dict[str, Any]] = []
        self.planted: list[dict[str, Any]] = []
        self._turned, self._begun = 0, time.perf_counter()

    def compile(self) -> int:
        """Compile without launching; return the bytes of shared memory of a staging block."""
        grid, some = (1,), torch.zeros(16, dtype=torch.int32, device=self._device)
        shape, gpu = self.shape, self._device.type == "cuda"
        size = {"SIZE": shape.size, "ON_GPU": gpu, **self._options}
        module = self._module
        try:
            module.hold.warmup(some, some, grid=grid, **size)
            staged = module.stage.warmup(some, some, grid=grid, **size)
            contended = {"WIDTH": shape.width, "SIZE": shape.updates, **self._options}
            module.contend.warmup(some, some, grid=grid, **contended)
        except Exception as error:  # a compiler fails in many ways
            raise NoPlaceError(
                f"{self._id}: Triton can't compile its kernels here ({error}): it needs a C "
                f"compiler, and a directory to write to (TRITON_CACHE_DIR)"
            ) from error
        return int(staged.metadata.shared) if gpu else 0

    def held(self, name: str, number: int, *, planted: bool) -> None:
        """Hold words in one part, read every block's report, and remember what was wrong."""
        draw = [int(w) for w in words(self._seed, f"{name} {number}", 1, 3)[0]]
        orders = self._orders(number, draw)
        fault: dict[str, Any] | None = None
        if planted:
            fault = self._fault(name, orders, number)
        table = np.array([orders[o] for o in self._module.ORDERS], np.int64)
        given = torch.from_numpy(table.astype(np.uint32).view(np.int32)).to(self._device)
        log = torch.zeros(
            (self._grid, self._module.COLUMNS), dtype=torch.int32, device=self._device
        )
        kernel = self._module.hold if name == "registers" else self._module.stage
        gpu = self._device.type == "cuda"
        kernel[(self._grid,)](given, log, SIZE=self.shape.size, ON_GPU=gpu, **self._options)
        rows = log.cpu().numpy()
        if fault is not None:
            fault["sm"] = int(rows[fault["block"], 3])
            self.planted.append(fault)
        self._read(name, rows, orders, number, fault)
        self._turned += self._grid * self.shape.size * orders["turns"]

    def contended(self, addresses: int, number: int, *, planted: bool) -> None:
        """Update `addresses` from all blocks at once and compare every total with the host's."""
        tag = f"contend {addresses} {number}"
        case = Contention(
            salt=int(words(self._seed, tag, 1, 1)[0, 0]),
            addresses=addresses,
            blocks=self.sms * self.shape.contending,
            updates=self.shape.updates,
            width=self.shape.width,
        )
        expected = case.totals()
        lost = (NONE, NONE)
        own: set[tuple[int, ...]] = set()
        if planted:
            lost = case.to_lose(int(words(self._seed, f"{tag} {self._id}", 1, 1)[0, 0]))
            without = case.totals(*lost)
            for place in np.argwhere(expected != without).tolist():
                own.add(tuple(place))
                self.planted.append(self._total(case, place, expected, without, number))
        order = np.array([case.salt, addresses, lost[0] & MASK, lost[1] & MASK], np.uint32)
        given = torch.from_numpy(order.view(np.int32)).to(self._device)
        for _ in range(1 if planted else self.shape.launches):
            self._total_up(case, given, expected, own, number)

    def _total_up(
        self, case: Contention, given: Any, expected: Any, own: set[tuple[int, ...]], number: int
    ) -> None:
        tables = torch.zeros((len(OPERATIONS), case.width), dtype=torch.int32, device=self._device)
        tables[OPERATIONS.index("max")] = LEAST
        self._module.contend[(case.blocks,)](
            given, tables, WIDTH=case.width, SIZE=case.updates, **self._options
        )
        got = tables.cpu().numpy()
        places = np.argwhere(got != expected).tolist()
        part = self.parts["atomics"]
        part.checked += case.blocks * (case.updates * 3 + 1)
        part.wrong += len(places)
        for place in places:
            # Many faults of the device's own must not crowd out a planted one.
            if len(self.found) < KEEP or tuple(place) in own:
                self.found.append(self._total(case, place, expected, got, number))

    def report(self) -> dict[str, Any]:
        """Return what all launches together showed."""
        told = [self.parts["registers"], self.parts["shared"]]
        covered = set(told[0].blocks) & set(told[1].blocks)
        fewest = [part.blocks[sm] for part in told for sm in covered]
        on: dict[str, int] = {}
        for part in told:
            for sm, count in part.wrong_on.items():
                on[str(sm)] = on.get(str(sm), 0) + count
        return {
            "wrong": sum(part.wrong for part in self.parts.values()),
            "found": self.found,
            "planted": self.planted,
            # What a word has to be is the host's in the first place.
            "host": "right" if any(f["bits"] for f in self.found) else None,
            "checked": {name: part.checked for name, part in self.parts.items()},
            "unreported": sum(part.unreported for part in self.parts.values()),
            "sms": self.sms,
            "covered": len(covered),
            "blocks_of_sm": min(fewest, default=0),
            "wrong_on": on,
            "versions": {"torch": str(torch.__version__), "triton": self._module.VERSION},
            "word_turns_per_s": self._turned / (time.perf_counter() - self._begun),
        }

    def _orders(self, number: int, draw: list[int]) -> dict[str, int]:
        shape = self.shape
        turns = shape.turns + number % 2
        spins = shape.long if number % _LONG == _LONG - 1 else draw[2] % shape.spins
        orders = dict.fromkeys(self._module.ORDERS, 0)
        orders |= {"salt": draw[0], "state": draw[1], "turns": turns, "spins": spins}
        orders["total"], orders["factor"], orders["shift"] = turned(
            draw[1], turns, spins, shape.size
        )
        return {**orders, "block": MASK, "watch": MASK}

    def _fault(self, name: str, orders: dict[str, int], number: int) -> dict[str, Any]:
        """Order a fault, and return what has to be reported for it but for the SM."""
        # Elsewhere on each device: the same fault on two of them would be no hardware's.
        draw = [int(w) for w in words(self._seed, f"{name} {number} {self._id}", 1, 4)[0]]
        block, last = draw[0] % self._grid, draw[1] % self.shape.size
        # The least that can be wrong first: one bit, the lowest.
        bits = 1 if number == 0 else draw[2] | 1 << draw[3] % 32
        first = last
        if name == "shared":
            first = (last * orders["factor"] + orders["shift"]) % self.shape.size
        orders |= {"block": block, "word": first, "bits": bits, "watch": last}
        return self._word(name, orders, number, block=block, element=last, xor=bits, sm=NONE)

    def _read(
        self,
        name: str,
        rows: Any,
        orders: dict[str, int],
        number: int,
        fault: dict[str, Any] | None,
    ) -> None:
        part = self.parts[name]
        counts, first, sms = rows[:, 0].astype(np.int64), rows[:, 1], rows[:, 3]
        size = self.shape.size
        # What is no report of this kernel's counts as none: it is neither clean nor evidence.
        told = (counts >= 0) & (counts <= size) & (rows[:, 5] == ~rows[:, 0]) & (sms >= 0)
        told &= np.where(counts == 0, first == -1, (first >= 0) & (first < size))
        part.unreported += int(np.count_nonzero(~told))
        part.checked += int(np.count_nonzero(told)) * size
        part.wrong += int(counts[told].sum())
        for sm, blocks in zip(*np.unique(sms[told], return_counts=True), strict=True):
            part.blocks[int(sm)] = part.blocks.get(int(sm), 0) + int(blocks)
        for block in np.flatnonzero(told & (counts > 0)).tolist():
            count, element, xor, sm, at_watch = (int(v) for v in rows[block, :5])
            part.wrong_on[sm] = part.wrong_on.get(sm, 0) + count
            seen = {element: xor}
            # Many faults of the device's own must not crowd out a planted one.
            planted = fault is not None and fault["block"] == block
            if planted and at_watch:
                seen[orders["watch"]] = at_watch
            for element, xor in sorted(seen.items()):
                if len(self.found) < KEEP or (planted and element == orders["watch"]):
                    self.found.append(
                        self._word(
                            name,
                            orders,
                            number,
                            block=block,
                            element=element,
                            xor=xor & MASK,
                            sm=sm,
                        )
                    )

    def _word(
        self,
        name: str,
        orders: dict[str, int],
        number: int,
        *,
        block: int,
        element: int,
        xor: int,
        sm: int,
    ) -> dict[str, Any]:
        origin = element
        if name == "shared":
            origin = (element * orders["factor"] + orders["shift"]) % self.shape.size
        salt = scrambled([orders["salt"] ^ block])[0]
        expected = int(scrambled([origin ^ int(salt)])[0]) ^ orders["total"]
        return {
            "part": name,
            "round": number,
            "block": block,
            "element": element,
            "sm": sm,
            **difference(expected, expected ^ xor, 32),
        }

    def _total(
        self, case: Contention, at: list[int], expected: Any, got: Any, number: int
    ) -> dict[str, Any]:
        operation, index = at
        return {
            "part": "atomics",
            "round": number,
            "operation": OPERATIONS[operation],
            "addresses": case.addresses,
            "index": index,
            **difference(int(expected[operation, index]), int(got[operation, index]), 32),
        }
