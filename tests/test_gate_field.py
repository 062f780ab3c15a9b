"""What clusters really hold, with the traps in it: how a node is read, and what the gate then does."""

from __future__ import annotations

import dataclasses
import json

import pytest
from gate_cluster import GPU, NAMES, PENDING, SETTINGS, put_node
from gate_nodes import (
    BOOT,
    NOW,
    PASSED,
    accepted,
    job,
    node,
    over,
    pod,
    raw_node,
    ruled,
)

from nodeproof.gate.actions import Evict, Hold, Lift, Phase, Quarantine, Say
from nodeproof.gate.actions import Test as Started
from nodeproof.gate.attempt import job_of
from nodeproof.gate.node import node_of
from nodeproof.gate.patches import lift
from nodeproof.gate.plan import Known, plan
from nodeproof.gate.settings import Draining
from nodeproof.gate.tenants import IMPLICIT
from nodeproof.gate.tenants import holds as _holds
from nodeproof.gate.tenants import of as _tenants_of
from nodeproof.verdict import Decision
from tests.apiserver.store import NODES, Store

AGENT = {"key": "cni.example.com/not-ready", "effect": "NoExecute"}
UNREGISTERED = {"key": "karpenter.sh/unregistered", "effect": "NoExecute"}
BARE = {"key": NAMES.pending, "effect": "NoSchedule"}  # as it stands without a value
SAID = ("True", "AllChecksPassed", f"boot {BOOT}; {PASSED}")
PROOF = Known(jobs=(over(),), judged={over().name: ruled(Decision.ACCEPT)})


def does(made, kind):
    return [a for a in made.actions if isinstance(a, kind)]


def look(of, seen=None, now=NOW):
    return plan(of, seen or Known(), SETTINGS, now=now)


# --- polarity and conditions of others ------------------------------------------------------

FOREIGN = [
    {"type": "RdmaLinkProblem", "status": "True", "reason": "Down", "message": "a\n  b;c;"},
    {"type": "NetworkingReady", "status": "True", "reason": "NetworkingIsReady"},
    {"type": "AcceleratedHardwareReady", "status": "False", "reason": "NvidiaXID79Error"},
    {"type": "KernelDeadlock", "status": "Unknown"},
    {
        "type": "Accepted",
        "status": "True",
        "reason": "AllChecksPassed",
        "message": f"boot {BOOT}; x",
    },
    {
        "type": "other.dev/Accepted",
        "status": "True",
        "reason": "AllChecksPassed",
        "message": f"boot {BOOT}; x",
    },
]


def test_conditions_of_others_are_neither_proof_nor_reproach_whatever_their_polarity():
    raw = raw_node()
    raw["status"]["conditions"] += FOREIGN
    with_them = node_of(raw, NAMES)
    assert with_them.condition is None
    assert not with_them.accepted(NAMES)
    assert look(with_them) == look(node())
    raw = raw_node(said=SAID, taints=[GPU], annotations={NAMES.accepted_boot: BOOT})
    raw["status"]["conditions"] += FOREIGN
    assert look(node_of(raw, NAMES)).phase is Phase.ACCEPTED


@pytest.mark.parametrize("status", ["true", "TRUE", "1", "Unknown", "False", "", None])
def test_only_the_word_true_means_ready_or_accepted(status):
    raw = raw_node(taints=[GPU], said=SAID, annotations={NAMES.accepted_boot: BOOT})
    raw["status"]["conditions"][0]["status"] = status
    assert not node_of(raw, NAMES).ready
    raw = raw_node(taints=[GPU], said=SAID, annotations={NAMES.accepted_boot: BOOT})
    raw["status"]["conditions"][-1]["status"] = status
    assert does(look(node_of(raw, NAMES)), Hold)


def test_a_node_whose_kubelet_is_silent_is_not_tested():
    raw = raw_node(ready="Unknown")
    raw["status"]["conditions"] += [
        {"type": "MemoryPressure", "status": "Unknown", "reason": "NodeStatusUnknown"},
        {"type": "FrequentRestart", "status": "True"},
    ]
    made = look(node_of(raw, NAMES))
    assert not does(made, Started)
    assert does(made, Say)[0].reason == "NotReady"


# --- startup races --------------------------------------------------------------------------


def test_a_startup_taint_is_not_lifted_before_registration_and_looked_at_again_after():
    early = node(taints=[AGENT, BARE, UNREGISTERED], said=SAID)
    assert not does(look(early, PROOF), Lift)
    # The agent takes its own away, Karpenter registers, and puts the startup taint back.
    assert does(look(node(taints=[BARE], said=SAID), PROOF), Lift)
    put_back = accepted(taints=[BARE])
    made = look(put_back, PROOF)
    assert made.phase is Phase.ACCEPTED
    assert does(made, Lift), "the proof of this boot still holds"


