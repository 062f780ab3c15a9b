"""What is said while a step takes long, and to a member that can't reach its head."""

import socket

import pytest

from nodeproof.fabric import patience
from nodeproof.fabric.member import Part, take_part
from nodeproof.fabric.patience import Patience


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when they are told to."""
    now = [100.0]
    monkeypatch.setattr(patience.time, "monotonic", lambda: now[0])
    return now


def test_a_step_that_is_soon_over_needs_no_word(clock):
    said = []
    waiting = Patience(said.append, "round 1", limit_s=135)
    for _ in range(149):
        waiting(["n1"])
        clock[0] += 0.1
    assert said == []


def test_the_longer_a_step_takes_the_more_seldom_it_is_spoken_of(clock):
    said = []
    waiting = Patience(said.append, "the whole group", limit_s=1800)
    for _ in range(1800):
        waiting([f"n{n}" for n in range(6)])
        clock[0] += 1.0
    told = [line.partition(" of ")[0] for line in said]
    assert told == ["15", "30", "60", "120", "240", "480", "960"]
    assert said[0] == (
        "15 of at most 1800 s for the whole group; no answer yet from n0, n1, n2, n3 and 2 more"
    )


def test_a_process_that_was_held_up_says_what_it_missed_once(clock):
    said = []
    waiting = Patience(said.append, "round 1", limit_s=135)
    clock[0] += 100.0
    waiting(["n1"])
    waiting(["n1"])
    assert len(said) == 1


def unused_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (("127.0.0.1", unused_port()), "nothing listens on its port"),
        (("no-such-host.invalid", 29400), "no-such-host.invalid does not resolve on this node"),
    ],
)
def test_a_member_that_cannot_reach_its_head_is_told_what_to_look_at(tmp_path, head, says):
    part = Part(
        rank=1,
        nodes=2,
        name="n1",
        head=head,
        device="cpu",
        cpu_devices=1,
        host_root=tmp_path,
        join_s=0.2,
        token="",
    )
    left = take_part(part)
    assert left.files == {}
    assert left.why.startswith(f"rank 1 (n1): the head {head[0]}:{head[1]} was not reached within ")
    assert says in left.why
