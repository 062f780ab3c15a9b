"""Nodes measured together, against an API server: released by both proofs, and by neither alone."""

from __future__ import annotations

import json

import pytest
from gate_cluster import JOBS, NAMES, keys
from gate_group_life import OTHER_KIND, living, members

from nodeproof.gate.ending import wall_s
from tests.apiserver.store import NODES
from tests.test_fabric_verdict import bad, errored


@pytest.fixture
def life():
    with living() as made:
        yield made


def member(run, name):
    return next(d for d in run.plan.devices if d.id == name)


def condemns(name):
    """A run that finds one member bad."""
    return lambda run: bad(run, member(run, name))


def unmeasured(name):
    """A run that could not measure one member."""
    return lambda run: errored(run, "fabric.member.data", member(run, name))


def test_three_nodes_are_lifted_when_they_passed_together_and_not_when_they_passed_alone(life):
    life.waiting("a", "b", "c")
    assert life.free() == ""
    assert set(life.reasons().values()) == {"AwaitingGroup"}
    assert life.groups() == []  # a fourth may come
    life.later(300)
    assert members(life.group()) == "abc"
    assert life.free() == ""
    job = life.measure()
    life.settle()
    assert life.free() == "abc"
    assert len(life.groups()) == 1
    for name in "abc":
        notes = life.node(name)["metadata"]["annotations"]
        assert json.loads(notes[NAMES.verdict])["group"] == job["metadata"]["name"]
        assert notes[NAMES.accepted_boot] == f"boot-{name}-1"
        assert not notes[NAMES.awaits]
        assert life.said(name)[:2] == ("True", "AllChecksPassed")
        assert "measured with 2 others" in life.said(name)[2]


def test_a_full_group_does_not_wait(life):
    life.waiting("a", "b", "c", "d")
    assert members(life.group()) == "abcd"


def test_one_bad_member_of_four_is_quarantined_and_the_others_are_lifted(life):
    life.waiting("a", "b", "c", "d")
    life.measure(change=condemns("c"))
    life.settle()
    assert life.free() == "abd"
    assert keys(life.node("c")) >= {NAMES.pending, NAMES.quarantined}
    status, reason, text = life.said("c")
    assert (status, reason) == ("False", "HardwareCondemned")
    assert "fabric.member.pairs" in text
    life.later(4000)
    assert len(life.groups()) == 1  # nobody tries it again


def test_a_lone_node_waits_and_says_so_until_a_second_comes(life):
    life.waiting("a")
    life.later(4000)
    assert life.groups() == []
    status, reason, text = life.said("a")
    assert (status, reason) == ("Unknown", "AwaitingGroup")
    assert "2 to 4 together" in text
    assert "alone 6 checks passed" in text
    life.waiting("b")  # the first has waited for long enough
    assert members(life.group()) == "ab"
    life.measure()
    life.settle()
    assert life.free() == "ab"


def rebooting(life):
    """A group of four, one of which reboots in the midst of it and is waited for."""
    life.waiting("a", "b", "c", "d")
    job = life.group()
    life.kubelet.start()
    life.reboot("b")
    life.settle()
    assert life.reasons()["b"] == "Queued"  # its pod has the GPUs
    assert job["metadata"]["name"] in life.said("b")[2]
    return job


def test_a_member_that_reboots_is_tested_again_and_the_others_get_what_was_found(life):
    life.measure(rebooting(life), unmeasured("b"), but="b")
    life.settle()
    assert life.free() == "acd"
    assert life.reasons()["b"] == "Testing"
    life.test("b")
    life.settle()
    assert life.reasons()["b"] == "AwaitingGroup"
    assert len(life.groups()) == 1


def test_a_group_that_passed_proves_nothing_of_another_boot_of_a_member(life):
    life.measure(rebooting(life))  # what its pod brought out is as good as that of the others
    life.settle()
    assert life.free() == "acd"
    assert NAMES.pending in keys(life.node("b"))
    assert life.reasons()["b"] == "Testing"


def test_a_group_with_a_node_in_another_boot_than_it_was_started_for_clears_nobody(life):
    life.measure(rebooting(life), came_late=True)
    life.settle()
    assert life.free() == ""
    assert life.reasons() == {
        "a": "ResultForeign", "b": "Testing", "c": "ResultForeign", "d": "ResultForeign"
    }  # fmt: skip


def test_a_member_that_is_asked_for_again_is_lifted_by_no_group_from_before(life):
    life.waiting("a", "b", "c", "d")
    ask = {NAMES.requalify: "again"}
    life.store.change(f"{NODES}/b", lambda n: n["metadata"]["annotations"].update(ask))
    life.settle()
    life.measure()
    life.settle()
    assert life.free() == "acd"
    assert life.reasons()["b"] == "Testing"
    life.test("b")
    life.settle()
    assert life.free() == "acd"
    assert life.reasons()["b"] == "AwaitingGroup"


def test_a_member_that_is_replaced_by_a_node_of_its_name_leaves_it_nothing(life):
    life.waiting("a", "b", "c", "d")
    job = life.group()
    life.kubelet.start()
    life.store.delete(f"{NODES}/b")
    life.arrive("b", uid="another")
    life.settle()
    life.measure(job)
    life.settle()
    assert life.free() == "acd"
    assert life.reasons()["b"] == "Testing"


def test_a_member_is_judged_as_soon_as_its_own_pod_has_ended(life):
    life.waiting("a", "b", "c", "d")
    life.measure(only="b")
    life.settle()
    assert life.free() == "b"
    assert set(life.reasons().values()) == {"Testing", "AllChecksPassed"}
    life.measure()
    life.settle()
    assert life.free() == "abcd"


