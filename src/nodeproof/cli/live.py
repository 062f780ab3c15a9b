"""The view on a terminal: time left, and one row per device."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live as Display
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from nodeproof.cli import view
from nodeproof.reports.legible import legible

_COLOURS = {"pass": "green", "fail": "bold red", "error": "yellow", "skip": "cyan"}


class Live:
    """Findings scroll by above a table that stays."""

    def __init__(self, *, deadline_s: float, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._deadline_s = deadline_s
        self._began = time.monotonic()
        self._story = view.Story()
        self._checks: dict[str, str] = {}
        self._samples: dict[str, Mapping[str, Any]] = {}
        self._bad: dict[str, int] = {}
        self._running = ""
        self._display = Display(
            console=self._console, refresh_per_second=4, get_renderable=self._screen, transient=True
        )

    def __enter__(self) -> Self:
        """Start drawing."""
        self._display.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was, the last lines standing."""
        self._display.stop()

    def opening(self, *, target: str, cpu_devices: int, profile: str) -> None:
        """Say what this run can prove."""
        self.line(view.opening(target=target, cpu_devices=cpu_devices, profile=profile))

    def show(self, lines: Iterable[bytes]) -> None:
        """Take in what the results file has got."""
        wrong = view.guarded(self._tell, lines)
        if wrong:
            self.line(wrong)

    def _tell(self, record: Mapping[str, Any]) -> None:
        said = self._story.tell(record)
        match record:
            case {"type": "telemetry", "device": str(device)}:
                kept = {**self._samples.get(device, {}), **record}
                kept["tflops"] = record.get("tflops")  # only while something computes
                self._samples[device] = kept
            case {"type": "event", "name": "check.started", "check": str(check)}:
                self._running = check
            case {"type": "finding", "device": {"id": str(device)}, "outcome": str(outcome)}:
                if outcome != "pass":
                    self._bad[device] = self._bad.get(device, 0) + 1
                self._console.print(Text(legible(said), style=_COLOURS.get(outcome, "")))
                said = ""
        if said:
            self.line(said)

    def line(self, text: str) -> None:
        """Print one sentence above the table."""
        self._console.print(Text(legible(text)))

    def _screen(self) -> Group:
        left = max(0.0, self._deadline_s - (time.monotonic() - self._began))
        head = Table.grid(padding=(0, 2))
        planned = self._story.planned
        head.add_row(
            ProgressBar(total=max(1, planned), completed=self._story.done, width=40),
            f"{self._story.done} of {planned} findings" if planned else "starting",
            f"{int(left // 60)}:{int(left % 60):02} left",
        )
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("device", "runs", "TFLOP/s", "power", "temp", "clock", "findings"):
            table.add_column(name, justify="left" if name in {"device", "runs"} else "right")
        for device, label in self._story.labels.items():
            sample = self._samples.get(device)
            if sample is None:
                continue
            bad = self._bad.get(device, 0)
            table.add_row(
                Text(legible(label)),
                Text(legible(self._running)),
                _cell(sample, ("tflops",), "", 2),
                _cell(sample, ("power_w",), " W", 0),
                _cell(sample, ("temperature_c",), " C", 0),
                _cell(sample, ("sm_mhz", "mhz"), " MHz", 0),
                Text(f"{bad} bad" if bad else "good", style="bold red" if bad else "green"),
            )
        return Group(table, head)


def _cell(sample: Mapping[str, Any], keys: tuple[str, ...], unit: str, places: int) -> str:
    for key in keys:
        value = sample.get(key)
        if isinstance(value, float) or (type(value) is int and abs(value) < 1 << 53):
            return f"{value:.{places}f}{unit}"
    return "-"
