"""How a check is declared: the one module a suite needs.

Nothing here imports pytest or torch, so that a suite can be read where neither is installed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from nodeproof.model import COMPUTE, LONGER, Capability, Cause, Device, DeviceKind, Profile, Remedy

__all__ = [
    "COMPUTE",
    "LONGER",
    "Alter",
    "CannotMeasure",
    "Cause",
    "CheckSpec",
    "Device",
    "DeviceKind",
    "Load",
    "Measure",
    "NoLimits",
    "Plant",
    "Profile",
    "Remedy",
    "Result",
    "Results",
    "Work",
    "altered",
    "check",
    "spec_of",
]

Result = Mapping[str, Any]  # what a work function returned: JSON, so plain values
Results = list[tuple[Device, Result]]  # the same, of every device under test
Alter = Callable[[Any], Any]
Function = TypeVar("Function", bound=Callable[..., None])

_ID = re.compile(r"[a-z][a-z0-9]*(\.[a-z][a-z0-9_]*){2}")
_ATTRIBUTE = "nodeproof_check"


class CannotMeasure(Exception):  # noqa: N818  a state of the node, not an error of ours
    """The reading could not be taken, so nothing is judged. Says what to do about it."""

    def __init__(self, message: str, *, cause: Cause = Cause.ENVIRONMENT) -> None:
        super().__init__(message)
        self.cause = cause


class Measure(Protocol):
    """Record one reading and the bounds it must keep; all are judged when the check ends."""

    def __call__(
        self,
        name: str,
        value: float,
        *,
        unit: str = "",
        at_least: float | None = None,
        at_most: float | None = None,
        cause: Cause | None = None,
        remedy: Remedy | None = None,
        detail: str = "",
    ) -> None:
        """Take a reading; where it is short, `cause` and `remedy` go before the check's own.

        Raise `CannotMeasure` for what is no finite number (`None`, text, NaN, a bool).
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class NoLimits:
    """For a check that has nothing to set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Seconds of verified load, by profile. A finding that shows less is no pass."""

    quick: float
    gate: float
    deep: float
    soak: float

    def seconds(self, profile: Profile) -> float:
        """Seconds under `profile`."""
        return float(getattr(self, profile.value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is done in the worker process of each device, all devices at once.

    `call` is `package.module:function`; the function gets a `nodeproof.worker.Context` and the
    keyword arguments of `args`, of the limits named in `from_limits`, and `seconds` where there is
    a `load` and no fault is planted. It returns a mapping of plain JSON values. Two checks that declare an equal `Work`
    share one execution of it.

    `before` is another work function, called without arguments on every device before the first
    check of the run; what it returned is given to `call` as `before`. Where it could not be read,
    the work ends in that refusal: what moved can't be known without where it stood.
    """

    call: str
    args: Mapping[str, Any] = field(default_factory=dict)
    from_limits: tuple[str, ...] = ()
    load: Load | None = None
    deadline_s: float = 60.0  # on top of the load's seconds
    group: bool = False  # the devices work together: each gets rank, size and a meeting point
    before: str = ""
    last: bool = False  # reads what all other work left behind, so it is done after that


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A fault the check must report exactly; planted on every device in every run.

    `args` go to the work beside its own: the worker plants the fault, and its answer holds under
    `planted` what it did and under `found` what its comparison saw; the two must be equal. `alter`
    changes the answer instead (the result, or for a check that takes `results` the whole list;
    `None`: this fault can't be had here), for detectors that are the judgement itself.

    Either way the check's own function must then end in a fail, with the limits broken that
    `breaks` names (measurements; none named: any limit whose breach blames what the check blames).
    A check with several limits has several plants: each limit has to be broken by one of them.
    """

    args: Mapping[str, Any] = field(default_factory=dict)
    alter: Alter | None = None
    breaks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.args) == (self.alter is not None):
            msg = "a plant has either args for the worker or an alteration of its answer"
            raise ValueError(msg)


def altered(*breaks: str, **changes: Any) -> Plant:
    """Plant an answer that differs in `changes`, which breaks the limits of these measurements."""
    return Plant(alter=lambda result: {**result, **changes}, breaks=breaks)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSpec:
    """Everything that is declared about one check."""

    id: str
    kinds: tuple[DeviceKind, ...]
    remedy: Remedy
    cause: Cause
    limits: type[Any]
    work: Work
    plants: tuple[Plant, ...]
    profiles: frozenset[Profile]
    capability: Capability | None
    trial: bool
    title: str
    why: str
    gathers: bool  # judged over the results of every device under test


def check(
    check_id: str,
    *,
    kinds: tuple[DeviceKind, ...],
    remedy: Remedy,
    work: Work,
    plant: Plant | tuple[Plant, ...],
    cause: Cause = Cause.HARDWARE,
    limits: type[Any] = NoLimits,
    profiles: frozenset[Profile] = frozenset(Profile),
    capability: Capability | None = None,
    trial: bool = False,
) -> Callable[[Function], Function]:
    """Declare the function below as an acceptance check.

    The function takes what it names of: `device`, `result` (its own), `peers` (of the other devices
    that answered the same work), `results` (of all devices under test), `measure`, `limits`. Its
    docstring is what `nodeproof explain` and every report show: the first line says what breaks for
    the user; the rest, the usual cause and what helps.

    `capability` is the least CUDA compute capability that has what is tested: a GPU that says it is
    older is not asked; one that does not say is.

    Raises `ValueError` at import for what a check may not be: a malformed id, no docstring, no
    kind, an argument that nobody provides.
    """

    def declare(function: Function) -> Function:
        title, _, why = inspect.cleandoc(function.__doc__ or "").partition("\n")
        takes = set(inspect.signature(function).parameters)
        if not _ID.fullmatch(check_id):
            msg = f"{check_id!r}: a check is called component.part.property, in lower case"
            raise ValueError(msg)
        if not title.strip():
            msg = f"{check_id}: a check says in its docstring why it exists"
            raise ValueError(msg)
        plants = plant if isinstance(plant, tuple) else (plant,)
        if not plants or not all(isinstance(each, Plant) for each in plants):
            msg = f"{check_id}: a check needs a 'plant': a fault that it must report in every run"
            raise ValueError(msg)
        if not kinds:
            msg = f"{check_id}: a check is about at least one kind of device"
            raise ValueError(msg)
        if unknown := takes - {"device", "result", "peers", "results", "measure", "limits"}:
            msg = f"{check_id}: nothing provides {', '.join(sorted(unknown))}"
            raise ValueError(msg)
        if "measure" not in takes or not takes & {"result", "results"}:
            msg = f"{check_id}: a check measures a result: it takes `measure`, and `result` or `results`"
            raise ValueError(msg)
        spec = CheckSpec(
            id=check_id,
            kinds=kinds,
            remedy=remedy,
            cause=cause,
            limits=limits,
            work=work,
            plants=plants,
            profiles=profiles,
            capability=capability,
            trial=trial,
            title=title.strip(),
            why=why.strip(),
            gathers="results" in takes,
        )
        setattr(function, _ATTRIBUTE, spec)
        return function

    return declare


def spec_of(function: object) -> CheckSpec | None:
    """Return the declaration of a check, or `None` for any other function."""
    found = getattr(function, _ATTRIBUTE, None)
    return found if isinstance(found, CheckSpec) else None
