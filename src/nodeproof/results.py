"""The results file: everything a run leaves behind, one JSON object a line, flushed as it comes.

The schema is published in `docs/results.schema.json`. Every line has its `type` and a running
`seq`, so that a line that is deleted or doubled shows. The reader never raises for what a file
says or fails to say: it lists `problems`, and the verdict makes of any problem an undecided.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from nodeproof.model import (
    About,
    Attempt,
    Cause,
    Device,
    DeviceKind,
    Finding,
    Key,
    Measurement,
    Outcome,
    Planned,
    Profile,
    Remedy,
    SelfTest,
    Waiver,
)

SCHEMA = 1
FILE = "results.jsonl"
_LOSABLE = frozenset({"telemetry", "event"})  # what a full disk may cost without costing the run


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Line 1: what the run undertook, on what, and what it was told."""

    run_id: str
    nonce: str
    profile: Profile
    rehearsal: bool
    version: str
    suite_digest: str
    manifest_digest: str
    spec: Mapping[str, Any]  # name, digest, source
    node: Mapping[str, Any]  # name, uid, boot_id, instance_type, kernel, driver, cuda, nccl, torch
    devices: tuple[Device, ...]
    expected_devices: int | None
    checks: tuple[Planned, ...]
    selftests: tuple[Key, ...]
    about: Mapping[str, About]
    waivers: tuple[Waiver, ...]
    seed: int
    deadline_s: float
    started: str


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The last line. `interrupted` says why a run stopped early, `""` if it did not."""

    boot_id: str
    ended: str
    interrupted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """A results file as far as it could be read."""

    plan: Plan | None
    findings: tuple[Finding, ...] = ()
    selftests: tuple[SelfTest, ...] = ()
    telemetry: tuple[Mapping[str, Any], ...] = ()
    events: tuple[Mapping[str, Any], ...] = ()
    end: End | None = None
    problems: tuple[str, ...] = field(default=())


def now() -> str:
    """UTC in ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def plain(value: object) -> Any:
    """Turn dataclasses, enums, paths and tuples into what JSON can hold.

    What is no finite number becomes its name in text: it stays visible and can't be judged.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return str(value)


class Writer:
    """Appends lines to a results file and keeps it whole when the disk does not take them.

    Telemetry and events that do not fit are dropped and counted. Any other line that can't be
    written raises `OSError`: a run that can't record its findings has no verdict.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o644)
        self._seq = 0
        self._size = 0
        self.lost = 0

    def write(self, kind: str, content: Mapping[str, Any]) -> None:
        """Append one line of `kind` and flush it."""
        record = {"type": kind, "seq": self._seq}
        # What is written can name neither its kind nor its place.
        record |= {k: v for k, v in plain(content).items() if k not in record}
        line = json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        try:
            written = os.write(self._descriptor, line)
            if written != len(line):
                raise OSError(28, "no space left on device")
            if kind not in _LOSABLE:
                os.fsync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, self._size)  # never leave half a line behind
            if kind in _LOSABLE:
                self.lost += 1
                return
            raise
        self._seq += 1
        self._size += len(line)

    def close(self) -> None:
        """Close the file. The last line was flushed when it was written."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(path: Path) -> Results:
    """Read a results file. Raises `OSError` if it can't be opened, nothing for what is in it."""
    return parse(path.read_bytes())


def parse(data: bytes) -> Results:
    """Read the content of a results file."""
    problems: list[str] = []
    if data and not data.endswith(b"\n"):
        problems.append("the file is cut in the middle of its last line")
    records = list(_records(data.split(b"\n")[:-1], problems))
    return assemble(records, problems)


def assemble(records: Iterable[Mapping[str, Any]], problems: Iterable[str] = ()) -> Results:
    """Build results from records as they stand in a file."""
    reading = _Reading(problems=list(problems))
    for record in records:
        reading.take(record)
    return reading.results()


@dataclass(slots=True, kw_only=True)
class _Reading:
    """Records taken in one by one, with whatever is wrong with them."""

    problems: list[str]
    count: int = 0
    plan: Plan | None = None
    end: End | None = None
    findings: list[Finding] = field(default_factory=list)
    selftests: list[SelfTest] = field(default_factory=list)
    telemetry: list[Mapping[str, Any]] = field(default_factory=list)
    events: list[Mapping[str, Any]] = field(default_factory=list)

    def take(self, record: Mapping[str, Any]) -> None:
        """Read one record."""
        self.count += 1
        try:
            kind, seq = _text(record["type"]), record["seq"]
            if type(seq) is not int or seq != self.count - 1:
                self._fault("a line is missing, doubled or out of place before it")
            if self.end is not None:
                self._fault("stands after the end of the run")
            self._take(kind, record)
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            OverflowError,
            RecursionError,  # from the repr of what is nested too deep
        ) as error:
            self._fault(f"{type(error).__name__}: {error}")

    def _take(self, kind: str, record: Mapping[str, Any]) -> None:
        match kind:
            case "plan":
                if self.plan is not None or self.count != 1:
                    self._fault("a plan that is not the first line")
                self.plan = self.plan or _plan(record)
            case "finding":
                self.findings.append(_finding(record))
            case "selftest":
                self.selftests.append(_selftest(record))
            case "telemetry":
                self.telemetry.append(record)
            case "event":
                self.events.append(record)
            case "end":
                self.end = self.end or _end(record)
            case _:
                self._fault(f"unknown type {kind!r}")

    def _fault(self, text: str) -> None:
        self.problems.append(f"line {self.count}: {text}")

    def results(self) -> Results:
        """Close the reading and say what is missing altogether."""
        if self.count == 0:
            self.problems.append("the file is empty")
        elif self.plan is None:
            self.problems.append(f"no plan line of schema {SCHEMA}")
        if self.end is None:
            self.problems.append("no end line: the run was cut off")
        return Results(
            plan=self.plan,
            findings=tuple(self.findings),
            selftests=tuple(self.selftests),
            telemetry=tuple(self.telemetry),
            events=tuple(self.events),
            end=self.end,
            problems=tuple(self.problems),
        )


