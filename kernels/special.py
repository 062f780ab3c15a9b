"""Sweeps of special functions: no exact answer is known, so everybody who computes has to agree.

The same inputs go to many blocks, and each block has to give the same bits: what differs from the
majority is wrong. Over all outputs that the majority gave there is a digest for each function, at
several points of the sweep, for devices of one model to compare; and at the end the beginning is
computed again, by a device that is hot now, and has to give the same digests. Square root,
reciprocal and quotient are correctly rounded by IEEE 754, and are held to numpy's besides. The
others have to be near numpy's, now and then, lest all blocks agree on what is not the function at
all.

Inputs are bit patterns: from the seed come a start and an odd stride, so that a whole sweep meets
each pattern of 32 bits once, and every run begins elsewhere. NaNs, infinities and subnormal numbers
are among them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nodeproof.kernels import alone
from nodeproof.kernels.bits import raw, signed, unsigned
from nodeproof.kernels.draws import long_words, words
from nodeproof.kernels.faults import KEEP, known
from nodeproof.kernels.place import place
from nodeproof.kernels.product import about
from nodeproof.kernels.special_functions import FUNCTIONS, Function, patterns
from nodeproof.kernels.stopwatch import Stopwatch
from nodeproof.worker import Context

_COLUMNS = 4096  # inputs of one round on which blocks are put to the vote
_ROUNDS = 2  # of the sweep at least; the first of them is computed again at the end
_PLANTED_AT = ("exp2", "tanh", "sqrt64")  # in one block, which the others outvote
_COMMON_AT = ("exp", "divide")  # in all blocks alike, which numpy and the digests have to tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Inputs of one round, and how many blocks get them."""

    inputs: int
    blocks: int


def sweep(context: Context, *, seconds: float = 0.0, plant: str = "") -> dict[str, Any]:
    """Compute all functions for `seconds`, at least two rounds of inputs and the first again.

    With `plant="flip"` one output bit is flipped in one block, in three functions, and in all
    blocks, in two. Returns `wrong` (outputs that differ from the majority of their block's peers),
    `unlike_ieee` (outputs of the correctly rounded functions that differ from numpy's), `far` (of
    the others, those that are not even near), `found`, `planted`, `functions` (names of those that
    were put to the vote in every round and held to numpy), `digests` (by function and number of
    rounds), `again` (the digests of the first round, computed last), `blocks`, `rounds`,
    `operations`, `share_of_inputs` (of all patterns of 32 bits), `others` (an empty list: digests
    of other devices that a self-test adds), `versions`, `loaded_s` and `gops`. Raises `ValueError`
    for an unknown plant, `RuntimeError` for outputs of another type.
    """
    known(plant, "flip")
    device = place(context)
    # By one thread: where several call a function of the vector library for the first time, they may
    # be served by different code (github.com/pytorch/pytorch/issues/188792).
    torch.set_num_threads(context.threads if device.type == "cuda" else 1)
    shape = _shape(device)
    sweeper = Sweeper(context, device, shape)
    first: dict[str, dict[str, str]] = {}
    rounds, watch = 0, Stopwatch(context, seconds)
    while rounds < _ROUNDS or watch.spent < seconds:
        sweeper.do(rounds, plant=bool(plant) and rounds == 0)
        rounds += 1
        if rounds & (rounds - 1) == 0:
            for name, digest in sweeper.digests().items():
                first.setdefault(name, {})[str(rounds)] = digest
        watch.tell(gops=sweeper.operations / watch.read() / 1e9, wrong=sweeper.wrong)
    sweeper.forget()
    sweeper.do(0, plant=False)
    watch.read()
    return {
        "wrong": sweeper.wrong,
        "unlike_ieee": sweeper.unlike_ieee,
        "far": sweeper.far,
        "found": sweeper.found,
        "planted": sweeper.planted,
        "functions": sweeper.swept(rounds + 1),  # and the first of them again
        "digests": first,
        "again": sweeper.digests(),
        "blocks": shape.blocks,
        "rounds": rounds,
        "operations": sweeper.operations,
        "share_of_inputs": min(rounds * shape.inputs / 2**32, 1.0),
        "others": [],
        "versions": about(device),
        "loaded_s": watch.spent,
        "gops": sweeper.operations / watch.spent / 1e9,
    }


