"""One node judges its own results: it releases itself on its own, whole and fresh proof alone."""

from __future__ import annotations

import dataclasses

import pytest
from gate_cluster import MANIFEST, NAMES, condition, keys, put_node, results_of
from gate_process import kubeconfig
from nodeproof_command import nodeproof
from results_samples import accept, reject, undecided

from nodeproof.gate.kube import Kube, Refused
from nodeproof.gate.lone import gate
from nodeproof.gate.settings import Settings
from nodeproof.model import DeviceKind, Waiver
from nodeproof.results import parse
from nodeproof.verdict import Decision
from tests.apiserver.server import serving
from tests.apiserver.store import NODES, Store
from tests.shipped_run import RUN, failed

SETTINGS = Settings(image="")
NOW = 1_800_000_000.0


@pytest.fixture
def store():
    return Store(clock=lambda: NOW)


@pytest.fixture
def server(store):
    with serving(store) as made:
        yield made


def evidence(on, run=None, profile="gate", **plan):
    """What the suites left of this node; `plan` is what is told otherwise."""
    job = {"nonce": "", "profile": profile, "spec-digest": "sha256:" + "cd" * 32}
    told = {"metadata": {"annotations": {NAMES.label(k): v for k, v in job.items()}}}
    data = results_of(told, on, run)
    if not plan:
        return data
    whole = (run or accept()).but(
        plan=dataclasses.replace(parse(data).plan, **plan), findings=parse(data).findings
    )
    return whole.but(selftests=parse(data).selftests, end=parse(data).end).data()


def judge(server, data, name="a"):
    return gate(Kube(server.client()), data, SETTINGS, MANIFEST, node_name=name, now=NOW)


def test_a_node_with_its_own_proof_is_released_and_says_so_first(server, store):
    node = put_node(store, "a")
    outcome = judge(server, evidence(node))
    assert outcome.decision is Decision.ACCEPT
    after = store.get(f"{NODES}/a")
    assert keys(after) == {"nvidia.com/gpu"}
    assert (condition(after)["status"], condition(after)["reason"]) == ("True", "AllChecksPassed")
    boot = node["status"]["nodeInfo"]["bootID"]
    assert after["metadata"]["annotations"][NAMES.accepted_boot] == boot
    assert [path.rpartition("/")[2] for _, path, _ in server.wrote] == ["status", "a"]


def test_a_reject_quarantines_it(server, store):
    node = put_node(store, "a")
    assert judge(server, evidence(node, reject())).decision is Decision.REJECT
    after = store.get(f"{NODES}/a")
    assert keys(after) == {"nvidia.com/gpu", NAMES.pending, NAMES.quarantined}
    assert (condition(after)["status"], condition(after)["reason"]) == (
        "False",
        "HardwareCondemned",
    )


