"""One node that lies, hangs or falls over, and what it may cost all the others that wait beside it."""

from __future__ import annotations

import dataclasses
import json

import pytest
from gate_cluster import NAMES, keys
from gate_group_life import living
from gate_groups import GROUPED, place, waits
from gate_nodes import BOOT, NOW, node, raw_node

from nodeproof.gate import group_job
from nodeproof.gate.actions import Measure
from nodeproof.gate.fleet import Fleet
from nodeproof.gate.group import begins, divided, waiting
from nodeproof.gate.groups import Groups
from tests.apiserver.store import NODES


def lies(life, name):
    """A node says that it passed alone long ago, whatever the gate has said of it since."""

    def change(found):
        boot = found["status"]["nodeInfo"]["bootID"]
        told = {"boot": boot, "proof": "np-of-a-liar-1", "since": 0}
        found["metadata"]["annotations"][NAMES.awaits] = json.dumps(told)
        rows = [c for c in found["status"]["conditions"] if c["type"] != NAMES.accepted]
        row = {"type": NAMES.accepted, "status": "Unknown", "reason": "AwaitingGroup"}
        found["status"]["conditions"] = [*rows, {**row, "message": f"boot {boot}; x"}]

    life.store.change(f"{NODES}/{name}", change)


def test_a_liar_that_is_first_in_the_row_keeps_nobody_waiting_for_ever():
    """It never begins the group that it says it is the first of, so another has to."""
    with living() as life:
        life.arrive("x")
        life.clock.now += 10
        life.waiting("b", "c")
        for _ in range(6):
            life.clock.now += 120
            for name in "bc":
                lies(life, "x")
                controller = life.controllers[-1]
                life.see(controller)
                controller.look(f"uid-{name}")
        assert life.groups(), life.reasons()
        life.measure(but=["x"])
        life.settle()
        assert NAMES.pending in keys(life.node("x"))


def rounds(nodes, bad, site, *, fresh):
    """What is left of a row after so many attempts, where each group with `bad` comes to nothing."""
    times = dict.fromkeys(range(nodes), 0)
    for _ in range(site.attempts):
        row = [
            dataclasses.replace(waits(place("a", uid=f"{n:03}"), 9e9), times=t)
            for n, t in times.items()
            if t < site.attempts
        ]
        for group in divided(row, site):
            names = [int(w.place.uid) for w in group]
            for n in names:
                times[n] += 1
                if bad not in names:
                    del times[n]
        if fresh and bad in times:
            times[bad] = 0  # it was in another boot by then, and has passed alone in that
    return [n for n in times if n != bad]


@pytest.mark.parametrize("fresh", [False, True], ids=["hangs", "reboots"])
@pytest.mark.parametrize(
    ("nodes", "most", "along"), [(8, 8, 1), (16, 8, 1), (3, 8, 2), (9, 8, 2), (16, 16, 3)]
)
def test_a_node_that_brings_every_group_down_takes_few_others_along(nodes, most, along, fresh):
    """It would take everybody of its first group: they would be together till no attempt is left."""
    site = dataclasses.replace(GROUPED, group_most=most)
    assert max(len(rounds(nodes, bad, site, fresh=fresh)) for bad in range(nodes)) <= along


@pytest.mark.parametrize("least", [2, 3, 4, 8])
@pytest.mark.parametrize("times", [0, 1, 2, 3, 10**9])
def test_nobody_is_left_over_who_would_not_be_at_the_first_try(least, times):
    site = dataclasses.replace(GROUPED, group_least=least, group_most=8)
    for nodes in range(40):
        row = [waits(place("a", uid=f"{n:03}"), 9e9) for n in range(nodes)]
        again = [dataclasses.replace(w, times=times) for w in row]
        first, later = divided(row, site), divided(again, site)
        assert sum(map(len, first)) == sum(map(len, later))
        assert all(least <= len(g) <= 8 for g in (*first, *later))


def test_one_that_was_in_a_group_before_is_measured_with_whoever_comes_next():
    again = dataclasses.replace(waits(place("z"), 1000), times=2)
    [group] = divided([again, waits(place("b")), waits(place("c"))], GROUPED)
    assert {w.place.uid for w in group} == {"uid-z", "uid-b", "uid-c"}


