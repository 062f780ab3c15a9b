"""The records of a results file, line by line: what each kind holds, and how it is read back.

Foreign text is read here: every field has to be there and of its type, or the record is none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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


def text(value: Any) -> str:
    """Return text, and raise `TypeError` for anything else."""
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
        id=text(data["id"]),
        label=text(data["label"]),
        facts=_table(data["facts"]),
    )


def _key(data: Mapping[str, Any]) -> Key:
    return Key(
        check=text(data["check"]), kind=DeviceKind(data["kind"]), device=text(data["device"])
    )


def plan_from(data: Mapping[str, Any]) -> Plan:
    """Read a plan. Raises `KeyError`, `TypeError` or `ValueError` for a record that is none."""
    if type(data["schema"]) is not int or data["schema"] != SCHEMA:
        msg = f"schema {data['schema']!r} is not the schema {SCHEMA} that this version reads"
        raise ValueError(msg)
    expected = data["expected_devices"]
    return Plan(
        run_id=text(data["run_id"]),
        nonce=text(data["nonce"]),
        profile=Profile(data["profile"]),
        rehearsal=_flag(data["rehearsal"]),
        version=text(data["version"]),
        suite_digest=text(data["suite_digest"]),
        manifest_digest=text(data["manifest_digest"]),
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
            text(name): About(
                title=text(a["title"]), why=text(a["why"]), remedy=Remedy(a["remedy"])
            )
            for name, a in _table(data["about"]).items()
        },
        waivers=tuple(
            Waiver(
                check=text(w["check"]),
                device=text(w["device"]),
                reason=text(w["reason"]),
                expires=text(w["expires"]),
            )
            for w in _list(data["waivers"])
        ),
        seed=_whole(data["seed"]),
        deadline_s=_number(data["deadline_s"]),
        started=text(data["started"]),
    )


def finding_from(data: Mapping[str, Any]) -> Finding:
    """Read a finding. Raises `KeyError`, `TypeError` or `ValueError` for a record that is none."""
    cause = data["cause"]
    return Finding(
        check=text(data["check"]),
        device=device_from(data["device"]),
        outcome=Outcome(data["outcome"]),
        cause=None if cause is None else Cause(cause),
        remedy=Remedy(data["remedy"]),
        summary=text(data["summary"]),
        measurements=tuple(_measurement(m) for m in _list(data["measurements"])),
        evidence=_table(data["evidence"]),
        loaded_s=_number(data["loaded_s"]),
        duration_s=_number(data["duration_s"]),
        attempts=tuple(
            Attempt(
                outcome=Outcome(a["outcome"]), cause=Cause(a["cause"]), summary=text(a["summary"])
            )
            for a in _list(data["attempts"])
        ),
    )


def _measurement(data: Mapping[str, Any]) -> Measurement:
    cause, remedy = data["cause"], data["remedy"]
    return Measurement(
        name=text(data["name"]),
        value=_number(data["value"]),
        unit=text(data["unit"]),
        at_least=_bound(data["at_least"]),
        at_most=_bound(data["at_most"]),
        cause=None if cause is None else Cause(cause),
        remedy=None if remedy is None else Remedy(remedy),
        detail=text(data["detail"]),
    )


def selftest_from(data: Mapping[str, Any]) -> SelfTest:
    """Read a self-test. Raises `KeyError`, `TypeError` or `ValueError` for a record that is none."""
    return SelfTest(
        check=text(data["check"]),
        device=device_from(data["device"]),
        caught=_flag(data["caught"]),
        planted=data["planted"],
        reported=data["reported"],
        summary=text(data["summary"]),
    )


def end_from(data: Mapping[str, Any]) -> End:
    """Read the end of a run. Raises `KeyError`, `TypeError` or `ValueError` for a record that is none."""
    return End(
        boot_id=text(data["boot_id"]),
        ended=text(data["ended"]),
        interrupted=text(data["interrupted"]),
    )
