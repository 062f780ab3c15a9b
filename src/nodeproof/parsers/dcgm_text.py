"""`dcgmi diag` as a table, of DCGM 2, 3 and 4, whole or cut, alone or between other output.

The layout: DCGM, dcgmi/Diag.cpp of 2.1.4, 3.3.9 and 4.6.0. A result stands beside its name, or in
a row without one below it; a message is broken after every 45 characters, wherever that is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from nodeproof.parsers.dcgm_complaint import Complaint
from nodeproof.parsers.dcgm_links import judge_links, links_of
from nodeproof.parsers.dcgm_refusal import first_words, refusal, stopped
from nodeproof.parsers.dcgm_results import STATUSES, WORSE, Result, Run, judge
from nodeproof.parsers.reading import Context, Grade, Reading, text_of

_WIDTH = 45  # characters of a message in one row
_ROW = re.compile(r"\s*+\|([^|]*)\|(.*)")
_SECTION = re.compile(r"\s*+[+|]-++ +(\w+) +-++\+-+[+|]?\s*")
_HEAD = re.compile(r"\s*+\| *Diagnostic +\| *Result\b.*")
_RULE = re.compile(r"\s*+\+-+\+-+\+\s*")
_METADATA = re.compile(
    r"DCGM Version|Driver Version.*|.*\bDevice IDs\b.*|.*\b(?:EUD|Package)\b.* Version|Number of .*",
    re.IGNORECASE,
)
_WORDS = r"(Pass|Fail|Warn|Skip|Not Run)"
_STATUS = re.compile(_WORDS + r"(?: - (All|GPUs?:? *+[\d, .]*+))?", re.IGNORECASE)
_ENTITY = re.compile(rf"([A-Za-z_]+)(\d{{1,5}}): *{_WORDS}", re.IGNORECASE)
_MESSAGE = re.compile(r"(Warning|Error|Info)(?:: *([A-Za-z_]+)(\d{1,5}))?", re.IGNORECASE)


def read(data: bytes, context: Context) -> Reading:
    """Read one capture. Fields: `tests`, `version`, `failed`, `warnings`; `facts.links`, if any.

    Takes whatever bytes there are; what can't be read is graded an error.
    """
    text = text_of(data)
    table = _Table()
    for line in text.splitlines():
        table.take(line)
    run = table.run(text)
    grade, why = judge(run, context)
    links = links_of(text)
    if links and grade is not Grade.FAIL:
        of_links, said = judge_links(links, context)
        if of_links is Grade.FAIL or (of_links is Grade.WARN and grade is Grade.PASS):
            grade, why = of_links, said
    facts = {"links": links} if links else {}
    return Reading(grade=grade, why=why, fields={**run.fields(), "facts": facts})


@dataclass(slots=True)
class _Test:
    """The rows under one name. `each` are those that name an entity, as DCGM 4 adds them."""

    name: str | None
    category: str
    rows: list[tuple[int | None, str]] = field(default_factory=list)
    each: list[tuple[int | None, str]] = field(default_factory=list)
    complaints: list[Complaint] = field(default_factory=list)
    about: list[int | None] = field(default_factory=list)  # GPU of each complaint
    errors: list[bool] = field(default_factory=list)  # whether each is an error, not a warning

    def results(self) -> list[Result]:
        """One result per GPU; the row that only sums the others up is left out."""
        rows = self.each or self.rows
        listed = len(rows)
        if self.each and _worst(self.rows) > _worst(self.each):
            rows = [*rows, max(self.rows, key=lambda row: WORSE[row[1]])]
        # A pass with an error below it contradicts itself, and the error is what counts.
        if rows and all(status in {"pass", "warn"} for _, status in rows):
            told = zip(self.about, self.errors, strict=True)
            rows = [*rows, *((gpu, "error") for gpu in dict.fromkeys(g for g, e in told if e))]
        first_bad = next((i for i, row in enumerate(rows) if row[1] != "pass"), 0)
        of_gpu = {gpu: i for i, (gpu, _) in reversed(list(enumerate(rows))) if gpu is not None}
        of_gpu |= {gpu: i for i, (gpu, s) in enumerate(rows) if gpu is not None and s == "error"}
        said: list[list[Complaint]] = [[] for _ in rows]
        for complaint, gpu in zip(self.complaints, self.about, strict=True):
            if rows:
                said[first_bad if gpu is None else of_gpu.get(gpu, first_bad)].append(complaint)
        return [
            Result(
                name=self.name,
                gpu=gpu,
                status=status,
                category=self.category,
                complaints=tuple(said[i]),
                listed=i < listed,
            )
            for i, (gpu, status) in enumerate(rows)
        ]


def _worst(rows: list[tuple[int | None, str]]) -> int:
    return max((WORSE[status] for _, status in rows), default=0)


@dataclass(slots=True)
class _Table:
    """The rows of a table, put together again."""

    results: list[Result] = field(default_factory=list)
    version: str | None = None
    devices: int = 0
    headed: bool = False
    inside: bool = False  # between the head or a section and the rule that ends the table
    open: bool = False  # there are rows that no rule has closed yet
    cut: bool = False
    unreadable: int = 0
    stopped: str = ""
    section: str = ""
    test: _Test | None = None
    kind: str = ""  # of the message that is being read
    gpu: int | None = None
    message: list[str] = field(default_factory=list)

    def take(self, line: str) -> None:
        """Read the next line."""
        if section := _SECTION.fullmatch(line):
            self._end_test()
            self.section, self.inside, self.open = section[1].lower(), True, True
        elif _HEAD.fullmatch(line):
            self._end_test()
            self.cut = self.cut or (self.headed and self.open)
            self.section, self.headed, self.inside, self.open = "", True, True, True
        elif _RULE.fullmatch(line):
            self._end_test()
            self.section, self.inside, self.open = "", False, False
        elif (row := _ROW.fullmatch(line)) and row[2].strip(" |"):
            self.open = True
            self._row(row[1].strip(), row[2].rstrip().removesuffix("|")[1:])
        elif self.inside and line.lstrip().startswith("|"):
            self.open = self.cut = True  # the end of the row is missing
        elif not self.stopped:
            self.stopped = stopped(line)

    def run(self, text: str) -> Run:
        """Everything that was taken, as one run."""
        self._end_test()
        said = self.stopped or ("" if self.results else first_words(text))
        known = refusal(said if self.results else text)
        quoted = f"it says {said[:200]!r}" if said else ""
        return Run(
            results=self.results,
            version=self.version,
            whole=self.headed and not self.open and not self.cut,
            excerpt=not self.headed,
            unreadable=self.unreadable,
            devices=self.devices,
            refused=f"{known.advice} ({quoted})" if known and quoted else quoted,
        )

    def _row(self, name: str, cell: str) -> None:
        value = cell.strip()
        status = _STATUS.fullmatch(value)
        bad = status is not None and STATUSES[status[1].lower()] != "pass"
        # Rows of the metadata are no tests; one that lost its place there may not hide a failure.
        if _METADATA.fullmatch(name[:_WIDTH]) or (self.section == "metadata" and not bad):
            self._end_test()
            self._metadata(name, value)
        elif message := _MESSAGE.fullmatch(name):
            self._end_message()
            kind, group, number = message.groups()
            self.kind, self.message = kind.lower(), [_piece(cell)]
            self.gpu = int(number) if number and group.lower() == "gpu" else None
        elif name:
            self._end_test()
            self.test = _Test(name=name, category=self.section)
            if not self._status(value):
                self.unreadable += self.inside
        elif not self._another_result(value):
            if self.message:
                self.message.append(_piece(cell))
            else:
                self.unreadable += self.inside

    def _metadata(self, name: str, value: str) -> None:
        if name == "DCGM Version":
            self.version = self.version or value
        elif name == "GPU Device IDs Detected":
            self.devices = max(self.devices, len([i for i in value.split(",") if i.strip()]))

    def _another_result(self, value: str) -> bool:
        """A row without a name that is a result of the present test, and no part of a message."""
        if self.test is None:
            return False
        if entity := _ENTITY.fullmatch(value):
            self._end_message()
            gpu = int(entity[2]) if entity[1].lower() == "gpu" else None
            self.test.each.append((gpu, STATUSES[entity[3].lower()]))
            return True
        if self.message and self.kind != "info":
            return False
        if found := _STATUS.fullmatch(value):
            # The first words of a note can't be told from a result: only a bad one is taken for it.
            if self.message and STATUSES[found[1].lower()] == "pass":
                return False
            self._end_message()
        return self._status(value)

    def _status(self, value: str) -> bool:
        found = _STATUS.fullmatch(value)
        if found is None or self.test is None:
            return False
        self.cut = self.cut or "..." in value  # the list was longer than its cell
        numbers = re.findall(r"\d{1,5}(?![\d.])", found[2] or "")
        status = STATUSES[found[1].lower()]
        self.test.rows += [(int(number), status) for number in numbers] or [(None, status)]
        return True

    def _end_message(self) -> None:
        text, self.message = "".join(self.message).strip(), []
        if not text or self.kind == "info":
            return
        complaint = Complaint(text=text)
        gpu = self.gpu if self.gpu is not None else complaint.gpu
        if self.test is not None:
            self.test.complaints.append(complaint)
            self.test.about.append(gpu)
            self.test.errors.append(self.kind == "error")
        elif self.kind == "error":
            self.results.append(
                Result(
                    name=None,
                    gpu=gpu,
                    status="error",
                    category=self.section,
                    complaints=(complaint,),
                )
            )

    def _end_test(self) -> None:
        self._end_message()
        if self.test is not None:
            self.results += self.test.results()
        self.test = None


def _piece(cell: str) -> str:
    """The 45 characters of a message that stand in a row, blanks at their end included."""
    return cell[:_WIDTH].ljust(_WIDTH)