WAIVER = Waiver(check="device.memory.pattern", device="gpu0", reason="known", expires="2099-01-01")
ONLY_CPU = accept(kind=DeviceKind.CPU)
FOREIGN = {
    "a rehearsal": ({"rehearsal": True}, "rehearsal"),
    "another boot": ({"node": {"name": "a", "uid": "@", "boot_id": "old"}}, "boot id"),
    "another node of that name": ({"node": {"name": "a", "uid": "x", "boot_id": "#"}}, "node uid"),
    "another node": ({"node": {"name": "b", "uid": "@", "boot_id": "#"}}, "node name"),
    "no node": ({"node": {}}, "node name"),
    "another suite": ({"suite_digest": "sha256:" + "00" * 32}, "suite digest"),
    "waivers": ({"waivers": (WAIVER,)}, "waivers"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_what_is_not_this_nodes_own_fresh_proof_releases_nothing(server, store, case):
    node = put_node(store, "a")
    changes, said = FOREIGN[case]
    if "node" in changes:
        fill = {"@": node["metadata"]["uid"], "#": node["status"]["nodeInfo"]["bootID"]}
        changes = {"node": {k: fill.get(v, v) for k, v in changes["node"].items()}}
    outcome = judge(server, evidence(node, **changes))
    assert outcome.decision is Decision.UNDECIDED
    after = store.get(f"{NODES}/a")
    assert NAMES.pending in keys(after)
    assert condition(after)["status"] == "Unknown"
    assert outcome.reason == "ResultForeign"
    assert said in condition(after)["message"]


@pytest.mark.parametrize(
    ("run", "profile", "said"),
    [(None, "quick", "profile quick"), (ONLY_CPU, "gate", "rehearsal"), (undecided(), "gate", "")],
)
def test_nor_does_a_look_that_is_too_short_or_came_to_nothing(server, store, run, profile, said):
    node = put_node(store, "a")
    outcome = judge(server, evidence(node, run, profile))
    assert outcome.decision is Decision.UNDECIDED
    assert said in outcome.text
    assert NAMES.pending in keys(store.get(f"{NODES}/a"))


def test_results_without_a_gpu_release_nothing(server, store):
    node = put_node(store, "a")
    data = evidence(node, accept(devices=0))
    outcome = judge(server, data)
    assert outcome.decision is not Decision.ACCEPT
    assert NAMES.pending in keys(store.get(f"{NODES}/a"))


@pytest.mark.parametrize("data", [b"", b"\n", b"{}", b"\xff\xfe", b"[" * 100_000])
def test_results_that_are_none_release_nothing_and_are_named(server, store, data):
    put_node(store, "a")
    assert judge(server, data).decision is Decision.UNDECIDED
    after = store.get(f"{NODES}/a")
    assert NAMES.pending in keys(after)
    assert condition(after)["status"] == "Unknown"


def test_a_quarantined_node_does_not_release_itself_and_goes_on_saying_why(server, store):
    node = put_node(store, "a")
    judge(server, evidence(node, reject()))
    before = store.get(f"{NODES}/a")
    outcome = judge(server, evidence(node))
    assert (outcome.decision, outcome.reason) == (Decision.UNDECIDED, "Quarantined")
    assert store.get(f"{NODES}/a") == before


def test_a_node_that_moves_meanwhile_is_judged_again(server, store):
    """Somebody adds a taint between the look and the lift."""
    node = put_node(store, "a")
    theirs = {"key": "example.com/theirs", "effect": "NoSchedule"}
    met = []

    def interfere(verb, path, when):
        if when == "before" and path.endswith("/a") and not met:
            met.append(path)
            store.change(f"{NODES}/a", lambda n: n["spec"]["taints"].insert(0, theirs))

    server.interfere = interfere
    assert judge(server, evidence(node)).decision is Decision.ACCEPT
    assert met
    assert keys(store.get(f"{NODES}/a")) == {"nvidia.com/gpu", "example.com/theirs"}


def test_a_node_that_karpenter_has_not_registered_is_waited_for(server, store):
    """Karpenter puts a startup taint back that was lifted before."""
    labels = {"karpenter.sh/nodepool": "gpus"}
    node = put_node(store, "a", metadata={"labels": labels, "name": "a"})
    waits = []

    def wait(_seconds):
        after = store.get(f"{NODES}/a")
        assert NAMES.pending in keys(after)
        assert condition(after)["reason"] == "NotReady"
        waits.append(len(server.wrote))
        if len(waits) == 3:
            there = {"karpenter.sh/registered": "true"}
            store.change(f"{NODES}/a", lambda n: n["metadata"]["labels"].update(there))

    data = evidence(node)
    kube = Kube(server.client())
    outcome = gate(kube, data, SETTINGS, MANIFEST, node_name="a", now=NOW, wait=wait)
    assert waits == [1, 1, 1], "it is said once"
    assert outcome.decision is Decision.ACCEPT
    assert NAMES.pending not in keys(store.get(f"{NODES}/a"))


def test_a_node_that_is_never_registered_stays_held(server, store):
    labels = {"karpenter.sh/nodepool": "gpus"}
    node = put_node(store, "a", metadata={"labels": labels, "name": "a"})
    kube, waits = Kube(server.client()), []
    outcome = gate(
        kube, evidence(node), SETTINGS, MANIFEST, node_name="a", now=NOW, wait=waits.append
    )
    assert (outcome.decision, outcome.reason) == (Decision.UNDECIDED, "NotReady")
    assert sum(waits) == 600
    assert NAMES.pending in keys(store.get(f"{NODES}/a"))


def test_a_node_that_reboots_between_the_condition_and_the_lift_is_not_released(server, store):
    node = put_node(store, "a")

    def interfere(verb, path, when):
        if when == "before" and path.endswith("/status"):
            store.change(f"{NODES}/a", lambda n: n["status"]["nodeInfo"].update(bootID="another"))

    server.interfere = interfere
    outcome = judge(server, evidence(node))
    assert (outcome.decision, outcome.reason) == (Decision.UNDECIDED, "ResultForeign")
    after = store.get(f"{NODES}/a")
    assert NAMES.pending in keys(after)
    assert condition(after)["status"] == "Unknown"
    assert condition(after)["message"].startswith("boot another;")


def test_a_node_that_never_stands_still_is_left_held(server, store):
    node = put_node(store, "a")

    def interfere(verb, path, when):
        if when == "before" and path.endswith("/a"):
            more = {"key": f"example.com/{len(server.wrote)}", "effect": "NoSchedule"}
            store.change(f"{NODES}/a", lambda n: n["spec"]["taints"].append(more))

    server.interfere = interfere
    with pytest.raises(Refused, match="a moved 5 times"):
        judge(server, evidence(node))
    assert NAMES.pending in keys(store.get(f"{NODES}/a"))


def test_the_command_exits_with_the_verdict(server, store, tmp_path):
    """With the manifest that is shipped: accept, reject, a node that is not there, no results."""
    config = str(kubeconfig(tmp_path / "config", server.client().configuration.host))
    results = tmp_path / "results.jsonl"
    for name, run, status in (("a", RUN, 0), ("b", failed(), 10)):
        results.write_bytes(evidence(put_node(store, name), run))
        done = nodeproof("gate", results, "--node-name", name, KUBECONFIG=config)
        assert (done.returncode, done.stderr) == (status, ""), done.stdout
        assert done.stdout.startswith(f"{name}: {'accept' if run is RUN else 'reject'}, ")
    assert keys(store.get(f"{NODES}/a")) == {"nvidia.com/gpu"}
    assert NAMES.quarantined in keys(store.get(f"{NODES}/b"))
    gone = nodeproof("gate", results, "--node-name", "c", KUBECONFIG=config)
    assert gone.returncode == 11
    assert "nodes 'c' not found" in gone.stderr
    none = nodeproof("gate", tmp_path / "none", "--node-name", "a", KUBECONFIG=config)
    assert none.returncode == 2
