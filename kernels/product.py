"""The one place where a matrix product happens, and where every product is held against its answer.

Whatever computes a product on a device under test, for warming up or for timing included, goes
through `product`, and only `Prover.prove` calls that. An output that nobody looks at is an output
in which a fault can pass.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from nodeproof.kernels.operands import Integers, Operands, Unprovable, Values, make, words

KEEP = 16  # wrong elements that are described; all are counted
REPLAYS = 3
_TRIES = 64  # places drawn for a planted fault until one is sound
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Partial sums rounded to the narrow format, or operands to TF32, would void the proof.
_FLAGS = {
    "allow_tf32": False,
    "allow_bf16_reduced_precision_reduction": False,
    "allow_fp16_reduced_precision_reduction": False,
    "allow_fp16_accumulation": False,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loaded:
    """Operands on a device, and what their product has to be, as integers of its bits.

    `a` is (size, depth), `b` is (depth, size), `reference` is (span, span) on the device and
    `expected` the same on the host. `output` is the dtype of the product.
    """

    operands: Operands
    size: int
    output: str
    a: Any
    b: Any
    reference: Any
    expected: Any

    @property
    def width(self) -> int:
        """Bits of one element of the product."""
        return int(self.expected.element_size()) * 8

    @property
    def operations(self) -> float:
        """Floating-point (or integer) operations of one product."""
        return 2.0 * self.size * self.size * self.operands.depth

    def hex(self, bits: int) -> str:
        """Write the bits of one element, which torch gives as a signed integer."""
        return f"0x{bits & (1 << self.width) - 1:0{self.width // 4}x}"


def settle(threads: int) -> dict[str, Any]:
    """Set what decides how torch multiplies, read it back, and return it for the record.

    Raises `RuntimeError` if a setting does not stay.
    """
    if os.environ.get("NVIDIA_TF32_OVERRIDE", "0") != "0":
        raise RuntimeError("NVIDIA_TF32_OVERRIDE is set, which rounds float32 operands: unset it")
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("highest")
    backend = torch.backends.cuda.matmul
    for name, value in _FLAGS.items():
        setattr(backend, name, value)
        if getattr(backend, name) is not value:
            raise RuntimeError(
                f"torch does not keep {name}={value}, so its products cannot be held to exact "
                f"answers: use the torch version that this suite was tested with"
            )
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


def load(operands: Operands, *, size: int, output: str, device: Any) -> Loaded:
    """Put operands on a device, as many times over as `size` asks for.

    Raises `Unprovable` if torch's formats do not hold operands or answer exactly.
    """
    times = size // operands.span
    a = _exact(operands.a, operands.dtype).to(device).repeat(times, 1)
    b = _exact(operands.b, operands.dtype).to(device).repeat(1, times)
    expected = _bits(_exact(operands.answer, output))
    return Loaded(
        operands=operands,
        size=size,
        output=output,
        a=a,
        b=b,
        reference=expected.to(device),
        expected=expected,
    )


def product(loaded: Loaded) -> Any:
    """Multiply. Every matrix product of these kernels is this one."""
    if loaded.operands.dtype == "int8":
        return torch._int_mm(loaded.a, loaded.b)  # noqa: SLF001  torch's only name for it
    if loaded.output != loaded.operands.dtype:
        return torch.mm(loaded.a, loaded.b, out_dtype=getattr(torch, loaded.output))
    return torch.mm(loaded.a, loaded.b)


class Prover:
    """Multiplies, compares every bit, and remembers what was wrong. One for each call of a work."""

    def __init__(self, *, seed: int, device_id: str) -> None:
        self._seed = seed
        self._device_id = device_id
        self.products = 0
        self.elements = 0
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
        number = self.products
        self.products += 1
        output = product(loaded)
        shape, dtype = (loaded.size, loaded.size), getattr(torch, loaded.output)
        if tuple(output.shape) != shape or output.dtype != dtype:
            raise RuntimeError(
                f"a {loaded.operands.dtype} product came back as {output.dtype} "
                f"{tuple(output.shape)}, not {dtype} {shape}: the torch build is not usable here"
            )
        bits = _bits(output.contiguous())
        place = self._plant(bits, loaded, number) if flip else None
        span, times = loaded.operands.span, loaded.size // loaded.operands.span
        tiles = bits.view(times, span, times, span)
        differs = tiles != loaded.reference[None, :, None, :]
        wrong = int(torch.count_nonzero(differs))
        self.elements += bits.numel()
        if wrong:
            self.wrong += wrong
            self._locate(bits, differs, loaded, number, place)
        if spoil:
            bits.bitwise_not_()
        if wrong and self._triage is None:
            self._examine(loaded)

    def report(self) -> dict[str, Any]:
        """Return the keys that every result of these kernels has.

        `wrong` counts elements over all products, `found` describes the first of them. Where
        something was wrong, `operands_intact` and `reference_intact` say whether what was stored
        on the device is what was put there, and `replay` in how many of three repeats it was wrong
        again; `None` where nothing was. None of these excuses anything.
        """
        triage = self._triage or dict.fromkeys(("operands_intact", "reference_intact", "replay"))
        return {
            "wrong": self.wrong,
            "found": self.found,
            "planted": self.planted,
            "products": self.products,
            "checked_elements": self.elements,
            **triage,
        }

    def _plant(self, bits: Any, loaded: Loaded, number: int) -> tuple[int, int]:
        width, span = loaded.width, loaded.operands.span
        # Elsewhere on each device: the same fault on two of them would be no hardware's.
        tag = f"flip {loaded.operands.dtype} {number} {self._device_id}"
        draws = words(self._seed, tag, _TRIES, 3).tolist()

        def expected(row: int, column: int) -> int:
            # From the known answer, not from what the product gave.
            return int(loaded.expected[row % span, column % span])

        drawn = [(r % loaded.size, c % loaded.size, b % width) for r, c, b in draws]
        # Where the device is wrong by itself, the planted fault might undo that: not there.
        sound = (d for d in drawn if int(bits[d[0], d[1]]) == expected(d[0], d[1]))
        row, column, bit = next(sound, drawn[0])
        if not self.planted:
            bit = 0  # the least that can be wrong: a comparison with a tolerance misses it
        mask = 1 << bit
        signed = mask - (1 << width) if bit == width - 1 else mask
        bits[row, column] = bits[row, column] ^ signed
        right = expected(row, column)
        self.planted.append(_described(loaded, (row, column), right, right ^ signed, number))
        return row, column

    def _locate(
        self, bits: Any, differs: Any, loaded: Loaded, number: int, place: tuple[int, int] | None
    ) -> None:
        """Describe wrong elements, up to `KEEP` in all, and the one at `place` if it is wrong.

        A device with many faults of its own must not crowd out the planted one, or none of them
        would count.
        """
        span = loaded.operands.span
        places: list[tuple[int, int]] = []
        for down in range(differs.shape[0]):  # by rows of tiles: all at once may not fit
            room = KEEP - len(self.found) - len(places)
            if room <= 0:
                break
            places += [
                (down * span + i, across * span + j)
                for i, across, j in differs[down].nonzero()[:room].tolist()
            ]
        if place is not None and place not in places:
            (down, i), (across, j) = divmod(place[0], span), divmod(place[1], span)
            places += [place] if bool(differs[down, i, across, j]) else []
        for row, column in places:
            expected = int(loaded.expected[row % span, column % span])
            got = int(bits[row, column])
            self.found.append(_described(loaded, (row, column), expected, got, number))

    def _examine(self, loaded: Loaded) -> None:
        """Make the operands anew and multiply again: facts for whoever looks for the cause."""
        self._triage = {}
        was, size = loaded.operands, loaded.size
        fresh = make(was.dtype, was.family, size=size, seed=was.seed)
        times = size // fresh.span
        a, b = _bits(_exact(fresh.a, was.dtype)), _bits(_exact(fresh.b, was.dtype))
        rows = _bits(loaded.a.cpu()).view(times, fresh.span, fresh.depth)
        columns = _bits(loaded.b.cpu()).view(fresh.depth, times, fresh.span)
        intact = bool((rows == a[None]).all()) and bool((columns == b[:, None, :]).all())
        answer = _bits(_exact(fresh.answer, loaded.output))
        replay = 0
        for _ in range(REPLAYS):
            before = self.wrong
            self.prove(loaded)
            replay += self.wrong > before
        self._triage = {
            "operands_intact": intact,
            "reference_intact": bool(torch.equal(loaded.reference.cpu(), answer)),
            "replay": replay,
        }


def _described(
    loaded: Loaded, place: tuple[int, int], expected: int, got: int, number: int
) -> dict[str, Any]:
    xor = (expected ^ got) & ((1 << loaded.width) - 1)
    return {
        "dtype": loaded.operands.dtype,
        "family": str(loaded.operands.family),
        "row": place[0],
        "column": place[1],
        "expected": loaded.hex(expected),
        "got": loaded.hex(got),
        "xor": loaded.hex(xor),
        "bits": [bit for bit in range(loaded.width) if xor >> bit & 1],
        "product": number,
    }


def _bits(tensor: Any) -> Any:
    """The same memory as integers: a tolerance, a NaN or a negative zero hides nothing there."""
    return tensor.view(_INTEGERS[tensor.element_size()])


def _exact(values: Values | Integers, dtype: str) -> Any:
    """Return values in a torch dtype, on the host, having seen that nothing was lost."""
    whole = torch.from_numpy(values)
    tensor = whole.to(getattr(torch, dtype))
    if not torch.equal(tensor.to(whole.dtype), whole):
        raise Unprovable(f"{dtype} does not hold the known values exactly")
    return tensor
