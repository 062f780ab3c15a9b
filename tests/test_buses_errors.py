"""Errors that PCI Express counts, before the load and through it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from bus_tree import DOWN, GPU, NIC, ROOT, SWITCH, at, count, hgx

from nodeproof.acceptance import test_bus_errors as buses
from nodeproof.checks import spec_of
from nodeproof.child import Call, Lost
from nodeproof.model import Cause, Outcome, Remedy
from nodeproof.probes import aer
from nodeproof.probes.tree import Unreadable
from nodeproof.worker import Context
from tests.standin.build import judged


@pytest.fixture
def node(tmp_path):
    root = hgx(tmp_path / "node")
    for address in (ROOT, DOWN, GPU, NIC):
        count(root, address)
    return root


@pytest.fixture
def errors(context):
    return lambda root: aer.errors(Context(**{**context(), "host_root": Path(root)}))


@pytest.fixture
def through(context, errors):
    """What is read after a change, with what stood before it, as a run reads them."""

    def run(root, change):
        before = errors(root)
        change()
        return aer.errors_since(Context(**{**context(), "host_root": root}), before=before)

    return run


@pytest.mark.parametrize(
    "text",
    ["", "Undefined 0\n", "Undefined zero\nTOTAL_ERR_FATAL 0\n", "TOTAL_ERR_FATAL -1\n"],
    ids=["empty", "cut short", "no number", "below zero"],
)
def test_a_file_of_counters_that_makes_no_sense_is_no_zero(errors, node, text):
    at(node, GPU, "aer_dev_fatal", text)
    with pytest.raises(Unreadable, match="aer_dev_fatal"):
        errors(node)


def test_a_file_that_is_missing_beside_the_others_is_no_zero(errors, node):
    (node / "sys/bus/pci/devices" / GPU / "aer_dev_nonfatal").unlink()
    with pytest.raises(Unreadable, match="aer_dev_nonfatal"):
        errors(node)


def test_devices_and_the_ports_above_them_are_watched_and_no_others(errors, node):
    result = errors(node)
    assert {GPU, DOWN, ROOT, NIC, SWITCH} <= set(result["watched"])
    assert "0000:00:0e.0" not in result["watched"]
    assert set(result["counts"]) == {ROOT, DOWN, GPU, NIC}
    sound, _ = judged(buses.test_errors, result)
    assert sound.outcome is Outcome.PASS
    broken = set()
    for plant in spec_of(buses.test_errors).plants:
        told, names = judged(buses.test_errors, plant.alter(result))
        assert told.outcome is Outcome.FAIL
        assert set(plant.breaks) <= set(names)
        broken |= set(names)
    assert sound.bounded <= broken


def test_a_fatal_error_is_condemned_wherever_on_the_way_it_stands(errors, node):
    count(node, DOWN, fatal={"Malformed TLP": 2})
    told, broken = judged(buses.test_errors, errors(node))
    assert (told.outcome, told.cause, told.remedy) == (Outcome.FAIL, Cause.HARDWARE, Remedy.REBOOT)
    assert broken["fatal"].value == 2
    assert f"{DOWN} Malformed TLP 2" in broken["fatal"].detail


def test_other_errors_from_before_are_shown_only(errors, node):
    count(node, GPU, nonfatal={"Unsupported Request": 3}, correctable={"Bad TLP": 900})
    result = errors(node)
    assert judged(buses.test_errors, result)[0].outcome is Outcome.PASS
    told, broken = judged(buses.test_errors, result, buses.ErrorLimits(nonfatal=2))
    assert (told.cause, list(broken)) == (Cause.ENVIRONMENT, ["nonfatal"])


def test_an_adapter_off_the_bus_is_condemned(errors, node):
    (node / "sys/bus/pci/devices" / NIC / "config").write_bytes(b"\xff" * 64)
    told, broken = judged(buses.test_errors, errors(node))
    assert (told.cause, list(broken)) == (Cause.HARDWARE, ["off the bus"])
    assert NIC in broken["off the bus"].detail


@pytest.mark.parametrize("content", [None, b"", b"\xb3\x15"])
@pytest.mark.parametrize("address", [NIC, SWITCH, GPU])
def test_a_device_whose_registers_can_not_be_read_is_not_known_to_answer(
    through, node, address, content
):
    config = node / "sys/bus/pci/devices" / address / "config"
    config.unlink()
    if content is not None:
        config.write_bytes(content)
    result = through(node, lambda: None)
    for check in (buses.test_errors, buses.test_new_errors):
        told, broken = judged(check, result)
        assert (told.cause, list(broken)) == (Cause.ENVIRONMENT, ["not told"])
        assert address in broken["not told"].detail


def test_a_machine_that_counts_nothing_fails_where_the_spec_says_it_counts(errors, tmp_path):
    result = errors(hgx(tmp_path / "silent"))
    assert result["counts"] == {}
    assert judged(buses.test_errors, result)[0].outcome is Outcome.PASS
    told, broken = judged(buses.test_errors, result, buses.ErrorLimits(counting=1))
    assert (told.cause, list(broken)) == (Cause.ENVIRONMENT, ["counting"])


def test_what_stood_before_the_run_is_no_error_of_the_run(through, node):
    count(node, GPU, fatal={"Malformed TLP": 1}, nonfatal={"Completion Timeout": 4})
    result = through(node, lambda: None)
    sound, _ = judged(buses.test_new_errors, result)
    assert sound.outcome is Outcome.PASS
    broken = set()
    for plant in spec_of(buses.test_new_errors).plants:
        told, names = judged(buses.test_new_errors, plant.alter(result))
        assert told.outcome is Outcome.FAIL
        assert set(plant.breaks) <= set(names)
        broken |= set(names)
    assert sound.bounded <= broken


@pytest.mark.parametrize(
    ("severity", "name", "cause"),
    [
        ("fatal", "Surprise Down Error", Cause.HARDWARE),
        ("nonfatal", "Completion Timeout", Cause.ENVIRONMENT),
        ("correctable", "Bad TLP", None),
    ],
)
def test_one_more_error_during_the_run_is_judged_by_its_severity(
    through, node, severity, name, cause
):
    count(node, GPU, **{severity: {name: 1}})
    result = through(node, lambda: count(node, GPU, **{severity: {name: 2}}))
    told, broken = judged(buses.test_new_errors, result)
    if cause is None:
        assert told.outcome is Outcome.PASS
    else:
        assert (told.outcome, told.cause, list(broken)) == (Outcome.FAIL, cause, [severity])
        assert broken[severity].value == 1
        assert f"{GPU} {name} 1" in broken[severity].detail


def test_a_counter_that_began_again_counts_from_zero(through, node):
    count(node, GPU, fatal={"Malformed TLP": 5})
    result = through(node, lambda: count(node, GPU, fatal={"Malformed TLP": 1}))
    _, broken = judged(buses.test_new_errors, result)
    assert broken["fatal"].value == 1


def test_a_device_that_left_the_bus_during_the_run_is_named(through, node):
    result = through(node, (node / "sys/bus/pci/devices" / NIC).unlink)
    told, broken = judged(buses.test_new_errors, result)
    assert (told.outcome, told.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert NIC in broken["no longer counting"].detail


@pytest.mark.parametrize("file", ["config", "aer_dev_fatal"])
def test_a_file_that_hangs_costs_its_deadline_and_its_device_is_named(pool, context, node, file):
    path = node / "sys/bus/pci/devices" / NIC / file
    path.unlink()
    os.mkfifo(path)  # nobody writes there
    pool.add("node")
    call = Call(call="nodeproof.probes.aer:errors", args={}, context=context(host_root=str(node)))
    started = time.monotonic()
    reply = pool.run({"node": call}, deadline_s=1.0)["node"]
    assert isinstance(reply, Lost)
    assert NIC in reply.text
    assert time.monotonic() - started < 15.0
