"""What the kernel prints of itself: warnings behind a driver's lines, and stack traces.

An exception is the driver's in whose code it was. A warning of the kernel ("cut here") right behind the lines of one driver is that driver's. A piece
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
# An exception of the kernel's own code; the place where it was says whose code that is.
_OOPS = re.compile(
    r"BUG: unable to handle |BUG: kernel NULL pointer|kernel BUG at "
    r"|(?:Internal error|Oops|general protection fault|stack segment|divide error|invalid opcode|int3)"
    r"\b.*\[#\d+\]"
)
_PLACE = re.compile(
    r"(?:(?:RIP: \d{4}:|pc : )[\w.]+\+0x[0-9a-f]+/0x[0-9a-f]+(?: \[(?P<module>nvidia|mlx5|efa\]))?"
    r"|kernel BUG at \S{0,200}?\b(?P<file>nvidia|mlx5|efa)\b)"
)
_SOURCE_OF = {"nvidia": "nvrm", "mlx5": "mlx5", "efa": "efa"}
_NEAR = 8_000  # bytes within which an exception says where it was
_FOLLOWING = 3  # lines behind the mark that say what it is


@dataclass(slots=True)
class Traces:
    """Reads line by line, whatever else has taken a line: these stand between them."""

    before: list[Line] = field(default_factory=list)  # the last few
    marks: list[tuple[Report, int]] = field(default_factory=list)  # with the lines seen since
    frames: list[Line] = field(default_factory=list)
    oopses: list[Report] = field(default_factory=list)
    open: bool = False  # whether the last of them has not said yet where it was

    def read(self, line: Line) -> None:
        """Look at a line and remember it."""
        if self.marks and self.marks[-1][1] < _FOLLOWING:
            if _WATCHDOG.match(line.text):
                self.marks.pop()
            else:
                self.marks[-1] = (self.marks[-1][0], self.marks[-1][1] + 1)
        self._oops(line)
        if _MARK.match(line.text):
            self._mark(line)
        elif _FRAME.match(line.text):
            self.frames.append(line)
        self.before = [*self.before, line][-_FOLLOWING:]

    def _oops(self, line: Line) -> None:
        last = self.oopses[-1] if self.oopses else None
        near = last is not None and line.place - last.line.place <= _NEAR
        if _OOPS.match(line.text) and not (near and self.open):
            last = Report(source="kernel", kind="kernel.oops", line=line)
            self.oopses.append(last)
            self.open = near = True
        if last is None or not near or not self.open:
            return
        found = _PLACE.match(line.text)
        if found is None:
            return
        if source := _SOURCE_OF.get((found["module"] or found["file"] or "").rstrip("]")):
            self.oopses[-1] = replace(last, source=source, kind=f"{source}.trace")
        self.open = False

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
        """Every exception, and every warning that stands right behind a driver's line."""
        yield from self.oopses
        for report, _ in self.marks:
            yield replace(report)


def _source(found: re.Match[str]) -> str:
    return "efa" if found["efa"] else _SOURCES.get(found["name"], "nvrm")
