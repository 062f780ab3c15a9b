"""Which nodes wait to be measured together, and how a row of them is divided into groups."""

from __future__ import annotations

import dataclasses
import json

import pytest
from gate_cluster import GPU, NAMES, PENDING
from gate_groups import GROUPED, HERE, KIND, place, waits
from gate_nodes import BOOT, NOW, node, over
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from nodeproof.gate.group import Waiting, begins, note, waiting

UIDS = [f"uid-{n}" for n in range(40)]
TIMES = st.one_of(
    st.floats(NOW - 1000, NOW + 1000),
    st.sampled_from([-1e308, 0.0, NOW, NOW - 300, 1e308]),  # a node may lie
)


@st.composite
def rows(draw):
    """Settings and a row of nodes that wait, in no order."""
    least = draw(st.integers(2, 6))
    site = dataclasses.replace(
        GROUPED,
        group_least=least,
        group_most=draw(st.integers(least, 10)),
        group_wait_s=draw(st.sampled_from([0.0, 60.0, 300.0])),
    )
    uids = draw(st.lists(st.sampled_from(UIDS), unique=True, max_size=40))
    row = [
        Waiting(
            place=place("a", node=f"node-of-{uid}", uid=uid), alike=(KIND, ""), since=draw(TIMES)
        )
        for uid in uids
    ]
    return site, row


def begun(site, row, now=NOW):
    """Every group that somebody begins, as each of the nodes sees it."""
    groups = {w.place.uid: begins(w.place.uid, row, site, now=now) for w in row}
    return {uid: members for uid, members in groups.items() if members}


@examples(max_examples=300, deadline=None)
@given(rows(), st.randoms(use_true_random=False))
def test_everybody_divides_a_row_alike_and_nobody_is_in_two_groups(told, chance):
    site, row = told
    groups = begun(site, row)
    members = [m.uid for group in groups.values() for m in group]
    assert len(members) == len(set(members))
    assert set(members) <= {w.place.uid for w in row}
    for uid, group in groups.items():
        assert group[0].uid == uid
        assert site.group_least <= len(group) <= site.group_most
    again = list(row)
    chance.shuffle(again)
    assert begun(site, again) == groups


@examples(max_examples=300, deadline=None)
@given(rows())
def test_nothing_begins_before_a_group_is_full_or_its_oldest_has_waited(told):
    site, row = told
    since = {w.place.uid: w.since for w in row}
    for group in begun(site, row).values():
        oldest = min(since[m.uid] for m in group)
        assert len(group) == site.group_most or NOW - oldest >= site.group_wait_s
        late = NOW - oldest - site.group_wait_s
        assert since[group[0].uid] == oldest or late >= 120, "whose turn it is, and has gone by"


@examples(max_examples=300, deadline=None)
@given(rows())
def test_after_the_wait_fewer_are_left_over_than_a_group_takes(told):
    site, row = told
    row = [dataclasses.replace(w, since=min(w.since, NOW)) for w in row]
    groups = begun(site, row, now=NOW + 301)
    assert len(row) - sum(map(len, groups.values())) < site.group_least


@examples(max_examples=100, deadline=None)
@given(rows())
def test_who_is_in_no_row_begins_nothing(told):
    site, row = told
    assert begins("uid-of-nobody", row, site, now=NOW) == ()


@pytest.mark.parametrize(
    ("nodes", "least", "most", "waited", "sizes"),
    [
        (0, 2, 8, 300, []),
        (1, 2, 8, 9e9, []),
        (2, 2, 8, 299, []),
        (2, 2, 8, 300, [2]),
        (7, 2, 8, 299, []),
        (8, 2, 8, 0, [8]),
        (9, 2, 8, 299, []),
        (9, 2, 8, 300, [5, 4]),
        (16, 2, 8, 0, [8, 8]),
        (17, 2, 8, 300, [6, 6, 5]),
        (3, 2, 2, 300, [2]),
        (3, 4, 8, 9e9, []),
        (5, 4, 4, 0, [4]),
        (11, 4, 5, 0, [5, 5]),
        (65, 2, 64, 300, [33, 32]),
    ],
)
def test_a_row_is_divided_as_evenly_as_it_goes(nodes, least, most, waited, sizes):
    site = dataclasses.replace(GROUPED, group_least=least, group_most=most)
    row = [waits(place("a", uid=f"uid-{n:03}"), waited) for n in range(nodes)]
    groups = begun(site, row)
    assert [len(group) for group in groups.values()] == sizes
    assert list(groups) == [f"uid-{sum(sizes[:n]):03}" for n in range(len(sizes))]


def test_who_has_waited_longest_is_in_the_first_group():
    site = dataclasses.replace(GROUPED, group_most=2)
    row = [waits(place("b"), 10), waits(place("c"), 20), waits(place("d"), 30)]
    assert begins("uid-d", row, site, now=NOW) == (place("d"), place("c"))
    assert begins("uid-c", row, site, now=NOW) == ()
    assert begins("uid-b", row, site, now=NOW) == ()


# --- what a node says of itself ---------------------------------------------------------------

AWAITING = ("Unknown", "AwaitingGroup", f"boot {BOOT}; waits for others")
SAYS = {"boot": BOOT, "proof": "np-new-1", "since": int(NOW - 100)}


def read(*, notes=None, more=None, site=GROUPED, **differs):
    said = json.dumps(SAYS) if notes is None else notes
    annotations = {NAMES.awaits: said, **(more or {})}
    return waiting(node(**{"said": AWAITING, "annotations": annotations, **differs}), site)


