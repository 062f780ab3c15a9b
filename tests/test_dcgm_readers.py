"""The readers of what DCGM prints, on what operators paste: cut, wrapped, mixed, contradictory."""

from __future__ import annotations

import json
import time

import pytest
from dcgm_tables import (
    DEPLOYMENT,
    HARDWARE,
    THREE,
    message,
    of_json,
    of_text,
    results_of,
    row,
    table,
)
from fake_dcgmi import FAULTY_MEMORY, PERSISTENCE, WARNING, refused, styled, v2, v3, v4
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeproof.parsers import dcgm_health_text, dcgm_json, dcgm_text
from nodeproof.parsers.reading import Grade

# --- JSON -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "context", "grade"),
    [
        (v4({"software": ["Pass", "Pass"]}), {}, "pass"),
        (v4({"software": ["Pass", "Pass"]}), {"exit_status": 226}, "error"),
        (v4({"software": ["Pass", "Pass"]}), {"gpus_expected": 8}, "error"),
        (v3(), {"gpus_expected": 8}, "error"),
        (v4({"memory": ["Skip", "Skip"]}), {"exit_status": 0}, "error"),
        (v4({"software": ["Pass"] * 2, "memory": ["Skip"] * 2}), {}, "error"),
        (v4({"software": ["Pass"] * 2, "memory": ["Pass", "Skip"]}), {}, "error"),
        (v4({"memory": ["Pass"] * 2, "targeted_power": ["Skip"] * 2}), {}, "warn"),
        (v4({"memory": ["Pass", "Warn"]}), {}, "warn"),
        (v4({"memory": ["Pass", "Splendid"]}), {}, "error"),
        (v4({"software": ["Pass", ("Fail", PERSISTENCE)]}), {"exit_status": 226}, "warn"),
        (v4({"memory": [("Fail", PERSISTENCE), ("Fail", FAULTY_MEMORY)]}), {}, "fail"),
        (v2(), {}, "pass"),
        (v2(("Pass", "Fail")), {"exit_status": 0}, "fail"),
        (refused("The GPUs are detached."), {}, "error"),
        ({"DCGM Diagnostic": {}}, {}, "error"),
        ("Error: Unable to connect to host engine.\n", {}, "error"),
        ({"iterations": [v3(), v3(("Pass", "Fail"))], "Overall Result": "Fail"}, {}, "fail"),
        ({"iterations": [v3()], "Overall Result": "Fail", "Warning": "Timeout"}, {}, "error"),
    ],
)
def test_a_diagnostic_is_graded_by_what_was_tested(document, context, grade):
    assert of_json(document, **context).grade == grade


def test_a_pass_that_had_no_memory_to_test_proves_nothing():
    warning = {**WARNING, "warning": "Couldn't allocate 75%", "error_id": 56}
    assert of_json(v4({"memory": ["Pass", ("Pass", warning)]})).grade is Grade.ERROR


def test_the_summary_of_a_test_is_no_result_beside_those_that_it_sums_up():
    document = v4({"memory": ["Pass", "Pass"]})
    assert results_of(of_json(document)) == [("memory", 0, "pass"), ("memory", 1, "pass")]
    test = document["DCGM Diagnostic"]["test_categories"][0]["tests"][0]
    test["test_summary"] = {"status": "Fail", "warnings": [FAULTY_MEMORY]}
    reading = of_json(document)
    assert reading.grade is Grade.FAIL
    assert len(results_of(reading)) == 2
    del test["results"]
    assert results_of(of_json(document)) == [("memory", None, "fail")]


@pytest.mark.parametrize(
    ("summary", "each", "grade"),
    [
        ("Warn", ["Pass", "Pass"], Grade.WARN),
        ("Skip", ["Pass", "Pass"], Grade.WARN),
        ("Fail", ["Pass", "Warn"], Grade.FAIL),
        ("Error", ["Pass", "Pass"], Grade.ERROR),
        ("", ["Pass", "Pass"], Grade.ERROR),
        (None, ["Pass", "Pass"], Grade.ERROR),
        ("Pass", ["Pass", "Pass"], Grade.PASS),
        ("Pass", ["Pass", "Warn"], Grade.WARN),
    ],
)
def test_a_summary_that_is_worse_than_all_that_it_sums_up_is_what_counts(summary, each, grade):
    document = v4({"memory": each})
    category = document["DCGM Diagnostic"]["test_categories"][0]
    category["tests"][0]["test_summary"] = {"status": summary}
    reading = of_json(document)
    assert reading.grade is grade
    assert len(reading.fields["tests"]) == 2


PASSED = {"gpu_id": "0", "status": "Pass"}
FAILED = {"gpu_id": "1", "status": "Fail"}


