"""A run of every shipped check that nothing speaks against, to be spoiled by tests of the verdict."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

from nodeproof.manifest import Entry, shipped
from nodeproof.model import (
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
)
from nodeproof.results import End, Plan, assemble, parse, plain
from nodeproof.verdict import WITHHELD, Verdict, decide
from tests.results_samples import BOOT, Run, device

Lines = list[dict[str, Any]]
PROFILE = Profile.GATE
NODE = Device(kind=DeviceKind.NODE, id="node-a17", label="node-a17")
HOST = Device(kind=DeviceKind.HOST, id="node-a17", label="node-a17")
MEMORY, BURNIN = "device.memory.pattern", "device.burnin.throughput"


def accepted(devices: int = 2, kind: DeviceKind = DeviceKind.GPU) -> Run:
    """Every shipped check of a profile, measured, proved and passed on each of its devices."""
    everything = (*(device(n, kind) for n in range(devices)), NODE, HOST)
    pairs = [
        (entry, on)
        for entry in shipped().entries.values()
        for on in everything
        if on.kind in entry.kinds and PROFILE in entry.profiles and on.has(entry.capability)
    ]
    tested = [*((entry.id, on) for entry, on in pairs), (WITHHELD, NODE)]
    plan = Plan(
        run_id="20260301T031200-4f2a",
        nonce="n0nce",
        profile=PROFILE,
        rehearsal=kind is DeviceKind.CPU,
        version="0.1.0",
        suite_digest="sha256:" + "ab" * 32,
        manifest_digest=shipped().digest,
        spec={"name": "h100-sxm", "digest": "sha256:" + "cd" * 32, "source": "shipped"},
        node={"name": NODE.id, "uid": "0d9f8c1b", "boot_id": BOOT, "kernel": "6.8.0"},
        devices=everything,
        expected_devices=devices,
        checks=tuple(
            Planned(key=_key(e.id, d), required=not e.trial, trial=e.trial, loaded_s=_load(e))
            for e, d in pairs
        ),
        selftests=tuple(_key(c, d) for c, d in tested),
        about={e.id: e.about for e, _ in pairs},
        waivers=(),
        seed=7,
        deadline_s=480.0,
        started="2026-03-01T03:12:00.125+00:00",
    )
    return Run(
        plan=plan,
        findings=tuple(_passing(e, d) for e, d in pairs),
        selftests=tuple(
            SelfTest(check=c, device=d, caught=True, planted=[{"row": 3}], reported=[{"row": 3}])
            for c, d in tested
        ),
        telemetry=({"device": device(0, kind).id, "t": 1.25, "power_w": 640.5},),
        events=({"name": "worker.started", "device": device(0, kind).id},),
        end=End(boot_id=BOOT, ended="2026-03-01T03:18:42.500+00:00", interrupted=""),
    )


def lines_of(run: Run) -> Lines:
    """The records of its results file, as the real writer leaves them."""
    return [json.loads(line) for line in run.data().splitlines()]


def records_of(run: Run) -> Lines:
    """The same without a file: what the writer would write, for tests that judge many runs."""
    kinds = {
        "plan": [{"schema": 1, **plain(run.plan)}] if run.plan else [],
        "telemetry": run.telemetry,
        "event": run.events,
        "finding": run.findings,
        "selftest": run.selftests,
        "end": [run.end] if run.end else [],
    }
    rows = [{"type": kind, "seq": 0, **plain(row)} for kind, many in kinds.items() for row in many]
    return renumbered(json.loads(json.dumps(rows)))


def bytes_of(lines: Lines) -> bytes:
    """A results file of these records, as they stand."""
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def renumbered(lines: Lines) -> Lines:
    """The same records with `seq` as a careful forger leaves it."""
    return [line | {"seq": number} for number, line in enumerate(lines)]


def changed(lines: Lines, change: Callable[[Lines], object]) -> Lines:
    """A copy with one change."""
    mine = copy.deepcopy(lines)
    change(mine)
    return mine


def judged(data: bytes | Lines) -> Verdict:
    """Read and decide as a gate does, by the shipped manifest."""
    found = parse(data) if isinstance(data, bytes) else assemble(data)
    return decide(found, shipped())


def decided(run: Run) -> Verdict:
    """Decide on a run as its results file shows it."""
    return judged(records_of(run))


def places(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Return the path of every value inside a record, containers included, except the record's own."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for name, part in list(inside):
        yield (*at, name)
        if isinstance(part, dict | list):
            yield from places(part, (*at, name))


def put(record: Any, at: tuple[str | int, ...], value: Any) -> None:
    """Set the value at a path."""
    *way, last = at
    for step in way:
        record = record[step]
    record[last] = value


def take(record: Any, at: tuple[str | int, ...]) -> None:
    """Remove what is at a path."""
    *way, last = at
    for step in way:
        record = record[step]
    del record[last]


def at(record: Any, path: tuple[str | int, ...]) -> Any:
    """Return the value at a path."""
    for step in path:
        record = record[step]
    return record


def _key(check: str, on: Device) -> Key:
    return Key(check=check, kind=on.kind, device=on.id)


def _load(entry: Entry) -> float:
    return entry.load.get(PROFILE, 0.0)


def _passing(entry: Entry, on: Device) -> Finding:
    return Finding(
        check=entry.id,
        device=on,
        outcome=Outcome.PASS,
        measurements=(
            Measurement(name="wrong", value=0, unit="words", at_least=0, at_most=0),
            Measurement(name="seen", value=1.5, detail="for people"),
        ),
        evidence={"seed": 7},
        loaded_s=_load(entry) + 0.8,
        duration_s=2.5,
    )


GPU = device(1)
RUN = accepted()
WRONG = Measurement(name="wrong", value=4, unit="words", at_most=0)
BAD = {
    "outcome": Outcome.FAIL,
    "cause": Cause.HARDWARE,
    "remedy": Remedy.REPLACE,
    "summary": str(WRONG),
    "measurements": (WRONG,),
}


def failed(check: str = MEMORY, label: str = "gpu1", **changes: Any) -> Run:
    """The same run with one check that failed for the hardware."""
    return RUN.refind(check, label, **{**BAD, **changes})


def retest(run: Run, check: str, on: Device, **changes: Any) -> Run:
    """The same run with one self-test different."""
    tests = [
        dataclasses.replace(t, **changes) if (t.check, t.device) == (check, on) else t
        for t in run.selftests
    ]
    return run.but(selftests=tuple(tests))


def without(run: Run, check: str, on: Device = GPU) -> Run:
    """The same run with one finding lost."""
    return run.but(findings=tuple(f for f in run.findings if (f.check, f.device) != (check, on)))
