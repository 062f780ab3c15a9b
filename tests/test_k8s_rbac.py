"""What the controller may do is what it does: each request it makes is granted, and nothing else is."""

from __future__ import annotations

import dataclasses
import re
import time

import gate_group_life
import pytest
from gate_cluster import MANIFEST, NAMES, SETTINGS, SPEC, Kubelet, put_node, rejected
from k8s_tree import built, one
from kubernetes import client

from nodeproof.gate.controller import Controller
from nodeproof.gate.kube import Kube
from nodeproof.gate.settings import Draining
from tests.apiserver.server import serving
from tests.apiserver.store import NODES, Store

_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/v1"
    r"(?:/namespaces/(?P<space>[^/]+))?/(?P<resource>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<sub>[^/]+))?)?"
)
_VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete", "PUT": "update"}
GATE = ("nodeproof-system", "nodeproof-controller")


def ask(method, path):
    """A request as an authoriser sees it: verb, group, resource, namespace and name."""
    found = _PATH.fullmatch(path)
    assert found, path
    named = found["name"]
    verb = _VERBS.get(method) or ("watch" if method == "WATCH" else "get" if named else "list")
    resource = found["resource"] + (f"/{found['sub']}" if found["sub"] else "")
    return verb, found["group"] or "", resource, found["space"] or "", named or ""


def rules(objects, user=GATE):
    """Every right of a service account: namespace or "" for all, group, resource, name or "", verb."""
    for binding in objects:
        if binding["kind"] not in {"ClusterRoleBinding", "RoleBinding"}:
            continue
        if user not in {(s["namespace"], s["name"]) for s in binding["subjects"]}:
            continue
        role = one(objects, binding["roleRef"]["kind"], binding["roleRef"]["name"])
        space = "" if binding["kind"] == "ClusterRoleBinding" else binding["metadata"]["namespace"]
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for name in rule.get("resourceNames", [""]):
                        for verb in rule["verbs"]:
                            yield space, group, resource, name, verb


def grants(rule, request):
    space, group, resource, name, verb = rule
    return (
        (verb, group, resource) == request[:3]
        and space in {"", request[3]}
        and name in {"", request[4]}
    )


class Life:
    """Everything that a controller asks of a server, from its start over an accept and a reject."""

    def __init__(self, *, draining):
        self.now = 1_800_000_000.0
        self.store = Store(clock=lambda: self.now)
        self.kubelet = Kubelet(self.store)
        self.settings = dataclasses.replace(SETTINGS, draining=draining)

    def requests(self):
        with serving(self.store) as server:
            for _ in range(2):  # a second start finds what the first one left
                self.controller = Controller(
                    Kube(server.client()), self.settings, SPEC, MANIFEST, clock=lambda: self.now
                )
                self.controller.start()
                self.live("a" if _ == 0 else "b")
                self.controller.stop()
            self.elect(server)
            return {ask(m, p) for m, p, _ in server.wrote} | {ask(*r) for r in server.reads}

    def live(self, name):
        put_node(self.store, name)
        self.tenant(name)
        self.settle(name)  # waits for its tenant
        self.leave(name)
        self.settle(name)
        self.kubelet.start()
        self.settle(name)
        # A reboot makes the test stale, so that it is removed.
        self.store.change(
            f"{NODES}/{name}", lambda n: n["status"]["nodeInfo"].update(bootID=f"{name}-2")
        )
        self.settle(name)
        self.finish()
        self.settle(name)
        self.store.change(
            f"{NODES}/{name}", lambda n: n["status"]["nodeInfo"].update(bootID=f"{name}-3")
        )
        self.settle(name)
        self.finish(rejected())
        self.settle(name)
        again = {NAMES.requalify: "again"}
        self.store.change(f"{NODES}/{name}", lambda n: n["metadata"]["annotations"].update(again))
        self.settle(name)
        self.finish(rejected())
        self.settle(name)

    def finish(self, *run):
        self.kubelet.start()
        for job in self.store.objects("jobs"):
            if not (job.get("status") or {}).get("conditions"):
                self.kubelet.finish(job, *run)

    def tenant(self, name):
        gpu = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        pod = {
            "metadata": {"name": f"tenant-{name}"},
            "spec": {"nodeName": name, "containers": [gpu]},
            "status": {"phase": "Running"},
        }
        self.store.create("/api/v1/namespaces/team/pods", pod)

    def leave(self, name):
        self.store.delete(f"/api/v1/namespaces/team/pods/tenant-{name}")
        self.now += 60

    def settle(self, name):
        uid = self.store.get(f"{NODES}/{name}")["metadata"]["uid"]
        for _ in range(8):
            before = self.store.version
            self.seen()
            self.controller.look(uid)
            if self.store.version == before:
                break

    def seen(self):
        """Wait until the controller has seen everything that there is."""
        for kind, cache in self.controller.caches.items():
            wanted = {
                o["metadata"]["uid"]: o["metadata"]["resourceVersion"]
                for o in self.store.objects(kind)
                if kind != "pods" or o["metadata"].get("namespace") == NAMES.namespace
            }
            deadline = time.monotonic() + 20
            while cache.known() != wanted:
                assert time.monotonic() < deadline, kind
                time.sleep(0.002)

    def elect(self, server):
        """What the client's election asks: get, create and renew the Lease."""
        from kubernetes.leaderelection.leaderelectionrecord import LeaderElectionRecord
        from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock

        from nodeproof.gate.leading import NAME

        lock = LeaseLock(NAME, NAMES.namespace, "one")
        lock.api_instance = client.CoordinationV1Api(server.client())
        stamp = "2026-11-30 11:00:00.000000"
        lock.get(NAME, NAMES.namespace)
        made = lock.create(NAME, NAMES.namespace, LeaderElectionRecord("one", "15", stamp, stamp))
        assert made
        got, record = lock.get(NAME, NAMES.namespace)
        assert got
        lock.update(NAME, NAMES.namespace, record)  # what is asked counts, not the answer


