"""Three ways to check a whole product, and what each of them guarantees.

    python -m nodeproof.kernels.checksum

`Comparison` holds the bits of every element against the known answer: certain, and it says where
and which bits. `Freivalds` needs no answer, only the operands: it is for products too large to have
one. `Skinny` reads the product once, by a second and very narrow product, where that is exact.

The last two work on the values and not on the bits: an element that is no integer within the
certified bound (a fraction, NaN, an infinity, a negative zero, anything larger) is counted as wrong
before anything is summed, and never enters a sum.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from nodeproof.kernels import alone
from nodeproof.kernels.bits import raw
from nodeproof.kernels.draws import Integers, words
from nodeproof.kernels.formats import Family, Unprovable
from nodeproof.kernels.operands import make
from nodeproof.kernels.product import product, settle
from nodeproof.kernels.residual import decode, integer_operands, inverses, odd_weights
from nodeproof.kernels.stored import Loaded, load

COLUMNS = 16  # of the narrow product: as many independent sums of each row
_HEAVIEST = 7  # weights of the narrow product are 1, 3, 5 and 7
_CHUNK = {"cpu": 1 << 18, "cuda": 1 << 25}  # elements summed at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """The first wrong element, its right bits, and those it had."""

    row: int
    column: int
    expected: int
    got: int

    @property
    def xor(self) -> int:
        """The bits that differ."""
        return self.expected ^ self.got


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a check saw: 0 wrong is a pass.

    `wrong` counts elements for `Comparison`, rows for the others. `first` is the first wrong
    element where that could be told for certain; `None` excuses nothing.
    """

    wrong: int
    first: Located | None = None


class Check(Protocol):
    """Judges one product of the operands that it was made for."""

    def check(self, output: Any) -> Seen:
        """Look at every element of `output`, (size, size), on its device.

        Raises `RuntimeError` for an output of another shape or type.
        """
        ...


class Comparison:
    """The bits of every element against the known answer, as integers.

    Certain for every fault that changes an element at all: NaN, infinities, signs of zeros and
    fractions are bits like any others. Reads the product and the answer once, pairs of narrow
    elements as one word; the answer is one span, which stays in a cache.
    """

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded

    def check(self, output: Any) -> Seen:
        """Count wrong elements; the first by rows is located."""
        loaded, bits = self._loaded, _sound(output, self._loaded)
        span, times = loaded.operands.span, loaded.size // loaded.operands.span
        # As the widest integers that divide a row: the same bits in fewer comparisons.
        wide = bits.view(torch.int64).view(times, span, times, -1)
        answer = loaded.reference.view(torch.int64)[None, :, None, :]
        if torch.equal(wide, answer.expand(times, span, times, answer.shape[-1])):
            return Seen(wrong=0)
        differs = bits.view(times, span, times, span) != loaded.reference[None, :, None, :]
        wrong = int(torch.count_nonzero(differs))
        if not wrong:
            raise RuntimeError("two comparisons of the same bits differ: no product can be judged")
        rows = differs.view(loaded.size, loaded.size).any(1)
        row = int(rows.nonzero()[0])
        column = int(differs.view(loaded.size, loaded.size)[row].nonzero()[0])
        mask = (1 << loaded.width) - 1
        expected = int(loaded.expected[row % span, column % span]) & mask
        got = int(bits[row, column]) & mask
        return Seen(wrong=wrong, first=Located(row=row, column=column, expected=expected, got=got))


