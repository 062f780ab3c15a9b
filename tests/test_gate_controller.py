"""The controller against an API server: a node is released by its proof, and by nothing else.

Each test runs against the fake server and, where `KUBEBUILDER_ASSETS` names a directory with
kube-apiserver and etcd, against a real one, with the rights of k8s/controller.
"""

from __future__ import annotations

import dataclasses
import time

import pytest
from gate_cluster import (
    JOBS,
    MANIFEST,
    NAMES,
    PENDING,
    PODS,
    SETTINGS,
    SPEC,
    Kubelet,
    condition,
    keys,
    put_node,
    rejected,
    results_of,
    told,
    undecided,
)

from nodeproof.gate import dispatch
from nodeproof.gate.controller import Controller
from nodeproof.gate.kube import Kube
from nodeproof.gate.settings import Draining
from nodeproof.results import parse
from nodeproof.verdict import decide
from tests import real_cluster
from tests.apiserver.server import serving
from tests.apiserver.store import NODES, Status, Store


class Site:
    """One cluster with one controller, driven look by look."""

    def __init__(self, server, store, clock):
        self.server, self.store, self.clock = server, store, clock
        self.kubelet = Kubelet(store)
        self.controller = self.another()

    def another(self, settings=SETTINGS):
        controller = Controller(
            Kube(self.server.client()), settings, SPEC, MANIFEST, clock=self.clock
        )
        controller.start()
        return controller

    def node(self, name="a"):
        return self.store.get(f"{NODES}/{name}")

    def look(self, name="a", controller=None):
        """Let the controller see everything there is, then look at one node."""
        controller = controller or self.controller
        for kind, cache in controller.caches.items():
            wanted = {
                o["metadata"]["uid"]: o["metadata"]["resourceVersion"]
                for o in self.store.objects(kind)
                if o["metadata"].get("namespace") in {None, NAMES.namespace}
            }
            deadline = time.monotonic() + 10
            while cache.known() != wanted:
                assert time.monotonic() < deadline, f"{kind}: {cache.known()} is not {wanted}"
                time.sleep(0.002)
        return controller.look(self.node(name)["metadata"]["uid"])

    def settle(self, name="a", controller=None, looks=6):
        for _ in range(looks):
            before = self.store.version
            self.look(name, controller)
            if self.store.version == before:
                break
        return self.node(name)

    def job(self):
        [job] = [
            j for j in self.store.objects("jobs") if not (j.get("status") or {}).get("conditions")
        ]
        return job


class Clock:
    def __init__(self, now=1_800_000_000.0):
        self.now = now

    def __call__(self):
        return self.now


@pytest.fixture(params=["fake", "real"])
def site(request):
    if request.param == "real":
        if real_cluster.assets() is None:
            pytest.skip("KUBEBUILDER_ASSETS names no directory with kube-apiserver and etcd")
        server = real_cluster.shared()
        server.store.clear()
        server.store.clock = clock = Clock(time.time())  # its own clock stamps what is made
        made = Site(server, server.store, clock)
        yield made
        made.controller.stop()
        return
    clock = Clock()
    store = Store(clock=clock)
    with serving(store) as server:
        made = Site(server, store, clock)
        yield made
        made.controller.stop()


def proved(site, *run, **how):
    """A node up to the end of its first test."""
    put_node(site.store, "a")
    site.settle()
    site.kubelet.start()
    site.kubelet.finish(site.job(), *run, **how)
    return site.settle()


def test_a_node_that_proves_itself_is_released_for_this_boot(site):
    node = proved(site)
    assert keys(node) == {"nvidia.com/gpu"}
    said = condition(node)
    assert (said["status"], said["reason"]) == ("True", "AllChecksPassed")
    boot = node["status"]["nodeInfo"]["bootID"]
    assert said["message"].startswith(f"boot {boot};")
    assert node["metadata"]["annotations"][NAMES.accepted_boot] == boot
    assert {e["reason"] for e in site.store.objects("events")} == {"Accepted"}


