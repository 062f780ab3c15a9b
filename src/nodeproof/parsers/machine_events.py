"""Host memory and processors: EDAC counts, machine checks, and records of the firmware (GHES).

Texts: torvalds/linux drivers/edac/edac_mc.c, arch/x86/kernel/cpu/mce, drivers/acpi/apei/ghes.c and
bert.c, drivers/firmware/efi/cper.c. One line of EDAC can stand for many errors: its number counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from nodeproof.parsers.log_lines import Line, address_of
from nodeproof.parsers.reports import Report

_EDAC = re.compile(r"EDAC MC(?P<unit>\d{1,4}): (?:(?P<count>\d{1,18}) +)?(?P<what>CE|UE)\b")
_RECORD = re.compile(
    r"(?:BERT: +)?(?:\{(?P<number>\d+)\})?\[Hardware Error\]: ?(?P<text>.*)$", re.DOTALL
)
_RECORD_HEAD = re.compile(r" *Hardware error from APEI")
_EVENT_SEVERITY = re.compile(r" *event severity: *(?P<word>\w+)")
_ERROR_TYPE = re.compile(r" *Error \d+, type: *(?P<word>\w+)")
_RECORD_DEVICE = re.compile(
    r" *device_id: *(?P<pci>[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
)
_MCE_LOGGED = re.compile(r"(?:mce: )?\[Hardware Error\]: Machine check events logged")
_MCE_BANK = re.compile(
    r"(?:mce: )?\[Hardware Error\]: CPU:? ?\d+: Machine [Cc]heck(?: Exception| Event)?: \w+ Bank \d+: "
    r"(?P<status>[0-9a-fA-F]{16})\b"
)
_MCE_AMD = re.compile(
    r"(?:mce: )?\[Hardware Error\]: (?P<what>Corrected|Deferred|Uncorrected|System Fatal)\b.*(?:error|restartable)"
)
_MCE_FATAL = re.compile(
    r"(?:mce: )?\[Hardware Error\]: (?:Machine check: |Processor context corrupt)"
)
# Memory that can't be corrected and was in use (arch/x86/kernel/cpu/mce/core.c, mm/memory-failure.c).
_MCE_MEMORY = re.compile(
    r"(?:mce: )?Uncorrected hardware memory error in user-access"
    r"|(?:mce: )?Memory error not recovered"
    r"|Memory failure: 0x[0-9a-f]+: (?:Sending SIGBUS|Killing|forcibly killing|recovery action .*: Failed)"
)
_MCE_HANDLED = re.compile(r"Memory failure: 0x[0-9a-f]+: recovery action ")
_UNCORRECTED = 1 << 61  # MCi_STATUS.UC, Intel SDM 3B 16.3.2.2
_NEAR = 2_000  # bytes within which a notice and what it is about stand together


@dataclass(slots=True, kw_only=True)
class _Record:
    line: Line
    severity: str | None = None
    device: str | None = None


@dataclass(slots=True)
class Machine:
    """Reads line by line."""

    records: list[_Record] = field(default_factory=list)
    open: dict[str | None, _Record] = field(default_factory=dict)
    done: list[Report] = field(default_factory=list)
    notices: list[Line] = field(default_factory=list)

    def read(self, line: Line) -> bool:
        """Take the line if it is about the machine's own memory, processors or firmware."""
        if found := _EDAC.match(line.text):
            self.done.append(
                Report(
                    source="edac",
                    kind=f"edac.{found['what']}",
                    unit=f"MC{found['unit']}",
                    weight=int(found["count"] or 1),
                    line=line,
                )
            )
            return True
        return self._mce(line) or self._record(line)

    def _mce(self, line: Line) -> bool:
        if _MCE_LOGGED.match(line.text):
            self._notice(line)
        elif bank := _MCE_BANK.match(line.text):
            self._check(line, uncorrected=bool(int(bank["status"], 16) & _UNCORRECTED))
        elif amd := _MCE_AMD.match(line.text):
            self._check(line, uncorrected=amd["what"] in {"Uncorrected", "System Fatal"})
        elif _MCE_FATAL.match(line.text) or _MCE_MEMORY.match(line.text):
            self._check(line, uncorrected=True)
        elif _MCE_HANDLED.match(line.text):
            if not (self.done and self._continues(line)):
                self._check(line, uncorrected=False)
        else:
            return False
        return True

    def _check(self, line: Line, *, uncorrected: bool) -> None:
        if not uncorrected:
            self._notice(line)
        elif not (self.done and self._continues(line)):
            self.done.append(Report(source="mce", kind="mce.uncorrected", line=line))

    def _continues(self, line: Line) -> bool:
        last = self.done[-1]
        return last.kind == "mce.uncorrected" and line.place - last.line.place <= _NEAR

    def _notice(self, line: Line) -> None:
        # What is told of a check, and the notice that it was logged, are one; another notice is another.
        logged = "events logged" in line.text
        last = self.notices[-1] if self.notices else None
        apart = last is None or line.place - last.place > _NEAR
        if apart or (logged and last and "events logged" in last.text):
            self.notices.append(line)
        elif logged:
            self.notices[-1] = line

    def _record(self, line: Line) -> bool:
        found = _RECORD.match(line.text)
        if found is None:
            return False
        text, number = found["text"], found["number"]
        if _RECORD_HEAD.match(text):
            self.open[number] = _Record(line=line)
            self.records.append(self.open[number])
            return True
        severity = _EVENT_SEVERITY.match(text)
        device = _RECORD_DEVICE.match(text)
        if number is None and severity is None and number not in self.open:
            return False
        record = self.open.get(number)
        if record is None or (severity and record.severity):
            record = self.open[number] = _Record(line=line)
            self.records.append(record)
        if severity:
            record.severity = severity["word"]
        elif record.severity is None and (part := _ERROR_TYPE.match(text)):
            record.severity = part["word"]
        if device and record.device is None:
            record.device = address_of(device["pci"])
        return True

    def reports(self) -> Iterator[Report]:
        """Every report. A notice that something was logged stands for what else is told of it."""
        yield from self.done
        for line in self.notices:
            yield Report(source="mce", kind="mce.notice", line=line)
        for record in self.records:
            word = record.severity if record.severity in _GHES else "unknown"
            yield Report(source="ghes", kind=f"ghes.{word}", device=record.device, line=record.line)


_GHES = {"fatal", "recoverable", "corrected", "info"}
