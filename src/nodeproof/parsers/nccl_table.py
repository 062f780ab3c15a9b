"""What nccl-tests prints: arguments, list of devices, rows, footers, and how it failed.

Read from NVIDIA/nccl-tests, v1.0.0 to v2.19.6 (src/common.cu, src/util.cu, the headers of each
collective): `redop` and `root` are columns only where the collective has them before 2.13; the
check column was a deviation ("0e+00") and is a number of wrong elements since; per-iteration times
add four columns to each half, time stamps two at the end.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

_REDUCTIONS = frozenset({"sum", "prod", "max", "min", "avg", "mulsum", "none"})
_ROOT = re.compile(r"-?[0-9]{1,9}")
_LARGEST_ROOT = 9999  # a time is printed without its decimals from 10000 us on
_OLD_CHECK = re.compile(r"[0-9]e[+-][0-9]{2,3}")  # "%5.0le": a deviation, no count
_DEVIATION = 0.1  # far above what any order of summing gives, in every type

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_ARGUMENTS = re.compile(
    r"nThread (\d{1,9}) nGpus (\d{1,9}) minBytes \d{1,20} maxBytes (\d{1,20}) "
    r"step: (\d{1,20}) ?\((factor|bytes)\).{0,200}? validation: (\d{1,9})"
)
_HEADER = re.compile(r"\b(?:size|bytes) +(?:count|N) +type .{0,200}\bbusbw\b")
_DEVICE = re.compile(r"\bRank +(\d{1,9}) .{0,300}?\bdevice +\d+ \[")
_WRONG = re.compile(r"Out of bounds values *: *(-?\d{1,18}) (OK|FAILED)\b")
_AVERAGE = re.compile(r"Avg bus bandwidth *: *([-+.0-9a-z]{1,32})(?: +(OK|FAILED))?")
_CUT = frozenset({"O", "F", "FA", "FAI", "FAIL", "FAILE"})  # half a word behind the average
_FAILURE = re.compile(r"Test (?:(CUDA|NCCL) )?(?:failure|timeout)\b")
_QUOTED = re.compile(r"'(.*)'|'(.*)")
_TOO_FEW = re.compile(r"Invalid number of GPUs: (\d{1,9}) requested but only (\d{1,9}) were found")
_DIGITS = "0123456789"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row that is whole. Bandwidths in GB/s, out of place and in place."""

    size: int
    algbw: tuple[float, float]
    busbw: tuple[float, float]
    checks: tuple[str, str]

    @property
    def wrong(self) -> bool:
        """Does a check column show wrong data?"""
        return any(_shows_wrong(check) for check in self.checks)


@dataclass(slots=True, kw_only=True)
class Table:
    """Everything of nccl-tests in one text, of all the tests that it holds."""

    starts: int = 0  # tests that began, also those whose beginning was cut off
    finished: int = 0
    open: int = 0  # began and have no footer yet
    arguments: list[dict[str, int]] = field(default_factory=list)
    headers: int = 0
    footers: list[int] = field(default_factory=list)  # values out of bounds
    failed: bool = False  # a footer says so, whatever number it prints (it is cut to 32 bits)
    averages: list[float | None] = field(default_factory=list)
    below_floor: bool = False  # the run's own NCCL_TESTS_MIN_BW was missed
    rows: list[Row] = field(default_factory=list)
    cut_rows: int = 0
    ranks: set[int] = field(default_factory=set)
    failures: list[tuple[str, str]] = field(default_factory=list)  # (CUDA, NCCL or "", text)
    reduced: bool = False  # sizes were left out for want of memory
    too_few: str = ""
    announced: int = 0  # tests whose first line is there and whose arguments are not yet

    @property
    def seen(self) -> bool:
        """Is there any sign of a test?"""
        return bool(self.starts or self.failures)

    def fields(self) -> dict[str, Any]:
        """What the readers of nccl texts report, beside `transport`."""
        validated = self._validated()
        sizes = [row.size for row in self.rows]
        return {
            "complete": (self.finished > 0 and not self.open) if self.seen else None,
            "wrong": sum(self.footers) if self.footers and validated is not False else None,
            "avg_busbw_gbs": self.averages[0] if len(self.averages) == 1 else None,
            "max_size_bytes": max(sizes, default=None),
            "validated": validated,
            "ranks": self._ranks(),
        }

    def _validated(self) -> bool | None:
        if not (self.arguments or self.headers or self.footers):
            return None
        if any(given["validation"] == 0 for given in self.arguments):
            return False
        checks = [check for row in self.rows for check in row.checks]
        return not checks or any(check != "N/A" for check in checks)

    def _ranks(self) -> int | None:
        least = max((given["gpus"] for given in self.arguments), default=0)
        whole = bool(self.ranks) and min(self.ranks) == 0 and len(self.ranks) >= least
        return len(self.ranks) if whole else None


