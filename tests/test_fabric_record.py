"""The record of a group: read strictly, and what it answers to each check."""

from __future__ import annotations

import copy
import json

import fabric_records as samples
import pytest

from nodeproof.nccl_tests import answers, record
from nodeproof.nccl_tests.answers import AbsentError
from nodeproof.nccl_tests.record import RecordError


def read(document):
    return record.parse(json.dumps(document).encode())


def changed(change, nodes=3):
    document = samples.record(nodes)
    change(document)
    return document


def put(*path_and_value):
    *path, last, value = path_and_value

    def change(document):
        at = document
        for step in path:
            at = at[step]
        at[last] = value

    return change


def take(*path):
    def change(document):
        at = document
        for step in path[:-1]:
            at = at[step]
        del at[path[-1]]

    return change


@pytest.mark.parametrize("nodes", [1, 2, 3, 8])
def test_a_whole_record_is_read_as_it_was_written(tmp_path, nodes):
    path = tmp_path / "fabric.json"
    record.write(path, samples.record(nodes))
    read_back = record.load(path)
    assert [m.id for m in read_back.members] == samples.names(nodes)
    assert len(read_back.whole) == len(read_back.planted) == nodes
    assert [p.name for p in tmp_path.iterdir()] == ["fabric.json"]


def test_what_is_no_number_is_written_and_then_refused(tmp_path):
    path = tmp_path / "fabric.json"
    record.write(path, changed(put("pairs", 0, "gbs", float("nan"))))
    with pytest.raises(RecordError, match=r"fabric\.json: gbs is 'nan', no number"):
        record.load(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("schema", 2), "its schema is 2"),
        (put("schema", True), "its schema is True"),
        (take("schema"), "its schema is None"),
        (take("pairs"), "it does not say 'pairs'"),
        (take("group", "boot_id_end"), "it does not say 'boot_id_end'"),
        (take("members", 1, "came"), "it does not say 'came'"),
        (put("group", "nodes", 4), "it names 3 members of a group of 4"),
        (put("group", "nodes", 0), "nodes is 0"),
        (put("group", "nodes", 3.0), "nodes is 3.0"),
        (put("group", "device", "tpu"), "its device is 'tpu'"),
        (put("group", "device", "cuda"), "no GPUs, in a group of GPUs"),
        (put("members", 1, "id", "xh0"), "it names xh0 twice"),
        (put("members", 1, "id", "group"), "'group' is no name of a member"),
        (put("members", 1, "id", "a|b"), "is no name of a member"),
        (put("members", 1, "id", ""), "'' is no name of a member"),
        (put("members", 1, "rank", 0), "not of the ranks 0 to 2"),
        (put("members", 1, "came", "yes"), "came is 'yes'"),
        (put("members", 1, "came", 1), "came is 1"),
        (put("members", 1, "devices", {}), "devices is no list"),
        (put("members", 1, "devices", [{"kind": "cpu", "id": "", "label": "x", "facts": {}}]), "a device without id"),
        (put("whole", "ranks", 1, "rank", 0), "it has the rank 0 twice"),
        (put("whole", "ranks", 1, "member", "xh9"), "is of no device of its members"),
        (put("whole", "ranks", 1, "device", "cpu7"), "is of no device of its members"),
        (put("whole", "ranks", 1, "member", "xh0"), "xh0 cpu0 has two ranks"),
        (put("planted", "ranks", 1, "said", "it hung"), "both an answer and why there is none"),
        (put("planted", "ranks", 1, "answer", [1]), "answer is [1], no object"),
        (put("pairs", 0, "a", "xh9"), "xh9 is no member"),
        (put("pairs", 0, "round", 0), "round is 0"),
        (put("pairs", 0, "gbs", -1.0), "gbs is -1.0"),
        (put("pairs", 0, "gbs", "fast"), "gbs is 'fast'"),
        (put("pairs", 0, "wrong", None), "wrong is None"),
        (lambda d: d["pairs"][0].update(b=d["pairs"][0]["a"]), "pair with itself"),
        (lambda d: d["pairs"].append(dict(d["pairs"][0])), "twice"),
        (put("traffic", "xh9", {"before": None, "after": None, "said": ""}), "xh9 is no member"),
        (put("traffic", "xh0", {"before": 1, "after": None, "said": ""}), "before is 1"),
        (put("nccl", "xh0", {"texts": "log", "said": ""}), "no list of texts"),
    ],
)  # fmt: skip
def test_a_record_that_is_not_whole_is_none_and_says_why(change, said):
    with pytest.raises(RecordError) as refused:
        read(changed(change))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b"null", b'{"schema": 1, "schema": 1}', b'{"schema": NaN}', b"\xff"]
)
def test_what_is_no_json_object_is_no_record(data):
    with pytest.raises(RecordError):
        record.parse(data)


def test_a_file_that_is_not_there_is_told_by_its_name(tmp_path):
    with pytest.raises(RecordError, match=r"nothing\.json: No such file"):
        record.load(tmp_path / "nothing.json")