def test_a_node_that_passed_alone_waits_with_what_the_gate_wrote_on_it():
    found = read(notes=note(over()))
    assert found == Waiting(place=HERE, alike=(KIND, ""), since=NOW - 10)


LABELLED = dataclasses.replace(GROUPED, group_label="rack")


@pytest.mark.parametrize(
    "differs",
    [
        {"said": None},
        {"said": ("Unknown", "Testing", AWAITING[2])},
        {"said": ("True", "AllChecksPassed", AWAITING[2])},
        {"said": ("False", "HardwareCondemned", AWAITING[2])},
        {"said": ("Unknown", "UndecidedTooOften", AWAITING[2])},
        {"said": ("Unknown", "AwaitingGroup", "boot boot-0; waits for others")},
        {"said": ("Unknown", "AwaitingGroup", "waits for others")},
        {"boot": "boot-2"},
        {"boot": ""},
        {"boot": None},
        {"taints": [GPU]},
        {"taints": []},
        {"taints": [{**PENDING, "effect": "NoExecute"}]},
        {"taints": [PENDING, {"key": "karpenter.sh/unregistered", "effect": "NoExecute"}]},
        {"ready": "False"},
        {"ready": "Unknown"},
        {"deletionTimestamp": "2026-01-01T00:00:00Z"},
        {"labels": {"node.kubernetes.io/instance-type": "p4d.24xlarge"}},
        {"labels": {"node.kubernetes.io/instance-type": ""}},
        {"site": dataclasses.replace(GROUPED, grouped=[])},
        {"site": LABELLED},
        {"site": LABELLED, "labels": {"rack": ""}},
        {"annotations": {}},
        {"annotations": None},
    ],
    ids=str,
)
def test_whoever_is_not_held_here_and_now_for_others_does_not_wait(differs):
    assert read(**differs) is None


def test_nodes_of_one_rack_are_alike():
    found = read(site=LABELLED, labels={"rack": "r7"})
    assert found is not None
    assert found.alike == (KIND, "r7")


@pytest.mark.parametrize(
    "notes",
    [
        "",
        "np-new-1",
        "null",
        "true",
        "7",
        '"boot"',
        "[]",
        "[[]]",
        "{}",
        "[" * 100_000,
        '{"boot":' * 100_000,
        "9" * 100_000,
        json.dumps({**SAYS, "boot": "boot-2"}),
        json.dumps({**SAYS, "boot": None}),
        json.dumps({**SAYS, "proof": ""}),
        json.dumps({**SAYS, "proof": ["np-new-1"]}),
        json.dumps({**SAYS, "proof": "np-new-1\nuid-b"}),
        json.dumps({**SAYS, "proof": "p" * 200_000}),  # would not fit into a Job's annotations
        json.dumps({**SAYS, "since": None}),
        json.dumps({**SAYS, "since": "yesterday"}),
        json.dumps({**SAYS, "since": []}),
        json.dumps({**SAYS, "since": {}}),
        json.dumps({"boot": BOOT, "since": 0}),
        json.dumps({"boot": BOOT, "proof": "np-new-1"}),
        json.dumps({"proof": "np-new-1", "since": 0}),
        json.dumps({**SAYS, "since": float("nan")}),
        json.dumps({**SAYS, "since": float("inf")}),
        json.dumps({**SAYS, "since": float("-inf")}),
        json.dumps({**SAYS, "since": "nan"}),
        json.dumps({**SAYS, "since": 10**400}),
        json.dumps(SAYS)[:-9] + "1e999}",
    ],
    ids=lambda notes: repr(notes[:60]),
)
def test_nor_does_one_that_says_something_else_than_the_gate_writes(notes):
    assert read(notes=notes) is None


def test_nor_one_whose_boot_id_would_fill_a_job():
    long = "b" * 100_000
    notes = json.dumps({**SAYS, "boot": long})
    assert read(boot=long, said=(*AWAITING[:2], f"boot {long};"), notes=notes) is None


@pytest.mark.parametrize("since", [-1e308, -1, 0, "-1e308", NOW - 9e9, False])
def test_nobody_waits_since_before_it_was_there(since):
    """Or a node would begin groups at once, by saying that it has waited for ever."""
    created = NOW - 200
    found = read(notes=json.dumps({**SAYS, "since": since}), created=created)
    assert found is not None
    assert found.since == created
    row = [found, waits(place("b"), 100)]
    assert begins(HERE.uid, row, GROUPED, now=NOW) == ()


@pytest.mark.parametrize("since", [NOW + 9e9, 1e308])
def test_who_says_that_it_waits_since_tomorrow_keeps_nobody_waiting(since):
    found = read(notes=json.dumps({**SAYS, "since": since}))
    assert found is not None
    other = place("b")
    row = [found, waits(other, 300)]
    assert begins(other.uid, row, GROUPED, now=NOW) == (other, HERE)
    assert begins(HERE.uid, row, GROUPED, now=NOW) == ()


@examples(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["boot", "proof", "since", "x"]), inner, max_size=4)
        ),
    )
)
def test_whatever_a_node_says_is_read_without_harm(said):
    found = read(notes=json.dumps(said))
    assert found is None or found.place.boot_id == BOOT
    started = begins(HERE.uid, [found] if found else [], GROUPED, now=NOW)
    assert started == ()
