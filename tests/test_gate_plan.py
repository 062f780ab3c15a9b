"""What is to be done about one node, state by state."""

from __future__ import annotations

import dataclasses

import pytest
from gate_cluster import GPU, PENDING, SETTINGS
from gate_nodes import (
    BOOT,
    NOW,
    accepted,
    job,
    node,
    over,
    pod,
    ruled,
)

from nodeproof.gate.actions import (
    Evict,
    Hold,
    Lift,
    Phase,
    Quarantine,
    Read,
    Remove,
    Say,
)
from nodeproof.gate.actions import (
    Test as Started,
)
from nodeproof.gate.ending import wall_s
from nodeproof.gate.plan import Known, Tenant, plan
from nodeproof.gate.settings import Draining, Served
from nodeproof.verdict import Decision

ACCEPT = Decision.ACCEPT
WALL_S = wall_s(SETTINGS)
CONDEMNED = ("False", "HardwareCondemned", f"boot {BOOT}; 4 wrong words")


def does(made, kind):
    return [a for a in made.actions if isinstance(a, kind)]


def says(made):
    [say] = does(made, Say)
    return say.status, say.reason


def known(*jobs, judged=None, **more):
    return Known(jobs=jobs, judged={j.name: judged for j in jobs if judged}, **more)


def look(of, seen=None, now=NOW, **settings):
    return plan(of, seen or Known(), dataclasses.replace(SETTINGS, **settings), now=now)


# --- what starts a test, and what has to come first -----------------------------------------


def test_a_pending_node_is_tested_with_what_it_offers_and_what_it_must_have():
    made = look(node())
    [test] = does(made, Started)
    assert (test.trigger, test.attempt, test.devices, test.requested) == ("new", 1, 2, 2)
    assert (made.phase, *says(made)) == (Phase.TESTING, "Unknown", "Testing")


@pytest.mark.parametrize(
    ("differs", "word"),
    [
        ({"labels": {"karpenter.sh/nodepool": "gpus"}}, "Karpenter"),
        (
            {"labels": {"karpenter.sh/nodepool": "gpus", "karpenter.sh/registered": "false"}},
            "Karpenter",
        ),
        (
            {"taints": [PENDING, {"key": "karpenter.sh/unregistered", "effect": "NoExecute"}]},
            "Karpenter",
        ),
        (
            {
                "taints": [
                    PENDING,
                    {
                        "key": "node.cloudprovider.kubernetes.io/uninitialized",
                        "effect": "NoSchedule",
                    },
                ]
            },
            "cloud provider",
        ),
        ({"ready": "False"}, "not Ready"),
        ({"ready": "Unknown"}, "not Ready"),
        ({"ready": "true"}, "not Ready"),
    ],
)
def test_a_node_that_is_not_ready_waits_and_says_for_what(differs, word):
    made = look(node(**differs))
    assert not does(made, Started)
    assert says(made) == ("Unknown", "NotReady")
    assert word in does(made, Say)[0].message


def test_a_node_that_karpenter_has_registered_is_tested():
    labels = {"karpenter.sh/nodepool": "gpus", "karpenter.sh/registered": "true"}
    assert does(look(node(labels=labels)), Started)


def test_seven_of_eight_are_examined_and_the_eighth_is_asked_for():
    made = look(node(allocatable="7", capacity="7"), expected={"p5.48xlarge": 8})
    [test] = does(made, Started)
    assert (test.requested, test.devices) == (7, 8)


@pytest.mark.parametrize("allocatable", [None, "0", "", "none", "-1", "²"])
def test_a_node_without_the_device_plugin_waits_a_while_then_is_looked_at_without_gpus(allocatable):
    new = node(allocatable=allocatable, capacity=None, ready_s=30, created=NOW - 60)
    made = look(new)
    assert not does(made, Started)
    assert says(made) == ("Unknown", "DevicePluginMissing")
    assert made.wake_s == pytest.approx(570)
    [test] = does(look(new, now=NOW + 600), Started)
    assert (test.requested, test.devices) == (0, 2)


