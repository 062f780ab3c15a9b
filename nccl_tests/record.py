"""What nodes did together, written down by the one that led them: one JSON document, `fabric.json`.

Everything that a group is judged by stands in it, so that the judging can be repeated. It is read
strictly: what isn't whole is no record, and nothing is judged by it. What the record doesn't hold,
because it wasn't done or didn't come back, is `null` there with a sentence in `said`; and so it is
read where the answer of one rank contradicts itself.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from nodeproof.nccl_tests.bandwidth import Collective
from nodeproof.nccl_tests.rank_answers import Asked, UnbelievableError, believe
from nodeproof.results import plain

SCHEMA = 1
LINK = "|"  # between the names of a link's ends
DEVICES = ("cpu", "cuda")
WHOLE = "group"  # id of the whole, which no member may have

_Row = TypeVar("_Row")
_UNSAID = "nobody says why"
_NAME = re.compile(r"[A-Za-z0-9._:#-]{1,253}")
_SMALL = (Collective.ALL_REDUCE,)  # what is done to see who comes late


class RecordError(ValueError):
    """A record that can't be used. One sentence that says which file and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What was undertaken together."""

    nodes: int  # that should take part
    device: str  # "cpu" (a rehearsal) or "cuda"
    launcher: str
    bytes: int  # the largest size, of each rank's buffer
    seed: int
    head: str  # HOST:PORT
    head_name: str
    boot_id: str
    boot_id_end: str
    started: str
    ended: str
    interrupted: str  # why it stopped early, "" if it did not
    known: tuple[str, ...]  # said to be good before, members or not
    ratio: float  # of the reference, from which a pair passed while the rounds were chosen
    floor_gbs: float  # the least reference then
    loopback: bool  # a node alone, made to send to itself over its network devices
    join_timeout_s: float
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One node of the group, or the place of one that never came."""

    id: str
    rank: int
    came: bool
    lost: str  # why it is not there, or not any more; "" if it stayed to the end
    lost_after_s: float | None
    boot_id: str
    boot_id_end: str
    address: str
    instance_type: str
    devices: tuple[Mapping[str, Any], ...]  # kind, id, label, facts
    software: Mapping[str, Any]

    @property
    def stayed(self) -> bool:
        """Whether it came and was there to the end."""
        return self.came and not self.lost

    @property
    def labels(self) -> tuple[str, ...]:
        """Its devices by label, in their order."""
        return tuple(str(device["label"]) for device in self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """What one rank answered when all worked together."""

    rank: int
    member: str
    device: str  # label
    answer: Mapping[str, Any] | None
    said: str  # why there is no answer

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.member} {self.device})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """Two members, or one rail of each, on their own."""

    round: int  # of a rail: its number
    a: str
    b: str
    gbs: float | None  # None: it did not finish
    wrong: int  # elements
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record as read from its file."""

    digest: str
    version: str  # of what wrote it
    group: Group
    members: tuple[Member, ...]  # by rank
    planted: tuple[Rank, ...]
    whole: tuple[Rank, ...]
    small: tuple[Rank, ...]  # the same in small all-reduces
    pairs: tuple[Exchanged, ...]
    rails: tuple[Exchanged, ...]
    traffic: Mapping[str, Mapping[str, Any]]  # by member: before, after, said
    nccl: Mapping[str, Mapping[str, Any]]  # by member: texts, said

    @property
    def came(self) -> tuple[Member, ...]:
        """The members that took part, if only for a while."""
        return tuple(member for member in self.members if member.came)

    def member(self, name: str) -> Member:
        """The member of that id. Raises `KeyError`."""
        return next((m for m in self.members if m.id == name), None) or _missing(name)


def load(path: Path) -> Record:
    """Read a record. Raises `RecordError` for a file that is none, or not whole."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordError(f"record {path}: {error.strerror}") from None
    try:
        return parse(data)
    except RecordError as error:
        raise RecordError(f"record {path}: {error}") from None


def parse(data: bytes) -> Record:
    """Read the content of a record. Raises `RecordError`."""
    try:
        document = json.loads(data, parse_constant=_no_number, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not JSON, or cut short: {error}") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if type(schema) is not int or schema != SCHEMA:
        raise RecordError(f"its schema is {schema!r}, this version reads {SCHEMA}")
    try:
        record = _record(document, "sha256:" + hashlib.sha256(data).hexdigest())
    except KeyError as error:
        raise RecordError(f"it does not say {error}") from None
    except (TypeError, ValueError) as error:
        raise RecordError(str(error)) from None
    _agree(record)
    return record


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Write a record whole, or leave the file as it was. Raises `OSError`.

    Nothing is refused: what isn't whole is told by who reads it, and is no accept.
    """
    text = json.dumps(plain(document), indent=1, allow_nan=False) + "\n"
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(text, "utf-8")
    fresh.replace(path)  # a reader sees a whole file or none


