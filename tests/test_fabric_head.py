"""The head against members that are strangers, liars, silent or gone, over real sockets."""

import contextlib
import socket
import time

import pytest

from nodeproof import __version__
from nodeproof.child import Interrupted
from nodeproof.fabric import wire
from nodeproof.fabric.head import Ask, Head
from nodeproof.fabric.wire import GoneError, Line

WORD = "the group's word"
CPU0 = {"kind": "cpu", "id": "cpu0", "label": "cpu0", "facts": {}}
READY = {"ready": {"devices": [CPU0], "software": {"torch": "2"}}}
ASK = {0: Ask(calls={"cpu0": {"call": "a:b", "args": {}}})}


PEERS = []


class Peer:
    """A member by hand."""

    def __init__(self, head):
        self.head = head
        PEERS.append(self)
        self.line = Line(socket.create_connection(("127.0.0.1", head.port)))

    def hello(self, **change):
        said = {"rank": 0, "nodes": 2, "name": "one", "token": WORD, "version": __version__}
        self.line.send({"hello": {**said, "boot_id": "b", **change}})
        return self

    def raw(self, data):
        self.line._socket.setblocking(True)
        self.line._socket.sendall(data)
        self.line._socket.setblocking(False)
        return self

    def hears(self):
        """What the head says next; a `GoneError` where it closed the connection."""
        ends = time.monotonic() + 10
        while time.monotonic() < ends:
            self.head.pump()
            try:
                if messages := self.line.receive():
                    return messages[0]
            except GoneError as error:
                return error
        raise AssertionError("the head says nothing")


@pytest.fixture
def make_head():
    heads = []

    def make(nodes=2, names=(), seconds=60):
        heads.append(Head(nodes=nodes, port=0, token=WORD, names=list(names), seconds=seconds))
        return heads[-1]

    yield make
    for head in heads:
        head.close()
    while PEERS:
        PEERS.pop().line.close()


@pytest.fixture
def head(make_head):
    return make_head()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"token": "guessed"}, "does not know the group's word"),
        ({"token": None}, "does not know the group's word"),
        ({"version": "0.0.0"}, "use one image"),
        ({"nodes": 3}, "the head expects 2"),
        ({"rank": 2}, "the head expects 2"),
        ({"rank": -1}, "the head expects 2"),
    ],
)
def test_who_does_not_belong_is_refused_with_the_reason_and_is_not_counted(head, change, says):
    said = Peer(head).hello(**change).hears()
    assert says in said["refused"]
    assert not any(member.came for member in head.members)
    assert says in head.events[0]["text"]


def test_a_rank_that_is_taken_and_a_name_that_is_taken_are_refused(head):
    assert "welcome" in Peer(head).hello().hears()
    assert "here already, as one" in Peer(head).hello(name="other").hears()["refused"]
    assert "under another rank" in Peer(head).hello(rank=1).hears()["refused"]
    assert "welcome" in Peer(head).hello(rank=1, name="two").hears()


def test_only_the_named_may_come(make_head):
    head = make_head(names=["one", "two"])
    assert "has to be one" in Peer(head).hello(name="three").hears()["refused"]
    assert "welcome" in Peer(head).hello().hears()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"[]\n",
        b'{"hello": 1}\n',
        b'{"hello": {"rank": "0", "nodes": 2, "name": "x"}}\n',
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b"x" * (wire.HELLO_LIMIT + 2_000_000),
        b'{"done": {"id": 1, "replies": {}, "boot_id": ""}}\n',
    ],
    ids=["http", "list", "number", "text rank", "no text", "nested", "endless", "no hello"],
)
def test_a_stranger_that_talks_nonsense_is_shown_out_and_nobody_else_minds(head, data):
    stranger = Peer(head)
    with contextlib.suppress(OSError):  # shown out before it had said it all
        stranger.raw(data)
    assert isinstance(stranger.hears(), GoneError)
    assert "welcome" in Peer(head).hello().hears()


def test_strangers_that_say_nothing_keep_no_member_out(head):
    idle = [socket.create_connection(("127.0.0.1", head.port)) for _ in range(100)]
    for _ in idle:
        head.pump()
    assert "welcome" in Peer(head).hello().hears()
    for each in idle:
        each.close()


def test_who_never_came_and_who_never_got_ready_are_told_by_name(make_head, monkeypatch):
    monkeypatch.setattr("nodeproof.fabric.head._READY_S", 0.5)
    head = make_head()
    Peer(head).hello().hears()
    head.gather(join_s=0.5)
    assert head.members[0].trouble == ["one came and did not get ready"]
    (never,) = head.members[1].trouble
    assert never.startswith("rank 1 never came within 0.5 s; on a node that is to be rank 1, see ")
    for place in ("pod", "name of the head resolves", "firewall", f"port {head.port}"):
        assert place in never
    assert not any(member.there for member in head.members)


