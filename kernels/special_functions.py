"""Which special functions are swept, over which inputs, and what is known of their outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nodeproof.kernels.draws import key

Values = NDArray[Any]  # float32 or float64

# Relative: what is farther off than 64 units in the last place is no such function.
_NEAR = 2.0**-18
_TOO_FAR = 1 << 8  # a bit of a float32 that is 2**-15 of it, or half of that


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function of torch, and what numpy has for it.

    `exact` where IEEE 754 leaves one answer only and a GPU of NVIDIA gives it, `exact_on_cpu` where
    torch does so on processors too.
    """

    name: str
    width: int
    torch: Callable[..., Any]
    numpy: Callable[..., Values]
    exact: bool = False
    exact_on_cpu: bool = False
    inputs: int = 1

    def differs(self, got: Values, given: list[Values]) -> tuple[Values, Values]:
        """Say which outputs are not the one that IEEE 754 allows, and what that is."""
        with np.errstate(all="ignore"):
            want = self.numpy(*given)
        word = np.dtype(f"i{self.width // 8}")
        # Which of the many NaNs comes out is left open; that one does, is not.
        wrong = np.where(np.isnan(want), ~np.isnan(got), want.view(word) != got.view(word))
        return wrong, want

    def far(self, got: Values, given: list[Values]) -> int:
        """Count outputs that are no approximation. That the others are near proves nothing more."""
        largest, least = np.finfo(got.dtype).max, np.finfo(got.dtype).tiny
        with np.errstate(all="ignore"):
            exact = self.numpy(*(g.astype(np.float64) for g in given))
            # What overflows here may be the largest number there, and what is tiny here 0 there.
            want = np.clip(exact, -largest, largest)
            off = np.abs(np.clip(got.astype(np.float64), -largest, largest) - want)
            near = off <= _NEAR * np.abs(want) + 4 * least
            return int(np.count_nonzero(~np.where(np.isnan(want), np.isnan(got), near)))

    def spoilt(self, given: list[Values], draw: int) -> tuple[int, int, int]:
        """Say which output a `draw` picks, its bits, and others that must not be taken for them.

        Where one answer only is right, the next one; elsewhere one that is just too far off. The
        output is neither huge nor tiny. Raises `RuntimeError` where none is so.
        """
        with np.errstate(all="ignore"):
            want = self.numpy(*given)
            usual = np.flatnonzero((np.abs(want) > 2.0**-10) & (np.abs(want) < 2.0**10))
        if not len(usual):
            raise RuntimeError(f"no output of {self.name} to plant a fault in: inputs are too few")
        spot = int(usual[draw % len(usual)])
        right = int(want.view(np.dtype(f"i{self.width // 8}"))[spot])
        return spot, right, right ^ (1 if self.exact_on_cpu else _TOO_FAR)


def _inverse_root(x: Values) -> Values:
    return np.asarray(1 / np.sqrt(x))


# On a processor torch takes square roots from a vector library that errs by one unit in the last
# place now and then (github.com/tenstorrent/tt-mlir/issues/8533), and reciprocals on some by estimate
# and refinement (github.com/pytorch/pytorch/pull/47478); only quotients are IEEE's everywhere.
FUNCTIONS = (
    Function(name="exp2", width=32, torch=torch.exp2, numpy=np.exp2),
    Function(name="log2", width=32, torch=torch.log2, numpy=np.log2),
    Function(name="rsqrt", width=32, torch=torch.rsqrt, numpy=_inverse_root),
    Function(name="sin", width=32, torch=torch.sin, numpy=np.sin),
    Function(name="cos", width=32, torch=torch.cos, numpy=np.cos),
    Function(name="tanh", width=32, torch=torch.tanh, numpy=np.tanh),
    Function(name="exp", width=32, torch=torch.exp, numpy=np.exp),
    Function(name="log", width=32, torch=torch.log, numpy=np.log),
    Function(name="sqrt", width=32, torch=torch.sqrt, numpy=np.sqrt, exact=True),
    Function(name="reciprocal", width=32, torch=torch.reciprocal, numpy=np.reciprocal, exact=True),
    Function(name="sqrt64", width=64, torch=torch.sqrt, numpy=np.sqrt, exact=True),
    *(
        Function(
            name=name,
            width=width,
            torch=torch.div,
            numpy=np.divide,
            exact=True,
            exact_on_cpu=True,
            inputs=2,
        )
        for name, width in (("divide", 32), ("divide64", 64))
    ),
)


def patterns(seed: int, number: int, inputs: int, width: int, tag: str) -> NDArray[np.uint64]:
    """Return the bit patterns of one round. No two are equal until all patterns have been there."""
    start, stride = key(seed, f"start {tag}"), key(seed, f"stride {tag}") | 1
    index = np.arange(inputs, dtype=np.uint64) + np.uint64(number * inputs)
    return (np.uint64(start) + index * np.uint64(stride)) & np.uint64((1 << width) - 1)
