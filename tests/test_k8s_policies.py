"""The policies: what the gate itself does is admitted, and every forgery of it is refused."""

from __future__ import annotations

import copy

import pytest
from gate_cluster import NAMES, SETTINGS, SPEC, put_node
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
    both,
    but,
    drops,
    node,
    pod,
    says,
    stamps,
    words,
)
from k8s_policies import Admission
from k8s_shapes import SHAPES, SHIPPED
from k8s_tree import K8S, built, documents

from nodeproof.gate import patches, writes
from nodeproof.gate.actions import Hold, Lift, Quarantine, Say, Stamp
from nodeproof.gate.names import Names
from nodeproof.gate.node import node_of
from nodeproof.gate.settings import Settings
from tests.apiserver.store import NODES, Store

NOW = 1_800_000_000.0

RULES = Admission(built("."))
LONE = Admission(built("jobs/standalone"))


def same(said, wanted):
    return not said if not wanted else any(wanted in line for line in said)


@pytest.mark.parametrize(
    ("who", "old", "how", "wanted"), [c[1:] for c in STATUS], ids=[c[0] for c in STATUS]
)
def test_a_write_of_the_status(who, old, how, wanted):
    said = RULES.refused(who, old, but(how, old), sub="status")
    assert same(said, wanted), said


@pytest.mark.parametrize(
    ("who", "old", "how", "wanted"), [c[1:] for c in MAIN], ids=[c[0] for c in MAIN]
)
def test_a_write_of_the_node(who, old, how, wanted):
    said = RULES.refused(who, old, but(how, old))
    assert same(said, wanted), said


def test_break_glass_passes_the_lock_and_nothing_else():
    glass = {"groups": ["nodeproof:break-glass"]}
    assert RULES.refused("admin", node(), but(drops(NAMES.pending)), **glass) == []
    assert RULES.refused("admin", node(), but(says()), sub="status", **glass)


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        (lambda _: None, ""),
        (lambda n: n.pop("status"), ""),
        (lambda n: n["metadata"].pop("annotations"), ""),
        (says(), "only the gate writes"),
        (stamps(), "only the gate stamps"),
    ],
    ids=["plainly", "without a status", "without annotations", "accepted", "stamped"],
)
def test_a_kubelet_registers_its_node(how, wanted):
    said = RULES.refused(KUBELET, None, but(how))
    assert same(said, wanted), said


def test_nodes_go_as_they_like():
    assert RULES.refused("system:serviceaccount:kube-system:node-controller", node(), None) == []


def test_the_second_startup_key_is_locked_like_the_first():
    key = "startup-taint.cluster-autoscaler.kubernetes.io/nodeproof-pending"
    held = but(lambda n: n["spec"]["taints"][0].update(key=key), PROVED)
    lifted = but(both(drops(key), stamps()), held)
    assert RULES.refused("admin", held, lifted)
    assert RULES.refused(GATE, held, lifted) == []
    assert RULES.refused(GATE, but(drops(key), held), held) == []


# --- what the gate really sends -------------------------------------------------------------


class Writer:
    """Sends the gate's own requests to a server, and asks the policies about each."""

    def __init__(self, user=GATE, rules=RULES, settings=SETTINGS, claim=None):
        self.store = Store(clock=lambda: NOW)
        self.user, self.rules, self.settings, self.claim = user, rules, settings, claim
        put_node(self.store, "n1")

    def send(self, action):
        path = f"{NODES}/n1"
        before = self.store.get(path)
        seen = node_of(before, self.settings.names)
        request = writes.request(action, seen, self.settings, SPEC, now=NOW, nonce="n")
        after = self.store.patch(request.path, request.content, request.body)
        sub = "status" if request.path.endswith("/status") else ""
        return self.rules.refused(self.user, before, after, sub=sub, node=self.claim)

    def boot(self):
        return self.store.get(f"{NODES}/n1")["status"]["nodeInfo"]["bootID"]

    def accept(self):
        said = f"boot {self.boot()}; 57 checks passed"
        return Say(status="True", reason="AllChecksPassed", message=said)


