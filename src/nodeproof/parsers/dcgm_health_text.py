"""`dcgmi health -c`: the tree of incidents, as DCGM 2 to 4 draw it and as DCGM 1 did.

The layout: DCGM, dcgmi/Health.cpp and DcgmiOutput.cpp of 2.1.4 and 4.6.0. Only GPUs with an
incident are named. Messages are broken between words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from nodeproof.parsers.dcgm_refusal import first_words, refusal, stopped
from nodeproof.parsers.dcgm_results import without_nvlink
from nodeproof.parsers.reading import Context, Grade, Reading, text_of

_STATES = {"healthy", "warning", "failure"}
_ROW = re.compile(r"\s*+\|([^|]*)\|(.*)")
_OVERALL = re.compile(r"\s*+\|\s*+Overall Health\s*+[:|]\s*+(\w+(?: error)?).*", re.IGNORECASE)
_ENTITY = re.compile(r"(?:-> |GPU ID: *|GPU )(\d{1,5})", re.IGNORECASE)
_SYSTEM = re.compile(r"-> (\w[\w ]*?)(?: system)?", re.IGNORECASE)
_OLD_SYSTEM = re.compile(r"(\w+) system: (\w+)(?: - (.*))?", re.IGNORECASE)
_LINK = re.compile(r"GPU (\d{1,5})'s NvLink link (\d{1,5}) is(?: currently)? down", re.IGNORECASE)


@dataclass(slots=True)
class _System:
    """One subsystem of one entity: its state, and the rows of its message."""

    name: str
    state: str
    words: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return " ".join(self.words)


@dataclass(slots=True)
class _Report:
    """What the rows say."""

    overall: str | None = None
    gpus: dict[str, str] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    systems: list[_System] = field(default_factory=list)
    _group: str = "gpu"  # of the entities below; a piece of a report may begin after its name

    def take(self, line: str) -> None:
        if found := _OVERALL.fullmatch(line):
            self.overall = self._worse(self.overall, found[1].lower())
            return
        row = _ROW.fullmatch(line)
        if row is None:
            return
        label, value = row[1].strip(), row[2].strip().removesuffix("|").strip()
        if label.lower() == "-> errors" and not value:
            return
        if entity := _ENTITY.fullmatch(label):
            known = self.gpus if self._group == "gpu" else self.others
            name = entity[1] if self._group == "gpu" else f"{self._group} {entity[1]}"
            known[name] = self._worse(known.get(name), value.lower())
        elif old := _OLD_SYSTEM.fullmatch(value) if not label else None:
            self.systems.append(_System(name=old[1], state=old[2].lower(), words=[old[3] or ""]))
        elif system := _SYSTEM.fullmatch(label):
            self.systems.append(_System(name=system[1], state=value.lower()))
        elif label:
            self._group = label.lower()
            self._unknown(self._group, value)  # no heading that is known, and its state counts
        elif value and self.systems:
            self.systems[-1].words.append(value)
        else:
            self._unknown("a row without a name", value)

    def _unknown(self, name: str, value: str) -> None:
        if value.lower() in _STATES:
            self.others[name] = self._worse(self.others.get(name), value.lower())

    @staticmethod
    def _worse(before: str | None, now: str) -> str:
        # A word that is none stays as one, whatever is said after it, and hides no failure.
        order = {"healthy": 0, "warning": 1, "failure": 3}
        return now if before is None else max(before, now, key=lambda state: order.get(state, 2))

    def links_down(self) -> dict[str, list[int]]:
        """Numbers of the links that are down, by GPU, in the order of the text."""
        found: dict[str, dict[int, None]] = {}
        for system in self.systems:
            for gpu, link in _LINK.findall(system.text):
                found.setdefault(str(int(gpu)), {})[int(link)] = None
        return {gpu: list(links) for gpu, links in found.items()}

    def states(self) -> list[str]:
        every = [*self.gpus.values(), *self.others.values(), *(s.state for s in self.systems)]
        return every if self.overall is None else [self.overall, *every]

    def facts(self) -> dict[str, Any]:
        failed = [s.name for s in self.systems if s.state == "failure"]
        return {
            "gpus": self.gpus,
            "systems_failed": list(dict.fromkeys(failed)),
            "links_down": self.links_down(),
        }


def read(data: bytes, context: Context) -> Reading:
    """Read one capture. `facts`: `gpus` (number to state), `systems_failed`, `links_down`.

    Takes whatever bytes there are; what can't be read is graded an error.
    """
    text = text_of(data)
    report = _Report()
    for line in text.splitlines():
        report.take(line)
    grade, why = _judge(report, text, context)
    return Reading(grade=grade, why=why, fields={"facts": report.facts()})


def _judge(report: _Report, text: str, context: Context) -> tuple[Grade, str]:
    states = report.states()
    if "failure" in states:
        failed = [s for s in report.systems if s.state == "failure"]
        if failed and without_nvlink(context) and all(_only_links(s) for s in failed):
            return Grade.WARN, "only NVLinks are down, and this board has none"
        return Grade.FAIL, f"DCGM's health check reports a failure{_where(report)}"
    if unknown := [state for state in states if state not in _STATES]:
        return Grade.ERROR, f"DCGM's health check gives no state that is known, but {unknown[0]!r}"
    said = stopped("\n".join(line for line in text.splitlines() if not _ROW.fullmatch(line)))
    if report.overall is not None and said:
        known = refusal(said)
        advice = known.advice if known else "the health check did not finish"
        return Grade.ERROR, f"{advice} (it says {said[:200]!r})"
    if report.overall is None:
        known, said = refusal(text), first_words(text)
        advice = known.advice if known else "the overall state is missing"
        return Grade.ERROR, f"{advice} (it says {said!r})"
    if "warning" in states:
        return Grade.WARN, f"DCGM's health check warns{_where(report)}"
    status = context.get("exit_status")
    if type(status) is int and status != 0:
        return Grade.ERROR, f"all is healthy, it says, and ended with status {status}: ask it again"
    return Grade.PASS, "DCGM's health check finds every watched part healthy"


def _only_links(system: _System) -> bool:
    rest = _LINK.sub("", system.text)
    return system.name.lower() == "nvlink" and rest != system.text and "error" not in rest.lower()


def _where(report: _Report) -> str:
    bad = [name for name, state in report.gpus.items() if state != "healthy"]
    bad = [f"GPU {name}" for name in bad]
    bad += [name for name, state in report.others.items() if state != "healthy"]
    parts = [s for s in report.systems if s.state != "healthy"]
    said = f": {parts[0].name}: {parts[0].text[:200]}" if parts else ""
    return f" on {', '.join(bad)}{said}" if bad else said
