"""`dcgmi diag -j` of DCGM 2, 3 and 4, and the diagnostic's own output, whole or cut.

The keys are those of DCGM (nvvs/include/NvvsJsonStrings.h and dcgmi/Diag.cpp of 2.1.4, 3.3.9 and
4.6.0): results carry `gpu_ids` or `gpu_id` (2 and 3) or `entity_id` with a group (4); warnings are
a text, a list of texts, or a list of mappings; a test that was not run leaves a null behind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from nodeproof.parsers.dcgm_complaint import Complaint
from nodeproof.parsers.dcgm_document import documents
from nodeproof.parsers.dcgm_refusal import first_words, refusal, stopped
from nodeproof.parsers.dcgm_results import STATUSES, WORSE, Result, Run, judge
from nodeproof.parsers.reading import Context, Reading, text_of

_GROUP_OF_GPUS = 1  # DCGM_FE_GPU
_MOST = 1 << 16  # no node has more GPUs; what is above is a marker for "none"
_MANY = 64  # GPUs of one result, twice what DCGM knows: each has the warnings, and they multiply
_NOBODY: list[int | None] = [None]
_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")


def read(data: bytes, context: Context) -> Reading:
    """Read one capture. Fields: `tests`, `version`, `failed`, `warnings`, `facts.complete`.

    Takes whatever bytes there are; what can't be read is graded an error.
    """
    text = text_of(data)
    found = documents(text)
    parts = _Parts()
    for value in found.values:
        parts.take(value)
    run = Run(
        results=parts.results,
        version=parts.version,
        whole=found.closed and found.sound,
        unreadable=parts.unreadable,
        devices=parts.devices,
        refused=_refused(parts, text, found.outside),
    )
    grade, why = judge(run, context)
    return Reading(
        grade=grade, why=why, fields={**run.fields(), "facts": {"complete": found.closed}}
    )


def _refused(parts: _Parts, text: str, outside: str) -> str:
    said = parts.refused or (stopped(outside) if parts.results else text)
    known = refusal(said)
    shown = first_words(said)
    if known:
        return f"{known.advice} (it says {shown!r})"
    return f"it says {shown!r}" if shown else ""


@dataclass(slots=True)
class _Parts:
    """What the documents of one capture hold, in their order."""

    results: list[Result] = field(default_factory=list)
    version: str | None = None
    unreadable: int = 0
    devices: int = 0
    refused: str = ""
    iteration: int = 0

    def take(self, value: Any, *, category: str = "") -> None:
        """Walk a value down to its tests; `documents` bounds how deep it is."""
        if isinstance(value, list):
            for item in value:
                self.take(item, category=category)
            return
        if not isinstance(value, dict):
            return
        self._note(value)
        category = _lower(value.get("category")) or category
        if "results" in value or "test_summary" in value:
            self._test(value, category)
        elif "status" in value:
            self._result(value, _name(value), category)
            for key, item in value.items():
                if key != "warnings":
                    self.take(item, category=category)
        else:
            if isinstance(value.get("name"), str) and "tests" not in value:
                self.unreadable += 1  # a test without a result
            for key, item in value.items():
                self._member(key, item, category)

    def _member(self, key: str, item: Any, category: str) -> None:
        if key != "iterations" or not isinstance(item, list):
            self.take(item, category=category)
            return
        # A diagnostic that was asked for several runs: a GPU has to be in each of them.
        for number, one in enumerate(item, 1):
            self.iteration = number
            self.take(one, category=category)
        self.iteration = 0

    def _note(self, value: dict[str, Any]) -> None:
        places = [value, value.get("metadata"), *(value.get(root) for root in _ROOTS)]
        for place in places:
            if isinstance(place, dict) and isinstance(place.get("version"), str):
                self.version = self.version or place["version"]
        ids = value.get("GPU Device IDs")
        if isinstance(ids, list):
            self.devices = max(self.devices, len(ids))
        if isinstance(value.get("entities"), list) and _of_gpus(value):
            self.devices = max(self.devices, len(value["entities"]))
        if isinstance(value.get("runtime_error"), str):
            self.refused = self.refused or value["runtime_error"] or "a runtime error without words"
        if _lower(value.get("Overall Result")) == "fail":
            self.refused = self.refused or str(value.get("Warning", "the iterations failed"))

    def _test(self, test: dict[str, Any], category: str) -> None:
        name = _name(test)
        before = len(self.results)
        unread = self.unreadable
        for item in test["results"] if isinstance(test.get("results"), list) else ():
            if isinstance(item, dict):
                self._result(item, name, category)
                self._hidden([*item.values()], name, category)
            else:
                self._hidden(item, name, category)
        own = self.results[before:]
        if "test_summary" in test:
            self._summary(test["test_summary"], own, name, category)
        if "status" in test:
            self._summary(test, own, name, category)
        rest = [v for key, v in test.items() if key not in {"results", "test_summary", "warnings"}]
        self._hidden(rest, name, category)
        if len(self.results) == before and self.unreadable == unread:
            self.unreadable += 1

    def _summary(self, summary: Any, own: list[Result], name: str | None, category: str) -> None:
        """Take what sums the results up, where it is worse than they are or can't be read."""
        if not isinstance(summary, dict):
            self.unreadable += 1
            return
        # A word that is not known is unreadable, whatever the results below it say.
        status = STATUSES.get(_lower(summary.get("status")))
        if status is None or WORSE[status] > max((WORSE[r.status] for r in own), default=-1):
            self._result(summary, name, category, listed=not own)

    def _hidden(self, value: Any, name: str | None, category: str) -> None:
        """Find results that are no passes in places where DCGM has none; they may not be lost."""
        if isinstance(value, dict):
            if STATUSES.get(_lower(value.get("status")), "pass") != "pass":
                self._result(value, name, category, listed=False)
            value = [*value.values()]
        if isinstance(value, list):
            for item in value:
                self._hidden(item, name, category)

    def _result(
        self, item: dict[str, Any], name: str | None, category: str, *, listed: bool = True
    ) -> None:
        status = STATUSES.get(_lower(item.get("status")))
        if status is None:
            self.unreadable += 1
            return
        complaints = tuple(_complaints(item.get("warnings")))
        gpus = [*dict.fromkeys(_gpus(item))]
        if len(gpus) > _MANY:
            self.unreadable += 1
            gpus = []
        self.results += [
            Result(
                name=name,
                gpu=gpu,
                status=status,
                category=category,
                complaints=complaints,
                listed=listed,
                iteration=self.iteration,
            )
            for gpu in (gpus or _NOBODY)
        ]


