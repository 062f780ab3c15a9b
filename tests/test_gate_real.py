"""What the gate relies on in an API server: the fake one answers as a real one does.

The real one is that of `KUBEBUILDER_ASSETS`; without it these tests hold for the fake alone.
"""

from __future__ import annotations

import contextlib
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from gate_cluster import (
    GPU,
    JOBS,
    MANIFEST,
    NAMES,
    PENDING,
    PODS,
    SETTINGS,
    SPEC,
    condition,
    keys,
    put_node,
)
from kubernetes import client

from nodeproof.gate import actions, cache, kube, patches, writes
from nodeproof.gate.actions import Evict, Hold, Lift, Quarantine, Remove, Say, Stamp, Tell
from nodeproof.gate.controller import Controller
from nodeproof.gate.kube import Kube, Refused
from nodeproof.gate.leading import Lease
from nodeproof.gate.node import node_of
from nodeproof.gate.writes import JSON_PATCH, MERGE, Request
from tests import real_cluster
from tests.apiserver.server import serving
from tests.apiserver.store import NODES, Store

AT = f"{NODES}/a"
SAY = Say(status="Unknown", reason="Testing", message="boot x; attempt 1")


class Place:
    """One server, the gate's connection to it, and one node."""

    def __init__(self, server, store):
        self.store, self.kube = store, Kube(server.client())
        self.real = server if isinstance(server, real_cluster.RealServer) else None
        put_node(store, "a")

    def node(self):
        return node_of(self.store.get(AT), NAMES)

    def do(self, action, node=None):
        """Do an action as the controller does; the answer, `None` for what was settled before."""
        request = writes.request(
            action, node or self.node(), SETTINGS, SPEC, now=time.time(), nonce="n"
        )
        return self.kube.send(request)

    def status(self, what, *more):
        """HTTP's status of what is refused, 200 for what is not."""
        try:
            what(*more)
        except Refused as refusal:
            return refusal.status
        return 200


@pytest.fixture(params=["fake", "real"])
def place(request):
    if request.param == "fake":
        store = Store()
        with serving(store) as server:
            yield Place(server, store)
        return
    if real_cluster.assets() is None:
        pytest.skip("KUBEBUILDER_ASSETS names no directory with kube-apiserver and etcd")
    server = real_cluster.shared()
    server.store.clear()
    server.store.clock = time.time
    yield Place(server, server.store)


def test_a_lift_takes_our_taints_and_leaves_those_of_others(place):
    place.do(Quarantine())
    place.do(Lift(stamps={NAMES.verdict: "{}"}))
    node = place.store.get(AT)
    assert node["spec"]["taints"] == [GPU]
    assert node["metadata"]["annotations"][NAMES.accepted_boot] == place.node().boot_id


def test_a_patch_of_a_node_that_has_moved_is_422_and_changes_nothing(place):
    seen = place.node()
    theirs = {"key": "example.com/theirs", "value": "x", "effect": "NoSchedule"}
    place.store.change(AT, lambda n: n["spec"]["taints"].append(theirs))
    before = place.store.get(AT)
    assert place.status(place.do, Lift(stamps={}), seen) == 422
    assert place.status(place.do, Quarantine(), seen) == 422
    assert place.store.get(AT) == before
    place.store.change(AT, lambda n: n["spec"].update(taints=[]))
    assert place.status(place.do, Lift(stamps={}), seen) == 422  # what is tested is not there
    place.store.change(AT, lambda n: n["spec"].update(taints=[GPU, PENDING]))
    place.store.change(AT, lambda n: n["status"]["nodeInfo"].update(bootID="another"))
    assert place.status(place.do, Lift(stamps={}), seen) == 422
    assert NAMES.pending in keys(place.store.get(AT))


def test_a_first_taint_and_a_first_annotation_replace_none_that_came_meanwhile(place):
    place.store.change(AT, lambda n: n["spec"].pop("taints"))
    place.store.change(AT, lambda n: n["metadata"].pop("annotations"))
    seen = place.node()
    place.store.change(AT, lambda n: n["metadata"].update(annotations={"theirs": "x"}))
    assert place.status(place.do, Hold(), seen) == 422
    assert place.status(place.do, Stamp(stamps={NAMES.verdict: "{}"}), seen) == 422
    place.do(Hold())
    place.do(Stamp(stamps={NAMES.verdict: "{}"}))
    node = place.store.get(AT)
    assert node["metadata"]["annotations"] == {"theirs": "x", NAMES.verdict: "{}"}
    assert keys(node) == {NAMES.pending}


