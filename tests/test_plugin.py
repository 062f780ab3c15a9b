"""The shipped suites under pytest itself: its selections, its reports, its exit statuses."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from pytest_run import QUICK, SHIPPED, environment, records_of, run_pytest, site

from conftest import need

ROOT = Path(__file__).parent.parent
WRITING = re.compile(r"^(\S+)::(\w+)\[(\w+)\]", re.MULTILINE)

# Looks on from inside the pytest process: what is on disk when the first check starts, and what
# was imported when the last is over.
SPY = """
import json, pathlib, sys
def pytest_runtest_setup(item):
    seen = pathlib.Path("before.jsonl")
    if not seen.exists():
        seen.write_bytes(pathlib.Path("out/results.jsonl").read_bytes())
def pytest_unconfigure():
    pathlib.Path("modules.json").write_text(json.dumps(sorted(sys.modules)))
"""


@pytest.fixture(scope="module")
def selected(tmp_path_factory):
    """A selection that passes."""
    folder = tmp_path_factory.mktemp("selected")
    (folder / "spy.py").write_text(SPY)
    words = ["-p", "spy", *SHIPPED, *QUICK, "-k", "int8 or cores", "-v", "--junitxml=junit.xml"]
    return run_pytest(folder, *words)


def test_a_selection_that_passes_ends_with_0_and_says_what_was_not_selected(selected):
    assert selected.status == 0, selected.text
    assert "3 passed" in selected.text
    planned = {(c["key"]["check"]) for c in selected.records[0]["checks"]}
    assert planned == {"device.arithmetic.int8", "host.cpu.cores"}
    assert "rehearsal undecided" in selected.text
    missing = [r for r in selected.verdict().undecided if r.why.name == "UNPLANNED"]
    assert len(missing) > 10
    assert f"{len(missing)} required checks were not selected" in selected.text


def test_a_selection_is_no_accept_for_those_who_judge_its_results(selected):
    assert selected.verdict().decision == "undecided"
    assert "device.memory.pattern" in {r.check for r in selected.verdict().undecided}


def test_each_test_is_named_by_the_device_it_is_about(selected):
    names = {(name, label) for _, name, label in WRITING.findall(selected.text)}
    assert {n for n in names if n[0] == "test_int8"} == {
        ("test_int8", "cpu0"),
        ("test_int8", "cpu1"),
    }
    assert len(names) == 3


def test_each_device_has_its_finding_and_each_planted_fault_was_caught(selected):
    keys = {
        ("device.arithmetic.int8", "cpu0"),
        ("device.arithmetic.int8", "cpu1"),
        ("host.cpu.cores", selected.records[0]["node"]["name"]),
    }
    assert set(selected.findings()) == keys
    assert {f["outcome"] for f in selected.findings().values()} == {"pass"}
    tests = selected.selftests()
    assert {key for key, test in tests.items() if test["caught"]} >= keys


def test_the_plan_was_on_disk_before_the_first_check_began(selected):
    before = records_of(selected.folder / "before.jsonl")
    assert before[0] == selected.records[0]
    assert before[0]["type"] == "plan"
    assert not [r for r in before if r["type"] in {"finding", "selftest", "end"}]
    assert [r["type"] for r in selected.records].count("plan") == 1
    assert selected.records[-1]["type"] == "end"


def test_the_pytest_process_never_loads_torch_or_a_driver(selected):
    modules = set(json.loads((selected.folder / "modules.json").read_text()))
    assert "nodeproof.plugin.acceptance" in modules
    assert "nodeproof.acceptance.test_arithmetic" in modules
    assert modules & {"torch", "numpy", "pynvml", "matplotlib"} == set()


def test_pytests_own_junit_file_has_a_case_per_device(selected):
    cases = ET.parse(selected.folder / "junit.xml").getroot().iter("testcase")  # noqa: S314  ours
    said = {
        c.get("name"): {p.get("name"): p.get("value") for p in c.iter("property")} for c in cases
    }
    assert said["test_int8[cpu1]"] == {"nodeproof.outcome": "pass", "nodeproof.device": "cpu1"}
    assert len(said) == 3


def collected(folder, *words):
    """What would be run, by test and device."""
    done = run_pytest(folder, *SHIPPED, *QUICK, "--collect-only", "-q", *words)
    assert done.status == 0, done.text
    return {(name, label) for _, name, label in WRITING.findall(done.text)}


def test_checks_are_selected_by_component_and_by_device(tmp_path):
    arithmetic = collected(tmp_path, "-m", "arithmetic")
    formats = ("bf16", "fp16", "fp32", "fp64", "fp8_e4m3", "fp8_e5m2", "int8")
    names = {f"test_{name}" for name in formats}
    assert arithmetic == {(name, f"cpu{n}") for name in names for n in (0, 1)}
    everything = collected(tmp_path, "-m", "check")
    assert everything > arithmetic
    assert {n for n, _ in everything} > {"test_cores", "test_device_count"} | names
    assert collected(tmp_path, "-m", "not arithmetic") == everything - arithmetic
    assert collected(tmp_path, "-k", "int8 and cpu1") == {("test_int8", "cpu1")}
    assert collected(tmp_path, "--nodeproof-cpu-devices=1", "-k", "int8") == {("test_int8", "cpu0")}
    assert list(tmp_path.iterdir()) == []


def test_the_suites_of_the_checkout_are_run_by_their_path(tmp_path):
    ran = run_pytest(tmp_path, "acceptance/", *QUICK, "-q", "-k", "cores", cwd=ROOT)
    assert ran.status == 0, ran.text
    assert [c for c, _ in ran.findings()] == ["host.cpu.cores"]


TOUCHING = """
from nodeproof.checks import DeviceKind, Plant, Remedy, Work, check

