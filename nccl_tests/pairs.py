"""Every pair of devices of a node, both ways: each byte that arrives, and how fast it came.

`pairs` is the work of one rank. First two by two, in rounds of pairs that have no device in common,
so that nothing else is on their way; then all to all at once. By send and receive of
torch.distributed: over NCCL, which takes NVLink or PCIe between GPUs, and over Gloo between the
CPU devices of a rehearsal. One device alone copies to itself.

    python -m nodeproof.nccl_tests.pairs_alone --ranks 4
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from nodeproof.nccl_tests.meeting import Meeting
from nodeproof.nccl_tests.messages import Message, compare, described, rounds
from nodeproof.nccl_tests.settings import inside_the_node
from nodeproof.worker import Context

SHOWN = 16  # messages with wrong bytes that are described; all bytes are counted
_PLANTED_BYTES = 32 * 1024  # a planted run exercises the comparison, not the fabric
REPEATS = 5  # of each timed message, in each sweep
_SHARE = 4  # of a message's bytes, where all ranks send to all at once
_PLANTS = ("", "flip")
_ODD_SIZES = (65_537, 1, 4_097, 7, 33_333, 255, 16_385, 3)
_UNWRITTEN = 0xA5


def pairs(
    context: Context,
    *,
    bytes_cpu: int,
    bytes_gpu: int,
    seconds: float = 0.0,
    plant: str = "",
    timeout_s: float = 30.0,
) -> dict[str, Any]:
    """Exchange messages of `bytes_*` with every other rank of `context.group`, for `seconds`.

    With `plant="flip"` one bit of what this rank received is flipped, from a drawn sender in each
    phase. What a rank receives wrongly of itself is then put right first, and stands beside the
    planted in `found` only if no pair of the meeting was found sound by the same comparison.

    Returns, of this rank: `rank`, `wrong` (bytes), `found` and `planted` (see `messages.compare`),
    `received` {sender: bytes compared}, `loopback_gbs` (of one device alone, else 0) and
    `loaded_s`; and of all ranks, alike on each: `size` (ranks), `gbs` [[by receiver] by sender], 0
    on the diagonal: of each ordered pair the median over its messages (between CPU devices the
    best) of the faster end's rate, since the other end waited, `together_gbs` [by receiver: what
    came in from all at once], `sweeps`, `bytes` of a message, `transport` {backend, nccl, torch}
    and `settings` of this process (see `settings`).

    Raises `ValueError` for an unknown plant, a size that is none, no group or no compute device;
    `UnfinishedError`, naming the rank that was missing, when something done together fails or
    takes over `timeout_s`; `DisagreementError` when the ranks were not told the same.
    """
    if plant not in _PLANTS:
        raise ValueError(f"unknown plant {plant!r}: one of {_PLANTS}")
    if min(bytes_cpu, bytes_gpu) < _SHARE:
        raise ValueError(f"messages of {min(bytes_cpu, bytes_gpu)} bytes: {_SHARE} or more")
    group, device = context.group, context.torch_device
    if group is None or not device:
        raise ValueError(f"{context.device_label}: pairs want a group and a compute device")
    on_gpu = torch.device(device).type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)  # messages are small, and cores shared with the other ranks
    size = _PLANTED_BYTES if plant else bytes_gpu if on_gpu else bytes_cpu
    terms = {"seed": context.seed, "bytes": size, "plant": plant, "seconds": seconds}
    with Meeting(group, device=device, terms=terms, timeout_s=timeout_s) as meeting:
        rank = _Rank(meeting=meeting, context=context, device=device, size=size, plant=plant)
        told = rank.run(seconds)
    if on_gpu:
        torch.cuda.empty_cache()  # what comes next on this device may want all of its memory
    return rank.result(told) | {
        "transport": _transport(meeting.backend),
        "settings": inside_the_node() if meeting.backend == "nccl" else {},
    }


@dataclass(slots=True, kw_only=True)
class _Rank:
    """This rank's part: what it does, and what it saw."""

    meeting: Meeting
    context: Context
    device: str
    size: int
    plant: str
    sweeps: int = 0
    turns: int = 0
    wrong: int = 0
    own: list[dict[str, Any]] = field(default_factory=list)  # nobody planted these
    planted: list[dict[str, Any]] = field(default_factory=list)
    seen: list[dict[str, Any]] = field(default_factory=list)  # of what was planted
    received: dict[int, int] = field(default_factory=dict)
    spoilt: set[int] = field(default_factory=set)  # senders of whom something came wrong
    spent: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    together: list[float] = field(default_factory=list)
    loopback: list[float] = field(default_factory=list)
    plants: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    loaded_s: float = 0.0

    @property
    def me(self) -> int:
        return self.meeting.group.rank

    @property
    def ranks(self) -> int:
        return self.meeting.group.size

    def run(self, seconds: float) -> list[dict[str, Any]]:
        """Exchange with all until every rank has spent `seconds`; return what all ranks saw."""
        self._choose_plants()
        begun = time.perf_counter()
        while True:
            self._sweep()
            self.loaded_s = time.perf_counter() - begun
            # Through the store, so that nobody stops by the word of a fabric that may be broken.
            told = self.meeting.share(f"after sweep {self.sweeps}", self.loaded_s)
            if min(told) >= seconds:
                break
        sound = [sender for sender in self.received if sender not in self.spoilt]
        spent = [[*pair, times] for pair, times in self.spent.items()]
        mine = {"spent": spent, "together": self.together, "sound": sound}
        return self.meeting.share("pairs", mine)

    def result(self, told: list[dict[str, Any]]) -> dict[str, Any]:
        # A comparison that calls everything wrong must not pass for a broken device: only one that
        # found some pair sound may say of another that it is broken for good.
        witnessed = any(each["sound"] for each in told)
        # Cores that are shared stop for longer than a message takes: there only the best tells.
        best = self.device == "cpu"
        arrived = self.size // _SHARE * (self.ranks - 1)
        return {
            "rank": self.me,
            "wrong": self.wrong,
            "found": self.seen if self.plant and witnessed else self.own[:SHOWN] + self.seen,
            "planted": self.planted,
            "received": {str(sender): count for sender, count in sorted(self.received.items())},
            "loopback_gbs": _gbs(self.size, self.loopback, best=best) if self.loopback else 0.0,
            "loaded_s": self.loaded_s,
            "size": self.ranks,
            "gbs": _matrix([each["spent"] for each in told], self.ranks, self.size, best=best),
            "together_gbs": [
                _gbs(arrived, times, best=best) for each in told if (times := each["together"])
            ],
            "sweeps": self.sweeps,
            "bytes": self.size,
        }

    # --- exchanging --------------------------------------------------------------------------

    def _sweep(self) -> None:
        self.sweeps += 1
        if self.ranks == 1:
            self._loop_back()
            return
        for turn in rounds(self.ranks):
            self.turns += 1
            self.context.progress(phase="pairs", round=float(self.turns))
            self._wait_for_all(f"the barrier before round {self.turns}")
            pair = next((p for p in turn if self.me in p), None)
            if pair is not None:
                self._meet(*pair)
        self._all_at_once()

    def _meet(self, low: int, high: int) -> None:
        """Both ways at once in an odd size, which also connects the two; then one after the other."""
        labels = self.meeting.group.labels
        what = f"round {self.turns}: {labels[low]} with {labels[high]}"
        odd = _ODD_SIZES[self.turns % len(_ODD_SIZES)]
        both = [(low, high), (high, low)]
        # All of it is one step of the meeting: each step is written down for the others to read.
        with self.meeting.together(what):
            self._exchange([_message(*way, "odd", self.turns, odd) for way in both], what)
            for repeat in range(REPEATS):
                number = self.turns * REPEATS + repeat
                for way in both:
                    took = self._exchange([_message(*way, "alone", number, self.size)], what)
                    self.spent.setdefault(way, []).append(took)

    def _all_at_once(self) -> None:
        others = [rank for rank in range(self.ranks) if rank != self.me]
        size = self.size // _SHARE
        ways = [(self.me, other) for other in others] + [(other, self.me) for other in others]
        messages = [_message(*way, "together", self.sweeps, size) for way in ways]
        what = f"all pairs at once, sweep {self.sweeps}"
        self._wait_for_all(f"the barrier before {what}")
        with self.meeting.together(what):
            self.together.append(self._exchange(messages, what))

    def _wait_for_all(self, what: str) -> None:
        with self.meeting.together(what):
            self.meeting.barrier(what)

    def _loop_back(self) -> None:
        message = _message(self.me, self.me, "loopback", self.sweeps, self.size)
        given, output = self._given(message), self._unwritten(message)
        with self.meeting.together("the copy to itself"):
            took = self._timed(lambda: output.copy_(given), "the copy to itself")
        self.loopback.append(took)
        self._verify(message, output)

    def _exchange(self, messages: list[Message], what: str) -> float:
        """Send and receive what is mine of `messages`, verify, and return this rank's seconds."""
        operations, arriving = [], list[tuple[Message, Any]]()
        for message in messages:
            if message.receiver == self.me:
                arriving.append((message, self._unwritten(message)))
                operations.append(dist.P2POp(dist.irecv, arriving[-1][1], message.sender))
            else:
                operations.append(dist.P2POp(dist.isend, self._given(message), message.receiver))
        took = self._timed(lambda: _done(operations), what)
        for message, output in arriving:
            self._verify(message, output)
        return took

    def _timed(self, act: Callable[[], Any], what: str) -> float:
        """Seconds of `act`, on a GPU by its own clock."""
        if self.device == "cpu":
            start = time.perf_counter()
            act()
            return time.perf_counter() - start
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        act()
        end.record()
        self.meeting.finished(end.query, what)
        return float(begin.elapsed_time(end)) / 1000

    def _given(self, message: Message) -> Any:
        given = torch.empty(message.size, dtype=torch.uint8, device=self.device)
        for start, stop in message.chunks(self.device):
            given[start:stop] = message.content(self.context.seed, start, stop, self.device)
        return given

    def _unwritten(self, message: Message) -> Any:
        return torch.full((message.size,), _UNWRITTEN, dtype=torch.uint8, device=self.device)

    # --- verifying ---------------------------------------------------------------------------

    def _verify(self, message: Message, output: Any) -> None:
        sender = message.sender
        found = compare(message, output, self.context.seed)
        self.received[sender] = self.received.get(sender, 0) + message.size
        if found:
            self.wrong += found["bytes"]
            self.own.append(found)
            self.spoilt.add(sender)
        plant = self.plants.pop((message.phase, sender), None)
        if plant is None:
            return
        if found:
            output.copy_(self._given(message))
        index, bit = plant[0] % message.size, plant[1]
        before = message.byte(self.context.seed, index)
        output[index] ^= 1 << bit
        self.planted.append(described(message, 1, index, before, before ^ (1 << bit)))
        seen = compare(message, output, self.context.seed)
        if seen:
            self.wrong += seen["bytes"]
            self.seen.append(seen)

    def _choose_plants(self) -> None:
        if not self.plant:
            return
        # By seed and device, so that every rank's faults lie elsewhere and can be replayed.
        choice = random.Random(f"{self.context.seed}/pairs/{self.context.device_id}")
        others = [rank for rank in range(self.ranks) if rank != self.me]
        phases = ("odd", "alone", "together") if others else ("loopback",)
        for phase in phases:
            sender = choice.choice(others or [self.me])
            self.plants[phase, sender] = (choice.randrange(1 << 30), choice.randrange(8))


