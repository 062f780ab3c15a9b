"""The words every other module speaks (design: one word per idea). Standard library only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """What became of one check on one device. Outcomes are not ordered; the verdict decides."""

    PASS = "pass"  # measured, and every limit held
    FAIL = "fail"  # measured, and short of a limit
    ERROR = "error"  # not measured: the device is unjudged
    SKIP = "skip"  # declared not to apply; a required check may not skip


class Cause(StrEnum):
    """Who has to act."""

    HARDWARE = "hardware"
    ENVIRONMENT = "environment"  # not ready, busy, missing permission
    CONFIG = "config"  # the spec, or the author of a check


class Remedy(StrEnum):
    """What to do about it. Declared from the least to the most disruptive."""

    NONE = "none"
    RETEST = "retest"
    KILL_WORKLOAD = "kill-workload"
    RESET_GPU = "reset-gpu"
    REBOOT = "reboot"
    REPLACE = "replace"

    @property
    def severity(self) -> int:
        """Place on the ladder: 0 for `none`."""
        return list(Remedy).index(self)


class Profile(StrEnum):
    """How long a run may take."""

    QUICK = "quick"
    GATE = "gate"
    DEEP = "deep"
    SOAK = "soak"


LONGER = frozenset(Profile) - {Profile.QUICK}


class DeviceKind(StrEnum):
    """What a finding can be about."""

    GPU = "gpu"
    CPU = "cpu"  # a logical device of a rehearsal; no gate may use what it proves
    NIC = "nic"
    LINK = "link"
    NODE = "node"  # what the devices of one node do together
    HOST = "host"  # the machine around them
    MEMBER = "member"  # a node among those that work together
    GROUP = "group"  # what the members do together


COMPUTE = (DeviceKind.GPU, DeviceKind.CPU)
Capability = tuple[int, int]  # CUDA compute capability, such as (9, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One thing that can be judged.

    `id` is a UUID, serial or PCI address (for a node its name), never an index, which moves.
    `label` is short and for people. `facts` are what it says of itself: product, serial, vbios, pci.
    """

    kind: DeviceKind
    id: str
    label: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.label if self.label == self.id else f"{self.label} {self.id}"

    def has(self, capability: Capability | None) -> bool:
        """Whether a check that needs this compute capability applies.

        Only a device that says it is older is let off: what can't be read is tested, and fails
        to be measured.
        """
        match self.facts.get("capability"):
            case [int(major), int(minor)] if type(major) is type(minor) is int and capability:
                # CUDA has had none below 1.0, so less than that is no answer.
                return major < 1 or minor < 0 or (major, minor) >= capability
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Names one finding: which check, on what."""

    check: str
    kind: DeviceKind
    device: str

    def __str__(self) -> str:
        return f"{self.check} on {self.kind} {self.device}"


def figure(value: float) -> str:
    """Write a number for people: whole numbers in full, others to four digits."""
    return str(value) if isinstance(value, int) else f"{value:.4g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A number that was read, with the bounds it must keep. `None` is no bound."""

    name: str
    value: float
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    cause: Cause | None = None  # whose fault a broken bound is, where it is not the check's own
    remedy: Remedy | None = None  # what helps then, where it is not what the check says
    detail: str = ""  # for people: where, which, and what it looked like

    @property
    def bounded(self) -> bool:
        """Whether this number can decide anything."""
        return self.at_least is not None or self.at_most is not None

    @property
    def held(self) -> bool:
        """Whether every bound is kept. NaN and infinity keep none."""
        # Each bound is written as "is inside", so that NaN, which compares false, never holds.
        low = self.at_least is None or self.value >= self.at_least
        high = self.at_most is None or self.value <= self.at_most
        return low and high and math.isfinite(self.value)

    @property
    def margin(self) -> float | None:
        """Distance to the nearer bound in the measurement's unit; negative when broken."""
        room = []
        if self.at_least is not None:
            room.append(self.value - self.at_least)
        if self.at_most is not None:
            room.append(self.at_most - self.value)
        return min(room) if room else None

    @property
    def wants(self) -> str:
        """The bounds in words, `""` without any."""
        low, high = self.at_least, self.at_most
        if low is not None and low == high:
            return f"exactly {figure(low)}"
        bounds = [f"at least {figure(low)}"] if low is not None else []
        bounds += [f"at most {figure(high)}"] if high is not None else []
        return " and ".join(bounds)

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        wants = f" (wants {self.wants})" if self.wants else ""
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.name} {figure(self.value)}{unit}{wants}{detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A try that did not count, kept because nothing that happened may be lost."""

    outcome: Outcome
    cause: Cause
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check on one device."""

    check: str
    device: Device
    outcome: Outcome
    cause: Cause | None = None  # None for a pass
    remedy: Remedy = Remedy.NONE
    summary: str = ""
    measurements: tuple[Measurement, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    loaded_s: float = 0.0  # seconds of verified load behind it
    duration_s: float = 0.0
    attempts: tuple[Attempt, ...] = ()

    @property
    def key(self) -> Key:
        """What names this finding in a plan."""
        return Key(check=self.check, kind=self.device.kind, device=self.device.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """One detector fed a planted fault on one device."""

    check: str  # the check whose detector was tested
    device: Device
    caught: bool  # reported exactly as planted
    planted: Any = None
    reported: Any = None
    summary: str = ""

    @property
    def key(self) -> Key:
        """What names this self-test in a plan."""
        return Key(check=self.check, kind=self.device.kind, device=self.device.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One check on one device that the run has undertaken."""

    key: Key
    required: bool
    trial: bool = False
    loaded_s: float = 0.0  # the least load its finding must show


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver:
    """An operator's word that one check on one device may fail until a day."""

    check: str
    device: str
    reason: str
    expires: str  # ISO date; the waiver does nothing after that day (UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a check says of itself: shown by `explain` and in every report."""

    title: str  # first line of the docstring
    why: str  # the rest
    remedy: Remedy
