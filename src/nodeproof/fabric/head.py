"""Who is there, and what they answer: the head's side of every connection.

Nobody is waited for longer than a deadline, and whoever is missing, refused, silent or gone is
kept by name with the reason. The store in which ranks meet runs in a worker of the head's own, so
that it outlives any rank.
"""

from __future__ import annotations

import contextlib
import hmac
import selectors
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodeproof import __version__
from nodeproof.child import GRACE_S, REAP_S, Call, Interrupted, Pool
from nodeproof.fabric import foreign
from nodeproof.fabric.crew import NODE
from nodeproof.fabric.foreign import Done, Leaving, Ready
from nodeproof.fabric.patience import Patience, silent
from nodeproof.fabric.wire import BEAT_S, HELLO_LIMIT, LINE_LIMIT, SILENT_S, GoneError, Line

_STORE = "store"
_STORE_S = 60.0  # for loading torch
_READY_S = 240.0  # for finding its devices and loading torch on a node that has just come up
_MARGIN_S = GRACE_S + REAP_S + 5.0  # a member ends its workers before it answers
_LAST_S = 2.0  # for what was on its way when its launcher ended
_END_S = 20.0  # for taking the files
_STRANGERS = 64  # connections that have not said who they are
_TICK_S = 0.1
_HELD_S = 4.0  # between two beats of our own


