"""Do declared work in the workers of the devices, all at once, each piece once per run."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodeproof.checks import Work
from nodeproof.child import Answer, Call, Loss, Lost, Pool, Raised, Reply
from nodeproof.model import COMPUTE, Attempt, Cause, Device, DeviceKind, Outcome
from nodeproof.plugin.options import Options, Target
from nodeproof.plugin.performing import Done, Note

_ANY = "node"  # the worker for what is about no single device
_WATCH = "watch"
_LOOK = "look"  # the worker that goes past the driver
_WAY_OUT = "nodeproof.probes.way_out:look"
_LOOK_S = 30.0
Record = Callable[[str, Mapping[str, Any]], None]


def _unnoted(_work: Work, _args: Mapping[str, Any], _device: Device, _done: Done) -> None:
    pass


@dataclass(slots=True)
class Runner:
    """The workers of a run and what they have done so far."""

    options: Options
    record: Record
    ends: float
    substitutes: dict[str, Any] = field(default_factory=dict)
    note: Note = _unnoted
    devices: tuple[Device, ...] = ()
    pool: Pool = field(init=False)
    _scratch: tempfile.TemporaryDirectory[str] = field(init=False)
    _done: dict[tuple[str, str], Done] = field(default_factory=dict)
    _samples: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)  # of this work
    _first: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _latest: dict[str, dict[str, Any]] = field(default_factory=dict)
    _starts: dict[tuple[str, str], Reply] = field(default_factory=dict)
    _way_out: str | None = None  # what was seen past a driver that hangs
    _meetings: int = 0
    _closed: bool = False
    _started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="nodeproof-")
        self.pool = Pool(ends=self.ends, logs=Path(self._scratch.name), listen=self._listen)
        self.pool.add(_ANY)
        self.pool.add(_WATCH)

    def admit(self, devices: Sequence[Device]) -> None:
        """Take these as the devices under test: a worker for each, a watcher for all."""
        self.devices = tuple(devices)
        for device in devices:
            environment = {"OMP_NUM_THREADS": str(self._threads())}
            if device.kind is DeviceKind.GPU:
                # By UUID, so that the worker sees this GPU and no other, whatever its index.
                environment["CUDA_VISIBLE_DEVICES"] = device.id
                # Read when the worker makes its first product, and not again: without a fixed
                # workspace cuBLAS may sum in another order from run to run.
                environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
            self.pool.add(device.label, environment)

    def watch(self) -> None:
        """Start the telemetry of all devices under test."""
        rows = [
            {"kind": d.kind.value, "id": d.id, "label": d.label, "facts": dict(d.facts)}
            for d in self.devices
        ]
        call = Call(
            call="nodeproof.probes.telemetry:watch",
            args={"devices": rows},
            context=self._context(None),
        )
        lost = self.pool.beside(_WATCH, call) if rows else None
        if lost:
            self.record("event", {"name": "worker.lost", "text": lost.text})

    def note_starts(self, works: Sequence[tuple[Work, Device]]) -> None:
        """Read what work at the end of the run has to know of the start, before anything moves."""
        for call in dict.fromkeys(work.before for work, _ in works if work.before):
            wanted = [(work, device) for work, device in works if work.before == call]
            deadline_s = min(work.deadline_s for work, _ in wanted)
            on = {device.id: device for _, device in wanted}  # node and host are called alike
            calls = {
                self._worker(device): Call(call=call, args={}, context=self._context(device))
                for device in on.values()
            }
            replies = self.pool.run(calls, deadline_s=deadline_s)
            for device in on.values():
                self._starts[call, device.id] = replies[self._worker(device)]

    def perform(
        self, work: Work, args: Mapping[str, Any], devices: Sequence[Device], *, load_s: float
    ) -> dict[str, Done]:
        """Do `work` on all `devices` at once, unless it was done; return what became of it by id."""
        identity = json.dumps(
            [work.call, work.before, work.group, dict(args), load_s], sort_keys=True
        )
        due = [d for d in devices if (identity, d.id) not in self._done]
        if due:
            whole = {**args, "seconds": load_s} if load_s else dict(args)
            given = {n: self.substitutes.get(str(value), value) for n, value in whole.items()}
            for device_id, done in self._perform(work, given, due, load_s).items():
                self._done[identity, device_id] = done
            for device in due:
                self.note(work, whole, device, self._done[identity, device.id])
        return {d.id: self._done[identity, d.id] for d in devices}

    def interrupt(self, reason: str) -> None:
        """Make the work in progress end. For signal handlers."""
        self.pool.interrupt(reason)

    def close(self, *, hurried: bool) -> list[str]:
        """End all workers; return a sentence for each that will not go. May be called again."""
        if self._closed:
            return []
        self._closed = True
        left = self.pool.close(grace_s=1.0 if hurried else 5.0)
        self._scratch.cleanup()
        return left

    def _perform(
        self, work: Work, args: Mapping[str, Any], devices: Sequence[Device], load_s: float
    ) -> dict[str, Done]:
        done = self._once(work, args, devices, load_s)
        lost = {d.id for d in devices if isinstance(done[d.id].reply, Lost)}
        raised = {d.id for d in devices if isinstance(done[d.id].reply, Raised)}
        if not work.group:
            return done
        if lost or raised:
            # After a broken meeting a communicator may be left in any state.
            self.pool.retire([d.label for d in devices])
        if lost and raised:
            # Whoever failed because a partner was lost gets a second try with a new partner; the
            # lost one keeps its loss, whatever its successor does.
            again = self._once(work, args, devices, load_s)
            for device_id in raised:
                first = done[device_id].reply
                assert isinstance(first, Raised)
                attempt = Attempt(
                    outcome=Outcome.ERROR, cause=Cause.ENVIRONMENT, summary=first.message
                )
                done[device_id] = Done(
                    reply=again[device_id].reply,
                    seconds=again[device_id].seconds,
                    samples=again[device_id].samples,
                    since=again[device_id].since,
                    attempts=(attempt,),
                )
        return done

    def _once(
        self, work: Work, args: Mapping[str, Any], devices: Sequence[Device], load_s: float
    ) -> dict[str, Done]:
        calls: dict[str, Call] = {}
        unread: dict[str, Reply] = {}
        self._meetings += 1
        for rank, device in enumerate(devices):
            group = None
            if work.group:
                group = {
                    "rank": rank,
                    "size": len(devices),
                    "store": str(Path(self._scratch.name) / f"meeting-{self._meetings}"),
                    "labels": [d.label for d in devices],
                }
            context = self._context(device, group)
            given = dict(args)
            if work.before:
                start = self._starts.get((work.before, device.id))
                if not isinstance(start, Answer):
                    unread[self._worker(device)] = _unread(start)
                    continue
                given["before"] = dict(start.result)
            calls[self._worker(device)] = Call(call=work.call, args=given, context=context)
        self._samples.clear()
        started = time.monotonic()
        replies = self.pool.run(calls, deadline_s=work.deadline_s + load_s) if calls else {}
        replies = {**self._explained(replies, work), **unread}
        seconds = time.monotonic() - started
        return {
            d.id: Done(
                reply=replies[self._worker(d)],
                seconds=seconds,
                samples=tuple(self._samples.get(d.id, ())),
                since=self._first.get(d.id, {}),
            )
            for d in devices
        }

    def _explained(self, replies: Mapping[str, Reply], work: Work) -> dict[str, Reply]:
        """Say of workers that hang in a driver what the kernel's log and the bus show without it."""
        hung = [
            worker
            for worker, reply in replies.items()
            if isinstance(reply, Lost) and reply.how in {Loss.DEADLINE, Loss.SILENT}
        ]
        if not hung or self.options.target is Target.CPU or work.call == _WAY_OUT:
            return dict(replies)
        if self._way_out is None:
            self._way_out = self._look_past_the_driver()
        return {
            worker: dataclasses.replace(reply, text=f"{reply.text}; {self._way_out}")
            if isinstance(reply, Lost) and worker in hung
            else reply
            for worker, reply in replies.items()
        }

    def _look_past_the_driver(self) -> str:
        self.pool.add(_LOOK)  # a worker of its own: any other may be the one that hangs
        call = Call(call=_WAY_OUT, args={}, context=self._context(None))
        match self.pool.run({_LOOK: call}, deadline_s=_LOOK_S)[_LOOK]:
            case Answer(result=result):
                return str(result["says"])
            case Raised(message=text) | Lost(text=text):
                return f"what the kernel's log and the bus show could not be read: {text}"

    def _worker(self, device: Device) -> str:
        return device.label if device.kind in COMPUTE else _ANY

    def _threads(self) -> int:
        return max(1, len(os.sched_getaffinity(0)) // max(1, len(self.devices)))

    def _context(
        self, device: Device | None, group: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        torch_device = ""
        if device is not None and device.kind in COMPUTE:
            torch_device = "cuda:0" if device.kind is DeviceKind.GPU else "cpu"
        return {
            "device_kind": device.kind.value if device else "",
            "device_id": device.id if device else "",
            "device_label": device.label if device else "",
            "torch_device": torch_device,
            "threads": self._threads(),
            "peers": max(1, len(self.devices)),
            "profile": self.options.profile.value,
            "seed": self.options.seed,
            "host_root": str(self.options.host_root),
            "group": group,
            "facts": dict(device.facts) if device else {},
        }

    def _listen(self, worker: str, kind: str, content: Mapping[str, Any]) -> None:
        heard = time.monotonic()
        clock = {"t": round(heard - self._started, 3)}
        if kind == "progress":  # too many to keep: shown with the next sample of the device
            self._latest.setdefault(worker, {}).update(content)
        elif kind == "telemetry":
            device = str(content.get("device", ""))
            label = next((d.label for d in self.devices if d.id == device), "")
            self._samples.setdefault(device, []).append({**content, "at": heard})
            self._first.setdefault(device, content)
            self.record("telemetry", {**clock, **content, **self._latest.pop(label, {})})
        else:
            device = next((d.id for d in self.devices if d.label == worker), "")
            self.record("event", {**clock, "device": device, **content})


def _unread(start: Reply | None) -> Raised:
    """What becomes of work that has to know of the start of the run, where that was not read."""
    said = "it was not read"
    if isinstance(start, Raised):
        said = start.message
    elif isinstance(start, Lost):
        said = start.text
    return Raised(
        type="CannotMeasure",
        message=f"at the start of the run: {said}",
        cause=Cause.ENVIRONMENT.value,
        trace="",
    )
