"""One controller of several leads, and it is followed when it ends, however it ends."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from gate_cluster import NAMES, Kubelet, condition, keys, put_node
from gate_process import Process, finish, kubeconfig, told, until

from nodeproof.gate import leading
from nodeproof.gate.kube import Gone, Kube, Refused
from nodeproof.gate.leading import Lease, lead
from tests.apiserver.server import serving
from tests.apiserver.store import NODES, Status, Store

SOON_S = 20  # five on a quiet machine; a request that nobody answers would take thirty
PORT = 18080 + os.getpid() % 1000
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMES.namespace}/leases/nodeproof-controller"


@pytest.fixture(scope="module")
def server():
    with serving(Store()) as made:
        yield made


@pytest.fixture
def store(server):
    yield server.store
    for kind, path in (("leases", LEASE), ("nodes", f"{NODES}/a")):
        if server.store.objects(kind):
            server.store.delete(path)  # with its Jobs


@pytest.fixture
def lease(server, store):
    return lambda name: Lease(Kube(server.client()), NAMES.namespace, identity=name)


def age(monkeypatch, seconds):
    """Let the clock that candidates watch each other by go on."""
    real = leading.time.monotonic()
    monkeypatch.setattr(leading.time, "monotonic", lambda: real + seconds)


def test_the_first_has_it_and_keeps_it(lease, store):
    one, two = lease("one"), lease("two")
    assert [one.take(), two.take(), one.take(), two.take()] == [True, False, True, False]
    spec = store.get(LEASE)["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("one", 1)


def test_one_that_says_nothing_for_the_length_of_the_lease_has_lost_it(lease, monkeypatch):
    one, two = lease("one"), lease("two")
    assert one.take()
    assert not two.take()
    age(monkeypatch, leading.LEASE_S + 1)
    assert two.take()
    assert not one.take()


def test_a_lease_that_moves_is_alive_whatever_its_clock_says(lease, store, monkeypatch):
    one, two = lease("one"), lease("two")
    one.take()
    store.change(LEASE, lambda o: o["spec"].update(renewTime="2001-01-01T00:00:00.000000Z"))
    assert not two.take()
    age(monkeypatch, leading.LEASE_S - 5)
    one.take()
    assert not two.take()  # seen to move: its time begins anew
    real = leading.time.monotonic()
    monkeypatch.setattr(leading.time, "monotonic", lambda: real + leading.LEASE_S - 5)
    assert not two.take()


def test_a_lease_that_is_given_back_is_taken_at_once(lease, store):
    one, two = lease("one"), lease("two")
    one.take()
    two.give_back()  # it is not theirs
    assert store.get(LEASE)["spec"]["holderIdentity"] == "one"
    one.give_back()
    assert two.take()
    assert store.get(LEASE)["spec"]["leaseTransitions"] == 2


def test_of_two_that_write_at_once_one_has_it(lease, server, store):
    one, two = lease("one"), lease("two")
    one.take()
    one.give_back()
    first = []

    def interfere(verb, path, when):
        if verb == "PUT" and when == "before" and not first:
            first.append(path)
            assert two.take()

    server.interfere = interfere
    assert not one.take()
    server.interfere = lambda *_: None
    assert store.get(LEASE)["spec"]["holderIdentity"] == "two"


def test_a_lease_of_empty_words_is_free(lease, store):
    store.create(LEASE.rpartition("/")[0], {"metadata": {"name": "nodeproof-controller"}})
    assert lease("one").take()


def test_it_is_held_for_as_long_as_no_other_can_have_taken_it(lease, monkeypatch):
    one, two = lease("one"), lease("two")
    assert not one.held()
    assert one.take()
    assert one.held()
    assert not two.take()
    assert not two.held()
    real = leading._clock()
    monkeypatch.setattr(leading, "_clock", lambda: real + leading.LEASE_S)
    assert not one.held()  # though nobody has told it so
    assert one.take()
    assert one.held()


def test_a_renewal_counts_from_when_it_was_asked_for(lease, server, monkeypatch):
    one = lease("one")
    real, late = leading._clock(), [0.0]
    monkeypatch.setattr(leading, "_clock", lambda: real + late[0])

    def interfere(_verb, _path, when):
        late[0] = leading.LEASE_S if when == "after" else 0.0

    server.interfere = interfere
    assert one.take()
    server.interfere = lambda *_: None
    assert not one.held()


@pytest.mark.parametrize("broken", [OSError("no such file"), Gone()], ids=["token", "410"])
def test_a_lease_that_can_not_be_asked_for_now_is_asked_for_again(
    server, store, monkeypatch, broken
):
    monkeypatch.setattr(leading, "_RETRY_S", 0.01)
    api, fails = server.client(), [3]

    def token(_configuration):
        if isinstance(broken, OSError) and fails[0]:
            fails[0] -= 1
            raise broken

    def interfere(_verb, _path, when):
        if isinstance(broken, Gone) and fails[0] and when == "before":
            fails[0] -= 1
            raise Status(410, "gone")

    api.configuration.refresh_api_key_hook = token
    api.configuration.api_key = {"authorization": "x"}
    server.interfere = interfere
    stopping = threading.Event()
    try:
        assert lead(Lease(Kube(api), NAMES.namespace), run=lambda: None, stopping=stopping)
    finally:
        server.interfere = lambda *_: None
    assert fails == [0]


class Unanswering:
    """A Lease whose API does not answer."""

    identity = "me"

    def __init__(self, *answers):
        self.answers = list(answers)
        self.told = 0.0

    def held(self):
        return leading._clock() - self.told <= leading._RENEW_S

    def take(self):
        answer = self.answers.pop(0) if self.answers else Refused(0, "no answer")
        if isinstance(answer, Refused):
            raise answer
        self.told = leading._clock()
        return answer

    def give_back(self):
        raise Refused(0, "no answer")


@pytest.mark.parametrize(
    ("answers", "why"),
    [((True,), "could not be renewed"), ((True, False), "another one took the Lease")],
)
def test_one_that_can_not_renew_gives_up_before_another_takes_over(monkeypatch, answers, why):
    monkeypatch.setattr(leading, "_RETRY_S", 0.01)
    monkeypatch.setattr(leading, "_RENEW_S", 0.1)
    stopping = threading.Event()
    said = lead(Unanswering(*answers), run=stopping.wait, stopping=stopping)
    assert why in said
    assert stopping.is_set()


def test_work_that_ends_by_itself_gives_the_lease_up(lease, store, monkeypatch):
    monkeypatch.setattr(leading, "_RETRY_S", 0.01)
    said = lead(lease("one"), run=lambda: None, stopping=threading.Event())
    assert "ended by itself" in said
    assert store.get(LEASE)["spec"]["holderIdentity"] == ""


def test_one_that_waits_can_be_stopped(lease, monkeypatch):
    monkeypatch.setattr(leading, "_RETRY_S", 0.01)
    lease("one").take()
    stopping = threading.Event()
    timer = threading.Timer(0.05, stopping.set)
    timer.start()
    assert lead(lease("two"), run=pytest.fail, stopping=stopping) == ""
    timer.join()


@pytest.fixture
def config(server, tmp_path):
    return kubeconfig(tmp_path / "config", server.client().configuration.host)


@pytest.fixture
def start(config, tmp_path):
    """Start controllers, and leave none behind."""
    made = []

    def started(*more, config=config, **how):
        made.append(Process(tmp_path, config, *more, **how))
        return made[-1]

    yield started
    for controller in made:
        controller.process.kill()
        controller.process.wait(30)


@pytest.fixture
def proves_itself(store):
    """Let node `a` be there, and end its test with an accept; return when it is released."""
    kubelet = Kubelet(store)
    put_node(store, "a")

    def proved():
        [job] = until(lambda: [j for j in store.objects("jobs") if not j.get("status")])
        kubelet.start()
        finish(kubelet, job, store.get(f"{NODES}/a"))
        until(lambda: NAMES.pending not in keys(store.get(f"{NODES}/a")))

    return proved


def test_a_controller_releases_a_node_tells_of_it_and_ends_when_told(store, start, proves_itself):
    controller = start(port=PORT)
    proves_itself()
    assert controller.leads
    status, text = told(PORT, "/metrics")
    assert status == 200
    assert 'nodeproof_nodes{phase="accepted"} 1\n' in text
    assert told(PORT, "/healthz") == (200, "ok\n")
    assert told(PORT, "/")[0] == 404
    busy = start(port=PORT)
    assert busy.process.wait(timeout=30) == 2
    assert f"--port {PORT}: Address already in use" in busy.log.read_text()
    status, seconds = controller.end()
    assert (status, seconds < SOON_S) == (0, True), controller.log.read_text()
    assert store.get(LEASE)["spec"]["holderIdentity"] == ""  # the next need not wait for it


@pytest.mark.long  # a Lease has to run out
def test_when_the_one_that_leads_is_killed_the_other_takes_over(store, start, proves_itself):
    first = start()
    until(lambda: first.leads)
    second = start()
    proves_itself()
    assert not second.leads
    assert first.end(signal.SIGKILL)[0] == -signal.SIGKILL
    store.change(f"{NODES}/a", lambda n: n["status"]["nodeInfo"].update(bootID="another"))
    assert NAMES.pending not in keys(store.get(f"{NODES}/a"))
    until(lambda: second.leads)
    until(lambda: NAMES.pending in keys(store.get(f"{NODES}/a")))
    proves_itself()
    assert condition(store.get(f"{NODES}/a"))["message"].startswith("boot another;")
    second.end()


def test_a_dry_run_says_what_it_would_do_and_writes_nothing(server, store, start):
    put_node(store, "a")
    server.wrote.clear()
    controller = start("--dry-run")
    until(lambda: "a: Test(" in controller.log.read_text())
    status, seconds = controller.end()
    assert (status, seconds < SOON_S) == (0, True), controller.log.read_text()
    assert server.wrote == []
    assert store.objects("leases") == []


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_controller_that_reaches_no_server_ends_when_it_is_told(tmp_path, start, more):
    controller = start(*more, config=kubeconfig(tmp_path / "none", "http://127.0.0.1:9"))
    if not more:
        until(lambda: " waits: " in controller.log.read_text())
        assert controller.end()[0] == 0
    else:  # it asks once what the server knows, and says that there is none
        assert controller.process.wait(timeout=30) == 1
        assert "127.0.0.1" in controller.log.read_text()
