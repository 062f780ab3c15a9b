"""The products that load a device most, each of them compared: for checks that load it for long."""

from __future__ import annotations

from typing import Any

from nodeproof.kernels.formats import Family
from nodeproof.kernels.operands import make
from nodeproof.kernels.product import Prover, about, settle, wide_output
from nodeproof.kernels.stored import load
from nodeproof.worker import Context


class FullLoad:
    """Two sets of operands on a device, multiplied in turn, and what was wrong with the products.

    Their answers differ, so that memory that a product left unwritten shows.
    """

    def __init__(self, context: Context, device: Any, *, size: int) -> None:
        """Make operands of `size` rows and columns: bfloat16 on a GPU, else float32."""
        self._flags = settle(context.threads)
        self._versions = about(device)
        dtype, family, output = "float32", Family.LONG, "float32"
        if device.type == "cuda":
            dtype = "bfloat16"
            if not wide_output(device):
                family, output = Family.CANCEL_LIFT, "bfloat16"
        self._loads = [
            load(make(dtype, family, size=size, seed=seed), size=size, output=output, device=device)
            for seed in (context.seed, context.seed + 1)
        ]
        self._prover = Prover(seed=context.seed, device_id=context.device_id)
        self._asked = 0
        self._compared: set[int] = set()  # seeds of sets

    @property
    def flipped(self) -> int:
        """How many bits were flipped."""
        return len(self._prover.planted)

    def warm_up(self) -> None:
        """Multiply each set once: that is slow, and compared like any other product."""
        for _ in self._loads:
            self.multiply()

    def multiply(self, *, flip: bool = False) -> float:
        """Do the next product and compare it, with one bit flipped before; return its operations."""
        loaded = self._loads[self._asked % len(self._loads)]
        self._asked += 1
        self._prover.prove(loaded, flip=flip, spoil=False)
        self._compared.add(loaded.operands.seed)
        return loaded.operations

    def report(self) -> dict[str, Any]:
        """Return what `Prover.report` gives and what was multiplied.

        That is `asked` (products), `sets` (of operands, whose products were compared), `size`,
        `dtype`, `families`, `flags` and `versions`.
        """
        first = self._loads[0]
        return {
            **self._prover.report(),
            "asked": self._asked,
            "sets": len(self._compared),
            "size": first.size,
            "dtype": first.operands.dtype,
            "families": [{**first.operands.facts(), "output": first.output}],
            "flags": self._flags,
            "versions": self._versions,
        }
