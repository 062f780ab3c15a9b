"""The work of a run as the checks see it: who does it, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nodeproof.checks import CannotMeasure, Result, Work
from nodeproof.child import Answer, Lost, Raised, Reply
from nodeproof.model import Attempt, Cause, Device, Remedy
from nodeproof.plugin.watched import watched


class WorkFailed(CannotMeasure):
    """The work did not come back with an answer."""

    def __init__(self, message: str, *, cause: Cause, remedy: Remedy) -> None:
        super().__init__(message, cause=cause)
        self.remedy = remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What became of one piece of work on one device."""

    reply: Reply
    seconds: float
    samples: tuple[Mapping[str, Any], ...]  # of telemetry meanwhile, dated by `at`
    since: Mapping[str, Any]  # the first sample of the run
    attempts: tuple[Attempt, ...] = ()

    def result(self) -> Result:
        """Return the answer with its telemetry rate. Raises `WorkFailed` if there is none."""
        match self.reply:
            case Answer(result=result, silence_s=silence_s):
                seen = watched(
                    self.samples,
                    since=self.since,
                    seconds=self.seconds,
                    silence_s=silence_s,
                    load=_load(result),
                )
                return {**result, "telemetry": seen}
            case Raised(type=kind, message=message, cause=cause):
                known = Cause(cause) if cause in set(Cause) else Cause.ENVIRONMENT
                text = message if kind == "CannotMeasure" else f"{kind}: {message}"
                raise WorkFailed(text, cause=known, remedy=Remedy.RETEST)
            case Lost(text=text, stuck=stuck):
                remedy = Remedy.REBOOT if stuck else Remedy.RETEST
                raise WorkFailed(text, cause=Cause.ENVIRONMENT, remedy=remedy)


def _load(result: Result) -> tuple[float, float] | None:
    """From when to when the work loaded its device, by the clock that all processes share."""
    match result.get("loaded_between"):
        case [float(begun), float(ended)]:
            return begun, ended
        case _:
            return None


class Performer(Protocol):
    """Does the work of a run: in workers, or out of a recording."""

    ends: float
    substitutes: dict[str, Any]  # for arguments that are declared by a name, such as "@output"

    def admit(self, devices: Sequence[Device]) -> None:
        """Take these as the devices under test."""

    def watch(self) -> None:
        """Start the telemetry of all devices under test."""

    def note_starts(self, works: Sequence[tuple[Work, Device]]) -> None:
        """Read what work at the end of the run has to know of the start."""

    def perform(
        self, work: Work, args: Mapping[str, Any], devices: Sequence[Device], *, load_s: float
    ) -> dict[str, Done]:
        """Do `work` with `args` as they are declared; return what became of it by device id."""

    def interrupt(self, reason: str) -> None:
        """Stop what is going on, from a signal handler."""

    def close(self, *, hurried: bool) -> list[str]:
        """End what was started; return a sentence for each process that will not go."""


# What was done, with its arguments as they are declared, on which device, and what came of it.
Note = Callable[[Work, Mapping[str, Any], Device, Done], None]
