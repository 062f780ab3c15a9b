"""A new node proves its network with the best partner there is, and never passes for want of one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeproof.nccl_tests.partners import Grade, Newcomer, Proved, choose

KIND = "p5en.48xlarge"
NEW = Newcomer(name="new", kind=KIND, rails=4)
OTHER = replace(NEW, name="other")
THIRD = replace(NEW, name="third")
GOOD = Proved(
    name="good",
    kind=KIND,
    rails=4,
    boot_id="b1",
    proved_boot_id="b1",
    proof_age_s=3600.0,
    quarantined=False,
    busy=False,
)
RAILS = ("rdmap0", "rdmap1", "rdmap2", "rdmap3")


def chosen(pending=(), known=(), devices=(), seed=7, node=NEW, **more):
    return choose(node, pending=pending, known=known, devices=devices, seed=seed, **more)


BEST = {
    "others are new too": ([OTHER, THIRD], [GOOD], RAILS, Grade.GROUP, ("other", "third")),
    "one other is new": ([OTHER], [], RAILS, Grade.GROUP, ("other",)),
    "a node known to be good": ([], [GOOD], RAILS, Grade.PAIR, ("good",)),
    "its own devices": ([], [], RAILS, Grade.LOOPBACK, ()),
    "nothing at all": ([], [], (), Grade.ALONE, ()),
    "itself is no partner": ([NEW], [replace(GOOD, name="new")], RAILS, Grade.LOOPBACK, ()),
    "one of another kind is none": ([replace(OTHER, kind="g6")], [], (), Grade.ALONE, ()),
    "one with other rails is none": ([replace(OTHER, rails=2)], [], (), Grade.ALONE, ()),
    "three of four devices are no loopback": ([], [], RAILS[:3], Grade.ALONE, ()),
    "more devices than there should be are none": ([], [], (*RAILS, "x"), Grade.ALONE, ()),
}


@pytest.mark.parametrize("name", BEST)
def test_the_best_that_there_is_is_chosen_and_graded(name):
    pending, known, devices, grade, partners = BEST[name]
    told = chosen(pending, known, devices)
    assert (told.grade, told.partners) == (grade, partners)
    assert told.devices == (RAILS if grade is Grade.LOOPBACK else ())
    assert told.accepted is (grade >= Grade.PAIR)
    assert f"Grade {grade:d}" in told.why


UNFIT = {
    "quarantined": (replace(GOOD, quarantined=True), "is quarantined"),
    "of another kind": (replace(GOOD, kind="g6.48xlarge"), "is a g6.48xlarge"),
    "of no known kind": (replace(GOOD, kind=""), "is a node of no known kind"),
    "with other rails": (replace(GOOD, rails=2), "has 2 network devices and not 4"),
    "never proved": (replace(GOOD, proved_boot_id=""), "was never proved"),
    "without any boot": (replace(GOOD, proved_boot_id="", boot_id=""), "was never proved"),
    "proved under another boot": (replace(GOOD, boot_id="b2"), "was proved under another boot"),
    "proved too long ago": (replace(GOOD, proof_age_s=1e7), "was proved 1e+07 s ago"),
    "proved in the future": (replace(GOOD, proof_age_s=-5.0), "was proved -5 s ago"),
    "proved nobody knows when": (replace(GOOD, proof_age_s=math.nan), "was proved nan s ago"),
    "at work": (replace(GOOD, busy=True), "is at work"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_node_that_is_not_known_to_be_good_now_is_no_partner(name):
    node, why = UNFIT[name]
    told = chosen(known=[node], devices=RAILS)
    assert told.grade is Grade.LOOPBACK
    assert not told.accepted
    assert f"not asked: good {why}" in told.why
    assert chosen(known=[node, replace(GOOD, name="better")]).partners == ("better",)


def test_what_a_pending_node_was_before_does_not_make_it_a_reference():
    told = chosen([OTHER], [replace(GOOD, name="other")])
    assert (told.grade, told.reference) == (Grade.GROUP, "")
    assert "can't tell which of them is bad" in told.why


def test_a_group_of_two_takes_a_known_node_as_a_third_and_a_larger_one_does_not():
    told = chosen([OTHER], [GOOD])
    assert (told.partners, told.reference) == (("other",), "good")
    assert "good, known to be good" in told.why
    assert chosen([OTHER, THIRD], [GOOD]).reference == ""


def test_without_network_devices_there_is_no_loopback():
    told = chosen(node=replace(NEW, rails=0))
    assert told.grade is Grade.ALONE
    assert "is not proved: no partner, and no rails" in told.why


@pytest.mark.parametrize("least", list(Grade))
@pytest.mark.parametrize(
    ("known", "devices", "grade"),
    [([GOOD], RAILS, 2), ([], RAILS, 1), ([], (), 0)],
    ids=["pair", "loopback", "alone"],
)
def test_a_site_accepts_what_it_said_and_nothing_less(known, devices, grade, least):
    told = chosen(known=known, devices=devices, least=least)
    assert told.accepted is (grade >= least)
    assert ("doesn't accept" in told.why) is (grade < least)
    assert f"{least:d} is the least" in told.why


def test_a_grade_that_there_is_not_is_no_policy():
    with pytest.raises(ValueError, match="5 is not a valid Grade"):
        chosen(least=5)


FLEET = [replace(GOOD, name=f"good-{n}") for n in range(12)]


@given(st.permutations(FLEET), st.integers(0, 1 << 32))
def test_the_same_partner_is_elected_in_whatever_order_the_nodes_stand(fleet, seed):
    told = chosen(known=fleet, seed=seed)
    assert told == chosen(known=FLEET, seed=seed)
    assert told.partners[0] in {node.name for node in FLEET}


def test_the_seed_elects_now_one_and_now_another():
    elected = {chosen(known=FLEET, seed=seed).partners for seed in range(200)}
    assert len(elected) == len(FLEET)


BAD = {
    "a node without a name": {"node": replace(NEW, name="")},
    "a node without a kind": {"node": replace(NEW, kind="")},
    "rails below 0": {"node": replace(NEW, rails=-1)},
    "proofs of no age": {"oldest_proof_s": 0.0},
    "proofs of NaN age": {"oldest_proof_s": math.nan},
    "a doubled pending node": {"pending": [OTHER, OTHER]},
    "a doubled known node": {"known": [GOOD, replace(GOOD, quarantined=True)]},
    "a doubled device": {"devices": ("rdmap0", "rdmap0", "rdmap1", "rdmap2")},
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_question_is_refused(name):
    with pytest.raises(ValueError, match=r"name or kind|below 0|twice"):
        chosen(**BAD[name])