def joined(head):
    peer = Peer(head).hello()
    peer.hears()
    peer.line.send(READY)
    while not head.members[0].there:
        head.pump()
    return peer


def test_a_member_that_goes_away_in_the_middle_of_its_work_is_named(head):
    peer = joined(head)
    peer.line.close()
    told = head.ask(ASK, seed=1, deadline_s=5)
    assert told == {0: {"cpu0": {"said": "one went away: closed the connection"}}}
    assert head.members[0].trouble == ["one went away: closed the connection"]


def test_a_member_that_falls_silent_is_missed_without_a_sign_of_its_end(head, monkeypatch):
    joined(head)
    monkeypatch.setattr("nodeproof.fabric.head.SILENT_S", 2.0)
    told = head.ask(ASK, seed=1, deadline_s=30)
    assert "one was silent for " in told[0]["cpu0"]["said"]


def test_a_member_that_beats_and_never_answers_costs_its_deadline(head, monkeypatch):
    monkeypatch.setattr("nodeproof.fabric.head._MARGIN_S", 0.1)
    peer = joined(head)
    peer.raw(b'{"beat": 1}\n')
    told = head.ask(ASK, seed=1, deadline_s=0.5)
    assert told[0]["cpu0"]["said"] == "one did not answer in 0.5 s"


@pytest.mark.parametrize(
    "reply",
    [
        {"done": {"id": 1, "replies": [], "boot_id": ""}},
        {"done": "yes"},
        {"answer": 1},
    ],
)
def test_a_member_that_answers_nonsense_takes_no_further_part(head, reply):
    peer = joined(head)
    peer.line.send(reply)
    told = head.ask(ASK, seed=1, deadline_s=5)
    assert "said what is no answer" in told[0]["cpu0"]["said"]
    assert not head.members[0].there


def test_an_answer_to_an_earlier_request_is_not_taken_for_this_one(head, monkeypatch):
    monkeypatch.setattr("nodeproof.fabric.head._MARGIN_S", 0.1)
    peer = joined(head)
    old = {
        "done": {
            "id": 0,
            "replies": {"cpu0": {"answer": {"wrong": 0}}},
            "deaths": [],
            "boot_id": "b",
        }
    }
    peer.line.send(old)
    told = head.ask(ASK, seed=1, deadline_s=0.5)
    assert "answer" not in told[0]["cpu0"]


def test_a_worker_that_was_lost_stays_its_members_trouble_even_if_the_next_one_works(head):
    peer = joined(head)
    lost = {"cpu0": {"said": "worker cpu0 was killed", "type": "Lost"}}
    peer.line.send({"done": {"id": 1, "replies": lost, "deaths": [], "boot_id": "b"}})
    head.ask(ASK, seed=1, deadline_s=5)
    assert head.members[0].there
    assert head.members[0].trouble == ["one: cpu0: worker cpu0 was killed"]


def test_of_a_step_that_takes_long_it_is_said_who_is_waited_for(head, monkeypatch):
    monkeypatch.setattr("nodeproof.fabric.head._MARGIN_S", 0.1)
    joined(head)
    heard = []
    head.ask(ASK, seed=1, deadline_s=0.5, waiting=heard.append)
    assert heard
    assert all(missing == ["one"] for missing in heard)


def test_who_was_lost_is_not_asked_again_and_is_answered_for(head):
    joined(head).line.close()
    head.ask(ASK, seed=1, deadline_s=5)
    begun = time.monotonic()
    assert "one went away" in head.ask(ASK, seed=1, deadline_s=5)[0]["cpu0"]["said"]
    assert time.monotonic() - begun < 3


def wait_for_ever(head):
    while True:
        head.pump()


def test_the_run_ends_at_its_deadline_and_when_it_is_told_to(make_head):
    head = make_head(seconds=0.2)
    with pytest.raises(Interrupted, match="deadline"):
        wait_for_ever(head)
    head = make_head()
    head.interrupt("stopped by SIGTERM")
    with pytest.raises(Interrupted, match="SIGTERM"):
        head.gather(join_s=5)


@pytest.mark.parametrize(
    ("text", "is_"),
    [
        ("host", ("host", wire.PORT)),
        ("host:1", ("host", 1)),
        ("[fd00::1]:29401", ("fd00::1", 29401)),
        ("10.0.0.1:29400", ("10.0.0.1", 29400)),
    ],
)
def test_an_address_is_read_as_people_write_it(text, is_):
    assert wire.address(text) == is_


