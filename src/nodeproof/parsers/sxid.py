"""SXids: numbered errors of an NVSwitch (`nvidia-nvswitchN: SXid (PCI:dddd:bb:dd.f): N, text`).

The driver prints one error as its text, a Severity line and one or two Data lines, which may stand
in any order and among those of other switches. The word of the text says how grave it is; a
Severity of 0 is non-fatal, 1 is fatal (NVSWITCH_ERROR_SEVERITY).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from nodeproof.parsers.events import Remedy, Severity
from nodeproof.parsers.log_catalog import Catalog, Grade
from nodeproof.parsers.log_lines import Line, address_of
from nodeproof.parsers.reports import Report

_SXID = re.compile(
    r"nvidia-nvswitch\d*: +SXid +\((?P<where>[^()]{0,120}\)"
    r"|(?:PCI:)?[\da-fA-F]{4,8}:[\da-fA-F]{2}:[01][\da-fA-F]\.[0-7](?=: )): *(?P<code>\d{1,6})\b *(?P<rest>,?.*)$",
    re.DOTALL,
)
_PART = re.compile(r", *(?:Severity +(?P<severity>\d{1,6})\b|Data\b)")
_WORD = re.compile(r", *(?P<word>Non-?fatal|Fatal|Correctable|Corrected)\b", re.IGNORECASE)
_STARTS = re.compile(
    r"nvidia-nvswitch\d*: (?:Probing|using MSI|Post-|Fabric|.*(?:initiali[sz]|loaded))"
    r"|nvidia-nvlink: .*initiali[sz]",
    re.IGNORECASE,
)
_MINION_REQUEST = 22013  # a link asks for attention; every switch does while it trains its links
_STARTING = 600.0  # seconds since boot within which switches train their links

_FATAL = Grade(severity=Severity.FATAL, remedy=Remedy.REBOOT)
_NONFATAL = Grade(severity=Severity.WARNING, remedy=Remedy.NONE)
_NOTHING = Grade(severity=Severity.INFO, remedy=Remedy.NONE)


@dataclass(slots=True)
class _Told:
    """What stands of one code of one switch."""

    texts: list[tuple[Line, str]] = field(default_factory=list)  # and the word, lower case
    severities: list[tuple[Line, int]] = field(default_factory=list)
    data: list[Line] = field(default_factory=list)


@dataclass(slots=True)
class Sxids:
    """Reads line by line; what it comes to is known at the end."""

    told: dict[tuple[int, str | None], _Told] = field(default_factory=dict)
    starts: list[float] = field(default_factory=list)  # when a switch or its driver started

    def read(self, line: Line) -> bool:
        """Take the line if it is one of an SXid."""
        found = _SXID.match(line.text)
        if found is None:
            if line.at is not None and _STARTS.match(line.text):
                self.starts.append(line.at)
            return False
        if not found["rest"] and not line.ended:  # a longer number may have been cut
            return False
        told = self.told.setdefault((int(found["code"]), address_of(found["where"])), _Told())
        part = _PART.match(found["rest"])
        if part is None:
            word = _WORD.match(found["rest"])
            told.texts.append((line, word["word"].lower() if word else ""))
        elif part["severity"] is not None:
            told.severities.append((line, int(part["severity"])))
        else:
            told.data.append(line)
        return True

    def reports(self) -> Iterator[Report]:
        """One report for each error, in no order; its `kind` is the word."""
        self.starts.sort()
        words = {code: word for (code, _), told in self.told.items() if (word := _severity(told))}
        words |= {
            code: word for (code, _), told in self.told.items() for _, word in told.texts if word
        }
        for (code, device), told in self.told.items():
            first = min(
                (*(at for at, _ in told.texts), *(at for at, _ in told.severities), *told.data),
                key=lambda line: line.place,
            )
            lines = told.texts or [
                (line, "fatal" if number else "non-fatal") for line, number in told.severities
            ]
            lines = lines or [(line, "") for line in told.data]
            for n, (line, word) in enumerate(lines):
                yield Report(
                    source="sxid",
                    kind=self._moment(code, line, word or _severity(told) or words.get(code, "")),
                    code=code,
                    device=device,
                    line=line if n else first,
                )

    def _moment(self, code: int, line: Line, word: str) -> str:
        if code != _MINION_REQUEST or word == "fatal":
            return word
        if line.at is None:
            return "start"
        begun = bisect_right(self.starts, line.at)
        # The driver may be loaded again on a machine that is up for long.
        last = self.starts[begun - 1] if begun else 0.0
        return word if line.at - last > _STARTING else "start"


def _severity(told: _Told) -> str:
    if not told.severities:
        return ""
    return "fatal" if any(number for _, number in told.severities) else "non-fatal"


def grade(catalog: Catalog, report: Report) -> Grade:
    """How grave an SXid is: by the driver's word, else by the catalogue."""
    if report.kind == "start":
        return _NOTHING
    if report.kind == "fatal":
        return _FATAL
    if report.kind:
        return _NONFATAL
    assert report.code is not None
    return catalog.of_sxid(report.code)