@pytest.mark.parametrize("late", [0, 119, 120, 240, 360, 10**9])
def test_of_a_group_that_is_due_exactly_one_begins_at_any_time(late):
    row = [waits(place(letter), 300 + late) for letter in "bcd"]
    begun = {w.place.uid: begins(w.place.uid, row, GROUPED, now=NOW) for w in row}
    [first] = [uid for uid, group in begun.items() if group]
    assert first == f"uid-{'bcd'[late // 120 % 3]}"
    assert {m.uid for m in begun[first]} == set(begun)


# --- names, sizes, numbers --------------------------------------------------------------------


def told_of(uid, host):
    said = json.dumps({"boot": BOOT, "proof": "np-x-1", "since": NOW - 100})
    return {
        "uid": uid,
        "name": uid,
        "said": ("Unknown", "AwaitingGroup", f"boot {BOOT}; waits"),
        "annotations": {NAMES.awaits: said},
        "labels": {"kubernetes.io/hostname": host} if host else {},
    }


def test_two_nodes_of_one_hostname_are_not_in_one_group():
    """Their pods are kept apart by that label: the second would be pending until the deadline."""
    row = [
        waiting(node(**about), GROUPED)
        for about in (
            told_of("n1", "one"),
            told_of("n2", "one"),
            told_of("n3", "three"),
            told_of("n4", ""),
            told_of("n5", ""),
        )
    ]
    [group] = divided(row, GROUPED)
    assert [w.place.uid for w in group] == ["n1", "n3", "n4", "n5"]


def test_the_largest_group_of_the_longest_names_fits_into_a_job():
    rows = tuple(
        place("a", node="n" * 253, uid=f"{n:036}", boot_id="b" * 64, proof="p" * 63)
        for n in range(64)
    )
    made = group_job.build(
        Measure(members=rows, attempt=10**9, devices=8), GROUPED, _Spec(), nonce="n" * 32
    )
    notes = made["metadata"]["annotations"]
    assert sum(len(k) + len(v) for k, v in notes.items()) < 128 * 1024, "256 KiB are allowed"
    assert all(len(v) <= 63 for v in made["metadata"]["labels"].values())


class _Spec:
    digest = "sha256:" + "0" * 64


def test_a_row_in_which_nobody_moves_is_not_divided_again():
    """Each of ten thousand is looked at every 15 s: sorting all of them each time takes all day."""
    fleet = Fleet(GROUPED)
    for n in range(100):
        fleet.take(f"u{n}", raw_node(**told_of(f"u{n}", "")))
    groups = Groups(None, GROUPED, None, None, wake=lambda _: None)
    one = node(**told_of("u17", ""))
    known = groups.known(one, fleet, now=NOW)
    assert 2 <= len(known.waiting) <= GROUPED.group_most
    assert one.uid in {w.place.uid for w in known.waiting}
    assert groups.known(one, fleet, now=NOW).waiting is known.waiting


def test_who_moves_in_the_row_is_seen_in_the_next_look():
    fleet = Fleet(GROUPED)
    groups = Groups(None, GROUPED, None, None, wake=lambda _: None)
    one = node(**told_of("u1", ""))
    seen = []
    for uid, found in (
        ("u1", told_of("u1", "")),
        ("u2", told_of("u2", "")),
        ("u3", told_of("u3", "")),
        ("u3", {**told_of("u3", ""), "ready": "False"}),
        ("u2", None),
    ):
        fleet.take(uid, raw_node(**found) if found else None)
        seen.append([w.place.uid for w in groups.known(one, fleet, now=NOW).waiting])
    assert seen == [[], ["u1", "u2"], ["u1", "u2", "u3"], ["u1", "u2"], []]


@pytest.mark.parametrize("label", ["x" * 63, "", "\ud800", "a\nb"])
def test_nodes_that_change_their_label_all_the_time_fill_no_memory(label):
    site = dataclasses.replace(GROUPED, group_label="rack")
    fleet = Fleet(site)
    groups = Groups(None, site, None, None, wake=lambda _: None)
    for n in range(50):
        about = {**told_of("u1", ""), "labels": {"rack": f"{label}{n}"}}
        fleet.take("u1", raw_node(**about))
        groups.known(node(**about), fleet, now=NOW)
    assert (len(groups._rows), len(fleet._waiting), len(fleet._alike)) == (1, 1, 1)
