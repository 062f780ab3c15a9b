"""What is known beside a text is taken as it was meant, or refused; it is never passed over."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest

from nodeproof.cli import parse
from nodeproof.parsers import dcgm_json, dcgm_text
from nodeproof.parsers.reading import CONTEXT, Known

PARSERS = Path(parse.__file__).parents[1] / "parsers"
UNNAMED = {"DCGM GPU Diagnostic": {"test_categories": [{"category": "Deployment", "tests": [
    {"name": "Software", "results": [{"status": "Pass"}]}
]}]}}  # fmt: skip
TABLE = "+-----+-----+\n| Diagnostic | Result |\n+=====+=====+\n| Software | Pass - All |\n+-----+-----+\n"


def run(capsys, tmp_path, context):
    """Status of `nodeproof parse` on a text that passes, and what it wrote to standard error."""
    text = tmp_path / "text"
    text.write_text(json.dumps(UNNAMED))
    status = parse.main(
        argparse.Namespace(kind="dcgm_json", file=text, context=json.dumps(context))
    )
    return status, capsys.readouterr().err


@pytest.mark.parametrize(
    ("context", "says"),
    [
        ({"efa_expectd": True}, "did you mean efa_expected"),
        ({"GPUS_EXPECTED": 8}, "known are"),
        ({"": 1}, "known are"),
        ({"gpus_expected": "8"}, 'says "8" for gpus_expected, which has to be a whole number'),
        ({"gpus_expected": 8.0}, "8.0"),
        ({"gpus_expected": True}, "true"),
        ({"gpus_expected": -1}, "-1"),
        ({"gpus_expected": None}, "null"),
        ({"exit_status": "1"}, "a whole number"),
        ({"exit_status": [1]}, "[1]"),
        ({"nvlink_expected": 1}, "true or false"),
        ({"nvlink_expected": "no"}, "true or false"),
        ({"port_gbs": "400"}, "a number"),
        ({"port_gbs": float("nan")}, "a number"),
        ({"data_nics": "ens1"}, "a list of texts"),
        ({"data_nics": [1]}, "a list of texts"),
        ({"node": 7}, "a text"),
        ({"where": "pod"}, '"host" or "container"'),
        ({"idle": True, "efa_nics": 4}, "or efa_nics_expected"),
    ],
)
def test_a_key_that_nothing_reads_and_a_value_of_another_kind_are_refused(
    capsys, tmp_path, context, says
):
    status, said = run(capsys, tmp_path, context)
    assert status == 2
    assert says in said


GOOD = {
    Known.YES: (True, False),
    Known.COUNT: (0, 8),
    Known.STATUS: (0, -9, 226),
    Known.NUMBER: (400, 0.9),
    Known.TEXT: ("", "x"),
    Known.TEXTS: ([], ["ens1"]),
    Known.PLACE: ("host", "container"),
}


@pytest.mark.parametrize("key", CONTEXT)
def test_what_a_key_has_to_be_is_taken(capsys, tmp_path, key):
    for value in GOOD[CONTEXT[key]]:
        status, said = run(capsys, tmp_path, {key: value})
        assert status != 2, said


def test_every_key_that_a_reader_asks_for_is_known():
    asked = {
        key
        for file in PARSERS.glob("*.py")
        for key in re.findall(
            r"(?:context\.get\(|context\[|(?:count|_words)\(context, )\"(\w+)\"", file.read_text()
        )
    }
    assert "gpus_expected" in asked
    assert asked <= set(CONTEXT)


@pytest.mark.parametrize("read", [dcgm_json.read, dcgm_text.read])
def test_results_that_name_no_gpu_show_none_of_those_that_are_expected(read):
    data = (json.dumps(UNNAMED) if read is dcgm_json.read else TABLE).encode()
    assert read(data, {}).grade == "pass"
    held = read(data, {"gpus_expected": 8})
    assert (held.grade, "name no GPU, and 8 are expected" in held.why) == ("error", True)
