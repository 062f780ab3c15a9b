"""DCGM: what NVIDIA's own diagnostic and health watches say, where they are installed.

Both are asked before the GPUs are loaded: beside our own load the diagnostic would find no free
memory and skip its tests, and both loads would be too slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nodeproof.checks import (
    CannotMeasure,
    Cause,
    DeviceKind,
    Measure,
    Remedy,
    Result,
    Work,
    altered,
    check,
)

_SHOWN = 4  # failures in one sentence
# What a node may be without, unless its spec says otherwise: the tool, and watches that it has set.
# A host engine that does not answer where the tool is there was there, and may have died of a GPU.
_ABSENCE = frozenset({"absent"})
_NO_WATCHES = frozenset({"absent", "no watches"})
_ABSENT: dict[str, Any] = {"installed": -1, "state": "absent", "failed": []}
_RAN = {"installed": 1, "state": "ran", "grade": "fail", "why": "planted", "version": None}
_SKIPPED: dict[str, Any] = {"level": 1, "counts": {"pass": 0, "warn": 0, "skip": 0}, "skipped": []}
_BAD = {"name": "memory", "gpu": 0, "uuid": None, "pci": None, "says": "planted"}


def _failed(*, of_the_board: bool) -> dict[str, Any]:
    return {**_RAN, **_SKIPPED, "failed": [{**_BAD, "of_the_board": of_the_board}]}


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagLimits:
    """How DCGM's diagnostic is asked.

    `required` is for nodes whose image has DCGM. `level` is 1 to 4 (`dcgmi diag -r`), by default
    what the profile has time for: 1 in quick and gate, 2 in deep, 3 in soak. `host` is the address
    of a host engine that is not this machine's. `nvlink` false says that the board has none.
    """

    required: bool = False
    level: int | None = None
    host: str = ""
    nvlink: bool | None = None


@check(
    "node.dcgm.diag",
    kinds=(DeviceKind.NODE,),
    remedy=Remedy.RESET_GPU,
    limits=DiagLimits,
    work=Work(
        call="nodeproof.probes.dcgm:diag",
        from_limits=("level", "host", "nvlink"),
        deadline_s=11_000,  # level 4 takes up to 3 h; the probe holds each level to its own time
    ),
    plant=(
        altered("diagnostics available", **_ABSENT),
        altered("tests that ran", **{**_RAN, **_SKIPPED, "failed": []}),
        altered("failures of the hardware", **_failed(of_the_board=True)),
        altered("failures of the set-up", **_failed(of_the_board=False)),
    ),
)
def test_diag(result: Result, measure: Measure, limits: DiagLimits) -> None:
    """A GPU that NVIDIA's own diagnostic fails is one that NVIDIA takes back.

    `dcgmi diag` through the host engine. A failed test that speaks of memory, links, heat, power or
    speed blames the hardware; one that speaks of a setting, a process, a library or an Xid, or of
    nothing, blames nobody (persistence mode: `nvidia-smi -pm 1`), and so does NVLink that is down,
    since cards without a bridge have it down. DCGM that is not installed is no fault unless the spec requires
    it; DCGM whose host engine does not answer, that hangs, is busy or skips all that it should test
    leaves the node unjudged. A pass is not proof: several of its tests pass or are skipped where nothing was tested.
    """
    if not _available(result, measure, _ABSENCE, required=limits.required):
        return
    counts = result["counts"]
    failed = result["failed"]
    ran = counts["pass"] + counts["warn"] + len(failed)
    measure(
        "tests that ran",
        ran,
        at_least=1,
        cause=Cause.ENVIRONMENT,
        detail=f"level {result['level']}, DCGM {result['version']}; {result['why']}",
    )
    measure("tests that were skipped", counts["skip"], detail=", ".join(result["skipped"]))
    measure("tests with a warning", counts["warn"], detail=result["why"])
    board = [f for f in failed if f["of_the_board"]]
    others = [f for f in failed if not f["of_the_board"]]
    measure("failures of the hardware", len(board), at_most=0, detail=_shown(board))
    measure(
        "failures of the set-up",
        max(len(others), int(result["grade"] == "fail" and not failed)),
        at_most=0,
        cause=Cause.ENVIRONMENT,
        detail=_shown(others) or result["why"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthLimits:
    """How DCGM's health watches are asked. `host` and `nvlink` as for the diagnostic."""

    required: bool = False
    host: str = ""
    nvlink: bool | None = None


@check(
    "node.dcgm.health",
    kinds=(DeviceKind.NODE,),
    remedy=Remedy.RETEST,
    cause=Cause.ENVIRONMENT,
    limits=HealthLimits,
    work=Work(
        call="nodeproof.probes.dcgm:health",
        from_limits=("host", "nvlink"),
        deadline_s=150,
    ),
    plant=(
        altered("diagnostics available", **_ABSENT),
        altered("GPUs or systems that failed", **_RAN, systems=["Memory"], failed=[]),
    ),
)
def test_health(result: Result, measure: Measure, limits: HealthLimits) -> None:
    """A fault that DCGM's watches have seen already will be seen by the job.

    `dcgmi health -c`: what the host engine saw since somebody set its watches, which is not done
    here. It names a subsystem and no proof, so a failure leaves the node unjudged; the checks of
    memory, links and the kernel's log find the cause. Watches that nobody set are no fault unless
    the spec requires them (`dcgmi health -s a` sets them).
    """
    if not _available(result, measure, _NO_WATCHES, required=limits.required):
        return
    measure(
        "GPUs or systems that failed",
        max(len(result["failed"]), len(result["systems"]), int(result["grade"] == "fail")),
        at_most=0,
        detail=f"{result['why']}; {_shown(result['failed'])}",
    )
    measure("warned", int(result["grade"] == "warn"), detail=result["why"])


def _available(
    result: Result, measure: Measure, optional: frozenset[str], *, required: bool
) -> bool:
    """Whether there is something to judge. Raises `CannotMeasure` where silence says something."""
    silent = result["state"] in optional
    measure(
        "diagnostics available",
        min(result["installed"], 0) if silent else 1,
        at_least=int(required),
        cause=Cause.ENVIRONMENT,
        detail=result["why"],
    )
    judged = result["state"] == "ran" and result["grade"] != "error"
    if not silent and not judged and not result["failed"]:
        raise CannotMeasure(result["why"])
    return not silent


def _shown(failed: list[dict[str, Any]]) -> str:
    """Name each GPU by what does not move, as far as DCGM says which it means."""
    parts = []
    for one in failed[:_SHOWN]:
        names = [str(one[name]) for name in ("uuid", "pci") if one.get(name)]
        number = "no single GPU" if one["gpu"] is None else f"DCGM's GPU {one['gpu']}"
        test = f"{one['name']} " if one.get("name") else ""
        says = f": {one['says'][:300]}" if one.get("says") else ""
        parts.append(f"{test}on {', '.join([*names, number])}{says}")
    more = f"; and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
    return "; ".join(parts) + more