def test_until_then_it_is_held_and_says_why(site):
    put_node(site.store, "a")
    node = site.settle()
    assert PENDING["key"] in keys(node)
    assert (condition(node)["status"], condition(node)["reason"]) == ("Unknown", "Testing")


def test_a_node_that_is_condemned_is_quarantined_and_says_for_what(site):
    node = proved(site, rejected())
    assert keys(node) == {"nvidia.com/gpu", NAMES.pending, NAMES.quarantined}
    said = condition(node)
    assert (said["status"], said["reason"]) == ("False", "HardwareCondemned")
    assert "device.memory.pattern" in said["message"]
    site.clock.now += 90_000  # past the time to live of its Job, and of everybody's patience
    site.store.delete(
        f"/apis/batch/v1/namespaces/{NAMES.namespace}/jobs/{site.store.objects('jobs')[0]['metadata']['name']}"
    )
    assert condition(site.settle())["status"] == "False"
    assert site.store.objects("jobs") == []


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"code": 1, "message": "", "log": "Traceback"}, "ResultMissing"),
        ({"code": 0, "message": ""}, "ResultMissing"),
        ({"code": 0, "message": "accept"}, "ResultInvalid"),
        ({"code": 0, "log": "all good"}, "ResultInvalid"),
        ({"code": 137, "message": "", "reason": "OOMKilled"}, "TestCrashed"),
        ({"code": 143, "message": "", "reason": "Evicted"}, "TestEvicted"),
        ({"code": 143, "message": "", "reason": "DeadlineExceeded"}, "TestTimedOut"),
        ({"image": "sha256:" + "2e" * 32}, "ResultForeign"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_whatever_ends_the_test_pod_leaves_the_taint_and_names_the_reason(site, how, reason):
    node = proved(site, **how)
    assert NAMES.pending in keys(node)
    assert (condition(node)["status"], condition(node)["reason"]) == ("Unknown", reason)


def forged(site, *, nonce=None, uid=None, name=None, verdict=None, run=None):
    """End a Job with what would be sound evidence elsewhere or at another time."""
    job, node = site.job(), site.node()
    metadata = node["metadata"]
    elsewhere = {"uid": uid or metadata["uid"], "name": name or metadata["name"]}
    annotations = dict(job["metadata"]["annotations"])
    annotations[NAMES.label("nonce")] = nonce or told(job, "nonce")
    data = results_of(
        {"metadata": {"annotations": annotations}},
        {**node, "metadata": {**metadata, **elsewhere}},
        run,
    )
    document = decide(parse(data), MANIFEST).document()
    message = dispatch.message({**document, **({"verdict": verdict} if verdict else {})}, data)
    log = "\n".join(dispatch.packed(data))
    site.kubelet.finish(job, code=0, message=message, log=log)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"nonce": "of-another-run"}, "nonce is of-another-run"),
        ({"uid": "of-another-node"}, "node uid is of-another-node"),
        ({"name": "b"}, "node name is b"),
        ({"run": rejected(), "verdict": "accept"}, "the message says accept, the results reject"),
    ],
    ids=["stale nonce", "wrong uid", "wrong node", "forged message"],
)
def test_sound_evidence_of_something_else_releases_nothing(site, how, said):
    put_node(site.store, "a")
    site.settle()
    site.kubelet.start()
    forged(site, **how)
    node = site.settle()
    assert NAMES.pending in keys(node)
    assert (condition(node)["status"], condition(node)["reason"]) == ("Unknown", "ResultForeign")
    assert said in condition(node)["message"]