def _records(lines: Iterable[bytes], problems: list[str]) -> Iterable[Mapping[str, Any]]:
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line.decode(), parse_constant=_no_number, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            problems.append(f"line {number}: not JSON: {error}")
            continue
        if isinstance(record, dict):
            yield record
        else:
            problems.append(f"line {number}: not a JSON object")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        msg = "a key is said twice"  # readers differ in which of the two they believe
        raise ValueError(msg)
    return found


def _no_number(name: str) -> None:
    msg = f"{name} is no number"
    raise ValueError(msg)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        msg = f"{value!r} is no number"
        raise TypeError(msg)
    if not math.isfinite(value):
        msg = f"{value!r} is not finite"
        raise ValueError(msg)
    return value


def _whole(value: Any) -> int:
    if type(value) is not int:
        msg = f"{value!r} is no whole number"
        raise TypeError(msg)
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        msg = f"{value!r} is no list"
        raise TypeError(msg)
    return value


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        msg = f"{value!r} is no object"
        raise TypeError(msg)
    return value


def _bound(value: Any) -> float | None:
    return None if value is None else _number(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        msg = f"{value!r} is no text"
        raise TypeError(msg)
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        msg = f"{value!r} is neither true nor false"
        raise TypeError(msg)
    return value


def device_from(data: Mapping[str, Any]) -> Device:
    """Read a device back from what `plain` made of it."""
    return Device(
        kind=DeviceKind(data["kind"]),
        id=_text(data["id"]),
        label=_text(data["label"]),
        facts=_table(data["facts"]),
    )


def _key(data: Mapping[str, Any]) -> Key:
    return Key(
        check=_text(data["check"]), kind=DeviceKind(data["kind"]), device=_text(data["device"])
    )


def _plan(data: Mapping[str, Any]) -> Plan:
    if type(data["schema"]) is not int or data["schema"] != SCHEMA:
        msg = f"schema {data['schema']!r} is not the schema {SCHEMA} that this version reads"
        raise ValueError(msg)
    expected = data["expected_devices"]
    return Plan(
        run_id=_text(data["run_id"]),
        nonce=_text(data["nonce"]),
        profile=Profile(data["profile"]),
        rehearsal=_flag(data["rehearsal"]),
        version=_text(data["version"]),
        suite_digest=_text(data["suite_digest"]),
        manifest_digest=_text(data["manifest_digest"]),
        spec=_table(data["spec"]),
        node=_table(data["node"]),
        devices=tuple(device_from(d) for d in _list(data["devices"])),
        expected_devices=None if expected is None else _whole(expected),
        checks=tuple(
            Planned(
                key=_key(c["key"]),
                required=_flag(c["required"]),
                trial=_flag(c["trial"]),
                loaded_s=_number(c["loaded_s"]),
            )
            for c in _list(data["checks"])
        ),
        selftests=tuple(_key(k) for k in _list(data["selftests"])),
        about={
            _text(name): About(
                title=_text(a["title"]), why=_text(a["why"]), remedy=Remedy(a["remedy"])
            )
            for name, a in _table(data["about"]).items()
        },
        waivers=tuple(
            Waiver(
                check=_text(w["check"]),
                device=_text(w["device"]),
                reason=_text(w["reason"]),
                expires=_text(w["expires"]),
            )
            for w in _list(data["waivers"])
        ),
        seed=_whole(data["seed"]),
        deadline_s=_number(data["deadline_s"]),
        started=_text(data["started"]),
    )


def _finding(data: Mapping[str, Any]) -> Finding:
    cause = data["cause"]
    return Finding(
        check=_text(data["check"]),
        device=device_from(data["device"]),
        outcome=Outcome(data["outcome"]),
        cause=None if cause is None else Cause(cause),
        remedy=Remedy(data["remedy"]),
        summary=_text(data["summary"]),
        measurements=tuple(_measurement(m) for m in _list(data["measurements"])),
        evidence=_table(data["evidence"]),
        loaded_s=_number(data["loaded_s"]),
        duration_s=_number(data["duration_s"]),
        attempts=tuple(
            Attempt(
                outcome=Outcome(a["outcome"]), cause=Cause(a["cause"]), summary=_text(a["summary"])
            )
            for a in _list(data["attempts"])
        ),
    )


def _measurement(data: Mapping[str, Any]) -> Measurement:
    cause = data["cause"]
    return Measurement(
        name=_text(data["name"]),
        value=_number(data["value"]),
        unit=_text(data["unit"]),
        at_least=_bound(data["at_least"]),
        at_most=_bound(data["at_most"]),
        cause=None if cause is None else Cause(cause),
        detail=_text(data["detail"]),
    )


def _selftest(data: Mapping[str, Any]) -> SelfTest:
    return SelfTest(
        check=_text(data["check"]),
        device=device_from(data["device"]),
        caught=_flag(data["caught"]),
        planted=data["planted"],
        reported=data["reported"],
        summary=_text(data["summary"]),
    )


def _end(data: Mapping[str, Any]) -> End:
    return End(
        boot_id=_text(data["boot_id"]),
        ended=_text(data["ended"]),
        interrupted=_text(data["interrupted"]),
    )
