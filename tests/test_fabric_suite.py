"""The checks of a group, judged by what its record holds: each absence, each fault, each plant."""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import fabric_records as samples
import pytest
from planted_bounds import everything_broken
from pytest_run import environment, run_pytest

from nodeproof.acceptance import test_fabric as group_suite
from nodeproof.acceptance import test_fabric_members as member_suite
from nodeproof.checks import Device, DeviceKind, spec_of
from nodeproof.cli import fabric_judge, files, options
from nodeproof.cli.fabric_judge import SUITES
from nodeproof.cli.options import suites
from nodeproof.model import Cause, Outcome
from nodeproof.nccl_tests import answers, record
from nodeproof.nccl_tests.bandwidth import Collective
from tests.standin.build import judged

OF_GROUPS = {DeviceKind.MEMBER, DeviceKind.GROUP, DeviceKind.LINK}
SPEC = """
name = "site"
["fabric.group.bandwidth"]
all_reduce_gbs = 50.0
"""
FLOORS = group_suite.BandwidthLimits(
    **dict.fromkeys((f"{c.value}_gbs" for c in Collective), 0.4) | {"all_to_all_gbs": 0.2}
)
GROUP = Device(kind=DeviceKind.GROUP, id="group", label="group")


def read(document):
    return record.parse(json.dumps(document).encode())


def member(name):
    return Device(kind=DeviceKind.MEMBER, id=name, label=name)


def asked(check, document, name):
    """What the record answers to the work of a check."""
    return answers.BY_CALL[spec_of(check).work.call](read(document), name)


def told(check, document, name="xh0", limits=None):
    """The judgement of a check on one member, or on the group."""
    device = GROUP if name == "group" else member(name)
    return judged(check, asked(check, document, name), limits, device=device)


OF_MEMBERS = (
    group_suite.test_presence,
    group_suite.test_data,
    member_suite.test_pairs,
    member_suite.test_punctual,
    member_suite.test_transport,
)
OF_THE_GROUP = (
    group_suite.test_bandwidth,
    group_suite.test_steadiness,
    group_suite.test_grade,
    member_suite.test_common,
)


@pytest.mark.parametrize("nodes", [2, 3, 8])
@pytest.mark.parametrize("check", [*OF_MEMBERS, *OF_THE_GROUP])
def test_a_sound_group_passes_and_each_bound_has_a_plant_that_breaks_it(check, nodes):
    name = "group" if check in OF_THE_GROUP else "xh1"
    document = samples.record(nodes)
    limits = FLOORS if check is group_suite.test_bandwidth else None
    assert told(check, document, name, limits)[0].outcome is Outcome.PASS
    of_answers = [plant for plant in spec_of(check).plants if plant.alter]
    if len(of_answers) == len(spec_of(check).plants) and name == "group":
        everything_broken(_without_device(check), asked(check, document, name), limits)


def _without_device(check):
    """The same check for a harness that gives no device."""

    def call(result, measure, limits=None):
        given = {"result": result, "measure": measure, "device": GROUP, "limits": limits}
        names = check.__code__.co_varnames[: check.__code__.co_argcount]
        check(**{name: given[name] for name in names})

    call.nodeproof_check = spec_of(check)
    return call


def test_every_check_of_a_group_is_in_the_suites_that_judge_one_and_no_other_is():
    for check in suites().values():
        of_group = bool(set(check.kinds) & OF_GROUPS)
        assert of_group == (check.work.call in answers.BY_CALL), check.id
        assert of_group == check.id.startswith("fabric."), check.id
        assert not (of_group and set(check.kinds) - OF_GROUPS), check.id
    declared = {
        spec_of(value).id
        for suite in (group_suite, member_suite)
        for value in vars(suite).values()
        if spec_of(value)
    }
    modules = {module.rpartition(".")[2] for module in SUITES}
    assert modules == {"test_fabric", "test_fabric_members"}
    assert declared == {name for name in suites() if name.startswith("fabric.")}