STAMPS = {NAMES.accepted_devices: "sha256:x", NAMES.verdict: "{}", NAMES.requalified: "w"}


@pytest.mark.parametrize(
    "startup", ["", "startup-taint.cluster-autoscaler.kubernetes.io/nodeproof-pending"]
)
def test_a_whole_life_as_the_gate_writes_it_is_admitted(startup):
    settings = Settings(image=SETTINGS.image, names=Names(startup=startup))
    writer = Writer(settings=settings)
    writer.store.change(f"{NODES}/n1", lambda n: n["spec"].pop("taints"))
    boot = writer.boot()
    for action in (
        Hold(),
        Say(status="Unknown", reason="Testing", message=f"boot {boot}; attempt 1 of 3 starts"),
        Quarantine(),
        Say(status="False", reason="HardwareCondemned", message=f"boot {boot}; x"),
        Stamp(stamps={NAMES.requalified: "w"}),
        writer.accept(),
        writer.accept(),
        Lift(stamps=STAMPS),
    ):
        assert writer.send(action) == [], action
    assert (
        "taints" not in writer.store.get(f"{NODES}/n1")["spec"]
        or not writer.store.get(f"{NODES}/n1")["spec"]["taints"]
    )


def test_the_lift_without_the_condition_that_comes_first_is_refused():
    writer = Writer()
    assert same(writer.send(Lift(stamps=STAMPS)), "not accepted for the boot")


def test_the_accept_of_a_boot_that_is_over_is_refused():
    writer = Writer()
    accept = writer.accept()
    writer.store.change(f"{NODES}/n1", lambda n: n["status"]["nodeInfo"].update(bootID="later"))
    assert same(writer.send(accept), "of the boot that the node is in")


@pytest.mark.parametrize("left_out", [0, 1, 2])
def test_every_part_of_the_lift_is_needed(left_out):
    writer = Writer()
    writer.send(Quarantine())
    writer.send(writer.accept())
    before = writer.store.get(f"{NODES}/n1")
    whole = patches.lift(node_of(before, NAMES), NAMES, stamps={})
    parts = [op for op in whole if op["op"] != "test"]
    assert len(parts) == 3
    rest = [op for op in whole if op is not parts[left_out]]
    after = writer.store.patch(f"{NODES}/n1", writes.JSON_PATCH, rest)
    assert RULES.refused(GATE, before, after)


# --- pods -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("new", "wanted"), [c[1:] for c in PODS], ids=[c[0] for c in PODS])
def test_a_pod(new, wanted):
    assert same(RULES.refused("u", None, new, resource="pods"), wanted)
    may = {"nodeproof.dev/may-tolerate": "true"}
    assert RULES.refused("u", None, new, resource="pods", labels=may) == []


def test_a_pod_from_before_may_lose_its_finalizer_and_gain_no_toleration():
    before = {**pod(ALL, limits=GPUS), "metadata": {"finalizers": ["f"]}}
    assert RULES.refused("u", before, {**before, "metadata": {}}, resource="pods") == []
    plain = pod([], limits=GPUS)
    assert RULES.refused("u", plain, pod(OURS, limits=GPUS), resource="pods")


HOME = {"kubernetes.io/metadata.name": "nodeproof-system", "nodeproof.dev/may-tolerate": "true"}


@pytest.mark.parametrize("name", SHIPPED)
def test_every_pod_that_ships_may_run_in_the_gates_namespace(name):
    assert RULES.refused("u", None, SHIPPED[name], resource="pods", labels=HOME) == []


@pytest.mark.parametrize(("new", "wanted"), [c[1:] for c in SHAPES], ids=[c[0] for c in SHAPES])
def test_no_pod_there_takes_more_of_a_node_than_a_test(new, wanted):
    assert same(RULES.refused("u", None, new, resource="pods", labels=HOME), wanted)
    assert RULES.refused("u", None, new, resource="pods", labels={**HOME, **ELSEWHERE}) == []


