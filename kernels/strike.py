"""Has the code that checks products judge one that a fault was put into, from outside.

    python -m nodeproof.kernels.strike

The fault goes in between torch and whoever asked it for a product: what multiplies and compares is
the code that always does, and has no part in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from nodeproof.kernels import alone
from nodeproof.kernels.bits import raw
from nodeproof.kernels.formats import Family
from nodeproof.kernels.inject import OPERANDS, Fault, Where, apply, draw, target
from nodeproof.kernels.operands import make
from nodeproof.kernels.product import Prover, settle
from nodeproof.kernels.stored import Loaded, load

_TRIES = 64
_PRODUCTS = {"mm", "matmul", "__matmul__", "_int_mm", "_scaled_mm"}  # torch's names for one


@dataclass(slots=True, kw_only=True, eq=False)
class Struck:
    """What became of a fault: the output, and how it differs from the right one.

    `first` is row, column and the differing bits of the first wrong element by rows.
    """

    products: int = 0
    output: Any = None
    changed: int = 0
    first: tuple[int, int, int] | None = None


@contextmanager
def struck(fault: Fault, *, before: Any = None) -> Iterator[Struck]:
    """Put a fault into the first product that torch computes inside, whoever asks for it.

    Operands are put right again after the product. Later products are left alone, and counted.
    """
    outcome = Struck()
    with _Outside(fault, before, outcome):
        yield outcome


class _Outside(TorchFunctionMode):  # type: ignore[misc]  # torch ships no types for it
    def __init__(self, fault: Fault, before: Any, outcome: Struck) -> None:
        super().__init__()
        self._fault, self._before, self._outcome = fault, before, outcome

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if getattr(func, "__name__", "") not in _PRODUCTS:
            return func(*args, **(kwargs or {}))
        self._outcome.products += 1
        output = func(*args, **(kwargs or {}))
        if self._outcome.products > 1:
            return output
        fault, bits = self._fault, raw(output)
        right = bits.clone()
        if fault.where in OPERANDS:
            stored = raw(args[0 if fault.where is Where.OPERAND_A else 1])
            was = stored[fault.row, fault.column].clone()
            apply(fault, stored)
            output.copy_(func(*args, **(kwargs or {})))
            stored[fault.row, fault.column] = was
        else:
            apply(fault, bits, before=self._before)
        differs = (bits != right).view(-1)
        self._outcome.output = output
        self._outcome.changed = int(torch.count_nonzero(differs))
        if self._outcome.changed:
            place = int(differs.to(torch.uint8).argmax())  # the first of the largest
            xor = int(bits.view(-1)[place] ^ right.view(-1)[place])
            mask = (1 << bits.element_size() * 8) - 1
            self._outcome.first = (*divmod(place, bits.shape[1]), xor & mask)
        return output


def strike(
    prover: Prover, loaded: Loaded, *, seed: int, number: int, before: Any
) -> tuple[Fault, Struck, list[Fault]]:
    """Have `prover` judge a product that fault `number` is in, and return it with what it did.

    The third is what was drawn before and changed no bit of the product, as a flip that a sum
    rounds away: nobody could see those. Raises `RuntimeError` if none of many does.
    """
    masked: list[Fault] = []
    for attempt in range(_TRIES):
        fault = draw(seed, number, target(loaded), attempt=attempt)
        with struck(fault, before=before) as outcome:
            prover.prove(loaded, spoil=False)
        if not outcome.products:
            raise RuntimeError("torch computed no matrix product that a fault could be put into")
        if outcome.changed:
            return fault, outcome, masked
        masked.append(fault)
    raise RuntimeError(f"{_TRIES} faults in {loaded.operands.dtype} changed nothing")


def main() -> None:
    """Put faults of every class into products, and show that the comparison sees each."""
    context = alone.context()
    settle(context.threads)
    size = 256
    own, other = (
        load(
            make("float32", Family.CANCEL_LIFT, size=size, seed=context.seed + more),
            size=size,
            output="float32",
            device=torch.device(context.torch_device),
        )
        for more in (0, 1)
    )
    times = size // other.operands.span
    before = other.reference.repeat(times, times)
    prover = Prover(seed=context.seed, device_id=context.device_id)
    seen: dict[str, int] = {}
    for number in range(1000):
        wrong = prover.wrong
        fault, outcome, _ = strike(prover, own, seed=context.seed, number=number, before=before)
        if prover.wrong - wrong < outcome.changed:
            raise SystemExit(f"{fault} went unseen")
        seen[fault.name] = seen.get(fault.name, 0) + 1
    for name, count in sorted(seen.items()):
        print(f"{name}: {count} of {count} seen")


if __name__ == "__main__":
    main()
