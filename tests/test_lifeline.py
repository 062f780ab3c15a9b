"""Nothing is left running: real processes that lose their parent, and a parent that finds them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

WAIT_S = 20


def script(text, *arguments):
    """Start a Python process of its own; what it prints is read line by line."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ended(pid):
    """Whether a process ends within the time a test may take."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], WAIT_S)[0])
    finally:
        os.close(watched)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def end(process):
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


CHILD = """
import os, signal, sys, time
from nodeproof.lifeline import end_with
signal.signal(signal.SIGTERM, signal.SIG_IGN if {deaf} else signal.SIG_DFL)
print(end_with(os.getppid(), signal.{name}), os.getpid(), flush=True)
time.sleep(300)
"""
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
child.wait()
"""


@pytest.mark.parametrize(("name", "deaf"), [("SIGTERM", False), ("SIGKILL", True)])
def test_a_process_ends_with_its_parent_even_if_that_was_killed(name, deaf):
    parent = script(PARENT, CHILD.format(name=name, deaf=deaf))
    said, pid = parent.stdout.readline().split()
    assert said == "True"
    assert alive(int(pid))
    end(parent)
    assert ended(int(pid))


def test_a_process_whose_parent_ended_before_it_could_ask_is_told_so():
    orphan = """
        import os, signal, sys, time
        from nodeproof.lifeline import end_with
        read, write = os.pipe()
        parent = os.getpid()
        if os.fork():
            os._exit(0)  # closes the only writing end
        os.close(write)
        os.read(read, 1)
        while os.getppid() == parent:
            time.sleep(0.01)
        print(end_with(parent, signal.SIGKILL), flush=True)
    """
    process = script(orphan)
    assert process.stdout.readline() == "False\n"
    end(process)


# A process in a session of its own, deaf to SIGTERM, whose parent goes at once.
ORPHANED = """
import subprocess, sys
sleeper = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True); time.sleep(300)"
import os
if "adopt" in sys.argv[1:]:
    from nodeproof.lifeline import adopt_orphans
    adopt_orphans()
middle = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True)"
subprocess.run([sys.executable, "-c", middle, sleeper], check=True)
from nodeproof.lifeline import end_children
sys.stdin.readline()
print(end_children(), flush=True)
"""


def test_what_children_leave_behind_is_found_and_ended_by_who_adopts():
    process = script(ORPHANED, "adopt")
    orphan = int(process.stdout.readline())
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline() == "[]\n"
    assert not alive(orphan)
    end(process)


def test_who_does_not_adopt_leaves_the_orphans_of_others_alone():
    process = script(ORPHANED)
    orphan = int(process.stdout.readline())
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline() == "[]\n"
    assert alive(orphan)
    os.kill(orphan, signal.SIGKILL)
    end(process)


STARTED = """
import os, subprocess, sys, threading
from nodeproof.lifeline import end_children
sleep = ["sleep", "300"]
started, held = [], threading.Event()
def start():
    started.append(subprocess.Popen(sleep))
    held.wait() if sys.argv[1] == "a thread that lives" else None
thread = threading.Thread(target=start, daemon=True)
thread.start()
if sys.argv[1] == "a thread that is gone":
    thread.join()
while not started:
    pass
started += [subprocess.Popen(sleep) for _ in range(20)]
if sys.argv[1] == "stopped":
    for p in started:
        os.kill(p.pid, 19)
print(end_children(), *(p.pid for p in started), flush=True)
"""


@pytest.mark.parametrize("how", ["a thread that lives", "a thread that is gone", "stopped"])
def test_every_child_is_ended_whoever_started_it_and_whatever_it_does(how):
    process = script(STARTED, how)
    stuck, *pids = process.stdout.readline().split()
    assert (stuck, len(pids)) == ("[]", 21)
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []  # none is left unreaped
    end(process)


def test_a_child_that_no_signal_can_end_is_named_and_not_waited_for(freezer):
    frozen = """
        import subprocess, sys
        from pathlib import Path
        from nodeproof.lifeline import end_children
        child = subprocess.Popen(["sleep", "300"])
        other = subprocess.Popen(["sleep", "300"])
        group = Path(sys.argv[1])
        (group / "cgroup.procs").write_text(str(child.pid))
        (group / "freezer.state").write_text("FROZEN")
        while (group / "freezer.state").read_text() != "FROZEN\\n":
            pass
        print(child.pid, other.pid, end_children(within_s=0.3), flush=True)
        child.wait()
    """
    process = script(frozen, str(freezer))
    pid, other, stuck = process.stdout.readline().split()
    assert stuck == f"[{pid}]"
    assert not alive(int(other))
    (freezer / "freezer.state").write_text("THAWED")
    assert process.wait(WAIT_S) == 0
    end(process)


def test_without_children_there_is_nothing_to_end():
    process = script("from nodeproof.lifeline import end_children\nprint(end_children())")
    assert process.stdout.readline() == "[]\n"
    end(process)