class Sweeper:
    """Computes rounds, compares blocks, and remembers what was wrong."""

    def __init__(self, context: Context, device: Any, shape: Shape) -> None:
        self._context = context
        self._device = device
        self._shape = shape
        self._nvidia = device.type == "cuda" and torch.version.hip is None
        self._digests: dict[str, int] = {}
        self._votes: Counter[str] = Counter()
        self._held: set[str] = set()
        # Modulo 2**64, and odd, so that no wrong bit is multiplied away.
        weights = long_words(context.seed, "special weights", shape.inputs) | np.uint64(1)
        self._weights = torch.from_numpy(weights.view(np.int64)).to(device)
        self.wrong = 0
        self.unlike_ieee = 0
        self.far = 0
        self.operations = 0
        self.found: list[dict[str, Any]] = []
        self.planted: list[dict[str, Any]] = []

    def digests(self) -> dict[str, str]:
        """Of everything since the start, by function."""
        return {name: f"{digest:#018x}" for name, digest in self._digests.items()}

    def forget(self) -> None:
        """Begin the digests anew."""
        self._digests = {}

    def swept(self, rounds: int) -> list[str]:
        """Name the functions that were voted on in so many rounds and held to numpy in some."""
        return [
            name for name, votes in self._votes.items() if votes >= rounds and name in self._held
        ]

    def do(self, number: int, *, plant: bool) -> None:
        """Do one round of every function."""
        for function in FUNCTIONS:
            given = [self._inputs(function, number, which) for which in range(function.inputs)]
            outputs = self._blocks(function, given)
            spot = None
            if plant and function.name in _PLANTED_AT:
                spot = self._plant(outputs, function, number, given)
            elif plant and function.name in _COMMON_AT:
                spot = self._plant_common(outputs, function, number, given)
            agreed = self._vote(outputs, function, number, given, spot)
            if function.exact_on_cpu or (function.exact and self._nvidia):
                self._hold_to_ieee(agreed, function, number, given, spot)
            elif number & (number - 1) == 0:  # rounds of powers of two: it takes the host long
                self.far += function.far(_values(agreed, given), given)
                self._held.add(function.name)
            weighted = int((agreed.to(torch.int64) * self._weights).sum())
            mixed = self._digests.get(function.name, 0) * 0x2545F4914F6CDD1D + weighted
            self._digests[function.name] = unsigned(mixed)

    def _inputs(self, function: Function, number: int, which: int) -> NDArray[Any]:
        tag = f"{function.width} {which}"
        bits = patterns(self._context.seed, number, self._shape.inputs, function.width, tag)
        width = function.width // 8
        return bits.astype(np.dtype(f"u{width}")).view(np.dtype(f"f{width}"))

    def _blocks(self, function: Function, given: list[NDArray[Any]]) -> Any:
        """Every block's outputs, as integers: (blocks, inputs)."""
        inputs = [torch.from_numpy(g).to(self._device) for g in given]
        shape = (self._shape.blocks, self._shape.inputs)
        if self._device.type == "cuda":
            # All at once, over all multiprocessors; inputs repeat in memory as blocks do.
            outputs = function.torch(*(i.repeat(self._shape.blocks, 1) for i in inputs))
        else:
            # One by one and each from the same addresses: a vector library may work otherwise
            # at the edges of what it is given.
            outputs = torch.stack([function.torch(*inputs) for _ in range(self._shape.blocks)])
        if tuple(outputs.shape) != shape or outputs.dtype != inputs[0].dtype:
            raise RuntimeError(
                f"{function.name} came back as {outputs.dtype} {tuple(outputs.shape)}, not "
                f"{inputs[0].dtype} {shape}: the torch build is not usable here"
            )
        return raw(outputs)

    def _plant(
        self, outputs: Any, function: Function, number: int, given: list[NDArray[Any]]
    ) -> tuple[int, int]:
        # Elsewhere on each device: the same fault on two of them would be no hardware's.
        tag = f"special {function.name} {self._context.device_id}"
        draw = words(self._context.seed, tag, 1, 3)[0].tolist()
        last = self._shape.blocks - 1
        # In the last block, in the first, which the others are compared with, and in any.
        block = (last, 0, draw[0] % self._shape.blocks)[_PLANTED_AT.index(function.name)]
        spot = draw[1] % self._shape.inputs
        bit = draw[2] % function.width if self.planted else 0  # the least that can be wrong first
        majority = _majority(outputs[:, spot].tolist())
        got = majority ^ signed(1 << bit, function.width)
        outputs[block, spot] = got
        self.planted.append(_described(function, (number, block, spot), given, majority, got))
        return block, spot

    def _plant_common(
        self, outputs: Any, function: Function, number: int, given: list[NDArray[Any]]
    ) -> tuple[int, int]:
        tag = f"special {function.name} {self._context.device_id}"
        draw = int(words(self._context.seed, tag, 1, 1)[0, 0])
        spot, right, wrong = function.spoilt(given, draw)
        outputs[:, spot] = wrong
        if function.exact_on_cpu:  # what is far is counted, and not described
            self.planted.append(_described(function, (number, -1, spot), given, right, wrong))
        return -1, spot

    def _vote(
        self,
        outputs: Any,
        function: Function,
        number: int,
        given: list[NDArray[Any]],
        spot: tuple[int, int] | None,
    ) -> Any:
        """Count what differs from the majority, describe some of it, and return the majority's."""
        self.operations += outputs.numel()
        self._votes[function.name] += 1
        first = outputs[0]
        differs = (outputs != first).any(0)
        if not bool(differs.any()):
            return first
        agreed = first.clone()
        places = differs.nonzero().flatten()
        if spot is not None and bool(differs[spot[1]]):  # never crowded out by the device's own
            places = torch.cat([places.new_tensor([spot[1]]), places[places != spot[1]]])
        self.wrong += max(int(places.numel()) - _COLUMNS, 0)  # one at least in each of the rest
        for place_ in places[:_COLUMNS].tolist():
            column = outputs[:, place_].tolist()
            majority = _majority(column)
            agreed[place_] = majority
            for block, got in enumerate(column):
                if got == majority:
                    continue
                self.wrong += 1
                if len(self.found) < KEEP or (block, place_) == spot:
                    where = (number, block, place_)
                    self.found.append(_described(function, where, given, majority, got))
        return agreed

    def _hold_to_ieee(
        self,
        agreed: Any,
        function: Function,
        number: int,
        given: list[NDArray[Any]],
        planted: tuple[int, int] | None,
    ) -> None:
        got = _values(agreed, given)
        differs, want = function.differs(got, given)
        word = np.dtype(f"i{function.width // 8}")
        self.unlike_ieee += int(np.count_nonzero(differs))
        self._held.add(function.name)
        spots = np.flatnonzero(differs)[: max(KEEP - len(self.found), 0)].tolist()
        if planted is not None and planted[1] not in spots and bool(differs[planted[1]]):
            spots.append(planted[1])  # never crowded out by the device's own
        for spot in spots:
            bits = int(want.view(word)[spot]), int(got.view(word)[spot])
            self.found.append(_described(function, (number, -1, spot), given, *bits))