@pytest.mark.parametrize(
    ("test", "grade"),
    [
        ({"results": [PASSED], "status": "Fail"}, "fail"),
        ({"results": [PASSED], "status": "Pass"}, "pass"),
        ({"results": [PASSED], "status": "Splendid"}, "error"),
        ({"results": [PASSED], "more": [FAILED]}, "fail"),
        ({"results": [PASSED | {"more": {"deeper": [FAILED]}}]}, "fail"),
        ({"results": [PASSED | {"info": {"status": "ok"}}]}, "pass"),  # of what, nobody knows
        ({"results": [[FAILED], PASSED]}, "fail"),
        ({"results": [PASSED, None]}, "pass"),
        ({"results": [PASSED], "test_summary": [FAILED]}, "error"),
        ({"results": [PASSED], "test_summary": {}}, "error"),
        ({"results": [PASSED], "test_summary": None}, "error"),
        ({"status": "Pass", "tests": [{"name": "b", "results": [FAILED]}]}, "fail"),
        ({"status": "Pass", "tests": [{"name": "b", "results": [PASSED]}]}, "pass"),
    ],
)
def test_a_failure_counts_wherever_in_the_document_it_stands(test, grade):
    assert of_json({"tests": [{"name": "memory", **test}]}).grade == grade


def test_a_result_that_names_more_gpus_than_there_are_is_not_known():
    """Each GPU has the warnings of its result, so that the two would multiply."""
    many = {"status": "Pass", "gpu_ids": ",".join(map(str, range(5000))), "warnings": ["w"] * 5000}
    reading = of_json({"tests": [{"name": "memory", "results": [many]}]})
    assert reading.grade is Grade.ERROR
    assert results_of(reading) == [("memory", None, "pass")]
    twice = {"tests": [{"name": "memory", "results": [PASSED | {"gpu_id": "0,0,0"}]}]}
    assert results_of(of_json(twice)) == [("memory", 0, "pass")]


def test_other_entities_are_no_gpus():
    document = v4({"memory": ["Pass", "Pass"]})
    results = document["DCGM Diagnostic"]["test_categories"][0]["tests"][0]["results"]
    results[1] |= {"entity_group": "CPU", "entity_group_id": 7, "entity_id": 0}
    assert results_of(of_json(document)) == [("memory", 0, "pass"), ("memory", None, "pass")]


def test_a_gpu_that_is_a_marker_is_none():
    told = {"Persistence Mode": ("Fail", -1, "Persistence mode for GPU 1 is disabled.")}
    reading = of_json(v3(deployment=told))
    assert reading.grade is Grade.WARN
    assert ("Persistence Mode", None, "fail") in results_of(reading)


@pytest.mark.parametrize("ids", ["1,3", [1, 3], ["1", "3"], " 1, 3 "])
def test_a_list_of_gpus_is_one_result_each(ids):
    document = {"name": "memory", "results": [{"status": "PASS", "gpu_ids": ids}]}
    assert results_of(of_json(document)) == [("memory", 1, "pass"), ("memory", 3, "pass")]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "memory", "results": [{"status": "Fail", "status": "Pass", "gpu_id": 1}]}',
        '{"name": "memory", "results": [{"status": "Pass" "gpu_id": 1}]}',
        '"memory", "results": [{"status": "Pass", "gpu_id": "1"}]}]}',
        "[" * 5000,
        "{" * 5000 + '"status": "Pass"' + "}" * 5000,
        '{"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "memory"}]}]}}',
    ],
)
def test_json_that_can_be_understood_in_two_ways_is_no_pass(text):
    assert of_json(text).grade is Grade.ERROR


@pytest.mark.parametrize("document", [v4({"software": ["Pass"] * 2}), v3(), v2()])
def test_a_document_that_is_cut_anywhere_passes_nothing(document):
    text = styled(document)
    whole = len(text.rstrip())
    for at in range(0, whole, 7):
        reading = of_json(text[:at])
        assert reading.grade is Grade.ERROR
        assert reading.fields["facts"]["complete"] is False


@pytest.mark.parametrize("left", ['ts: "1", "status": "Fail"}]}]}', '"status":"Fail"', "}]}"])
@pytest.mark.parametrize("order", [1, -1])
def test_what_is_left_of_another_document_beside_a_whole_one_passes_nothing(left, order):
    whole = json.dumps(v3())
    assert dcgm_json.read(whole.encode(), {}).grade is Grade.PASS
    text = "\n".join([left, whole][::order])
    assert dcgm_json.read(text.encode(), {}).grade is Grade.ERROR


