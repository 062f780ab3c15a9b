"""`dcgmi health -c` and `dcgmi discovery -l`, as each DCGM draws them."""

from __future__ import annotations

import pytest

from nodeproof.parsers import dcgm_discovery, dcgm_health_text
from nodeproof.parsers.reading import Grade


def health(*rows, overall="Failure"):
    rule = "+---------------------------+" + "-" * 58 + "+\n"
    body = [f"| {label:25} | {value:56} |\n" for label, value in rows]
    head = f"{rule}| {'Health Monitor Report':84} |\n{rule.replace('-', '=')}"
    return head + f"| {'Overall Health':25} | {overall:56} |\n" + "".join(body) + rule


LINKS_DOWN = (
    ("GPU", ""),
    ("-> 2", "Failure"),
    ("   -> Errors", ""),
    ("      -> NVLINK system", "Failure"),
    ("", "GPU 2's NvLink link 3 is currently down Run a field"),
    ("", "diagnostic on the GPU., GPU 2's NvLink link"),
    ("", "11 is currently down Run a field diagnostic on the GPU."),
)


def of_health(text, **context):
    return dcgm_health_text.read(text.encode(), context)


def test_links_that_are_down_are_found_across_rows_and_weighed_by_the_product():
    text = health(*LINKS_DOWN)
    reading = of_health(text)
    assert reading.fields["facts"] == {
        "gpus": {"2": "failure"},
        "systems_failed": ["NVLINK"],
        "links_down": {"2": [3, 11]},
    }
    assert reading.grade is Grade.FAIL
    assert of_health(text, nvlink_expected=False).grade is Grade.WARN
    assert of_health(text, gpu_product="NVIDIA A100-PCIE-40GB").grade is Grade.WARN
    more = health(*LINKS_DOWN, ("      -> Memory system", "Failure"))
    assert of_health(more, nvlink_expected=False).grade is Grade.FAIL


@pytest.mark.parametrize(
    ("text", "grade"),
    [
        (health(overall="Healthy"), "pass"),
        (health(overall="Warning"), "warn"),
        (health(overall="Failure"), "fail"),
        (health(overall="Internal error"), "error"),
        (health(("GPU", ""), ("-> 0", "Failure"), overall="Healthy"), "fail"),
        (health(("GPU", ""), ("-> 0", "Splendid"), overall="Healthy"), "error"),
        ("| -> 0                      | Healthy              |\n", "error"),
        ("Error: Health watches not enabled. Please enable watches. \n", "error"),
        ("Error: Unable to check health watches. Return: The Group is not found\n", "error"),
        ("", "error"),
    ],
)
def test_health_is_graded_by_the_worst_that_is_said(text, grade):
    assert of_health(text).grade == grade


@pytest.mark.parametrize(
    "said",
    [
        "Error: Health watches not enabled. Please enable watches. ",
        "Error: Unable to check health watches. Return: Timeout",
        "error: unable to establish a connection to the specified host: localhost",
    ],
)
def test_a_check_that_was_refused_beside_one_that_is_healthy_is_not_judged(said):
    sound = health(overall="Healthy")
    for text in (f"{sound}{said}\n", f"{said}\n{sound}"):
        reading = of_health(text)
        assert reading.grade is Grade.ERROR
        assert said.strip() in reading.why
    assert of_health(f"{health(overall='Failure')}{said}\n").grade is Grade.FAIL
    assert of_health(f"No errors were found.\n{sound}Success.\n").grade is Grade.PASS


def test_health_that_ends_with_a_status_is_not_known():
    assert of_health(health(overall="Healthy"), exit_status=0).grade is Grade.PASS
    assert of_health(health(overall="Healthy"), exit_status=253).grade is Grade.ERROR
    assert of_health(health(overall="Failure"), exit_status=253).grade is Grade.FAIL


def test_switches_are_no_gpus():
    reading = of_health(
        health(("Switch", ""), ("-> 2", "Failure"), ("GPU", ""), ("-> 1", "Warning"))
    )
    assert reading.fields["facts"]["gpus"] == {"1": "warning"}
    assert reading.grade is Grade.FAIL


def test_the_report_of_dcgm_1_is_read_too():
    reading = of_health(
        "Health Monitor Report\n"
        "+------------------+---------------------------------------------------------+\n"
        "| Overall Health:    Warning                                                 |\n"
        "+==================+=========================================================+\n"
        "| GPU ID: 0        | Warning                                                 |\n"
        "|                  | PCIe system: Warning - Detected more than 8 replays     |\n"
    )
    assert reading.grade is Grade.WARN
    assert reading.fields["facts"]["gpus"] == {"0": "warning"}


@pytest.mark.parametrize(
    ("label", "facts"),
    [
        ("NVLINK system", {}),  # without its arrow
        ("=> 2", {}),
        ("", {}),
        ("   -> Errors", {"systems_failed": ["Errors"]}),
    ],
)
def test_a_state_beside_a_name_that_nobody_knows_counts(label, facts):
    reading = of_health(health((label, "Failure"), overall="Healthy"))
    assert reading.grade is Grade.FAIL
    assert reading.fields["facts"] == {
        "gpus": {},
        "systems_failed": [],
        "links_down": {},
        **facts,
    }
    assert of_health(health((label, "Healthy"), overall="Healthy")).grade is Grade.PASS


def test_rows_of_another_table_are_no_states():
    text = (
        health(overall="Healthy") + "| GPU ID | Device Information |\n| 0 | Name: NVIDIA H100 |\n"
    )
    assert of_health(text).grade is Grade.PASS


def test_numbers_of_switches_are_not_taken_for_those_of_gpus():
    text = (
        "| GPU ID | Device Information |\n"
        "| 0      | PCI Bus ID: 00000000:1B:00.0 |\n"
        "|        | Device UUID: GPU-1 |\n"
        "| Switch ID |\n| 0 |\n"
        "| CPU ID | Device |\n| 0      | Device UUID: CPU-1 |\n"
    )
    assert dcgm_discovery.gpus_of(text) == {0: {"pci": "00000000:1B:00.0", "uuid": "GPU-1"}}


@pytest.mark.parametrize(
    ("states", "grade"),
    [
        (["Failure", "Heal", "Healthy"], Grade.FAIL),
        (["Heal", "Healthy"], Grade.ERROR),
        (["Warning", "Heal", "Healthy"], Grade.ERROR),
        (["Healthy", "Warning", "Healthy"], Grade.WARN),
        (["Healthy", "Healthy"], Grade.PASS),
    ],
)
def test_of_several_states_the_worst_stands_and_a_word_that_is_none_hides_none(states, grade):
    rows = "".join(f"| {'Overall Health':25} | {state:56} |\n" for state in states)
    assert dcgm_health_text.read(f"| Health Monitor Report |\n{rows}".encode(), {}).grade is grade
