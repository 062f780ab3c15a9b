"""Ranks that come together for collectives, and can say who is missing.

What Gloo, NCCL and the store raise names the wrong peer or none (measured with torch 2.13: of
three ranks, the survivors of one that was killed blame each other; a rank that never came is not
named at all). So each rank writes into the meeting's store who it is (its process), and, before
each thing done together, how far it has come; when something fails, the others look up who is
dead, stopped, gave up or stayed behind. Processes can be seen on the own node only; of another
node's ranks it is known how far they came, and whether they left for a reason of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist

from nodeproof.nccl_tests.stores import GoneError, Store, prefer
from nodeproof.worker import Group

_POLL_S = 0.02
# How long a wait looks without a pause, and how long it then pauses: who sleeps when the others
# go comes late by up to a pause, a tenth of the time of 1 GiB over NVLink.
_SPIN_S = 0.005
_PAUSE_S = 0.0005
_SETTLE_S = 2.0  # a connection closes before its process is seen to be dead
_LEAVE_S = 5.0  # a hung NCCL can hold whoever tears it down
_STATES = {
    "T": "is stopped by a signal",
    "t": "is stopped by a debugger",
    "Z": "is dead",
    "X": "is dead",
    "": "is dead",
}


class UnfinishedError(RuntimeError):
    """Something done together did not come to its end. Says what, and which rank was missing."""


class DisagreementError(ValueError):
    """The ranks were not told the same."""

    cause = "config"


class Meeting:
    """A process group of torch.distributed, from joining to leaving.

    `terms` is what all ranks must have been told alike. `timeout_s` bounds the joining and each
    thing done together. After leaving, this process can take part in another meeting, unless
    `UnfinishedError` says that it has to be restarted.

    Raises `UnfinishedError` when a rank is missing, `DisagreementError` when the terms differ.
    """

    def __init__(
        self, group: Group, *, device: str, terms: Mapping[str, Any], timeout_s: float
    ) -> None:
        self.group = group
        self.timeout_s = timeout_s
        self._device = torch.device(device)
        self._terms = dict(terms)
        self._step = 0
        self._store = Store(group, timeout_s=timeout_s)

    @property
    def backend(self) -> str:
        """`nccl` for CUDA devices, `gloo` for any other."""
        return "nccl" if self._device.type == "cuda" else "gloo"

    def __enter__(self) -> Self:
        me = {
            "pid": os.getpid(),
            "born": _process(os.getpid())[1],
            "host": self.group.host,
            "terms": self._terms,
        }
        told = self.share("here", me)
        for rank, other in enumerate(told):
            if other["terms"] != self._terms:
                raise DisagreementError(
                    f"{self._name(rank)} was told {other['terms']}, "
                    f"{self._name(self.group.rank)} {self._terms}"
                )
        prefer(self.group)
        try:
            with self.together("joining"):
                dist.init_process_group(
                    self.backend,
                    store=self._store.under("torch"),
                    rank=self.group.rank,
                    world_size=self.group.size,
                    timeout=timedelta(seconds=self._backstop_s),
                    # Connects NCCL now, so that what fails in it fails as joining.
                    device_id=self._device if self._device.type == "cuda" else None,
                )
        except UnfinishedError as error:
            self._leave(error)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave(error)

    @contextlib.contextmanager
    def together(self, what: str) -> Iterator[None]:
        """Do one collective thing. Raises `UnfinishedError`, naming who was missing, if it fails."""
        self._step += 1
        self._say("step", [self._step, what])
        try:
            yield
        # torch raises RuntimeError and its kinds for a peer that is gone and for a timeout.
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise UnfinishedError(
                f"{what} failed: {self._missing()}: look there first; {reason}"
            ) from error

    def finished(self, ready: Callable[[], bool], what: str) -> None:
        """Wait for what a GPU has been given, but not for ever: call it inside `together`."""
        began = time.monotonic()
        while not ready():
            waited = time.monotonic() - began
            if waited > self.timeout_s:
                raise RuntimeError(f"{what} was not done after {self.timeout_s:g} s")
            if waited < _SPIN_S:
                os.sched_yield()  # cores may be shared with the rank that is waited for
            else:
                time.sleep(_PAUSE_S)

    def barrier(self, what: str) -> None:
        """Wait until every rank is here, but not for ever: call it inside `together`.

        After a second one right away all ranks go on within microseconds of each other: nobody
        waits long in it, so nobody is asleep when it ends.
        """
        work = dist.barrier(async_op=True)
        if self.backend == "nccl":
            # Its own wait blocks until its watchdog aborts the process; Gloo's raises in time.
            self.finished(work.is_completed, what)
            # What has failed is completed too, and NCCL's wait doesn't tell.
            failure = work.exception()
            if failure is not None:
                raise RuntimeError(f"{what}: {failure}")
        work.wait()

    def share(self, name: str, value: Any) -> list[Any]:
        """Tell all ranks a plain value and return everybody's, by rank. Not by a collective."""
        self._say(name, value)
        ends = time.monotonic() + self.timeout_s
        while absent := [r for r in range(self.group.size) if self._said(name, r) is None]:
            late = time.monotonic() > ends
            if late or self._gone():
                who = ", ".join(self._name(rank) for rank in absent)
                after = f" within {self.timeout_s:g} s" if late else ""
                raise UnfinishedError(
                    f"{name!r} never came from {who}{after}: {self._missing()}: look there first"
                )
            time.sleep(_POLL_S)
        return [self._said(name, rank) for rank in range(self.group.size)]

    @property
    def _backstop_s(self) -> float:
        # NCCL's own watchdog aborts the process, and with it what we know: let `finished` be first.
        return self.timeout_s * (2 if self._device.type == "cuda" else 1)

    # --- what the ranks say of themselves ----------------------------------------------------

    def _say(self, name: str, value: Any) -> None:
        self._store.set(f"{name}/{self.group.rank}", json.dumps(value, allow_nan=False))

    def _said(self, name: str, rank: int) -> Any:
        value = self._store.find(f"{name}/{rank}")
        return None if value is None else json.loads(value)

    def _name(self, rank: int) -> str:
        return f"rank {rank} ({self.group.labels[rank]})"

    # --- who is missing ----------------------------------------------------------------------

    def _missing(self) -> str:
        """One sentence on who is to be looked at first."""
        try:
            return self._looked_up()
        except GoneError as error:
            return str(error)

    def _looked_up(self) -> str:
        others = [rank for rank in range(self.group.size) if rank != self.group.rank]
        absent = [rank for rank in others if self._said("here", rank) is None]
        ends = time.monotonic() + _SETTLE_S
        while not (gone := self._gone()) and not absent and time.monotonic() < ends:
            time.sleep(_POLL_S)
        if gone:
            return "; ".join(gone)
        if absent:
            return f"{', '.join(self._name(rank) for rank in absent)} never came to the meeting"
        steps = {rank: self._said("step", rank) or [0, "coming"] for rank in others}
        behind = [rank for rank in others if steps[rank][0] < self._step]
        if behind:
            return "; ".join(
                f"{self._name(rank)}, process {self._said('here', rank)['pid']}, "
                f"got no further than {steps[rank][1]}"
                for rank in behind
            )
        victims = [f"{self._name(r)} stopped with: {v}" for r in others if (v := self._left(r)[1])]
        if victims:
            return "; ".join(victims)
        if any(self._said("here", rank)["host"] != self.group.host for rank in others):
            return (
                "every rank has come as far, and of those on other nodes no process can be seen, so "
                "none can be named"
            )
        return "every rank is alive and takes part, so none can be named, and the fabric is the suspect"

    def _gone(self) -> list[str]:
        """What is known of each other rank that cannot take part any more by a fault of its own."""
        gone = []
        for rank in range(self.group.size):
            here = self._said("here", rank)
            if rank == self.group.rank or here is None:
                continue
            own, _ = self._left(rank)
            if own:
                gone.append(f"{self._name(rank)} gave up: {own}")
                continue
            if here["host"] != self.group.host:
                continue  # its process can't be seen from here
            state, born = _process(here["pid"])
            if born != here["born"]:
                state = ""
            if state in _STATES:
                gone.append(f"{self._name(rank)}, process {here['pid']}, {_STATES[state]}")
        return gone

    def _left(self, rank: int) -> tuple[str, str]:
        """Why a rank has left: for a reason of its own, or because another one was missing."""
        left = self._said("left", rank)
        return ("", "") if left is None else (left["own"], left["others"])

    # --- leaving -----------------------------------------------------------------------------

    def _leave(self, error: BaseException | None) -> None:
        if error is not None:
            text = f"{type(error).__name__}: {error}".partition("\n")[0]
            victim = isinstance(error, UnfinishedError)
            said = {"own": "" if victim else text, "others": text if victim else ""}
            with contextlib.suppress(GoneError):
                self._say("left", said)
        if not dist.is_initialized():
            return
        # In a thread, since a hung NCCL would keep the reason of the failure from being told.
        leaving = threading.Thread(target=_tear_down, args=(error is not None,), daemon=True)
        leaving.start()
        leaving.join(_LEAVE_S)
        if leaving.is_alive() or dist.is_initialized():
            raise UnfinishedError(
                f"{self._name(self.group.rank)} can't leave its process group: restart its worker"
                + (f"; before that: {error}" if error else "")
            ) from error


def _tear_down(failed: bool) -> None:  # noqa: FBT001  the only argument of a thread's function
    world = dist.group.WORLD
    if failed and world is not None:
        # Gloo has nothing to abort on some versions; destroying is what has to work.
        with contextlib.suppress(RuntimeError):
            world.abort()
    dist.destroy_process_group()


def _process(pid: int) -> tuple[str, str]:
    """The kernel's letter for what a process does, and when it was born; both `""` without one."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], fields[19]
    except (OSError, IndexError):
        return "", ""
