"""A recorded node: what the probes answered in one run, in one JSON file that replays.

Only what is read of a node is recorded: work of `nodeproof.probes`. What a device computed can't
be told again, so a recording that claims to hold it is none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodeproof import __version__
from nodeproof.checks import Work
from nodeproof.child import Answer, Loss, Lost, Raised, Reply
from nodeproof.manifest import digest_of
from nodeproof.model import Device, DeviceKind, Profile
from nodeproof.plugin.performing import Done
from nodeproof.results import device_from, now, plain

SCHEMA = 2  # 1 held no answers
READING = "nodeproof.probes."
_COMPUTES = frozenset({"nodeproof.probes.mig:slices"})  # asks the driver, then tests what it lists
FILES = Work(call="nodeproof.probes.record:files", deadline_s=60)
MACHINE = ("boot_id", "instance_type", "kernel")
ENUMERATION = "nodeproof.probes.devices:enumerate_devices"

Place = tuple[str, str]  # kind and id of a device; the machine itself is ("node", "")
Key = tuple[str, str, str, Place]  # call, arguments as declared (JSON), before, device


class RecordingError(ValueError):
    """A recording that can't be used. One sentence that says which file and why."""


def is_reading(call: str) -> bool:
    """Whether a work function reads the node, and computes nothing."""
    return call.startswith(READING) and call not in _COMPUTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A recorded node as read from its file."""

    digest: str
    device: str  # what was recorded: "auto", "cuda" or "cpu"
    cpu_devices: int
    spec: str  # name of the spec under which it was recorded, "" without one
    machine: Mapping[str, str]
    answers: Mapping[Key, Done]

    def answer(self, work: Work, args: Mapping[str, Any], device: Device) -> Done | None:
        """What became of this work on this device when the node was recorded."""
        return self.answers.get(_key(work.call, args, work.before, device))


@dataclass(slots=True, kw_only=True)
class Recorder:
    """Notes what the probes answer while a run goes on."""

    device: str
    cpu_devices: int
    profile: Profile
    spec: Mapping[str, str]
    _answers: dict[Key, dict[str, Any]] = field(default_factory=dict)
    _files: Any = field(default_factory=dict)

    def note(self, work: Work, args: Mapping[str, Any], device: Device, done: Done) -> None:
        """Take in one piece of work that was done; what computes is left out."""
        if work.call == FILES.call:
            self._files = _files_of(done.reply)
        elif is_reading(work.call):
            kind, name = _place(device)
            self._answers[_key(work.call, args, work.before, device)] = {
                "call": work.call,
                "args": plain(args),
                "before": work.before,
                "device": {"kind": kind, "id": name},
                "reply": _reply(done.reply),
                "seconds": done.seconds,
                "samples": plain(done.samples),
                "since": plain(done.since),
            }

    def write(self, path: Path, machine: Mapping[str, Any], *, interrupted: str) -> None:
        """Write the file. Raises `OSError`."""
        document = {
            "schema": SCHEMA,
            "version": __version__,
            "recorded": now(),
            "interrupted": interrupted,
            "options": {
                "device": self.device,
                "cpu_devices": self.cpu_devices,
                "profile": self.profile.value,
                "spec": dict(self.spec),
            },
            "machine": {name: str(machine[name]) for name in MACHINE},
            "answers": [_nameless(answer) for answer in self._answers.values()],
            "files": self._files,
        }
        path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", "utf-8")


def load(path: Path) -> Recording:
    """Read a recording. Raises `RecordingError` for a file that is none, or not whole."""
    try:
        data = path.read_bytes() if path.is_file() else b""
    except OSError as error:
        raise RecordingError(f"recording {path}: {error.strerror}") from None
    if not path.is_file():
        raise RecordingError(f"recording {path}: there is no such file")
    try:
        document = json.loads(data, parse_constant=_no_number, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise RecordingError(f"recording {path}: not JSON, or cut short: {error}") from None
    try:
        return _recording(document, digest_of(data))
    except RecordingError as error:
        raise RecordingError(f"recording {path}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise RecordingError(
            f"recording {path}: not what `nodeproof record` writes: {type(error).__name__}: {error}"
        ) from None


def _recording(document: Any, digest: str) -> Recording:
    schema = document.get("schema") if isinstance(document, dict) else None
    if type(schema) is not int or schema != SCHEMA:
        raise RecordingError(
            f"its schema is {schema!r}, this version replays {SCHEMA}: record the node again"
        )
    options, machine = document["options"], document["machine"]
    answers: dict[Key, Done] = {}
    for row in document["answers"]:
        call, before = _text(row["call"]), _text(row["before"])
        if not is_reading(call):
            raise RecordingError(f"it claims to hold what {call} computed, which no recording does")
        place = (DeviceKind(row["device"]["kind"]).value, _text(row["device"]["id"]))
        key = (call, _arguments(row["args"]), before, place)
        if key in answers:
            raise RecordingError(f"it has two answers to {call} on {place[1] or place[0]}")
        answers[key] = _done(row)
        if call == ENUMERATION:
            _see_devices(answers[key])
    if not answers:
        raise RecordingError("it holds no answer")
    if type(options["cpu_devices"]) is not int:
        raise RecordingError(f"cpu_devices {options['cpu_devices']!r} is no whole number")
    return Recording(
        digest=digest,
        device=_text(options["device"]),
        cpu_devices=options["cpu_devices"],
        spec=_text(options["spec"]["name"]),
        machine={name: _text(machine[name]) for name in MACHINE},
        answers=answers,
    )


def _done(row: Mapping[str, Any]) -> Done:
    samples = row["samples"]
    if not isinstance(samples, list):
        raise TypeError(f"{samples!r} is no list of samples")
    return Done(
        reply=_reply_from(row["reply"]),
        seconds=_seconds(row["seconds"]),
        samples=tuple(_table(sample) for sample in samples),
        since=_table(row["since"]),
    )


def _see_devices(done: Done) -> None:
    """Raise `KeyError`, `TypeError` or `ValueError` for devices that are none."""
    if isinstance(done.reply, Answer):
        for device in done.reply.result["devices"]:
            device_from(device)


def _reply(reply: Reply) -> dict[str, Any]:
    match reply:
        case Answer(result=result, silence_s=silence_s):
            return {"result": plain(result), "silence_s": silence_s}
        case Raised(type=kind, message=message, cause=cause):
            return {"raised": {"type": kind, "message": message, "cause": cause}}
        case Lost(how=how, text=text, stuck=stuck):
            return {"lost": {"how": how.value, "text": text, "stuck": stuck}}


def _reply_from(data: Mapping[str, Any]) -> Reply:
    match data:
        case {"result": dict(result), "silence_s": float() | int() as silence_s, **rest}:
            reply: Reply = Answer(result=result, silence_s=_seconds(silence_s))
        case {"raised": {"type": str(kind), "message": str(said), "cause": str(cause)}, **rest}:
            reply = Raised(type=kind, message=said, cause=cause, trace="")
        case {"lost": {"how": str(how), "text": str(text), "stuck": bool(stuck)}, **rest}:
            reply = Lost(how=Loss(how), text=text, stuck=stuck)
        case _:
            raise ValueError(f"{data!r:.200} is no reply")
    if rest:
        raise ValueError(f"a reply that says {', '.join(rest)} too")
    return reply


def _files_of(reply: Reply) -> dict[str, Any]:
    match reply:
        case Answer(result=result):
            return dict(result["files"])
        case Raised(message=said) | Lost(text=said):
            return {"unreadable": said}


def _place(device: Device) -> Place:
    """Name a device; the machine goes without its name, which is its owner's business."""
    if device.kind in {DeviceKind.NODE, DeviceKind.HOST}:
        return DeviceKind.NODE.value, ""
    return device.kind.value, device.id


def _key(call: str, args: Mapping[str, Any], before: str, device: Device) -> Key:
    return call, _arguments(args), before, _place(device)


def _arguments(args: Mapping[str, Any]) -> str:
    return json.dumps(plain(_table(args)), sort_keys=True)


def _nameless(value: Any) -> Any:
    """Return the same without the host's name where a probe gives it."""
    if isinstance(value, dict):
        return {k: None if k == "hostname" else _nameless(v) for k, v in value.items()}
    return [_nameless(v) for v in value] if isinstance(value, list) else value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _table(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r} is no object")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise ValueError(f"{value!r} is no time in seconds")
    return float(value)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is said twice")
    return found


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")