def _values(words_: Any, given: list[NDArray[Any]]) -> NDArray[Any]:
    return np.asarray(words_.cpu().numpy().view(given[0].dtype))


def _majority(column: list[int]) -> int:
    return Counter(column).most_common(1)[0][0]


def _described(
    function: Function,
    where: tuple[int, int, int],
    given: list[NDArray[Any]],
    expected: int,
    got: int,
) -> dict[str, Any]:
    number, block, spot = where
    mask, digits = (1 << function.width) - 1, function.width // 4 + 2
    unsigned = np.dtype(f"u{function.width // 8}")
    return {
        "function": function.name,
        "round": number,
        "block": block,  # -1: the majority of blocks, where numpy differs from it
        "input": " ".join(f"{int(g.view(unsigned)[spot]):#0{digits}x}" for g in given),
        "expected": f"{expected & mask:#0{digits}x}",
        "got": f"{got & mask:#0{digits}x}",
        "xor": f"{(expected ^ got) & mask:#0{digits}x}",
    }


def _shape(device: Any) -> Shape:
    if device.type != "cuda":
        return Shape(inputs=1024, blocks=3)
    units = torch.cuda.get_device_properties(device).multi_processor_count
    return Shape(inputs=1 << 16, blocks=max(2 * int(units), 3))


def main() -> None:
    """Prove that blocks agree and planted faults are found, then say how fast the sweep is."""
    context = alone.context()
    clean = sweep(context)
    if clean["wrong"] or clean["unlike_ieee"] or clean["far"]:
        raise SystemExit(f"wrong: {clean['found']}")
    alone.caught(sweep(context, plant="flip"))
    print(f"{len(FUNCTIONS)} functions agree in {clean['blocks']} blocks, planted faults caught")
    timed = sweep(context, seconds=2.0)
    if timed["wrong"] or timed["unlike_ieee"] or timed["far"]:
        raise SystemExit(f"wrong while timing: {timed['found']}")
    print(f"{timed['gops']:.3f} Gop/s, {timed['share_of_inputs']:.2%} of all inputs")


if __name__ == "__main__":
    main()
