"""A node as the gate sees it: what was read of the API object, and no more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from nodeproof.gate.names import BREAKER_OPEN, EFFECT, EVERYTHING_PASSED, Names

_UNINITIALISED = "node.cloudprovider.kubernetes.io/uninitialized"
_UNREGISTERED = "karpenter.sh/unregistered"
_POOL, _REGISTERED = "karpenter.sh/nodepool", "karpenter.sh/registered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """One taint. Key and effect are its identity; a value may be absent."""

    key: str
    effect: str
    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition as it stands on the node."""

    status: str
    reason: str
    message: str
    heartbeat: float | None  # seconds since 1970; None where it can't be read
    transition: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node. `raw_taints` are the taints as the API gave them, for a test of the same."""

    name: str
    uid: str
    version: str  # resourceVersion
    boot_id: str
    created: float
    deleting: bool
    ready: bool
    ready_since: float  # seconds since 1970, 0 where it isn't told
    taints: tuple[Taint, ...]
    raw_taints: tuple[Mapping[str, Any], ...] = field(repr=False)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    condition: Condition | None = None
    others: Mapping[str, Condition] = field(default_factory=dict)  # of everybody else, by type

    def has(self, key: str) -> bool:
        """Whether a taint of this key, with our effect, is on the node."""
        return any(t.key == key and t.effect == EFFECT for t in self.taints)

    def count(self, resource: str) -> int | None:
        """Allocatable number of a resource; `None` where the node names none or no number."""
        said = self.allocatable.get(resource, "")
        return int(said) if said.isascii() and said.isdecimal() else None

    @property
    def told_for_this_boot(self) -> Condition | None:
        """Our condition, if it speaks of the boot that the node is in."""
        told = self.condition
        return (
            told
            if told and self.boot_id and told.message.startswith(f"boot {self.boot_id};")
            else None
        )

    @property
    def condemned(self) -> bool:
        """Whether our condition says, of this boot, that the node was rejected, breaker or not."""
        told = self.told_for_this_boot
        return told is not None and (told.status == "False" or told.reason == BREAKER_OPEN)

    @property
    def not_ready(self) -> str:
        """What has to come before a test, in words; `""` when nothing has.

        Karpenter puts startup taints back that are lifted before it has registered the node.
        """
        keys = {t.key for t in self.taints}
        if _UNREGISTERED in keys or (
            self.labels.get(_POOL) and self.labels.get(_REGISTERED) != "true"
        ):
            return "Karpenter has not registered the node yet"
        if _UNINITIALISED in keys:
            return "the cloud provider has not initialised the node yet"
        if not self.ready:
            return "the node is not Ready"
        return ""

    def accepted(self, names: Names) -> bool:
        """Whether the node says that it was accepted for this very boot."""
        told = self.told_for_this_boot
        return bool(
            told
            and told.status == "True"
            and told.reason == EVERYTHING_PASSED
            and self.annotations.get(names.accepted_boot) == self.boot_id
            and not self.has(names.pending)
        )


def node_of(data: Mapping[str, Any], names: Names) -> Node:
    """Read the API's object. Fields that are null or absent are empty, never taken for sound."""
    metadata, spec = _table(data, "metadata"), _table(data, "spec")
    status = _table(data, "status")
    taints = [t for t in _rows(spec, "taints") if isinstance(t.get("key"), str)]
    conditions = _rows(status, "conditions")
    told = {str(c.get("type") or ""): _condition(c) for c in reversed(conditions)}
    return Node(
        name=str(metadata.get("name") or ""),
        uid=str(metadata.get("uid") or ""),
        version=str(metadata.get("resourceVersion") or ""),
        boot_id=str(_table(status, "nodeInfo").get("bootID") or ""),
        created=seconds(metadata.get("creationTimestamp")) or 0.0,
        deleting=bool(metadata.get("deletionTimestamp")),
        ready=any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions),
        ready_since=max(
            (
                seconds(c.get("lastTransitionTime")) or 0.0
                for c in conditions
                if c.get("type") == "Ready"
            ),
            default=0.0,
        ),
        taints=tuple(
            Taint(key=t["key"], effect=str(t.get("effect") or ""), value=t.get("value"))
            for t in taints
        ),
        raw_taints=tuple(_rows(spec, "taints")),
        labels=_words(metadata, "labels"),
        annotations=_words(metadata, "annotations"),
        allocatable=_words(status, "allocatable"),
        capacity=_words(status, "capacity"),
        condition=told.pop(names.accepted, None),
        others=told,
    )


def seconds(stamp: Any) -> float | None:
    """An API time, RFC 3339, as seconds since 1970; `None` for what is none."""
    if not isinstance(stamp, str):
        return None
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return None


def _condition(row: Mapping[str, Any]) -> Condition:
    return Condition(
        status=str(row.get("status") or ""),
        reason=str(row.get("reason") or ""),
        message=str(row.get("message") or ""),
        heartbeat=seconds(row.get("lastHeartbeatTime")),
        transition=seconds(row.get("lastTransitionTime")),
    )


def _table(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = data.get(name)
    return found if isinstance(found, Mapping) else {}


def _rows(data: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = data.get(name)
    return [r for r in found if isinstance(r, Mapping)] if isinstance(found, list) else []


def _words(data: Mapping[str, Any], name: str) -> dict[str, str]:
    return {str(k): str(v) for k, v in _table(data, name).items() if v is not None}
