"""A command of DCGM that was refused, beside the output of one that was not."""

from __future__ import annotations

import pytest
from dcgm_tables import THREE, of_json, of_text
from fake_dcgmi import styled, v3

from nodeproof.parsers.reading import Grade

REFUSALS = [
    "Error: Unable to connect to host engine.",
    "error: unable to establish a connection to the specified host: localhost",
    "Nov 05 13:55:26 gpu-node-1 dcgmi[77]: Unable to connect to host engine. Host engine returned: x",
    "Error: Diagnostic could not be run because another one is already running.",
]


@pytest.mark.parametrize("said", REFUSALS)
@pytest.mark.parametrize("text", ["{whole}{said}\n", "{said}\n{whole}", "{whole}{said}\n{whole}"])
def test_a_command_that_was_refused_beside_one_that_passed_is_no_pass(text, said):
    reading = of_json(text.format(whole=styled(v3()), said=said))
    assert reading.grade is Grade.ERROR
    assert said in reading.why
    assert of_text(text.format(whole=THREE, said=said)).grade is Grade.ERROR


@pytest.mark.parametrize(
    "said",
    [
        "Successfully ran diagnostic for group.",
        "Host engine already running with pid 6823",
        "Warning: the configuration file has no entry, and errors: none",
        "No errors were found.",
    ],
)
def test_harmless_words_beside_a_diagnostic_change_nothing(said):
    assert of_json(f"{said}\n{styled(v3())}{said}\n").grade is Grade.PASS
    assert of_text(f"{said}\n{THREE}{said}\n").grade is Grade.PASS