# --- who is there -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "name", "broken", "said"),
    [
        (samples.never_came(samples.record(3), 2), "rank 2", {"came"}, "rank 2 never came within 60 s"),
        (samples.lost(samples.record(3), "xh1", "killed by SIGKILL"), "xh1", {"stayed"}, "killed by SIGKILL"),
        (samples.lost(samples.record(3), "xh1", "killed by SIGKILL"), "xh0", set(), ""),
    ],
)  # fmt: skip
def test_who_is_missing_is_told_by_its_own_sentence_and_condemned_by_nobody(
    document, name, broken, said
):
    judgement, short = told(group_suite.test_presence, document, name)
    assert set(short) == broken
    assert said in judgement.summary
    assert judgement.cause is (Cause.ENVIRONMENT if broken else None)


@pytest.mark.parametrize(("start", "end"), [("a", "b"), ("", ""), ("a", ""), ("", "a")])
def test_a_member_that_rebooted_or_can_not_say_is_not_the_same_node(start, end):
    document = samples.record(2)
    document["members"][1] |= {"boot_id": start, "boot_id_end": end}
    assert set(told(group_suite.test_presence, document, "xh1")[1]) == {"the same boot"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"boot_id": samples.BOOT, "boot_id_end": samples.BOOT}, "the same boot"),
        ({"devices": None}, "GPU-0000-0001 too"),
    ],
)
def test_one_machine_that_counts_as_two_members_is_held_against_both(change, said):
    document = samples.record(3, device="cuda", devices=2)
    first, second = document["members"][:2]
    second |= {**change, "devices": first["devices"]} if "devices" in change else change
    for name, other in (("xh0", "xh1"), ("xh1", "xh0")):
        judgement, broken = told(group_suite.test_presence, document, name)
        assert set(broken) == {"own machine"}
        assert f"{other} has {said}" in judgement.summary
        assert judgement.cause is Cause.ENVIRONMENT
    assert told(group_suite.test_presence, document, "xh2")[0].outcome is Outcome.PASS


def test_one_gpu_under_two_labels_is_no_two_gpus():
    document = samples.record(2, device="cuda", devices=2)
    for device in document["members"][1]["devices"]:
        device["id"] = "GPU-0001-0000"
    judgement, broken = told(group_suite.test_presence, document, "xh1")
    assert set(broken) == {"own machine"}
    assert "GPU-0001-0000 is 2 of its devices" in judgement.summary


def test_the_members_of_a_rehearsal_may_share_a_machine():
    document = samples.record(2)
    for each in document["members"]:
        each |= {"boot_id": samples.BOOT, "boot_id_end": samples.BOOT}
    assert told(group_suite.test_presence, document, "xh1")[0].outcome is Outcome.PASS


def test_a_gpu_that_is_cut_into_slices_puts_its_member_in_doubt_and_no_other():
    document = samples.record(2, device="cuda", devices=2)
    document["members"][1]["devices"][1]["facts"] = {"mig": True}
    judgement, broken = told(group_suite.test_presence, document, "xh1")
    assert set(broken) == {"sliced"}
    assert judgement.cause is Cause.ENVIRONMENT
    assert "GPU-0001-0001: cut into slices (MIG)" in judgement.summary
    assert told(group_suite.test_presence, document, "xh0")[0].outcome is Outcome.PASS


# --- what arrived -------------------------------------------------------------------------------


def test_a_wrong_element_is_short_and_blames_nobody():
    document = samples.record(3)
    samples.corrupted(document, 1)
    judgement, broken = told(group_suite.test_data, document, "xh1")
    assert set(broken) == {"wrong"}
    assert judgement.cause is Cause.ENVIRONMENT
    assert "element 11 is 3.0, not 1.0 (bits 30)" in judgement.summary
    assert told(group_suite.test_data, document, "xh0")[0].outcome is Outcome.PASS


