"""Xids in the kernel's log: what the driver says of a GPU.

A log that can't be read is never a log without Xids.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from nodeproof.parsers import xid
from nodeproof.parsers.log_lines import lines_of
from nodeproof.probes import kernel_lines
from nodeproof.probes.log_sources import current
from nodeproof.probes.pci import normalised
from nodeproof.probes.tree import Unreadable
from nodeproof.worker import Context

# The level in front is what the kernel gives a line; its facility, all bits above the third, is 0 for
# the kernel alone, so that a program can't write one.
_STAMP = re.compile(r"<(?P<level>\d+)>\[\s*(?P<at>\d+\.\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """One report of the driver about one GPU."""

    pci: str | None  # `None` where the line names no address that can be read
    code: int | None  # `None` where the line is cut before its end
    at: float  # seconds since the machine started, by the log's clock
    text: str


def cursor(context: Context) -> dict[str, Any]:
    """Work function: `at`, the time of the log's last line, by the log's own clock, and `source`.

    That clock drifts from those that programs read, by minutes in a month, so the start of a run
    is known by what the log said then. Raises `Unreadable`.
    """
    log = current(context, since=math.inf)
    return {"at": log.last_at, "source": log.source}


def xids(context: Context, *, since: float | None, plant: str = "") -> dict[str, Any]:
    """Work function: the Xids of this device after `since`, which is what `cursor` gave.

    With `plant="line"` a line of Xid 79 for this device is put at the end of what was read.
    Returns `found` (`pci`, `code`, `at`, `text` of each), `planted`, `lines` (of the whole log),
    `reaches_back` (whether what was read begins no later than `since`: older lines of a full buffer
    are gone), `source` and `pci`. Raises `Unreadable` where log or address can't be read, now or at
    the start, and for a new Xid whose address, or whose code and it is this device's, can't be
    read; `ValueError` for an unknown plant.
    """
    if plant not in {"", "line"}:
        raise ValueError(f"plant {plant!r}: this probe knows 'line'")
    address = context.facts.get("pci")
    if not isinstance(address, str) or not address:
        raise Unreadable(
            f"{context.device_id}: the driver did not say at which PCI address it is, so that its "
            "Xids can't be told from others'"
        )
    if since is None:
        raise Unreadable(
            "the kernel's log could not be read when the run began, so that nothing is new in it"
        )
    address, log = normalised(address), current(context, since=since)
    planted, text = [], log.text
    if plant:
        at = round(max(since, log.last_at) + 1, 6)
        text += kernel_lines.lines_of(
            3, at, f"NVRM: Xid (PCI:{address}): 79, planted by the self-test"
        )
        planted = [Xid(pci=address, code=79, at=at, text="planted by the self-test")]
    mine = [x for x in reported(text) if x.at > since and x.pci in {address, None}]
    for one in mine:
        if one.pci is None or one.code is None:
            raise Unreadable(
                f"{context.device_id} at {address}: the kernel's log has an Xid that is not to be "
                f"read, and may be this device's: {one.text[:160]!r}; read the log, and test again"
            )
    return {
        "found": [asdict(x) for x in mine],
        "planted": [asdict(x) for x in planted],
        "lines": text.count("\n"),
        "reaches_back": log.reaches(since),
        "source": log.source,
        "pci": address,
    }


def reported(text: str) -> Iterator[Xid]:
    """Every Xid in the kernel's own lines of a log, in order, as `parsers.xid` reads them."""
    for raw in text.split("\n"):
        stamp = _STAMP.match(raw)
        if not stamp or int(stamp["level"]) >= 8:
            continue
        for line in lines_of(0, f"{raw}\n"):
            if report := xid.read(line):
                yield Xid(
                    pci=report.device and normalised(report.device),
                    code=report.code,
                    at=float(stamp["at"]),
                    text=_said(line.text, report.code),
                )


def _said(text: str, code: int | None) -> str:
    """What stands behind address and code; the whole of a line that has no code."""
    return (
        text if code is None else text.partition("):")[2].strip().lstrip("0123456789").lstrip(", ")
    )