@pytest.mark.parametrize("text", ["", ":1", "host:port", "host:99999", "a@b:1", "host/x", "[::1"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ValueError, match="no HOST:PORT"):
        wire.address(text)


@pytest.mark.parametrize(
    "name", ["", "group", "rank 1", "a|b", "a/b", "\x1b[2J", "\ud800", "x" * 254]
)
def test_what_can_be_no_name_of_a_node_is_refused(head, name):
    assert "is no name of a node" in Peer(head).hello(name=name).hears()["refused"]


def test_a_word_that_is_no_text_keeps_out_him_alone(head):
    assert "word" in Peer(head).hello(token="\ud800").hears()["refused"]  # noqa: S106
    assert "welcome" in Peer(head).hello().hears()


def told_ready(head, devices, software=None):
    peer = Peer(head).hello()
    peer.hears()
    peer.line.send({"ready": {"devices": devices, "software": software or {}}})
    ends = time.monotonic() + 10
    while not head.members[0].there and not head.members[0].trouble and time.monotonic() < ends:
        head.pump()
    return head.members[0]


@pytest.mark.parametrize(
    "devices",
    [
        [],
        [1],
        [{}],
        [{**CPU0, "kind": "node"}],
        [{**CPU0, "kind": []}],
        [{**CPU0, "id": ""}],
        [{**CPU0, "label": "x" * 3000}],
        [{**CPU0, "facts": []}],
        [CPU0, CPU0],
    ],
    ids=str,
)
def test_a_member_with_devices_that_are_none_takes_no_part(head, devices):
    member = told_ready(head, devices)
    assert not member.there
    assert "said what is no answer" in member.trouble[0]


@pytest.mark.parametrize(
    "data",
    [b"\n" * 20_000, b"{}\n" * 20_000, b'{"ready":' + b'{"a":' * 40 + b"1" + b"}" * 41 + b"\n"],
    ids=["empty lines", "small lines", "nested"],
)
def test_a_member_that_floods_is_lost_and_nobody_else(head, data):
    peer = joined(head)
    with contextlib.suppress(OSError):
        peer.raw(data)
    other = Peer(head).hello(rank=1, name="two")
    assert "welcome" in other.hears()
    ends = time.monotonic() + 10
    while head.members[0].there and time.monotonic() < ends:
        head.pump()
    assert "one" in head.members[0].trouble[0]
    assert head.members[1].came


@pytest.mark.parametrize(
    "replies", [{"cpu0": [1]}, {"cpu0": {"lost": 1}}, {"cpu0": {"answer": "hi"}}, {"cpu0": None}]
)
def test_a_reply_that_is_none_costs_its_member_alone(head, replies):
    peer = joined(head)
    peer.line.send({"done": {"id": 1, "replies": replies, "deaths": [], "boot_id": "b"}})
    told = head.ask(ASK, seed=1, deadline_s=5)
    assert "said what is no answer" in told[0]["cpu0"]["said"]


def test_a_number_that_is_none_does_not_arrive(head):
    peer = joined(head)
    peer.raw(
        b'{"done":{"id":1,"replies":{"cpu0":{"answer":{"x":NaN}}},"deaths":[],"boot_id":""}}\n'
    )
    assert "said" in head.ask(ASK, seed=1, deadline_s=5)[0]["cpu0"]


@pytest.mark.parametrize(
    ("kind", "trouble"), [("UnfinishedError", False), ("OSError", True), ("Lost", True)]
)
def test_only_what_others_failed_it_in_is_not_a_members_own_trouble(head, kind, trouble):
    """A full disk, or memory that somebody took, must not pass for a slow network."""
    peer = joined(head)
    said = {"cpu0": {"said": f"{kind}: no space left on device", "type": kind}}
    peer.line.send({"done": {"id": 1, "replies": said, "deaths": [], "boot_id": "b"}})
    head.ask(ASK, seed=1, deadline_s=5)
    assert bool(head.members[0].trouble) is trouble


def test_deaths_without_end_are_not_kept_without_end(head):
    peer = joined(head)
    deaths = ["worker cpu0 died" * 1000] * 5000
    peer.line.send(
        {
            "done": {
                "id": 1,
                "replies": {"cpu0": {"said": "no", "type": "UnfinishedError"}},
                "deaths": deaths,
                "boot_id": "b",
            }
        }
    )
    head.ask(ASK, seed=1, deadline_s=20)
    assert len(head.members[0].trouble) <= 32
    assert all(len(each) < 2100 for each in head.members[0].trouble)
