"""What a site tells the gate: TOML, every key with a default and a reason."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from nodeproof.gate.names import Names
from nodeproof.model import Profile

LEAST_S = {  # the deadlines that `nodeproof run` itself gives its profiles
    Profile.QUICK: 180.0,
    Profile.GATE: 480.0,
    Profile.DEEP: 4500.0,
    Profile.SOAK: 18000.0,
}
_PAIR = 2  # nodes: one alone has no fabric
_MOST_TOGETHER = 64  # nodes whose results one log carries
_GROUP_S = 600.0  # to meet, to sweep, and for some rounds of pairs
_SIZE = re.compile("[1-9][0-9]*([KMG](iB)?)?")  # of those that `nodeproof fabric run` takes
_SUSPECT = re.compile("([A-Za-z0-9]([A-Za-z0-9_./-]*[A-Za-z0-9])?)=(True|False)")
_OFTEN_S = 30.0  # between two writes of a node's condition, at the least


class SettingsError(ValueError):
    """Settings that can't be used. Says which key, and what was expected."""


class Served(StrEnum):
    """What becomes of nodes that served before the gate was installed."""

    GRANDFATHER = "grandfather"  # left alone until their next boot
    REQUALIFY = "requalify"  # tested one by one


class Draining(StrEnum):
    """What to do about GPU pods on a node that has to be tested."""

    WAIT = "wait"  # for them to end
    EVICT = "evict"  # through the Eviction API, so that disruption budgets hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One site's settings. Times in seconds."""

    image: str  # by digest: what a tag names may change between two nodes
    image_ids: Sequence[str] = ()  # other digests that runtimes know the same image by
    names: Names = field(default_factory=Names)
    selector: Mapping[str, str] = field(default_factory=lambda: {"nvidia.com/gpu.present": "true"})
    resource: str = "nvidia.com/gpu"
    kind_label: str = "node.kubernetes.io/instance-type"  # what makes two nodes alike
    profile: Profile = Profile.GATE
    spec: str = ""
    expected: Mapping[str, int] = field(default_factory=dict)  # GPUs by kind of node
    # The site's own taints on such nodes, key to effect: the test pods have to pass them too.
    runtime_class: str = ""  # of test pods, where NVIDIA's runtime is not the default
    priority_class: str = ""  # of test pods
    tolerate: Mapping[str, str] = field(default_factory=dict)
    run_deadline_s: float = 480.0  # of `nodeproof run`; unless it is said, what the profile takes
    job_margin_s: float = 300.0  # on top: to pull the image, to start, to write
    wall_margin_s: float = 60.0  # on top of the Job's: a hung driver keeps a pod from ending
    attempts: int = 3
    backoff_s: float = 60.0  # before the second attempt; doubled for each further one
    tests_at_once: int = 16  # power, and how much of a fleet may be under test
    plugin_wait_s: float = 600.0  # for the device plugin, before a node without GPUs is looked at
    served_at_once: int = 1  # nodes that served before the installation, under test together
    quarantine_undecided: bool = False  # a registry that is down must not empty a fleet
    breaker_run: int = 3  # rejects in a row of one kind, for one reason
    breaker_share: float = 0.2  # of a kind's nodes, and at least `breaker_least`
    breaker_least: int = 3
    breaker_window_s: float = 7 * 86400.0  # a reject is no part of a row any more after that
    served: Served = Served.GRANDFATHER
    installed_at: float = 0.0  # seconds since 1970; nodes created before are called served
    draining: Draining = Draining.WAIT
    # Conditions of others, with the status in which they have a node tested again.
    suspect_conditions: Sequence[str] = ("NodeproofSuspect=True",)
    heartbeat_s: float = 300.0
    grouped: Sequence[str] = ()  # kinds of node that are measured together before any is released
    group_least: int = 2  # nodes of a group
    group_most: int = 8
    group_label: str = ""  # nodes of a group are alike in this label too: a rack, a placement group
    group_wait_s: float = 300.0  # for more nodes to join, before fewer than group_most begin
    group_deadline_s: float = 2400.0  # of `nodeproof fabric run`
    group_bytes: str = "8GiB"  # the largest message
    group_resources: Mapping[str, str] = field(default_factory=dict)  # of each pod, beside GPUs
    groups_at_once: int = 1  # how much of the fabric may be under load

    def gpus_of(self, labels: Mapping[str, str]) -> int | None:
        """How many GPUs a node of these labels has to have; `None` where nobody said."""
        return self.expected.get(labels.get(self.kind_label, ""))

    def measured_together(self, labels: Mapping[str, str]) -> bool:
        """Whether a node of these labels has to be measured with others, too."""
        return labels.get(self.kind_label, "") in self.grouped

    def of_groups(self) -> Settings:
        """The settings by which a group's Job is made and judged, in the places of a node's."""
        return dataclasses.replace(
            self, profile=Profile.QUICK, run_deadline_s=self.group_deadline_s
        )