ELSEWHERE = {"kubernetes.io/metadata.name": "default"}


@pytest.mark.parametrize(("old", "wanted"), [c[1:] for c in SHAPES], ids=[c[0] for c in SHAPES])
def test_a_pod_there_from_before_may_lose_its_finalizer_and_gain_nothing(old, wanted):
    old = {**old, "metadata": {"finalizers": ["batch.kubernetes.io/job-tracking"]}}
    freed = {**old, "metadata": {}}
    assert RULES.refused("u", old, freed, resource="pods", labels=HOME) == []
    more = but(lambda p: p["spec"].update(activeDeadlineSeconds=1), freed)
    if wanted != "scheduler":  # that is asked of a new pod alone: every other comes to have a node
        assert same(RULES.refused("u", old, more, resource="pods", labels=HOME), wanted)


# --- the standalone form and node-readiness-controller -----------------------------------------


def test_the_standalone_gate_releases_its_own_node():
    writer = Writer(user=ALONE, rules=LONE, claim="n1")
    assert writer.send(Quarantine()) == []
    assert writer.send(writer.accept()) == []
    assert writer.send(Lift(stamps={NAMES.accepted_devices: "x"})) == []


@pytest.mark.parametrize("claim", ["n2", None, ""])
def test_and_no_other_node_nor_with_a_token_that_names_none(claim):
    writer = Writer(user=ALONE, rules=LONE, claim=claim)
    wanted = "the node that its token names"
    assert same(writer.send(Quarantine()), wanted)
    assert same(writer.send(writer.accept()), wanted)
    assert same(writer.send(Lift(stamps={})), wanted)


def test_the_standalone_gate_is_held_to_the_same_rules():
    for name, who, old, how, wanted in [*STATUS, *MAIN]:
        if who == GATE:
            sub = "status" if any(name == row[0] for row in STATUS) else ""
            said = LONE.refused(ALONE, old, but(how, old), sub=sub, node="n1")
            assert same(said, wanted), (name, said)
    assert LONE.refused(ALONE, node(), None, node="n1")
    assert LONE.refused(ALONE, None, node(), node="n1")


def test_the_controller_has_no_part_in_the_standalone_form():
    assert same(LONE.refused(GATE, PROVED, but(RELEASE, PROVED)), "only the gate lifts")


def test_the_readiness_taint_follows_our_condition_for_this_boot():
    rules = Admission(documents(K8S / "integrations/node-readiness-controller/policy.yaml"))
    taint = {
        "key": "readiness.k8s.io/nodeproof-accepted",
        "value": "pending",
        "effect": "NoSchedule",
    }
    held = but(lambda n: n["spec"].update(taints=[taint]), PROVED)
    free = but(drops(taint["key"]), held)
    assert rules.refused(READINESS, held, free) == []
    assert rules.refused("admin", held, free)
    stale = but(says(message="boot B0; 57"), held)
    assert rules.refused(READINESS, stale, but(drops(taint["key"]), stale))
    assert rules.refused(READINESS, but(drops(taint["key"])), but(says())) == []


WATCH = "system:serviceaccount:nodeproof-watch:nodeproof-watch"
WATCHED = Admission(built("integrations/watch"))


