"""Whatever part of a group is killed, whenever: a named undecided, in time, and nothing left running."""

import contextlib
import os
import random
import re
import signal
import subprocess
import time

import pytest
from fabric_group import REJECT, UNDECIDED, group

SIZE = 3
DRAW = random.SystemRandom()
DEADLINE_S = 150.0
# What the head says before it has something more to ask of everybody.
STEPS = ("3 nodes", "are ready", "planted faults", "the whole group", "who comes late", "round 1:")
WORKER, MEMBER, NODEPROOF = "nodeproof.worker", "nodeproof.fabric.member", "nodeproof"


def victim(ours, host, part):
    """Process id of one part of a member; `None` where it has not been started yet."""
    if part == "worker":  # of its device: the one of the node itself has no interface to others
        found = [pid for pid in ours.processes(host, WORKER) if log_of(pid) == "worker-cpu0.log"]
    elif part == "member" and host == 0:
        found = ours.processes(host, MEMBER)
    else:
        found = [ours.members[host].pid]
    return found[0] if found else None


def log_of(pid):
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/fd/1"))  # noqa: PTH115, PTH119
    except OSError:
        return ""


def kill(ours, host, part, number=signal.SIGKILL):
    pid = ours.until(lambda: victim(ours, host, part))
    os.kill(pid, number)
    return pid


def check(ours, host, part):
    """Everybody who was not killed ended in time, with all files, and says who was."""
    beheaded = host == 0 and part == "head"
    killed = set() if part == "worker" or (host, part) == (0, "member") else {host}
    statuses = ours.finish()
    others = set(range(SIZE)) - killed
    assert {statuses[host] for host in killed} <= {-signal.SIGKILL}, ours.told()
    for other in others:
        # A reject is for what was measured, not for somebody who is not there any more.
        wanted = REJECT if ours.verdict(other)["failed"] else UNDECIDED
        assert statuses[other] == wanted, (host, part, other, ours.told())
        named = "the head 10.77.0.1:29400" if beheaded else rf"host{host}\b|rank {host}\b"
        assert re.search(named, ours.reasons(other)), (host, part, other, ours.told())
    assert ours.missing_files(others) == []
    assert ours.left_over() == []


@pytest.mark.parametrize(
    "part", [*(pytest.param(p, marks=pytest.mark.long) for p in ("worker", "member")), "head"]
)
def test_a_part_that_is_killed_in_the_midst_of_an_exchange_is_named_by_all_others(tmp_path, part):
    host = 0 if part == "head" else DRAW.randrange(1, SIZE)
    with group(tmp_path, SIZE, deadline_s=DEADLINE_S) as ours:
        ours.start()
        ours.until_head_says("planted faults:")
        ours.until_sent(host, 1 << 20)
        kill(ours, host, part)
        check(ours, host, part)


@pytest.mark.long
@pytest.mark.parametrize("run", range(20))
def test_a_part_drawn_at_random_killed_at_a_random_moment_is_named(tmp_path, run):
    host, part = DRAW.choice(
        [(h, p) for h in range(SIZE) for p in ("worker", "member")] + [(0, "head")]
    )
    after, moment = DRAW.choice(STEPS), DRAW.uniform(0, 1)
    with group(tmp_path, SIZE, join_s=40.0, deadline_s=DEADLINE_S) as ours:
        ours.start()
        ours.until_head_says(after)
        with contextlib.suppress(subprocess.TimeoutExpired):
            ours.members[0].wait(moment)
        kill(ours, host, part)
        print(f"killed the {part} of host{host} {moment:.1f} s after {after!r}")
        check(ours, host, part)


@pytest.mark.long
@pytest.mark.parametrize("part", ["worker", "member", "head"])
def test_a_part_that_is_stopped_and_stays_there_ends_in_a_named_undecided_too(tmp_path, part):
    host = 0 if part == "head" else DRAW.randrange(1, SIZE)
    with group(tmp_path, SIZE, timeout_s=8.0, deadline_s=DEADLINE_S) as ours:
        ours.start()
        ours.until_head_says("planted faults:")
        ours.until_sent(host, 1 << 20)
        stopped = kill(ours, host, part, signal.SIGSTOP)
        others = {h: m for h, m in ours.members.items() if part == "worker" or h != host}
        if part != "worker":  # it can't end: its host has to
            ends = time.monotonic() + DEADLINE_S
            for member in others.values():
                member.wait(max(0.01, ends - time.monotonic()))
            os.kill(stopped, signal.SIGKILL)
        check(ours, host, part)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("host", [0, 1])
def test_a_member_that_is_told_to_stop_says_so_and_leaves_nothing(tmp_path, host, number):
    with group(tmp_path, SIZE, deadline_s=DEADLINE_S) as ours:
        ours.start()
        ours.until_head_says("planted faults:")
        os.kill(ours.members[host].pid, number)
        statuses = ours.finish()
        assert set(statuses.values()) == {UNDECIDED}, ours.told()
        assert ours.missing_files(range(SIZE)) == ours.left_over() == []
        assert f"stopped by {number.name}" in ours.reasons(host), ours.told()
