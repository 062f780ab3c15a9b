"""Collectives inside one node: every output element verified, and the bandwidth they reach.

`exchange` is the work of one rank; `python -m nodeproof.nccl_tests.inside` runs it alone on CPU
ranks. The ranks are the devices of the node: NCCL between GPUs, Gloo over loopback between the
CPU devices of a rehearsal.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from nodeproof.nccl_tests import bandwidth
from nodeproof.nccl_tests.bandwidth import Collective
from nodeproof.nccl_tests.exactness import SUMS, Case, compare, difference, fill, sized
from nodeproof.nccl_tests.meeting import Meeting
from nodeproof.nccl_tests.settings import inside_the_node
from nodeproof.worker import Context

SHOWN = 16  # wrong elements that are reported one by one
WARM_UPS = 2
REPEATS = bandwidth.LEAST_REPEATS
_LEAST_BYTES = 8
_GROWTH = 16
_PLANTED_BYTES = 32 * 1024  # a planted run exercises the detector, not the fabric
_SUM_TYPES = ("float32", "bfloat16", "int32", "int64")
_TIMED_TYPE = {c: "float32" if c in SUMS else "int32" for c in Collective}
_PLANTS = ("", "flip")


def exchange(
    context: Context,
    *,
    max_bytes_cpu: int,
    max_bytes_gpu: int,
    plant: str = "",
    timeout_s: float = 30.0,
    only: Sequence[str] = (),
    sweep: bool = True,
    repeats: int = REPEATS,
) -> dict[str, Any]:
    """Do the collectives, or `only` these, with the other ranks of `context.group`.

    Without `sweep` the largest size alone. Sizes grow from 8 bytes by factors of 16 to the largest, rounded up to whole elements for
    every rank. Each is verified in full; at the largest, `WARM_UPS` and `repeats` more are done
    with fresh data, the latter timed, all verified.
    `plant="flip"` flips one bit, after the collective, in two outputs of each collective on this
    rank, one of the sweep and one of the repeats, and uses small sizes only.

    Returns, of this rank: `own_times` {collective: seconds of each timed repeat}, `wrong` elements, the first 16 of them in `found` and what was `planted`
    (as `exactness.difference` gives them), `checked` {collective: elements}, `rows` (one for each
    collective, type and size: `collective, dtype, bytes, elements, wrong, timed`), `repeats`
    {collective: how many were timed}, `own_seconds` {collective: median of this rank's own}; and
    of all ranks, alike on each: `seconds` {collective: median of the slowest rank's}, `algbw_gbs`
    and `busbw_gbs` {collective: GB/s}, `largest_bytes` {collective: bytes}, `size` (ranks),
    `transport` {backend, nccl, torch}, and `settings` of this process (see `settings`).

    Raises `ValueError` for an unknown plant or collective, no group or no compute device; `UnfinishedError`,
    naming the rank that was missing, when something done together fails or takes over
    `timeout_s`; `DisagreementError` when the ranks were not told the same.
    """
    if plant not in _PLANTS:
        raise ValueError(f"unknown plant {plant!r}: one of {_PLANTS}")
    group, device = context.group, context.torch_device
    if group is None or not device:
        raise ValueError(f"{context.device_label}: collectives want a group and a compute device")
    on_gpu = torch.device(device).type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(context.threads)
    largest = _PLANTED_BYTES if plant else max_bytes_gpu if on_gpu else max_bytes_cpu
    chosen = [Collective(name) for name in only] or list(Collective)
    terms = {"seed": context.seed, "largest": largest, "plant": plant, "size": group.size}
    terms |= {"only": [c.value for c in chosen], "sweep": sweep, "repeats": repeats}
    with Meeting(group, device=device, terms=terms, timeout_s=timeout_s) as meeting:
        rank = _Rank(
            meeting=meeting,
            context=context,
            device=device,
            chosen=chosen,
            sweep=_sweep(largest, group.size, context.seed, chosen) if sweep else [],
            repeats=_repeats(largest, group.size, context.seed, chosen, repeats),
        )
        if plant:
            rank.choose_plants()
        rank.run()
        # Through the store, so that no time is known by a collective that may be broken. It also
        # keeps every rank here until the last has come through.
        times = meeting.share("seconds", rank.seconds)
    if on_gpu:
        torch.cuda.empty_cache()  # what comes next on this device may want all of its memory
    return rank.result(times) | {
        "transport": _transport(meeting.backend),
        "settings": inside_the_node() if meeting.backend == "nccl" else {},
    }


@dataclass(slots=True, kw_only=True)
class _Rank:
    """This rank's part: what it does, and what it saw."""

    meeting: Meeting
    context: Context
    device: str
    chosen: list[Collective]
    sweep: list[Case]
    repeats: list[Case]
    plants: dict[Case, tuple[int, int]] = field(default_factory=dict)  # element and bit
    wrong: int = 0
    found: list[dict[str, Any]] = field(default_factory=list)
    planted: list[dict[str, Any]] = field(default_factory=list)
    rows: dict[tuple[str, str, int], dict[str, Any]] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)

    @property
    def me(self) -> int:
        return self.meeting.group.rank

    def choose_plants(self) -> None:
        # By seed and rank, so that every rank's faults lie elsewhere and can be replayed.
        choice = random.Random(f"{self.context.seed}/{self.me}")
        for collective in self.chosen:
            for cases in (self.sweep, self.repeats) if self.sweep else (self.repeats,):
                case = choice.choice([c for c in cases if c.collective is collective])
                bits = 8 * case.itemsize
                self.plants[case] = choice.randrange(case.count_out), choice.randrange(bits)

    def run(self) -> None:
        for case in self.sweep:
            self.do(case)
        for case in self.repeats:
            took = self.do(case)
            if case.repeat > WARM_UPS:
                self.seconds.setdefault(case.collective.value, []).append(took)

    def do(self, case: Case) -> float:
        """Do one collective with fresh data, verify it, and return this rank's seconds."""
        what = f"{case.collective.value} of {case.size_bytes} bytes of {case.dtype}"
        self.context.progress(what=what, repeat=case.repeat)
        given = torch.empty(case.count_in, dtype=case.view, device=self.device)
        fill(case, self.me, given)
        output = given  # these two work in place
        if case.collective not in {Collective.ALL_REDUCE, Collective.BROADCAST}:
            # No expected value is known to be this one; an element nobody wrote to shows.
            output = torch.full((case.count_out,), -1, dtype=case.view, device=self.device)
        took = self._timed(case, what, output.view(case.type), given.view(case.type))
        if case in self.plants:
            self._plant(case, output)
        # Many faults of others' making must not crowd out the planted one, or none would count.
        always, _ = self.plants.get(case, (None, None))
        most = SHOWN - len(self.found)
        wrong, found = compare(case, self.me, output, most=most, always=always)
        self.wrong += wrong
        self.found += found
        self._record(case, wrong)
        return took

    def result(self, times: list[dict[str, list[float]]]) -> dict[str, Any]:
        ranks = self.meeting.group.size
        bytes_of = {c.collective: c.size_bytes for c in self.repeats}
        seconds = {c: bandwidth.slowest([t[c.value] for t in times]) for c in self.chosen}
        checked = {
            c.value: sum(r["elements"] for k, r in self.rows.items() if k[0] == c.value)
            for c in self.chosen
        }
        return {
            "wrong": self.wrong,
            "found": self.found,
            "planted": self.planted,
            "checked": checked,
            "rows": list(self.rows.values()),
            "repeats": {name: len(own) for name, own in self.seconds.items()},
            "own_seconds": {name: statistics.median(own) for name, own in self.seconds.items()},
            "seconds": {c.value: s for c, s in seconds.items()},
            "algbw_gbs": {c.value: bandwidth.algbw_gbs(bytes_of[c], seconds[c]) for c in seconds},
            "busbw_gbs": {
                c.value: bandwidth.busbw_gbs(c, bytes_of[c], seconds[c], ranks) for c in seconds
            },
            "own_times": self.seconds,
            "largest_bytes": {c.value: bytes_of[c] for c in self.chosen},
            "size": ranks,
        }

    def _timed(self, case: Case, what: str, output: Any, given: Any) -> float:
        with self.meeting.together(f"the barrier before {what}"):
            self.meeting.barrier(f"the barrier before {what}")
        # A barrier is outside of what is timed; a collective of its own would be measured too.
        with self.meeting.together(what):
            # Nothing may stand between this one and the start: each rank's delay counts for all.
            self.meeting.barrier(what)
            if self.device == "cpu":
                start = time.perf_counter()
                _OPERATIONS[case.collective](output, given, case.root)
                return time.perf_counter() - start
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            _OPERATIONS[case.collective](output, given, case.root)
            end.record()
            self.meeting.finished(end.query, what)
            return float(begin.elapsed_time(end)) / 1000

    def _plant(self, case: Case, output: Any) -> None:
        element, bit = self.plants[case]
        before = int(output[element])
        mask = 1 << bit
        if bit == 8 * case.itemsize - 1:
            mask = -mask  # the sign bit of a signed number
        output[element] = before ^ mask
        self.planted.append(difference(case, element=element, expected=before, got=before ^ mask))

    def _record(self, case: Case, wrong: int) -> None:
        key = (case.collective.value, case.dtype, case.size_bytes)
        names = dict(zip(("collective", "dtype", "bytes"), key, strict=True))
        row = self.rows.setdefault(key, {**names, "elements": 0, "wrong": 0, "timed": False})
        row["elements"] += case.count_out
        row["wrong"] += wrong
        row["timed"] = row["timed"] or case.repeat > WARM_UPS


def _sweep(largest: int, ranks: int, seed: int, chosen: Sequence[Collective]) -> list[Case]:
    sizes = [_LEAST_BYTES]
    while sizes[-1] * _GROWTH < largest:
        sizes.append(sizes[-1] * _GROWTH)
    sizes.append(largest)
    return [
        Case(
            collective=collective,
            dtype=dtype,
            size_bytes=sized(size, dtype, ranks),
            ranks=ranks,
            seed=seed,
        )
        for size in dict.fromkeys(sizes)
        for collective in chosen
        for dtype in (_SUM_TYPES if collective in SUMS else (_TIMED_TYPE[collective],))
    ]


def _repeats(
    largest: int, ranks: int, seed: int, chosen: Sequence[Collective], repeats: int
) -> list[Case]:
    return [
        Case(
            collective=collective,
            dtype=_TIMED_TYPE[collective],
            size_bytes=sized(largest, _TIMED_TYPE[collective], ranks),
            ranks=ranks,
            seed=seed,
            repeat=repeat,
        )
        for collective in chosen
        for repeat in range(1, WARM_UPS + repeats + 1)
    ]


def _newest(*names: str) -> Callable[..., Any]:
    """The first of these that torch has: 2.13 renamed some and warns of the older names."""
    for name in names:
        found: Callable[..., Any] | None = getattr(dist, name, None)
        if found is not None:
            return found
    raise ValueError(f"torch {torch.__version__} has none of {', '.join(names)}")


def _pass_on(output: Any, given: Any) -> None:
    """Send to the next rank and receive of the one before, both at once."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        output.copy_(given)
        return
    ways = [
        dist.P2POp(dist.isend, given, (rank + 1) % size),
        dist.P2POp(dist.irecv, output, (rank - 1) % size),
    ]
    # In one batch, since NCCL lets ranks wait for each other otherwise.
    for request in dist.batch_isend_irecv(ways):
        request.wait()


# Looked up when called, so that what stands in torch.distributed at that time is what is tested.
_OPERATIONS: dict[Collective, Callable[[Any, Any, int], Any]] = {
    Collective.ALL_REDUCE: lambda output, _given, _root: dist.all_reduce(output),
    Collective.ALL_GATHER: lambda output, given, _root: _newest(
        "all_gather_single", "all_gather_into_tensor"
    )(output, given),
    Collective.REDUCE_SCATTER: lambda output, given, _root: _newest(
        "reduce_scatter_single", "reduce_scatter_tensor"
    )(output, given),
    Collective.ALL_TO_ALL: lambda output, given, _root: dist.all_to_all_single(output, given),
    Collective.BROADCAST: lambda output, _given, root: dist.broadcast(output, src=root),
    Collective.SENDRECV: lambda output, given, _root: _pass_on(output, given),
}


def _transport(backend: str) -> dict[str, str]:
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if backend == "nccl" else ""
    return {"backend": backend, "nccl": nccl, "torch": str(torch.__version__)}


if __name__ == "__main__":
    from nodeproof.nccl_tests.alone import main

    main()
