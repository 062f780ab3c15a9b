"""A GPU's link to the host while the GPU works, when it has no reason to save power."""

from __future__ import annotations

from dataclasses import dataclass

from nodeproof.acceptance import link, test_burnin
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
    declared = spec_of(test_burnin.test_exact)
    assert declared is not None
    return declared.work


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationLimits:
    """What the spec gives stands for what GPU and slot are able to together."""

    generation: int | None = None
    width: int | None = None  # lanes
    told: bool = True  # some virtual machines hide the link


_UNTOLD = dict.fromkeys(("width", "width_able", "generation", "able", "virtual"))


@check(
    "gpu.pcie.generation",
    kinds=(DeviceKind.GPU,),
    remedy=Remedy.REPLACE,
    limits=GenerationLimits,
    work=_load(),
    plant=(
        altered("link told", telemetry={"pcie": {**_UNTOLD, "able": -1}}),
        altered(
            "generation", "width", telemetry={"pcie": {**_UNTOLD, "generation": 0, "width": 0}}
        ),
    ),
)
def test_generation(result: Result, measure: Measure, limits: GenerationLimits) -> None:
    """A link to the host that is slow or narrow at work halves the rate of every transfer.

    The highest generation of all samples under load, and the least width of those in which the GPU
    worked. Usual causes: a board that is not seated well, a worn riser or cable, a setting of the
    firmware that limits the slot. A reset seldom helps. It is a fault of the hardware on bare metal
    only. In a virtual machine, or where nobody says what the machine is, what the link could have may
    be the hypervisor's invention: say in the spec what this kind of machine gives. The rate itself is
    measured by the transfers.
    """
    seen = result["telemetry"]["pcie"]
    able = {"generation": seen["able"], "width": seen["width_able"]}
    wanted = {"generation": limits.generation, "width": limits.width}
    # What is planted as able to less than nothing is told by nobody.
    measure(
        "link told",
        int(
            None not in (seen["generation"], seen["width"])
            and not (able["generation"] is None and limits.generation is None)
        )
        + min(0, able["generation"] or 0),
        at_least=int(limits.told),
        cause=Cause.ENVIRONMENT,
        detail=(
            "generation and width of the link to the host were not read under load, or nobody says "
            "which generation it could have: give it in the spec, or set told = false if this machine "
            "hides the link"
        ),
    )
    for name, unit in (("generation", ""), ("width", "lanes")):
        if seen[name] is not None:
            link.hold(
                measure,
                name,
                seen[name],
                able=able[name],
                wanted=wanted[name],
                virtual=seen["virtual"],
                unit=unit,
            )
