"""Many updates of the same few addresses at once: none may be lost, and none counted twice.

On a GPU torch's scatters of integers, and of float32, are atomic operations of the second-level
cache; where totals and their parts stay integers below 2**24, float32 sums do not depend on the
order either. What the totals have to be the host reckons by sorting, and compares bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from nodeproof.kernels import alone
from nodeproof.kernels.bits import likeness
from nodeproof.kernels.draws import words
from nodeproof.kernels.faults import KEEP, PLACES, known, sound
from nodeproof.kernels.place import place
from nodeproof.kernels.stopwatch import Stopwatch
from nodeproof.kernels.updates import Case, Operation, Size, Updates, draw
from nodeproof.worker import Context

PLANTS = ("lost", "twice")
# The updates of one launch are some hundred KiB on a processor, and fit the cache of a GPU.
SIZES = {
    "cuda": Size(many=1 << 16, drawn=1 << 16, times=16),
    "cpu": Size(many=61, drawn=1 << 10, times=4),
}
_LAUNCHES = {"cuda": 32, "cpu": 1}  # of the same updates
_BITS = {"int32": np.int32, "int64": np.int64, "float32": np.int32}


CASES = tuple(
    Case(operation=operation, dtype=dtype, many=many)
    for operation, dtype in (
        (Operation.INDEX_ADD, "int32"),
        (Operation.INDEX_ADD, "float32"),
        (Operation.SCATTER_ADD, "int64"),
        (Operation.SCATTER_ADD, "float32"),
        (Operation.AMAX, "int32"),
        (Operation.AMIN, "int64"),
        (Operation.BINCOUNT, "int64"),
    )
    for many in (False, True)
)


def totals(context: Context, *, seconds: float = 0.0, plant: str = "") -> dict[str, Any]:
    """Update addresses by each operation for `seconds`, once at least, and compare every total.

    With `plant="lost"` one update of each case is left out of what the device gets, with
    `plant="twice"` one is there twice (where that changes a total). Returns `wrong` (totals),
    `found`, `planted`, `host`, `updates`, `checked_totals`, `cases` {case: {updates, totals}},
    `rounds`, `updates_per_s` and `loaded_s`. Raises `ValueError` for an unknown plant,
    `RuntimeError` where the device can't do an operation or gives totals of another shape or type.
    """
    known(plant, *PLANTS)
    torch.set_num_threads(context.threads)
    device = place(context)
    seen = Tally(context, device)
    watch = Stopwatch(context, seconds)
    done = 0
    with _undetermined():
        while not done or watch.spent < seconds:
            for case in CASES:
                seen.count(case, done, plant="" if done else plant)
            done += 1
            watch.read()
            watch.tell(updates=float(seen.updates), done=watch.share)
    return {
        "wrong": seen.wrong,
        "host": seen.host,
        "found": seen.found,
        "planted": seen.planted,
        "updates": seen.updates,
        "checked_totals": seen.checked,
        "cases": seen.cases,
        "rounds": done,
        "updates_per_s": seen.updates / watch.spent,
        "loaded_s": watch.spent,
    }


@contextmanager
def _undetermined() -> Iterator[None]:
    """Have torch use atomic operations, and not sort instead, as it does if told to be determinate."""
    # This call and not torch.use_deterministic_algorithms, which imports a compiler.
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode(0)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


class Tally:
    """Has the device do the updates, compares, and remembers what was wrong."""

    def __init__(self, context: Context, device: Any) -> None:
        self._seed, self._id, self._device = context.seed, context.device_id, device
        self.updates = 0
        self.checked = 0
        self.cases: dict[str, dict[str, int]] = {}
        self.wrong = 0
        self.found: list[dict[str, Any]] = []
        self.planted: list[dict[str, Any]] = []
        self.host: str | None = None  # where a total was wrong: what the host's torch gives

    def count(self, case: Case, number: int, *, plant: str) -> None:
        """Update addresses and compare all totals with the host's, with a planted fault as well."""
        tag = f"atomics {case.operation} {case.dtype} {case.many} {number}"
        kind = self._device.type
        updates = draw(case, SIZES[kind], seed=self._seed, tag=tag)
        expected = updates.come_to()
        given = self._repeated(updates)
        place, right = None, np.ones(len(expected), bool)
        shows = bool(plant) and (plant == "lost" or case.operation.sums)
        # One comparison for both, so that none can be left out that no planted fault misses.
        for planted in (False, True) if shows else (False,):
            if planted:
                given, place = self._plant(updates, number, expected, right, tag, plant=plant)
            for _ in range(1 if plant else _LAUNCHES[kind]):
                right = self._compare(case, number, expected, given, place)

    def _plant(
        self, updates: Updates, number: int, expected: Any, right: Any, tag: str, *, plant: str
    ) -> tuple[tuple[Any, Any], int]:
        """Return updates of which one is lost or doubled, where all was `right`, and its address."""
        case = updates.case
        draws = words(self._seed, f"{tag} {self._id}", 1, PLACES)[0].tolist()
        drawn = [updates.deciding(each) for each in draws[: 1 if right.all() else PLACES]]
        update = sound(drawn, lambda each: right[updates.place(each)])
        place = updates.place(update)
        index, value, got = updates.altered(update, plant=plant)
        self.planted.append(_described(case, number, place, int(expected[place]), got))
        return self._moved(case, index, value), place

    def _compare(
        self, case: Case, number: int, expected: Any, given: tuple[Any, Any], place: int | None
    ) -> Any:
        """Do one launch; return which totals are right. One that is wrong at `place` is described."""
        width = len(expected)
        out = _KERNELS[case.operation](width, *given)
        if tuple(out.shape) != (width,) or str(out.dtype) != f"torch.{case.dtype}":
            raise RuntimeError(
                f"{self._id}: totals of {case.operation} came back as {out.dtype} "
                f"{tuple(out.shape)}, not {case.dtype} ({width},): the torch build is not usable "
                f"here"
            )
        totals = out.cpu().numpy()
        # As bits: a tolerance, a NaN or a minus before a zero hides nothing there.
        bits, wanted = (t.view(_BITS[case.dtype]) for t in (totals, expected.astype(case.dtype)))
        right = bits == wanted
        self.updates += len(given[0])
        self.checked += width
        name = f"{case.operation} {case.dtype} {'many' if case.many else 'few'}"
        done = self.cases.setdefault(name, {"updates": 0, "totals": 0})
        done["updates"] += len(given[0])
        done["totals"] += width
        wrong = np.flatnonzero(~right).tolist()
        self.wrong += len(wrong)
        if wrong and place is None and self.host is None:
            self.host = self._on_host(case, given, wrong[0], bits, wanted)
        # Many faults of the device's own must not crowd out a planted one.
        for at in [at for n, at in enumerate(wrong) if len(self.found) + n < KEEP or at == place]:
            self.found.append(_described(case, number, at, int(expected[at]), totals[at]))
        return right

    def _on_host(self, case: Case, given: tuple[Any, Any], at: int, bits: Any, wanted: Any) -> str:
        """Have the host's own torch do the same: a fact for whoever looks for the cause."""
        if self._device.type == "cpu":
            return "itself"
        out = _KERNELS[case.operation](len(wanted), *(tensor.cpu() for tensor in given))
        seen = out.numpy().view(_BITS[case.dtype])[at]
        return likeness(seen, expected=wanted[at], got=bits[at])

    def _repeated(self, updates: Updates) -> tuple[Any, Any]:
        """All updates on the device, made there from those that were drawn."""
        index, value = self._moved(updates.case, updates.index, updates.value)
        raised = torch.from_numpy(updates.raised).to(value.dtype).to(self._device)
        return index.repeat(len(raised)), (value[None, :] + raised[:, None]).flatten()

    def _moved(self, case: Case, index: Any, value: Any) -> tuple[Any, Any]:
        dtype = getattr(torch, case.dtype)
        return (
            torch.from_numpy(index).to(self._device),
            torch.from_numpy(value).to(dtype).to(self._device),
        )


