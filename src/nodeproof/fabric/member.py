"""The parent of one node in a group: it does what the head asks, in workers of its devices.

It loads neither CUDA nor NCCL, so that no driver can keep it from answering, and it ends when the
head is gone: nobody would hear of what it measured.

    python -P -m nodeproof.fabric.member --head HOST:PORT --rank R --nodes N
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import queue
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from nodeproof import __version__, lifeline
from nodeproof.child import Interrupted
from nodeproof.fabric.crew import Crew, NoDeviceError
from nodeproof.fabric.patience import Patience
from nodeproof.fabric.surroundings import place
from nodeproof.fabric.wire import BEAT_S, SILENT_S, TOKEN, GoneError, Line, address, shown
from nodeproof.probes.boot import boot_id, instance_type
from nodeproof.results import plain

UNDECIDED = 11
_TICK_S = 0.2
_RETRY_S = 0.5
NODE_NAME = "NODEPROOF_NODE_NAME"  # environment: what Kubernetes calls this node


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one member was told."""

    rank: int
    nodes: int
    name: str
    head: tuple[str, int]
    device: str  # auto, cuda or cpu
    cpu_devices: int
    host_root: Path
    join_s: float  # for reaching the head
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """How a member left: with what the head told at the end, or why it has nothing of it."""

    files: Mapping[str, str]  # name to content
    why: str


def take_part(part: Part, say: Callable[[str], None] = lambda _text: None) -> Left:
    """Come to the head, do what it asks, and stay until it has told the end.

    `say` hears now and then that the head is still looked for, and that it was found.
    """
    where = f"the head {shown(*part.head)}"
    looking = Patience(say, f"finding {where}", limit_s=part.join_s)
    try:
        line = _reached(part, looking)
        say(f"{where} was reached; the rest is told at the end")
    except OSError as error:
        why = f"{where} was not reached within {part.join_s:g} s: {error.strerror or error}"
        return Left(files={}, why=f"rank {part.rank} ({part.name}): {why}: {_advice(part, error)}")
    member = _Member(part, line, where)
    try:
        return member.run()
    finally:
        member.close()


class _Member:
    def __init__(self, part: Part, line: Line, where: str) -> None:
        self._part = part
        self._line = line
        self._where = where
        self._heard: queue.Queue[dict[str, Any]] = queue.Queue()
        self._lock = threading.Lock()
        self._crew: Crew | None = None
        self._over = threading.Event()
        self._patience = SILENT_S
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._handlers = {
            number: signal.signal(number, self._stop)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        }

    def run(self) -> Left:
        part = self._part
        self._listener.start()
        self._send(
            {
                "hello": {
                    "rank": part.rank,
                    "nodes": part.nodes,
                    "name": part.name,
                    "token": part.token,
                    "version": __version__,
                    "boot_id": boot_id(part.host_root),
                    "instance_type": instance_type(part.host_root),
                    "address": self._line.own_address,
                    "pid": os.getpid(),
                }
            }
        )
        while True:
            match self._heard.get():
                case {
                    "welcome": {"deadline_s": deadline_s, "provider": str(), "alone": bool()} as w
                }:
                    self._make_ready(float(deadline_s), w["provider"], alone=w["alone"])
                case {"do": {"id": number, "calls": calls, "seed": seed, "deadline_s": seconds}}:
                    self._do(number, calls, seed, seconds)
                case {"wait": seconds}:
                    self._patience = float(seconds)
                case {"end": {"files": files}}:
                    return Left(files=files, why="")
                case {"refused": str(why)}:
                    return Left(files={}, why=f"{self._where} refused {part.name}: {why}")
                case {"gone": str(why)}:
                    return Left(files={}, why=f"{self._where} {why}")
                case {"stopped": str(why)}:
                    self._send({"leaving": why})
                    return Left(files={}, why=f"{part.name} was {why}")
                case other:
                    why = f"said what is no request: {str(other)[:80]}"
                    return Left(files={}, why=f"{self._where} {why}")

    def close(self) -> None:
        """Leave nothing behind: the connection, the workers, the handlers."""
        self._over.set()
        if self._crew:
            self._crew.close()
        self._listener.join(2 * _TICK_S)
        self._line.close()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _make_ready(self, deadline_s: float, provider: str, *, alone: bool) -> None:
        part = self._part
        try:
            self._crew = Crew(
                device=part.device,
                cpu_devices=part.cpu_devices,
                host_root=part.host_root,
                seconds=deadline_s,
                provider=provider,
                alone=alone,
            )
        except (NoDeviceError, ValueError) as error:
            self._send({"unfit": str(error)})
            return
        ready = {
            "devices": [plain(device) for device in self._crew.devices],
            "software": dict(self._crew.software),
        }
        self._send({"ready": ready})

    def _do(self, number: int, calls: dict[str, Any], seed: int, seconds: float) -> None:
        assert self._crew is not None, "asked before it was ready"
        for call in calls.values():
            meeting = call.get("group")
            if meeting is not None:
                # Whoever reached the head under this name reaches the store beside it, too.
                host, _ = self._part.head
                port = meeting.pop("port")
                meeting["store"] = f"tcp://{shown(host, port)}/{meeting['store']}"
                meeting["host"] = self._part.name
        with contextlib.suppress(Interrupted):  # the reason stands in the queue
            deaths = self._crew.deaths()
            done = {
                "id": number,
                "replies": self._crew.do(calls, seed=seed, deadline_s=seconds),
                "deaths": deaths,
                "boot_id": boot_id(self._part.host_root),
            }
            self._send({"done": done})

    # --- the connection --------------------------------------------------------------------

    def _send(self, message: Mapping[str, Any]) -> None:
        with self._lock, contextlib.suppress(GoneError):  # the listener tells of it
            self._line.send(message)

    def _listen(self) -> None:
        beaten = 0.0
        while not self._over.is_set():
            try:
                select.select([self._line], [], [], _TICK_S)
                with self._lock:
                    messages = self._line.receive()
                    if time.monotonic() - beaten > BEAT_S:
                        beaten = time.monotonic()
                        self._line.send({"beat": 1})
                    self._line.flush()
            except GoneError as error:
                self._lost(f"went away: {error}")
                return
            except (OSError, ValueError):  # closed by us
                return
            for message in messages:
                self._heard.put(message)
            if self._line.silence() > self._patience:
                self._lost(f"was silent for {self._line.silence():.0f} s")
                return

    def _lost(self, why: str) -> None:
        self._heard.put({"gone": why})
        self._interrupt(why)

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        why = f"stopped by {signal.Signals(number).name}"
        self._heard.put({"stopped": why})
        self._interrupt(why)

    def _interrupt(self, why: str) -> None:
        if self._crew:
            self._crew.pool.interrupt(why)


