"""Run work in one process per device, and outlive whatever becomes of it.

A driver can hang a process so that no signal reaches it, the kernel can kill it for its memory, a
bug can make it print nonsense. None of that may hang or lose the verdict, so nothing that touches
a device runs in this process: a `Pool` starts a worker (`nodeproof.worker`) per device, gives all
of them their work at once, and returns for each an `Answer`, what it `Raised`, or how it was
`Lost`. Deadlines are kept here, on this side of the pipe.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from pathlib import Path
from typing import Any

from nodeproof import autopsy

GRACE_S = 10.0  # between SIGTERM and SIGKILL
REAP_S = 5.0  # after SIGKILL; what is still there then cannot be killed
STOPPED_S = 5.0  # silence of a process that the kernel shows as stopped
SILENCE_S = 45.0  # silence of any other; loading CUDA's libraries can hold the interpreter for long
LINE_LIMIT = 8 * 1024 * 1024  # bytes of one message
_TOPICS = frozenset({"progress", "telemetry", "event"})
_TICK_S = 0.1
_STALL_S = 2.0  # a tick that took this long was a pause of ours, not a silence of theirs


class Interrupted(KeyboardInterrupt):
    """The run was told to stop. Raised between two messages, never in the middle of a line."""


class Loss(StrEnum):
    """How a worker was lost."""

    DIED = "died"
    SILENT = "went silent"
    DEADLINE = "ran past its deadline"
    RUBBISH = "sent what is no message"
    NOT_STARTED = "could not be started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The work returned. `silence_s` is the longest time in which its worker was not heard."""

    result: Mapping[str, Any]
    silence_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """The work raised an exception; the worker lives."""

    type: str
    message: str
    cause: str
    trace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """There is no worker any more, or none that answers."""

    how: Loss
    text: str  # one sentence: what happened and what the kernel shows
    stuck: bool = False  # SIGKILL did not end it: only a reboot will