@pytest.mark.parametrize("collective", list(Collective))
def test_a_collective_that_nobody_verified_is_no_pass(collective):
    result = asked(group_suite.test_data, samples.record(2), "xh1")
    result["checked"][collective.value] = 0
    assert set(judged(group_suite.test_data, result, None, device=member("xh1"))[1]) == {"verified"}
    document = samples.record(2)
    answer = document["whole"]["ranks"][1]["answer"]
    answer["checked"][collective.value] = 0
    for row in answer["rows"]:
        row["elements"] *= row["collective"] != collective.value
    with pytest.raises(answers.AbsentError, match=f"{collective.value} has no timed row"):
        told(group_suite.test_data, document, "xh1")


def test_a_slow_collective_and_a_rank_that_met_fewer_are_short():
    document = samples.record(3)
    samples.timed(document, Collective.ALL_TO_ALL, 0.1)
    judgement, broken = told(group_suite.test_bandwidth, document, "group", FLOORS)
    assert set(broken) == {"all_to_all"}
    assert judgement.cause is Cause.ENVIRONMENT
    document["whole"]["ranks"][1]["answer"]["size"] = 2
    with pytest.raises(answers.AbsentError, match="it met a group of 2, and 3 ranks were asked"):
        told(group_suite.test_bandwidth, document, "group", FLOORS)


def test_ranks_that_disagree_on_what_they_measured_are_not_believed():
    document = samples.record(3)
    result = asked(group_suite.test_bandwidth, document, "group")
    result["busbw_gbs"]["all_reduce"][1] = 99.0
    judgement, _ = judged(group_suite.test_bandwidth, result, FLOORS, device=GROUP)
    assert judgement.outcome is Outcome.ERROR
    assert "report different bandwidths of the same all_reduce" in judgement.summary
    document["whole"]["ranks"][1]["answer"]["busbw_gbs"]["all_reduce"] = 99.0
    with pytest.raises(answers.AbsentError, match="says 99 GB/s"):
        told(group_suite.test_bandwidth, document, "group")


def test_repeats_that_lie_apart_are_unsteady():
    document = samples.record(2)
    for row in document["whole"]["ranks"]:
        row["answer"]["own_times"]["broadcast"][2] *= 1.5
    judgement, broken = told(group_suite.test_steadiness, document, "group")
    assert set(broken) == {"spread"}
    assert "of broadcast" in judgement.summary
    assert spec_of(group_suite.test_steadiness).trial


def test_a_name_that_is_said_to_be_known_and_no_member_is_told_with_the_grade():
    document = samples.record(2)
    document["group"]["known"] = ["xh7"]
    lax = group_suite.GradeLimits(grade=4)
    judgement, _ = told(group_suite.test_grade, document, "group", lax)
    assert "grade 3 (wants at least 4)" in judgement.summary
    assert "xh7, said to be known, is no member" in judgement.summary


def test_a_site_may_accept_less_than_a_group_but_has_to_say_so():
    document = samples.never_came(samples.record(3), 2)
    assert told(group_suite.test_grade, document, "group")[0].outcome is Outcome.FAIL
    lax = group_suite.GradeLimits(grade=0)
    assert told(group_suite.test_grade, document, "group", lax)[0].outcome is Outcome.PASS


# --- who is slow --------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [3, 4, 5, 8, 16])
def test_one_slow_member_is_blamed_and_no_other(nodes):
    document = samples.slowed(samples.record(nodes, rounds=6), "xh2")
    for name in samples.names(nodes):
        judgement, _ = told(member_suite.test_pairs, document, name)
        if name == "xh2":
            assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.HARDWARE)
            assert judgement.summary.startswith("sound 0 (wants at least 1): bad: ")
        else:
            assert judgement.outcome is Outcome.PASS, judgement.summary


