"""What happens to a run happens to its verdict: never an accept, and only the injured is blamed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import rehearsal
from rehearsal import FIVE, NODEPROOF, Rehearsal, descendants, leftovers

BURNIN = ("device.burnin.exact", "device.burnin.throughput")
MUCH = rehearsal.SMALL.replace("cpu_share = 0.005", "cpu_share = 0.1")  # over a GiB a device


def injure(run: Rehearsal, how: str, group: Path | None) -> tuple[str, ...]:
    """Injure the worker of cpu1 in mid-run; return the checks that this has to cost."""
    if group:
        worker = run.wait_for_memory("cpu1", 600 << 20)
        (group / "cgroup.procs").write_text(str(worker))  # the rest does not fit into 256 MiB
        return ("device.memory.pattern",)
    run.wait_for_load()
    os.kill(run.worker("cpu1"), getattr(signal, how))
    return BURNIN


@pytest.mark.long
@pytest.mark.parametrize(
    "how",
    ["SIGKILL", "SIGSTOP", "memory"],
)
def test_an_injured_worker_makes_undecided_and_leaves_its_peer_unblamed(tmp_path, how, request):
    group = request.getfixturevalue("small_memory") if how == "memory" else None
    run = Rehearsal(tmp_path, spec_text=MUCH if group else rehearsal.SMALL)
    lost = injure(run, how, group)
    status, text = run.finish()
    assert status == 11, text
    assert all((run.output / name).stat().st_size > 0 for name in FIVE)
    findings = run.findings()
    for check in lost:
        assert findings[check, "cpu1"]["outcome"] == "error"
        assert "worker cpu1" in findings[check, "cpu1"]["summary"]
    peers = {k: f for k, f in findings.items() if k[1] == "cpu0"}
    planned = [c for c in run.records()[0]["checks"] if c["key"]["device"] == "cpu0"]
    assert len(peers) == len(planned)
    required = {c["key"]["check"] for c in planned if c["required"]}
    assert {f["outcome"] for (check, _), f in peers.items() if check in required} == {"pass"}
    told = run.verdict()
    assert told["failed"] == []
    assert "cpu0" not in {reason["device"] for reason in told["undecided"]}
    assert leftovers(run.output) == []
    if how == "memory":
        assert "out of memory" in findings[lost[0], "cpu1"]["summary"]


@pytest.mark.long
def test_a_rank_killed_in_a_collective_is_blamed_and_its_peer_meets_its_successor(tmp_path):
    run = Rehearsal(tmp_path, only="test_collective_data")
    run.wait_for(lambda r: r.get("name") == "check.started" and "collective" in r["check"])
    os.kill(run.worker("cpu1"), signal.SIGKILL)
    status, text = run.finish()
    assert status == 1, text
    findings = run.findings()
    assert findings["device.collective.data", "cpu1"]["outcome"] == "error"
    peer = findings["device.collective.data", "cpu0"]
    assert peer["outcome"] == "pass"
    assert "cpu1" in peer["attempts"][0]["summary"]


def test_sigterm_ends_a_run_undecided_and_complete_within_15_seconds(tmp_path):
    run = Rehearsal(tmp_path)
    run.wait_for_load()
    below = list(descendants(run.process.pid))
    asked = time.monotonic()
    run.process.send_signal(signal.SIGTERM)
    status, text = run.finish(within_s=15.0 - (time.monotonic() - asked))
    assert status == 11, text
    assert all((run.output / name).stat().st_size > 0 for name in FIVE)
    assert "stopped by SIGTERM" in text
    assert run.verdict()["verdict"] == "undecided"
    assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]


def test_two_runs_do_not_share_a_place(tmp_path):
    """The second would be judged by the results of the first."""
    run = Rehearsal(tmp_path)
    run.wait_for(lambda r: r["type"] == "plan")
    second = Rehearsal(tmp_path)
    status, text = second.finish(within_s=30)
    assert (status, "another run writes to" in text) == (2, True), text
    run.process.terminate()
    assert run.finish()[0] == 11


def test_a_line_that_cannot_be_shown_costs_no_report(tmp_path):
    run = Rehearsal(tmp_path)
    run.wait_for(lambda r: r["type"] == "finding")
    with (run.output / "results.jsonl").open("ab") as file:
        file.write(b'{"type":"plan","checks":[],"devices":[{}],"node":{}}\n' + b"[" * 90000 + b"\n")
    run.process.send_signal(signal.SIGHUP)
    status, text = run.finish(within_s=20)
    assert status == 11, text
    assert "Traceback" not in text
    assert all((run.output / name).stat().st_size > 0 for name in FIVE)


@pytest.mark.long
def test_a_killed_test_process_costs_the_run_and_not_the_report(tmp_path):
    run = Rehearsal(tmp_path)
    run.wait_for_load()
    below = list(descendants(run.process.pid))
    os.kill(next(iter(descendants(run.process.pid))), signal.SIGKILL)
    status, text = run.finish()
    assert status == 11, text
    assert all((run.output / name).stat().st_size > 0 for name in FIVE)
    assert "the test process was killed by SIGKILL" in text
    assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]


def test_a_run_past_its_deadline_is_undecided_with_a_finding_for_every_check(tmp_path):
    run = Rehearsal(tmp_path, "--deadline=20")
    status, text = run.finish(within_s=60)
    assert status == 11, text
    planned = [c for c in run.records()[0]["checks"] if c["required"]]
    assert len(run.findings()) >= len(planned)
    assert "the run's deadline" in text


@pytest.mark.long
def test_without_shared_memory_a_run_is_undecided_and_says_what_is_short(tmp_path):
    script = "mount -t tmpfs -o size=64k none /dev/shm && exec " + " ".join(
        [*NODEPROOF, "run", "--device=cpu", f"--output={tmp_path}/out", "--deadline=25"]
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 11, done.stdout + done.stderr
    assert "host.shm.size" in done.stdout


def test_a_disk_that_fills_up_in_the_middle_of_a_run_is_never_an_accept(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    run = f"{sys.executable} {Path(__file__).parent / 'fill_disk.py'} {disk}"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs -o size=2m none {disk} && {run}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "status 11" in done.stdout, done.stdout + done.stderr
    assert "No space left" in done.stdout
