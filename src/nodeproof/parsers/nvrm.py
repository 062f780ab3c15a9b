"""The NVIDIA driver without an Xid: a GPU that is lost or can't be initialised, silent firmware.

Texts: NVIDIA/open-gpu-kernel-modules (osapi.c, osinit.c, kernel_gsp.c, nv.c). Such a sentence may
be spread over lines, of which one has the address, and several lines tell of one attempt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from nodeproof.parsers import log_cut
from nodeproof.parsers.log_lines import Line, address_of
from nodeproof.parsers.reports import Report

_NVRM = re.compile(r"(?:NVRM: *)+")
_NAMES_GPU = re.compile(
    r"The NVIDIA GPU |This PCI I/O region assigned to your NVIDIA device is invalid"
)
_BAR = re.compile(r"BAR\d is \S+ @ \S+ \(PCI:")
_LOST = re.compile(r"fallen off(?: the bus|(?: t[a-z]{0,2}(?: b?u?)?)?\Z)", re.IGNORECASE)
# The same, by functions that came upon it; each says so again and again.
_LOST_TOO = re.compile(r"NV_ERR_GPU_IS_LOST|\bGPU (?:is )?lost\b", re.IGNORECASE)
_POWER = re.compile(r"does not have the necessary power cables", re.IGNORECASE)
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
# Messages that do not begin with NVRM: of the driver's PCI side, of its other modules.
_PROBE = re.compile(
    r"nvidia (?P<pci>[0-9a-fA-F:.]+): probe with driver nvidia failed with error -"
    r"|nvidia: probe of (?P<older>[0-9a-fA-F:.]+) failed with error -"
)
_SWITCH = re.compile(
    r"nvidia-nvswitch (?P<pci>[0-9a-fA-F:.]+): probe with driver \S+ failed with error -"
    r"|nvidia-nvswitch: probe of (?P<older>[0-9a-fA-F:.]+) failed with error -"
)
_UVM = re.compile(r"nvidia[-_]uvm: .*\bencountered global fatal error")
_ASLEEP = re.compile(
    r"nvidia (?P<pci>[0-9a-fA-F:.]+): (?:Unable to|can't) change power state from \S+ to D0\b.*inaccessible"
)
_SHARED = (  # may be spread over lines
    (_LOST, "nvrm.lost"),
    (_UNSUPPORTED, "nvrm.unsupported"),
    (_BAR, "nvrm.adapter"),
)
_WHOLE = (
    (_NEEDS_RESET, "nvrm.needs_reset"),
    (_POWER, "nvrm.power"),
    (_FIRMWARE, "nvrm.firmware"),
    (_UNBOUND, "nvrm.unbound"),
    (_NONE_LEFT, "nvrm.adapter"),
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
    probes: list[Report] = field(default_factory=list)
    said: set[tuple[str, str | None]] = field(
        default_factory=set
    )  # what is told once, however often it is said
    broken: bool = False  # a sentence without its end

    def read(self, line: Line) -> bool:
        """Take the line if it is the driver's."""
        head = _NVRM.match(line.text)
        if head is None:
            return self._beside(line)
        text = line.text[head.end() :]
        near = [(d, at) for d, at in self.named if line.place - at.place <= _NEAR]
        self.broken = self.broken or len(near) < len(self.named)
        self.named = near[-8:]
        if _NAMES_GPU.match(text):
            self.named.append((address_of(text), line))
        self._sentence(text, line)
        return True

    def _beside(self, line: Line) -> bool:
        if probe := _PROBE.match(line.text):
            device = address_of(probe["pci"] or probe["older"])
            self.probes.append(
                Report(source="nvrm", kind="nvrm.adapter", device=device, line=line, vague=True)
            )
        elif switch := _SWITCH.match(line.text):
            self._report("nvrm.switch", line, address_of(switch["pci"] or switch["older"]))
        elif asleep := _ASLEEP.match(line.text):
            self._report("nvrm.lost", line, address_of(asleep["pci"]))
        elif _UVM.match(line.text):
            self._once("nvrm.firmware", line)
        else:
            return False
        return True

    def _once(self, kind: str, line: Line, device: str | None = None) -> None:
        if (kind, device) not in self.said:
            self.said.add((kind, device))
            self._report(kind, line, device)

    def _sentence(self, text: str, line: Line) -> None:
        device = address_of(text)
        if kind := _first(_SHARED, text):
            self._about(text, line, kind)
        elif _LOST_TOO.search(text):
            self._once("nvrm.lost", line, device)
        elif _ATTEMPT.search(text):
            self.attempts.setdefault(device, []).append(line)
        elif _ATTEMPT_END.search(text):
            self.ends.setdefault(device, []).append(line)
        elif kind := _first(_WHOLE, text):
            self._report(kind, line, device, part=kind == "nvrm.needs_reset")
        elif log_cut.cut(line.text):
            self.broken = True

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

    @property
    def cut(self) -> bool:
        """Whether a sentence began that tells of a GPU's fault, and never ended."""
        return self.broken or bool(self.named)

    def reports(self) -> Iterator[Report]:
        """Every report; an attempt to initialise counts once, however many lines it has."""
        yield from self.done
        # That the probe of a GPU failed is news only where nothing says why.
        told = {report.device for report in self.done} | self.attempts.keys() | self.ends.keys()
        yield from (probe for probe in self.probes if probe.device not in told)
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


def _first(kinds: tuple[tuple[re.Pattern[str], str], ...], text: str) -> str | None:
    return next((kind for pattern, kind in kinds if pattern.search(text)), None)
