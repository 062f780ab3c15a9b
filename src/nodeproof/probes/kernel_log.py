"""Xids in the kernel's log: what the driver says of a GPU, to whoever may read it.

The kernel's buffer is read by syslog(2), which in a container takes CAP_SYSLOG and no more. A log
that can't be read is never a log without Xids.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from nodeproof.probes.pci import normalised
from nodeproof.probes.tree import Unreadable
from nodeproof.worker import Context

_READ_ALL, _SIZE = 3, 10  # syslog(2)
# Older drivers leave out "PCI:". The level in front is what the kernel gives a line; its facility,
# all bits above the third, is 0 for the kernel alone, so that a program can't write one.
_XID = re.compile(
    r"^<(?P<level>\d+)>\[\s*(?P<at>\d+\.\d+)\]\s*(?:\[[^\]]*\]\s*)?NVRM: Xid "
    r"\((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)\): (?P<code>\d+)(?:, )?(?P<text>.*)$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """One report of the driver about one GPU."""

    pci: str
    code: int
    at: float  # seconds since the machine started, by the log's clock
    text: str


def cursor(context: Context) -> dict[str, Any]:  # noqa: ARG001  a work function takes one
    """Work function: `at`, the time of the log's last line, by the log's own clock.

    That clock drifts from those that programs read, by minutes in a month, so the start of a run
    is known by what the log said then. Raises `Unreadable`.
    """
    times = _times(ring_buffer())
    return {"at": max(times, default=0.0)}


def xids(context: Context, *, since: float | None, plant: str = "") -> dict[str, Any]:
    """Work function: the Xids of this device after `since`, which is what `cursor` gave.

    With `plant="line"` a line of Xid 79 for this device is put at the end of what was read.
    Returns `found` (`pci`, `code`, `at`, `text` of each), `planted`, `lines` (of the whole log),
    `reaches_back` (whether what was read begins no later than `since`: older lines of a full buffer
    are gone) and `pci`. Raises `Unreadable` where log or address can't be read, now or at the start;
    `ValueError` for an unknown plant.
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
    address, text = normalised(address), ring_buffer()
    planted = []
    if plant:
        at = round(max(since, *_times(text), 0.0) + 1, 6)
        text += f"<3>[{at:12.6f}] NVRM: Xid (PCI:{address}): 79, planted by the self-test\n"
        planted = [Xid(pci=address, code=79, at=at, text="planted by the self-test")]
    mine = [x for x in reported(text) if x.pci == address and x.at > since]
    return {
        "found": [asdict(x) for x in mine],
        "planted": [asdict(x) for x in planted],
        "lines": text.count("\n"),
        "reaches_back": min(_times(text), default=since + 1) <= since,
        "pci": address,
    }


def reported(text: str) -> Iterator[Xid]:
    """Every Xid in the kernel's own lines of a log, in order."""
    for line in text.splitlines():
        found = _XID.match(line)
        if found and int(found["level"]) < 8:
            yield Xid(
                pci=normalised(_with_function(found["pci"])),
                code=int(found["code"]),
                at=float(found["at"]),
                text=found["text"].strip(),
            )


def ring_buffer() -> str:
    """Return the kernel's log as it stands. Raises `Unreadable`."""
    library = ctypes.CDLL(None, use_errno=True)
    size = library.klogctl(_SIZE, None, 0)
    if size <= 0:
        raise Unreadable(_refusal(ctypes.get_errno()))
    buffer = ctypes.create_string_buffer(size)
    length = library.klogctl(_READ_ALL, buffer, size)
    if length < 0:
        raise Unreadable(_refusal(ctypes.get_errno()))
    return buffer.raw[:length].decode("utf-8", "backslashreplace")


def _times(text: str) -> list[float]:
    return [float(at) for at in re.findall(r"^<\d+>\[\s*(\d+\.\d+)\]", text, re.MULTILINE)]


def _with_function(address: str) -> str:
    return address if "." in address else f"{address}.0"


def _refusal(number: int) -> str:
    return (
        f"the kernel's log can't be read by syslog(2): {os.strerror(number)}; give the container "
        "CAP_SYSLOG, or run as root"
    )
