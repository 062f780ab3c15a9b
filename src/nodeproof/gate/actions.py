"""What the gate can do to a cluster. Data: `plan` decides on them, `kube` carries them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from nodeproof.gate.breaker import Ruled


class Phase(StrEnum):
    """Where a node stands, for metrics and for people."""

    OUTSIDE = "outside"  # not ours
    ACCEPTED = "accepted"
    GRANDFATHERED = "grandfathered"
    SUSPECT = "suspect"  # serves, though a monitor speaks against it: too many are held for that
    WAITING = "waiting"  # for something that has to come first
    TESTING = "testing"
    UNDECIDED = "undecided"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True, kw_only=True)
class Say:
    """Set our condition. `message` starts with the boot, so that a stale one is recognised."""

    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Put the pending taint on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """Put the quarantine taint on, and set annotations with it."""

    stamps: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lift:
    """Take our taints off, and stamp what the node was accepted for."""

    stamps: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Set annotations of ours."""

    stamps: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """Start a Job. Its name is a function of what it is for, so that it starts once."""

    trigger: str
    attempt: int
    devices: int  # GPUs expected
    requested: int  # GPUs that the node can give; 0 is a look at the evidence alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One node of a group, as it was when the group began: what it has to be at the end, too."""

    node: str
    uid: str
    boot_id: str
    proof: str  # the Job that it passed alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Start the Job of a group. Its name is a function of its members and their proofs."""

    members: tuple[Place, ...]
    attempt: int
    devices: int  # GPUs of each node


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Fetch the log of an attempt that is over, and judge it."""

    job: str
    pod: str
    group: bool = False  # whether it is one of a group


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """Delete a Job that is of no use any more."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """Ask a pod to leave, by the Eviction API: this one, and none that has its name since."""

    namespace: str
    pod: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Remember a ruling, for the breaker."""

    ruled: Ruled


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """Publish an event on the node."""

    reason: str
    message: str
    warning: bool = False


Action = (
    Say | Hold | Quarantine | Lift | Stamp | Test | Measure | Read | Remove | Evict | Record | Tell
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do about one node now, and when to look again though nothing moves."""

    phase: Phase
    actions: tuple[Action, ...] = ()
    wake_s: float | None = None