@pytest.mark.parametrize(
    ("why", "reason"),
    [("BackoffLimitExceeded", "TestPodLost"), ("DeadlineExceeded", "TestTimedOut")],
)
def test_a_test_pod_that_is_deleted_leaves_the_taint_and_names_the_reason(site, why, reason):
    put_node(site.store, "a")
    site.settle()
    [pod] = site.kubelet.start()
    site.store.delete(f"{PODS}/{pod['metadata']['name']}")
    site.kubelet.end_job(site.job(), failed=True, reason=why)
    node = site.settle()
    assert NAMES.pending in keys(node)
    assert (condition(node)["status"], condition(node)["reason"]) == ("Unknown", reason)


def test_a_job_that_is_deleted_is_made_again_and_counts_as_the_same_attempt(site):
    put_node(site.store, "a")
    site.settle()
    first = site.job()["metadata"]
    site.store.delete(f"{JOBS}/{first['name']}")
    site.settle()
    again = site.job()["metadata"]
    assert (again["name"], again["uid"] == first["uid"]) == (first["name"], False)


def test_a_node_of_the_same_name_is_another_node(site):
    """Accepted, deleted and registered anew: what proved the first proves nothing of the second."""
    proved(site)
    site.store.delete(f"{NODES}/a")
    put_node(site.store, "a")
    node = site.settle()
    assert NAMES.pending in keys(node)
    assert condition(node)["reason"] == "Testing"
    assert told(site.job(), "node-uid") == node["metadata"]["uid"]


def test_a_rejected_node_that_is_asked_for_again_is_released_if_it_passes(site):
    node = proved(site, rejected())
    assert NAMES.quarantined in keys(node)
    word = {NAMES.requalify: "after-repair"}
    site.store.change(f"{NODES}/a", lambda n: n["metadata"]["annotations"].update(word))
    site.settle()
    site.kubelet.start()
    site.kubelet.finish(site.job())
    node = site.settle()
    assert keys(node) == {"nvidia.com/gpu"}
    assert condition(node)["status"] == "True"
    assert node["metadata"]["annotations"][NAMES.requalified] == "after-repair"


def test_an_undecided_node_is_tested_again_a_bounded_number_of_times(site):
    proved(site, undecided())
    for _ in range(2):
        assert condition(site.node())["reason"] == "Undecided"
        site.clock.now += 300
        site.settle()
        site.kubelet.start()
        site.kubelet.finish(site.job(), undecided())
        site.settle()
    for _ in range(3):
        site.clock.now += 4000
        site.settle()
    node = site.node()
    assert (condition(node)["status"], condition(node)["reason"]) == (
        "Unknown",
        "UndecidedTooOften",
    )
    assert len(site.store.objects("jobs")) == SETTINGS.attempts
    assert NAMES.pending in keys(node)
    assert NAMES.quarantined not in keys(node)


def test_a_reboot_takes_the_acceptance_and_needs_another(site):
    proved(site)
    site.store.change(f"{NODES}/a", lambda n: n["status"]["nodeInfo"].update(bootID="another"))
    node = site.settle()
    assert NAMES.pending in keys(node)
    assert condition(node)["message"].startswith("boot another;")
    site.kubelet.start()
    site.kubelet.finish(site.job())
    assert NAMES.pending not in keys(site.settle())


def test_a_node_that_a_monitor_suspects_is_tested_again_once(site):
    proved(site)
    row = {"type": "NodeproofSuspect", "status": "True", "reason": "GpuFaultSeen"}
    row |= {"message": "GPU 0000:0f:00.0: xid 79", "lastTransitionTime": site.store.stamp()}
    site.store.change(f"{NODES}/a", lambda n: n["status"]["conditions"].append(row))
    node = site.settle()
    assert NAMES.pending in keys(node)
    suspected = [e for e in site.store.objects("events") if e["reason"] == "Suspected"]
    assert [row["message"] in e["message"] for e in suspected] == [True]
    site.kubelet.start()
    site.kubelet.finish(site.job())
    node = site.settle()
    assert keys(node) == {"nvidia.com/gpu"}
    assert condition(node)["status"] == "True"
    assert len(site.store.objects("jobs")) == 2
    assert site.settle()["metadata"]["resourceVersion"] == node["metadata"]["resourceVersion"]


