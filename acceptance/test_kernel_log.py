"""The kernel's log: what it says of every part of the node, since boot and during this run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodeproof.checks import Cause, DeviceKind, Measure, Plant, Remedy, Result, Work, altered, check

_SHOWN = 4  # events in one sentence; the others are in the evidence
# What an event asks for, as far as this framework does it. The log keeps an event until the machine
# starts again, so that no reset of one part lets a node pass here; whoever is to call the support
# first sees whether the fault comes again.
_REMEDIES = {"replace": Remedy.REPLACE}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLimits:
    """Whether the log has to begin with the boot. False where a site keeps its logs elsewhere."""

    whole: bool = True


@check(
    "node.log.events",
    kinds=(DeviceKind.NODE,),
    remedy=Remedy.REBOOT,
    limits=EventLimits,
    work=Work(call="nodeproof.probes.kernel_events:since_boot"),
    plant=(
        Plant(args={"plant": "line"}, breaks=("fatal events",)),
        altered("events of the set-up", set_up_events=1),
        altered("damaged parts of the log", damaged=1),
        altered("log reaches back to the boot", complete=-1),
    ),
)
def test_events(result: Result, measure: Measure, limits: EventLimits) -> None:
    """A fault that the kernel has logged since boot comes again in the job.

    The whole log of this boot, of all parts: GPUs (Xid, also without a number), switches (SXid),
    PCI Express (AER), memory (EDAC, MCE, firmware records), network adapters, tasks that hang. An
    event that needs no catalogue to be called a fault is a fail; it names the part, the code and
    what to do. A driver that did not load or does not know its device, a kernel warning in one, a
    task that hangs or a processor that is held up may be the set-up's, a disk's or the host's of a
    virtual machine: they leave the node undecided. What may have a harmless cause, as Xids of a
    program have, is shown and not judged. The log keeps an event until the machine starts again, so
    a reset of the GPU does not clear it: reboot, and if it comes again, replace the part. A log that
    can't be read is an error. One that is damaged, or does not begin with the boot, can show a fault
    and never that there is none: let the journal be read too (/var/log/journal), or reboot.
    """
    _judged(result, measure, "fatal events")
    measure(
        "log begins",
        result["first_at"],
        unit="s after boot",
        detail="; ".join([f"read from {result['source']}", *result["notes"]]),
    )
    measure(
        "log reaches back to the boot",
        int(result["complete"]),
        at_least=int(limits.whole),
        cause=Cause.ENVIRONMENT,
        detail=(
            f"its first line is of {result['first_at']:.0f} s after boot: older ones were pushed out "
            f"or cleared; {'; '.join(result['notes']) or 'nothing else was read'}: let the node's "
            "/var/log/journal be read, or reboot the node and test again"
        ),
    )


@check(
    "node.log.new",
    kinds=(DeviceKind.NODE,),
    remedy=Remedy.REBOOT,
    work=Work(
        call="nodeproof.probes.kernel_events:since_start",
        before="nodeproof.probes.kernel_log:cursor",
        last=True,
    ),
    plant=(
        Plant(args={"plant": "line"}, breaks=("new fatal events",)),
        altered("events of the set-up", set_up_events=1),
        altered("damaged parts of the log", damaged=1),
        altered("log reaches back to the start", reaches_back=False),
    ),
)
def test_new(result: Result, measure: Measure) -> None:
    """A node whose kernel logs a fault while it is tested will log it in the job.

    As for the events since boot, from before the first check to after the last, and so of what the
    load has brought out. Errors that were corrected, of PCI Express or memory, and Xids of a
    program are shown and not judged here. Reboot; if it comes again under load, replace the part
    that is named.
    """
    _judged(result, measure, "new fatal events")
    measure(
        "log reaches back to the start",
        int(result["reaches_back"]),
        at_least=1,
        cause=Cause.ENVIRONMENT,
        detail="older lines were pushed out by newer ones: find out what floods the kernel's log",
    )


def _judged(result: Result, measure: Measure, name: str) -> None:
    fatal = [e for e in result["events"] if e["severity"] == "fatal"]
    warnings = [e for e in result["events"] if e["severity"] == "warning"]
    set_up = [e for e in fatal if e["software"]]
    fatal = [e for e in fatal if not e["software"]]
    measure(
        "events of the set-up",
        result["set_up_events"],
        at_most=0,
        cause=Cause.ENVIRONMENT,
        detail=_told(set_up),
    )
    measure(
        name,
        result["fatal_events"] - result["set_up_events"],
        at_most=0,
        remedy=max((_remedy(e) for e in fatal), key=lambda r: r.severity, default=None),
        detail=_told(fatal),
    )
    measure("warnings", result["warning_events"], detail=_told(warnings))
    measure("notices", result["info_events"])
    notes = "; ".join(result["notes"])
    measure("messages not readable", result["unreadable"], detail=notes)
    measure(
        "damaged parts of the log",
        result["damaged"],
        at_most=0,
        cause=Cause.ENVIRONMENT,
        detail=f"{notes}: give the container CAP_SYSLOG, so that the kernel's own memory is read, or reboot the node",
    )


def _remedy(event: Mapping[str, Any]) -> Remedy:
    return _REMEDIES.get(event["remedy"], Remedy.REBOOT)


def _told(events: list[Mapping[str, Any]]) -> str:
    told = [_one(event) for event in events[:_SHOWN]]
    more = [f"and {len(events) - _SHOWN} more"] if len(events) > _SHOWN else []
    return "; ".join([*told, *more])


def _one(event: Mapping[str, Any]) -> str:
    name = event["source"] if event["code"] is None else f"{event['source']} {event['code']}"
    where = event["device"] or event.get("unit") or "no part named"
    count = f", {event['count']} times" if event.get("count", 1) > 1 else ""
    at = "" if event["at"] is None else f" at {event['at']:.6f}"
    remedy = event["remedy"].replace("_", " ")
    return f"{name} on {where}{at}{count} (remedy {remedy}): {event['text']}"
