"""The slices of a GPU that MIG has cut up: each computes and keeps its memory to itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nodeproof.checks import (
    Cause,
    DeviceKind,
    Measure,
    Remedy,
    Result,
    Results,
    Work,
    altered,
    check,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceLimits:
    """How much of each slice's memory is tested."""

    gpu_share: float = 0.97  # of what is free in the slice when the test begins
    free_of_total: float = 0.8  # a slice with less than this free is in use by somebody


_PLANTED = {
    "uuid": "MIG-planted",
    "profile": "planted",
    "untested": "planted",
    "foreign": ["GPU-planted"],
    "wrong": 1,
    "compared": 1,
    "found": [],
    "missed": ["planted"],
    "free_of_total": -1.0,
}
_SOUND = {**_PLANTED, "untested": "", "foreign": [], "wrong": 0, "missed": []}


@check(
    "gpu.mig.slices",
    kinds=(DeviceKind.GPU,),
    remedy=Remedy.REPLACE,
    limits=SliceLimits,
    work=Work(
        call="nodeproof.probes.mig:slices",
        args={"hold_s": 5.0},
        from_limits=("gpu_share",),
        deadline_s=300,
    ),
    plant=(
        altered("slices tested", "least of a slice's memory free", on=True, slices=[_PLANTED]),
        altered("detectors that missed their fault", on=True, slices=[_PLANTED]),
        altered("devices of others", on=True, slices=[_PLANTED]),
        # With a neighbour that is sound, the slice that is wrong is so by itself.
        altered(on=True, slices=[_SOUND, {**_SOUND, "uuid": "MIG-planted-too", "wrong": 1}]),
    ),
)
def test_slices(result: Result, peers: Results, measure: Measure, limits: SliceLimits) -> None:
    """A slice that reckons wrong, or writes into its neighbour's memory, spoils another's job.

    Every slice of every GPU is tested at once, each in a process that sees it alone: products of
    known operands, each bit compared; then memory that all hold at the same time, each filled with
    words that are no other slice's, so that what reaches a neighbour is a wrong word there. The
    slices share one GPU: where one is wrong and another is not, replace that GPU. A slice without an
    answer is no pass; a GPU that has MIG on and no slice has none to test: make them, or turn MIG
    off. Which slices there have to be is judged by gpu.mode.mig.

    What it can't see: whether each SM of the slice was used, and paths that no slice reaches. So a
    GPU with MIG on passes this and is not accepted: accept it whole, and partition it after.
    """
    rows: list[dict[str, Any]] = result["slices"]
    untested = [
        f"{row['uuid']} ({row['profile']}): {row['untested']}" for row in rows if row["untested"]
    ]
    measure(
        "slices tested",
        len(rows) - len(untested),
        at_least=max(1, len(rows)) if result["on"] else 0,
        cause=Cause.ENVIRONMENT,
        detail="; ".join(untested) or "MIG is on and the GPU has no slice",
    )
    if not rows:
        return
    missed = [f"{row['uuid']}: {', '.join(row['missed'])}" for row in rows if row["missed"]]
    measure(
        "detectors that missed their fault",
        len(missed),
        at_most=0,
        cause=Cause.ENVIRONMENT,
        detail="; ".join(missed),
    )
    foreign = [f"{row['uuid']}: {', '.join(row['foreign'])}" for row in rows if row["foreign"]]
    measure(
        "devices of others",
        len(foreign),
        at_most=0,
        cause=Cause.ENVIRONMENT,
        detail=f"what a process of the slice sees beside it, or instead: {'; '.join(foreign)}",
    )
    wrong = [row for row in rows if row["wrong"]]
    measure(
        "wrong elements and words",
        sum(row["wrong"] for row in wrong),
        at_most=0,
        cause=_blame(wrong, rows, peers),
        detail="; ".join(
            f"{row['uuid']} ({row['profile']}): {row['wrong']}, {row['found'][:1] or 'none located'}"
            for row in wrong
        ),
    )
    measure("compared", sum(row["compared"] for row in rows))
    free = [row["free_of_total"] for row in rows if row["free_of_total"] is not None]
    if free:
        measure(
            "least of a slice's memory free",
            min(free),
            at_least=limits.free_of_total,
            cause=Cause.ENVIRONMENT,
            detail="somebody uses a slice: end that and test again",
        )


def _blame(wrong: list[dict[str, Any]], rows: list[dict[str, Any]], peers: Results) -> Cause | None:
    """The hardware, with a witness: a slice that is sound, and detectors that saw their fault."""
    others = [row for _, answer in peers for row in answer["slices"]]
    sound = any(not (row["wrong"] or row["missed"] or row["untested"]) for row in (*rows, *others))
    trusted = sound and not any(row["missed"] for row in wrong)
    return None if trusted else Cause.ENVIRONMENT
