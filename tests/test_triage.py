"""Whose fault a wrong element is: a device's, until another one shows the very same."""

from __future__ import annotations

import json

import pytest
from test_bitflips import against, flipping, suites
from test_detectors import caught, run_with

from nodeproof import manifest
from nodeproof.acceptance.blame import common
from nodeproof.checks import Device, DeviceKind
from nodeproof.model import Cause
from nodeproof.results import Results
from nodeproof.verdict import Decision, decide


def gpu(number):
    return Device(kind=DeviceKind.GPU, id=f"GPU-{number}", label=f"gpu{number}")


def faults(*rows, product=0, bit=3):
    return [
        {"dtype": "int8", "row": row, "column": 7, "bits": [bit], "product": product}
        for row in rows
    ]


def answer(found, host="right"):
    return {"found": found, "wrong": len(found), "host": host}


@pytest.mark.parametrize(
    ("own", "theirs", "software"),
    [
        (faults(1), [], False),  # no other device answered
        (faults(1), [[]], False),
        (faults(1), [faults(1)], True),
        (faults(1), [[], faults(1)], True),
        (faults(1, product=4), [faults(1, product=9)], True),  # only the pace differs
        (faults(1), [faults(2)], False),
        (faults(1), [faults(1, bit=4)], False),  # the same element, but other bits
        (faults(1, 2), [faults(1)], True),  # half
        (faults(1, 2, 3), [faults(1)], False),  # less than half: a fault of its own remains
        (faults(1, 2, 3, 4), [faults(1), faults(2)], False),  # half, but of no single peer
        (faults(1), [faults(1, 2, 3, 4, 5)], True),
        ([], [faults(1)], False),  # nothing is wrong here
        ([], [[]], False),
    ],
)
def test_mismatches_are_softwares_where_another_device_shows_the_same(own, theirs, software):
    peers = [(gpu(n), answer(found)) for n, found in enumerate(theirs, 1)]
    assert bool(common(answer(own), peers)) is software


@pytest.mark.parametrize(
    ("host", "software"),
    [
        ("same", True),
        ("right", False),
        ("other", False),
        ("itself", False),  # a processor is no witness for itself
        ("refused: no kernel", False),
        (None, False),
    ],
)
def test_mismatches_are_softwares_where_the_host_computes_the_same(host, software):
    assert bool(common(answer(faults(1), host), [])) is software
    assert not common(answer([], host), [])


def test_the_sentence_names_the_other_device():
    told = common(answer(faults(1, 2)), [(gpu(3), answer(faults(2)))])
    assert "1 of 2" in told
    assert "gpu3 GPU-3" in told


def test_an_answer_without_triage_is_an_error_and_no_excuse():
    with pytest.raises(KeyError):
        common({"found": faults(1)}, [])


def of(found: Results, device: str):
    return next(f for f in found.findings if f.device.id == device)


def test_the_same_bit_on_both_devices_is_software_and_condemns_neither(tmp_path):
    order = flipping("float32", 1, devices=("cpu0", "cpu1"))
    found = suites(tmp_path, "device.arithmetic.fp32", order)
    told = decide(found, manifest.shipped())
    assert told.decision is Decision.UNDECIDED
    for own, other in (("cpu0", "cpu1"), ("cpu1", "cpu0")):
        finding = of(found, own)
        assert finding.cause is Cause.CONFIG
        assert f"the same on {other}" in finding.summary
        assert against(told, own)


def test_a_bit_on_one_device_is_that_devices_though_all_other_ways_are_right(tmp_path):
    found = suites(tmp_path, "device.arithmetic.fp32", flipping("float32", 1))
    told = decide(found, manifest.shipped())
    assert told.decision is Decision.REJECT
    finding = of(found, "cpu1")
    assert finding.cause is Cause.HARDWARE
    evidence = finding.evidence
    assert (evidence["host"], evidence["other_algorithm"]) == ("itself", "right")
    assert (evidence["operands_intact"], evidence["replay"]) == (True, 0)
    assert not against(told, "cpu0")


@pytest.mark.long
def test_a_lane_that_is_broken_for_good_is_wrong_by_another_way_too(tmp_path):
    order = flipping("float32", "every")
    finding = of(suites(tmp_path, "device.arithmetic.fp32", order), "cpu1")
    assert finding.cause is Cause.HARDWARE
    assert finding.evidence["replay"] == 3
    assert finding.evidence["wrong"] > len(finding.evidence["found"])


BROKEN = [
    ("acceptance/products.py", 'result["wrong"], at_most=0', 'result["wrong"]', "fp8_e5m2"),
    ("kernels/product.py", "differs = tiles != ", "differs = tiles < 0 * ", "fp8_e4m3"),
    ("kernels/product.py", "int(torch.count_nonzero(differs))", "0", "fp8_e5m2"),
    (
        "acceptance/products.py",
        'result["checked_elements"], at_least=1',
        'result["checked_elements"]',
        "fp8_e4m3",
    ),
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "old", "new", "check"),
    [pytest.param(*row, id=f"{row[3]}: {row[1][:30]}") for row in BROKEN],
)
def test_a_comparison_that_is_broken_is_a_self_test_that_is_missed(tmp_path, file, old, new, check):
    assert False in caught(run_with(tmp_path, file, old, new, check), f"arithmetic.{check}")


@pytest.mark.long
@pytest.mark.parametrize("check", ["fp8_e4m3", "fp8_e5m2"])
def test_a_sound_device_passes_in_fp8_and_says_how_rare_errors_are(tmp_path, check):
    found = suites(tmp_path, f"device.arithmetic.{check}", {})
    for finding in found.findings:
        assert finding.outcome.value == "pass", finding.summary
        rate = {m.name: m for m in finding.measurements}["error rate below"]
        assert rate.value == 3 / finding.evidence["checked_operations"] < 1e-6
        json.dumps(finding.evidence)
    assert {t.caught for t in found.selftests if t.check.endswith(check)} == {True}