def test_a_node_that_reboots_while_it_is_tested_is_not_released_by_the_old_test(site):
    put_node(site.store, "a")
    site.settle()
    job = site.job()
    site.kubelet.start()
    site.kubelet.finish(job)
    site.store.change(f"{NODES}/a", lambda n: n["status"]["nodeInfo"].update(bootID="another"))
    node = site.settle()
    assert NAMES.pending in keys(node)
    assert told(site.job(), "boot-id") == "another"


def refusing(store, monkeypatch, path, code, text="not allowed by policy"):
    """Let a policy of the server refuse writes to a path."""
    real_patch, real_create = store.patch, store.create

    def patch(at, content, body):
        if at == path and content == "application/json-patch+json":
            raise Status(code, text)
        return real_patch(at, content, body)

    def create(at, body):
        if at == path:
            raise Status(code, text)
        return real_create(at, body)

    monkeypatch.setattr(store, "patch", patch)
    monkeypatch.setattr(store, "create", create)


@pytest.fixture
def fake():
    clock = Clock()
    store = Store(clock=clock)
    with serving(store) as server:
        made = Site(server, store, clock)
        yield made
        made.controller.stop()


@pytest.mark.parametrize("code", [403, 422])
def test_a_job_that_the_server_does_not_take_is_said_on_the_node(fake, monkeypatch, code):
    put_node(fake.store, "a")
    with monkeypatch.context() as policy:
        refusing(fake.store, policy, JOBS, code)
        assert fake.look().wake_s >= 10
        before = fake.node()
        assert condition(before)["reason"] == "JobRefused"
        assert "not allowed by policy" in condition(before)["message"]
        fake.look()
        assert fake.node() == before  # said once
    fake.settle()
    assert condition(fake.node())["reason"] == "Testing"
    assert fake.job()


def test_a_lift_that_a_policy_goes_on_refusing_is_told_and_tried_less_often(fake, monkeypatch):
    """A policy answers 422 as a node does that has moved."""
    with monkeypatch.context() as policy:
        refusing(fake.store, policy, f"{NODES}/a", 422)
        node = proved(fake)
        assert NAMES.pending in keys(node)
        wakes = [fake.look().wake_s for _ in range(8)]
        assert wakes[0] < wakes[-1] == 10
        [event] = [e for e in fake.store.objects("events") if e["reason"] == "WriteRefused"]
        assert "not allowed by policy" in event["message"]
    assert NAMES.pending not in keys(fake.settle())


def test_a_quarantine_that_a_policy_goes_on_refusing_is_said_and_told(fake, monkeypatch):
    with monkeypatch.context() as policy:
        refusing(fake.store, policy, f"{NODES}/a", 403)
        put_node(fake.store, "a")
        fake.settle()
        fake.kubelet.start()
        fake.kubelet.finish(fake.job(), rejected())
        for _ in range(8):
            fake.look()
        said = condition(fake.node())
        assert (said["status"], said["reason"]) == ("Unknown", "WriteRefused")
        assert "not allowed by policy" in said["message"]
        reasons = {e["reason"] for e in fake.store.objects("events")}
        assert {"Rejected", "WriteRefused"} <= reasons
        before = fake.store.version
        fake.look()
        assert fake.store.version == before  # said once, and the ruling written down once
    said = condition(fake.settle())
    assert (said["status"], said["reason"]) == ("False", "HardwareCondemned")
    assert NAMES.quarantined in keys(fake.node())


