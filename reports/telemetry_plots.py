"""Power, temperature, clock and utilisation of each device over time, as numbers and as SVG.

`traces` needs only the standard library; `draw` loads matplotlib, which a base install does not
have. Nothing of a device's own words gets into a plot: only numbers and the names below.
"""

from __future__ import annotations

import atexit
import io
import math
import os
import re
import shutil
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

POINTS = 600  # at most, per line
_SANE = 1e9  # a larger reading is no reading, and no axis could show it
_GAP = (math.nan, math.nan)

Point = tuple[float, float]  # seconds since the run started, or number of the sample; reading


class PlotsUnavailable(Exception):  # noqa: N818  a state of the installation, not an error
    """No plot can be drawn here. Says why, in a sentence for the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A key of a telemetry line."""

    key: str
    title: str
    unit: str
    panel: str  # what shares an axis
    colour: str  # told apart on white and on black


QUANTITIES = (
    Quantity(key="power_w", title="power", unit="W", panel="power, W", colour="#d9541e"),
    Quantity(
        key="temperature_c", title="temperature", unit="°C", panel="temp., °C", colour="#c2367a"
    ),
    Quantity(key="sm_mhz", title="SM clock", unit="MHz", panel="clock, MHz", colour="#2f7ed8"),
    Quantity(
        key="memory_mhz", title="memory clock", unit="MHz", panel="clock, MHz", colour="#7a6fd0"
    ),
    Quantity(key="mhz", title="core clock", unit="MHz", panel="clock, MHz", colour="#2f7ed8"),
    Quantity(key="tflops", title="throughput", unit="TFLOP/s", panel="TFLOP/s", colour="#b07d10"),
    Quantity(
        key="utilisation", title="utilisation", unit="", panel="utilisation", colour="#3a9a4b"
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One quantity of one device. A sample without a reading is a gap: `None`."""

    quantity: Quantity
    points: tuple[tuple[float, float | None], ...]

    @property
    def readings(self) -> list[float]:
        """What was read, without the gaps."""
        return [value for _, value in self.points if value is not None]

    @property
    def spread(self) -> tuple[float, float, float]:
        """Least, median and greatest reading."""
        read = self.readings
        return min(read), statistics.median(read), max(read)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """All that was sampled of one device."""

    device: str  # id, `""` for samples that name none
    samples: int
    timed: bool  # points are at seconds; else at the number of the sample
    throttle: int  # every throttle bit that was ever set
    throttled: int  # samples with any bit set
    lines: tuple[Line, ...]


def traces(telemetry: Iterable[Mapping[str, Any]]) -> tuple[Trace, ...]:
    """Sort samples by `device`, along their time `t`, in seconds since the run started."""
    by_device: dict[str, list[Mapping[str, Any]]] = {}
    for sample in telemetry:
        device = sample.get("device")
        by_device.setdefault(device if isinstance(device, str) else "", []).append(sample)
    return tuple(_trace(device, samples) for device, samples in by_device.items())


def downsample(points: Sequence[tuple[float, float | None]]) -> list[Point]:
    """At most `POINTS` points that keep every spike and dip: two of each stretch, in order."""
    if len(points) <= POINTS:
        return [_GAP if value is None else (at, value) for at, value in points]
    size = math.ceil(len(points) / (POINTS // 2))
    kept: list[Point] = []
    for first in range(0, len(points), size):
        read = [(at, v) for at, v in points[first : first + size] if v is not None]
        if not read:
            kept.append(_GAP)
            continue
        ends = {min(read, key=_reading), max(read, key=_reading)}
        kept += sorted(ends)
    return kept


def draw(trace: Trace, tag: str) -> str:
    """Draw one device as an `<svg>` element to be set inline; `tag` makes its ids unique.

    Raises `PlotsUnavailable` where matplotlib is missing or can't be used.
    """
    figure_of, style = _matplotlib()
    panels = list(dict.fromkeys(line.quantity.panel for line in trace.lines))
    with style({"svg.fonttype": "none", "svg.hashsalt": tag, "font.size": 8}):
        height = 0.5 + 0.95 * len(panels)
        figure = figure_of(figsize=(7.4, height))
        axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        # Set by hand: a layout that is solved for takes as long as the drawing.
        figure.subplots_adjust(0.09, 0.42 / height, 0.99, 1 - 0.08 / height, hspace=0.25)
        for axis, panel in zip(axes, panels, strict=True):
            shown = [line for line in trace.lines if line.quantity.panel == panel]
            for line in shown:
                ats, values = zip(*downsample(line.points), strict=True)
                axis.plot(
                    ats, values, color=line.quantity.colour, lw=1.1, label=line.quantity.title
                )
            axis.set_ylabel(panel)
            if len(shown) > 1:
                axis.legend(loc="lower right", frameon=False, ncols=len(shown))
            _quieten(axis)
        figure.align_ylabels(axes)
        axes[-1].set_xlabel("seconds" if trace.timed else "number of the sample")
        written = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(written, format="svg", transparent=True, metadata=nothing)
    return _inline(written.getvalue(), tag)


def _trace(device: str, samples: Sequence[Mapping[str, Any]]) -> Trace:
    ats = [t for sample in samples if (t := _read(sample.get("t"))) is not None]
    # One sample without a time, or times that run backwards, and none of them places a point.
    timed = len(ats) == len(samples) and ats == sorted(ats)
    places = ats if timed else [float(n) for n in range(len(samples))]
    bits = [b for s in samples if type(b := s.get("throttle")) is int and 0 <= b < 1 << 64]
    lines = (
        Line(
            quantity=quantity,
            points=tuple(
                (at, _read(s.get(quantity.key))) for at, s in zip(places, samples, strict=True)
            ),
        )
        for quantity in QUANTITIES
    )
    seen = 0
    for some in bits:
        seen |= some
    return Trace(
        device=device,
        samples=len(samples),
        timed=timed,
        throttle=seen,
        throttled=sum(b != 0 for b in bits),
        lines=tuple(line for line in lines if line.readings),
    )


def _read(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= _SANE else None  # NaN, too, compares false


def _reading(point: Point) -> float:
    return point[1]


def _quieten(axis: Any) -> None:
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set_color("#888888")
    axis.tick_params(color="#888888")
    axis.grid(visible=True, color="#888888", alpha=0.25, lw=0.5)
    # An offset or a power of ten beside the axis is misread at a glance.
    axis.ticklabel_format(useOffset=False, style="plain")


def _inline(svg: str, tag: str) -> str:
    """Make a file an element: no prolog, and ids that no other plot on the page has."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{tag}-', body)
    body = re.sub(r'href="#', f'href="#{tag}-', body)
    body = re.sub(r"url\(#", f"url(#{tag}-", body)
    return body.replace("<svg ", '<svg role="img" ', 1).strip()


@cache
def _matplotlib() -> tuple[Any, Any]:
    """Return `Figure` and `rc_context` of a matplotlib that writes nowhere but a folder of its own.

    Its default folder is in the home directory, which in a container may be missing or read-only.
    """
    try:
        folder = tempfile.mkdtemp(prefix="nodeproof-plots-")
    except OSError as error:
        msg = f"No plots: matplotlib needs a folder it can write to, and there is none ({error})."
        raise PlotsUnavailable(msg) from None
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    before = os.environ.get("MPLCONFIGDIR")
    os.environ["MPLCONFIGDIR"] = folder
    try:
        from matplotlib import rc_context  # noqa: PLC0415  a controller has no matplotlib
        from matplotlib.figure import Figure  # noqa: PLC0415  the same
    except ImportError as error:
        msg = f"No plots: matplotlib can't be loaded here ({error}); the table has the numbers."
        raise PlotsUnavailable(msg) from None
    finally:
        if before is None:
            del os.environ["MPLCONFIGDIR"]
        else:
            os.environ["MPLCONFIGDIR"] = before
    return Figure, rc_context
