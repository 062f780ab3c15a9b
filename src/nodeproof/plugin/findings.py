"""From a check's function and its answer to a finding."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from nodeproof.checks import CheckSpec, Results
from nodeproof.model import Cause, Device, Finding, Outcome, Remedy
from nodeproof.plugin.judging import Judgement, Measurements
from nodeproof.plugin.performing import Done

_SHOWN = 64  # items of a list kept as evidence
_LONGEST = 1 << 17  # characters of one value; nothing of one node comes near it


def call(
    item: pytest.Function,
    device: Device,
    answer: Any,
    peers: Results,
    measure: Measurements,
    limits: Any,
) -> None:
    """Call the check's function with those arguments that it names."""
    given = {
        "device": device,
        "result": answer,
        "results": answer,
        "peers": peers,
        "measure": measure,
        "limits": limits,
    }
    item.obj(**{name: given[name] for name in arguments(item.function)})


def arguments(function: object) -> list[str]:
    """Return what a check's function names; fixtures that a site uses beside it are pytest's."""
    assert callable(function)
    return list(inspect.signature(function).parameters)


def as_assertion(raised: BaseException | None) -> BaseException | None:
    """Take a call of pytest.fail for the failed assertion that it is."""
    return AssertionError(str(raised)) if isinstance(raised, pytest.fail.Exception) else raised


def unjudged(declared: CheckSpec, device: Device, outcome: Outcome, said: str) -> Finding:
    """Make the finding of a check that came to no judgement."""
    return Finding(
        check=declared.id,
        device=device,
        outcome=outcome,
        cause=Cause.CONFIG if outcome is Outcome.SKIP else Cause.ENVIRONMENT,
        remedy=Remedy.RETEST,
        summary=said,
    )


def finding(
    declared: CheckSpec,
    device: Device,
    judgement: Judgement,
    measurements: Measurements,
    answer: Any,
    done: list[Done],
) -> Finding:
    """Make the finding of a check that was judged."""
    answers = [] if answer is None else [a for _, a in answer] if declared.gathers else [answer]
    # On the worker's word only as far as our own clock bears it out; without an answer there is none.
    loaded = min(
        (
            min(float(a.get("loaded_s", 0.0)), d.seconds)
            for a, d in zip(answers, done, strict=False)
        ),
        default=0.0,
    )
    return Finding(
        check=declared.id,
        device=device,
        outcome=judgement.outcome,
        cause=judgement.cause,
        remedy=judgement.remedy,
        summary=judgement.summary,
        measurements=tuple(measurements.taken),
        evidence=_evidence(answer) if not declared.gathers else {},
        loaded_s=loaded,
        attempts=tuple(a for d in done for a in d.attempts),
    )


def _evidence(answer: Any) -> dict[str, Any]:
    """Keep what is short: long lists are data of a plot, and logs have a file of their own."""
    if answer is None:
        return {}
    shown = {
        name: value[:_SHOWN] if isinstance(value, list) else value for name, value in answer.items()
    }
    return {
        name: value if (size := len(repr(value))) <= _LONGEST else f"left out: {size} characters"
        for name, value in shown.items()
    }