@pytest.fixture(scope="module")
def asked():
    return Life(draining=Draining.WAIT).requests()


@pytest.fixture(scope="module")
def asked_with_evict():
    return Life(draining=Draining.EVICT).requests()


def test_a_life_asks_for_everything_that_the_gate_can_do(asked):
    """Or what follows would prove little."""
    verbs = {(verb, resource) for verb, _, resource, _, _ in asked}
    assert {
        ("create", "jobs"), ("delete", "jobs"), ("get", "pods/log"), ("patch", "nodes"),
        ("patch", "nodes/status"), ("create", "events"), ("patch", "configmaps"),
        ("get", "configmaps"), ("update", "leases"), ("watch", "pods"), ("list", "pods"),
    } <= verbs  # fmt: skip


def test_each_request_is_granted(asked):
    rights = list(rules(built(".")))
    assert {r for r in asked if not any(grants(right, r) for right in rights)} == set()


def test_nodes_that_are_measured_together_need_no_other_right():
    with gate_group_life.living(group_most=2) as life:
        life.waiting("a", "b")
        life.measure()
        life.settle()
        assert life.free() == "ab"
        requests = {ask(m, p) for m, p, _ in life.server.wrote}
        requests |= {ask(*r) for r in life.server.reads}
    rights = list(rules(built(".")))
    assert ("create", "batch", "jobs", NAMES.namespace, "") in requests
    assert {r for r in requests if not any(grants(right, r) for right in rights)} == set()


def test_and_no_right_is_there_that_no_request_needs(asked):
    spare = {right for right in rules(built(".")) if not any(grants(right, r) for r in asked)}
    assert spare == set()


def test_a_right_that_names_its_objects_is_not_wider_than_those(asked):
    wide = {
        right
        for right in rules(built("."))
        if right[3] == "" and right[4] in {"get", "update", "patch"}
    }
    assert {right[2] for right in wide} == {"nodes", "nodes/status", "pods/log"}


def test_evictions_are_granted_by_their_overlay_alone(asked_with_evict):
    evictions = {r for r in asked_with_evict if r[2] == "pods/eviction"}
    assert evictions
    assert not any(grants(right, r) for right in rules(built(".")) for r in evictions)
    rights = list(rules(built("overlays/evict")))
    assert {r for r in asked_with_evict if not any(grants(right, r) for right in rights)} == set()
    assert {r for r in rights if not any(grants(r, a) for a in asked_with_evict)} == set()


def test_the_standalone_gate_reads_and_patches_nodes_and_no_more():
    found = built("jobs/standalone")
    assert set(rules(found, ("nodeproof-system", "nodeproof-standalone"))) == {
        ("", "", "nodes", "", "get"),
        ("", "", "nodes", "", "patch"),
        ("", "", "nodes/status", "", "patch"),
    }
    assert set(rules(found)) == set()


def test_the_watch_reads_and_patches_nodes_and_no_more():
    found = built("integrations/watch")
    assert set(rules(found, ("nodeproof-watch", "nodeproof-watch"))) == {
        ("", "", "nodes", "", "get"),
        ("", "", "nodes", "", "patch"),
    }


def test_no_role_has_a_wildcard_and_nobody_has_break_glass():
    for folder in (".", "overlays/evict", "jobs/standalone", "integrations/watch"):
        objects = built(folder)
        roles = [o for o in objects if o["kind"] in {"Role", "ClusterRole"}]
        assert all("*" not in str(r["rules"]) for r in roles)
        bound = {o["roleRef"]["name"] for o in objects if o["kind"].endswith("RoleBinding")}
        assert "nodeproof-break-glass" not in bound
        assert bound == {r["metadata"]["name"] for r in roles} - {"nodeproof-break-glass"}