@pytest.mark.parametrize(
    ("claim", "how", "wanted"),
    [
        ("n1", words(devices="B1 sha256:x"), ""),
        ("n1", lambda _: None, ""),
        ("n2", words(devices="B1 sha256:x"), "the node that its token names"),
        ("", words(devices="B1 sha256:x"), "the node that its token names"),
        (None, words(devices="B1 sha256:x"), "the node that its token names"),
        ("n1", words(requalify="w"), "one annotation"),
        ("n1", words(accepted_devices="x"), "one annotation"),
        ("n1", lambda n: n["metadata"]["annotations"].clear(), "one annotation"),
        ("n1", drops(NAMES.pending), "nothing else of a node"),
        ("n1", lambda n: n["metadata"]["labels"].update(a="c"), "nothing else of a node"),
        ("n1", lambda n: n["metadata"].update(finalizers=[]), "nothing else of a node"),
        ("n1", lambda n: n["metadata"].update(ownerReferences=[]), "nothing else of a node"),
        ("n1", says(), "nothing else of a node"),
    ],
)
def test_the_watch_writes_one_annotation_of_its_own_node(claim, how, wanted):
    said = WATCHED.refused(WATCH, node(), but(how), node=claim)
    assert same(said, wanted), said
    assert WATCHED.refused("admin", node(), but(how)) == []


def test_the_watch_makes_and_deletes_no_node():
    assert WATCHED.refused(WATCH, None, node(), node="n1")
    assert WATCHED.refused(WATCH, node(), None, node="n1")


# --- the policies as such -----------------------------------------------------------------------


def _admitted(rules):
    """Which of the cases that have to be refused are not."""
    for name, who, old, how, wanted in STATUS:
        if wanted and not rules.refused(who, old, but(how, old), sub="status"):
            yield name
    for name, who, old, how, wanted in MAIN:
        if wanted and not rules.refused(who, old, but(how, old)):
            yield name
    for name, new, wanted in PODS:
        if wanted and not rules.refused("u", None, new, resource="pods"):
            yield name
    for name, new, _ in SHAPES:
        if not rules.refused("u", None, new, resource="pods", labels=HOME):
            yield name


def test_no_rule_can_be_left_out():
    """Each alone stands between some forgery and the API, or it says nothing."""
    assert list(_admitted(RULES)) == []
    for at, policy in enumerate(RULES.policies):
        for number, rule in enumerate(policy["spec"]["validations"]):
            weaker = copy.deepcopy(RULES)
            del weaker.policies[at]["spec"]["validations"][number]
            assert list(_admitted(weaker)), (policy["metadata"]["name"], rule["message"])


def test_every_policy_fails_closed_and_is_bound():
    for folder in (".", "jobs/standalone", "integrations/watch"):
        objects = built(folder)
        names = {o["metadata"]["name"] for o in objects if o["kind"] == "ValidatingAdmissionPolicy"}
        assert {p["metadata"]["name"] for p in Admission(objects).policies} == names
        assert all(p["spec"]["failurePolicy"] == "Fail" for p in Admission(objects).policies)


def test_the_overlay_for_the_first_days_refuses_nothing():
    assert Admission(built("overlays/observe")).policies == []
    actions = [
        o["spec"]["validationActions"]
        for o in built("overlays/observe")
        if o["kind"] == "ValidatingAdmissionPolicyBinding"
    ]
    assert actions == [["Warn", "Audit"]] * 6


def test_what_a_server_leaves_out_is_not_asked_for():
    """In conditions of a match it gives no variables and no metadata of the namespace."""
    for policy in RULES.policies + LONE.policies:
        for condition in policy["spec"].get("matchConditions", []):
            assert "namespaceObject" not in condition["expression"]
            assert "variables." not in condition["expression"]


@pytest.mark.parametrize(
    ("policy", "model", "but_for"),
    [
        ("nodeproof-own-condition", "V1NodeStatus", {"conditions"}),
        ("nodeproof-own-taints", "V1NodeSpec", {"taints"}),
    ],
)
def test_every_field_that_the_api_knows_is_guarded(policy, model, but_for):
    from kubernetes import client

    [found] = [p for p in RULES.policies if p["metadata"]["name"] == policy]
    text = " ".join(v["expression"] for v in found["spec"]["validations"])
    part = "status" if "Status" in model else "spec"
    fields = set(getattr(client, model).attribute_map.values()) - but_for
    missing = {f for f in fields if f"object.{part}.?{f} == oldObject.{part}.?{f}" not in text}
    assert missing == set()