def test_a_status_that_can_be_read_is_read_before_the_cut_and_half_a_word_is_not():
    text = styled(v4({"memory": ["Pass", ("Fail", FAULTY_MEMORY)]}))
    shown = text.index('"status" : "Fail"') if '"status" : "Fail"' in text else text.index('"Fail"')
    assert of_json(text[: shown + 3]).grade is Grade.ERROR
    cut = of_json(text[: shown + 20])
    assert cut.grade is Grade.FAIL
    assert results_of(cut)[-1] == ("memory", 1, "fail")


def test_words_around_and_between_documents_are_passed_over():
    text = f"[INFO] {{a}} starting\n{styled(v2())}\nWarning: [x] {{y}}\n{styled(v3())}bye\n"
    reading = of_json(text)
    assert reading.grade is Grade.PASS
    assert reading.fields["facts"]["complete"] is True
    assert reading.fields["version"] == "3.3.9"


def test_a_name_that_no_terminal_can_show_is_printed_all_the_same():
    reading = of_json('{"name": "a\\ud800", "results": [{"status": "Pass"}]}')
    json.dumps(dict(reading.fields), ensure_ascii=False).encode()
    assert results_of(reading) == [("a\\ud800", None, "pass")]


# --- text -----------------------------------------------------------------------------------

FOUR = table(
    DEPLOYMENT,
    row("software", "Pass"),
    row("", "GPU0: Pass"),
    row("", "GPU1: Pass"),
    HARDWARE,
    row("memory", "Fail"),
    row("", "GPU0: Pass"),
    row("", "GPU1: Fail"),
    message(
        "Warning: GPU1", "Found 3 faulty memory elements on GPU 1 Run a field diagnostic on it."
    ),
)


def test_a_table_of_dcgm_4_has_a_result_for_each_gpu():
    reading = of_text(FOUR)
    assert results_of(reading) == [
        ("software", 0, "pass"),
        ("software", 1, "pass"),
        ("memory", 0, "pass"),
        ("memory", 1, "fail"),
    ]
    assert (reading.grade, reading.fields["version"]) == (Grade.FAIL, "4.2.3")
    (failed,) = reading.fields["failed"]
    assert failed["says"].startswith("Found 3 faulty memory elements on GPU 1 Run a field diag")
    assert failed["of_the_board"]


def test_a_table_of_dcgm_3_passes_when_it_is_whole_and_never_when_it_is_cut():
    assert of_text(THREE).grade is Grade.PASS
    assert of_text(THREE, gpus_expected=8).grade is Grade.ERROR
    assert of_text(THREE, exit_status=226).grade is Grade.ERROR
    for at in range(len(THREE) - 3):
        assert of_text(THREE[:at]).grade is Grade.ERROR


def test_a_message_is_put_together_across_words_and_blanks():
    said = "Persistence mode for GPU 0 is disabled. Enable persistence mode by running nvidia-smi"
    text = table(
        DEPLOYMENT, row("Persistence Mode", "Fail"), message("Error", said), version="3.1.8"
    )
    reading = of_text(text)
    assert reading.grade is Grade.WARN
    assert reading.fields["failed"][0]["says"] == said
    trimmed = "\n".join(line.rstrip(" |") for line in text.splitlines())
    assert of_text(trimmed.replace("\n+-", " |\n+-")).fields["failed"][0]["says"] == said


def test_a_result_in_several_rows_is_one_test():
    text = table(
        HARDWARE,
        row("GPU Memory", "Pass - GPU: 0   "),
        row("", "Fail - GPUs: 1, 2   "),
        row("", "Skip - GPU: 3   "),
        message("Warning", "Error using CUDA API cuCtxCreate GPU 2"),
        version="3.3.9",
    )
    reading = of_text(text)
    assert results_of(reading) == [
        ("GPU Memory", 0, "pass"),
        ("GPU Memory", 1, "fail"),
        ("GPU Memory", 2, "fail"),
        ("GPU Memory", 3, "skip"),
    ]
    assert [f["says"][:5] for f in reading.fields["failed"]] == ["", "Error"]


@pytest.mark.parametrize(
    ("parts", "grade"),
    [
        ((DEPLOYMENT, row("Denylist", "Pass"), HARDWARE, row("GPU Memory", "Skip - All")), "error"),
        ((DEPLOYMENT, row("Denylist", "Skip")), "error"),
        ((DEPLOYMENT, row("Denylist", "Splendid")), "error"),
        ((HARDWARE, row("GPU Memory", "Pass - GPUs: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1...")), "error"),
        ((HARDWARE, row("GPU Memory", "Pass - All"), row("Pulse Test", "Skip - All")), "warn"),
        ((HARDWARE, row("GPU Memory", "Warn - GPU: 1")), "warn"),
        ((HARDWARE, row("memory", "Not Run")), "error"),
        ((HARDWARE, row("memory", "Pass - All"), message("Error", "Found 3 faulty")), "fail"),
        (
            (
                HARDWARE,
                row("memory", "Pass"),
                row("", "GPU0: Pass"),
                row("", "GPU1: Pass"),
                message("Error: GPU1", "Found 3 faulty"),
            ),
            "fail",
        ),
        ((HARDWARE, row("memory", "Pass"), message("Warning", "Couldn't allocate 75%")), "error"),
        ((), "error"),
    ],
)
def test_a_table_is_graded_by_what_was_tested(parts, grade):
    assert of_text(table(*parts)).grade == grade