@check(
    "site.case.touching", kinds=(DeviceKind.CPU,), remedy=Remedy.RETEST,
    work=Work(call="standin_work:meet", args={"folder": "touched", "count": 2}),
    plant=Plant(alter=lambda result: {**result, "bad": 1}),
)
def test_touching(result, measure):
    '''Leaves a file per device that did the work.'''
    measure("bad", result.get("bad", 0), at_most=0)
"""


def test_collecting_writes_nothing_and_does_no_work(tmp_path):
    (tmp_path / "test_touching.py").write_text(TOUCHING)
    touched = tmp_path / "touched"
    touched.mkdir()
    collected = run_pytest(tmp_path, *QUICK, "--collect-only", "-q")
    assert (collected.status, WRITING.findall(collected.text)) == (
        0,
        [("test_touching.py", "test_touching", f"cpu{n}") for n in (0, 1)],
    )
    assert (list(touched.iterdir()), (tmp_path / "out").exists()) == ([], False)
    ran = run_pytest(tmp_path, *QUICK)
    assert ran.status == 0, ran.text
    assert len(list(touched.iterdir())) == 2


def test_stopping_at_the_first_failure_leaves_the_rest_missing(tmp_path):
    ran = run_pytest(site(tmp_path), *QUICK, "-x", "-k", "unready or limited")
    assert ran.status == 1, ran.text
    assert set(ran.findings()) == {("site.case.unready", "cpu0")}
    assert ran.records[-1]["type"] == "end"
    assert ran.verdict().decision == "undecided"
    assert ran.doubts("site.case.limited") >= {"MISSING"}


@pytest.mark.parametrize(
    ("check", "says"),
    [
        ("short", "wants at least 9"),
        ("bug", "my own mistake"),
        ("skipped", "site.case.skipped on cpu0: skipped, though required"),
        ("marked", "site.case.marked on cpu0: skipped, though required"),
        ("excused", "site.case.excused on cpu0: value 7"),
        ("idle", "site.case.idle on cpu0: the detector did not report its planted fault"),
    ],
)
def test_what_is_no_pass_ends_with_1_though_pytest_itself_may_call_it_good(tmp_path, check, says):
    words = ["-q", "-k", f"{check} or sound", "--nodeproof-cpu-devices=1"]
    ran = run_pytest(site(tmp_path), *QUICK, *words)
    assert ran.status == 1, ran.text
    assert says in ran.text
    assert ran.doubts("site.case.sound") == set()


@pytest.mark.long
def test_a_second_run_does_not_add_to_the_results_of_the_first(tmp_path):
    words = [*QUICK, "-q", "-k", "sound", "--nodeproof-cpu-devices=1"]
    first = run_pytest(site(tmp_path), *words)
    assert first.status == 0, first.text
    second = run_pytest(tmp_path, *words)
    assert second.status == 4
    assert "results can't be written to" in second.text
    assert second.records == first.records


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--nodeproof-device=cup"], "there is no device 'cup'; did you mean cpu?"),
        (["--nodeproof-profile=quik"], "there is no profile 'quik'; did you mean quick?"),
        (["--nodeproof-deadline=nan"], "--deadline nan: it has to be more than 0"),
        (["--nodeproof-spec=absent"], "there is no spec 'absent'"),
        (["--nodeproof-spec=typo.toml"], "there is no check 'site.case.limit'; did you mean"),
        (["--nodeproof-spec=type.toml"], "lowest = 'low' is not a whole number"),
    ],
)
def test_a_wrong_option_is_refused_in_one_sentence_and_with_4(tmp_path, words, says):
    typo = {"typo.toml": '["site.case.limit"]\nlowest = 1\n'}
    kind = {"type.toml": '["site.case.limited"]\nlowest = "low"\n'}
    ran = run_pytest(site(tmp_path, typo | kind), *QUICK, *words)
    assert says in ran.text
    assert "Traceback" not in ran.text
    assert not (tmp_path / "out").exists()
    assert (ran.status, ran.text.count(says)) == (4, 1), ran.text


def test_ctrl_c_on_pytest_leaves_an_end_that_says_so(tmp_path):
    endless = TOUCHING.replace(':meet", args={"folder": "touched", "count": 2}', ':wait"')
    assert endless != TOUCHING
    (tmp_path / "test_endless.py").write_text(endless)
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", *QUICK],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    ends = time.monotonic() + 60
    while not [
        r for r in records_of(tmp_path / "out/results.jsonl") if r.get("name") == "check.started"
    ]:
        assert process.poll() is None
        assert time.monotonic() < ends
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    text = process.communicate(timeout=30)[0]
    last = records_of(tmp_path / "out/results.jsonl")[-1]
    assert (last["type"], last["interrupted"]) == ("end", "by SIGINT")
    assert process.returncode not in {0, 5}, text


@pytest.mark.parametrize("words", [[], ["--nodeproof-output=out"]], ids=["", "with output"])
def test_checks_are_not_spread_over_processes(tmp_path, words):
    need(there=bool(importlib.util.find_spec("xdist")), what="pytest-xdist")
    ran = run_pytest(site(tmp_path), "-n", "2", "-k", "sound", "--nodeproof-device=cpu", *words)
    assert ran.status not in {0, 5}
    assert "without pytest-xdist" in ran.text
    assert not (tmp_path / "out").exists()


def test_other_tests_of_an_environment_with_nodeproof_may_be_spread(tmp_path):
    need(there=bool(importlib.util.find_spec("xdist")), what="pytest-xdist")
    (tmp_path / "test_other.py").write_text("def test_other(): pass\n")
    assert run_pytest(tmp_path, "-n", "2", "-q").status == 0
