"""When rejects come in rows the suites are the suspect."""

from __future__ import annotations

import pytest
from gate_cluster import NAMES, PENDING, SETTINGS
from gate_nodes import QUARANTINED, node
from hypothesis import given
from hypothesis import strategies as st

from nodeproof.gate.breaker import Ruled, why_open

KIND = "p5.48xlarge"


def ruled(uid, accepted=False, reason="device.memory.pattern", at=0.0, kind=KIND):
    return Ruled(kind=kind, node_uid=uid, accepted=accepted, reason=reason, at=at)


def row(*reasons, **more):
    return [ruled(f"uid-{n}", reason=r, at=float(n), **more) for n, r in enumerate(reasons)]


def fleet(quarantined, whole, key=NAMES.quarantined, effect="NoSchedule"):
    shut = {**QUARANTINED, "key": key, "effect": effect}
    return [
        node(taints=[PENDING, shut] if n < quarantined else [], uid=f"n{n}") for n in range(whole)
    ]


@pytest.mark.parametrize(
    ("history", "opens"),
    [
        (row("a", "a"), False),
        (row("a", "a", "a"), True),
        (row("a", "a", "b"), False),
        (row("b", "a", "a", "a"), True),
        (row("a", "a", "a", "b"), True),
        (row("a", "a", "a", "b", "a", "b"), True),
        (row("a", "b", "a", "b", "a"), False),
        ([*row("a", "a", "a"), ruled("uid-1", reason="b", at=7.0)], True),
        ([*row("a", "a", "a", "b"), ruled("late", accepted=True, at=9.0)], False),
        ([*row("a", "a"), ruled("mid", accepted=True, at=1.5), *row("a", "a")], False),
        (row("a", "a", "a", kind="g6.48xlarge"), False),
        ([*row("a", "a", "a"), ruled("late", accepted=True, at=9.0)], False),
        ([ruled("early", accepted=True, at=-1.0), *row("a", "a", "a")], True),
        ([*row("a", "a", "a"), ruled("late", accepted=True, at=9.0, kind="other")], True),
        ([ruled("same", at=float(n)) for n in range(5)], False),
        ([], False),
    ],
    ids=str,
)
def test_three_nodes_in_a_row_rejected_for_one_reason_open_it(history, opens):
    why = why_open([], history, KIND, SETTINGS, now=10.0)
    assert bool(why) is opens
    assert not opens or (KIND in why and " a" in why)


def undecided(*uids, at=5.0):
    return [ruled(uid, reason="UndecidedTooOften", at=at + n) for n, uid in enumerate(uids)]


@pytest.mark.parametrize(
    ("history", "opens"),
    [
        (undecided("x", "y"), False),
        (undecided("x", "y", "z"), True),
        ([*row("a", "a"), *undecided("x")], False),
        ([*row("a", "a", "a"), *undecided("x")], True),
        ([*undecided("x", "y", "z"), *row("a", "b")], True),
        ([*undecided("x", "y", "z"), ruled("late", accepted=True, at=9.0)], False),
    ],
)
def test_nodes_that_stayed_undecided_make_a_row_of_their_own(history, opens):
    assert bool(why_open([], history, KIND, SETTINGS, now=10.0)) is opens


def test_a_row_is_forgotten_after_a_while():
    window = SETTINGS.breaker_window_s
    assert window == 7 * 86400
    assert why_open([], row("a", "a", "a"), KIND, SETTINGS, now=window)
    assert not why_open([], row("a", "a", "a"), KIND, SETTINGS, now=window + 0.5)


@pytest.mark.parametrize(
    ("quarantined", "whole", "opens"),
    [(2, 2, False), (3, 3, True), (3, 14, True), (3, 15, False), (4, 19, True), (0, 0, False)],
)
def test_more_than_a_fifth_and_at_least_three_of_a_kind_open_it(quarantined, whole, opens):
    why = why_open(fleet(quarantined, whole), [], KIND, SETTINGS, now=10.0)
    assert bool(why) is opens
    assert not opens or f"{quarantined} of {whole}" in why


def test_only_our_taint_with_our_effect_counts_and_only_of_that_kind():
    assert not why_open(fleet(5, 5, key="other.dev/quarantined"), [], KIND, SETTINGS, now=10.0)
    assert not why_open(fleet(5, 5, effect="NoExecute"), [], KIND, SETTINGS, now=10.0)
    assert not why_open(fleet(5, 5), [], "another", SETTINGS, now=10.0)


def test_nodes_without_a_kind_are_a_kind_of_their_own():
    bare = [node(taints=[PENDING, QUARANTINED], labels={SETTINGS.kind_label: ""}) for _ in range(3)]
    assert "unknown" in why_open(bare, [], "", SETTINGS, now=10.0)


@given(st.permutations(row("a", "a", "b", "a", "a")))
def test_the_order_in_which_rulings_are_kept_changes_nothing(history):
    assert not why_open([], history, KIND, SETTINGS, now=10.0)
