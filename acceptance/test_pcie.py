"""A GPU's link to the host while the GPU works, when it has no reason to save power."""

from __future__ import annotations

from dataclasses import dataclass

from nodeproof.acceptance import test_burnin
from nodeproof.checks import (
    Cause,
    DeviceKind,
    Measure,
    Remedy,
    Result,
    Work,
    altered,
    check,
    spec_of,
)


def _load() -> Work:
    """The long load of the run, which is done once whoever looks at it."""
    declared = spec_of(test_burnin.test_throttling)
    assert declared is not None
    return declared.work


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationLimits:
    """Without a generation in the spec, what GPU and slot are able to together."""

    generation: int | None = None
    width: int | None = None  # lanes
    told: bool = True  # some virtual machines hide the link


@check(
    "gpu.pcie.generation",
    kinds=(DeviceKind.GPU,),
    remedy=Remedy.REPLACE,
    limits=GenerationLimits,
    work=_load(),
    plant=(
        altered("link told", telemetry={"pcie": {"width": None, "generation": None, "able": -1}}),
        altered(
            "generation",
            telemetry={"pcie": {"width": 0, "generation": 0, "able": 1}},
        ),
    ),
)
def test_generation(result: Result, measure: Measure, limits: GenerationLimits) -> None:
    """A link to the host that trains to a lower generation halves the rate of every transfer.

    The highest generation and the least width of all samples under load. Usual causes: a board that
    is not seated well, a worn riser or cable, a setting of the firmware that limits the slot. A
    reset seldom helps. The rate itself is measured by the transfers.
    """
    link = result["telemetry"]["pcie"]
    generation, able = link["generation"], link["able"]
    # What is planted as able to less than nothing is told by nobody.
    measure(
        "link told",
        int(generation is not None and not (able is None and limits.generation is None))
        + min(0, able or 0),
        at_least=int(limits.told),
        cause=Cause.ENVIRONMENT,
        detail=(
            "the generation of the link to the host was not read under load, or nobody says which it "
            "could have: give the generation in the spec, or set told = false if this machine hides it"
        ),
    )
    if generation is not None:
        measure(
            "generation",
            generation,
            at_least=max(1, able or 0, limits.generation or 0),
            cause=None if generation < (able or 0) else Cause.CONFIG,
            detail=f"GPU and slot are able to {able}",
        )
    if link["width"] is not None:
        measure("width", link["width"], unit="lanes", at_least=limits.width)
