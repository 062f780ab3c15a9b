"""Children: whatever becomes of one, the parent says what it was and goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from nodeproof.child import Answer, Call, Interrupted, Loss, Lost, Raised

WORK = {"PYTHONPATH": str(Path(__file__).parent)}


@pytest.fixture
def do(pool, context):
    """Run one function of standin_work per worker, all at once."""

    added = set()

    def run(deadline_s=60.0, **calls):
        for name in set(calls) - added:
            pool.add(name, WORK)
            added.add(name)
        whole = {
            name: Call(
                call=f"standin_work:{function}", args=args, context=context(device_label=name)
            )
            for name, (function, args) in calls.items()
        }
        return pool.run(whole, deadline_s=deadline_s)

    return run


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_an_answer_comes_back_with_the_context_it_was_asked_in(do):
    reply = do(a=("echo", {"x": 1}))["a"]
    assert isinstance(reply, Answer)
    assert reply.result["label"] == "a"
    assert reply.result["x"] == 1
    assert reply.result["pid"] != os.getpid()


def test_eight_workers_work_at_the_same_time(do, tmp_path):
    folder = tmp_path / "meeting"
    folder.mkdir()
    calls = {f"w{n}": ("meet", {"folder": str(folder), "count": 8}) for n in range(8)}
    assert all(isinstance(r, Answer) for r in do(**calls).values())


@pytest.mark.parametrize(
    ("function", "args", "how", "says"),
    [
        ("signal_self", {"number": signal.SIGKILL}, Loss.DIED, "killed (SIGKILL)"),
        ("signal_self", {"number": signal.SIGSEGV}, Loss.DIED, "killed (SIGSEGV)"),
        ("signal_self", {"number": signal.SIGSTOP}, Loss.SILENT, "stopped by a signal"),
        ("exit_with", {"status": 3}, Loss.DIED, "ended with status 3; its last words: my last"),
        ("exit_with", {"status": 0}, Loss.DIED, "ended with status 0"),
        ("rubbish", {"text": "no message\n"}, Loss.RUBBISH, "'no message'"),
        ("rubbish", {"text": '{"id": 99, "result": {}}\n'}, Loss.RUBBISH, '"id": 99'),
        ("rubbish", {"text": '{"id": 1, "result": 5}\n'}, Loss.RUBBISH, '"result": 5'),
        ("rubbish", {"text": "[" * 100_000 + "\n"}, Loss.RUBBISH, "[[[["),
        ("rubbish", {"text": "x" * (9 << 20)}, Loss.RUBBISH, "xxx"),
    ],
)
def test_a_lost_worker_is_named_with_its_cause_and_its_peer_answers(do, function, args, how, says):
    replies = do(bad=(function, args), good=("echo", {}))
    assert isinstance(replies["good"], Answer)
    lost = replies["bad"]
    assert isinstance(lost, Lost)
    assert lost.how is how
    assert says in lost.text
    assert "worker bad (process " in lost.text


def test_work_past_its_deadline_is_ended_even_if_it_ignores_sigterm(do):
    replies = do(deadline_s=2.0, bad=("wait_deaf", {}), good=("echo", {}))
    assert isinstance(replies["good"], Answer)
    assert isinstance(replies["bad"], Lost)
    assert replies["bad"].how is Loss.DEADLINE
    assert not replies["bad"].stuck


def test_the_deadline_of_the_run_ends_work_whose_own_is_later(do, pool):
    pool.ends = time.monotonic() + 1.5
    lost = do(deadline_s=600.0, bad=("wait", {}))["bad"]
    assert lost.how is Loss.DEADLINE
    assert "the run's deadline" in lost.text


def test_a_worker_that_no_signal_ends_is_given_up_and_named(do, pool, freezer, context):
    do(a=("echo", {}), b=("echo", {}))
    pid = pool.pid("a")
    (freezer / "cgroup.procs").write_text(str(pid))
    (freezer / "freezer.state").write_text("FROZEN")
    replies = do(deadline_s=1.0, a=("echo", {}), b=("echo", {}))
    assert isinstance(replies["b"], Answer)
    assert replies["a"].stuck
    assert "cannot be killed: reboot the node" in replies["a"].text
    again = pool.run(
        {"a": Call(call="standin_work:echo", args={}, context=context())}, deadline_s=1.0
    )
    assert again["a"].stuck
    assert again["a"].how is Loss.NOT_STARTED


def test_a_worker_killed_for_memory_says_so(do, pool, small_memory):
    do(a=("echo", {}))
    (small_memory / "cgroup.procs").write_text(str(pool.pid("a")))
    replies = do(a=("grow", {}), b=("echo", {}))
    assert isinstance(replies["b"], Answer)
    assert replies["a"].how is Loss.DIED
    assert "out of memory" in replies["a"].text


def test_the_kernel_takes_workers_first_when_memory_runs_out(do):
    assert do(a=("oom_score", {}))["a"].result == {"score": 1000}


def test_a_pause_of_a_worker_is_told_with_its_answer(do):
    reply = do(a=("pause", {}))["a"]
    assert isinstance(reply, Answer)
    assert reply.silence_s > 1.5


def test_a_lost_worker_is_replaced_by_the_next_call(do):
    first = do(a=("signal_self", {"number": signal.SIGKILL}))["a"]
    second = do(a=("echo", {}))["a"]
    assert isinstance(first, Lost)
    assert isinstance(second, Answer)


def test_an_answer_written_before_death_stands(do):
    assert do(a=("answer_and_die", {}))["a"] == Answer(result={"done": True})


def test_an_exception_is_no_loss(do):
    reply = do(a=("fail", {}))["a"]
    assert isinstance(reply, Raised)
    assert (reply.type, reply.message) == ("ValueError", "a sentence")


@pytest.mark.parametrize("function", ["not_finite", "no_mapping", "is_not_there"])
def test_what_cannot_be_an_answer_is_raised(do, function):
    assert isinstance(do(a=(function, {}))["a"], Raised)


def test_what_a_library_prints_is_no_answer(do):
    assert do(a=("chatter", {}))["a"] == Answer(result={"forged": False})


def test_progress_telemetry_and_events_arrive_in_order(do, heard):
    do(a=("talk", {}))
    assert [(worker, kind) for worker, kind, _ in heard] == [
        ("a", "progress"),
        ("a", "telemetry"),
        ("a", "event"),
    ]


def test_what_a_worker_started_dies_with_it(do, tmp_path):
    file = tmp_path / "pid"
    do(deadline_s=2.0, a=("have_child", {"file": str(file)}))
    ends = time.monotonic() + 10.0  # it was killed, and nobody of ours is told when it is over
    while alive(int(file.read_text())):
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_an_interrupt_ends_a_call_in_progress(do, pool):
    timer = threading.Timer(1.0, lambda: pool.interrupt("by SIGTERM"))
    timer.start()
    with pytest.raises(Interrupted, match="by SIGTERM"):
        do(a=("wait", {}))


def test_a_worker_does_not_outlive_a_parent_that_is_killed(tmp_path):
    script = textwrap.dedent(f"""
        import time, pathlib
        from nodeproof.child import Call, Pool
        pool = Pool(ends=time.monotonic() + 60, logs=pathlib.Path({str(tmp_path)!r}), listen=print)
        pool.add("a")
        context = dict(device_kind="", device_id="", device_label="", torch_device="", threads=1,
                       peers=1, profile="quick", seed=1, host_root="/", group=None)
        pool.beside("a", Call(call="standin_work:wait", args={{}}, context=context))
        print(pool.pid("a"), flush=True)
        time.sleep(60)
    """)
    environment = {**os.environ, **WORK}
    with subprocess.Popen(
        [sys.executable, "-P", "-c", script], stdout=subprocess.PIPE, env=environment
    ) as parent:
        worker = int(parent.stdout.readline())
        assert alive(worker)
        parent.kill()
    ends = time.monotonic() + 10
    while alive(worker) and time.monotonic() < ends:
        time.sleep(0.02)
    assert not alive(worker)


@pytest.mark.long
def test_a_worker_that_holds_its_interpreter_is_silent_in_the_end(do):
    """A library call that never lets go: the kernel shows it running, and nobody hears of it."""
    replies = do(deadline_s=100.0, bad=("hold_silently", {}), good=("echo", {}))
    assert isinstance(replies["good"], Answer)
    assert replies["bad"].how is Loss.SILENT
    assert "running" in replies["bad"].text
