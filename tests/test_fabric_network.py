"""Groups of hosts, sound and harmed: who is named for it, and who is not.

What is compared is always one host with the others of its run, never a rate with a number.
"""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import netns
import pytest
from fabric_group import ACCEPT, REJECT, UNDECIDED, group, sabotage

SLOW = netns.MBIT / 4
DRAW = random.SystemRandom()
LONG = pytest.mark.long  # a group of eight takes a minute or two of both cores


def statuses(ours, status):
    return dict.fromkeys(range(ours.network.size), status)


def agreed(ours):
    """Every member's verdict is the same; return whom it blames."""
    whom = [ours.blamed(host) for host in range(ours.network.size)]
    assert all(each == whom[0] for each in whom), whom
    return whom[0]


@pytest.mark.parametrize("hosts", [4, pytest.param(8, marks=LONG)])
def test_a_sound_group_blames_nobody(tmp_path, hosts):
    with group(tmp_path, hosts) as ours:
        ours.start()
        assert ours.finish() == statuses(ours, ACCEPT), ours.told()
        assert ours.missing_files(range(hosts)) == []
        assert ours.verdict()["failed"] == ours.verdict()["undecided"] == []
        assert ours.left_over() == []
        record = ours.record()
        assert [row["answer"]["wrong"] for row in record["whole"]["ranks"]] == [0] * hosts
        assert {end for pair in record["pairs"] for end in (pair["a"], pair["b"])} == {
            f"host{host}" for host in range(hosts)
        }


@pytest.mark.parametrize(
    ("hosts", "run"), [(4, 0), *(pytest.param(8, run, marks=LONG) for run in range(20))]
)
def test_one_slow_host_is_named_and_no_other(tmp_path, hosts, run):
    slow = DRAW.randrange(hosts)
    with group(tmp_path, hosts) as ours:
        ours.network.slow(slow, SLOW)
        ours.start()
        assert ours.finish() == statuses(ours, REJECT), (slow, ours.told())
        assert agreed(ours) == {f"host{slow}"}, ours.told()
        assert ours.missing_files(range(hosts)) == ours.left_over() == []


@LONG
@pytest.mark.parametrize("run", range(3))
def test_two_slow_hosts_of_eight_are_both_named(tmp_path, run):
    slow = DRAW.sample(range(8), 2)
    with group(tmp_path, 8) as ours:
        for host in slow:
            ours.network.slow(host, SLOW)
        ours.start()
        assert ours.finish() == statuses(ours, REJECT), (slow, ours.told())
        assert agreed(ours) == {f"host{host}" for host in slow}, ours.told()


@LONG
@pytest.mark.parametrize("run", range(3))
def test_a_host_that_only_sends_slowly_is_named(tmp_path, run):
    slow = DRAW.randrange(8)
    with group(tmp_path, 8) as ours:
        ours.network.slow_sending(slow, SLOW)
        ours.start()
        assert ours.finish() == statuses(ours, REJECT), (slow, ours.told())
        assert agreed(ours) == {f"host{slow}"}, ours.told()


def test_a_host_that_never_comes_leaves_the_group_undecided_and_is_named(tmp_path):
    with group(tmp_path, 3, join_s=12.0) as ours:
        ours.start([0, 1])
        assert ours.finish() == {0: UNDECIDED, 1: UNDECIDED}, ours.told()
        assert ours.missing_files([0, 1]) == ours.left_over() == []
        for host in (0, 1):
            assert ours.blamed(host) == set()
            assert "rank 2 never came within 12 s" in ours.reasons(host)


@LONG
def test_a_host_without_a_head_says_which_it_did_not_reach(tmp_path):
    with group(tmp_path, 2, join_s=5.0) as ours:
        ours.start([1])
        assert ours.finish() == {1: UNDECIDED}, ours.told()
        assert ours.missing_files([1]) == ours.left_over() == []
        assert "the head 10.77.0.1:29400 was not reached within 5 s" in ours.reasons(1)


