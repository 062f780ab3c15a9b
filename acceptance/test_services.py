"""The daemons that GPUs and jobs need, and the wait for what is merely not up yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodeproof.checks import (
    CannotMeasure,
    Cause,
    DeviceKind,
    Measure,
    Plant,
    Remedy,
    Result,
    Work,
    altered,
    check,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyLimits:
    """What to wait for, and how long. A spec states what the kind of node has."""

    wait_s: float = 120.0  # 600 at most
    services: str = ""  # names separated by spaces
    gpus: int = 0  # NVIDIA GPUs on the bus that have their driver
    efa: int = 0
    adapters: int = 0  # RDMA devices of any kind


@check(
    "node.services.ready",
    kinds=(DeviceKind.NODE,),
    remedy=Remedy.RETEST,
    cause=Cause.ENVIRONMENT,
    limits=ReadyLimits,
    work=Work(
        call="nodeproof.probes.readiness:wait",
        from_limits=("wait_s", "services", "gpus", "efa", "adapters"),
        deadline_s=660,
    ),
    plant=altered("blockers", blockers=["planted"]),
)
def test_ready(result: Result, measure: Measure, limits: ReadyLimits) -> None:
    """A node that is judged before it is up is rejected for nothing.

    What the spec names is waited for: services, GPUs with their driver, EFA and other RDMA devices,
    which some clouds attach late. What is still missing at the end of the wait is named, and the
    node is not judged. Usual causes: a daemon set that does not tolerate the node's taint, so its
    pod never came; a driver that is still being built; a service that failed, whose journal says
    why.
    """
    measure("waited", result["waited_s"], unit="s", detail="; ".join(result["first"]))
    measure(
        "blockers",
        len(result["blockers"]),
        at_most=0,
        detail=f"not up after {limits.wait_s:g} s: {'; '.join(result['blockers'])}: see why, then test again",
    )


def _stopped(result: Result) -> dict[str, Any]:
    states: Mapping[str, str] = result["states"]
    return {
        **result,
        "states": dict.fromkeys(states, "absent"),
        "implied": {"nvidia-fabricmanager": "planted"},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits:
    """Services that have to run, by name and separated by spaces."""

    needed: str = ""
    toolkit: bool = False  # whether NVIDIA's container toolkit has to be there


@check(
    "node.services.needed",
    kinds=(DeviceKind.NODE,),
    remedy=Remedy.RETEST,
    cause=Cause.ENVIRONMENT,
    limits=ServiceLimits,
    work=Work(call="nodeproof.probes.services:services", deadline_s=30),
    plant=(
        Plant(alter=_stopped, breaks=("missing",)),
        altered("toolkit", toolkit=None),
    ),
)
def test_needed(result: Result, measure: Measure, limits: ServiceLimits) -> None:
    """Without its daemons a node's GPUs look healthy, and jobs do not start or lose their links.

    Judged are the services that the spec names, and the fabric manager wherever there are
    NVSwitches on the bus. Start the one that is missing and read its journal; a fabric manager has
    to be of the driver's version. A service that can't be seen, as in a container with process
    numbers of its own, is not called absent: where one that is needed is hidden, none is judged.
    """
    states, implied = result["states"], result["implied"]
    needed = limits.needed.split()
    if unknown := [name for name in needed if name not in states]:
        raise CannotMeasure(
            f"no service {', '.join(unknown)} is known here, only {', '.join(states)}: correct the spec",
            cause=Cause.CONFIG,
        )
    wanted = dict.fromkeys(needed, "the spec names it") | implied
    missing = [f"{name} ({why})" for name, why in wanted.items() if states[name] == "absent"]
    measure("running", sum(state == "running" for state in states.values()), unit="services")
    measure(
        "missing",
        len(missing),
        at_most=0,
        detail=f"{', '.join(missing)}: start it, and read its journal",
    )
    _measure_toolkit(result, measure, limits)
    hidden = [name for name in wanted if states[name] == "not visible"]
    if hidden and not missing:
        raise CannotMeasure(
            f"not visible from here: {', '.join(hidden)}; give the pod hostPID, or mount the node's "
            "/proc and /sys and name their place with --host-root"
        )


def _measure_toolkit(result: Result, measure: Measure, limits: ServiceLimits) -> None:
    found = result["toolkit"]
    measure(
        "toolkit",
        -1 if found is None else len(found),
        unit="files",
        at_least=int(limits.toolkit),
        detail=f"{', '.join(found or ['none'])}: install NVIDIA's container toolkit, or give the node's root with --host-root",
    )
