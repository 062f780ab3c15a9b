"""What one node, one proxy or the size of the cluster may cost all the others."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections import Counter

import pytest
from gate_cluster import GPU, MANIFEST, NAMES, SETTINGS, SPEC, condition, keys, put_node, rejected
from test_gate_controller import Clock, Site

from nodeproof.gate.cache import Cache
from nodeproof.gate.controller import Controller
from nodeproof.gate.fleet import Fleet
from nodeproof.gate.kube import Gone, Kube, Listing, Refused
from tests.apiserver.server import _Handler, serving
from tests.apiserver.store import NODES, Status, Store

INSTALLED = 1_900_000_000.0


class Scripted:
    """An API whose lists and watches do as they are told."""

    def __init__(self, listing=None, watching=None):
        self.listing, self.watching = listing, watching
        self.lists: list[float] = []
        self.watches: list[str] = []
        self.sent = 0

    def list(self, _path, kept=None, **_query):
        self.lists.append(time.monotonic())
        if isinstance(self.listing, Exception):
            raise self.listing
        items = [kept(copy.deepcopy(i)) if kept else i for i in self.listing or ()]
        return Listing(items=tuple(items), version="7")

    def watch(self, _path, version, _stop, **_query):
        self.watches.append(version)
        if isinstance(self.watching, Exception):
            raise self.watching
        yield from self.watching or ()

    def send(self, _request):
        return {}


def following(kube):
    return Cache(kube, "/api/v1/nodes", group=lambda _: "", changed=lambda _: None)


@pytest.mark.parametrize("end", [None, Gone(), Refused(0, "cut"), Refused(500, "broken")])
def test_a_watch_that_ends_at_once_is_no_storm_of_requests(end):
    kube = Scripted(watching=end)
    cache = following(kube)
    cache.start()
    time.sleep(0.8)
    cache.stop()
    assert 2 <= len(kube.watches) <= 6
    assert len(kube.lists) <= 6


def test_a_watch_goes_on_from_where_the_last_one_ended():
    """A bookmark and an object both move it; nothing is listed again for that."""
    moved = {"metadata": {"uid": "u", "resourceVersion": "8"}}
    bookmark = {"metadata": {"resourceVersion": "9"}}
    kube = Scripted(watching=[("ADDED", moved), ("BOOKMARK", bookmark)])
    cache = following(kube)
    cache.start()
    ends = time.monotonic() + 10
    while len(kube.watches) < 2 and time.monotonic() < ends:
        time.sleep(0.01)
    cache.stop()
    assert kube.watches[:2] == ["7", "9"]
    assert len(kube.lists) == 1
    assert cache.known() == {"u": "8"}


def test_a_page_is_cut_down_before_the_next_one_comes_and_what_is_known_is_kept():
    store = Store()
    for n in range(3):
        put_node(store, f"n{n}", status={"images": [{"names": ["x" * 100]}]})
    seen = []
    with serving(store) as server:
        kube = Kube(server.client())
        listing = kube.list(NODES, kept=lambda n: seen.append(n) or n["metadata"]["name"])
        assert listing.items == ("n0", "n1", "n2")
        cache = following(kube)
        cache._list()
        before = {id(n) for n in cache.all()}
        cache._list()
        assert {id(n) for n in cache.all()} == before, "ten thousand nodes are not held twice"
        assert all("images" not in n["status"] for n in cache.all())


def test_a_cluster_that_can_not_be_followed_is_told_by_the_probe(monkeypatch):
    clock, store = Clock(), Store()
    with serving(store) as server:
        site = Site(server, store, clock)
        try:
            assert site.controller.ailing() == ""
            nodes = site.controller.caches["nodes"]

            def refused(*_):
                raise Status(403, "nodes is forbidden")

            with monkeypatch.context() as policy:
                policy.setattr(store, "list", refused)
                policy.setattr("nodeproof.gate.cache._LIST_S", 0.0)
                server.drop()
                until(lambda: nodes.refusal)
                assert site.controller.ailing() == "", "a hiccup starts nobody anew"
                policy.setattr("nodeproof.gate.controller._BLIND_S", 0.0)
                said = site.controller.ailing()
                assert said.startswith("it could not follow nodes for ")
                assert "forbidden" in said
            until(lambda: site.controller.ailing() == "")
        finally:
            site.controller.stop()


def test_a_cluster_that_never_let_itself_be_listed_is_told_too(monkeypatch):
    kube = Scripted(listing=Refused(403, "nodes is forbidden"))
    cache = following(kube)
    assert cache.blind_s == 0.0  # as of a controller that waits for its turn
    cache.start()
    until(lambda: cache.refusal)
    assert cache.blind_s > 0.0
    cache.stop()


def until(what, seconds=10.0):
    ends = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_a_look_costs_the_same_however_many_nodes_there_are():
    costs = {}
    for count in (200, 4000):
        settings = dataclasses.replace(SETTINGS, installed_at=INSTALLED)
        controller = Controller(Scripted(), settings, SPEC, MANIFEST, clock=lambda: INSTALLED)
        base = put_node(Store(), "x", spec={"taints": [GPU]})
        for n in range(count):
            node = copy.deepcopy(base)
            node["metadata"].update(name=f"n{n}", uid=f"u{n}")
            controller._nodes.put(node)
            controller._node_moved(node)
        began = time.process_time()
        for n in range(100):
            controller.look(f"u{n}")
        costs[count] = time.process_time() - began
    assert costs[4000] < 4 * costs[200] + 0.05, costs


def held(
    uid, kind="p5.48xlarge", *, taint=NAMES.pending, reason="", created="2020-01-01T00:00:00Z"
):
    told = {"type": NAMES.accepted, "status": "Unknown", "reason": reason, "message": "boot b; x"}
    return {
        "metadata": {
            "name": uid,
            "uid": uid,
            "creationTimestamp": created,
            "labels": {SETTINGS.kind_label: kind},
        },
        "spec": {"taints": [{"key": taint, "effect": "NoSchedule"}]},
        "status": {"nodeInfo": {"bootID": "b"}, "conditions": [told] if reason else []},
    }


def test_the_fleet_counts_those_that_are_held_for_their_test_and_no_others():
    fleet = Fleet(dataclasses.replace(SETTINGS, installed_at=INSTALLED))
    rows = {
        "a": held("a"),
        "b": held("b", reason="Testing"),
        "free": held("free", taint="example.com/x"),
        "new": held("new", created="2031-01-01T00:00:00Z"),
        "given up": held("given up", reason="UndecidedTooOften"),
    }
    for uid, found in rows.items():
        fleet.take(uid, found)
    assert (fleet.held_beside("a"), fleet.held_beside("free")) == (1, 2)
    fleet.take("b", held("b", "p6", taint="example.com/x"))
    assert fleet.held_beside("free") == 1
    assert sorted(fleet.kinds()) == ["p5.48xlarge", "p6"]
    assert [n.name for n in fleet.of_kind("p6")] == ["b"]
    fleet.take("b", None)
    fleet.take("a", None)
    assert (fleet.held_beside("x"), fleet.kinds(), fleet.of_kind("p6")) == (0, ["p5.48xlarge"], [])


def test_a_test_that_never_ends_gives_its_place_back():
    """A hung driver keeps the pod, so that the Job never says that it failed."""
    clock = Clock()
    store = Store(clock=clock)
    with serving(store) as server:
        site = Site(server, store, clock)
        settings = dataclasses.replace(SETTINGS, tests_at_once=2, attempts=1)
        controller = site.another(settings)
        try:
            for name in "ab":
                put_node(store, name)
                site.settle(name, controller)
                site.kubelet.start()
            assert controller.running == 2
            clock.now += 100_000
            put_node(store, "c")
            assert condition(site.settle("c", controller))["reason"] == "Testing"
            reasons = Counter(condition(site.settle(n, controller))["reason"] for n in "ab")
            assert reasons == {"UndecidedTooOften": 2}
        finally:
            controller.stop()
            site.controller.stop()


@pytest.mark.parametrize("run", [None, rejected()])
def test_a_ruling_that_can_not_be_written_down_keeps_no_proved_node_held(monkeypatch, run):
    """Nor is a node quarantined that the breaker does not hear of."""
    clock = Clock()
    store = Store(clock=clock)
    with serving(store) as server:
        site = Site(server, store, clock)
        try:
            put_node(store, "a")
            site.settle()
            site.kubelet.start()
            site.kubelet.finish(site.job(), run)

            def refused(ruled):
                raise Refused(403, "configmaps is forbidden")

            monkeypatch.setattr(site.controller.memory, "record", refused)
            found = keys(site.settle())
            if run is None:
                assert NAMES.pending not in found
            else:
                assert NAMES.pending in found
                assert NAMES.quarantined not in found
        finally:
            site.controller.stop()


@pytest.mark.parametrize(("off", "taken"), [(-720, -720), (0, 0), (7200, 7200), (1.5, 0)])
def test_ages_are_measured_by_the_clock_of_the_server_that_stamps_them(monkeypatch, off, taken):
    """With a clock that is ahead, attempts would be over before their pods have started."""
    dated = _Handler.date_time_string
    monkeypatch.setattr(
        _Handler, "date_time_string", lambda self, _at=None: dated(self, time.time() + off)
    )
    with serving(Store()) as server:
        kube = Kube(server.client())
        assert abs(kube.now() - time.time()) < 0.1
        kube.list(NODES)
        assert abs(kube.now() - time.time() - taken) < 2
        controller = Controller(kube, SETTINGS, SPEC, MANIFEST)
        assert abs(controller._clock() - time.time() - taken) < 2


@pytest.mark.parametrize("date", ["", "yesterday", "Mon, 99 Foo 0000 00:00:00 GMT"])
def test_an_answer_without_a_date_moves_no_clock(monkeypatch, date):
    monkeypatch.setattr(_Handler, "date_time_string", lambda _self, _at=None: date)
    with serving(Store()) as server:
        kube = Kube(server.client())
        kube.list(NODES)
        assert abs(kube.now() - time.time()) < 0.1


def test_a_watch_that_lags_behind_an_answer_to_a_write_takes_nothing_back():
    def seen(version):
        return {"metadata": {"name": "a", "uid": "u", "resourceVersion": version}}

    def late():
        cache.put(seen("9"))
        yield "MODIFIED", seen("8")
        shown.append(cache.known())
        yield "MODIFIED", seen("10")
        shown.append(cache.known())
        yield "DELETED", seen("11")
        shown.append(cache.known())

    shown = []
    cache = following(Scripted(listing=[seen("5")], watching=late()))
    cache.start()
    until(lambda: len(shown) == 3)
    cache.stop()
    assert shown == [{"u": "9"}, {"u": "10"}, {}]
