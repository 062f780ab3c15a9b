"""The policies in a real API server, which adds to CEL what no runtime of CEL has.

The cases are those of test_k8s_policies.py, and the server has to refuse for a reason that the CEL
runtime gives, too. Everybody comes with the rights of his own: what is admitted here works in a
cluster.
"""

from __future__ import annotations

import copy
import re

import policy_cluster
import pytest
from gate_cluster import GPU, NAMES, condition, keys
from gate_life import SECOND, Life, accepted
from k8s_cases import (
    ALL,
    ALONE,
    GATE,
    GPUS,
    KUBELET,
    MAIN,
    OURS,
    PODS,
    PROVED,
    READINESS,
    RELEASE,
    STATUS,
    but,
    drops,
    node,
    pod,
    says,
    stamps,
)
from k8s_policies import Admission
from k8s_shapes import SHAPES, SHIPPED
from k8s_tree import K8S, built, documents
from policy_cluster import AGENT, HOME, MASTERS, TESTS_GPUS, name_of, whole

from tests import real_cluster
from tests.apiserver.store import NODES
from tests.real_store import Who

NEEDS = "policies: KUBEBUILDER_ASSETS names no kube-apiserver of 1.30 or newer with its etcd"
LONE, OBSERVE = "jobs/standalone", "overlays/observe"
RULES, LONE_RULES = Admission(built(".")), Admission(built(LONE))
READY_RULES = documents(K8S / "integrations/node-readiness-controller/policy.yaml")
READY_TAINT = {
    "key": "readiness.k8s.io/nodeproof-accepted",
    "value": "pending",
    "effect": "NoSchedule",
}
READY = but(lambda n: n["spec"].update(taints=[READY_TAINT]), PROVED)
STALE = but(says(message="boot B0; 57"), READY)
# What the server itself takes from nobody, before it asks its policies.
INVALID = {"changes the provider", "a container added later"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if real_cluster.assets() is None:
        pytest.skip(NEEDS)
    with policy_cluster.running(tmp_path_factory.mktemp("policies")) as made:
        if not made.knows_policies:
            pytest.skip(NEEDS)
        made.furnish([*policy_cluster.states(), READY, STALE])
        yield made


@pytest.fixture
def enforced(cluster):
    cluster.install(".")
    return cluster


@pytest.fixture
def alone(cluster):
    cluster.install(LONE)
    return cluster


def agreed(answer, said, name=""):
    """Whether the server admits what the CEL runtime does, and refuses for a reason of its."""
    if not said:
        return answer.admitted
    if name in INVALID:
        return answer.status == 422
    found = re.search(r"Policy '(.*?)' with binding '.*?' denied request: (.*)", answer.message)
    return answer.status in {403, 422} and bool(found) and f"{found[1]}: {found[2]}" in said


@pytest.mark.parametrize("case", STATUS, ids=[c[0] for c in STATUS])
def test_a_write_of_the_status(enforced, case):
    name, who, state, how, _ = case
    answer = enforced.by(who, state, how, sub="status")
    assert agreed(answer, RULES.refused(who, state, but(how, state), sub="status"), name), answer


@pytest.mark.parametrize("case", MAIN, ids=[c[0] for c in MAIN])
def test_a_write_of_the_node(enforced, case):
    name, who, state, how, _ = case
    answer = enforced.by(who, state, how)
    assert agreed(answer, RULES.refused(who, state, but(how, state)), name), answer


REGISTERS = {
    "plainly": lambda _: None,
    "without a status": lambda n: n.pop("status"),
    "without annotations": lambda n: n["metadata"].pop("annotations"),
    "accepted": says(),
    "stamped": stamps(),
}


@pytest.mark.parametrize("how", REGISTERS.values(), ids=REGISTERS)
def test_a_kubelet_registers_its_node(enforced, how):
    new = but(how)
    new["metadata"]["name"] = "n-new"
    kubelet = Who(name="system:node:n-new", groups=("system:nodes",))
    answer = enforced.store.answer("POST", f"{NODES}?dryRun=All", new, who=kubelet)
    assert agreed(answer, RULES.refused(kubelet.name, None, new)), answer


@pytest.mark.parametrize("case", PODS, ids=[c[0] for c in PODS])
def test_a_pod(enforced, case):
    _, new, _ = case
    answer = enforced.pod(new, "default")
    assert agreed(answer, RULES.refused("u", None, new, resource="pods")), answer
    assert enforced.pod(new, TESTS_GPUS).admitted


@pytest.mark.parametrize("name", SHIPPED)
def test_every_pod_that_ships_may_run_in_the_gates_namespace(enforced, name):
    answer = enforced.pod(SHIPPED[name], HOME)
    assert answer.admitted, answer


@pytest.mark.parametrize("case", SHAPES, ids=[c[0] for c in SHAPES])
def test_no_pod_there_takes_more_of_a_node_than_a_test(enforced, case):
    name, new, _ = case
    labels = {"kubernetes.io/metadata.name": HOME, "nodeproof.dev/may-tolerate": "true"}
    said = RULES.refused("u", None, new, resource="pods", labels=labels)
    answer = enforced.pod(new, HOME)
    assert agreed(answer, said, name), answer


# --- what has nothing to do with the gate ------------------------------------------------------


LIFECYCLE = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
LIFECYCLE_CONTROLLER = "system:serviceaccount:kube-system:node-controller"
ORDINARY = {
    "a node is cordoned": ("admin", lambda n: n["spec"].update(unschedulable=True), ""),
    "a node is tainted by its lifecycle": (
        LIFECYCLE_CONTROLLER,
        lambda n: n["spec"]["taints"].append(LIFECYCLE),
        "",
    ),
    "a kubelet beats": (
        KUBELET,
        lambda n: n["status"]["conditions"][0].update(lastHeartbeatTime="2026-01-01T00:00:00Z"),
        "status",
    ),
    "a kubelet tells of another GPU": (
        KUBELET,
        lambda n: n["status"]["capacity"].update({"nvidia.com/gpu": "7"}),
        "status",
    ),
    "an agent says a condition of its own": (
        AGENT,
        lambda n: n["status"]["conditions"].append({"type": "Other", "status": "True"}),
        "status",
    ),
}


@pytest.mark.parametrize("name", ORDINARY)
@pytest.mark.parametrize("state", [node(), PROVED], ids=["held", "proved"])
def test_what_is_no_business_of_the_gate_goes_on(enforced, name, state):
    who, how, sub = ORDINARY[name]
    answer = enforced.by(who, state, how, sub)
    assert answer.admitted, answer
    assert answer.warnings == ()


def test_an_ordinary_pod_lives_and_goes(enforced):
    """Made, bound, running, with a container for debugging, and without its finalizer again."""
    store, at = enforced.store, "/api/v1/namespaces/default/pods"
    made = whole(pod([{"operator": "Exists"}]))
    made["metadata"] = {"name": "plain", "finalizers": ["example.com/f"]}
    made["spec"]["nodeName"] = name_of(node())
    store.create(at, {**made, "status": {"phase": "Running"}})
    debug = {"name": "debug", "image": "x"}
    add = {"op": "add", "path": "/spec/ephemeralContainers", "value": [debug]}
    who = Who(name="somebody", groups=MASTERS)
    assert enforced.patch(who, f"{at}/plain/ephemeralcontainers", [add]).admitted
    store.ask("DELETE", f"{at}/plain", {"gracePeriodSeconds": 0})
    store.change(f"{at}/plain", lambda p: p["metadata"].update(finalizers=[]))
    assert store.answer("GET", f"{at}/plain").status == 404


def test_a_pod_that_takes_gpus_gains_no_toleration_later(enforced):
    store, at = enforced.store, "/api/v1/namespaces/default/pods"
    made = whole(pod([], limits=GPUS))
    made["metadata"] = {"name": "worker"}
    store.create(at, made)
    add = [{"op": "add", "path": "/spec/tolerations/-", "value": t} for t in (*OURS, *ALL)]
    for op in add:
        answer = enforced.patch(Who(name="somebody", groups=MASTERS), f"{at}/worker", [op])
        assert "pods that take GPUs may not tolerate" in answer.message
    label = {"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}
    assert enforced.patch(Who(name="somebody", groups=MASTERS), f"{at}/worker", [label]).admitted
    store.delete(f"{at}/worker")


def test_nothing_is_added_to_a_test_pod_while_it_runs(enforced):
    store, at = enforced.store, f"/api/v1/namespaces/{HOME}/pods"
    made = copy.deepcopy(SHIPPED["node-acceptance"])
    made["metadata"] = {"name": "test"}
    store.create(at, made)
    debug = {"name": "debug", "image": "x", "targetContainerName": "nodeproof"}
    add = {"op": "add", "path": "/spec/ephemeralContainers", "value": [debug]}
    who = Who(name="somebody", groups=MASTERS)
    answer = enforced.patch(who, f"{at}/test/ephemeralcontainers", [add])
    assert "nothing is added to a pod of the gate while it runs" in answer.message
    store.delete(f"{at}/test")


def test_a_node_goes_as_it_likes(enforced):
    where = f"{NODES}/{name_of(node())}?dryRun=All"
    who = Who(name=LIFECYCLE_CONTROLLER)
    assert enforced.store.answer("DELETE", where, who=who).admitted


# --- break glass -------------------------------------------------------------------------------


def test_break_glass_is_for_whom_it_was_bound_to_and_passes_the_lock_alone(enforced):
    """By the person's own token; an impersonator has only what it impersonates."""
    store, name = enforced.store, "system:serviceaccount:default:smith"
    store.apply(_person("smith"))
    token = store.ask("POST", "/api/v1/namespaces/default/serviceaccounts/smith/token", {})
    plainly = Who(token=token["status"]["token"])
    glass = Who(name=name, groups=("nodeproof:break-glass",), token=plainly.token)
    state, lift = node(), drops(NAMES.pending)
    assert "only the gate lifts" in enforced.node(plainly, state, lift).message
    refused = enforced.node(glass, state, lift)
    assert refused.status == 403
    assert "cannot impersonate" in refused.message
    store.apply([_bound("smith", "nodeproof-break-glass")])
    enforced.until(lambda: enforced.node(glass, state, lift).admitted, "let through")
    forged = enforced.node(glass, state, says(), sub="status")
    assert "only the gate writes" in forged.message


def _person(name):
    """Somebody who may change nodes and speak in his own name, as an administrator may."""
    rules = [
        {"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["get", "patch"]},
        {
            "apiGroups": [""],
            "resources": ["serviceaccounts"],
            "resourceNames": [name],
            "verbs": ["impersonate"],
        },
    ]
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _in_default(name)}
    kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
    yield {**kind, "metadata": {"name": name}, "rules": rules}
    yield _bound(name, name)


def _in_default(name):
    return {"name": name, "namespace": "default"}


def _bound(person, role):
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"{person}-{role}"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", **_in_default(person)}],
    }


# --- the standalone form and node-readiness-controller -----------------------------------------


@pytest.mark.parametrize("case", [*STATUS, *MAIN], ids=[c[0] for c in [*STATUS, *MAIN]])
def test_the_standalone_gate_is_held_to_the_same_rules(alone, case):
    name, who, state, how, _ = case
    sub = "status" if case in STATUS else ""
    who = {GATE: ALONE, ALONE: GATE}.get(who, who)
    said = LONE_RULES.refused(who, state, but(how, state), sub=sub, node="n1")
    answer = alone.by(who, state, how, sub)
    assert agreed(answer, said, name), answer


@pytest.mark.parametrize("claim", ["n2", None, ""])
def test_a_token_that_names_another_node_or_none_changes_nothing(alone, claim):
    who = Who(name=ALONE, node=claim)
    for state, how, sub in ((node(), says(), "status"), (PROVED, RELEASE, "")):
        answer = alone.node(who, state, how, sub)
        assert answer.status == 403
        assert "the node that its token names" in answer.message


def test_the_token_of_a_pod_names_its_node(alone):
    """As a kubelet asks for it: bound to the pod, which is bound to the node."""
    store, at = alone.store, f"/api/v1/namespaces/{HOME}"
    made = policy_cluster.whole({**SHIPPED["job"], "metadata": {"name": "alone"}})
    made["spec"]["nodeName"] = name_of(PROVED)
    uid = store.create(f"{at}/pods", made)["metadata"]["uid"]
    of_pod = {"kind": "Pod", "apiVersion": "v1", "name": "alone", "uid": uid}
    path = f"{at}/serviceaccounts/nodeproof-standalone/token"
    bound, loose = (
        Who(token=store.ask("POST", path, {"spec": spec})["status"]["token"])
        for spec in ({"boundObjectRef": of_pod}, {})
    )
    assert alone.node(bound, PROVED, RELEASE).admitted
    assert alone.node(bound, PROVED, says(message="boot B1; 58"), "status").admitted
    wanted = "the node that its token names"
    assert wanted in alone.node(bound, node(), says(), "status").message
    assert wanted in alone.node(loose, PROVED, RELEASE).message
    store.delete(f"{at}/pods/alone")
    alone.until(lambda: alone.node(bound, PROVED, RELEASE).status == 401, "unknown")


def test_the_readiness_taint_follows_our_condition_for_this_boot(enforced):
    enforced.store.apply(READY_RULES)
    lift = drops(READY_TAINT["key"])
    enforced.until(lambda: not enforced.by("admin", READY, lift).admitted, "refused")
    assert "only node-readiness-controller" in enforced.by("admin", READY, lift).message
    assert enforced.by(READINESS, READY, lift).admitted
    assert "not accepted for the boot" in enforced.by(READINESS, STALE, lift).message


# --- the gate itself ---------------------------------------------------------------------------


@pytest.fixture
def life(enforced):
    made = Life(enforced.server, enforced.store)
    yield made
    made.close()
    for plural in ("jobs", "pods", "nodes"):
        for found in enforced.store.objects(plural):
            name, space = (found["metadata"].get(k) for k in ("name", "namespace"))
            if space == HOME:
                base = "/apis/batch/v1" if plural == "jobs" else "/api/v1"
                enforced.store.delete(f"{base}/namespaces/{space}/{plural}/{name}")
            elif name == "a":
                enforced.store.delete(f"{NODES}/a")


def test_a_node_is_held_tested_released_rebooted_and_condemned_under_the_policies(life):
    accepted(life)
    assert keys(life.node()) == {GPU["key"]}
    assert condition(life.node())["status"] == "True"
    life.reboot()
    life.settle()
    assert NAMES.pending in keys(life.node())
    life.run("reject")
    life.settle()
    assert {NAMES.pending, NAMES.quarantined} <= keys(life.node())
    assert condition(life.node())["status"] == "False"
    life.ask("again")
    life.settle()
    life.run("accept")
    life.settle()
    assert keys(life.node()) == {GPU["key"]}
    assert condition(life.node())["message"].startswith(f"boot {SECOND};")
    assert life.node()["metadata"]["annotations"][NAMES.accepted_boot] == SECOND
    reasons = {e["reason"] for e in life.store.objects("events")}
    assert "WriteRefused" not in reasons


# --- the first days ----------------------------------------------------------------------------


def test_the_overlay_for_the_first_days_warns_and_notes_and_refuses_nothing(cluster):
    cluster.install(OBSERVE)
    lift = drops(NAMES.pending)
    answer = cluster.by("admin", node(), lift)
    assert answer.admitted
    assert any("only the gate lifts its taints" in w for w in answer.warnings)
    assert cluster.pod(pod(ALL, limits=GPUS), "default").warnings
    assert cluster.by(GATE, PROVED, RELEASE).warnings == ()
    note = "validation.policy.admission.k8s.io/validation_failure"
    noted = [e.get("annotations", {}).get(note, "") for e in cluster.audited()]
    assert any("nodeproof-taint-lock" in n and "only the gate lifts" in n for n in noted)
