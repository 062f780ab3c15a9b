"""What the gate remembers of its rulings, with others that write them, too, and answers that are none."""

from __future__ import annotations

import pytest
from gate_cluster import NAMES

from nodeproof.gate.breaker import Ruled
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


def ruled(uid, at):
    return Ruled(kind="k", node_uid=uid, accepted=False, reason="x", at=at)


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
