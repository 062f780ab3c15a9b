"""Nodes that lie about themselves, and Jobs of strangers: measured at most, and nobody is lifted by it."""

from __future__ import annotations

import json

import pytest
from gate_cluster import JOBS, NAMES, keys
from gate_group_life import living, members

from tests.apiserver.store import NODES


@pytest.fixture
def life():
    with living() as made:
        yield made


def stamp(life, name, proof):
    """A node says of itself that it passed alone, and waits since long ago."""

    def lie(node):
        boot = node["status"]["nodeInfo"]["bootID"]
        told = {"boot": boot, "proof": proof, "since": life.clock.now - 10}
        node["metadata"]["annotations"][NAMES.awaits] = json.dumps(told)
        [row] = [c for c in node["status"]["conditions"] if c["type"] == NAMES.accepted]
        row.update(status="Unknown", reason="AwaitingGroup", message=f"boot {boot}; x")

    life.store.change(f"{NODES}/{name}", lie)


@pytest.mark.parametrize("then", ["reject", "undecided", None])
def test_a_node_that_only_says_that_it_passed_alone_is_measured_at_most(then):
    with living(group_most=2) as life:
        life.clock.now -= 100
        life.waiting("a")
        life.clock.now += 100
        life.arrive("b")
        life.settle()
        [job] = life.alone()
        stamp(life, "b", job["metadata"]["name"])
        controller = life.controllers[-1]
        life.see(controller)
        controller.look("uid-a")
        assert members(life.group()) == "ab"
        life.measure()
        if then:
            life.test("b", then)
        life.settle()
        life.later(4000 if then == "undecided" else 10)
        assert life.free() == "a"
        assert NAMES.pending in keys(life.node("b"))
        assert (NAMES.quarantined in keys(life.node("b"))) == (then == "reject")


def forged(life, job, name, **annotations):
    """A Job of a stranger: as one of ours, but for its name and these annotations."""
    notes = {**job["metadata"]["annotations"]}
    for key, value in annotations.items():
        label = NAMES.label(key.replace("_", "-"))
        notes.pop(label) if value is None else notes.update({label: value})
    made = {
        "metadata": {
            "name": name,
            "labels": job["metadata"]["labels"],
            "annotations": notes,
        },
        "spec": job["spec"],
    }
    return life.store.create(JOBS, made)


@pytest.mark.parametrize(
    "annotations",
    [
        {"members": None},
        {"members": "nobody"},
        {"members": "[" * 100_000},
        {"members": "[null]"},
        {"attempt": "first"},
        {"attempt": None},
        {"nonce": None},
        {"members": '[{"node": "a", "uid": "uid-a", "boot_id": "boot-a-0", "proof": "np-0"}]'},
    ],
    ids=lambda v: str(v)[:40],
)
def test_a_job_of_a_stranger_changes_nothing(annotations):
    with living(groups_at_once=2 if "np-0" in str(annotations) else 1) as life:
        _among_strangers(life, annotations)


def _among_strangers(life, annotations):
    life.waiting("a", "b", "c", "d")
    job = life.group()
    life.store.delete(f"{JOBS}/{job['metadata']['name']}")
    false = forged(life, job, "npg-of-a-stranger-9", **annotations)
    life.settle()
    [again] = [j for j in life.groups() if j["metadata"]["uid"] != false["metadata"]["uid"]]
    assert again["metadata"]["name"] == job["metadata"]["name"]
    life.measure(again)
    life.settle()
    assert life.free() == "abcd"


def test_a_group_of_a_stranger_with_another_image_or_spec_lifts_nobody(life):
    life.waiting("a", "b", "c", "d")
    job = life.group()
    life.store.delete(f"{JOBS}/{job['metadata']['name']}")
    image = "registry.example.com/other@sha256:" + "2e" * 32
    life.measure(forged(life, job, "npg-of-a-stranger-9", image=image))
    life.settle()
    assert life.free() == ""
    assert set(life.reasons().values()) == {"ResultForeign"}