def test_a_ruling_that_can_not_be_written_down_is_said_on_the_node(fake, monkeypatch):
    real = fake.store.patch

    def patch(at, content, body):
        if "configmaps" in at:
            raise Status(403, "no right to configmaps")
        return real(at, content, body)

    put_node(fake.store, "a")
    fake.settle()
    fake.kubelet.start()
    fake.kubelet.finish(fake.job(), rejected())
    with monkeypatch.context() as policy:
        policy.setattr(fake.store, "patch", patch)
        for _ in range(6):
            fake.look()
        assert condition(fake.node())["reason"] == "WriteRefused"
        assert NAMES.quarantined not in keys(fake.node())
    assert condition(fake.settle())["reason"] == "HardwareCondemned"


def test_what_holds_a_verdict_is_not_said_over(fake, monkeypatch):
    """Whatever is refused of it later: by that condition a node is released, or not tested again."""
    proved(fake)
    node = fake.settle()
    assert condition(node)["status"] == "True"
    fake.store.change(f"{NODES}/a", lambda n: n["status"]["nodeInfo"].update(bootID="another"))
    with monkeypatch.context() as policy:
        refusing(fake.store, policy, f"{NODES}/a", 403)
        for _ in range(8):
            fake.look()
        assert condition(fake.node()) == condition(node)


def test_one_that_stood_still_while_another_took_over_writes_nothing(fake):
    """Between any two writes: what it had planned is the other's by then."""
    leads = [True]
    controller = Controller(
        Kube(fake.server.client()),
        dataclasses.replace(SETTINGS, draining=Draining.EVICT),
        SPEC,
        MANIFEST,
        clock=fake.clock,
        leads=lambda: leads[0],
    )
    controller.start()
    put_node(fake.store, "a")
    for name in ("x", "y"):
        fake.store.create("/api/v1/namespaces/team/pods", tenant(name))

    def interfere(verb, path, when):
        if path.endswith("/eviction") and when == "after":
            leads[0] = False

    fake.server.interfere = interfere
    fake.look(controller=controller)
    fake.server.interfere = lambda *_: None
    fake.look(controller=controller)
    leaving = [p["metadata"].get("deletionTimestamp") for p in fake.store.objects("pods")]
    assert [bool(at) for at in leaving] == [True, False]
    controller.stop()


def test_a_pod_that_has_the_name_of_one_that_left_is_not_evicted(fake):
    settings = dataclasses.replace(SETTINGS, draining=Draining.EVICT)
    controller = fake.another(settings)
    put_node(fake.store, "a")
    fake.store.create("/api/v1/namespaces/team/pods", tenant("x"))
    at = "/api/v1/namespaces/team/pods/x"

    def interfere(verb, path, when):
        if path.endswith("/eviction") and when == "before":
            fake.store.delete(at)
            moved = tenant("x")
            moved["spec"]["nodeName"] = "elsewhere"
            fake.store.create("/api/v1/namespaces/team/pods", moved)

    fake.server.interfere = interfere
    fake.look(controller=controller)
    assert "/eviction" in str(fake.server.wrote)
    assert "deletionTimestamp" not in fake.store.get(at)["metadata"]
    controller.stop()


def tenant(name):
    limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {
        "metadata": {"name": name},
        "spec": {"nodeName": "a", "containers": [{"name": "x", "image": "x", **limits}]},
        "status": {"phase": "Running"},
    }


def test_one_node_that_nobody_can_judge_does_not_stop_the_gate_for_others(fake, caplog):
    """Whatever breaks on what a node wrote, the node says so and is tested again."""
    manifest, fake.controller._manifest = fake.controller._manifest, None
    proved(fake)
    assert "AttributeError" in caplog.text
    assert NAMES.pending in keys(fake.node())
    said = condition(fake.node())
    assert said["reason"] == "ResultInvalid"
    assert "can't be judged" in said["message"]
    fake.controller._manifest = manifest
    put_node(fake.store, "b")
    fake.look("b")
    fake.settle("b")
    assert condition(fake.node("b"))["reason"] == "Testing"
    fake.clock.now += 3600
    assert condition(fake.settle("a"))["reason"] == "Testing"