@pytest.mark.parametrize("registered", ["false", "", None, "True"])
def test_initialised_but_not_registered_is_a_contradiction_that_is_waited_out(registered):
    labels = {"karpenter.sh/nodepool": "gpus", "karpenter.sh/initialized": "true"}
    if registered is not None:
        labels["karpenter.sh/registered"] = registered
    made = look(node(labels=labels, said=SAID), PROOF)
    assert not does(made, Lift) + does(made, Started)
    assert does(made, Say)[0].reason == "NotReady"


def test_another_writer_between_read_and_lift_is_seen():
    store = Store(clock=lambda: NOW)
    put_node(store, "a", spec={"taints": [AGENT, BARE, UNREGISTERED]})
    patch = lift(node_of(store.get(f"{NODES}/a"), NAMES), NAMES, stamps={})
    store.change(f"{NODES}/a", lambda n: n["spec"]["taints"].pop(0))
    with pytest.raises(Exception, match="rejected"):
        store.patch(f"{NODES}/a", "application/json-patch+json", patch)
    assert store.get(f"{NODES}/a")["spec"]["taints"] == [BARE, UNREGISTERED]


# --- absent, null, empty --------------------------------------------------------------------


@pytest.mark.parametrize("taints", [None, [], "absent"])
def test_no_taint_is_the_good_end_or_a_node_that_never_was_gated_and_is_not_taken_for_proof(taints):
    raw = raw_node(taints=[])
    if taints == "absent":
        del raw["spec"]["taints"]
    else:
        raw["spec"]["taints"] = taints
    of = node_of(raw, NAMES)
    assert of.taints == ()
    assert not of.accepted(NAMES)
    assert does(look(of), Hold)


def test_a_stream_of_nodes_is_read_one_by_one():
    first, second = raw_node(), raw_node(taints=[BARE])
    first["spec"] = None
    assert not node_of(first, NAMES).has(NAMES.pending)
    assert node_of(second, NAMES).has(NAMES.pending)


@pytest.mark.parametrize(
    "hole",
    [
        lambda n: n.update(metadata=None),
        lambda n: n.update(spec=None),
        lambda n: n.update(status=None),
        lambda n: n["metadata"].update(labels=None, annotations=None),
        lambda n: n["status"].update(conditions=None),
        lambda n: n["status"].update(conditions=[None, "x", {}]),
        lambda n: n["status"].update(nodeInfo=None, allocatable=None, capacity=None),
        lambda n: n["spec"].update(taints=[None, "x", {}, {"key": None}, {"key": 7}]),
        lambda n: n["metadata"].update(creationTimestamp="yesterday"),
    ],
)
@pytest.mark.parametrize("taints", [[GPU], [BARE]])
def test_whatever_is_null_is_empty_and_empty_is_never_accepted(hole, taints):
    raw = raw_node(taints=taints, said=SAID)
    hole(raw)
    made = look(node_of(raw, NAMES))
    assert made.phase is not Phase.ACCEPTED
    assert not does(made, Lift)


# --- which taint is which -------------------------------------------------------------------


def test_a_taint_is_its_key_and_its_effect_and_only_ours_goes():
    run = {"key": NAMES.pending, "effect": "NoExecute", "value": "run1"}
    ours = {"key": NAMES.pending, "effect": "NoSchedule", "value": "run1"}
    other = {"key": "dedicated", "effect": "NoSchedule", "value": "ml"}
    store = Store(clock=lambda: NOW)
    put_node(store, "a", spec={"taints": [run, ours, other]})
    of = node_of(store.get(f"{NODES}/a"), NAMES)
    assert of.has(NAMES.pending)
    store.patch(f"{NODES}/a", "application/json-patch+json", lift(of, NAMES, stamps={}))
    assert store.get(f"{NODES}/a")["spec"]["taints"] == [run, other]


