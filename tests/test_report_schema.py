"""The published schema of the results file against what the writer writes and the reader reads."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from nodeproof import model, results
from nodeproof.results import parse
from tests.results_samples import accept, hostile, rehearsal, undecided, waived

ROOT = Path(__file__).parent.parent
SCHEMA = json.loads((ROOT / "docs" / "results.schema.json").read_text())
VALIDATOR = Draft202012Validator(SCHEMA)
RUNS = {
    "accept": accept(samples=2),
    "undecided": undecided(),
    "waived": waived(),
    "rehearsal": rehearsal(),
    "hostile": hostile(),
}
# What a line says in its own words: nothing in it is required.
FREE = {"facts", "evidence", "node", "spec", "planted", "reported"}


def lines(run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.data().splitlines()]


def one_of_each() -> list[dict[str, Any]]:
    """A line of each type, and among them one of every nested object."""
    waiver_and_trial, attempt = lines(waived()), lines(undecided())
    kinds = {line["type"]: line for line in [*attempt, *waiver_and_trial]}
    with_attempt = next(line for line in attempt if line.get("attempts"))
    return [*kinds.values(), with_attempt]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all keys that a line has to have."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if path[-1:] != ("about",):  # its keys are ids of checks
                yield (*path, key)
            if key not in FREE:
                yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from places(inner, (*path, number))


def without(line: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    copy = json.loads(json.dumps(line))
    inner = copy
    for step in path[:-1]:
        inner = inner[step]
    del inner[path[-1]]
    return copy


def refused(line: dict[str, Any]) -> bool:
    """Whether the reader finds fault with a line beyond its standing alone in a file."""
    whole = {"seq": 0} if "seq" in line else {}
    problems = parse(json.dumps({**line, **whole}).encode() + b"\n").problems
    return any(
        text.startswith("line 1: ") and "not the first line" not in text for text in problems
    )


CASES = [
    pytest.param(line, path, id=f"{line['type']}:{'.'.join(map(str, path))}")
    for line in one_of_each()
    for path in places(line)
    if not (line["type"] in {"telemetry", "event"} and path[0] not in {"type", "seq"})
    and all(step in {0, 1} for step in path if isinstance(step, int))
]


def test_the_schema_is_one():
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("run", RUNS)
def test_every_line_that_the_writer_writes_is_valid(run):
    for line in lines(RUNS[run]):
        VALIDATOR.validate(line)


@pytest.mark.parametrize(("line", "path"), CASES)
def test_a_line_without_one_of_its_fields_is_refused_by_schema_and_reader(line, path):
    assert not refused(line)
    cut = without(line, path)
    assert not VALIDATOR.is_valid(cut)
    assert refused(cut)


@pytest.mark.parametrize(
    ("kind", "path", "wrong"),
    [
        ("finding", ("outcome",), "passed"),
        ("finding", ("cause",), "cosmic rays"),
        ("finding", ("remedy",), "pray"),
        ("finding", ("loaded_s",), "60"),
        ("finding", ("loaded_s",), True),
        ("finding", ("device", "kind"), "tpu"),
        ("finding", ("measurements", 0, "value"), None),
        ("selftest", ("caught",), 1),
        ("selftest", ("caught",), None),
        ("plan", ("schema",), 2),
        ("plan", ("rehearsal",), "false"),
        ("plan", ("profile",), "fast"),
        ("plan", ("checks", 0, "required"), "yes"),
        ("end", ("interrupted",), None),
        ("end", ("type",), "finish"),
    ],
)
def test_a_value_that_means_nothing_is_refused_by_schema_and_reader(kind, path, wrong):
    line = next(line for line in lines(accept(samples=1)) if line["type"] == kind)
    inner: Any = line
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = wrong
    assert not VALIDATOR.is_valid(line)
    assert refused(line)


@pytest.mark.parametrize(
    ("name", "kind", "own"),
    [
        ("plan", results.Plan, {"type", "seq", "schema"}),
        ("finding", model.Finding, {"type", "seq"}),
        ("selftest", model.SelfTest, {"type", "seq"}),
        ("end", results.End, {"type", "seq"}),
        ("device", model.Device, set()),
        ("key", model.Key, set()),
        ("planned", model.Planned, set()),
        ("measurement", model.Measurement, set()),
        ("attempt", model.Attempt, set()),
        ("about", model.About, set()),
        ("waiver", model.Waiver, set()),
    ],
)
def test_the_schema_names_exactly_the_fields_that_there_are(name, kind, own):
    described = SCHEMA["$defs"][name]
    assert set(described["properties"]) == {f.name for f in dataclasses.fields(kind)} | own
    assert set(described["required"]) == set(described["properties"])
    assert described["additionalProperties"] is False


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (SCHEMA["$defs"]["outcome"]["enum"], model.Outcome),
        (SCHEMA["$defs"]["cause"]["enum"], model.Cause),
        (SCHEMA["$defs"]["remedy"]["enum"], model.Remedy),
        (SCHEMA["$defs"]["kind"]["enum"], model.DeviceKind),
        (SCHEMA["$defs"]["plan"]["properties"]["profile"]["enum"], model.Profile),
    ],
)
def test_the_schema_names_exactly_the_words_that_there_are(values, kind):
    assert values == [each.value for each in kind]


def test_the_schema_has_the_number_that_the_reader_reads():
    assert SCHEMA["$defs"]["plan"]["properties"]["schema"]["const"] == results.SCHEMA