class Freivalds:
    """Row sums of C with odd weights x against A(Bx), modulo 2**64; no answer is needed.

    Certain for one wrong element in a row: an odd weight has an inverse, so that its error cannot
    vanish. Several in one row cancel with a probability of at most 2**(v - 63) over the weights,
    where 2**v is the largest power of two that divides all their errors: below 2**-37 where
    elements are below 2**24. Errors of float64 may have 53 such factors, which leaves 2**-10 for a
    row: use `Comparison` there. From one row the column and the error are decoded (`decode`).
    """

    def __init__(self, loaded: Loaded, *, seed: int) -> None:
        self._loaded = loaded
        self._limit = loaded.operands.bound
        odd = odd_weights(seed, loaded.size)
        self._inverses = inverses(odd)
        self._weights = torch.from_numpy(odd.view(np.int64)).to(loaded.a.device)
        a, b = integer_operands(loaded.operands)
        times = loaded.size // loaded.operands.span
        folded = odd.view(np.int64).reshape(times, loaded.operands.span).sum(0)
        sums = a @ (b @ folded)
        if not np.array_equal(sums, loaded.operands.answer @ folded):
            raise Unprovable(f"{loaded.operands.dtype}: the product is not that of its operands")
        self._sums = torch.from_numpy(np.tile(sums, times)).to(loaded.a.device)

    def check(self, output: Any) -> Seen:
        """Count wrong rows; the element is located where it is the only one in the first of them."""
        loaded = self._loaded
        _sound(output, loaded)
        wrong: list[Any] = []
        # Through int64 by pieces: all at once would take twice the memory of the product.
        step = max(_CHUNK[output.device.type] // loaded.size, 1)
        for top in range(0, loaded.size, step):
            piece = output[top : top + step]
            right = _whole(piece, self._limit)
            values = torch.where(right, piece, 0).to(torch.int64)
            residual = values.mul_(self._weights).sum(1) - self._sums[top : top + step]
            wrong.append((residual != 0) | ~right.all(1))
        rows = torch.cat(wrong).nonzero().flatten()
        if not rows.numel():
            return Seen(wrong=0)
        first = int(rows[0])
        return Seen(wrong=rows.numel(), first=self._locate(output[first].cpu(), first))

    def _locate(self, row: Any, number: int) -> Located | None:
        right = _whole(row, self._limit)
        values = torch.where(right, row, 0).to(torch.int64)
        residual = int((values * self._weights.cpu()).sum() - self._sums[number].cpu())
        found = decode(residual, self._inverses, 3 * self._limit)
        return _located(row, right, number, found, self._limit)


class Skinny:
    """C times 16 columns of odd weights, by a product that is exact, against sums the host knows.

    Certain for one wrong element in a row, and for any number whose errors have one sign, since all
    weights are positive. Others cancel only where 16 sums do at once. Needs the answer on the host
    for the sums, but not on the device, which reads C once. Raises `Unprovable` where a sum may
    leave what the accumulator holds exactly: 2**24 for narrow formats, 2**53 for float64 and int32.
    """

    def __init__(self, loaded: Loaded, *, seed: int) -> None:
        self._loaded = loaded
        self._limit = loaded.operands.bound
        double = loaded.output in {"float64", "int32"}
        self._dtype = torch.float64 if double else torch.float32
        span, times = loaded.operands.span, loaded.size // loaded.operands.span
        draws = words(seed, "skinny", loaded.size, COLUMNS).astype(np.int64)
        self._weights = draws % ((_HEAVIEST + 1) // 2) * 2 + 1
        folded = self._weights.reshape(times, span, COLUMNS).sum(0)
        largest = int((np.abs(loaded.operands.answer) @ folded).max())
        budget = 2**53 if double else 2**24
        # An error that drives a sum past the budget is rounded there by at most 2 a term: with that
        # much room it stays larger than its own rounding, and can't come back to the right sum.
        if largest + 2 * loaded.size > budget:
            raise Unprovable(
                f"a sum of a row may reach {largest}, and {self._dtype} adds exactly to {budget}: "
                "compare the whole product instead"
            )
        sums = np.tile(loaded.operands.answer @ folded, (times, 1))
        self._host_sums: Integers = sums
        device = loaded.a.device
        self._sums = torch.from_numpy(sums).to(self._dtype).to(device)
        self._columns = torch.from_numpy(self._weights).to(self._dtype).to(device)

    def check(self, output: Any) -> Seen:
        """Count wrong rows; the element is located where it is the only one in the first of them."""
        loaded = self._loaded
        _sound(output, loaded)
        if output.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32:
            raise RuntimeError("TF32 is on, which rounds what this check sums: call settle() first")
        wrong: list[Any] = []
        step = max(_CHUNK[output.device.type] // loaded.size, 1)
        for top in range(0, loaded.size, step):
            piece = output[top : top + step]
            right = _whole(piece, self._limit)
            sums = torch.mm(piece.to(self._dtype), self._columns)
            differs = (raw(sums) != raw(self._sums[top : top + step])).any(1)
            wrong.append(differs | ~right.all(1))
        rows = torch.cat(wrong).nonzero().flatten()
        if not rows.numel():
            return Seen(wrong=0)
        first = int(rows[0])
        return Seen(wrong=rows.numel(), first=self._locate(output[first].cpu(), first))

    def _locate(self, row: Any, number: int) -> Located | None:
        """Find the one column whose weights the 16 errors are proportional to, in integers."""
        right = _whole(row, self._limit)
        values = torch.where(right, row, 0).to(torch.int64).numpy()
        errors = values @ self._weights - self._host_sums[number]
        same = errors[0] * self._weights == errors[None, :] * self._weights[:, :1]
        columns = same.all(1).nonzero()[0]
        if len(columns) != 1 or not errors.any():
            return None
        column = int(columns[0])
        error, rest = divmod(int(errors[0]), int(self._weights[column, 0]))
        return None if rest else _located(row, right, number, (column, error), self._limit)


def _sound(output: Any, loaded: Loaded) -> Any:
    shape, dtype = (loaded.size, loaded.size), getattr(torch, loaded.output)
    if tuple(output.shape) != shape or output.dtype != dtype or not output.is_contiguous():
        raise RuntimeError(
            f"a product came back as {output.dtype} {tuple(output.shape)}, not as contiguous "
            f"{dtype} {shape}: it cannot be judged, so it is no pass"
        )
    return raw(output)


def _whole(values: Any, limit: int) -> Any:
    """Where an element is an integer from -limit to limit, and zero not negative."""
    if not values.dtype.is_floating_point:
        return (values >= -limit) & (values <= limit)
    # NaN compares false, and infinities do: a limit past the format would round up to one.
    most = min(limit, int(torch.finfo(values.dtype).max))
    negative_zero = -(1 << (values.element_size() * 8 - 1))
    whole = (values == values.trunc()) & (values.abs() <= most)
    return whole & (raw(values) != negative_zero)


def _located(
    row: Any, right: Any, number: int, found: tuple[int, int] | None, limit: int
) -> Located | None:
    """Make an element of a decoded column and error, where the two leave no doubt."""
    unfit = (~right).nonzero().flatten().tolist()
    if found is None:
        return None
    column, error = found
    if unfit not in ([], [column]):
        return None
    # What was no number was summed as 0.
    value = int(row[column]) - error if not unfit else -error
    if not -limit <= value <= limit:
        return None
    expected = torch.tensor([value], dtype=torch.int64).to(row.dtype)
    if int(expected.to(torch.int64)) != value:
        return None
    mask = (1 << row.element_size() * 8) - 1
    return Located(
        row=number,
        column=column,
        expected=int(raw(expected)) & mask,
        got=int(raw(row)[column]) & mask,
    )


def checks(loaded: Loaded, *, seed: int) -> dict[str, Check]:
    """Every method that is exact for these operands, by name."""
    every: dict[str, Check] = {
        "comparison": Comparison(loaded),
        "freivalds": Freivalds(loaded, seed=seed),
    }
    try:
        every["skinny"] = Skinny(loaded, seed=seed)
    except Unprovable:  # refused: its sums would round
        return every
    return every


def main() -> None:
    """Prove that each method passes a right product and fails one with a flipped bit, then time."""
    context = alone.context()
    settle(context.threads)
    device, size = torch.device(context.torch_device), 1024
    for dtype, family in (("float32", Family.WIDE), ("float32", Family.CANCEL_LIFT)):
        operands = make(dtype, family, size=size, seed=context.seed)
        loaded = load(operands, size=size, output=dtype, device=device)
        output = product(loaded)
        for name, method in checks(loaded, seed=context.seed).items():
            clean = method.check(output)
            raw(output)[size // 3, size // 5] ^= 1
            broken = method.check(output)
            raw(output)[size // 3, size // 5] ^= 1
            place = broken.first and (broken.first.row, broken.first.column, broken.first.xor)
            if clean.wrong or place != (size // 3, size // 5, 1):
                raise SystemExit(f"{dtype} {family} {name}: right {clean}, flipped {broken}")
            times = [_seconds(method, output) for _ in range(9)]
            print(f"{dtype} {family} {name}: flip caught; {min(times) * 1e3:.2f} ms at size {size}")


def _seconds(method: Check, output: Any) -> float:
    begun = time.perf_counter()
    method.check(output)  # reads its verdict back, so that the device has finished
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
