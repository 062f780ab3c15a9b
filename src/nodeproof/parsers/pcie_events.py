"""PCIe: advanced error reports of a port, and links that run below what a device can do.

Texts: torvalds/linux drivers/pci/pcie/aer.c, dpc.c and drivers/pci/pci.c. A report has a head (the
port tells that a message came in) and details (of the port or of the device behind it), in old and
new words; the port is what the kernel heard it from, and often the only device it is sure of.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from nodeproof.parsers.log_lines import Line, address_of
from nodeproof.parsers.reports import Report

_DEVICE = r"(?:\S+ )?(?P<device>[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7]): +"
_SEVERITY = (
    r"(?P<word>Corrected|Correctable|(?:Uncorrected|Uncorrectable)? *\(?(?:Non-?Fatal|Fatal)\)?)"
)
_HEAD = re.compile(
    _DEVICE + r"AER: +(?P<many>Multiple )?" + _SEVERITY + r" error"
    r"(?:(?: message)? received\b(?P<rest>.*)|[a-z ]{0,16}\Z)",  # what is cut there says enough
    re.IGNORECASE | re.DOTALL,
)
_DETAIL = re.compile(_DEVICE + r"(?:AER: +)?PCIe Bus Error: severity=" + _SEVERITY, re.IGNORECASE)
_RECOVERY = re.compile(
    _DEVICE + r"(?:AER: +)?(?:device recovery failed|subordinate device reset failed)",
    re.IGNORECASE,
)
_LIMITED = re.compile(
    _DEVICE
    + r"[\d.]+ Gb/s available PCIe bandwidth, limited by (?P<speed>[\d.]+|Unknown(?: speed)?) ?(?:GT/s)? +(?:PCIe )?"
    r"x(?P<width>\d+) link at \S+(?: +\(capable of [\d.]+ Gb/s with (?P<can_speed>[\d.]+|Unknown) ?(?:GT/s)? +"
    r"(?:PCIe )?x(?P<can_width>\d+))?"
)
# Downstream port containment: the port cut off what is below it (dpc.c, old and new words).
_DPC = re.compile(_DEVICE + r"(?:AER: +)?DPC: +(?P<text>.*)", re.DOTALL)
_DPC_HEAD = re.compile(r"containment event, status: ?(?P<status>0x[0-9a-fA-F]{1,8})")
_DPC_REASON = re.compile(
    r"(?:(?P<fatal>ERR_FATAL|unmasked uncorrectable error|RP PIO error)|(?P<less>ERR_NONFATAL"
    r"|software trigger|reserved error))\b.{0,20}? (?:detected|received)",
)
_GONE = re.compile(
    _DEVICE + r"(?:(?:Unable to|can't) change power state from \S+ to D0\b.*inaccessible"
    r"|pciehp: Slot\([^()]{1,20}\): Card not present)"
)
_FOLLOWS = 10_000  # bytes of other talk that may stand between a head and its details


@dataclass(frozen=True, slots=True, kw_only=True)
class Limited:
    """A link that runs below what its device can do. `narrow` where lanes are missing."""

    device: str
    narrow: bool


@dataclass(slots=True, kw_only=True)
class _Open:
    """A head that waits for its details."""

    port: str
    kind: str
    source: str | None
    line: Line
    wide: bool = False  # the kernel asked every device below the port
    contained: bool = False  # details of any severity are its own
    seen: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Pcie:
    """Reads line by line."""

    heads: list[_Open] = field(default_factory=list)
    done: list[Report] = field(default_factory=list)
    limited: list[Limited] = field(default_factory=list)
    recoveries: list[Report] = field(default_factory=list)

    def read(self, line: Line) -> bool:
        """Take the line if it is about a PCIe port or link."""
        if head := _HEAD.match(line.text):
            self._head(head, line)
        elif detail := _DETAIL.match(line.text):
            self._detail(detail, line)
        elif limited := _LIMITED.match(line.text):
            self._limited(limited, line)
        elif contained := _DPC.match(line.text):
            return self._contained(contained, line)
        elif gone := _GONE.match(line.text):
            device = address_of(gone["device"])
            self.done.append(Report(source="pcie", kind="pcie.gone", device=device, line=line))
        elif recovery := _RECOVERY.match(line.text):
            device = address_of(recovery["device"])
            self.recoveries.append(
                Report(source="aer", kind="aer.recovery", device=device, line=line)
            )
        else:
            return False
        return True

    def _head(self, head: re.Match[str], line: Line) -> None:
        port, kind = str(address_of(head["device"])), _kind(head["word"])
        source = address_of(head["rest"] or "")
        # aer.c, find_source_device: of an id on bus 0, and of several errors, any may be the sender.
        wide = head["many"] is not None or (source is not None and source[5:7] == "00")
        self.heads.append(_Open(port=port, kind=kind, source=source, line=line, wide=wide))
        del self.heads[:-8]  # details follow soon, or never
        self.done.append(Report(source="aer", kind=kind, device=port, line=line))

    def _contained(self, found: re.Match[str], line: Line) -> bool:
        port, text = str(address_of(found["device"])), found["text"]
        head, reason = _DPC_HEAD.match(text), _DPC_REASON.search(text)
        if head is None and reason is None:
            return False
        if head is None and any(
            o.contained and o.port == port and line.place - o.line.place <= _FOLLOWS
            for o in self.heads
        ):
            return True
        # Bits 1 and 2 of the status are the reason, of which 1 is ERR_NONFATAL; 3 with nothing but
        # bit 5 above it was asked for by software (PCIe base specification, DPC Status Register).
        fatal = reason is not None and reason["fatal"] is not None
        if reason is None and head is not None:
            status = int(head["status"], 16)
            fatal = not (status >> 1 & 3 == 1 or (status >> 1 & 3 == 3 and status >> 5 & 3 == 1))
        kind = "aer.fatal" if fatal else "aer.nonfatal"
        self.heads.append(_Open(port=port, kind=kind, source=None, line=line, contained=True))
        del self.heads[:-8]
        self.done.append(Report(source="aer", kind=kind, device=port, line=line))
        return True

    def _detail(self, detail: re.Match[str], line: Line) -> None:
        device, kind = str(address_of(detail["device"])), _kind(detail["word"])
        near = [
            head
            for head in reversed(self.heads)
            if line.place - head.line.place <= _FOLLOWS
            and (head.contained or head.kind == kind)
            and device not in head.seen
        ]
        named = [h for h in near if device in {h.port, h.source} or h.source is None]
        below = [h for h in near if h.wide and h.port[:4] == device[:4]]
        for head in named or below:
            head.seen.add(device)
            return
        self.done.append(Report(source="aer", kind=kind, device=device, line=line))

    def _limited(self, found: re.Match[str], line: Line) -> None:
        device = str(address_of(found["device"]))
        self.done.append(Report(source="pcie", kind="pcie.limited", device=device, line=line))
        width = int(found["width"][:6])
        narrow = found["can_width"] is None or width < int(found["can_width"][:6])
        # A virtual function, or a slot of a virtual machine, has no link to be read: no lane at all
        # is no reading, and neither is a speed that nobody knows.
        if width and (narrow or not found["speed"].startswith("Unknown")):
            self.limited.append(Limited(device=device, narrow=narrow))

    def reports(self) -> Iterator[Report]:
        """Every report. That a port did not recover is news only where no error is told."""
        yield from self.done
        if not any(report.kind in {"aer.fatal", "aer.nonfatal"} for report in self.done):
            yield from self.recoveries


def _kind(word: str) -> str:
    word = word.lower()
    if word.startswith("correct"):
        return "aer.corrected"
    return "aer.nonfatal" if "non" in word else "aer.fatal"