def _record(document: Mapping[str, Any], digest: str) -> Record:
    members = _rows(document, "members", _member)
    group = _group(_table(document, "group"))
    every = tuple(Collective)
    return Record(
        digest=digest,
        version=_text(document, "version"),
        group=group,
        members=tuple(sorted(members, key=lambda member: member.rank)),
        planted=_ranks(document, "planted", group, every),
        whole=_ranks(document, "whole", group, every, least_bytes=group.bytes),
        small=_ranks(document, "small", group, _SMALL),
        pairs=_rows(document, "pairs", lambda row: _exchanged(row, "round")),
        rails=_rows(document, "rails", lambda row: _exchanged(row, "rail")),
        traffic=_by_member(_table(document, "traffic"), _moved),
        nccl=_by_member(_table(document, "nccl"), _logged),
    )


def _group(data: Mapping[str, Any]) -> Group:
    device = _text(data, "device")
    if device not in DEVICES:
        raise ValueError(f"its device is {device!r}, and there are {' and '.join(DEVICES)}")
    return Group(
        nodes=_whole(data, "nodes", least=1),
        device=device,
        launcher=_text(data, "launcher"),
        bytes=_whole(data, "bytes", least=1),
        seed=_whole(data, "seed"),
        head=_text(data, "head"),
        head_name=_text(data, "head_name"),
        boot_id=_text(data, "boot_id"),
        boot_id_end=_text(data, "boot_id_end"),
        started=_text(data, "started"),
        ended=_text(data, "ended"),
        interrupted=_text(data, "interrupted"),
        known=_texts(data, "known"),
        ratio=_number(data, "ratio"),
        floor_gbs=_number(data, "floor_gbs"),
        loopback=_flag(data, "loopback") and _whole(data, "nodes") == 1,
        join_timeout_s=_number(data, "join_timeout_s"),
        timeout_s=_number(data, "timeout_s"),
    )


def _member(data: Mapping[str, Any]) -> Member:
    name = _text(data, "id")
    came, lost = _flag(data, "came"), _text(data, "lost")
    nameless = not came and name == f"rank {_whole(data, 'rank')}"
    if not (_NAME.fullmatch(name) or nameless) or name == WHOLE:
        raise ValueError(f"{name!r:.300} is no name of a member")
    after = None if data["lost_after_s"] is None else _number(data, "lost_after_s")
    return Member(
        id=name,
        rank=_whole(data, "rank"),
        came=came,
        lost=lost or ("" if came else "it never came"),
        lost_after_s=after,
        boot_id=_text(data, "boot_id"),
        boot_id_end=_text(data, "boot_id_end"),
        address=_text(data, "address"),
        instance_type=_text(data, "instance_type"),
        devices=_rows(data, "devices", _device),
        software=_table(data, "software"),
    )