def _done(operations: list[Any]) -> None:
    # In one batch, since NCCL lets two ranks wait for each other otherwise.
    for request in dist.batch_isend_irecv(operations):
        request.wait()


def _message(sender: int, receiver: int, phase: str, number: int, size: int) -> Message:
    return Message(sender=sender, receiver=receiver, phase=phase, round=number, size=size)


def _matrix(spent: list[list[Any]], ranks: int, size: int, *, best: bool) -> list[list[float]]:
    """GB/s by sender and receiver, from the seconds that both ends took for the same messages."""
    times = dict[tuple[int, int], list[list[float]]]()
    for rows in spent:
        for sender, receiver, took in rows:
            times.setdefault((sender, receiver), []).append(took)
    matrix = [[0.0] * ranks for _ in range(ranks)]
    for (sender, receiver), ends in times.items():
        if len(ends) == 2 and len(ends[0]) == len(ends[1]):
            # The end that came first waited for the other one.
            fastest = [min(both) for both in zip(*ends, strict=True)]
            matrix[sender][receiver] = _gbs(size, fastest, best=best)
    return matrix


def _gbs(size: int, seconds: list[float], *, best: bool) -> float:
    """GB/s at the median of these times, or at the best. Raises `RuntimeError` for no time."""
    took = min(seconds) if best else statistics.median(seconds)
    if not took > 0:
        raise RuntimeError(
            f"{size} bytes came in {took} s by the clock: neither the clock nor the transfer is "
            "to be trusted; see host.clock.source"
        )
    return size / took / 1e9


def _transport(backend: str) -> dict[str, str]:
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if backend == "nccl" else ""
    return {"backend": backend, "nccl": nccl, "torch": str(torch.__version__)}