@pytest.mark.parametrize(
    ("parts", "grade"),
    [
        ([row("Pulse Test", "Fail"), HARDWARE, row("PCIe", "Pass")], "fail"),  # among the metadata
        ([row("EUD Test", "Pass"), HARDWARE, row("PCIe", "Pass")], "pass"),
        ([HARDWARE, row("PCIe", "Pass"), row("", "GPU1: Fial")], "error"),
        ([HARDWARE, row("PCIe", "Pass"), row("", "GPU1 Fail")], "error"),
        ([HARDWARE, row("PCIe", "Pass"), row("", "Fail")], "fail"),
        ([HARDWARE, row("PCIe", "Warn"), row("", "GPU0: Pass"), row("", "GPU1: Pass")], "warn"),
        ([HARDWARE, row("PCIe", "Skip"), row("", "GPU0: Pass"), row("", "GPU1: Pass")], "warn"),
        ([HARDWARE, row("PCIe", "Skip"), row("", "GPU0: Fail"), row("", "GPU1: Pass")], "fail"),
        ([HARDWARE, row("PCIe", "Pass"), row("Info", "a note"), row("", "Fail - GPU: 1")], "fail"),
        ([HARDWARE, row("PCIe", "Pass"), row("Info", "a note"), row("", "Pass - All")], "pass"),
        ([HARDWARE, row("PCIe", "Pass"), row("Info", "a note"), row("", "goes on")], "pass"),
    ],
)
def test_a_row_that_lost_its_place_or_its_word_is_no_pass(parts, grade):
    assert of_text(table(*parts)).grade == grade


def test_iterations_that_were_given_up_are_no_pass():
    text = f"{THREE}Aborting the iterative runs of the diagnostic due to failure: Timeout\n"
    assert of_text(text).grade is Grade.ERROR


LINKS = """\
GPUs:
    gpuId 0:
        U U U U X _
    gpuId 1:
        U U U D X _
NvSwitches:
    physicalId 8:
        D D D D D D
"""


@pytest.mark.parametrize(
    ("context", "grade"),
    [
        ({}, "warn"),
        ({"nvlinks_per_gpu": 4}, "fail"),
        ({"nvlinks_per_gpu": 3}, "pass"),
        ({"nvlink_expected": True}, "fail"),
        ({"nvlink_expected": False}, "pass"),
    ],
)
def test_links_are_judged_by_what_the_product_has(context, grade):
    reading = of_text(THREE + LINKS, **context)
    assert reading.grade == grade
    assert reading.fields["facts"]["links"] == {
        "0": {"up": 4, "down": 0, "disabled": 1, "unsupported": 1},
        "1": {"up": 3, "down": 1, "disabled": 1, "unsupported": 1},
    }


# --- whatever bytes -------------------------------------------------------------------------

READERS = (dcgm_json.read, dcgm_text.read, dcgm_health_text.read)
SEEDS = [text.encode() for text in (styled(v4({"m": ["Pass"]})), styled(v2()), FOUR, LINKS)]


@st.composite
def spoiled(draw):
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 30))] = draw(
            st.one_of(st.binary(max_size=8), st.sampled_from([b'{"', b"]", b"\\", b"|", b"9" * 40]))
        )
    return bytes(data)


@settings(max_examples=150, deadline=None)
@given(st.one_of(spoiled(), st.binary(max_size=200)))
def test_no_bytes_make_a_reader_raise(data):
    for read in READERS:
        reading = read(data, {"exit_status": [], "gpus_expected": "x", "nvlinks_per_gpu": None})
        assert reading.why
        json.dumps(dict(reading.fields), allow_nan=False, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "piece",
    [
        b'{"',
        b'{"a"',
        b"[",
        b"| a | b |\n",
        b"| PCIe | Fail |\n",
        b"| | x |\n",
        b"-> 1 ",
        b'"\\',
        b" ",
    ],
)
def test_a_large_input_takes_no_more_than_its_share(piece):
    """Half a megabyte in seconds: the square of that would take hours."""
    data = b"[" + piece * (500_000 // len(piece))
    for read in READERS:
        began = time.process_time()
        read(data, {})
        assert time.process_time() - began < 10
