"""What one run leaves behind: a digest of every value in it, in order of computation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from nodeproof.kernels.bits import unsigned
from nodeproof.kernels.digest import Digest, flip


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in the run a value belongs. Passes: start, forward, backward, gradient, optimiser."""

    step: int
    part: str
    module: str

    def facts(self) -> dict[str, Any]:
        """For the results file."""
        return {"step": self.step, "pass": self.part, "module": self.module}

    def __str__(self) -> str:
        return f"{self.step} {self.part} {self.module}"


Trail = dict[Place, int]  # digests, in order of computation


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A bit to be flipped in the value at `place`, as soon as that is there."""

    place: Place
    element: int  # modulo how many there are
    bit: int  # modulo the width


class Tape:
    """Takes the digest of every value of one run, and plants a fault in one of them."""

    def __init__(self, digest: Digest, fault: Fault | None = None) -> None:
        self._digest = digest
        self._fault = fault
        self._seen: dict[Place, Any] = {}
        self._losses: list[Any] = []
        self.flipped: tuple[int, int, int] | None = None  # word, before, after

    def see(self, at: Place, tensor: Any) -> Any:
        """Note the value that belongs to `at`. Raises `RuntimeError` if there was one."""
        if at in self._seen:
            raise RuntimeError(f"{at} came twice in one run, so that it can't be compared")
        if self._fault is not None and self._fault.place == at:
            width = 8 * tensor.element_size()
            self.flipped = flip(
                tensor, self._fault.element % tensor.numel(), self._fault.bit % width
            )
        self._seen[at] = self._digest.of(tensor)
        return tensor

    def forward(self, step: int, module: str, tensor: Any) -> Any:
        """Note an activation, and its gradient when the backward pass comes by."""
        back = Place(step=step, part="backward", module=module)

        def hook(gradient: Any) -> Any:
            # A copy: what flows back may be one tensor for two branches.
            return self.see(back, gradient.clone(memory_format=torch.contiguous_format))

        if module == "loss":
            self._losses.append(tensor.detach())
        tensor.register_hook(hook)
        return self.see(Place(step=step, part="forward", module=module), tensor)

    def read(self) -> Trail:
        """Wait for the device, and return all digests."""
        numbers = torch.stack(list(self._seen.values())).tolist()
        return {at: unsigned(number) for at, number in zip(self._seen, numbers, strict=True)}

    def unfinite(self) -> int:
        """How many losses are no finite number."""
        return int(torch.count_nonzero(~torch.isfinite(torch.stack(self._losses))))
