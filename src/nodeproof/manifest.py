"""What a run has to contain: the shipped list of checks, generated from the suites.

A plan that names fewer checks than this list, for its profile and its devices, is no accept. The
list is data, so that a controller without pytest and torch can hold a verdict against it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from nodeproof.model import About, Capability, Cause, Device, DeviceKind, Profile, Remedy

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One check as the manifest knows it."""

    id: str
    kinds: tuple[DeviceKind, ...]
    profiles: frozenset[Profile]
    capability: Capability | None  # CUDA compute capability below which it does not apply
    trial: bool
    cause: Cause
    load: Mapping[Profile, float]  # seconds; empty where the check asks for none
    limits: Mapping[str, Any]  # name to default
    about: About
    suite: str  # file of the suite, for the reader

    @property
    def component(self) -> str:
        """First word of the id."""
        return self.id.partition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The checks of one version of the suites, by id."""

    digest: str
    entries: Mapping[str, Entry]

    def required(self, profile: Profile, device: Device) -> dict[str, float]:
        """Checks that this device needs, with the seconds of load each must show."""
        return {
            entry.id: entry.load.get(profile, 0.0)
            for entry in self.entries.values()
            if device.kind in entry.kinds
            and profile in entry.profiles
            and device.has(entry.capability)
            and not entry.trial
        }


def parse(text: str) -> Manifest:
    """Read a manifest. Raises `ValueError`, `KeyError` or `TypeError` for one that is not whole."""
    data = json.loads(text, object_pairs_hook=_once)
    if data["schema"] != SCHEMA:
        msg = f"manifest schema {data['schema']!r} is not {SCHEMA}"
        raise ValueError(msg)
    if not isinstance(data["checks"], dict):
        msg = "the checks of a manifest are an object"
        raise TypeError(msg)
    entries = {
        name: Entry(
            id=name,
            kinds=tuple(DeviceKind(k) for k in _some(c["kinds"])),
            profiles=frozenset(Profile(p) for p in _some(c["profiles"])),
            capability=_capability(c["capability"]),
            trial=_flag(c["trial"]),
            cause=Cause(c["cause"]),
            load=_load(c["load"]),
            limits=c["limits"],
            about=About(title=c["title"], why=c["why"], remedy=Remedy(c["remedy"])),
            suite=c["suite"],
        )
        for name, c in data["checks"].items()
    }
    if not entries:
        msg = "a manifest without checks would accept anything"
        raise ValueError(msg)
    return Manifest(digest=digest_of(text.encode()), entries=entries)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        msg = "a key is said twice"
        raise ValueError(msg)
    return found


def _some(value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        msg = f"{value!r} names nothing, so that nobody would miss the check"
        raise ValueError(msg)
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        msg = f"{value!r} is neither true nor false"
        raise TypeError(msg)
    return value


def _capability(value: Any) -> Capability | None:
    match value:
        case None:
            return None
        case [int(major), int(minor)]:
            return major, minor
    msg = f"{value!r} is no compute capability: two whole numbers, or null"
    raise ValueError(msg)


def _load(value: Any) -> dict[Profile, float]:
    load = {Profile(p): float(s) for p, s in value.items()}
    if load and set(load) != set(Profile):
        msg = "a load is given for every profile or for none"
        raise ValueError(msg)
    if not all(math.isfinite(s) and s >= 0 for s in load.values()):
        msg = f"{value!r} is no load in seconds"
        raise ValueError(msg)
    return load


def digest_of(data: bytes) -> str:
    """`sha256:` and the hexadecimal digest."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


@cache
def shipped() -> Manifest:
    """Return the manifest that came with this version."""
    return parse(resources.files("nodeproof").joinpath("catalog", "manifest.json").read_text())


@cache
def suite_digest() -> str:
    """One digest over all of our Python files, by name and content: which code did the judging."""
    root = resources.files("nodeproof")
    whole = hashlib.sha256()

    def take(folder: Any, path: str) -> None:
        for entry in sorted(folder.iterdir(), key=lambda e: str(e.name)):
            name = f"{path}/{entry.name}"
            if entry.is_dir() and entry.name != "__pycache__":
                take(entry, name)
            elif entry.name.endswith((".py", ".toml", ".json")):
                whole.update(f"{name}\0{len(entry.read_bytes())}\0".encode() + entry.read_bytes())

    take(root, "nodeproof")
    return "sha256:" + whole.hexdigest()