def _device(data: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in ("kind", "id", "label"):
        if not _text(data, name):
            raise ValueError(f"a device without {name}")
    _table(data, "facts")
    return data


def _ranks(
    document: Mapping[str, Any],
    part: str,
    group: Group,
    collectives: tuple[Collective, ...],
    *,
    least_bytes: int = 0,
) -> tuple[Rank, ...]:
    ranks = _rows(_table(document, part), "ranks", _rank)
    asked = Asked(
        device=group.device,
        ranks=len(ranks),
        collectives=collectives,
        least_bytes=least_bytes,
        planted=part == "planted",
    )
    return tuple(_believed(rank, asked) for rank in ranks)


def _believed(rank: Rank, asked: Asked) -> Rank:
    """Return the rank as it is, or without its answer where that contradicts itself."""
    try:
        if rank.answer is not None:
            believe(rank.answer, asked)
    except UnbelievableError as error:
        said = f"what it answered is not to be believed: {error}"
        return dataclasses.replace(rank, answer=None, said=said)
    return rank


def _rank(data: Mapping[str, Any]) -> Rank:
    answer, said = data["answer"], _text(data, "said")
    rank = Rank(
        rank=_whole(data, "rank"),
        member=_text(data, "member"),
        device=_text(data, "device"),
        answer=None if answer is None else _table(data, "answer"),
        said=said or (_UNSAID if answer is None else ""),
    )
    if rank.answer is not None and rank.said:
        raise ValueError(f"{rank} has both an answer and why there is none: {said}")
    return rank


def _exchanged(data: Mapping[str, Any], number: str) -> Exchanged:
    gbs, said = data["gbs"], _text(data, "said")
    row = Exchanged(
        round=_whole(data, number, least=1 if number == "round" else 0),
        a=_text(data, "a"),
        b=_text(data, "b"),
        gbs=None if gbs is None else _number(data, "gbs"),
        wrong=_whole(data, "wrong"),
        said=said or (_UNSAID if gbs is None else ""),
    )
    if row.a == row.b:
        raise ValueError(f"{row.a} is a pair with itself")
    return row


def _moved(data: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in ("before", "after"):
        if data[name] is not None:
            _table(data, name)
    _text(data, "said")
    return data


def _logged(data: Mapping[str, Any]) -> Mapping[str, Any]:
    _texts(data, "texts")
    _text(data, "said")
    return data


def _agree(record: Record) -> None:
    """Raise `RecordError` where one part of a record speaks against another."""
    names, nodes = [m.id for m in record.members], record.group.nodes
    if len(names) != nodes:
        raise RecordError(f"it names {len(names)} members of a group of {nodes}")
    if doubled := _doubled(names):
        raise RecordError(f"it names {doubled} twice")
    if [m.rank for m in record.members] != list(range(nodes)):
        raise RecordError(f"its members are not of the ranks 0 to {nodes - 1}, each once")
    for member in record.members:
        if doubled := _doubled(member.labels):
            raise RecordError(f"{member.id} has the device {doubled} twice")
        # The other way round it is a rehearsal with GPUs in it, which proves nothing of them.
        if record.group.device == "cuda" and any(d["kind"] != "gpu" for d in member.devices):
            raise RecordError(f"{member.id} has devices that are no GPUs, in a group of GPUs")
    for ranks in (record.planted, record.whole, record.small):
        _ranks_agree(record, ranks)
    for rows in (record.pairs, record.rails):
        if doubled := _doubled([f"{r.round} of {' and '.join(sorted((r.a, r.b)))}" for r in rows]):
            raise RecordError(f"it has number {doubled} twice")
        _known({name for row in rows for name in (row.a, row.b)}, names)
    _known({*record.traffic, *record.nccl}, names)


def _ranks_agree(record: Record, ranks: Sequence[Rank]) -> None:
    places = {(m.id, label) for m in record.members for label in m.labels}
    if doubled := _doubled([r.rank for r in ranks]):
        raise RecordError(f"it has the rank {doubled} twice")
    if doubled := _doubled([f"{r.member} {r.device}" for r in ranks]):
        raise RecordError(f"{doubled} has two ranks")
    if strange := next((r for r in ranks if (r.member, r.device) not in places), None):
        raise RecordError(f"{strange} is of no device of its members")


def _known(named: set[str], names: list[str]) -> None:
    if strange := sorted(named - set(names)):
        raise RecordError(f"{strange[0]} is no member")


def _doubled(names: Sequence[Any]) -> str:
    return next((str(name) for name, times in Counter(names).items() if times > 1), "")


def _missing(name: str) -> Member:
    raise KeyError(name)


def _rows(
    data: Mapping[str, Any], name: str, read: Callable[[Mapping[str, Any]], _Row]
) -> tuple[_Row, ...]:
    rows = data[name]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TypeError(f"{name} is no list of objects")
    return tuple(read(row) for row in rows)


def _by_member(
    data: Mapping[str, Any], read: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    return {name: read(_table(data, name)) for name in data}


def _table(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if not isinstance(data[name], dict):
        raise TypeError(f"{name} is {data[name]!r:.80}, no object")
    table: Mapping[str, Any] = data[name]
    return table


def _text(data: Mapping[str, Any], name: str) -> str:
    if not isinstance(data[name], str):
        raise TypeError(f"{name} is {data[name]!r:.80}, no text")
    return str(data[name])


def _texts(data: Mapping[str, Any], name: str) -> tuple[str, ...]:
    if not isinstance(data[name], list) or not all(isinstance(text, str) for text in data[name]):
        raise TypeError(f"{name} is {data[name]!r:.80}, no list of texts")
    return tuple(data[name])


def _flag(data: Mapping[str, Any], name: str) -> bool:
    if not isinstance(data[name], bool):
        raise TypeError(f"{name} is {data[name]!r:.80}, neither true nor false")
    return bool(data[name])


def _whole(data: Mapping[str, Any], name: str, *, least: int = 0) -> int:
    value = data[name]
    if type(value) is not int or value < least:
        raise ValueError(f"{name} is {value!r:.80}, no whole number of {least} or more")
    return value


def _number(data: Mapping[str, Any], name: str) -> float:
    value = data[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r:.80}, no number")
    if not 0 <= value < 1e15 or not math.isfinite(value):
        raise ValueError(f"{name} is {value!r:.80}, no number of 0 or more")
    return float(value)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is said twice")
    return found


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")
