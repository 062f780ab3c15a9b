"""Chains of arithmetic on many lanes, each step fed by the one before, every lane's answer known.

A chain is cut into segments. What each lane holds after each segment is known on the host before
the device begins, so that a wrong bit is placed: which lane, between which steps. After a segment
whatever was wrong is put right, so that each fault is reported once, unless it is there again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nodeproof.kernels.bits import signed, unsigned
from nodeproof.kernels.draws import words
from nodeproof.kernels.faults import KEEP

_AGAIN = 2  # lanes of each chain that the host works out a second time, by other means
_INTEGERS = {32: torch.int32, 64: torch.int64}

Marks = NDArray[Any]  # unsigned, of the width of the chain
State = tuple[int, ...]  # the words of one lane


class HostError(RuntimeError):
    """Two ways to a known answer differ: the host itself can't be trusted to judge a device."""

    cause = "environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A bit that is flipped on the device: where, and after how many steps of the segment."""

    number: int  # of the pass
    segment: int
    cut: int
    copy: int
    lane: int
    word: int
    bit: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Chain(ABC):
    """Lanes that all do the same steps from different starts, and where each of them has to be.

    `marks` is (segments + 1, words, lanes), unsigned bits: the starts, then what has to stand after
    each segment. `parameter` is (lanes,): what each lane has of its own beside its state.
    `operations` counts what one step of one lane computes, `bits` what a planted fault may flip.
    """

    name: str
    marks: Marks
    parameter: NDArray[Any]
    steps: int
    operations: int
    bits: int

    @abstractmethod
    def advance(self, state: Any, parameter: Any, steps: int) -> Any:
        """Do `steps` on the device. `state` is a tuple of integer tensors, one for each word."""

    @abstractmethod
    def replay(self, lane: int, state: State, steps: int) -> State:
        """Do `steps` of one lane in Python's integers, which is not how the marks were found."""

    @property
    def segments(self) -> int:
        """Parts of the chain after which it is compared."""
        return int(self.marks.shape[0]) - 1

    @property
    def words(self) -> int:
        """Words of the state of one lane."""
        return int(self.marks.shape[1])

    @property
    def lanes(self) -> int:
        """Starts that differ."""
        return int(self.marks.shape[2])

    @property
    def width(self) -> int:
        """Bits of a word."""
        return int(self.marks.itemsize) * 8

    def at(self, mark: int, lane: int) -> State:
        """What a lane has to hold at a mark."""
        return tuple(int(word) for word in self.marks[mark, :, lane])

    def prove(self, seed: int) -> int:
        """Work out some lanes again, and count them. `HostError` where that leads elsewhere."""
        proven = 0
        for draw in words(seed, f"again {self.name}", _AGAIN, 2).tolist():
            segment, lane = draw[0] % self.segments, draw[1] % self.lanes
            again = self.replay(lane, self.at(segment, lane), self.steps)
            if again != self.at(segment + 1, lane):
                raise HostError(
                    f"two ways to the known answer of {self.name} differ in lane {lane}, so the "
                    "host itself may compute wrongly: test its processor and memory before it "
                    "judges a device"
                )
            proven += 1
        return proven

    def flipped(self, fault: Fault) -> State:
        """What the lane of a fault has to hold at the end of its segment."""
        state = list(self.replay(fault.lane, self.at(fault.segment, fault.lane), fault.cut))
        state[fault.word] ^= 1 << fault.bit
        return self.replay(fault.lane, tuple(state), self.steps - fault.cut)

    def faults(self, seed: int, device_id: str, copies: int, first: int) -> list[Fault]:
        """Draw what is planted: one fault in each of the passes from `first` on.

        The lowest bit in the middle of a segment, which a chain that forgets might hide; any bit
        after the last step, which only the state shows; and, where there is a digest, a bit of
        that, which the state does not show.
        """
        # Elsewhere on each device: the same fault on two of them would be no hardware's.
        draws = words(seed, f"chain {self.name} {device_id}", 3, 5).tolist()
        middle = [1 + draw[0] % (self.steps - 1) for draw in draws]
        drawn = [draw[1] % self.bits for draw in draws]
        kinds = [(middle[0], 0, 0), (self.steps, 0, drawn[1])]
        if self.words > 1:
            kinds.append((middle[2], 1, drawn[2]))
        return [
            Fault(
                number=first + i,
                segment=draws[i][2] % self.segments,
                cut=cut,
                copy=draws[i][3] % copies,
                lane=draws[i][4] % self.lanes,
                word=word,
                bit=bit,
            )
            for i, (cut, word, bit) in enumerate(kinds)
        ]