def _reached(part: Part, looking: Callable[[Sequence[str]], None]) -> Line:
    """Connect; a head that is not up yet, or not known by name yet, is tried again."""
    ends = time.monotonic() + part.join_s
    while True:
        left = ends - time.monotonic()
        try:
            return Line(socket.create_connection(part.head, timeout=max(0.1, min(5.0, left))))
        except OSError:
            if time.monotonic() + _RETRY_S > ends:
                raise
            looking([shown(*part.head)])
            time.sleep(_RETRY_S)


def _advice(part: Part, error: OSError) -> str:
    """What an operator can look at, by how the last try to reach the head failed."""
    host, port = part.head
    match error:
        case socket.gaierror():
            return (
                f"the name {host} does not resolve on this node: see --head, the DNS, and whether "
                "the pod of rank 0 has been scheduled"
            )
        case ConnectionRefusedError():
            return (
                f"{host} answers, and nothing listens on its port {port}: see whether rank 0 runs "
                "there, and whether it was given the same --head"
            )
    return (
        f"nothing comes back from {host}: see whether it is up, and whether a firewall or security "
        f"group lets this node through to its port {port}"
    )


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare what every member can be told."""
    parser.add_argument(
        "--node-rank", "--rank", dest="rank", type=int, help="of this node; else by the environment"
    )
    parser.add_argument("--nodes", type=int, metavar="N", help="how many there have to be")
    parser.add_argument("--node-name", default="", metavar="NAME", help="default: the host's name")
    parser.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"))
    parser.add_argument("--cpu-devices", type=int, default=1, metavar="K")
    parser.add_argument("--host-root", type=Path, default=Path("/"), metavar="DIR")
    parser.add_argument("--join-timeout", type=float, default=120.0, metavar="SECONDS")


def part_of(args: argparse.Namespace) -> Part:
    """Read what a member was told. Raises `ValueError` with a sentence for the user."""
    found = place(os.environ, rank=args.rank, nodes=args.nodes)
    if args.cpu_devices < 1 or not 0 < args.join_timeout < float("inf"):
        raise ValueError("--cpu-devices and --join-timeout have to be more than 0")
    name = args.node_name or os.environ.get(NODE_NAME) or platform.node() or "node"
    return Part(
        rank=found.rank,
        nodes=found.nodes,
        name=name,
        head=address(args.head),
        device=args.device,
        cpu_devices=args.cpu_devices,
        host_root=args.host_root,
        join_s=args.join_timeout,
        token=os.environ.get(TOKEN, ""),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Take part, and return 0 if the head told the end; its writer says what came of it."""
    parser = argparse.ArgumentParser(prog="nodeproof.fabric.member", description=__doc__)
    parser.add_argument("--head", required=True, metavar="HOST:PORT")
    declare(parser)
    try:
        part = part_of(parser.parse_args(argv))
    except ValueError as error:
        print(f"nodeproof: {error}", file=sys.stderr)
        return 2
    lifeline.adopt_orphans()
    left = take_part(part)
    lifeline.end_children()
    if left.why:
        print(f"nodeproof: {left.why}", file=sys.stderr)
        return UNDECIDED
    return 0


if __name__ == "__main__":
    sys.exit(main())
