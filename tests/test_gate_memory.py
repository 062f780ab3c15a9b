"""What the gate remembers of its rulings, with others that write them, too, and answers that are none."""

from __future__ import annotations

import pytest
from gate_cluster import NAMES, SETTINGS

from nodeproof.gate.breaker import Ruled, why_open
from nodeproof.gate.kube import Kube, Refused
from nodeproof.gate.memory import Memory
from tests.apiserver.server import serving
from tests.apiserver.store import Status, Store


@pytest.fixture
def server():
    with serving(Store()) as made:
        yield made


def remembering(server):
    made = Memory(Kube(server.client()), NAMES)
    made.load(5.0)
    return made


def ruled(uid, at, *, accepted=False, kind="k", reason="x"):
    return Ruled(kind=kind, node_uid=uid, accepted=accepted, reason=reason, at=at)


def accept(uid, at, **more):
    return ruled(uid, at, accepted=True, reason="", **more)


def opens(memory, kind="k"):
    return bool(why_open([], memory.rulings, kind, SETTINGS, now=500.0))


def test_two_that_write_keep_the_rulings_of_both(server):
    one, other = remembering(server), remembering(server)
    one.record(ruled("a", 6.0))
    other.record(ruled("b", 7.0))
    one.record(ruled("c", 8.0))
    assert [r.node_uid for r in remembering(server).rulings] == ["a", "b", "c"]
    assert [r.node_uid for r in one.rulings] == ["a", "b", "c"]


def test_an_answer_that_is_not_the_map_makes_it_forget_nothing(server):
    memory = remembering(server)
    memory.record(ruled("a", 6.0))

    def interfere(_verb, _path, when):
        if when == "after":
            raise Status(200, "as a proxy that answers for the server")

    server.interfere = interfere
    with pytest.raises(Refused):
        memory.record(ruled("b", 7.0))
    server.interfere = lambda *_: None
    assert [r.node_uid for r in memory.rulings] == ["a"]
    memory.record(ruled("c", 8.0))
    assert [r.node_uid for r in remembering(server).rulings] == ["a", "b", "c"]
    assert remembering(server).installed_at == 5.0


def test_a_map_that_is_deleted_takes_nothing_with_it(server):
    memory = remembering(server)
    for number in range(3):
        memory.record(ruled(f"n{number}", 6.0 + number))
    server.store.delete(f"/api/v1/namespaces/{NAMES.namespace}/configmaps/nodeproof-state")
    memory.record(ruled("other", 9.0, kind="b"))
    for one in (memory, remembering(server)):
        assert [r.node_uid for r in one.rulings] == ["n0", "n1", "n2", "other"]
        assert one.installed_at == 5.0
        assert opens(one)


def test_what_one_kind_does_closes_no_breaker_of_another(server):
    memory = remembering(server)
    for number in range(3):
        memory.record(ruled(f"a{number}", 6.0 + number, kind="a"))
    memory.record(ruled("b", 9.0, kind="b"))
    for number in range(250):
        memory.record(accept(f"b{number}", 10.0 + number, kind="b"))
    for number in range(100):
        memory.record(ruled(f"c{number}", 300.0 + number, kind="c", reason=f"r{number}"))
    assert opens(memory, "a")
    assert not opens(memory, "b")
    assert len([r for r in memory.rulings if r.kind == "b"]) == 2  # most accepts end no row


def test_what_stands_already_is_not_written_again_and_again(server):
    memory = remembering(server)
    memory.record(ruled("a", 100.0))
    before = len(server.wrote)
    for later in (110.0, 200.0):
        memory.record(ruled("a", later))
    assert len(server.wrote) == before
    memory.record(ruled("a", 5000.0))  # another test, that came to the same
    assert [r.at for r in remembering(server).rulings] == [5000.0]
    memory.record(accept("b", 5001.0))
    memory.record(ruled("a", 5002.0))
    assert [(r.node_uid, r.at) for r in remembering(server).rulings] == [
        ("b", 5001.0),
        ("a", 5002.0),
    ]


def test_it_says_when_the_rulings_of_others_come_to_light(server):
    one, other = remembering(server), remembering(server)
    assert not one.record(ruled("a", 6.0))
    assert other.record(ruled("b", 7.0))
    assert not other.record(ruled("c", 8.0))
