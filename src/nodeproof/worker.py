"""The process on the other side of the pipe: it does the work of one device, and nothing else.

Started by `nodeproof.child` as `python -P -m nodeproof.worker`. It reads requests as JSON lines
from standard input and writes JSON lines to a descriptor of its own, so that what libraries print
on standard output cannot be taken for an answer. A thread sends a heartbeat; when standard input
closes or the parent dies, the worker ends.

    in   {"id": 1, "call": "package.module:function", "args": {...}, "context": {...}}
    out  {"beat": 17}
         {"id": 1, "progress": {...}}
         {"id": 1, "result": {...}}    or    {"id": 1, "error": {"type", "message", "cause", "trace"}}
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodeproof import lifeline

BEAT_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A worker's place among the workers that do one thing together."""

    rank: int
    size: int
    store: str  # a file that exists for this meeting alone, or tcp://HOST:PORT/MEETING
    labels: tuple[str, ...]  # of the devices, by rank
    host: str = ""  # the node of this rank, where ranks are of several


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a work function knows besides its arguments.

    `torch_device` is "cuda:0" (the worker sees its own GPU only) or "cpu"; "" where the work has
    no compute device. `seed` differs from run to run and is in the plan, so that any run can be
    replayed. `progress` sends a small mapping to the live view; `telemetry` one sample for the
    results file; `event` something that happened.
    """

    device_kind: str
    device_id: str
    device_label: str
    torch_device: str
    threads: int
    peers: int  # devices under test at the same time, this one included
    profile: str
    seed: int
    host_root: Path
    group: Group | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)  # what the device says of itself
    send: Callable[[str, Mapping[str, Any]], None] = field(repr=False, default=lambda _k, _v: None)

    def progress(self, **what: float | str) -> None:
        """Tell the live view how far the work is."""
        self.send("progress", what)

    def telemetry(self, **sample: Any) -> None:
        """Record one sample of the device's state."""
        self.send("telemetry", sample)

    def event(self, name: str, **what: Any) -> None:
        """Record that something happened."""
        self.send("event", {"name": name, **what})


class _Pipe:
    """Whole lines from several threads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, message: Mapping[str, Any]) -> None:
        # allow_nan=False: what is no number may not travel as one.
        line = json.dumps(message, allow_nan=False).encode() + b"\n"
        with self._lock:
            while line:
                line = line[os.write(self._descriptor, line) :]


def _first_to_die(parent: int) -> None:
    """Be the process that the kernel takes when memory runs out, and never outlive the parent."""
    # Raising one's own score needs no privilege; a sandbox may still refuse.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    if not lifeline.end_with(parent, signal.SIGKILL):
        sys.exit(1)


def _beat(pipe: _Pipe) -> None:
    count = 0
    pause = threading.Event()
    supervisor = Path("/proc", os.environ.get("NODEPROOF_SUPERVISOR", "self"))
    while True:
        if not supervisor.exists():  # the whole run is to end with it, even past a frozen parent
            os._exit(1)
        try:
            pipe.send({"beat": count})
        except OSError:  # the parent is gone or has closed the pipe
            os._exit(1)
        count += 1
        pause.wait(BEAT_S)


def _context(data: dict[str, Any], send: Callable[[str, Mapping[str, Any]], None]) -> Context:
    group = data.pop("group", None)
    if group is not None:
        group = Group(**{**group, "labels": tuple(group["labels"])})
    host_root = Path(data.pop("host_root"))
    return Context(**data, host_root=host_root, group=group, send=send)


def _answer(request: dict[str, Any], pipe: _Pipe) -> dict[str, Any]:
    number = request["id"]
    module, _, name = request["call"].partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
        context = _context(
            request["context"], lambda kind, what: pipe.send({"id": number, kind: dict(what)})
        )
        result = function(context, **request["args"])
        if not isinstance(result, dict):
            raise TypeError(f"{request['call']} returned {type(result).__name__}, not a dict")
        json.dumps(result, allow_nan=False)
    except Exception as error:  # noqa: BLE001  whatever went wrong, the parent has to hear of it
        return {
            "id": number,
            "error": {
                "type": type(error).__name__,
                "message": str(error) or type(error).__name__,
                "cause": str(getattr(error, "cause", "environment")),
                "trace": traceback.format_exc()[-4000:],
            },
        }
    return {"id": number, "result": result}


def main() -> None:
    """Serve requests until standard input ends."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(descriptor, False)  # noqa: FBT003  what the work starts may not answer for it
    _first_to_die(parent)
    pipe = _Pipe(descriptor)
    threading.Thread(target=_beat, args=(pipe,), daemon=True).start()
    for line in sys.stdin:
        pipe.send(_answer(json.loads(line), pipe))
    # Not sys.exit: threads and destructors of a wedged driver could keep the process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
