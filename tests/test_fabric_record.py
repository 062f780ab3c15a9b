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
        (put("members", 1, "id", "a b"), "is no name of a member"),
        (put("members", 1, "id", "a/b"), "is no name of a member"),
        (put("members", 1, "id", "a\n"), "is no name of a member"),
        (put("members", 1, "id", "x" * 254), "is no name of a member"),
        (put("members", 1, "id", "rank 1"), "is no name of a member"),
        (lambda d: samples.never_came(d, 1)["members"][1].update(id="rank 2"), "'rank 2' is no name"),
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
    assert set(told["checked"].values()) == {8 * samples.ELEMENTS}
    assert (told["wrong"], told["found"], told["planted"]) == (0, [], [])
    planted = answers.data(whole, "xh1", plant="flip")
    assert planted["wrong"] == len(planted["found"]) == 8 * 6
    assert planted["found"] == planted["planted"]


def test_a_rank_that_was_not_asked_is_an_absence_and_not_a_smaller_group():
    document = samples.record(3)
    samples.fewer(document)
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
    samples.fewer(document)
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


@pytest.mark.parametrize(
    ("known", "grade", "strangers"),
    [(["xh7"], 3, ["xh7"]), (["xh1", "xh7"], 2, ["xh7"]), (["xh1"], 2, [])],
)
def test_a_known_partner_that_is_no_member_counts_for_nothing_and_is_told(known, grade, strangers):
    document = samples.record(2)
    document["group"]["known"] = known
    told = answers.took_part(read(document), "group")
    assert (told["grade"], told["strangers"]) == (grade, strangers)


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


# --- whether a rank is believed -----------------------------------------------------------------


def _lots(answer):
    answer["found"] = [{"element": 1}, {"element": 2}]
    answer["wrong"] = answer["rows"][0]["wrong"] = 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("wrong", -1), "wrong is -1, no count"),
        (put("wrong", True), "wrong is True, no count"),
        (put("wrong", 0.0), "wrong is 0.0, no count"),
        (put("wrong", 1), "wrong is 1, and its rows have 0"),
        (put("rows", 0, "wrong", 1), "wrong is 0, and its rows have 1"),
        (put("rows", 0, "wrong", -1), "wrong is -1, no count"),
        (put("rows", 0, "elements", -1), "elements is -1, no count"),
        (put("rows", 0, "wrong", 9 << 20), "more of all_reduce"),
        (put("rows", 0, "timed", 1), "timed is 1"),
        (put("rows", 0, "timed", False), "all_reduce has no timed row of its 4194304 bytes"),
        (put("rows", 0, "bytes", 8), "all_reduce has no timed row of its 4194304 bytes"),
        (put("rows", 0, "collective", "gather"), "checked of all_reduce is"),
        (put("rows", 0, []), "a row is []"),
        (put("rows", {}), "rows is {}, no list"),
        (lambda a: a["rows"].append(dict(a["rows"][0])), "two rows of all_reduce"),
        (lambda a: a["rows"].append({**a["rows"][0], "collective": "gather"}), "rows of gather"),
        (put("checked", "broadcast", 0), "checked of broadcast is 0, and its rows have 1048576"),
        (put("checked", "broadcast", -1), "checked of broadcast is -1, no count"),
        (put("checked", "gather", 1), "checked is of all_gather, all_reduce"),
        (take("checked", "broadcast"), "checked is of all_gather, all_reduce"),
        (put("found", [{}]), "wrong is 0, and it shows 1 of them"),
        (lambda a: (put("wrong", 1)(a), put("rows", 0, "wrong", 1)(a)), "it shows 0 of them"),
        (_lots, "wrong is 1, and it shows 2 of them"),
        (put("planted", [{}]), "1 faults were planted in no planted run"),
        (put("largest_bytes", "all_reduce", 8), "largest_bytes of all_reduce is 8, and 4194304 were"),
        (put("repeats", "all_reduce", 6), "repeats of all_reduce is 6, and it timed 5"),
        (put("own_times", "all_reduce", []), "repeats of all_reduce is 5, and it timed 0"),
        (put("own_times", "all_reduce", 1, 0.0), "own_times of all_reduce has 0.0"),
        (put("own_times", "all_reduce", 1, -1.0), "own_times of all_reduce has -1.0"),
        (put("own_times", "all_reduce", 1, True), "own_times of all_reduce has True"),
        (put("own_times", "all_reduce", 1, 10**400), "own_times of all_reduce has 1000"),
        (put("busbw_gbs", "all_reduce", -1.0), "busbw_gbs of all_reduce is -1.0"),
        (put("busbw_gbs", "all_reduce", "fast"), "busbw_gbs of all_reduce is 'fast'"),
        (put("size", 2), "it met a group of 2, and 3 ranks were asked"),
        (put("size", 3.0), "size is 3.0, no count"),
        (put("transport", "backend", "nccl"), "its backend is 'nccl', and that of cpu gloo"),
        (put("transport", "nccl", None), "nccl is None, no text"),
        (put("transport", None), "transport is None, no object"),
        (take("planted"), "it does not say 'planted'"),
        (take("wrong"), "it does not say 'wrong'"),
    ],
)  # fmt: skip
def test_an_answer_that_contradicts_itself_is_none(change, said):
    document = samples.record(3)
    change(document["whole"]["ranks"][1]["answer"])
    whole = read(document)
    assert whole.whole[1].answer is None
    assert whole.whole[1].said.startswith("what it answered is not to be believed: ")
    assert said in whole.whole[1].said
    with pytest.raises(AbsentError, match=r"rank 1 \(xh1 cpu0\) has no answer"):
        answers.data(whole, "xh1")
    assert answers.data(whole, "xh0")["wrong"] == 0
    assert answers.took_part(whole, "group")["absent"] == ["xh1"]


