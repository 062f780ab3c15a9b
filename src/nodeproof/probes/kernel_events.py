"""What the kernel's log says of every part of the node: since boot, and since the run began."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodeproof.parsers.events import Event, Severity
from nodeproof.parsers.kernel_log import events as read_events
from nodeproof.probes.kernel_lines import Log, lines_of
from nodeproof.probes.log_sources import current
from nodeproof.worker import Context

# An address that no machine has, so that a planted fault is told from a real one.
_NOWHERE = "ffff:ff:1f.0"
_KEPT = 256  # events of each severity in an answer; a flood is one event with a count


def since_boot(context: Context, *, plant: str = "") -> dict[str, Any]:
    """Work function: the events in the kernel's log of this boot.

    `events` are mappings of `Event`, the gravest first; `source` says where the log was read,
    `first_at` and `last_at` its first and last second by its own clock, `complete` whether it
    begins with the boot, `set_up_events` how many of the fatal ones software alone may explain, `lines` and `unreadable` how many it has, `damaged` how many parts of it
    nobody can read, `notes` what is missing. With
    `plant="line"`, a line of a GPU that fell off the bus is put at the end of what was read;
    `planted` is that event and `found` what the reader made of it. Raises `Unreadable` where the
    log can't be read; `ValueError` for an unknown plant.
    """
    return _answer(current(context), None, plant)


def since_start(context: Context, *, before: Mapping[str, Any], plant: str = "") -> dict[str, Any]:
    """Work function: the events after `before`, which is what `kernel_log:cursor` gave.

    As `since_boot`; and `reaches_back`, whether what was read begins no later than that: older
    lines of a full buffer are gone. An event that began before and was reported again since is one
    of those after.
    """
    since = float(before["at"])
    log = current(context, since=since)
    return {**_answer(log, since, plant), "reaches_back": log.reaches(since)}


def _answer(log: Log, since: float | None, plant: str) -> dict[str, Any]:
    if plant not in {"", "line"}:
        raise ValueError(f"plant {plant!r}: this probe knows 'line'")
    text = log.text
    if plant:
        at = max(log.last_at, since or 0.0) + 1
        said = f"NVRM: Xid (PCI:{_NOWHERE}): 79, planted: GPU has fallen off the bus."
        text += lines_of(3, at, said)
    events = [e for e in read_events(text) if since is None or _last(e) > since]
    events.sort(key=lambda event: list(Severity).index(event.severity))  # stable: else as they came
    counts = {f"{s}_events": sum(e.severity is s for e in events) for s in Severity}
    set_up = sum(e.severity is Severity.FATAL and e.software for e in events)
    return {
        "events": [event.fields() for event in _fewer(events)],
        **counts,
        "set_up_events": set_up,
        "planted": [_sketch("xid", 79, _NOWHERE, Severity.FATAL)] if plant else [],
        "found": [
            _sketch(e.source, e.code, e.device, e.severity) for e in events if e.device == _NOWHERE
        ],
        "source": log.source,
        "first_at": log.first_at,
        "last_at": log.last_at,
        "complete": log.complete,
        "lines": log.text.count("\n"),
        "unreadable": log.unreadable,
        "damaged": log.damaged,
        "notes": list(log.notes),
    }


def _last(event: Event) -> float:
    """Time of the last report; one without a time counts as new, since it can't be called old."""
    times = [at for at in (event.at, event.last_at) if at is not None]
    return max(times, default=float("inf"))


def _fewer(events: list[Event]) -> list[Event]:
    return [e for s in Severity for e in [e for e in events if e.severity is s][:_KEPT]]


def _sketch(source: str, code: int | None, device: str | None, severity: str) -> dict[str, Any]:
    return {"source": source, "code": code, "device": device, "severity": str(severity)}
