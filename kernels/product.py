"""Matrix products by torch, every element of each held bit for bit against its known answer.

A check that has torch multiply known operands has a `Prover` do it, for warming up as well: an
output that nobody looks at is one in which a fault can pass. The fused product (`fused`), the
training step and the sums of `checksum.Skinny` are multiplied by other means, and compared by these
themselves.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

from nodeproof.kernels.bits import difference, likeness, raw, signed
from nodeproof.kernels.draws import words
from nodeproof.kernels.faults import KEEP, PLACES, sound
from nodeproof.kernels.formats import FP8
from nodeproof.kernels.operands import make
from nodeproof.kernels.stored import FP4, TF32, Loaded, intact, on_host, turned_over

REPLAYS = 3
_TRIAGE = ("operands_intact", "reference_intact", "replay", "host", "other_algorithm")
# Partial sums rounded to the narrow format, or operands to TF32, would void the proof.
_FLAGS = {
    "allow_tf32": False,
    "allow_bf16_reduced_precision_reduction": False,
    "allow_fp16_reduced_precision_reduction": False,
    "allow_fp16_accumulation": False,
}


def settle(threads: int) -> dict[str, Any]:
    """Set what decides how torch multiplies, read it back, and return it for the record.

    Raises `RuntimeError` if a setting does not stay.
    """
    if os.environ.get("NVIDIA_TF32_OVERRIDE", "0") != "0":
        raise RuntimeError("NVIDIA_TF32_OVERRIDE is set, which rounds float32 operands: unset it")
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("highest")
    for name, value in _FLAGS.items():
        _set(name, value=value)
    return {
        **_FLAGS,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
    }


def about(device: Any) -> dict[str, Any]:
    """What computes here: versions, and the model of the device."""
    facts: dict[str, Any] = {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
    }
    if device.type != "cuda":
        return {**facts, "model": torch.backends.cpu.get_cpu_capability()}
    return {
        **facts,
        "model": torch.cuda.get_device_name(device),
        "capability": list(torch.cuda.get_device_capability(device)),
        "blas": str(torch.backends.cuda.preferred_blas_library()),
    }


def wide_output(device: Any) -> bool:
    """Whether torch gives float32 products of bfloat16 and float16 here: on CUDA since 2.8."""
    return device.type == "cuda" and torch.version.hip is None


def product(loaded: Loaded) -> Any:
    """Multiply by torch, in the way that the operands are for; whoever asks has to compare."""
    a, b, output = loaded.a, loaded.b, getattr(torch, loaded.output)
    if loaded.way == "int8":
        return torch._int_mm(a, b)  # noqa: SLF001  torch's only name for it
    if loaded.way in FP8 or loaded.way == FP4:
        assert loaded.scales is not None
        if loaded.way == FP4:
            a, b = a.view(torch.float4_e2m1fn_x2), b.view(torch.float4_e2m1fn_x2)
        left, right = loaded.scales
        return torch._scaled_mm(a, b, scale_a=left, scale_b=right, out_dtype=output)  # noqa: SLF001  as above
    if loaded.way == TF32:
        with _tf32():
            return torch.mm(a, b)
    if loaded.output != loaded.way:
        return torch.mm(a, b, out_dtype=output)
    return torch.mm(a, b)


class Prover:
    """Multiplies, compares every bit, and remembers what was wrong. One for each call of a work."""

    def __init__(self, *, seed: int, device_id: str) -> None:
        self._seed = seed
        self._device_id = device_id
        self.products = 0
        self.elements = 0
        self.operations = 0.0
        self.wrong = 0
        self.found: list[dict[str, Any]] = []
        self.planted: list[dict[str, Any]] = []
        self._triage: dict[str, Any] | None = None

    def prove(self, loaded: Loaded, *, flip: bool = False, spoil: bool = True) -> None:
        """Multiply once and compare the whole output, bit for bit, on the device.

        `flip` changes one bit between the two, at a place drawn from the seed; the first time it is
        the lowest bit. `spoil` inverts the output afterwards, so that a later product that does not
        write all of the same memory can't pass with what was left there. Raises `RuntimeError` for
        an output of another shape or type.
        """
        seen, first = self._compare(loaded, flip=flip)
        got = int(seen[first]) if first else 0
        if spoil:
            seen.bitwise_not_()
        if first and self._triage is None:
            self._examine(loaded, first, got)

    def report(self) -> dict[str, Any]:
        """Return the keys that every result of these kernels has.

        `wrong` counts elements over all products, `found` describes the first of them. Where
        something was wrong: `operands_intact` and `reference_intact`, whether what was stored on
        the device is what was put there; `replay`, in how many of three repeats it was wrong again;
        `host`, what the host's processor computes for the first wrong element, and
        `other_algorithm`, what the device computes by another way ("right", "same" wrong bits,
        "other"; "itself" where the device is that processor). `None` where nothing was wrong.
        """
        triage = self._triage or dict.fromkeys(_TRIAGE)
        return {
            "wrong": self.wrong,
            "found": self.found,
            "planted": self.planted,
            "products": self.products,
            "checked_elements": self.elements,
            "checked_operations": self.operations,
            **triage,
        }

    def _compare(self, loaded: Loaded, *, flip: bool) -> tuple[Any, tuple[int, int] | None]:
        """Multiply; return the bits of the product and the first element that is wrong, if any."""
        number = self.products
        self.products += 1
        output = product(loaded)
        shape, dtype = (loaded.size, loaded.size), getattr(torch, loaded.output)
        if tuple(output.shape) != shape or output.dtype != dtype:
            raise RuntimeError(
                f"{self._device_id}: a {loaded.operands.dtype} product came back as {output.dtype} "
                f"{tuple(output.shape)}, not {dtype} {shape}: the torch build is not usable here"
            )
        seen = raw(output.contiguous())
        place = self._plant(seen, loaded, number) if flip else None
        span, times = loaded.span, loaded.size // loaded.span
        tiles = seen.view(times, span, times, span)
        differs = tiles != loaded.reference[None, :, None, :]
        wrong = int(torch.count_nonzero(differs))
        self.elements += seen.numel()
        self.operations += loaded.operations
        first = None
        if wrong:
            self.wrong += wrong
            first = self._locate(seen, differs, loaded, number, place)
        return seen, first

    def _plant(self, seen: Any, loaded: Loaded, number: int) -> tuple[int, int]:
        width, span = loaded.width, loaded.span
        # Elsewhere on each device: the same fault on two of them would be no hardware's.
        tag = f"flip {loaded.operands.dtype} {number} {self._device_id}"
        draws = words(self._seed, tag, PLACES, 3).tolist()

        def expected(row: int, column: int) -> int:
            # From the known answer, not from what the product gave.
            return int(loaded.expected[row % span, column % span])

        drawn = ((r % loaded.size, c % loaded.size, b % width) for r, c, b in draws)
        row, column, bit = sound(drawn, lambda d: int(seen[d[0], d[1]]) == expected(d[0], d[1]))
        if not self.planted:
            bit = 0  # the least that can be wrong: a comparison with a tolerance misses it
        mask = signed(1 << bit, width)
        seen[row, column] = seen[row, column] ^ mask
        right = expected(row, column)
        self.planted.append(_described(loaded, (row, column), right, right ^ mask, number))
        return row, column

    def _locate(
        self, seen: Any, differs: Any, loaded: Loaded, number: int, place: tuple[int, int] | None
    ) -> tuple[int, int] | None:
        """Describe wrong elements, up to `KEEP` in all, and the one at `place` if it is wrong.

        A device with many faults of its own must not crowd out the planted one, or none of them
        would count. Returns the first, `None` where what was counted can't be located.
        """
        span = loaded.span
        room = max(KEEP - len(self.found), 1)
        places: list[tuple[int, int]] = []
        for down in range(differs.shape[0]):  # by rows of tiles: all at once may not fit
            if len(places) >= room:
                break
            places += [
                (down * span + i, across * span + j)
                for i, across, j in differs[down].nonzero()[: room - len(places)].tolist()
            ]
        first = places[0] if places else None
        if len(self.found) >= KEEP:
            places = []
        if place is not None and place not in places:
            (down, i), (across, j) = divmod(place[0], span), divmod(place[1], span)
            places += [place] if bool(differs[down, i, across, j]) else []
        for row, column in places:
            expected = int(loaded.expected[row % span, column % span])
            got = int(seen[row, column])
            self.found.append(_described(loaded, (row, column), expected, got, number))
        return first

    def _examine(self, loaded: Loaded, first: tuple[int, int], got: int) -> None:
        """Make the operands anew and multiply again: facts for whoever looks for the cause."""
        self._triage = {}
        was = loaded.operands
        fresh = make(
            was.dtype, was.family, size=loaded.size, seed=was.seed, accumulator=was.accumulator
        )
        operands_intact, reference_intact = intact(loaded, fresh)
        replay = 0
        for _ in range(REPLAYS):
            before = self.wrong
            self.prove(loaded)
            replay += self.wrong > before
        host = "itself"
        if loaded.a.device.type != "cpu":
            host = self._compared(on_host(loaded, fresh, first), first, got)
        self._triage = {
            "operands_intact": operands_intact,
            "reference_intact": reference_intact,
            "replay": replay,
            "host": host,
            "other_algorithm": self._compared(turned_over(loaded, first), first, got),
        }

    def _compared(self, slab: Loaded, place: tuple[int, int], got: int) -> str:
        """What another way gives for one element; the slab is compared like any product."""
        try:
            seen, _ = self._compare(slab, flip=False)
        except RuntimeError as error:  # no such kernel here: the mismatch counts all the same
            return f"refused: {str(error).splitlines()[0]}"
        row, column = place[0] - slab.origin[0], place[1] - slab.origin[1]
        here = (column, row) if slab.transposed else (row, column)
        return likeness(int(seen[here]), expected=int(slab.expected[here]), got=got)


def _set(name: str, *, value: bool) -> None:
    backend = torch.backends.cuda.matmul
    setattr(backend, name, value)
    if getattr(backend, name) is not value:
        raise RuntimeError(
            f"torch does not keep {name}={value}, so its products cannot be held to exact "
            f"answers: use the torch version that this suite was tested with"
        )


@contextlib.contextmanager
def _tf32() -> Iterator[None]:
    """Let float32 products round their operands to TF32, inside only."""
    _set("allow_tf32", value=True)
    try:
        yield
    finally:
        _set("allow_tf32", value=False)


def _described(
    loaded: Loaded, place: tuple[int, int], expected: int, got: int, number: int
) -> dict[str, Any]:
    row, column = loaded.place(*place)
    return {
        "dtype": loaded.operands.dtype,
        "family": str(loaded.operands.family),
        "row": row,
        "column": column,
        **difference(expected, got, loaded.width),
        "product": number,
    }