@LONG
@pytest.mark.parametrize("when", ["planted faults", "the whole group", "round 1"])
def test_a_host_that_is_cut_off_in_the_midst_is_named_and_ends_by_itself(tmp_path, when):
    cut = DRAW.randrange(1, 4)
    with group(tmp_path, 4, timeout_s=8.0) as ours:
        ours.start()
        before = {"planted faults": "are ready", "the whole group": "planted faults:"}
        ours.until_head_says(before.get(when, "the whole group:"))
        if when != "planted faults":  # which are small
            ours.until_sent(cut, 1 << 20)
        ours.network.cut(cut)
        assert ours.finish() == statuses(ours, UNDECIDED), (cut, ours.told())
        assert ours.missing_files(range(4)) == ours.left_over() == []
        for host in set(range(4)) - {cut}:
            assert ours.blamed(host) == set()
            assert f"host{cut}" in ours.reasons(host), ours.told()
        assert "the head 10.77.0.1:29400" in ours.reasons(cut)


@LONG
def test_a_head_that_is_cut_off_in_the_midst_is_what_the_others_name(tmp_path):
    with group(tmp_path, 4, timeout_s=8.0) as ours:
        ours.start()
        ours.until_head_says("planted faults:")
        ours.until_sent(0, 1 << 20)
        ours.network.cut(0)
        assert ours.finish() == statuses(ours, UNDECIDED), ours.told()
        assert ours.missing_files(range(4)) == ours.left_over() == []
        for host in (1, 2, 3):
            assert "the head 10.77.0.1:29400 was silent" in ours.reasons(host)


@LONG
def test_a_rank_that_comes_late_to_everything_is_named(tmp_path):
    """It sleeps after the barrier before each collective, where its own time is not counted."""
    late = DRAW.randrange(4)
    environment = sabotage(
        tmp_path / "late",
        """
        import time
        import torch.distributed as dist

        whole = dist.barrier

        def barrier(*args, **more):
            whole(*args, **more)
            time.sleep(0.1)

        dist.barrier = barrier
        """,
    )
    with group(tmp_path, 4, environments={late: environment}) as ours:
        ours.start()
        assert ours.finish() == statuses(ours, REJECT), (late, ours.told())
        assert agreed(ours) == {f"host{late}"}, ours.told()
        assert f"fabric.member.punctual host{late}: late" in ours.reasons(), ours.told()


@LONG
def test_a_rank_that_gets_wrong_data_is_named(tmp_path):
    wrong = DRAW.randrange(4)
    environment = sabotage(
        tmp_path / "wrong",
        """
        import torch
        import torch.distributed as dist

        whole = dist.all_reduce

        def all_reduce(x, *args, **more):
            whole(x, *args, **more)
            x.view(torch.int8)[0] ^= 1

        dist.all_reduce = all_reduce
        """,
    )
    with group(tmp_path, 4, environments={wrong: environment}) as ours:
        ours.start()
        assert ours.finish() == statuses(ours, REJECT), (wrong, ours.told())
        assert agreed(ours) == {f"host{wrong}"}, ours.told()


def test_hosts_of_a_process_that_was_killed_are_removed_by_the_next(tmp_path):
    """Of our own harness: nothing may pile up on a machine that tests run on."""
    code = """
        import netns, subprocess, sys
        with netns.network(2) as hosts:
            # Whoever has not entered the host yet is not found in it: wait for its own word.
            script = ["sh", "-c", "echo here; exec sleep 100"]
            left = hosts.run(1, script, {}, stdout=subprocess.PIPE)
            left.stdout.readline()
            print(hosts.stem, left.pid, flush=True)
            sys.stdin.read()
    """
    here = Path(__file__).parent
    with netns.network(1):  # skips where there are none
        pass
    with subprocess.Popen(
        [sys.executable, "-P", "-c", "if True:" + code],
        env={**os.environ, "PYTHONPATH": str(here)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as killed:
        stem, pid = killed.stdout.readline().split()
        killed.send_signal(signal.SIGKILL)
    names = Path("/run/netns")
    assert [path.name for path in names.glob(f"{stem}-*")] != []
    with netns.network(1):
        assert [path.name for path in names.glob(f"{stem}-*")] == []
        assert not list(Path("/etc/netns").glob(f"{stem}-*"))
        assert not Path("/proc", pid).exists() or (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        )