def test_a_condition_is_merged_by_its_type_and_on_no_other_node_of_that_name(place):
    seen = place.node()
    place.do(SAY)
    rows = place.store.get(AT)["status"]["conditions"]
    assert sorted(c["type"] for c in rows) == sorted(["Ready", NAMES.accepted])
    place.do(Say(status="True", reason="AllChecksPassed", message="boot x; passed"))
    assert len(place.store.get(AT)["status"]["conditions"]) == 2
    assert place.status(place.do, SAY, seen) == 409, "an older picture of it takes nothing back"
    assert condition(place.store.get(AT))["status"] == "True"
    place.store.delete(AT)
    put_node(place.store, "a")
    assert place.status(place.do, SAY, seen) in {409, 422}
    assert condition(place.store.get(AT)) is None


def test_what_is_gone_is_404(place):
    seen = place.node()
    place.store.delete(AT)
    assert place.status(place.do, SAY, seen) == 404
    assert place.status(place.do, Lift(stamps={}), seen) == 404
    assert place.do(Remove(job="np-none"), seen) is None


def test_the_same_job_and_the_same_event_are_made_once(place):
    test = actions.Test(trigger="new", attempt=1, devices=2, requested=2)
    made = place.do(test)
    assert place.do(test) is None
    [job] = place.store.objects("jobs")
    assert job["metadata"]["uid"] == made["metadata"]["uid"]
    pod = job["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    tell = Tell(reason="Rejected", message="gpu0: wrong bits", warning=True)
    assert place.do(tell) is not None
    assert place.do(tell) is None
    told = [e for e in place.store.objects("events") if e["reason"] == "Rejected"]
    assert len(told) == 1  # a server may have events of its own
    place.do(Remove(job=job["metadata"]["name"]))
    assert place.store.objects("jobs") == []


def test_what_keeps_two_pods_from_one_set_of_gpus_is_known_to_the_server(place):
    """A server that does not know a field drops it, and says nothing."""
    place.do(actions.Test(trigger="new", attempt=1, devices=2, requested=2))
    [job] = place.store.objects("jobs")
    if "podFailurePolicy" not in job["spec"]:
        pytest.skip("this server is older than Kubernetes 1.31: it drops podFailurePolicy")
    assert job["spec"]["podReplacementPolicy"] == "Failed"


def test_an_event_of_a_node_with_a_long_name_is_taken(place):
    name = "node-" + ".".join(["a" * 60] * 4)
    put_node(place.store, name)
    node = node_of(place.store.get(f"{NODES}/{name}"), NAMES)
    assert place.do(Tell(reason="Accepted", message="x" * 5000), node) is not None


def test_a_pod_is_asked_to_leave_by_the_eviction_api(place):
    spec = {"containers": [{"name": "c", "image": "x"}], "nodeName": "a"}
    place.store.create(PODS, {"metadata": {"name": "tenant"}, "spec": spec})
    uid = place.store.objects("pods")[0]["metadata"]["uid"]
    evict = Evict(namespace=NAMES.namespace, pod="tenant", uid=uid)
    if place.real:
        assert place.status(place.do, evict) == 403  # that is an overlay's
        place.real.grant(real_cluster.MAY_EVICT)
    status = place.status(place.do, evict)
    if status == 400:
        pytest.skip("this server is older than Kubernetes 1.22: it has no policy/v1")
    assert status == 200
    assert place.store.objects("pods")[0]["metadata"]["deletionTimestamp"]
    assert place.do(Evict(namespace=NAMES.namespace, pod="none", uid=uid)) is None
    # Another pod of that name, as a controller makes one that counts its pods.
    assert place.do(Evict(namespace=NAMES.namespace, pod="tenant", uid="another")) is None


def test_a_log_is_read_through_the_server_and_one_that_is_not_there_is_none(place):
    spec = {"containers": [{"name": "nodeproof", "image": "x"}], "nodeName": "a"}
    place.store.create(
        PODS, {"metadata": {"name": "p"}, "spec": spec, "status": {"phase": "Running"}}
    )
    assert place.kube.log(NAMES.namespace, "p", "nodeproof") is None
    place.store.logs["p"] = "line one\n" * 20_000
    assert place.kube.log(NAMES.namespace, "p", "nodeproof") == place.store.logs["p"]
    assert place.kube.log(NAMES.namespace, "none", "nodeproof") is None


def test_a_watch_tells_what_changes_and_an_old_version_is_too_old_or_served(place):
    listing = place.kube.list(NODES)
    assert [n["metadata"]["name"] for n in listing.items] == ["a"]
    place.store.change(AT, lambda n: n["metadata"]["annotations"].update(moved="yes"))
    place.store.delete(AT)
    seen = []
    for kind, found in place.kube.watch(NODES, listing.version, lambda: len(seen) == 2):
        seen.append((kind, found["metadata"]["annotations"].get("moved")))
        if len(seen) == 2:
            break
    assert seen == [("MODIFIED", "yes"), ("DELETED", "yes")]


def test_the_lease_is_kept_by_one_and_passed_on(place):
    one, two = (Lease(place.kube, NAMES.namespace, identity=n) for n in ("one", "two"))
    assert [one.take(), two.take(), one.take()] == [True, False, True]
    one.give_back()
    assert [two.take(), one.take()] == [True, False]


def test_a_resource_that_the_server_does_not_know_is_not_served(place):
    assert place.kube.serves(NODES)
    assert not place.kube.serves("/apis/example.com/v1/things")


@pytest.fixture
def real():
    if real_cluster.assets() is None:
        pytest.skip("rights: KUBEBUILDER_ASSETS names no directory with kube-apiserver and etcd")
    server = real_cluster.shared()
    server.store.clear()
    return Place(server, server.store)


FORBIDDEN = {
    "delete a node": Request(verb="DELETE", path=AT),
    "make a node": Request(verb="POST", path=NODES, body={"metadata": {"name": "b"}}),
    "make a pod": Request(verb="POST", path=PODS, body={"metadata": {"name": "p"}}),
    "change a Job": Request(verb="PATCH", path=f"{JOBS}/j", body={}, content=MERGE),
    "make a Job elsewhere": Request(
        verb="POST",
        path="/apis/batch/v1/namespaces/default/jobs",
        body={"metadata": {"name": "j"}},
    ),
    "read a secret": Request(verb="GET", path="/api/v1/namespaces/default/secrets/s"),
    "change another map": Request(
        verb="PATCH",
        path=f"/api/v1/namespaces/{NAMES.namespace}/configmaps/other",
        body=[],
        content=JSON_PATCH,
    ),
    "give itself rights": Request(
        verb="POST",
        path="/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        body={"metadata": {"name": "x"}},
    ),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_the_shipped_rights_do_not_reach_to(real, what):
    assert real.status(real.kube.send, FORBIDDEN[what]) == 403


def test_a_patch_without_its_tests_would_take_a_taint_that_moved(place):
    """Why each patch tests the whole list: places in it are nobody's own."""
    patch = patches.lift(place.node(), NAMES, stamps={})
    bare = [op for op in patch if op["op"] != "test"]
    place.store.change(AT, lambda n: n["spec"]["taints"].reverse())
    place.kube.send(Request(verb="PATCH", path=AT, body=bare, content=JSON_PATCH))
    assert keys(place.store.get(AT)) == {NAMES.pending}


class Canned(BaseHTTPRequestHandler):
    """Answers what stands between us and the server may give: one after another."""

    answers: ClassVar[list[bytes]] = []

    def do_GET(self) -> None:
        data = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def listening(handler):
    """A connection to something that answers in its own way."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads, server.block_on_close = True, False
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    configuration = client.Configuration()
    configuration.host = f"http://127.0.0.1:{server.server_address[1]}"
    yield Kube(client.ApiClient(configuration))
    server.shutdown()
    server.server_close()


@pytest.fixture
def proxy():
    with listening(Canned) as connection:
        yield connection


LISTED = b'{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"uid":"u","name":"a"}}]}'


@pytest.mark.parametrize("answer", [b"<html>maintenance</html>", b"", b"[]", b"null", b"\xff"])
def test_an_answer_that_is_none_of_the_servers_is_refused_and_asked_for_again(
    proxy, monkeypatch, answer
):
    monkeypatch.setattr(cache, "_PAUSE_S", 0.01)
    Canned.answers = [answer, answer]
    with pytest.raises(Refused, match="is no object"):
        proxy.get(NODES)
    Canned.answers = [answer, LISTED]
    followed = cache.Cache(proxy, NODES, group=lambda _: "", changed=lambda _: None)
    followed.start()
    assert followed.listed.wait(10)
    assert list(followed.known()) == ["u"]
    assert not followed.dead
    followed.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_controller_that_no_longer_follows_asks_to_be_started_anew():
    """Whatever ended the thread: a picture that stands still must not be taken for the cluster."""
    store = Store()
    with serving(store) as server:
        controller = Controller(Kube(server.client()), SETTINGS, SPEC, MANIFEST)
        controller.start()
        assert controller.ailing() == ""
        nodes = controller.caches["nodes"]
        nodes._group = {}.__getitem__  # a fault of ours, in the thread that follows
        put_node(store, "a")
        ends = time.monotonic() + 10
        while not nodes.dead:
            assert time.monotonic() < ends
            time.sleep(0.01)
        assert controller.ailing() == "it no longer follows nodes"
        controller.stop()
        assert controller.ailing() == ""


class Dripping(BaseHTTPRequestHandler):
    """A log without an end, in small pieces."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b"5\r\nlines\r\n")
                self.wfile.flush()
                time.sleep(0.01)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(("name", "limit"), [("_LOG_S", 0.2), ("_LONGEST_LOG", 20)])
def test_a_log_without_an_end_holds_nobody_up(monkeypatch, name, limit):
    monkeypatch.setattr(kube, name, limit)
    with listening(Dripping) as connection:
        assert connection.log(NAMES.namespace, "p", "nodeproof") is None