@dataclass(slots=True, kw_only=True)
class Member:
    """One node of the group, as the head knows it."""

    rank: int
    name: str
    came: bool = False
    line: Line | None = None  # while it is there
    hello: Mapping[str, Any] = field(default_factory=dict)
    ready: Ready | None = None
    boot_id: str = ""  # last told
    trouble: list[str] = field(default_factory=list)
    trouble_after_s: float | None = None

    @property
    def there(self) -> bool:
        """Whether it can be asked."""
        return self.line is not None and self.ready is not None

    @property
    def labels(self) -> list[str]:
        """Labels of its devices, by rank."""
        return [str(row["label"]) for row in self.devices]

    @property
    def devices(self) -> list[dict[str, Any]]:
        """Its devices, none before it is ready."""
        return self.ready.devices if self.ready else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What one member is asked: calls by the name of its worker."""

    calls: Mapping[str, Mapping[str, Any]]


Replies = dict[int, dict[str, dict[str, Any]]]  # by rank and worker: `answer`, or why not in `said`


class Head:
    """Listens for the members of a group and has them do things.

    Raises `OSError` where the port can't be listened on. `interrupt` (for signal handlers) makes
    whatever goes on raise `Interrupted`.
    """

    def __init__(
        self,
        *,
        nodes: int,
        port: int,
        token: str,
        names: Sequence[str],
        seconds: float,
        provider: str = "",
    ) -> None:
        self._begun = time.monotonic()
        self.ends = self._begun + seconds
        self._token = token
        self._provider = provider
        self.members = [
            Member(rank=rank, name=names[rank] if names else f"rank {rank}")
            for rank in range(nodes)
        ]
        self._named = bool(names)
        self._listening = _listening(port)
        self.port = int(self._listening.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ, None)
        self._strangers: list[Line] = []
        self._refusals: dict[int, str] = {}  # by rank, the last
        self._beaten = 0.0
        self._stop = ""
        self._number = 0
        self._replies: Replies = {}
        self.events: list[dict[str, Any]] = []
        self._scratch = tempfile.TemporaryDirectory(prefix="nodeproof-")
        self._pool = Pool(ends=self.ends, logs=Path(self._scratch.name), listen=self._of_store)
        self._pool.add(_STORE)
        self.store_port = 0
        self._store_lost = ""

    def interrupt(self, reason: str) -> None:
        """Make what goes on, or what comes next, raise `Interrupted`."""
        self._stop = self._stop or reason

    def open_store(self) -> None:
        """Start the store for meetings. Raises `RuntimeError` where it does not come up."""
        context = {
            **dict.fromkeys(("device_kind", "device_id", "device_label", "torch_device"), ""),
            "threads": 1,
            "peers": 1,
            "profile": "quick",
            "seed": 0,
            "host_root": "/",
        }
        call = Call(call="nodeproof.nccl_tests.stores:serve", args={}, context=context)
        lost = self._pool.beside(_STORE, call)
        ends = time.monotonic() + _STORE_S
        while not self.store_port:
            self.pump()
            self._store_lost = self._store_lost or (lost.text if lost else "")
            if self._store_lost or time.monotonic() > ends:
                raise RuntimeError(
                    f"the store for meetings did not come up: {self._store_lost or 'no answer'}"
                )

    def gather(
        self,
        *,
        join_s: float,
        over: Callable[[], str] = lambda: "",
        whose: int | None = None,
        progress: Callable[[str], None] = lambda _text: None,
    ) -> None:
        """Wait until every member is ready, but not for ever; who is missing has its trouble told.

        `over` says how the process has ended that starts the member `whose`, or all of them if that
        is `None`; "" while it has not. Nobody is waited for whom nobody will start. `progress` hears
        now and then who is waited for.
        """
        waiting = Patience(progress, "nodes to come", limit_s=join_s)
        ends, ended = min(time.monotonic() + join_s, self.ends), ""
        while time.monotonic() < ends and not all(m.came for m in self.members):
            self.pump()
            waiting([m.name for m in self.members if not m.came])
            if not ended and (ended := over()) and whose is None:
                ends = min(ends, time.monotonic() + _LAST_S)
        for member in self.members:
            if not member.came:
                why = f"never came within {join_s:g} s"
                if ended and whose in {None, member.rank}:
                    why = f"never came: {ended}"
                elif not self._refusals.get(member.rank):
                    why += self._look_there(member)
                refused = self._refusals.get(member.rank, "")
                self._blame(member, f"{member.name} {why}{refused}")
        waiting = Patience(progress, "nodes to find their devices", limit_s=_READY_S)
        ends = min(time.monotonic() + _READY_S, self.ends)
        while time.monotonic() < ends and any(m.line and m.ready is None for m in self.members):
            self.pump()
            waiting([m.name for m in self.members if m.line and m.ready is None])
        for member in self.members:
            if member.line and member.ready is None:
                self._blame(member, f"{member.name} came and did not get ready")
                self._drop(member)

    def _look_there(self, member: Member) -> str:
        """What an operator can look at where nobody was heard of at all."""
        of = "a node" if member.name == f"rank {member.rank}" else member.name
        return (
            f"; on {of} that is to be rank {member.rank}, see whether its pod or process runs (or is "
            "pending), whether the name of the head resolves there, and whether a firewall or "
            f"security group lets it through to port {self.port}"
        )

    def ask(
        self,
        asks: Mapping[int, Ask],
        *,
        seed: int,
        deadline_s: float,
        waiting: Callable[[Sequence[str]], None] = silent,
    ) -> Replies:
        """Have members do things, all at once; every one asked is in what is returned.

        `waiting` hears again and again who has not answered. Raises `Interrupted`.
        """
        self._number += 1
        self._replies = {}
        for rank, ask in asks.items():
            member = self.members[rank]
            if not member.there:
                self._forsake(member, ask)
                continue
            request = {"id": self._number, "seed": seed, "deadline_s": deadline_s}
            self._tell(member, {"do": {**request, "calls": ask.calls}})
        ends = time.monotonic() + deadline_s + _MARGIN_S
        while missing := [rank for rank in asks if rank not in self._replies]:
            for rank in missing:
                member = self.members[rank]
                if member.there and time.monotonic() > ends:
                    self._blame(member, f"{member.name} did not answer in {deadline_s:g} s")
                    self._drop(member)
                if not member.there:
                    self._forsake(member, asks[rank])
            self.pump()
            waiting([self.members[rank].name for rank in missing])
        return self._replies

    def leave_alone(self, seconds: float) -> None:
        """Tell the members that nothing will be heard for a while."""
        for member in self.members:
            self._tell(member, {"wait": seconds})

    def end(self, files: Mapping[str, str]) -> None:
        """Tell every member that is left the end, with the files of the run.

        Who has them closes the connection. If it were closed from here, what a member has said
        meanwhile and nobody read would reset it, and the files with it.
        """
        for member in self.members:
            self._tell(member, {"end": {"files": dict(files)}})
        ends = time.monotonic() + _END_S
        self._stop, self.ends = "", ends + 1.0  # what is told now is short, and must be told
        with contextlib.suppress(Interrupted):
            while any(m.line for m in self.members) and time.monotonic() < ends:
                self.pump()

    def close(self) -> None:
        """Close every connection and end the store."""
        for member in self.members:
            self._drop(member)
        for stranger in list(self._strangers):
            self._dismiss(stranger)
        self._selector.close()
        self._listening.close()
        self._pool.close(grace_s=0.5)
        self._scratch.cleanup()

    def pump(self) -> None:
        """Hear and say what there is to be heard and said, for a tick. Raises `Interrupted`."""
        if self._stop:
            raise Interrupted(self._stop)
        if time.monotonic() > self.ends:
            raise Interrupted("ended: it ran past its deadline")
        self._pool.poll()
        for key, _ in self._selector.select(_TICK_S):
            if key.data is None:
                self._welcome_strangers()
            else:
                self._attend(key.data)
        self._beat()
        if self._store_lost and self.store_port:
            raise Interrupted(f"ended: the store for meetings was lost: {self._store_lost}")

    def _attend(self, peer: Member | Line) -> None:
        """Hear one peer out; whatever is wrong with what it says costs it alone."""
        try:
            if isinstance(peer, Member):
                self._hear(peer)
            else:
                self._meet(peer)
        except Exception as error:  # noqa: BLE001  foreign data, and others' measurements at stake
            why = f"said what is no answer: {type(error).__name__}: {error}"
            if isinstance(peer, Member):
                self._lose(peer, why[: foreign.WORDS])
            elif peer in self._strangers:
                self._dismiss(peer)

    # --- strangers -------------------------------------------------------------------------

    def _welcome_strangers(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listening.accept()
            if len(self._strangers) >= _STRANGERS:
                self._dismiss(self._strangers[0])
            stranger = Line(connection, limit=HELLO_LIMIT)
            self._strangers.append(stranger)
            self._selector.register(stranger, selectors.EVENT_READ, stranger)

    def _meet(self, stranger: Line) -> None:
        try:
            messages = stranger.receive()
        except GoneError:
            self._dismiss(stranger)
            return
        if not messages:
            return
        match messages[0]:
            case {"hello": {"rank": int(rank), "nodes": int(), "name": str()} as hello}:
                pass
            case _:
                self._dismiss(stranger)
                return
        refused = self._refused(rank, hello)
        if refused:
            text = f"{hello['name']!r:.80} from {stranger.peer}: {refused}"
            self.events.append({"name": "member.refused", "text": text})
            self._refusals[rank] = f"; refused was {text}"
            with contextlib.suppress(GoneError):
                stranger.send({"refused": refused})
            self._dismiss(stranger)
            return
        self._strangers.remove(stranger)
        self._selector.modify(stranger, selectors.EVENT_READ, self.members[rank])
        self._admit(self.members[rank], stranger, hello)

    def _refused(self, rank: int, hello: Mapping[str, Any]) -> str:
        """Why somebody is not let in, `""` if he is."""
        nodes, name = len(self.members), hello["name"]
        word = str(hello.get("token", "")).encode("utf-8", "surrogatepass")
        if not hmac.compare_digest(word, self._token.encode("utf-8", "surrogateescape")):
            return "it does not know the group's word (NODEPROOF_FABRIC_TOKEN)"
        if hello.get("version") != __version__:
            return f"it is nodeproof {hello.get('version')}, the head {__version__}: use one image"
        if hello["nodes"] != nodes or not 0 <= rank < nodes:
            return f"it is rank {rank} of {hello['nodes']}, the head expects {nodes}"
        try:
            foreign.name_of(name)
        except ValueError as error:
            return str(error)
        if self.members[rank].came:
            return f"rank {rank} is here already, as {self.members[rank].name}"
        if self._named and name != self.members[rank].name:
            return f"rank {rank} has to be {self.members[rank].name}"
        if any(other.came and other.name == name for other in self.members):
            return (
                f"{name} is here already under another rank: one member a node; on one machine give "
                "each a --node-name of its own"
            )
        return ""

    def _admit(self, member: Member, line: Line, hello: Mapping[str, Any]) -> None:
        line.limit = LINE_LIMIT
        member.name, member.came = str(hello["name"]), True
        member.line = line
        member.hello = {
            key: str(hello.get(key, ""))[: foreign.WORDS]
            for key in ("boot_id", "address", "instance_type")
        }
        member.boot_id = member.hello["boot_id"]
        left, alone = self.ends - time.monotonic(), len(self.members) == 1
        self._tell(
            member, {"welcome": {"deadline_s": left, "provider": self._provider, "alone": alone}}
        )

    def _dismiss(self, stranger: Line) -> None:
        self._strangers.remove(stranger)
        self._selector.unregister(stranger)
        stranger.close()

    # --- members ---------------------------------------------------------------------------

    def _tell(self, member: Member, message: Mapping[str, Any]) -> None:
        if member.line is None:
            return
        try:
            member.line.send(message)
        except GoneError as error:
            self._lose(member, f"went away: {error}")

    def _hear(self, member: Member) -> None:
        assert member.line is not None
        try:
            messages = member.line.receive()
        except GoneError as error:
            self._lose(member, f"went away: {error}")
            return
        for message in messages:
            match foreign.read(message):
                case Ready() as ready:
                    if member.ready is not None:
                        raise ValueError("it got ready twice")
                    member.ready = ready
                case Leaving(why=why):
                    self._lose(member, f"takes no part: {why}")
                    return
                case Done() as done:
                    self._take(member, done)

    def _take(self, member: Member, done: Done) -> None:
        if done.number != self._number or member.rank in self._replies:
            return  # too late: it was given up
        member.boot_id = done.boot_id
        self._replies[member.rank] = done.replies
        for death in done.deaths:
            self._blame(member, f"{member.name}: {death}")
        for name, reply in done.replies.items():
            if name != NODE and "said" in reply and reply["type"] != foreign.TOGETHER:
                self._blame(member, f"{member.name}: {name}: {reply['said']}")

    def _beat(self) -> None:
        now = time.monotonic()
        if now - self._beaten < BEAT_S:
            return
        # This process may have been held up: then nobody was heard, through no fault of theirs.
        held = now - self._beaten > _HELD_S and self._beaten > 0
        self._beaten = now
        for member in self.members:
            if member.line is None:
                continue
            if held:
                member.line.heard = now
            self._tell(member, {"beat": 1})
            if member.line is not None and member.line.silence() > SILENT_S:
                self._lose(member, f"was silent for {member.line.silence():.0f} s")

    def _lose(self, member: Member, why: str) -> None:
        self._blame(member, f"{member.name} {why}")
        self._drop(member)

    def _blame(self, member: Member, why: str) -> None:
        if member.trouble_after_s is None:
            member.trouble_after_s = round(time.monotonic() - self._begun, 3)
        if len(member.trouble) < foreign.MOST:
            member.trouble.append(why)

    def _drop(self, member: Member) -> None:
        if member.line is not None:
            self._selector.unregister(member.line)
            member.line.close()
            member.line = None

    def _forsake(self, member: Member, ask: Ask) -> None:
        why = member.trouble[-1] if member.trouble else f"{member.name} is not there"
        self._replies[member.rank] = {name: {"said": why} for name in ask.calls}

    def _of_store(self, _worker: str, kind: str, content: Mapping[str, Any]) -> None:
        if kind == "progress" and "port" in content:
            self.store_port = int(content["port"])
        elif kind == "event":
            self._store_lost = str(content.get("text", "it ended"))


def _listening(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # a kernel that has it switched off
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
