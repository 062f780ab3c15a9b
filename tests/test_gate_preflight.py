"""`nodeproof preflight`: each thing that would be in the gate's way is found, and nothing else."""

from __future__ import annotations

import dataclasses

import pytest
from gate_cluster import NAMES, SETTINGS, put_node
from gate_process import SETTINGS as TEXT
from gate_process import kubeconfig
from nodeproof_command import nodeproof

from nodeproof.gate.node import node_of
from nodeproof.gate.preflight import Cluster, problems
from tests.apiserver.server import serving
from tests.apiserver.store import Store

PENDING, QUARANTINED = NAMES.pending, NAMES.quarantined
TOLERANT = [{"key": PENDING, "operator": "Exists", "effect": "NoSchedule"}]
BINDINGS = [f"nodeproof-{n}" for n in "abcdef"]
APPS = "/apis/apps/v1/namespaces/kube-system"


def daemon(name, tolerations=(), namespace="kube-system", **spec):
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"template": {"spec": {"tolerations": list(tolerations), **spec}}},
    }


def pool(startup=(), always=(), effect="NoSchedule"):
    taints = {
        "startupTaints": [{"key": k, "effect": effect} for k in startup],
        "taints": [{"key": k} for k in always],
    }
    return {"metadata": {"name": "gpu"}, "spec": {"template": {"spec": taints}}}


def node(**more):
    return node_of(put_node(Store(), "a", **more), NAMES)


WELL = Cluster(
    nodes=[dataclasses.replace(node(), taints=())],
    daemon_sets=[
        daemon("nvidia-device-plugin", TOLERANT),
        daemon("kube-proxy", [{"operator": "Exists"}]),
    ],
    node_pools=[pool(startup=[PENDING])],
    policies=[*BINDINGS, "somebody-elses"],
    autoscaler=[f"--startup-taint={PENDING}", "--status-taint", QUARANTINED],
)


def test_a_cluster_that_is_as_it_should_be_has_no_problem():
    assert problems(WELL, SETTINGS) == []
    bare = dataclasses.replace(WELL, node_pools=[], autoscaler=[])
    assert problems(bare, SETTINGS) == []


# What differs from a cluster that is as it should be; whether it is a deadlock, about what, a word.
EQUAL = {"key": PENDING, "value": "false", "effect": "NoSchedule"}
FOUND = {
    "a plugin that does not tolerate": (
        {"daemon_sets": [daemon("nvidia-device-plugin")]},
        (True, "DaemonSet kube-system/nvidia-device-plugin", PENDING),
    ),
    "a plugin in a namespace that says what it is": (
        {"daemon_sets": [daemon("worker", namespace="gpu-operator")]},
        (True, "DaemonSet gpu-operator/worker", "no node would ever pass"),
    ),
    "a plugin that tolerates another value": (
        {"daemon_sets": [daemon("efa-plugin", [EQUAL])]},
        (True, "DaemonSet kube-system/efa-plugin", PENDING),
    ),
    "a plugin that tolerates another effect": (
        {"daemon_sets": [daemon("cni", [{**TOLERANT[0], "effect": "NoExecute"}])]},
        (True, "DaemonSet kube-system/cni", PENDING),
    ),
    "a network that does not tolerate": (
        {"daemon_sets": [daemon("cilium")]},
        (True, "DaemonSet kube-system/cilium", PENDING),
    ),
    "one that sets nothing up": (
        {"daemon_sets": [daemon("log-shipper")]},
        (False, "DaemonSet kube-system/log-shipper", PENDING),
    ),
    "a pool whose taint stays": (
        {"node_pools": [pool(startup=[], always=[PENDING])]},
        (True, "NodePool gpu", "startupTaints"),
    ),
    "a pool without the taint": (
        {"node_pools": [pool()]},
        (False, "NodePool gpu", "pods can land"),
    ),
    "a pool whose taint nobody lifts": (
        {"node_pools": [pool(startup=[PENDING], effect="NoExecute")]},
        (True, "NodePool gpu", "NoExecute"),
    ),
    "a pool that starts with a verdict": (
        {"node_pools": [pool(startup=[PENDING, QUARANTINED])]},
        (True, "NodePool gpu", "coming capacity"),
    ),
    "an autoscaler that does not know the startup taint": (
        {"autoscaler": [f"--startup-taint={PENDING}-not", f"--status-taint={QUARANTINED}"]},
        (False, "Cluster Autoscaler", "--startup-taint"),
    ),
    "an autoscaler that does not know the other": (
        {"autoscaler": ["--startup-taint", PENDING]},
        (False, "Cluster Autoscaler", "--status-taint"),
    ),
    "policies that are missing": (
        {"policies": BINDINGS[:4]},
        (False, "admission policies", "4 of 6"),
    ),
    "no node of ours": (
        {"nodes": []},
        (False, "nodes", "nothing to do"),
    ),
    "a kind nobody has counted": (
        {"nodes": [dataclasses.replace(WELL.nodes[0], labels={**WELL.nodes[0].labels, SETTINGS.kind_label: "p6"})]},
        (True, "nodes", "p6"),
    ),
    "a node that is held already": (
        {"nodes": [node()]},
        (False, "nodes", "carry"),
    ),
    **{
        f"{name} that may not be read": (
            {name: None},
            (False, name.replace("_", " "), "could not be read"),
        )
        for name in ("nodes", "daemon_sets", "node_pools", "policies", "autoscaler")
    },
}  # fmt: skip


