"""What one incident in a log comes to: which part, how grave, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """How grave an event is on a node that is new and idle."""

    FATAL = "fatal"  # the part must not be used as it is
    WARNING = "warning"  # to be recorded; does not decide by itself
    INFO = "info"


class Remedy(StrEnum):
    """What an event asks for."""

    NONE = "none"
    RETEST = "retest"
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    REPLACE = "replace"
    CONTACT_SUPPORT = "contact_support"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Reports of one incident, counted.

    Args:
        source: Who speaks: `xid`, `sxid`, `nvrm` (the driver without an Xid), `aer`, `pcie`, `edac`,
            `mce`, `ghes`, `mlx5`, `efa`, `netdev`, `hung_task`, `soft_lockup`, `oom`,
            `fabricmanager`, or `kernel` (a panic or an oops).
        code: The Xid, SXid or switch error number; None where there is none.
        device: PCI address as `dddd:bb:dd.f`, lower case; None where no line names a device.
        severity: How grave.
        remedy: What to do.
        count: Number of reports; of memory errors, the sum of the numbers that the lines give.
        unit: Memory controller or network interface, where that is what the lines name.
        text: First line of the first report, without time and prefix.
        at: Seconds of the first report by the log's clock since boot; None where lines have none.
        last_at: The same of the last report.
        software: Whether a driver or service that is wrong for this node explains it as well, so
            that it blames no hardware by itself.
    """

    source: str
    code: int | None = None
    device: str | None = None
    severity: Severity
    remedy: Remedy
    count: int = 1
    unit: str | None = None
    text: str = ""
    at: float | None = None
    last_at: float | None = None
    software: bool = False

    def fields(self) -> dict[str, Any]:
        """Plain JSON values, as `nodeproof parse` prints them."""
        told: dict[str, Any] = {
            "source": self.source,
            "code": self.code,
            "device": self.device,
            "severity": str(self.severity),
            "remedy": str(self.remedy),
            "text": self.text,
            "at": self.at,
            "last_at": self.last_at,
            "software": self.software,
        }
        if self.count > 1:
            told["count"] = self.count
        if self.unit is not None:
            told["unit"] = self.unit
        return told