@pytest.mark.parametrize("expected", [{}, {"p4d.24xlarge": 8}])
def test_what_a_node_offers_is_never_taken_for_what_it_has_to_have(expected):
    made = look(node(allocatable="7", capacity="7"), expected=expected)
    assert not does(made, Started)
    assert says(made) == ("Unknown", "ExpectedUnknown")
    assert "p5.48xlarge" in does(made, Say)[0].message


def test_a_test_of_which_no_pod_was_made_sends_nobody_to_reboot():
    [say] = does(look(node(), known(job(created=NOW - WALL_S - 1))), Say)
    assert "no pod of it is there" in say.message
    assert "reboot" not in say.message


def test_what_its_pod_waited_for_is_still_said_when_the_pod_is_gone():
    words = "Unschedulable: 0/7 nodes: untolerated taint {dedicated: ml} (1), other (6)"
    waiting = pod(phase="Pending", exit_code=None, waiting=words)
    [before] = does(look(node(), known(job(pods=(waiting,)))), Say)
    said = (before.status, before.reason, before.message)
    late = job(ended=NOW - 1, failure="DeadlineExceeded")
    for _ in range(2):  # what is said now is all that the next look has
        made = look(node(said=said, told_s=301), known(late))
        assert says(made) == ("Unknown", "TestTimedOut")
        [say] = does(made, Say)
        assert f"({words})" in say.message
        said = (say.status, say.reason, say.message)
    assert look(node(said=said), known(late)).actions == ()


def test_no_more_tests_run_at_once_than_the_site_allows():
    made = look(node(), Known(room=0))
    assert not does(made, Started)
    assert says(made) == ("Unknown", "Queued")


TENANTS = (
    Tenant(namespace="team", name="going", uid="u1", leaving=False),
    Tenant(namespace="team", name="gone", uid="u2", leaving=True),
)


def test_pods_that_hold_gpus_are_waited_for():
    made = look(node(), Known(tenants=TENANTS))
    assert not does(made, Started) + does(made, Evict)
    assert says(made) == ("Unknown", "PodsPresent")
    assert "team/going" in does(made, Say)[0].message


def test_or_asked_to_leave_those_that_are_not_leaving_yet():
    made = look(node(), Known(tenants=TENANTS), draining=Draining.EVICT)
    assert does(made, Evict) == [Evict(namespace="team", pod="going", uid="u1")]
    assert not does(made, Started)


# --- whose node it is -----------------------------------------------------------------------


def test_a_node_that_is_neither_selected_nor_held_is_let_alone():
    made = look(node(taints=[GPU], labels={"nvidia.com/gpu.present": "false"}))
    assert (made.phase, made.actions) == (Phase.OUTSIDE, ())


def test_a_node_that_was_accepted_and_lost_its_label_is_held_after_its_next_boot():
    """Whoever sets labels of the hardware takes them off when it starts anew."""
    bare = {"labels": {"nvidia.com/gpu.present": "false"}}
    assert look(accepted(**bare)).phase is Phase.ACCEPTED
    made = look(accepted(boot="boot-2", **bare))
    assert does(made, Hold)
    assert says(made) == ("Unknown", "Rebooted")


def test_a_node_whose_labels_are_late_is_held_by_its_startup_taint():
    assert look(node(labels={"nvidia.com/gpu.present": ""})).phase is Phase.TESTING


def test_a_node_that_is_being_deleted_is_let_alone():
    made = look(node(deletionTimestamp="2026-01-01T00:00:00Z"), known(over(), judged=ruled(ACCEPT)))
    assert (made.phase, made.actions) == (Phase.OUTSIDE, ())


@pytest.mark.parametrize("taints", [[], [GPU], [PENDING]])
def test_a_node_that_does_not_tell_its_boot_is_held_and_never_tested(taints):
    made = look(node(boot="", taints=taints), known(over(boot_id=""), judged=ruled(ACCEPT)))
    assert bool(does(made, Hold)) == (PENDING not in taints)
    assert says(made) == ("Unknown", "BootUnknown")
    assert not does(made, Started) + does(made, Lift)


def test_a_new_node_that_came_without_the_taint_is_held_before_it_is_called_untested():
    made = look(node(taints=[GPU]))
    assert [type(a) for a in made.actions] == [Hold, Say]
    assert says(made) == ("Unknown", "Untested")