def test_a_taint_that_looks_like_ours_is_not_and_a_permanent_one_stays():
    lasting = [
        {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
        {"key": f"{NAMES.domain}/blocked", "value": "true", "effect": "NoSchedule"},
    ]
    store = Store(clock=lambda: NOW)
    put_node(store, "a", spec={"taints": [*lasting, BARE]})
    of = node_of(store.get(f"{NODES}/a"), NAMES)
    store.patch(f"{NODES}/a", "application/json-patch+json", lift(of, NAMES, stamps={}))
    assert store.get(f"{NODES}/a")["spec"]["taints"] == lasting
    assert does(look(node(taints=lasting)), Hold), "the other key holds nothing for us"


# --- numbers of devices ---------------------------------------------------------------------


def test_capacity_alone_says_nothing_about_what_can_be_used():
    none = node(allocatable="0", capacity="8", ready_s=30, created=NOW - 60)
    made = look(none)
    assert does(made, Say)[0].reason == "DevicePluginMissing", (
        "'0' is a text, and no number of GPUs"
    )
    [test] = does(plan(none, Known(), SETTINGS, now=NOW + 3600), Started)
    assert test.requested == 0


def test_a_resource_with_a_longer_name_is_another():
    raw = raw_node(allocatable="8", capacity="8")
    raw["status"]["allocatable"] |= {"nvidia.com/gpu.shared": "28", "nvidia.com/mig-1g.10gb": "7"}
    [test] = does(look(node_of(raw, NAMES)), Started)
    assert test.requested == 8


# --- pods that are not admitted, and whose fault it is --------------------------------------


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("UnexpectedAdmissionError", "Allocate failed due to no healthy devices present"),
        ("UnexpectedAdmissionError", "error creating nvml.Device 2: nvml: GPU is lost"),
        ("OutOfnvidia.com/gpu", "Node didn't have enough resource: nvidia.com/gpu"),
    ],
)
def test_a_pod_that_is_not_admitted_leaves_the_node_undecided_and_condemns_nothing(reason, words):
    refused = {
        "metadata": {"name": "np-x", "ownerReferences": [{"kind": "Job", "uid": "job-uid"}]},
        "spec": {"nodeName": "gpu-a"},
        "status": {"phase": "Failed", "reason": reason, "message": words},
    }
    made_job = job(ended=NOW - 5, failure="PodFailurePolicy")
    raw = {
        "metadata": {"name": "np-x", "uid": "job-uid", "annotations": _told(made_job)},
        "status": {},
    }
    seen = job_of(raw, [refused], NAMES)
    assert seen is not None
    assert seen.pods[0].exit_code is None
    assert seen.pods[0].over
    lost = Known(
        jobs=(over(pods=(pod(phase="Failed", exit_code=None, reason=reason),)),),
        judged={over().name: ruled(Decision.UNDECIDED)},
    )
    made = look(node(), lost)
    assert made.phase is Phase.UNDECIDED
    assert not does(made, Quarantine) + does(made, Lift)


def _told(of):
    values = {
        "node-uid": of.node_uid,
        "boot-id": of.boot_id,
        "trigger": of.trigger,
        "nonce": of.nonce,
        "image": of.image,
        "profile": of.profile,
        "spec-digest": of.spec_digest,
        "attempt": str(of.attempt),
        "devices": str(of.devices),
    }
    return {NAMES.label(k): v for k, v in values.items()}


def test_a_pod_that_waits_for_ever_is_over_after_its_deadline_and_says_for_what_it_waited():
    words = "0/7 nodes are available: 2 node(s) had taint {x: }, that the pod didn't tolerate"
    waiting = pod(phase="Pending", exit_code=None, waiting=f"Unschedulable: {words}")
    made = look(node(), Known(jobs=(job(created=NOW - 700, pods=(waiting,)),)))
    [say] = does(made, Say)
    assert say.reason == "TestTimedOut"
    assert words in say.message


@pytest.mark.parametrize(
    ("spec", "holds"),
    [
        ({"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}, True),
        ({"containers": [{"resources": {"limits": {"nvidia.com/mig-2g.20gb": "1"}}}]}, True),
        (
            {
                "containers": [{}],
                "initContainers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}],
            },
            True,
        ),
        ({"containers": [{}], "resourceClaims": [{"name": "gpus"}]}, True),
        ({"containers": [{"resources": None}], "initContainers": None}, False),
        ({"containers": [{"resources": {"limits": {"cpu": "1"}}}]}, False),
        (
            {
                "containers": [
                    {"resources": {"limits": {f"{IMPLICIT}gpu.nvidia.com": "8"}}},
                ]
            },
            True,
        ),
        ({"containers": [{"resources": {"limits": {"nvidia.company.example/x": "1"}}}]}, False),
        ({}, False),
    ],
)
def test_which_pods_hold_gpus(spec, holds):
    assert _holds({"spec": spec}, SETTINGS.resource) is holds


def test_a_pod_whose_claim_the_scheduler_made_holds_gpus():
    named = {"containers": [{"resources": {"limits": {"example.com/accelerator": "1"}}}]}
    assert not _holds({"spec": named}, SETTINGS.resource)
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "pod-x-extended-resources"}}
    assert _holds({"spec": named, "status": status}, SETTINGS.resource)


def test_a_daemon_is_waited_for_and_not_evicted_again_and_again():
    spec = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    about = {"namespace": "gpu", "name": "dcgm-x", "ownerReferences": [{"kind": "DaemonSet"}]}
    plain = {"namespace": "team", "name": "train"}
    pods = [{"metadata": m, "spec": spec} for m in (about, plain)]
    tenants = _tenants_of(pods, SETTINGS)
    evicting = dataclasses.replace(SETTINGS, draining=Draining.EVICT)
    made = plan(node(), Known(tenants=tenants), evicting, now=NOW)
    assert [(e.namespace, e.pod) for e in does(made, Evict)] == [("team", "train")]
    [say] = does(made, Say)
    assert "gpu/dcgm-x" in say.message


def test_events_about_a_node_and_annotations_of_others_decide_nothing():
    notes = {"event": json.dumps({"reason": "OOMKilling", "count": 3}), "gpu.example.com/xid": "69"}
    assert look(node(annotations=notes)) == look(node())
    assert PENDING["key"] == NAMES.pending
