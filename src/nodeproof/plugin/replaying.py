"""Answer for a node out of its recording: no worker is started and no driver is touched."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodeproof.checks import Work
from nodeproof.child import Raised
from nodeproof.model import Cause, Device
from nodeproof.plugin.answering import Answerer
from nodeproof.plugin.options import Options
from nodeproof.plugin.performing import Done, Note, Performer
from nodeproof.plugin.recording import Recording, is_reading
from nodeproof.plugin.runner import Record, Runner


def performer(options: Options, *, record: Record, note: Note, output: Path) -> Performer:
    """Who does the work of this run: its workers, or the record of what was done before."""
    ends = time.monotonic() + options.deadline_s - _reserve(options.deadline_s)
    if options.replay:
        return Replayer(recording=options.replay, ends=ends)
    if options.group:
        return Answerer(group=options.group, ends=ends)
    return Runner(
        options=options,
        record=record,
        ends=ends,
        substitutes={
            "@device": options.target.value,
            "@cpu_devices": options.cpu_devices,
            "@output": str(output.absolute()),
        },
        note=note,
    )


def _reserve(deadline_s: float) -> float:
    """Seconds of the deadline that are kept for ending workers and writing reports."""
    return min(15.0, deadline_s / 10)


@dataclass(slots=True, kw_only=True)
class Replayer:
    """Stands where the workers of a run stand."""

    recording: Recording
    ends: float
    substitutes: dict[str, Any] = field(default_factory=dict)

    def admit(self, devices: Sequence[Device]) -> None:
        """Do nothing: no device needs a worker."""

    def watch(self) -> None:
        """Do nothing: the samples that belong to an answer were recorded with it."""

    def note_starts(self, works: Sequence[tuple[Work, Device]]) -> None:
        """Do nothing: an answer that has to know of the start was recorded knowing it."""

    def perform(
        self,
        work: Work,
        args: Mapping[str, Any],
        devices: Sequence[Device],
        *,
        load_s: float,
    ) -> dict[str, Done]:
        """Return what became of this work when the node was recorded, by device id."""
        whole = {**args, "seconds": load_s} if load_s else args
        return {
            device.id: self.recording.answer(work, whole, device) or _unanswered(work, device)
            for device in devices
        }

    def interrupt(self, reason: str) -> None:
        """Do nothing: nothing that is done here takes time."""

    def close(self, *, hurried: bool) -> list[str]:  # noqa: ARG002  nothing was started
        """Do nothing."""
        return []


def _unanswered(work: Work, device: Device) -> Done:
    why = (
        "it was recorded with another version, profile or spec: record the node again with these"
        if is_reading(work.call)
        else "only what is read of a node is recorded"
    )
    reply = Raised(
        type="CannotMeasure",
        message=f"the recording holds no answer to {work.call} on {device}: {why}",
        cause=Cause.ENVIRONMENT.value,
        trace="",
    )
    return Done(reply=reply, seconds=0.0, samples=(), since={})