def parse(text: str) -> Settings:
    """Read settings. Raises `SettingsError` for what is unknown, of the wrong type, or unsafe."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(str(error)) from None
    names = table.pop("names", {})
    given = {key: _read(key, value) for key, value in table.items()}
    given.setdefault("run_deadline_s", LEAST_S[given.get("profile", Profile.GATE)])
    if not isinstance(names, dict) or not all(isinstance(v, str) and v for v in names.values()):
        raise SettingsError("names is a table of texts")
    try:
        settings = Settings(names=Names(**names), **given)
    except TypeError as error:
        raise SettingsError(f"{error}; image is required") from None
    digest = settings.image.rpartition("@")[2]
    if not digest.startswith("sha256:") or len(digest) != len("sha256:") + 64:
        raise SettingsError(f"image = {settings.image!r}: name it by its digest, …@sha256:…")
    for other in settings.image_ids:
        if not re.fullmatch("sha256:[0-9a-f]{64}", other):
            raise SettingsError(f"image_ids: {other!r} is no digest, sha256:… of 64 characters")
    least = LEAST_S[settings.profile]
    if settings.run_deadline_s < least:
        raise SettingsError(
            f"run_deadline_s = {settings.run_deadline_s:g}: profile {settings.profile} takes up to "
            f"{least:g} s; give at least that, or nothing"
        )
    if settings.heartbeat_s < _OFTEN_S:
        raise SettingsError(
            f"heartbeat_s = {settings.heartbeat_s:g}: every node would be written to all the time; "
            f"give {_OFTEN_S:g} or more"
        )
    if settings.profile is Profile.QUICK:
        raise SettingsError("profile = 'quick': it is for people; a gate needs 'gate' or longer")
    _check_suspects(settings)
    _check_groups(settings)
    return settings


def _check_suspects(settings: Settings) -> None:
    """Raise `SettingsError` for conditions that would never, or always, have a node tested."""
    for told in settings.suspect_conditions:
        found = _SUSPECT.fullmatch(told)
        if not found or found[1] == settings.names.accepted:
            raise SettingsError(
                f"suspect_conditions: {told!r} has to be the type of a monitor's condition and its "
                "bad status, as in NodeproofSuspect=True"
            )


def _check_groups(settings: Settings) -> None:
    """Raise `SettingsError` for groups that no node could pass, or that prove nothing."""
    least, most = settings.group_least, settings.group_most
    if least < _PAIR or not least <= most <= _MOST_TOGETHER:
        raise SettingsError(
            f"group_least = {least}, group_most = {most}: a group is of at least {_PAIR} nodes and "
            f"at most {_MOST_TOGETHER}"
        )
    if settings.group_deadline_s < _GROUP_S:
        raise SettingsError(
            f"group_deadline_s = {settings.group_deadline_s:g}: give at least {_GROUP_S:g}"
        )
    if not _SIZE.fullmatch(settings.group_bytes):
        raise SettingsError(f"group_bytes = {settings.group_bytes!r} is no size, such as 8GiB")
    if settings.resource in settings.group_resources:
        raise SettingsError(
            f"group_resources names {settings.resource}: how many of these a pod gets is said by "
            "expected"
        )
    for kind in settings.grouped:
        if kind not in settings.expected:
            raise SettingsError(
                f"grouped names {kind!r}, and expected does not say how many GPUs such a node has"
            )


def filled_in(settings: Settings) -> None:
    """Raise `SettingsError` for the image that the shipped settings only stand in for."""
    if settings.image.endswith("0" * 64):
        raise SettingsError(
            f"image = {settings.image!r} is a placeholder: build the image and name it by its digest"
        )


_TYPES: dict[str, Any] = {f.name: f.type for f in dataclasses.fields(Settings)}
_ENUMS: dict[str, type[StrEnum]] = {"profile": Profile, "served": Served, "draining": Draining}


def _read(key: str, value: Any) -> Any:
    if key not in _TYPES:
        raise SettingsError(f"there is no setting {key!r}; there are {', '.join(sorted(_TYPES))}")
    if key in _ENUMS:
        known = list(_ENUMS[key])
        if value not in known:
            raise SettingsError(f"{key} = {value!r}: there are {', '.join(known)}")
        return _ENUMS[key](value)
    kind = str(_TYPES[key])
    if kind == "float" and isinstance(value, int | float) and not isinstance(value, bool):
        value = float(value)
    if not _fits(kind, value):
        raise SettingsError(f"{key} = {value!r} is not what it has to be: {kind}, not negative")
    return value


def _fits(kind: str, value: Any) -> bool:
    if kind.startswith("Sequence"):
        return isinstance(value, list) and all(_fits("str", v) for v in value)
    if kind.startswith("Mapping"):
        inner = "int" if "int]" in kind else "str"
        return isinstance(value, dict) and all(_fits(inner, v) for v in value.values())
    if isinstance(value, bool):
        return kind == "bool"
    match kind:
        case "float":
            return isinstance(value, float) and 0 <= value < float("inf")
        case "int":
            return isinstance(value, int) and value > 0
    return kind == "str" and isinstance(value, str)