@pytest.mark.parametrize(
    ("slow", "blamed"),
    [([5], False), ([5, 6], False), ([2, 3, 5], False), ([2, 3, 5, 6], True)],
)
def test_of_three_members_one_that_was_slow_once_with_somebody_is_not_blamed(slow, blamed):
    document = samples.record(3)
    of_two = [row for row in document["pairs"] if "xh2" in {row["a"], row["b"]}]
    met = sorted(of_two, key=lambda row: min(row["a"], row["b"]))  # twice xh0, twice xh1
    chosen = {2: met[0], 3: met[1], 5: met[2], 6: met[3]}
    left = [row for row in document["pairs"] if row not in of_two]
    document["pairs"] = left + [chosen[number] for number in slow]
    for number in slow:
        chosen[number]["gbs"] = 0.84 * samples.GBS
    judgement, _ = told(member_suite.test_pairs, document, "xh2")
    assert judgement.outcome is Outcome.FAIL
    assert judgement.cause is (Cause.HARDWARE if blamed else Cause.ENVIRONMENT)


@pytest.mark.parametrize("nodes", [3, 4, 8])
def test_a_member_with_which_nothing_finishes_is_named_and_not_condemned(nodes):
    document = samples.record(nodes, rounds=5)
    for row in document["pairs"]:
        if "xh2" in {row["a"], row["b"]}:
            row |= {"gbs": None, "said": "it hung"}
    for name in samples.names(nodes):
        judgement, _ = told(member_suite.test_pairs, document, name)
        if name != "xh2":
            assert judgement.outcome is Outcome.PASS, judgement.summary
            continue
        assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
        assert judgement.summary.startswith("sound 0 (wants at least 1): bad: failed with all")
        assert "condemns no hardware" in judgement.summary


def test_pairs_that_did_not_finish_take_nothing_from_what_was_measured():
    document = samples.slowed(samples.record(8, rounds=6), "xh2")
    mine = [row for row in document["pairs"] if "xh2" in {row["a"], row["b"]}]
    for row in mine[3:]:
        row |= {"gbs": None, "said": "it hung"}
    assert told(member_suite.test_pairs, document, "xh2")[0].cause is Cause.HARDWARE
    mine[2] |= {"gbs": None, "said": "it hung"}  # two of those that were measured are too few
    assert told(member_suite.test_pairs, document, "xh2")[0].cause is Cause.ENVIRONMENT


@pytest.mark.parametrize(("nodes", "rounds", "opening"), [(3, 5, 6), (4, 1, 2), (5, 1, 2)])
def test_fewer_rounds_than_every_group_begins_with_say_nothing_of_what_is_common(
    nodes, rounds, opening
):
    document = samples.record(nodes, rounds=rounds)
    judgement, _ = told(member_suite.test_common, document, "group")
    assert judgement.outcome is Outcome.ERROR
    assert f"only {rounds} of {opening} opening rounds" in judgement.summary
    enough = samples.record(nodes, rounds=opening)
    assert told(member_suite.test_common, enough, "group")[0].outcome is Outcome.PASS


def test_two_slow_members_are_both_blamed():
    document = samples.slowed(samples.slowed(samples.record(8, rounds=6), "xh2"), "xh5")
    blamed = {
        name
        for name in samples.names(8)
        if told(member_suite.test_pairs, document, name)[0].cause is Cause.HARDWARE
    }
    assert blamed == {"xh2", "xh5"}


def test_of_two_members_alone_nobody_can_be_blamed():
    document = samples.record(2)
    document["pairs"][0] |= {"gbs": None, "said": "it hung"}
    for name in ("xh0", "xh1"):
        judgement, broken = told(member_suite.test_pairs, document, name)
        assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
        assert set(broken) == {"sound", "pairs passed"}


