from __future__ import annotations

import json

import pytest

from nodeproof.reports import json as report
from tests.results_samples import SAMPLES, accept, judged


def no_number(name):
    raise AssertionError(f"{name} is not JSON")


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_document_of_any_results_file_is_strict_json_in_ascii(sample):
    results, verdict = judged(SAMPLES[sample]())
    written = report.render(results, verdict)
    assert written.isascii()
    assert written.endswith("}\n")
    read = json.loads(written, parse_constant=no_number)
    assert read["verdict"] == verdict.decision.value
    assert len(read["undecided"]) == len(verdict.undecided)


def test_the_document_is_the_verdict_and_nothing_else():
    results, verdict = judged(SAMPLES["reject"]())
    assert json.loads(report.render(results, verdict)) == verdict.document()


def test_a_number_beyond_what_json_can_hold_becomes_text():
    data = accept().data().replace(b'"kernel":"6.8.0"', b'"kernel":1e999')
    assert json.loads(report.render(*judged(data)))["node"]["kernel"] == "inf"
