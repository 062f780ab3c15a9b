"""Hold what a check measured against its limits."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from nodeproof.checks import CannotMeasure, CheckSpec
from nodeproof.model import Cause, Measurement, Outcome, Remedy


@dataclass(slots=True)
class Measurements:
    """The `measure` of one check on one device."""

    taken: list[Measurement] = field(default_factory=list)

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
        """Record one reading. Raises `CannotMeasure` for what is no finite number."""
        for what, number in (("value", value), ("bound", at_least), ("bound", at_most)):
            if what == "bound" and number is None:
                continue
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise CannotMeasure(f"{name}: the {what} {number!r} is no number")
            if not abs(number) <= sys.float_info.max:  # false for NaN too
                raise CannotMeasure(f"{name}: the {what} {number!r} is not finite")
        self.taken.append(
            Measurement(
                name=name,
                value=value,
                unit=unit,
                at_least=at_least,
                at_most=at_most,
                cause=cause,
                remedy=remedy,
                detail=detail,
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What one run of a check's function came to."""

    outcome: Outcome
    cause: Cause | None
    remedy: Remedy
    summary: str
    bounded: frozenset[str] = frozenset()  # measurements that were held against a limit
    broken: frozenset[str] = frozenset()


def judge(spec: CheckSpec, taken: list[Measurement], raised: BaseException | None) -> Judgement:
    """Turn measurements, and what the function raised if anything, into an outcome.

    A broken limit or a failed assertion is a fail. Any other exception, and a check that held
    nothing against a limit, is an error: the device is unjudged.
    """
    broken = [m for m in taken if not m.held]
    bounded = frozenset(m.name for m in taken if m.bounded)
    if raised is not None and not isinstance(raised, AssertionError):
        cause = getattr(raised, "cause", Cause.ENVIRONMENT)
        remedy = getattr(raised, "remedy", Remedy.RETEST)
        what = str(raised) or type(raised).__name__
        if not isinstance(raised, CannotMeasure):
            what = f"{type(raised).__name__}: {what}"
        return Judgement(
            outcome=Outcome.ERROR,
            cause=cause if isinstance(cause, Cause) else Cause.ENVIRONMENT,
            remedy=remedy if isinstance(remedy, Remedy) else Remedy.RETEST,
            summary=what,
        )
    if broken or raised is not None:
        causes = {m.cause or spec.cause for m in broken} or {spec.cause}
        # One number that only bad hardware explains outweighs any that something else may.
        cause = next(c for c in Cause if c in causes)
        said = [str(m) for m in broken]
        said += [str(raised) or "an assertion failed"] if raised is not None else []
        return Judgement(
            outcome=Outcome.FAIL,
            cause=cause,
            remedy=_remedy(spec, broken),
            summary="; ".join(said),
            bounded=bounded,
            broken=frozenset(m.name for m in broken),
        )
    if not bounded:
        return Judgement(
            outcome=Outcome.ERROR,
            cause=Cause.CONFIG,
            remedy=Remedy.RETEST,
            summary="the check held nothing against a limit",
        )
    return Judgement(
        outcome=Outcome.PASS, cause=None, remedy=Remedy.NONE, summary="", bounded=bounded
    )


def _remedy(spec: CheckSpec, broken: list[Measurement]) -> Remedy:
    """Return the most severe remedy of what blames the hardware; all else asks for another test."""
    blaming = [m for m in broken if (m.cause or spec.cause) is Cause.HARDWARE]
    remedies = [m.remedy or spec.remedy for m in blaming]
    if not broken and spec.cause is Cause.HARDWARE:  # an assertion, which has no measurement
        remedies.append(spec.remedy)
    return max(remedies, key=lambda r: r.severity, default=Remedy.RETEST)
