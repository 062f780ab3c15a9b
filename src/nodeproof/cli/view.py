"""What a person sees of a run: a live view on a terminal, one line per event anywhere else.

A view reads the lines of the results file as they come, and nothing else.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from nodeproof.reports.legible import legible

_SAMPLE_LINE_S = 15.0  # between two lines of telemetry of one device in a log


class View(Protocol):
    """Shows a run."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was."""

    def opening(self, *, target: str, cpu_devices: int, profile: str) -> None:
        """Say first of all what this run can prove."""

    def show(self, lines: Iterable[bytes]) -> None:
        """Take in whole lines of the results file."""

    def line(self, text: str) -> None:
        """Say one sentence."""


def of(stream: TextIO, *, deadline_s: float) -> View:
    """Choose the view for a stream."""
    if stream.isatty():
        from nodeproof.cli.live import Live  # noqa: PLC0415  rich is slow to load and not needed in a log

        return Live(deadline_s=deadline_s)
    return Log(stream)


def opening(*, target: str, cpu_devices: int, profile: str) -> str:
    """Return the first line of a run."""
    if target == "cpu":
        some = "1 CPU device" if cpu_devices == 1 else f"{cpu_devices} CPU devices"
        return (
            f"REHEARSAL on {some}, profile {profile}: everything is real but the GPU; "
            "this run can never release a node"
        )
    return f"nodeproof: profile {profile} on the GPUs of this node"


def _held_against(plan: Mapping[str, Any]) -> str:
    """Return which spec a run is held against, and whether it knows how many devices to expect."""
    spec = plan.get("spec") or {}
    named = f"spec {spec['name']}" if spec.get("name") else f"{spec.get('source') or 'no spec'}"
    counted = plan.get("expected_devices") is not None
    return named if counted else f"{named}; the number of devices is not held against anything"


@dataclass(slots=True)
class Story:
    """Turns records into sentences, each once."""

    planned: int = 0
    done: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    trials: set[str] = field(default_factory=set)
    missed: dict[tuple[str, str], str] = field(default_factory=dict)

    def tell(self, record: Mapping[str, Any]) -> str:
        """Return one line on a record, `""` for what needs no words."""
        match record:
            case {"type": "plan", "checks": list(checks), "devices": list(devices), "node": node}:
                self.planned = len(checks)
                self.labels = {d["id"]: d["label"] for d in devices}
                self.trials = {c["key"]["check"] for c in checks if c["trial"]}
                under = ", ".join(
                    self.labels[d["id"]] for d in devices if d["kind"] in {"gpu", "cpu"}
                )
                return (
                    f"plan: {len(checks)} findings to make; devices: {under or 'none'}; "
                    f"{node.get('devices_say', '')}; {_held_against(record)}"
                )
            case {"type": "finding", "check": check, "device": device, "outcome": outcome}:
                self.done += 1
                said = f": {record['summary']}" if record.get("summary") else ""
                label, name = device["label"], device["id"]
                where = label if outcome == "pass" or label == name else f"{label} {name}"
                word = "trial" if check in self.trials else outcome
                missed = self.missed.get((check, name), "")
                if missed and outcome != "error":  # of what was not measured nothing is planted
                    said += f"; planted fault MISSED: {missed}"
                return f"{word:5} {check} on {where}{said}"
            case {"type": "selftest", "caught": False, "check": check, "device": device}:
                self.missed[check, device["id"]] = str(record["summary"])
                return ""
            case {"type": "event", "name": "check.started" | "memory.filled"}:
                return ""
            case {"type": "event", "name": name}:
                rest = {
                    k: v
                    for k, v in record.items()
                    if k not in {"type", "seq", "name", "t", "device"}
                }
                text = rest.pop("text", "")
                more = ", ".join(f"{k} {v}" for k, v in rest.items() if isinstance(v, str | int))
                on = self.labels.get(str(record.get("device", "")), "")
                return " ".join(p for p in ("event", str(name), on, str(text), more) if p)
        return ""


def records(lines: Iterable[bytes]) -> Iterable[Mapping[str, Any]]:
    """Read lines; what is no record is for the verdict to judge and not for a view."""
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


def guarded(tell: Callable[[Mapping[str, Any]], None], lines: Iterable[bytes]) -> str:
    """Show each record; return what went wrong with one, `""` if nothing did.

    What a line holds may be anything, and what can't be shown must not cost the run its reports.
    """
    wrong = ""
    for record in records(lines):
        try:
            tell(record)
        except Exception as error:  # noqa: BLE001  what can't be shown must not cost the reports
            wrong = f"a line of the results can't be shown: {type(error).__name__}: {error}"
    return wrong


def sample_words(record: Mapping[str, Any]) -> str:
    """Return what one sample of telemetry says, in a few words."""
    words = []
    for key, unit, places in (
        ("tflops", "TFLOP/s", 2),
        ("power_w", "W", 0),
        ("temperature_c", "C", 0),
        ("sm_mhz", "MHz", 0),
        ("mhz", "MHz", 0),
    ):
        value = record.get(key)
        if isinstance(value, float) or (type(value) is int and abs(value) < 1 << 53):
            words.append(f"{value:.{places}f} {unit}")
    share = record.get("utilisation")
    if isinstance(share, int | float):
        words.append(f"{100 * share:.0f} % busy")
    return ", ".join(words)


class Log:
    """Lines for a pipe or a pod's log: no control codes, flushed as they come."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._began = time.monotonic()
        self._story = Story()
        self._sampled: dict[str, float] = {}

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Nothing to restore."""

    def opening(self, *, target: str, cpu_devices: int, profile: str) -> None:
        """Say what this run can prove."""
        self.line(opening(target=target, cpu_devices=cpu_devices, profile=profile))

    def show(self, lines: Iterable[bytes]) -> None:
        """Say one line per event, and now and then one on how each device does."""
        wrong = guarded(self._tell, lines)
        if wrong:
            self.line(wrong)

    def _tell(self, record: Mapping[str, Any]) -> None:
        now = time.monotonic()
        said = self._story.tell(record)
        if record.get("type") == "telemetry":
            device = str(record.get("device", ""))
            if now - self._sampled.get(device, 0.0) >= _SAMPLE_LINE_S:
                self._sampled[device] = now
                label = self._story.labels.get(device, device)
                said = f"      {label}: {sample_words(record)}"
        if said:
            self.line(f"{now - self._began:6.1f} s  {said}")

    def line(self, text: str) -> None:
        """Write one line."""
        # A reader that went away does not stop a run.
        try:
            self._stream.write(legible(text).replace("\n", "\\n") + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            pass
