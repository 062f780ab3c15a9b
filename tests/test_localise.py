"""From results of pairs to the node, the link or the common cause, on groups whose faults are known."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeproof.nccl_tests.localise import Pair, Place, judge, next_round, whole_round

FULL, SLOW = 10.0, 6.0
HANG = "did not finish within 30 s"


def names(count):
    return [f"n{number}" for number in range(count)]


def asked(nodes, rate, *, floor_gbs=0.0, seed=3, most_rounds=10):
    """Ask until nothing is open. `rate(a, b, round)` is GB/s, or what else a `Pair` holds."""
    pairs, number = [], 0
    while chosen := next_round(
        nodes, pairs, seed=seed, floor_gbs=floor_gbs, most_rounds=most_rounds
    ):
        number += 1
        assert len({name for pair in chosen for name in pair}) == 2 * len(chosen)
        for a, b in chosen:
            found = rate(a, b, number)
            found = found if isinstance(found, dict) else {"gbs": found}
            pairs.append(Pair(round=number, a=a, b=b, **found))
    assert number <= most_rounds
    return judge(nodes, pairs, floor_gbs=floor_gbs), pairs


def of(told, place):
    return {name for name, each in told.nodes.items() if each.place is place}


def slow(*bad):
    return lambda a, b, _: SLOW if {a, b} & set(bad) else FULL


def links(*dead):
    ways = {frozenset(way) for way in dead}
    return lambda a, b, _: SLOW if frozenset((a, b)) in ways else FULL


def table(rows):
    return [Pair(round=number, a=a, b=b, gbs=gbs) for number, a, b, gbs in rows]


# --- faults that last -------------------------------------------------------------------------


@given(
    count=st.integers(4, 60),
    share=st.floats(0, 0.3),
    seed=st.integers(0, 2**32),
    left=st.floats(0.2, 0.75),
    data=st.data(),
)
@settings(deadline=None, max_examples=150)
def test_without_noise_exactly_the_bad_nodes_are_bad(count, share, seed, left, data):
    nodes = names(count)
    most = min(int(count * share), (count - 1) // 3)
    bad = data.draw(st.sets(st.sampled_from(nodes), max_size=most))
    told, _ = asked(
        nodes,
        lambda a, b, _: FULL * left if {a, b} & bad else FULL,
        seed=seed,
        floor_gbs=FULL,
    )
    assert of(told, Place.BAD) == bad
    assert of(told, Place.GOOD) == set(nodes) - bad
    assert not told.links


@given(count=st.integers(2, 40), seed=st.integers(0, 2**32), data=st.data())
@settings(deadline=None, max_examples=150)
def test_whatever_is_bad_no_good_node_is_called_bad_and_no_bad_one_good(count, seed, data):
    nodes = names(count)
    bad = data.draw(st.sets(st.sampled_from(nodes)))
    told, _ = asked(nodes, slow(*bad), seed=seed, floor_gbs=FULL)
    assert of(told, Place.BAD) <= bad
    assert not of(told, Place.GOOD) & bad


@pytest.mark.parametrize("count", [3, 4, 5, 7, 8, 9, 64])
def test_one_slow_node_is_named_without_a_floor(count):
    told, _ = asked(names(count), slow("n2"))
    assert of(told, Place.BAD) == {"n2"}
    assert of(told, Place.GOOD) == set(names(count)) - {"n2"}
    assert not told.common
    assert told.reference_gbs == FULL


@pytest.mark.parametrize(
    "broken", [{"gbs": None, "said": HANG}, {"gbs": FULL, "wrong": 3}, {"gbs": None}]
)
def test_a_node_that_hangs_or_corrupts_is_found_as_a_slow_one_is(broken):
    told, _ = asked(names(8), lambda a, b, _: broken if "n5" in {a, b} else FULL)
    assert of(told, Place.BAD) == {"n5"}
    assert of(told, Place.GOOD) == set(names(8)) - {"n5"}
    words = broken.get("said") or ("3 wrong" if broken.get("wrong") else "no figure")
    assert words in told.nodes["n5"].why


def test_what_is_said_of_a_bad_node_names_partners_and_figures():
    told, pairs = asked(names(8), slow("n5"))
    partners = {p.a if p.b == "n5" else p.b for p in pairs if "n5" in {p.a, p.b}}
    why = told.nodes["n5"].why
    assert all(name in why for name in partners)
    assert "6 GB/s, 60 % of 10" in why
    assert "n5, which is bad" in told.nodes[min(partners)].why


def test_two_bad_nodes_that_met_first_are_both_named():
    nodes = names(16)
    first = whole_round(nodes, 1, seed=3)[0]
    told, _ = asked(nodes, slow(*first), seed=3)
    assert of(told, Place.BAD) == set(first)
    assert of(told, Place.GOOD) == set(nodes) - set(first)


# --- few nodes --------------------------------------------------------------------------------


def test_of_one_node_nothing_is_known_and_nothing_asked():
    assert next_round(["n0"], [], seed=1) == []
    assert of(judge(["n0"], []), Place.UNRESOLVED) == {"n0"}
    assert judge([], []).nodes == {}


def test_of_two_nodes_that_fail_neither_is_blamed():
    told, pairs = asked(names(2), lambda *_: SLOW, floor_gbs=FULL)
    assert of(told, Place.UNRESOLVED) == {"n0", "n1"}
    assert told.common
    assert len(pairs) == 1


def test_two_nodes_alone_say_that_they_were_held_against_nothing():
    told, _ = asked(names(2), lambda *_: SLOW)
    assert of(told, Place.GOOD) == {"n0", "n1"}
    assert "no floor is known" in told.nodes["n0"].why
    told, _ = asked(names(2), lambda *_: FULL, floor_gbs=FULL)
    assert "no floor" not in told.nodes["n0"].why


@pytest.mark.parametrize(
    ("bad", "places"),
    [
        ("n0", {"n0": "bad", "n1": "good", "n2": "good"}),
        ("n0 n1", {"n0": "unresolved", "n1": "unresolved", "n2": "unresolved"}),
    ],
)
def test_of_three_nodes_the_one_in_both_failing_pairs_is_bad(bad, places):
    told = judge(
        names(3),
        [
            Pair(round=number, a=a, b=b, gbs=SLOW if {a, b} & set(bad.split()) else FULL)
            for number, (a, b) in enumerate(itertools.combinations(names(3), 2), 1)
        ],
        floor_gbs=FULL,
    )
    assert {name: each.place for name, each in told.nodes.items()} == places


def test_of_three_nodes_one_bad_link_is_told_from_a_bad_node():
    told, _ = asked(names(3), links(("n0", "n2")))
    assert [way[:2] for way in told.links] == [("n0", "n2")]
    assert of(told, Place.GOOD) == {"n1"}


def test_the_one_that_stayed_out_of_a_round_of_an_odd_number_is_asked_next():
    nodes = names(7)
    out = set(nodes) - {name for pair in whole_round(nodes, 1, seed=3) for name in pair}
    told, pairs = asked(nodes, slow(*out))
    assert of(told, Place.BAD) == out
    assert {p.round for p in pairs if out & {p.a, p.b}} == {2, 3, 4}


# --- links ------------------------------------------------------------------------------------


def test_a_link_that_fails_again_is_named_and_neither_of_its_ends():
    nodes = names(8)
    a, b = whole_round(nodes, 1, seed=3)[1]
    told, pairs = asked(nodes, links((a, b)))
    assert [set(way[:2]) for way in told.links] == [{a, b}]
    assert told.nodes[a].place is Place.LINK
    assert told.nodes[a].partner == b
    assert told.nodes[b].partner == a
    assert of(told, Place.GOOD) == set(nodes) - {a, b}
    assert sum({p.a, p.b} == {a, b} for p in pairs) > 1


def test_where_only_links_are_bad_no_node_is():
    nodes = names(8)
    dead = whole_round(nodes, 1, seed=3)
    told, _ = asked(nodes, links(*dead), floor_gbs=FULL)
    assert {frozenset(way[:2]) for way in told.links} == {frozenset(way) for way in dead}
    assert of(told, Place.LINK) == set(nodes)
    assert told.common


def test_a_pair_that_passes_when_asked_again_accuses_nobody():
    first = whole_round(names(8), 1, seed=3)[0]

    def once(a, b, number):
        return SLOW if number == 1 and (a, b) == first else FULL

    told, _ = asked(names(8), once)
    assert of(told, Place.GOOD) == set(names(8))
    assert "failed with" in told.nodes[first[0]].why


def test_a_pair_that_was_not_asked_again_leaves_its_ends_open():
    rows = [(1, "n0", "n1", SLOW), (1, "n2", "n3", FULL), (2, "n0", "n2", FULL)]
    told = judge(names(4), table([*rows, (2, "n1", "n3", FULL)]))
    assert of(told, Place.UNRESOLVED) == {"n0", "n1"}
    assert of(told, Place.GOOD) == {"n2", "n3"}


# --- by turns, wrong data ---------------------------------------------------------------------


def test_a_node_that_fails_with_several_by_turns_is_flaky_and_its_partners_are_not():
    rows = [(1, "n0", "n1", SLOW), (1, "n2", "n3", FULL), (1, "n4", "n5", FULL)]
    rows += [(2, "n0", "n2", FULL), (2, "n1", "n3", FULL), (3, "n0", "n4", SLOW)]
    told = judge(names(6), table([*rows, (3, "n2", "n5", FULL)]))
    assert of(told, Place.FLAKY) == {"n0"}
    assert of(told, Place.GOOD) == set(names(6)) - {"n0"}


def test_a_soak_finds_what_passes_more_often_than_it_fails():
    nodes = names(16)
    pairs = [
        Pair(round=r, a=a, b=b, gbs=SLOW if "n6" in {a, b} and r % 3 == 0 else FULL)
        for r in range(1, 11)
        for a, b in whole_round(nodes, r, seed=2)
    ]
    assert of(judge(nodes, pairs), Place.FLAKY) == {"n6"}
    assert of(judge(nodes, pairs), Place.GOOD) == set(nodes) - {"n6"}


def test_data_that_came_wrong_once_clears_neither_end():
    first = whole_round(names(8), 1, seed=3)[0]

    def once(a, b, number):
        return {"gbs": FULL, "wrong": 1} if number == 1 and (a, b) == first else FULL

    told, _ = asked(names(8), once)
    assert of(told, Place.UNRESOLVED) == set(first)
    assert "wrong data" in told.nodes[first[0]].why
    assert first[1] in told.nodes[first[0]].why


def test_who_corrupts_with_two_others_is_flaky():
    rows = [(1, "n0", "n1"), (1, "n2", "n3"), (2, "n0", "n2"), (2, "n1", "n3"), (3, "n0", "n3")]
    bad = {(1, "n0"), (3, "n0")}
    rows += [(4, "n0", "n1"), (5, "n0", "n3")]
    pairs = [Pair(round=r, a=a, b=b, gbs=FULL, wrong=int((r, a) in bad)) for r, a, b in rows]
    told = judge(names(4), pairs)
    assert of(told, Place.FLAKY) == {"n0"}
    assert of(told, Place.GOOD) == {"n1", "n2", "n3"}


# --- common causes ----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 4, 8, 9, 64])
def test_where_all_are_bad_nobody_is_blamed_and_it_soon_ends(count):
    told, pairs = asked(names(count), lambda *_: {"gbs": None, "said": HANG}, floor_gbs=FULL)
    assert of(told, Place.UNRESOLVED) == set(names(count))
    assert "look for a cause" in told.common
    assert max(pair.round for pair in pairs) <= 6


def test_where_half_are_bad_those_that_pass_settle_it_and_the_common_cause_is_said():
    bad = set(names(64)[::2])
    told, _ = asked(names(64), slow(*bad))
    assert of(told, Place.BAD) == bad
    assert of(told, Place.GOOD) == set(names(64)) - bad
    assert told.common


@pytest.mark.parametrize("share", [2, 4])
def test_of_two_islands_that_do_not_reach_each_other_nobody_is_blamed(share):
    nodes = names(64)
    island = set(nodes[: 64 // share])
    for seed in range(20):
        told, _ = asked(
            nodes, lambda a, b, _: SLOW if (a in island) != (b in island) else FULL, seed=seed
        )
        assert not of(told, Place.BAD)
        assert not told.links
        assert "in parts" in told.common


def test_a_node_in_no_pair_is_unresolved():
    told = judge(names(3), table([(1, "n0", "n1", FULL)]))
    assert told.nodes["n2"].place is Place.UNRESOLVED
    assert "in no pair" in told.nodes["n2"].why


def test_without_a_pass_no_figure_is_taken_for_one():
    told = judge(names(4), table([(1, "n0", "n1", 0.0), (1, "n2", "n3", None)]))
    assert of(told, Place.UNRESOLVED) == set(names(4))
    assert told.reference_gbs == 0.0


# --- arguments --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ({"a": "n0", "b": "x", "gbs": 1.0}, "nodes of the group"),
        ({"a": "n0", "b": "n0", "gbs": 1.0}, "two nodes"),
        ({"a": "n0", "b": "n1", "gbs": float("nan")}, "no bandwidth"),
        ({"a": "n0", "b": "n1", "gbs": float("inf")}, "no bandwidth"),
        ({"a": "n0", "b": "n1", "gbs": -1.0}, "no bandwidth"),
        ({"a": "n0", "b": "n1", "gbs": 1.0, "wrong": -1}, "no count"),
        ({"a": "n0", "b": "n1", "gbs": 1.0, "round": 0}, "count from 1"),
        ({"a": "n3", "b": "n2", "gbs": 1.0}, "twice"),
    ],
)
def test_what_cannot_be_judged_is_refused(pair, says):
    pairs = [Pair(round=1, a="n2", b="n3", gbs=1.0), Pair(**{"round": 1} | pair)]
    for ask in (lambda: judge(names(4), pairs), lambda: next_round(names(4), pairs, seed=1)):
        with pytest.raises(ValueError, match=says):
            ask()


@pytest.mark.parametrize(
    "wrong", [{"ratio": 0.0}, {"ratio": 1.1}, {"floor_gbs": -1.0}, {"floor_gbs": float("nan")}]
)
def test_limits_that_are_none_are_refused(wrong):
    with pytest.raises(ValueError, match=r"ratio|floor"):
        judge(names(4), [], **wrong)
    with pytest.raises(ValueError, match="twice"):
        judge(["n0", "n0"], [])


def test_the_same_arguments_give_the_same_answer_and_another_seed_another_order():
    nodes = names(40)
    told = [asked(nodes, slow("n3", "n17"), seed=seed) for seed in (5, 5, 6)]
    assert told[0] == told[1]
    assert told[0][1] != told[2][1]


@pytest.mark.parametrize("count", [2, 3, 7, 8])
def test_in_whole_rounds_everybody_meets_everybody_once(count):
    rounds = [whole_round(names(count), r, seed=4) for r in range(1, count + count % 2)]
    met = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert len(met) == len(set(met)) == count * (count - 1) // 2