def test_wrong_data_in_a_pair_is_short_for_both_however_fast_it_was():
    document = samples.record(8, rounds=5)
    document["pairs"][0]["wrong"] = 2
    ends = {document["pairs"][0]["a"], document["pairs"][0]["b"]}
    for name in samples.names(8):
        judgement, broken = told(member_suite.test_pairs, document, name)
        assert ("wrong" in broken) == (name in ends)
        assert judgement.cause is (Cause.ENVIRONMENT if name in ends else None)


def test_the_partners_of_a_member_with_wrong_data_are_not_spoiled_by_it():
    document = samples.record(8, rounds=5)
    for row in document["pairs"]:
        if "xh3" in {row["a"], row["b"]}:
            row["wrong"] = 7
    told_of = {n: told(member_suite.test_pairs, document, n)[0] for n in samples.names(8)}
    assert told_of["xh3"].cause is Cause.HARDWARE
    assert {j.outcome for n, j in told_of.items() if n != "xh3"} == {Outcome.PASS}


def test_the_rails_of_a_bad_member_are_told_with_it():
    document = samples.slowed(samples.record(8, rounds=5), "xh2")
    document["rails"] = [
        {"a": "xh2", "b": "xh0", "rail": 0, "gbs": 5.0, "wrong": 0, "said": ""},
        {"a": "xh2", "b": "xh0", "rail": 1, "gbs": None, "wrong": 0, "said": "it hung"},
    ]
    judgement, _ = told(member_suite.test_pairs, document, "xh2")
    assert "rails: 0 5 GB/s, 1 it hung" in judgement.summary


def test_a_cause_that_all_have_in_common_blames_nobody():
    document = samples.record(8, rounds=3)
    for row in document["pairs"]:
        row |= {"gbs": None, "said": "timed out"}
    judgement, broken = told(member_suite.test_common, document, "group")
    assert set(broken) == {"common causes"}
    assert judgement.cause is Cause.ENVIRONMENT
    for name in samples.names(8):
        assert told(member_suite.test_pairs, document, name)[0].cause is Cause.ENVIRONMENT


def test_a_floor_finds_a_group_that_is_slow_alike():
    limits = member_suite.PairLimits(floor_gbs=40.0)
    document = samples.record(8)
    assert told(member_suite.test_common, document, "group")[0].outcome is Outcome.PASS
    assert told(member_suite.test_common, document, "group", limits)[0].outcome is Outcome.FAIL


def test_a_member_that_comes_late_every_time_is_named_and_those_that_wait_are_not():
    document = samples.record(4)
    for row in document["small"]["ranks"]:
        if row["member"] != "xh2":
            times = row["answer"]["own_times"]
            row["answer"]["own_times"] = {n: [s + 0.05 for s in all_] for n, all_ in times.items()}
    for name in samples.names(4):
        judgement, broken = told(member_suite.test_punctual, document, name)
        assert set(broken) == ({"late"} if name == "xh2" else set())
        assert judgement.cause is (Cause.ENVIRONMENT if name == "xh2" else None)


def test_what_was_not_timed_often_enough_is_not_judged():
    document = samples.record(3)
    for row in document["small"]["ranks"]:
        row["answer"]["own_times"]["all_reduce"] = [0.01]
        row["answer"]["repeats"]["all_reduce"] = 1
    assert told(member_suite.test_punctual, document)[0].outcome is Outcome.ERROR


# --- what carried it ----------------------------------------------------------------------------


def test_a_fall_back_to_tcp_is_short_where_another_network_is_expected():
    limits = member_suite.TransportLimits(provider="efa")
    judgement, broken = told(member_suite.test_transport, samples.record(2), limits=limits)
    assert set(broken) == {"problems", "proved"}
    assert judgement.cause is Cause.ENVIRONMENT
    assert "tcp" in judgement.summary


