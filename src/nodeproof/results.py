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

from nodeproof.model import Finding, SelfTest
from nodeproof.records import (
    SCHEMA,
    End,
    Plan,
    device_from,
    end_from,
    finding_from,
    plan_from,
    selftest_from,
    text,
)

__all__ = [
    "FILE",
    "SCHEMA",
    "End",
    "Plan",
    "Results",
    "Writer",
    "assemble",
    "device_from",
    "now",
    "parse",
    "plain",
    "read",
]

FILE = "results.jsonl"
_LOSABLE = frozenset({"telemetry", "event"})  # what a full disk may cost without costing the run


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
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
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

    def content(self) -> bytes:
        """Return what was written, from the file itself: the path may lead elsewhere by now."""
        data = b""
        while part := os.pread(self._descriptor, 1 << 20, len(data)):
            data += part
        return data

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
            kind, seq = text(record["type"]), record["seq"]
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
                self.plan = self.plan or plan_from(record)
            case "finding":
                self.findings.append(finding_from(record))
            case "selftest":
                self.selftests.append(selftest_from(record))
            case "telemetry":
                self.telemetry.append(record)
            case "event":
                self.events.append(record)
            case "end":
                self.end = self.end or end_from(record)
            case _:
                self._fault(f"unknown type {kind!r}")

    def _fault(self, text: str) -> None:
        self.problems.append(f"line {self.count}: {text}")

    def results(self) -> Results:
        """Close the reading and say what is missing altogether."""
        if self.count == 0 and not self.problems:
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