@pytest.mark.parametrize("case", FOUND)
def test_each_problem_is_found_and_no_other(case):
    changes, (deadlock, about, word) = FOUND[case]
    [found] = problems(dataclasses.replace(WELL, **changes), SETTINGS)
    assert (found.deadlock, found.about) == (deadlock, about)
    assert word in found.text


KIND = "p5.48xlarge"
TOGETHER = {
    "too few of them": ({}, (False, "are 1, and")),
    "a label that one lacks": (
        {"group_least": 1, "group_label": "rack"},
        (True, "no label rack to be grouped by: a"),
    ),
    "a resource that one does not offer": (
        {"group_least": 1, "group_resources": {"vpc.amazonaws.com/efa": "32"}},
        (True, "offer no vpc.amazonaws.com/efa"),
    ),
}


@pytest.mark.parametrize("case", TOGETHER)
def test_what_keeps_nodes_from_being_measured_together_is_found(case):
    changes, (deadlock, word) = TOGETHER[case]
    settings = dataclasses.replace(SETTINGS, grouped=[KIND], **changes)
    [found] = problems(WELL, settings)
    assert (found.deadlock, found.about) == (deadlock, f"nodes of kind {KIND}")
    assert word in found.text


def test_a_kind_of_which_there_is_no_node_yet_is_no_problem():
    assert problems(WELL, dataclasses.replace(SETTINGS, grouped=["p6"])) == []


def test_a_daemon_of_other_nodes_is_none_of_ours():
    elsewhere = daemon("nvidia-x", nodeSelector={"nvidia.com/gpu.present": "false"})
    ours = daemon("nvidia-y", nodeSelector={"nvidia.com/gpu.present": "true"})
    cluster = dataclasses.replace(WELL, daemon_sets=[elsewhere, ours])
    assert [p.about for p in problems(cluster, SETTINGS)] == ["DaemonSet kube-system/nvidia-y"]


def test_deadlocks_come_first():
    cluster = dataclasses.replace(
        WELL, daemon_sets=[daemon("log-shipper"), daemon("nvidia-plugin")], policies=[]
    )
    assert [p.deadlock for p in problems(cluster, SETTINGS)] == [True, False, False]


def test_the_command_reads_a_cluster_and_writes_nothing(tmp_path):
    store = Store()
    (tmp_path / "settings.toml").write_text(TEXT)
    put_node(store, "a")
    store.create(f"{APPS}/daemonsets", daemon("nvidia-device-plugin"))
    container = {"image": "registry.k8s.io/autoscaling/cluster-autoscaler:v1.33", "command": ["x"]}
    store.create(
        f"{APPS}/deployments",
        {
            "metadata": {"name": "scaler"},
            "spec": {"template": {"spec": {"containers": [container]}}},
        },
    )
    with serving(store) as server:
        config = kubeconfig(tmp_path / "config", server.client().configuration.host)
        done = nodeproof(
            "preflight", "--settings", tmp_path / "settings.toml", KUBECONFIG=str(config)
        )
        assert server.wrote == []
    assert (done.returncode, done.stderr) == (11, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("DEADLOCK  DaemonSet kube-system/nvidia-device-plugin ")
    assert sum("Cluster Autoscaler" in line for line in lines) == 2
    assert any("0 of 6" in line for line in lines)  # a server that knows no such policies
    assert lines[-1] == "5 found, 1 of them deadlocks"


def test_a_cluster_that_can_not_be_read_has_problems_and_settings_of_no_use_are_2(tmp_path):
    settings, config = tmp_path / "settings.toml", kubeconfig(tmp_path / "c", "http://127.0.0.1:9")
    settings.write_text(TEXT)
    done = nodeproof("preflight", "--settings", settings, KUBECONFIG=str(config))
    assert done.returncode == 11
    assert done.stdout.count("could not be read") == 5
    settings.write_bytes(b"\xff")
    done = nodeproof("preflight", "--settings", settings, KUBECONFIG=str(config))
    assert (done.returncode, done.stdout) == (2, "")
