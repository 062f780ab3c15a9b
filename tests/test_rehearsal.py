"""The main job on this machine: a rehearsal is accepted, and says that it is one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from rehearsal import FIVE, NODEPROOF, Rehearsal, leftovers


@pytest.fixture(scope="module")
def accepted(tmp_path_factory):
    run = Rehearsal(tmp_path_factory.mktemp("accepted"), "--nonce=n-1", "--node-name=node-7")
    run.finish()
    return run


def test_a_sound_machine_is_accepted_with_all_five_files(accepted):
    status, text = accepted.finish()
    assert status == 0, text
    assert all((accepted.output / name).stat().st_size > 0 for name in FIVE)
    assert accepted.verdict()["verdict"] == "accept"


def test_a_rehearsal_says_so_in_its_first_and_last_line_and_in_its_verdict(accepted):
    lines = accepted.finish()[1].splitlines()
    assert lines[0].startswith("REHEARSAL on 2 CPU devices")
    assert lines[-1].startswith("REHEARSAL accept: no GPU was tested")
    assert accepted.verdict()["rehearsal"] is True


def test_what_the_gate_gave_comes_back(accepted):
    told = accepted.verdict()
    assert told["nonce"] == "n-1"
    assert told["node"]["name"] == "node-7"


def test_a_log_holds_no_control_codes(accepted):
    assert not any(ord(c) < 32 and c != "\n" for c in accepted.finish()[1])


def test_every_planted_fault_was_caught_on_every_device(accepted):
    planted = [r for r in accepted.records() if r["type"] == "selftest"]
    plan = accepted.records()[0]
    keys = {(t["check"], t["device"]["kind"], t["device"]["id"]) for t in planted}
    assert all(t["caught"] for t in planted)
    assert keys == {(k["check"], k["kind"], k["device"]) for k in plan["selftests"]}


def test_telemetry_of_every_device_is_sampled_about_once_a_second(accepted):
    samples = [r for r in accepted.records() if r["type"] == "telemetry"]
    for device in ("cpu0", "cpu1"):
        times = [s["t"] for s in samples if s["device"] == device]
        assert len(times) > (times[-1] - times[0]) / 2
    assert any("tflops" in s for s in samples)


def test_no_process_of_a_run_is_left(accepted):
    accepted.finish()
    assert leftovers(accepted.output) == []


@pytest.mark.parametrize("report", ["junit", "html", "json", "prometheus"])
def test_a_report_made_later_from_the_results_is_the_same(accepted, report):
    names = {"junit": "junit.xml", "html": "report.html", "json": "verdict.json"}
    done = subprocess.run(
        [*NODEPROOF, "report", accepted.output / "results.jsonl", "--format", report],
        capture_output=True,
        text=True,
        check=True,
    )
    written = (accepted.output / names.get(report, "metrics.prom")).read_text()
    assert done.stdout == written


def test_the_verdict_is_the_same_elsewhere(accepted):
    done = subprocess.run(
        [*NODEPROOF, "verdict", accepted.output / "results.jsonl", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert json.loads(done.stdout) == accepted.verdict()


def test_a_verdict_cut_off_elsewhere_is_undecided(accepted, tmp_path):
    data = (accepted.output / "results.jsonl").read_bytes()
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(data[: len(data) - 20])
    done = subprocess.run([*NODEPROOF, "verdict", cut], capture_output=True, text=True, check=False)
    assert done.returncode == 11
    assert "cut in the middle" in done.stdout


def test_the_files_of_an_earlier_run_are_gone_when_the_next_begins(tmp_path):
    """A verdict of yesterday may not be taken for today's, however today's run ends."""
    output = tmp_path / "out"
    output.mkdir()
    for name in FIVE:
        (output / name).write_text("yesterday")
    run = Rehearsal(tmp_path, "--profile=quick")
    run.wait_for(lambda r: r["type"] == "plan")
    run.process.kill()
    run.finish()
    assert not any((output / name).exists() for name in FIVE if name != "results.jsonl")
    assert "yesterday" not in Path(output / "results.jsonl").read_text()
