"""Fleets whose faults are known, and the commands that localise in them, as real processes."""

import json
import subprocess
import sys

import pytest

from nodeproof.nccl_tests.fleets import Fleet
from nodeproof.nccl_tests.simulate import METHODS, adaptive, score


def simulated(*, seed, method="adaptive", how=None, **drawn):
    fleet = Fleet.drawn(**{"bad": 0, "links": 0, "intermittent": 0, "seed": seed} | drawn)
    return score(method, fleet, METHODS[method](fleet, seed=seed, **(how or {})), seed=seed)


def nodeproof(*arguments):
    return subprocess.run(
        [sys.executable, "-P", "-m", "nodeproof", "fabric", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("nodes", "bad", "seeds"), [(4, 1, 20), (9, 2, 20), (64, 1, 20), (64, 4, 10), (256, 3, 5)]
)
def test_every_bad_node_is_named_and_no_good_one_in_spite_of_noise(nodes, bad, seeds):
    scores = [simulated(nodes=nodes, bad=bad, seed=seed) for seed in range(seeds)]
    assert sum(each.missed for each in scores) == 0
    assert sum(each.wrongly_blamed for each in scores) == 0


@pytest.mark.parametrize(("nodes", "most_rounds"), [(1024, 6), (16_384, 8)])
def test_a_large_fleet_is_done_within_its_rounds(nodes, most_rounds):
    told = simulated(nodes=nodes, bad=nodes // 100, seed=1, how={"most_rounds": most_rounds})
    assert (told.missed, told.wrongly_blamed) == (0, 0)
    assert told.rounds <= most_rounds
    assert told.tests_per_node < 1.5


def test_a_fleet_that_is_sound_has_nobody_bad():
    scores = [simulated(nodes=64, seed=seed) for seed in range(20)]
    assert sum(each.wrongly_blamed + each.flaky + each.unresolved for each in scores) == 0


def test_faults_that_come_and_go_are_missed_and_said_to_be_and_a_soak_finds_most():
    quick = [simulated(nodes=64, intermittent=4, seed=seed) for seed in range(10)]
    soak = [simulated(nodes=64, intermittent=4, seed=seed, how={"soak": 10}) for seed in range(10)]
    assert sum(each.missed for each in quick) > 10
    assert all(each.missed == each.intermittent_missed for each in quick + soak)
    assert sum(each.missed for each in soak) <= 4
    assert sum(each.wrongly_blamed for each in soak) == 0


def test_the_methods_compared_find_the_bad_of_a_fleet_without_noise():
    for method in METHODS:
        fleet = Fleet.drawn(nodes=33, bad=2, links=0, intermittent=0, seed=5, noise=0.0, dips=0.0)
        assert METHODS[method](fleet, seed=5).bad == set(fleet.bad), method


def test_a_score_counts_what_was_said_wrongly():
    fleet = Fleet.drawn(nodes=8, bad=1, links=1, intermittent=1, seed=2)
    named = adaptive(fleet, seed=2)
    (bad,), (turns,) = fleet.bad, fleet.intermittent
    good = next(name for name in fleet.names if name not in {bad, turns})
    wrong = type(named)(
        bad={good}, flaky={good}, links={frozenset((good, bad))}, rounds=1, seconds=0.0
    )
    told = score("none", fleet, wrong, seed=2)
    assert (told.missed, told.intermittent_missed, told.wrongly_blamed) == (2, 1, 1)
    assert (told.wrongly_flaky, told.links_named, told.links_wrong) == (1, 0, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"nodes": 0},
        {"nodes": 4, "bad": 5},
        {"nodes": 4, "bad": -1},
        {"nodes": 4, "links": 7},
        {"nodes": 4, "intermittent": 1.5},
        {"nodes": 4, "intermittent": float("nan")},
    ],
)
def test_fleets_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match=r"nodes|links|share"):
        simulated(seed=1, **wrong)


# --- commands ---------------------------------------------------------------------------------


def test_the_command_prints_one_line_and_the_same_for_the_same_seed():
    asked = ("simulate", "--nodes", 64, "--bad", 2, "--seed", 3, "--json")
    first, again = nodeproof(*asked), nodeproof(*asked)
    assert first.returncode == 0, first.stderr
    told, repeated = json.loads(first.stdout), json.loads(again.stdout)
    assert told | {"seconds": 0} == repeated | {"seconds": 0}
    assert (told["nodes"], told["bad"], told["missed"], told["wrongly_blamed"]) == (64, 2, 0, 0)
    assert {"links", "rounds", "tests_per_node", "flaky", "unresolved", "seconds"} <= told.keys()