@pytest.mark.parametrize("taints", [[], None])
def test_no_taints_at_all_is_no_acceptance(taints):
    raw = node(taints=taints or [])
    assert does(look(raw), Hold)


# --- nodes that served before the gate ------------------------------------------------------

BEFORE = {"taints": [GPU], "created": NOW - 9000}
INSTALLED = {"installed_at": NOW - 5000}


def test_a_node_that_served_is_left_alone_and_told_so_once():
    made = look(node(**BEFORE), **INSTALLED)
    assert (made.phase, says(made)) == (Phase.GRANDFATHERED, ("Unknown", "Grandfathered"))
    assert not does(made, Hold)
    told = ("Unknown", "Grandfathered", does(made, Say)[0].message)
    assert look(node(**BEFORE, said=told), **INSTALLED).actions == ()


def test_until_its_next_boot():
    told = ("Unknown", "Grandfathered", "boot boot-0; it served before")
    made = look(node(**BEFORE, said=told), **INSTALLED)
    assert does(made, Hold)
    assert says(made) == ("Unknown", "Rebooted")


def test_or_they_are_tested_one_by_one():
    site = {**INSTALLED, "served": Served.REQUALIFY}
    assert does(look(node(**BEFORE), Known(served_held=0), **site), Hold)
    made = look(node(**BEFORE), Known(served_held=1), **site)
    assert not does(made, Hold)
    assert says(made) == ("Unknown", "ServedLater")


def test_a_condemned_node_is_not_let_off_because_it_served_before():
    made = look(node(**BEFORE, said=CONDEMNED), **INSTALLED)
    assert made.actions == (Hold(),), "its condition stands"


# --- while a test runs ----------------------------------------------------------------------


def test_a_test_that_runs_is_waited_for_with_what_its_pod_waits_for():
    waiting = pod(phase="Pending", exit_code=None, waiting="ImagePullBackOff: no such image")
    made = look(node(), known(job(pods=(waiting,))))
    assert (made.phase, says(made)) == (Phase.TESTING, ("Unknown", "Testing"))
    assert "ImagePullBackOff" in does(made, Say)[0].message
    assert made.wake_s == pytest.approx(560)


def test_a_test_that_has_ended_is_read():
    made = look(node(), known(over()))
    assert does(made, Read) == [Read(job="np-new-1", pod="np-new-1-x")]
    assert not does(made, Lift)


@pytest.mark.parametrize(
    ("differs", "reason"),
    [
        ({"deleting": True}, "TestPodLost"),
        ({"ended": NOW - 1, "failure": "PodFailurePolicy"}, "TestPodLost"),
        ({"ended": NOW - 1, "failure": "DeadlineExceeded"}, "TestTimedOut"),
        ({"ended": NOW - 1, "complete": True}, "TestPodLost"),
        ({"created": NOW - 661}, "TestTimedOut"),
        ({"created": NOW - 661, "pods": (pod(phase="Running", exit_code=None),)}, "TestTimedOut"),
    ],
)
def test_a_test_that_leaves_nothing_is_undecided_and_says_why(differs, reason):
    made = look(node(), known(job(**differs)))
    assert (made.phase, says(made)) == (Phase.UNDECIDED, ("Unknown", reason))
    assert not does(made, Started) + does(made, Lift) + does(made, Quarantine)


def test_a_test_for_another_boot_occasion_or_node_is_stopped_before_the_next_starts():
    for differs in ({"boot_id": "boot-0"}, {"trigger": "boot"}, {"node_uid": "uid-b"}):
        old = job(name="np-old-1", **differs)
        made = look(node(), known(old))
        assert does(made, Remove) == [Remove(job="np-old-1")]
        assert not does(made, Started), differs
        ended = dataclasses.replace(old, ended=NOW - 1)
        made = look(node(), known(ended))
        assert does(made, Started)
        assert not does(made, Remove), "what has ended stays for people"


def test_an_earlier_attempt_that_never_ended_is_removed_once_the_next_is_there():
    hung = job(created=NOW - 2000)
    made = look(node(), known(hung, job(attempt=2)))
    assert does(made, Remove) == [Remove(job=hung.name)]