@pytest.mark.parametrize("rest", ["undecided", "accept"])
def test_a_head_that_dies_without_a_word_clears_nobody_but_whom_it_told(life, rest):
    life.waiting("a", "b", "c", "d")
    life.kubelet.start()
    job = life.group()
    head = life.pods(job)[0]["spec"]["nodeName"]
    others = "abcd".replace(head, "")
    silence = unmeasured(others[0])
    life.measure(job, silence if rest == "undecided" else (lambda run: run), but=head)
    life.settle()
    told = {n: r for n, r in life.reasons().items() if n in others}
    assert life.reasons()[head] == "ResultMissing"
    assert NAMES.pending in keys(life.node(head))
    if rest == "accept":
        assert life.free() == others
    else:
        assert life.free() == others[1:]
        assert told[others[0]] == "Undecided"


def test_a_group_that_was_lost_is_followed_by_another_after_a_while_and_not_for_ever():
    with living(group_least=4) as life:
        life.waiting("a", "b", "c", "d")
        for attempt in range(1, life.settings.attempts + 1):
            job = life.measure(but="abcd")
            life.settle()
            assert life.free() == ""
            assert job["metadata"]["name"].endswith(f"-{attempt}")
            assert len(life.groups()) == attempt
            life.later(4000)
        assert set(life.reasons().values()) == {"UndecidedTooOften"}
        assert len(life.groups()) == life.settings.attempts
        assert not any(NAMES.quarantined in keys(life.node(n)) for n in "abcd")


def test_a_group_that_was_lost_once_passes_at_the_second_try_in_smaller_ones(life):
    life.waiting("a", "b", "c", "d")
    life.measure(but="abcd")
    life.settle()
    life.later(400)
    for free in (2, 4):
        assert len(members(life.measure())) == 2
        life.settle()
        assert len(life.free()) == free


def test_a_pod_that_is_never_scheduled_is_told_of_and_ends_with_the_deadline(life):
    life.kubelet.full.add("b")
    life.waiting("a", "b", "c", "d")
    job = life.group()
    life.kubelet.start()
    life.settle()
    assert life.reasons()["b"] == "Testing"
    assert "Insufficient nvidia.com/gpu" in life.said("b")[2]
    assert "Insufficient" not in life.said("a")[2]
    [pending] = [p for p in life.pods(job) if not p["spec"].get("nodeName")]
    life.store.delete(f"/api/v1/namespaces/{NAMES.namespace}/pods/{pending['metadata']['name']}")
    life.kubelet.end_job(job, failed=True, reason="DeadlineExceeded")
    life.settle()
    assert life.free() == ""
    assert life.reasons()["b"] == "TestTimedOut"
    assert "Insufficient nvidia.com/gpu" in life.said("b")[2]


def test_a_group_that_nobody_ends_is_given_up(life):
    life.waiting("a", "b", "c", "d")
    life.kubelet.start()
    life.later(wall_s(life.settings.of_groups()) + 1)
    assert set(life.reasons().values()) == {"TestTimedOut"}
    assert life.free() == ""


def test_kinds_and_values_of_the_label_never_mix():
    with living(group_label="rack", group_most=2) as life:
        life.arrive("a", "b", rack="r1")
        life.arrive("c", rack="r2")
        life.arrive("d", kind=OTHER_KIND, rack="r1")
        life.arrive("e")
        life.settle()
        for name in "abcde":
            life.test(name)
        life.settle()
        life.later(400)
        assert [members(j) for j in life.groups()] == ["ab"]
        told = {name: life.said(name) for name in "cde"}
        assert {reason for _, reason, _ in told.values()} == {"AwaitingGroup"}
        assert "kind p5.48xlarge and r2" in told["c"][2]
        assert "waits for its label rack" in told["e"][2]


def test_no_more_groups_than_are_allowed_go_on_at_once():
    with living(group_most=2) as life:
        life.waiting("a", "b", "c", "d")
        life.later(400)
        first = life.group()
        others = sorted(set("abcd") - set(members(first)))
        assert {life.reasons()[n] for n in others} == {"AwaitingGroup"}
        assert any("1 groups are, at once" in life.said(n)[2] for n in others)
        life.measure(first)
        life.settle()
        assert members(life.group()) == "".join(others)


def test_a_group_that_is_deleted_is_made_again_and_is_the_same_attempt(life):
    life.waiting("a", "b", "c", "d")
    first = life.group()["metadata"]
    life.store.delete(f"{JOBS}/{first['name']}")
    life.settle()
    again = life.group()["metadata"]
    assert (again["name"], again["uid"] == first["uid"]) == (first["name"], False)


def test_a_taint_that_comes_back_is_lifted_by_no_proof_from_before(life):
    life.waiting("a", "b", "c", "d")
    life.measure()
    life.settle()
    assert life.free() == "abcd"
    taint = {"key": NAMES.pending, "value": "true", "effect": "NoSchedule"}
    life.store.change(f"{NODES}/a", lambda n: n["spec"]["taints"].append(taint))
    life.settle()
    assert life.reasons()["a"] == "Testing"
    life.test("a")
    life.settle()
    assert life.reasons()["a"] == "AwaitingGroup"  # and again with others, too
    assert life.free() == "bcd"


@pytest.mark.parametrize("when", ["waiting", "measured"])
def test_a_controller_that_starts_anew_reads_again_and_says_nothing_new(when):
    with living(heartbeat_s=1e6) as life:
        life.waiting(*("a", "b", "c", "d")[: 1 if when == "waiting" else 4])
        life.later(1000)
        if when == "measured":
            life.kubelet.start()
            life.settle()
        before = {n["metadata"]["name"]: n for n in life.store.objects("nodes")}
        life.clock.now += 100
        life.close()
        life.settle()
        assert {n["metadata"]["name"]: n for n in life.store.objects("nodes")} == before