def test_the_command_has_words_for_people_and_for_what_cannot_be():
    shown = nodeproof("simulate", "--nodes", 16, "--bad", 1)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "16, of which 1 bad" in shown.stdout
    refused = nodeproof("simulate", "--nodes", 4, "--bad", 5)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "5 broken of 4 nodes" in refused.stderr


def rows(bad):
    names = [f"n{number}" for number in range(6)]
    for number in range(1, 4):
        for low in range(3):
            a, b = names[low], names[3 + (low + number) % 3]
            yield {"round": number, "a": a, "b": b, "gbs": 5.0 if bad in {a, b} else 10.0}


@pytest.mark.parametrize(
    ("bad", "status", "says"), [("n4", 10, "bad        n4"), ("none", 0, "6 of 6 nodes are good")]
)
def test_results_of_pairs_are_judged_from_a_file(tmp_path, bad, status, says):
    file = tmp_path / "pairs.json"
    file.write_text(json.dumps(list(rows(bad))))
    shown = nodeproof("localise", file)
    assert (shown.returncode, shown.stderr) == (status, "")
    assert says in shown.stdout
    told = json.loads(nodeproof("localise", file, "--json").stdout)
    assert {name for name, each in told["nodes"].items() if each["place"] == "bad"} == {bad} & told[
        "nodes"
    ].keys()
    assert told["reference_gbs"] == 10.0


def test_a_record_of_a_run_is_judged_with_the_member_that_never_came(tmp_path):
    file = tmp_path / "fabric.json"
    file.write_text(json.dumps(document(pairs=[row | WELL for row in rows("none")])))
    shown = nodeproof("localise", file)
    assert (shown.returncode, shown.stderr) == (11, "")
    assert "unresolved n6: was in no pair" in shown.stdout
    assert "6 of 7 nodes are good" in shown.stdout


WELL = {"wrong": 0, "said": ""}


def document(*, pairs):
    texts = dict.fromkeys(
        ("head", "head_name", "boot_id", "boot_id_end", "started", "ended", "interrupted"), ""
    )
    own = dict.fromkeys(("lost", "boot_id", "boot_id_end", "address", "instance_type"), "")
    return {
        "schema": 1,
        "version": "0",
        "group": texts
        | {"nodes": 7, "device": "cpu", "launcher": "static", "bytes": 8, "seed": 1}
        | {"join_timeout_s": 1.0, "timeout_s": 1.0, "known": [], "loopback": False}
        | {"ratio": 0.85, "floor_gbs": 0.0},
        "members": [
            own
            | {"id": f"n{rank}", "rank": rank, "came": rank < 6, "lost_after_s": None}
            | {"devices": [], "software": {}}
            for rank in range(7)
        ],
        "planted": {"ranks": []},
        "whole": {"ranks": []},
        "small": {"ranks": []},
        "pairs": pairs,
        "rails": [],
        "traffic": {},
        "nccl": {},
    }


def test_what_is_not_settled_is_no_success(tmp_path):
    file = tmp_path / "pairs.json"
    file.write_text(json.dumps(list(rows("none"))))
    shown = nodeproof("localise", file, "--floor-gbs", 20)
    assert shown.returncode == 11
    assert "common     " in shown.stdout


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Expecting value"),
        ("[]", "no pair"),
        ("{}", "schema"),
        ("7", "schema"),
        ("[7]", "pair 0: no object"),
        ('[{"round": 1, "a": "x", "b": "y"}]', "gbs is None"),
        ('[{"round": 1, "a": "x", "gbs": 1}]', "b is None"),
        ('[{"round": true, "a": "x", "b": "y", "gbs": 1}]', "round is True"),
        ('[{"round": 1, "a": "x", "b": "y", "gbs": 1, "size": 2}]', "'size' in it"),
        ('[{"round": 1, "a": "x", "b": "y", "gbs": NaN}]', "no bandwidth"),
        ("[" * 100_000, ""),
    ],
)
def test_a_file_that_holds_no_pairs_is_refused(tmp_path, text, says):
    file = tmp_path / "pairs.json"
    file.write_text(text)
    shown = nodeproof("localise", file)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert str(file) in shown.stderr
    assert says in shown.stderr
    assert "Traceback" not in shown.stderr


def test_a_file_that_is_not_there_is_refused(tmp_path):
    shown = nodeproof("localise", tmp_path / "none.json")
    assert shown.returncode == 2
    assert "No such file" in shown.stderr
