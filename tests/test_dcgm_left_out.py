"""A GPU of which one test of the diagnostic has no result was not tested by it."""

from __future__ import annotations

import json

import pytest
from dcgm_tables import HARDWARE, of_json, of_text, row, table
from fake_dcgmi import PERSISTENCE, v2, v3, v4

from nodeproof.parsers.reading import Grade


def untold(document, gpu, name):
    """The same, with a null in place of what one test says of a GPU."""
    document = json.loads(json.dumps(document))
    for category in document["DCGM Diagnostic"]["test_categories"]:
        for test in category["tests"]:
            if test is not None and test["name"] == name:
                test["results"][gpu] = None
    return document


FOUR_PASS = ["Pass"] * 4
LEVEL_2 = v4({"software": FOUR_PASS, "memory": FOUR_PASS, "pcie": FOUR_PASS}, gpus=4)
LISTED = {"tests": [
    {"name": "Denylist", "results": [{"status": "Pass", "gpu_ids": "0,1,2,3"}]},
    {"name": "Memory", "results": [{"status": "Pass", "gpu_ids": "0,1,2"}]},
]}  # fmt: skip


@pytest.mark.parametrize("context", [{}, {"gpus_expected": 4}])
@pytest.mark.parametrize(
    "document",
    [
        LISTED,
        untold(LEVEL_2, 3, "memory"),
        untold(LEVEL_2, 0, "pcie"),
        untold(LEVEL_2, 2, "software"),
        untold(v3(FOUR_PASS), 3, "GPU Memory"),
        {"iterations": [v3(FOUR_PASS), untold(v3(FOUR_PASS), 3, "GPU Memory")]},
        v4({"memory": ["Pass", "Pass", "Warn"], "pcie": FOUR_PASS}, gpus=4),
    ],
)
def test_a_gpu_that_one_test_left_out_is_not_tested(document, context):
    reading = of_json(document, **context)
    assert reading.grade is Grade.ERROR, reading.why


@pytest.mark.parametrize("context", [{}, {"gpus_expected": 4}])
@pytest.mark.parametrize(
    ("document", "grade"),
    [
        (LEVEL_2, "pass"),
        (v3(FOUR_PASS), "pass"),
        (v2(FOUR_PASS), "pass"),
        ({"iterations": [v3(FOUR_PASS), v3(FOUR_PASS)]}, "pass"),
        # Tests of the host's software name no GPU, or only the one that they complain about.
        (v3(FOUR_PASS, {"Persistence Mode": ("Fail", 1, "Persistence mode for GPU 1 is off")}), "warn"),
        (v3(FOUR_PASS, {"Inforom": ("Warn", 2, "a note")}), "warn"),
        (v4({"software": ["Pass", ("Fail", PERSISTENCE), "Pass", "Pass"], "memory": FOUR_PASS}, gpus=4), "warn"),
        (v4({"memory": FOUR_PASS, "eud": ["Skip"] * 4}, gpus=4), "warn"),
        (untold(v4({"memory": FOUR_PASS, "pcie": ["Fail", *FOUR_PASS[:3]]}, gpus=4), 3, "memory"), "fail"),
    ],
)  # fmt: skip
def test_tests_that_speak_of_every_gpu_leave_none_out(document, grade, context):
    reading = of_json(document, **context)
    assert reading.grade == grade, reading.why


def test_what_is_listed_beside_the_results_is_no_result():
    four_of_eight = v4({"software": FOUR_PASS, "memory": FOUR_PASS}, gpus=8)
    assert of_json(four_of_eight, gpus_expected=8).grade is Grade.ERROR
    assert of_json(four_of_eight).grade is Grade.ERROR
    listed = {**v3(FOUR_PASS), "GPU Device IDs": ["2330"] * 8}
    assert of_json(listed, gpus_expected=8).grade is Grade.ERROR
    assert (
        of_json(untold(untold(LEVEL_2, 3, "memory"), 3, "pcie"), gpus_expected=8).grade == "error"
    )


@pytest.mark.parametrize(
    ("parts", "context", "grade"),
    [
        ((row("PCIe", "Pass - GPUs: 0, 1, 2, 3"), row("GPU Memory", "Pass - GPUs: 0, 1, 2")), {}, "error"),
        ((row("PCIe", "Pass - GPUs: 0, 1, 2, 3"), row("GPU Memory", "Pass - GPUs: 0, 1, 2")),
         {"gpus_expected": 4}, "error"),
        ((row("PCIe", "Pass - All"), row("GPU Memory", "Pass - GPUs: 0, 1, 2")), {"gpus_expected": 4}, "error"),
        ((row("PCIe", "Pass - GPUs: 0, 1"), row("GPU Memory", "Pass - GPUs: 0, 1")), {"gpus_expected": 2}, "pass"),
        ((row("PCIe", "Pass - All"), row("GPU Memory", "Pass - GPUs: 0, 1")), {"gpus_expected": 2}, "pass"),
        ((row("PCIe", "Pass - All"), row("GPU Memory", "Pass - All")), {"gpus_expected": 2}, "pass"),
        ((row("PCIe", "Pass - GPU: 0"), row("", "Warn - GPU: 1"), row("GPU Memory", "Pass - All")),
         {"gpus_expected": 2}, "warn"),
    ],
)  # fmt: skip
def test_a_gpu_that_one_row_left_out_is_not_tested(parts, context, grade):
    reading = of_text(table(HARDWARE, *parts), **context)
    assert reading.grade == grade, reading.why
