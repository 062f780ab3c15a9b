"""The list of ways by which gates fail open names tests that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from conftest import TESTS

PAGE = Path(__file__).parent.parent / "docs/fail-open.md"
NAMED = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def rows() -> list[list[str]]:
    """Cells of every row of every table, without heads and rules."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if row[-1] != "shown by" and not line_of_table(row)]


def line_of_table(row: list[str]) -> bool:
    return set("".join(row)) <= set("-|")


def functions(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    }


def expected_to_fail(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and any(".xfail" in ast.unparse(mark) for mark in node.decorator_list)
    }


def test_every_test_that_the_list_names_is_there():
    named = NAMED.findall(PAGE.read_text())
    files = {file for file, _ in named}
    there = {file: functions(TESTS / file) for file in files if (TESTS / file).exists()}
    missing = [f"{file}::{name}" for file, name in named if name not in there.get(file, set())]
    assert missing == []


def test_every_row_of_the_list_has_three_cells_and_names_a_test():
    assert len(rows()) > 30
    wrong = [row[0] for row in rows() if len(row) != 3 or not NAMED.search(row[-1])]
    assert wrong == []
    # What is written in another way than the above is seen by neither test.
    assert PAGE.read_text().count("::") == len(NAMED.findall(PAGE.read_text()))


def test_what_is_still_open_is_all_that_is_expected_to_fail():
    page = PAGE.read_text().partition("## Still open")[2].partition("\n\nA host root")[0]
    named = {name for _, name in NAMED.findall(page)}
    assert named == {name for path in TESTS.glob("test_*.py") for name in expected_to_fail(path)}