def _name(test: dict[str, Any]) -> str | None:
    name = test.get("name")
    return name if isinstance(name, str) else None


def _lower(value: Any) -> str:
    return value.strip().lower() if isinstance(value, str) else ""


def _of_gpus(item: dict[str, Any]) -> bool:
    group = item.get("entity_group")
    if isinstance(group, str):
        return group.lower() == "gpu"
    number: Any = item.get("entity_group_id", _GROUP_OF_GPUS)
    return bool(number == _GROUP_OF_GPUS)


def _gpus(item: dict[str, Any]) -> list[int | None]:
    if "entity_id" in item:
        return [*_numbers(item["entity_id"])] if _of_gpus(item) else []
    return [*_numbers(item.get("gpu_ids", item.get("gpu_id")))]


def _numbers(value: Any) -> list[int]:
    """GPU numbers out of 3, "3", "0,1", ["0", 1]; nothing out of -1 and of what is no number."""
    if isinstance(value, list):
        return [number for item in value if not isinstance(item, list) for number in _numbers(item)]
    if type(value) is int:
        return [value] if 0 <= value < _MOST else []
    if isinstance(value, str) and re.fullmatch(r"[\s,0-9]+", value):
        found = [
            int(digits) for digits in re.findall(r"[0-9]+", value) if len(digits) <= len(str(_MOST))
        ]
        return [number for number in found if number < _MOST]
    return []


def _complaints(warnings: Any) -> Iterator[Complaint]:
    for item in warnings if isinstance(warnings, list) else [warnings]:
        if isinstance(item, str) and item.strip():
            yield Complaint(text=item.strip())
        elif isinstance(item, dict):
            text = item.get("warning", item.get("warnings", ""))
            yield Complaint(
                text=str(text).strip(),
                error=_whole(item.get("error_id")),
                category=_whole(item.get("error_category")),
            )


def _whole(value: Any) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,6}", value):
        return int(value)
    return value if type(value) is int else None