def table_of(text: str) -> Table:
    """Read a text line by line, in whatever prefixes its lines carry."""
    table = Table()
    for raw in re.split(r"[\r\n]+", text):
        _take(table, _COLOUR.sub("", raw) if "\x1b" in raw else raw)
    return table


def _take(table: Table, line: str) -> None:
    _arguments(table, line)
    if "busbw" in line and _HEADER.search(line):
        _begun(table)
        table.headers += 1
    if "Rank" in line and (found := _DEVICE.search(line)):
        table.ranks.add(int(found[1]))
    else:
        _row(table, line)
    if found := _WRONG.search(line):
        _begun(table)
        table.footers.append(int(found[1]))
        table.failed |= found[2] == "FAILED" or int(found[1]) != 0
    if "Avg bus bandwidth" in line:
        _average(table, line)
    if "Test " in line:
        _failed(table, line)
    if "Reducing maxBytes" in line:
        table.reduced = True
    if found := _TOO_FEW.search(line):
        table.too_few = f"{found[2]} of {found[1]} GPUs were found"


def _arguments(table: Table, line: str) -> None:
    if "Collective test starting" in line:
        _start(table)
        table.announced += 1
    if given := _ARGUMENTS.search(line):
        if table.announced:
            table.announced -= 1
        else:
            _start(table)
        threads, gpus, most, step, unit, validation = given.groups()
        table.arguments.append(
            {
                "gpus": int(threads) * int(gpus),
                "max": int(most),
                "factor": int(step) if unit == "factor" else 1,
                "step": int(step) if unit == "bytes" else 0,
                "validation": int(validation),
            }
        )


def _failed(table: Table, line: str) -> None:
    if found := _FAILURE.search(line):
        if not table.starts:
            _start(table)
        quoted = _QUOTED.search(line[found.end() :])
        says = (quoted[1] or quoted[2] or "") if quoted else line[found.start() :].strip()
        table.failures.append((found[1] or "", says))


def _start(table: Table) -> None:
    table.starts += 1
    table.open += 1


def _begun(table: Table) -> None:
    """Count a test whose beginning is not in the text."""
    if not table.open:
        _start(table)


def _average(table: Table, line: str) -> None:
    found = _AVERAGE.search(line)
    value = _number(found[1]) if found else None
    if found is None or value is None or line[found.end() :].strip() in _CUT:
        return
    table.averages.append(value if math.isfinite(value) else None)
    table.below_floor |= found[2] == "FAILED"
    if len(table.footers) > table.finished:  # the footer is two lines
        table.finished += 1
        table.open = max(0, table.open - 1)


def _row(table: Table, line: str) -> None:
    tokens = line.split()
    for place in range(2, min(len(tokens), 40)):
        if not tokens[place][0].isalpha() or not tokens[place - 1].isdigit():
            continue
        size = _digits_at_end(tokens[place - 2])
        rest = tokens[place + 1 :]
        if not size or not rest or not _is_column(rest[0]):
            continue
        _begun(table)
        row = _row_of(size, rest)
        if row is None:
            table.cut_rows += 1
        else:
            table.rows.append(row)
        return


def _row_of(size: str, rest: list[str]) -> Row | None:
    """Take the columns behind the type; `None` where some of them are missing."""
    if rest and rest[0] in _REDUCTIONS:
        rest = rest[1:]
    if rest and _ROOT.fullmatch(rest[0]) and int(rest[0]) <= _LARGEST_ROOT:
        rest = rest[1:]
    numbers = list(_leading(rest))
    if len(numbers) not in {8, 16}:
        return None
    half = len(numbers) // 2
    first, second = numbers[:half], numbers[half:]
    figures = [_number(each[n]) for each in (first, second) for n in (1, 2)]
    alg_out, bus_out, alg_in, bus_in = (math.nan if f is None else f for f in figures)
    return Row(
        size=int(size),
        algbw=(alg_out, alg_in),
        busbw=(bus_out, bus_in),
        checks=(first[3], second[3]),
    )


def _leading(tokens: list[str]) -> list[str]:
    numbers = []
    for token in tokens[:18]:
        if not _is_column(token):
            break
        numbers.append(token)
    return numbers


def _is_column(token: str) -> bool:
    return token == "N/A" or token in _REDUCTIONS or _number(token) is not None


def _number(token: str) -> float | None:
    if len(token) > 32 or "_" in token or not token.isascii():
        return None
    try:
        return float(token)
    except ValueError:
        return None


def _digits_at_end(token: str) -> str:
    """Return the size of a row, also where a prefix stands right before it."""
    digits = token[len(token.rstrip(_DIGITS)) :]
    return digits if len(digits) <= 20 else ""


def _shows_wrong(check: str) -> bool:
    value = _number(check)
    if value is None:
        return False
    if _OLD_CHECK.fullmatch(check) and value < 1e6:  # as a count it would need no exponent
        return not value <= _DEVIATION
    return not value <= 0
