"""Errors that PCI Express devices count: before the run, and what the load adds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodeproof.checks import (
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

_PLANTED = "0000:ff:1f.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorLimits:
    """Errors that PCI Express devices may have counted."""

    counting: int = 0  # devices that count; none do where firmware handles errors first
    fatal: int = 0
    nonfatal: int | None = None  # before the run: reading a register that isn't there makes one


def _planted_errors(result: Result) -> dict[str, Any]:
    many = {"Malformed TLP": 1 << 40}
    counts = {"fatal": many, "nonfatal": many, "corrected": many}
    return {**result, "counts": {**result["counts"], _PLANTED: counts}}


@check(
    "node.bus.errors",
    kinds=(DeviceKind.NODE,),
    remedy=Remedy.REBOOT,
    limits=ErrorLimits,
    work=Work(call="nodeproof.probes.aer:errors", deadline_s=30),
    plant=(
        altered("off the bus", off_bus=[_PLANTED]),
        altered("not told", unseen=[_PLANTED]),
        altered("counting", counts=None),
        Plant(alter=_planted_errors, breaks=("fatal",)),
    ),
)
def test_errors(result: Result, measure: Measure, limits: ErrorLimits) -> None:
    """A device that made a fatal error on the bus has lost transactions, and will again.

    Counted by the kernel since it found the device, for GPUs, NVSwitches, RDMA adapters and the
    ports above them; often the port counts what the device below it did. A fatal one is a fail;
    others are shown. Usual causes: a card, riser or cable that is not seated, or failing hardware.
    A reset of a GPU may leave one behind, so reboot, and reseat or replace the device if it comes
    again. Where firmware handles errors first nothing is counted here: see the kernel's log.
    """
    off, counts = result["off_bus"], result["counts"]
    measure("watched", len(result["watched"]), unit="devices")
    measure(
        "counting",
        -1 if counts is None else len(counts),
        unit="devices",
        at_least=limits.counting,
        cause=Cause.ENVIRONMENT,
        detail="let the kernel handle these errors (native AER) in the firmware, or correct the spec",
    )
    measure(
        "off the bus",
        len(off),
        at_most=0,
        detail=f"{', '.join(off)}: in the kernel's list, and the bus reads all ones there",
    )
    _measure_unseen(result["unseen"], measure)
    if counts:
        _measure_errors(counts, measure, limits)


def _measure_unseen(unseen: list[str], measure: Measure) -> None:
    """The first bytes of a device's registers are there for everybody to read."""
    measure(
        "not told",
        len(unseen),
        at_most=0,
        cause=Cause.ENVIRONMENT,
        detail=f"{', '.join(unseen)}: `config` can't be read, so whether they answer is not known: see dmesg, and mount the node's /sys",
    )


def _measure_errors(counts: Mapping[str, Any], measure: Measure, limits: ErrorLimits) -> None:
    measure(
        "fatal",
        _total(counts, "fatal"),
        at_most=limits.fatal,
        detail=f"{_worst(counts, 'fatal')}: reboot; if it comes again, reseat or replace the device",
    )
    measure(
        "nonfatal",
        _total(counts, "nonfatal"),
        at_most=limits.nonfatal,
        cause=Cause.ENVIRONMENT,
        detail=_worst(counts, "nonfatal"),
    )
    measure("corrected", _total(counts, "corrected"), detail=_worst(counts, "corrected"))


def _errors(counts: Mapping[str, Any], severity: str) -> list[tuple[int, str]]:
    """Errors by name and device, without the kernel's totals, which count messages."""
    return sorted(
        (
            (count, f"{address} {name} {count}")
            for address, found in counts.items()
            for name, count in found[severity].items()
            if not name.startswith("TOTAL_")
        ),
        reverse=True,
    )


def _total(counts: Mapping[str, Any], severity: str) -> int:
    named = sum(count for count, _ in _errors(counts, severity))
    messages: int = sum(
        count
        for found in counts.values()
        for name, count in found[severity].items()
        if name.startswith("TOTAL_")
    )
    return max(named, messages)  # some kernels name none of what they count


def _worst(counts: Mapping[str, Any], severity: str) -> str:
    return ", ".join(text for _, text in _errors(counts, severity)[:4])


@dataclass(frozen=True, slots=True, kw_only=True)
class NewErrorLimits:
    """Errors that may come while the node is under load."""

    fatal: int = 0
    nonfatal: int = 0


@check(
    "node.bus.new_errors",
    kinds=(DeviceKind.NODE,),
    remedy=Remedy.REBOOT,
    limits=NewErrorLimits,
    work=Work(
        call="nodeproof.probes.aer:errors_since",
        before="nodeproof.probes.aer:errors",
        last=True,
        deadline_s=30,
    ),
    plant=(
        altered("off the bus", off_bus=[_PLANTED]),
        altered("not told", unseen=[_PLANTED]),
        Plant(alter=_planted_errors, breaks=("fatal", "nonfatal")),
        Plant(
            alter=lambda result: {
                **_planted_errors(result),
                "before": {**result["before"], _PLANTED: {}},
                "counts": result["counts"],
            },
            breaks=("no longer counting",),
        ),
    ),
)
def test_new_errors(result: Result, measure: Measure, limits: NewErrorLimits) -> None:
    """A bus that makes errors under load makes them in the job, and slows it down or ends it.

    The counters of the bus from before the first check to after the last. A new fatal error is a
    fail of the hardware. A new non-fatal one is a transaction that was lost: it blames nobody by
    itself, since a tool that reads a register that isn't there makes one too, and asks for another
    test with nothing else running. Corrected ones are shown: no rate for sound machines is known.
    """
    off, before, counts = result["off_bus"], result["before"], result["counts"]
    gone = sorted(before.keys() - counts.keys())
    measure("watched", len(result["watched"]), unit="devices")
    measure("off the bus", len(off), at_most=0, detail=f"{', '.join(off)}: lost during the run")
    _measure_unseen(result["unseen"], measure)
    measure(
        "no longer counting",
        len(gone),
        at_most=0,
        cause=Cause.ENVIRONMENT,
        detail=f"{', '.join(gone)}: removed from the bus during the run, or reset; test again",
    )
    new = {address: _grown(before.get(address, {}), found) for address, found in counts.items()}
    if not new:
        return
    for severity, most, cause in (
        ("fatal", limits.fatal, None),
        ("nonfatal", limits.nonfatal, Cause.ENVIRONMENT),
        ("corrected", None, None),
    ):
        measure(
            severity, _total(new, severity), at_most=most, cause=cause, detail=_worst(new, severity)
        )


def _grown(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """What was counted in between; a counter that went back began again at zero."""
    return {
        severity: {
            name: count - then
            if count >= (then := before.get(severity, {}).get(name, 0))
            else count
            for name, count in found.items()
        }
        for severity, found in now.items()
    }
