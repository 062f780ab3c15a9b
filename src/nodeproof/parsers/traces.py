"""What the kernel prints of itself: warnings behind a driver's lines, and stack traces.

A warning of the kernel ("cut here") right behind the lines of one driver is that driver's. A piece
of a trace without its head proves nothing, and is no silence either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from nodeproof.parsers.log_lines import Line, address_of
from nodeproof.parsers.reports import Report

_MARK = re.compile(r"-+\[ cut here \]-+")
_DRIVER = re.compile(
    r"(?P<efa>infiniband efa_\d+:|Elastic Fabric Adapter)|"
    r"(?P<name>efa|mlx5_core|NVRM|nvidia(?:-\w+)?)(?::| (?P<device>[0-9a-fA-F]{4}:[0-9a-fA-F:.]+):)"
)
_SOURCES = {"efa": "efa", "mlx5_core": "mlx5"}  # the others are NVIDIA's
# The queue watchdog warns in the same way; it has a line of its own.
_WATCHDOG = re.compile(r".*\b(?:dev_watchdog|sch_generic\.c)|NETDEV WATCHDOG")
_FRAME = re.compile(
    r"(?:\[<[0-9a-f]+>\] )?(?:\? )?[\w.]+\+0x[0-9a-f]+/0x[0-9a-f]+ \[(?:nvidia\w*|mlx5\w*|efa|ib_\w+)"
)
_FOLLOWING = 3  # lines behind the mark that say what it is


@dataclass(slots=True)
class Traces:
    """Reads line by line, whatever else has taken a line: these stand between them."""

    before: list[Line] = field(default_factory=list)  # the last few
    marks: list[tuple[Report, int]] = field(default_factory=list)  # with the lines seen since
    frames: list[Line] = field(default_factory=list)

    def read(self, line: Line) -> None:
        """Look at a line and remember it."""
        if self.marks and self.marks[-1][1] < _FOLLOWING:
            if _WATCHDOG.match(line.text):
                self.marks.pop()
            else:
                self.marks[-1] = (self.marks[-1][0], self.marks[-1][1] + 1)
        if _MARK.match(line.text):
            self._mark(line)
        elif _FRAME.match(line.text):
            self.frames.append(line)
        self.before = [*self.before, line][-_FOLLOWING:]

    def _mark(self, line: Line) -> None:
        drivers = [_DRIVER.match(before.text) for before in reversed(self.before)]
        if not drivers or drivers[0] is None:
            return
        source, device = _source(drivers[0]), None
        for found in drivers:
            if found is None or _source(found) != source:
                break
            device = device or address_of(found["device"] or "")
        report = Report(source=source, kind=f"{source}.trace", device=device, line=line)
        self.marks.append((report, 0))

    def reports(self) -> Iterator[Report]:
        """Every warning that stands right behind a driver's line."""
        for report, _ in self.marks:
            yield replace(report)


def _source(found: re.Match[str]) -> str:
    return "efa" if found["efa"] else _SOURCES.get(found["name"], "nvrm")