class Ledger:
    """What was compared and what was wrong. One for each call of a work."""

    def __init__(self) -> None:
        self.proven = 0  # lanes of which the host found the end in two ways
        self.passes = 0
        self.runs: Counter[str] = Counter()  # by chain: passes of one launch are one run
        self.operations = 0
        self.wrong = 0
        self.found: list[dict[str, Any]] = []
        self.planted: list[dict[str, Any]] = []

    def plant(self, chain: Chain, fault: Fault) -> None:
        """Note what has to be reported for a fault."""
        got = chain.flipped(fault)
        if got == chain.at(fault.segment + 1, fault.lane):
            raise RuntimeError(f"a fault planted in {chain.name} leaves no trace: {fault}")
        place = (fault.number, fault.copy, fault.segment, fault.lane)
        self.planted.append(described(chain, place, got))

    def did(self, chain: Chain, *, copies: int, passes: int) -> None:
        """Count passes of which every lane was compared after every segment."""
        steps = chain.segments * chain.steps * passes
        self.passes += passes
        self.runs[chain.name] += 1
        self.operations += chain.operations * steps * chain.lanes * copies


def described(chain: Chain, place: tuple[int, int, int, int], got: State) -> dict[str, Any]:
    """What is said of a wrong lane. `place` is pass, copy, segment and lane."""
    number, copy, segment, lane = place
    expected = chain.at(segment + 1, lane)

    def shown(state: State) -> str:
        return " ".join(f"{word:#0{chain.width // 4 + 2}x}" for word in state)

    return {
        "chain": chain.name,
        "pass": number,
        "copy": copy,
        "segment": segment,
        "steps": [segment * chain.steps, (segment + 1) * chain.steps],
        "lane": lane,
        "expected": shown(expected),
        "got": shown(got),
        "xor": shown(tuple(a ^ b for a, b in zip(expected, got, strict=True))),
    }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loaded:
    """A chain and its marks on a device, as signed integers of the same bits."""

    chain: Chain
    marks: Any  # (segments + 1, words, lanes)
    parameter: Any  # (lanes,)


def load(chain: Chain, device: Any) -> Loaded:
    """Put a chain's starts, marks and parameters on a device."""
    marks = chain.marks.view(np.dtype(f"i{chain.width // 8}"))
    return Loaded(
        chain=chain,
        marks=torch.from_numpy(marks).to(device),
        parameter=torch.from_numpy(chain.parameter).to(device),
    )


def walk(
    loaded: Loaded, ledger: Ledger, *, copies: int, number: int, fault: Fault | None = None
) -> None:
    """Do one pass with torch on `copies` of all lanes, each held to the answer after each segment.

    Raises `RuntimeError` for a state of another shape or type.
    """
    chain = loaded.chain
    shape, dtype = (copies, chain.lanes), _INTEGERS[chain.width]
    state = _broadcast(loaded.marks[0], copies)
    for segment in range(chain.segments):
        hit = fault if fault is not None and fault.segment == segment else None
        if hit is not None:
            state = chain.advance(state, loaded.parameter, hit.cut)
            _flip(state[hit.word], hit, chain.width)
            state = chain.advance(state, loaded.parameter, chain.steps - hit.cut)
        else:
            state = chain.advance(state, loaded.parameter, chain.steps)
        if any(tuple(word.shape) != shape or word.dtype != dtype for word in state):
            raise RuntimeError(
                f"a {chain.name} chain came back as {[(w.dtype, tuple(w.shape)) for w in state]}, "
                f"not {chain.words} times {dtype} {shape}: the torch build is not usable here"
            )
        want = loaded.marks[segment + 1]
        differs = torch.stack([state[w] != want[w] for w in range(chain.words)]).any(0)
        wrong = int(torch.count_nonzero(differs))
        if wrong:
            ledger.wrong += wrong
            _locate(state, differs, chain, ledger, (number, segment), hit)
            state = _broadcast(want, copies)
    ledger.did(chain, copies=copies, passes=1)


def _broadcast(mark: Any, copies: int) -> tuple[Any, ...]:
    return tuple(word.repeat(copies, 1) for word in mark)


def _flip(word: Any, fault: Fault, width: int) -> None:
    word[fault.copy, fault.lane] = word[fault.copy, fault.lane] ^ signed(1 << fault.bit, width)


def _locate(
    state: Any, differs: Any, chain: Chain, ledger: Ledger, when: tuple[int, int], hit: Fault | None
) -> None:
    number, segment = when
    places = [tuple(p) for p in differs.nonzero()[: max(KEEP - len(ledger.found), 0)].tolist()]
    if hit is not None:
        # A device with many faults of its own must not crowd out the planted one.
        place = (hit.copy, hit.lane)
        places += [place] if place not in places and bool(differs[place]) else []
    for copy, lane in places:
        got = tuple(unsigned(int(word[copy, lane]), chain.width) for word in state)
        ledger.found.append(described(chain, (number, copy, segment, lane), got))
