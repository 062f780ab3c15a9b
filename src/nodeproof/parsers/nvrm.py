"""The NVIDIA driver without an Xid: a GPU that is lost or can't be initialised, silent firmware.

Texts: NVIDIA/open-gpu-kernel-modules (osapi.c, osinit.c, kernel_gsp.c, nv.c). Such a sentence may
be spread over lines, of which one has the address, and several lines tell of one attempt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from nodeproof.parsers.log_lines import Line, address_of
from nodeproof.parsers.reports import Report

_NVRM = re.compile(r"(?:NVRM: *)+")
_NAMES_GPU = re.compile(
    r"The NVIDIA GPU |This PCI I/O region assigned to your NVIDIA device is invalid"
)
_BAR = re.compile(r"BAR\d is \S+ @ \S+ \(PCI:")
_LOST = re.compile(r"fallen off the bus", re.IGNORECASE)
_UNSUPPORTED = re.compile(
    r"installed in this system is not supported|not supported by (?:the|open)"
)
_ATTEMPT = re.compile(r"RmInitAdapter failed!")
_ATTEMPT_END = re.compile(r"rm_init_adapter(?:\(\d+\))? failed")
_FIRMWARE = re.compile(
    r"Cannot initialize GSP firmware|failed to wait for GFW|_kgspRpcGspEventPmuHalted"
    r"|kgsp\w*(?:Bootstrap|InitRm|BootGspRm)\w*: .*fail|kfsp\w*: .*(?:fail|timed? ?out)"
    r"|GSP (?:has )?(?:crashed|halted)|GPU is probably locked|uvm encountered global fatal error",
    re.IGNORECASE,
)
_NONE_LEFT = re.compile(
    r"No NVIDIA GPU found|None of the NVIDIA devices were initialized|probe routine failed for"
)
_UNBOUND = re.compile(r"probe routine was not called for|No NVIDIA devices probed")
_NEEDS_RESET = re.compile(r"likely needs to be reset")
# Messages of the driver's PCI side, which do not begin with NVRM.
_PROBE = re.compile(
    r"nvidia (?P<pci>[0-9a-fA-F:.]+): probe with driver nvidia failed with error -"
    r"|nvidia: probe of (?P<older>[0-9a-fA-F:.]+) failed with error -"
)
_NEAR = 1_000  # bytes within which a sentence goes on


@dataclass(slots=True)
class Nvrm:
    """Reads line by line: a sentence that names its GPU in another line is put together."""

    # The GPUs that sentences under way are about; two drivers may speak at once.
    named: list[tuple[str | None, Line]] = field(default_factory=list)
    attempts: dict[str | None, list[Line]] = field(default_factory=dict)
    ends: dict[str | None, list[Line]] = field(default_factory=dict)
    done: list[Report] = field(default_factory=list)

    def read(self, line: Line) -> bool:
        """Take the line if it is the driver's."""
        head = _NVRM.match(line.text)
        if head is None:
            probe = _PROBE.match(line.text)
            if probe is None:
                return False
            self._report(
                "nvrm.adapter", line, address_of(probe["pci"] or probe["older"]), part=True
            )
            return True
        text = line.text[head.end() :]
        self.named = [(d, at) for d, at in self.named if line.place - at.place <= _NEAR][-8:]
        if _NAMES_GPU.match(text):
            self.named.append((address_of(text), line))
        self._sentence(text, line)
        return True

    def _sentence(self, text: str, line: Line) -> None:
        device = address_of(text)
        if _LOST.search(text):
            self._about(text, line, "nvrm.lost")
        elif _UNSUPPORTED.search(text):
            self._about(text, line, "nvrm.unsupported")
        elif _BAR.search(text):
            self._about(text, line, "nvrm.adapter")
        elif _ATTEMPT.search(text):
            self.attempts.setdefault(device, []).append(line)
        elif _ATTEMPT_END.search(text):
            self.ends.setdefault(device, []).append(line)
        elif _NEEDS_RESET.search(text):
            self._report("nvrm.needs_reset", line, device, part=True)
        elif _FIRMWARE.search(text):
            self._report("nvrm.firmware", line, device)
        elif _UNBOUND.search(text):
            self._report("nvrm.unbound", line, device)
        elif _NONE_LEFT.search(text):
            self._report("nvrm.adapter", line, device)

    def _about(self, text: str, line: Line, kind: str) -> None:
        device, first = address_of(text), line
        for n, (gpu, begun) in enumerate(self.named):
            if device is None or gpu in {None, device}:
                device, first = device or gpu, begun
                del self.named[n]
                break
        self._report(kind, first, device)

    def _report(self, kind: str, line: Line, device: str | None, *, part: bool = False) -> None:
        vague = device is None or part
        self.done.append(Report(source="nvrm", kind=kind, device=device, line=line, vague=vague))

    def reports(self) -> Iterator[Report]:
        """Every report; an attempt to initialise counts once, however many lines it has."""
        yield from self.done
        for device in self.attempts.keys() | self.ends.keys():
            lines = self.attempts.get(device) or self.ends[device]
            first = min(lines + self.ends.get(device, []), key=lambda line: line.place)
            for n, line in enumerate(lines):
                yield Report(
                    source="nvrm",
                    kind="nvrm.adapter",
                    device=device,
                    line=line if n else first,
                    vague=device is None,
                )