Reply = Answer | Raised | Lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One piece of work: `package.module:function`, its arguments, its context (plain JSON)."""

    call: str
    args: Mapping[str, Any]
    context: Mapping[str, Any]


class _Phase(Enum):
    LIVE = auto()
    TERMINATED = auto()
    KILLED = auto()
    GONE = auto()


@dataclass(slots=True, kw_only=True)
class _Pending:
    number: int
    ends: float | None  # None: runs beside the others until the pool closes
    loss: Lost | None = None  # decided, but the process is still being ended


@dataclass(slots=True)
class _Worker:
    name: str
    environment: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    pipe: int = -1
    buffer: bytearray = field(default_factory=bytearray)
    heard: float = 0.0
    silence: float = 0.0  # the longest since the call in progress began
    phase: _Phase = _Phase.GONE
    phase_ends: float = 0.0
    pending: _Pending | None = None
    oom_kills: int = 0
    stuck: str = ""
    step: str = ""  # what the work last said it was at

    @property
    def pid(self) -> int:
        return self.process.pid if self.process else 0

    @property
    def at(self) -> str:
        return f" while {self.step}" if self.step else ""

    @property
    def who(self) -> str:
        return f"worker {self.name} (process {self.pid})"


Listener = Callable[[str, str, Mapping[str, Any]], None]  # worker, kind of message, content


class Pool:
    """The workers of one run, by name.

    `ends` is the monotonic time at which the whole run has to be over: no call outlives it.
    `listen` gets every progress, telemetry and event message as it comes.
    """

    def __init__(self, *, ends: float, logs: Path, listen: Listener) -> None:
        self.ends = ends
        self._logs = logs
        self._listen = listen
        self._workers: dict[str, _Worker] = {}
        self._selector = selectors.DefaultSelector()
        self._replies: dict[str, Reply] = {}
        self._count = 0
        self._ticked = time.monotonic()
        self._stop = ""
        self._closing = False

    def interrupt(self, reason: str) -> None:
        """Make the call in progress, or the next one, raise `Interrupted`. For signal handlers."""
        self._stop = self._stop or reason

    def retire(self, names: Iterable[str]) -> None:
        """End these workers; each is started anew by its next call."""
        going = [self._workers[n] for n in names if self._workers[n].phase is _Phase.LIVE]
        for worker in going:
            self._terminate(worker, 1.0)
        while any(w.phase is not _Phase.GONE for w in going):
            self._tick(wait=0.02)

    def add(self, name: str, environment: Mapping[str, str] | None = None) -> None:
        """Declare a worker. It is started by its first call, and again after it was lost."""
        if name in self._workers:
            raise ValueError(f"there is a worker {name!r} already")
        log = self._logs / f"worker-{name}.log"
        self._workers[name] = _Worker(name, {**os.environ, **(environment or {})}, log)

    def pid(self, name: str) -> int:
        """Process id of a live worker, 0 without one."""
        worker = self._workers[name]
        return worker.pid if worker.phase is _Phase.LIVE else 0

    def run(self, calls: Mapping[str, Call], *, deadline_s: float) -> dict[str, Reply]:
        """Do `calls`, all at once, and return what became of each within `deadline_s` seconds.

        A worker that is lost takes nobody with it. One that cannot be killed is abandoned after
        `GRACE_S + REAP_S` more and can't be called again.
        """
        ends = min(time.monotonic() + deadline_s, self.ends)
        self._replies.clear()
        for name, call in calls.items():
            lost = self._give(self._workers[name], call, ends)
            if lost:
                self._replies[name] = lost
        self._ticked = time.monotonic()
        while any(name not in self._replies for name in calls):
            self._tick()
        return {name: self._replies.pop(name) for name in calls}

    def beside(self, name: str, call: Call) -> Lost | None:
        """Start work that goes on beside all other calls until the pool closes."""
        return self._give(self._workers[name], call, None)

    def poll(self) -> None:
        """Take in what has come meanwhile; never blocks for longer than a tick."""
        self._ticked = time.monotonic()
        self._tick(wait=0.0)

    def close(self, *, grace_s: float = GRACE_S) -> list[str]:
        """End every worker; return a sentence for each that would not go."""
        self._closing = True
        for worker in self._workers.values():
            if worker.phase is _Phase.LIVE:
                worker.pending = None
                self._terminate(worker, grace_s)
        ends = time.monotonic() + grace_s + REAP_S + 1
        while time.monotonic() < ends and any(
            w.phase is not _Phase.GONE for w in self._workers.values()
        ):
            self._tick(wait=0.02)
        self._selector.close()
        for worker in self._workers.values():
            if worker.process:
                worker.process.poll()  # one that was stuck may have gone since
        return [w.stuck for w in self._workers.values() if w.stuck]

    # --- starting ---------------------------------------------------------------------------

    def _give(self, worker: _Worker, call: Call, ends: float | None) -> Lost | None:
        if worker.stuck:
            return Lost(how=Loss.NOT_STARTED, text=worker.stuck, stuck=True)
        if worker.phase is _Phase.LIVE and self._dead(worker):
            self._bury(worker)
        if worker.phase is _Phase.GONE:
            try:
                self._start(worker)
            except OSError as error:
                return Lost(how=Loss.NOT_STARTED, text=f"no worker process: {error}")
        assert worker.process is not None
        assert worker.process.stdin is not None
        self._count += 1
        worker.oom_kills = autopsy.oom_kill_count()
        worker.heard = time.monotonic()
        worker.pending = _Pending(number=self._count, ends=ends)
        worker.step = ""
        worker.silence = 0.0
        request = {
            "id": self._count,
            "call": call.call,
            "args": dict(call.args),
            "context": dict(call.context),
        }
        # One that died just now is noticed, with its cause, by the next tick.
        with contextlib.suppress(BrokenPipeError):
            worker.process.stdin.write(json.dumps(request, allow_nan=False).encode() + b"\n")
            worker.process.stdin.flush()
        return None

    def _start(self, worker: _Worker) -> None:
        ours, theirs = os.pipe()
        try:
            with worker.log.open("ab") as log:
                worker.process = subprocess.Popen(
                    [
                        sys.executable,
                        "-P",
                        "-m",
                        "nodeproof.worker",
                        str(theirs),
                        str(os.getpid()),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    pass_fds=(theirs,),
                    start_new_session=True,  # a group of its own, so that it can be killed whole
                    env=dict(worker.environment),
                )
        except OSError:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        os.set_blocking(ours, False)
        worker.pipe, worker.buffer, worker.phase = ours, bytearray(), _Phase.LIVE
        self._selector.register(ours, selectors.EVENT_READ, worker)

    # --- listening --------------------------------------------------------------------------

    def _tick(self, wait: float = _TICK_S) -> None:
        if self._stop and not self._closing:
            raise Interrupted(self._stop)
        for key, _ in self._selector.select(wait):
            self._read(key.data)
        now = time.monotonic()
        if now - self._ticked > _STALL_S:  # this process was held up, so nobody was heard
            for worker in self._workers.values():
                worker.heard += now - self._ticked
        self._ticked = now
        for worker in self._workers.values():
            self._watch(worker, now)

    def _read(self, worker: _Worker) -> None:
        try:
            data = os.read(worker.pipe, 1 << 20)
        except BlockingIOError:
            return
        if not data:  # the write end is closed: the process is ending, _watch says how
            self._close(worker)
            return
        now = time.monotonic()
        worker.silence, worker.heard = max(worker.silence, now - worker.heard), now
        worker.buffer += data
        *lines, rest = worker.buffer.split(b"\n")
        worker.buffer = rest
        if len(rest) > LINE_LIMIT:
            lines, worker.buffer = [*lines, rest], bytearray()
        for line in lines:
            if worker.pending is None or worker.pending.loss:
                continue  # nothing is expected of it, or it has been given up
            reply = self._message(worker, worker.pending, bytes(line))
            if isinstance(reply, Lost):
                self._lose(worker, reply)
            elif reply is not None:
                self._settle(worker, reply)

    def _message(self, worker: _Worker, pending: _Pending, line: bytes) -> Reply | None:
        try:
            match json.loads(line):
                case {"beat": int()}:
                    return None
                case {"id": pending.number, "result": dict(result)}:
                    return Answer(result=result, silence_s=worker.silence)
                case {
                    "id": pending.number,
                    "error": {
                        "type": str(kind),
                        "message": str(message),
                        "cause": str(cause),
                        "trace": str(trace),
                    },
                }:
                    return Raised(type=kind, message=message, cause=cause, trace=trace)
                case {"id": pending.number, **rest} if len(rest) == 1:
                    ((topic, content),) = rest.items()
                    if topic in _TOPICS and isinstance(content, dict):
                        worker.step = str(content.get("step", worker.step))
                        self._listen(worker.name, str(topic), content)
                        return None
        except (ValueError, RecursionError):
            pass
        shown = line[:80].decode("utf-8", "backslashreplace")
        return Lost(
            how=Loss.RUBBISH,
            text=f"{worker.who} sent what is no message: {shown!r}",
        )

    # --- watching and ending ----------------------------------------------------------------

    def _watch(self, worker: _Worker, now: float) -> None:
        if worker.phase is _Phase.GONE:
            return
        if self._dead(worker):
            self._bury(worker)
        elif worker.phase is _Phase.LIVE:
            self._overdue(worker, now)
        elif now >= worker.phase_ends:
            if worker.phase is _Phase.TERMINATED:
                _signal(worker.pid, signal.SIGKILL)
                worker.phase, worker.phase_ends = _Phase.KILLED, now + REAP_S
            else:
                self._abandon(worker)

    def _overdue(self, worker: _Worker, now: float) -> None:
        pending = worker.pending
        if pending is None:
            return
        if pending.ends is not None and now >= pending.ends:
            whose = "the run's" if pending.ends >= self.ends else "its"
            text = f"{worker.who} ran past {whose} deadline{worker.at}"
            hint = "; give the run more time (--deadline)" if pending.ends >= self.ends else ""
            text = f"{text}; {autopsy.shown(worker.pid)}{hint}"
            self._lose(worker, Lost(how=Loss.DEADLINE, text=text))
            return
        silence = now - worker.heard
        if silence < STOPPED_S:
            return
        state = autopsy.state(worker.pid)
        if silence >= SILENCE_S or state in {"T", "t"}:
            text = f"{worker.who} was silent for {silence:.0f} s{worker.at}"
            self._lose(worker, Lost(how=Loss.SILENT, text=f"{text}; {autopsy.shown(worker.pid)}"))

    def _lose(self, worker: _Worker, loss: Lost) -> None:
        if worker.pending:
            worker.pending.loss = loss
        self._terminate(worker, GRACE_S)

    def _terminate(self, worker: _Worker, grace_s: float) -> None:
        _signal(worker.pid, signal.SIGTERM)
        _signal(worker.pid, signal.SIGCONT)  # a stopped process takes SIGTERM only when it goes on
        worker.phase, worker.phase_ends = _Phase.TERMINATED, time.monotonic() + grace_s

    def _dead(self, worker: _Worker) -> bool:
        # Without reaping: as long as the leader is a zombie, its group's number is its own.
        if worker.process is None or worker.process.returncode is not None:
            return True
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, worker.pid, options) is not None

    def _settle(self, worker: _Worker, reply: Reply) -> None:
        pending, worker.pending = worker.pending, None
        if pending and pending.ends is not None:
            self._replies[worker.name] = reply
            return
        text = reply.text if isinstance(reply, Lost) else f"worker {worker.name} ended its work"
        self._listen(worker.name, "event", {"name": "worker.lost", "text": text})

    def _close(self, worker: _Worker) -> None:
        if worker.process and worker.process.stdin:
            with contextlib.suppress(BrokenPipeError):
                worker.process.stdin.close()
        if worker.pipe >= 0:
            self._selector.unregister(worker.pipe)
            os.close(worker.pipe)
            worker.pipe = -1

    def _bury(self, worker: _Worker) -> None:
        assert worker.process is not None
        _signal(worker.pid, signal.SIGKILL)  # whoever it left in its group
        code = worker.process.wait()
        if worker.pipe >= 0:
            self._read(worker)  # it may have answered and died after; a pipe holds less than a read
        self._close(worker)
        worker.phase = _Phase.GONE
        if worker.pending:
            loss = worker.pending.loss or Lost(
                how=Loss.DIED,
                text=autopsy.death(worker.who, code, oom_kills=worker.oom_kills, log=worker.log),
            )
            self._settle(worker, loss)

    def _abandon(self, worker: _Worker) -> None:
        worker.stuck = (
            f"{worker.who} cannot be killed: reboot the node; {autopsy.shown(worker.pid)}"
        )
        self._close(worker)
        worker.phase = _Phase.GONE
        if worker.pending:
            before = worker.pending.loss
            how = before.how if before else Loss.SILENT
            first = f"{before.text}; then " if before else ""
            self._settle(worker, Lost(how=how, text=first + worker.stuck, stuck=True))


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