def _zeros(width: int, value: Any) -> Any:
    return torch.zeros(width, dtype=value.dtype, device=value.device)


def _added(width: int, index: Any, value: Any) -> Any:
    return _zeros(width, value).index_add_(0, index, value)


def _scattered(width: int, index: Any, value: Any) -> Any:
    return _zeros(width, value).scatter_add_(0, index, value)


def _largest(width: int, index: Any, value: Any) -> Any:
    return _zeros(width, value).scatter_reduce_(0, index, value, "amax")


def _smallest(width: int, index: Any, value: Any) -> Any:
    return (_zeros(width, value) + Operation.AMIN.start).scatter_reduce_(0, index, value, "amin")


def _counted(width: int, index: Any, _value: Any) -> Any:
    return torch.bincount(index, minlength=width)


_KERNELS: dict[Operation, Callable[[int, Any, Any], Any]] = {
    Operation.INDEX_ADD: _added,
    Operation.SCATTER_ADD: _scattered,
    Operation.AMAX: _largest,
    Operation.AMIN: _smallest,
    Operation.BINCOUNT: _counted,
}


def _described(case: Case, number: int, place: int, expected: int, got: Any) -> dict[str, Any]:
    whole = int(got) if float(got).is_integer() else None
    return {
        "operation": str(case.operation),
        "dtype": case.dtype,
        "addresses": "many" if case.many else "few",
        "round": number,
        "index": place,
        "expected": expected,
        # What a broken device gives may be a NaN or a negative zero: as text.
        "got": str(got) if whole in {None, expected} else whole,
    }


def main() -> None:
    """Prove that planted faults are found, then count for a while and say how fast."""
    context = alone.context()
    for plant in PLANTS:
        planted = alone.caught(totals(context, plant=plant))
        print(f"{plant}: {len(planted)} planted faults caught")
    result = totals(context, seconds=2.0)
    if result["wrong"]:
        raise SystemExit(f"{result['wrong']} totals wrong: {result['found']}")
    print(f"{result['checked_totals']} totals exact, {result['updates_per_s']:.3g} updates/s")


if __name__ == "__main__":
    main()