def test_any_value_that_is_missing_or_of_another_type_is_refused_or_read_and_never_crashes():
    document = samples.record(2)
    for place in _places(document):
        if "answer" in place or "facts" in place or "software" in place:
            continue  # free, and judged by the checks
        for change in (take(*place), put(*place, None), put(*place, [[]])):
            harmed = copy.deepcopy(document)
            change(harmed)
            try:
                read(harmed)
            except RecordError:
                continue


def _places(value, at=()):
    for name, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*at, name)
        if isinstance(part, dict | list):
            yield from _places(part, (*at, name))


# --- answers ------------------------------------------------------------------------------------


def test_the_ranks_of_a_member_are_taken_together():
    whole = read(samples.record(2, device="cuda", devices=8))
    told = answers.data(whole, "xh1")
    assert told["devices"] == 8
    assert set(told["checked"].values()) == {800_000}
    assert (told["wrong"], told["found"], told["planted"]) == (0, [], [])
    planted = answers.data(whole, "xh1", plant="flip")
    assert planted["wrong"] == len(planted["found"]) == 8 * 6
    assert planted["found"] == planted["planted"]


def test_a_rank_that_was_not_asked_is_an_absence_and_not_a_smaller_group():
    document = samples.record(3)
    document["whole"]["ranks"].pop()
    whole = read(document)
    with pytest.raises(AbsentError, match="xh2 cpu0 took no part: it was never asked to"):
        answers.together(whole, "group")
    assert answers.data(whole, "xh0")["devices"] == 1
    with pytest.raises(AbsentError, match="xh2 cpu0"):
        answers.data(whole, "xh2")


@pytest.mark.parametrize("ask", [answers.data, answers.times, answers.carried])
def test_a_member_that_is_lost_in_the_middle_is_named_by_what_the_others_answer(ask):
    whole = read(samples.lost(samples.record(3), "xh2", "killed by SIGKILL"))
    with pytest.raises(AbsentError, match=r"rank 2 \(xh2\) is not there: killed by SIGKILL"):
        ask(whole, "xh0")


def test_a_member_without_a_device_took_no_part():
    document = samples.record(2)
    document["members"][1]["devices"] = []
    for part in ("planted", "whole", "small"):
        document[part]["ranks"].pop()
    with pytest.raises(AbsentError, match="xh1 had no device to take part with"):
        answers.together(read(document), "group")


def test_pairs_with_a_member_that_was_lost_are_no_evidence_against_the_others():
    document = samples.record(4)
    document["members"][3]["lost"] = "its connection closed"
    for row in document["pairs"]:
        if "xh3" in {row["a"], row["b"]}:
            row |= {"gbs": None, "said": "xh3 is gone"}
    told = answers.pairs(read(document), "xh0")
    assert told["nodes"] == ["xh0", "xh1", "xh2"]
    assert all("xh3" not in {row["a"], row["b"]} for row in told["pairs"])
    with pytest.raises(AbsentError, match="xh3 was not there: its connection closed"):
        answers.pairs(read(document), "xh3")


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (samples.record(3) | {"pairs": []}, "no two members were put to the test"),
    ],
)
def test_no_pairs_are_no_answer(document, said):
    with pytest.raises(AbsentError, match=said):
        answers.pairs(read(document), "group")


@pytest.mark.parametrize(
    ("nodes", "devices", "change", "grade"),
    [
        (2, 1, {"known": ["xh1"]}, 2),
        (3, 1, {"known": ["xh1"]}, 3),
        (3, 1, {"known": ["xh1", "xh2"]}, 2),
        (1, 2, {"loopback": True}, 1),
        (1, 1, {"loopback": True}, 0),
        (1, 2, {"loopback": False}, 0),
        (2, 2, {"loopback": True}, 3),
    ],
)
def test_a_known_good_partner_and_a_loopback_have_grades_of_their_own(
    nodes, devices, change, grade
):
    document = samples.record(nodes, devices=devices)
    document["group"] |= change
    assert answers.took_part(read(document), "group")["grade"] == grade


def test_a_known_partner_that_is_no_member_makes_no_record():
    document = samples.record(2)
    document["group"]["known"] = ["xh7"]
    with pytest.raises(record.RecordError, match="xh7 is no member"):
        read(document)


@pytest.mark.parametrize(
    ("document", "grade", "absent"),
    [
        (samples.record(1), 0, []),
        (samples.record(2), 3, []),
        (samples.record(8), 3, []),
        (samples.never_came(samples.record(3), 1), 0, ["xh0", "rank 1", "xh2"]),
        (samples.lost(samples.record(2), "xh1", "gone"), 0, ["xh0", "xh1"]),
    ],
)
def test_only_a_group_that_worked_together_to_the_end_has_the_full_grade(document, grade, absent):
    told = answers.took_part(read(document), "group")
    assert (told["grade"], told["absent"]) == (grade, absent)