def test_an_answer_without_any_one_of_its_parts_is_none():
    for name in samples.record(3)["whole"]["ranks"][1]["answer"]:
        for change in (take(name), put(name, None), put(name, [[]]), put(name, {"all_reduce": {}})):
            document = samples.record(3)
            change(document["whole"]["ranks"][1]["answer"])
            assert read(document).whole[1].answer is None, name


def test_nothing_planted_in_a_planted_run_is_no_answer():
    document = samples.record(3)
    answer = document["planted"]["ranks"][1]["answer"]
    answer |= {"planted": [], "found": [], "wrong": 0}
    for row in answer["rows"]:
        row["wrong"] = 0
    with pytest.raises(AbsentError, match="nothing was planted in a planted run"):
        answers.data(read(document), "xh1", plant="flip")


@pytest.mark.parametrize(("device", "backend"), [("cpu", "nccl"), ("cuda", "gloo")])
def test_what_carries_a_rehearsal_does_not_carry_gpus_nor_the_other_way_round(device, backend):
    document = samples.record(2, device=device)
    document["whole"]["ranks"][0]["answer"]["transport"]["backend"] = backend
    with pytest.raises(AbsentError, match="its backend is"):
        answers.together(read(document), "group")


def test_a_bandwidth_that_the_times_of_all_ranks_do_not_come_to_is_not_believed():
    document = samples.record(3)
    assert answers.together(read(document), "group")["busbw_gbs"]["broadcast"][0] > 0
    for row in document["whole"]["ranks"]:
        row["answer"]["busbw_gbs"]["broadcast"] *= 1.001
    with pytest.raises(AbsentError, match=r"GB/s \(busbw_gbs\) of broadcast, and the times of all"):
        answers.together(read(document), "group")


def test_a_rank_that_was_slower_than_the_others_were_told_shows_in_its_own_times():
    document = samples.record(3)
    own = document["whole"]["ranks"][2]["answer"]["own_times"]
    own["all_reduce"] = [seconds * 4 for seconds in own["all_reduce"]]
    with pytest.raises(AbsentError, match="their meeting is not to be trusted"):
        answers.together(read(document), "group")


def test_times_of_fewer_repeats_than_a_median_takes_are_no_bandwidth():
    document = samples.record(2)
    for row in document["whole"]["ranks"]:
        row["answer"]["own_times"]["all_reduce"] = [samples.SECONDS] * 2
        row["answer"]["repeats"]["all_reduce"] = 2
    with pytest.raises(AbsentError, match="repeats by rank"):
        answers.together(read(document), "group")