def test_counters_that_were_not_read_prove_nothing():
    document = samples.record(2)
    document["traffic"]["xh0"] |= {"after": None, "said": "/sys can't be read"}
    judgement, _ = told(member_suite.test_transport, document)
    assert judgement.outcome is Outcome.ERROR
    assert "/sys can't be read" in judgement.summary
    del document["traffic"]["xh1"]
    with pytest.raises(answers.AbsentError, match="neither counters nor logs of xh1"):
        told(member_suite.test_transport, document, "xh1")


# --- whole runs ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Judged:
    status: int
    text: str
    verdict: dict
    records: list


@pytest.fixture
def judge(tmp_path):
    """Have the command judge a document, in a process of its own, and read what it left."""

    def run(document, *words):
        path = samples.written(tmp_path, document)
        done = subprocess.run(
            [
                *(sys.executable, "-P", "-m", "nodeproof", "fabric", "judge", path),
                *("--output", tmp_path / "out", *words),
            ],
            env=environment(),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        results, verdict = tmp_path / "out/results.jsonl", tmp_path / "out/verdict.json"
        return Judged(
            status=done.returncode,
            text=done.stdout + done.stderr,
            verdict=json.loads(verdict.read_text()) if verdict.exists() else {},
            records=[json.loads(row) for row in results.read_text().splitlines()]
            if results.exists()
            else [],
        )

    return run


def test_a_sound_group_is_accepted_and_so_is_each_member(judge, tmp_path):
    done = judge(samples.record(8), "--nonce", "n0nce")
    assert (done.status, done.verdict["verdict"]) == (0, "accept"), done.text
    assert done.verdict["members"] == dict.fromkeys(samples.names(8), "accept")
    assert done.verdict["rehearsal"] is True
    assert done.verdict["nonce"] == "n0nce"
    plan = done.records[0]
    assert [d["kind"] for d in plan["devices"]] == ["group", *["member"] * 8]
    assert plan["node"]["group"] == 8
    assert plan["node"]["boot_id"] == samples.BOOT
    assert {t["caught"] for t in done.records if t["type"] == "selftest"} == {True}
    for name in ("results.jsonl", "verdict.json", "junit.xml", "metrics.prom", "report.html"):
        assert (tmp_path / "out" / name).stat().st_size > 0
    metrics = (tmp_path / "out/metrics.prom").read_text()
    assert 'nodeproof_group_member_verdict{member="xh7",verdict="accept"} 1' in metrics
    assert "nodeproof_verdict" not in metrics


@pytest.mark.parametrize(
    ("instance_type", "nics", "gbs", "outcome", "says"),
    [
        ("p5.48xlarge", 32, 487.0, Outcome.PASS, "published"),
        ("p5.48xlarge", 32, 400.0, Outcome.FAIL, "published"),
        ("p5.48xlarge", 31, 487.0, Outcome.ERROR, "31"),
        ("p5.48xlarge", None, 487.0, Outcome.ERROR, "network devices"),
        ("whatever", 32, 487.0, Outcome.ERROR, "set all_reduce_gbs"),
        (None, 32, 487.0, Outcome.ERROR, "set all_reduce_gbs"),
    ],
)
def test_without_a_spec_a_published_figure_judges_and_nothing_known_is_no_pass(
    instance_type, nics, gbs, outcome, says
):
    result = asked(group_suite.test_bandwidth, samples.record(2, devices=8), "group")
    size = 8 << 30
    result |= {"instance_type": instance_type, "nics": nics, "largest_bytes": {}, "busbw_gbs": {}}
    for collective in Collective:
        result["largest_bytes"][collective.value] = [size] * 16
        result["busbw_gbs"][collective.value] = [gbs] * 16
    judgement, _ = judged(group_suite.test_bandwidth, result, None, device=GROUP)
    assert judgement.outcome is outcome, judgement
    if outcome is Outcome.ERROR:
        assert says in judgement.summary


def test_a_floor_that_the_wires_do_not_allow_is_refused():
    result = asked(group_suite.test_bandwidth, samples.record(4, devices=8), "group")
    result |= {"instance_type": "p5.48xlarge", "nics": 32}
    for gbs in (3.6, 3600.0):
        limits = dataclasses.replace(FLOORS, all_reduce_gbs=gbs)
        judgement, _ = judged(group_suite.test_bandwidth, result, limits, device=GROUP)
        assert (judgement.outcome, judgement.cause) == (Outcome.ERROR, Cause.CONFIG)
        assert "look at unit and digits" in judgement.summary


def floors(folder):
    """A spec by which any group that moves is fast enough."""
    path = folder / "floors.toml"
    rows = [f"{name} = {gbs}" for name, gbs in dataclasses.asdict(FLOORS).items()]
    path.write_text("\n".join(['name = "floors"', '["fabric.group.bandwidth"]', *rows]))
    return path


def test_a_bad_member_of_gpus_is_rejected_and_the_others_are_not(judge, tmp_path):
    document = samples.slowed(samples.record(8, rounds=5, device="cuda", devices=2), "xh3")
    done = judge(document, "--spec", floors(tmp_path))
    assert (done.status, done.verdict["rehearsal"]) == (10, False), done.text
    assert {r["device"] for r in done.verdict["failed"]} == {"xh3"}
    expected = dict.fromkeys(samples.names(8), "accept") | {"xh3": "reject"}
    assert done.verdict["members"] == expected


def test_a_bad_link_is_a_finding_of_its_own_and_its_ends_are_in_doubt(judge):
    document = samples.record(8, rounds=5)
    first = document["pairs"][0]
    first["gbs"] = 1.0
    document["pairs"] += [{**first, "round": number} for number in (6, 7, 8, 9)]
    done = judge(document)
    assert done.status == 11, done.text
    ends = {first["a"], first["b"]}
    links = [d["id"] for d in done.records[0]["devices"] if d["kind"] == "link"]
    assert [set(link.split("|")) for link in links] == [ends]
    whys = {r["device"]: r["why"] for r in done.verdict["undecided"]}
    assert set(whys) == {*links, *ends}
    assert whys[links[0]] == "a link failed, which blames neither of its ends"
    assert {n for n, d in done.verdict["members"].items() if d != "accept"} == ends


def test_a_member_that_takes_wrong_elements_off_another_rank_accepts_nobody(judge):
    """Both ranks of a node are summed, so that a negative count would hide the other's."""
    document = samples.record(3, devices=2)
    samples.corrupted(document, 2)
    document["whole"]["ranks"][3]["answer"]["wrong"] = -1
    done = judge(document)
    assert done.status == 11, done.text
    assert "wrong is -1, no count" in done.text
    assert set(done.verdict["members"].values()) == {"undecided"}


def test_a_machine_that_counts_twice_and_a_sliced_gpu_put_just_their_members_in_doubt(
    judge, tmp_path
):
    document = samples.record(5, device="cuda", devices=2)
    members = document["members"]
    members[1]["devices"] = members[0]["devices"]
    members[3]["devices"][0]["facts"] = {"mig": True}
    done = judge(document, "--spec", floors(tmp_path))
    assert (done.status, done.verdict["failed"]) == (11, []), done.text
    undecided = {r["device"] for r in done.verdict["undecided"]}
    assert undecided == {"xh0", "xh1", "xh3"}
    accepted = {name for name, decision in done.verdict["members"].items() if decision == "accept"}
    assert accepted == {"xh2", "xh4"}


def test_a_lost_member_is_named_and_nothing_is_condemned(judge):
    done = judge(samples.lost(samples.record(4), "xh2", "its process was killed by SIGKILL"))
    assert (done.status, done.verdict["failed"]) == (11, [])
    assert "  xh2: its process was killed by SIGKILL; see its own log" in done.text
    assert "which follow from the above: see the files" in done.text
    assert set(done.verdict["members"].values()) == {"undecided"}


@pytest.mark.parametrize("change", [{"interrupted": "by SIGTERM"}, {"boot_id_end": "another"}])
def test_a_run_that_was_cut_short_or_rebooted_accepts_nobody(judge, change):
    document = samples.record(2)
    document["group"] |= change
    done = judge(document)
    assert done.status == 11
    assert set(done.verdict["members"].values()) == {"undecided"}


def test_what_a_spec_asks_less_than_the_shipped_limits_is_said_before_the_verdict(judge, tmp_path):
    """A verdict holds the spec as a digest, by which nobody sees that it asks for nothing."""
    (tmp_path / "lax.toml").write_text('name = "lax"\n["fabric.group.grade"]\ngrade = 0\n')
    done = judge(samples.record(1), "--spec", str(tmp_path / "lax.toml"))
    note = done.text.index("note: laxer than shipped: fabric.group.grade grade = 0, shipped 2")
    assert note < done.text.index(" group of 1 node: ")


def test_a_spec_sets_what_a_group_must_reach(judge, tmp_path):
    (tmp_path / "site.toml").write_text(SPEC)
    done = judge(samples.record(3, device="cuda"), "--spec", str(tmp_path / "site.toml"))
    assert done.status == 11
    assert {r["check"] for r in done.verdict["undecided"]} == {"fabric.group.bandwidth"}
    assert set(done.verdict["members"].values()) == {"undecided"}


@pytest.mark.parametrize(
    ("change", "spec", "said"),
    [
        ({"schema": 2}, "", "its schema is 2, this version reads 1"),
        ({}, "nothing.toml", "nothing.toml"),
        ({}, "auto", "--spec auto fits the machine it runs on"),
    ],
)
def test_what_can_not_be_judged_is_refused_before_anything_is_written(
    tmp_path, capsys, change, spec, said
):
    path = samples.written(tmp_path, samples.record(2) | change)
    asked = argparse.Namespace(
        file=path, output=tmp_path / "out", spec=spec, waivers=None, nonce=""
    )
    assert fabric_judge.main(asked) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_record_that_a_run_left_unreadable_is_undecided_with_all_its_files(tmp_path):
    path = samples.written(tmp_path, samples.record(2) | {"schema": 2})
    output, said = files.prepare(tmp_path / "out"), []
    terms = {"spec": "", "waivers": None, "deadline_s": 60.0, "nonce": "", "run_id": "r"}
    assert fabric_judge.judge(path, output, **terms, show=said.append) == 11
    assert "its schema is 2, this version reads 1" in "".join(said)
    told = json.loads((output / "verdict.json").read_text())
    assert (told["verdict"], "members" in told) == ("undecided", False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"replay": Path("x.json")}, "--replay is about one node"),
        ({"record": Path("x.json")}, "--record is about one node"),
        ({"expect_gpus": 8}, "--expect-gpus is about one node"),
        ({"device": "cuda"}, "--device cuda: the group worked with --device cpu"),
    ],
)
def test_a_group_is_no_node_to_record_or_to_replay(tmp_path, change, said):
    path = samples.written(tmp_path, samples.record(2))
    asked = fabric_judge._asked(path, "", None, 60.0, "", "r")
    with pytest.raises(ValueError, match=said):
        options.read(argparse.Namespace(**{**vars(asked), **change}))


def test_the_checks_of_a_node_have_nothing_to_do_with_a_group_nor_the_other_way_round(tmp_path):
    path = samples.written(tmp_path, samples.record(2))
    ran = run_pytest(
        tmp_path,
        *("--pyargs", "nodeproof.acceptance.test_host", SUITES[0], "--nodeproof-output=out"),
        f"--nodeproof-group={path}",
    )
    assert {check.partition(".")[0] for check, _ in ran.findings()} == {"fabric"}
    ran = run_pytest(tmp_path / "..", "--pyargs", *SUITES, "--nodeproof-device=cpu", "--co", "-q")
    assert ran.status == pytest.ExitCode.NO_TESTS_COLLECTED
