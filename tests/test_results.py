"""The results file under attack: whatever is cut, doubled, moved or altered, nothing is accepted."""

from __future__ import annotations

import copy
import itertools
import json
import random

import pytest

from nodeproof.results import parse
from nodeproof.verdict import Decision
from tests.shipped_run import (
    accepted,
    at,
    bytes_of,
    changed,
    judged,
    lines_of,
    places,
    put,
    records_of,
    renumbered,
    take,
)

RUN = accepted(devices=1)
LINES = lines_of(RUN)
DATA = RUN.data()
KINDS = [line["type"] for line in LINES]
KIND = ("plan", "finding", "selftest", "end")
# All of a file takes minutes; of lines and of entries of a list that are alike, a landing has the first.
FIRST = 2
ALL = 10_000

# What a run says beside what it proves: nothing rests on it, so nothing has to be there.
FREE = ("spec", "node", "facts", "evidence", "planted", "reported")
OTHER = {
    str: (7, None, [], {}),
    bool: (0, 1, "true", None),
    int: ("0", True, 0.5, [], None),
    float: ("0", True, [], None),
    list: ("", {}, None, 7),
    dict: ("", [], None, 7),
    type(None): ({}, [], True, "no such word"),
}
# A bound or a number of devices may be null, where nobody gave one.
NULLABLE = ("expected_devices", "at_least", "at_most", "cause", "planted", "reported")


def test_the_run_that_all_these_spoil_is_accepted():
    told = judged(DATA)
    assert (told.decision, told.undecided, told.rehearsal) == (Decision.ACCEPT, (), False)
    assert set(KINDS) == {*KIND, "telemetry", "event"}
    assert records_of(RUN) == LINES  # so that the other tests may do without a file


@pytest.mark.parametrize("number", range(len(LINES)), ids=lambda n: f"{n}-{KINDS[n]}")
@pytest.mark.parametrize("forged", [False, True], ids=["as it was", "renumbered"])
def test_a_line_that_is_deleted_doubled_or_moved_is_never_accepted(number, forged):
    swapped = [*LINES]
    swapped[number - 1 : number + 1] = swapped[number - 1 : number + 1][::-1]
    for name, lines in (
        ("deleted", [*LINES[:number], *LINES[number + 1 :]]),
        ("doubled", [*LINES[: number + 1], *LINES[number:]]),
        ("swapped with the one before", swapped),
    ):
        if forged and (
            KINDS[number] in {"telemetry", "event"}
            or (name == "swapped with the one before" and 1 < number < len(LINES) - 1)
        ):
            continue  # says nothing of the devices, or the order of findings: nothing is lost
        if lines != LINES:
            told = judged(bytes_of(renumbered(lines) if forged else lines))
            assert told.decision is not Decision.ACCEPT, name


@pytest.mark.parametrize("number", range(len(LINES)), ids=lambda n: f"{n}-{KINDS[n]}")
def test_a_line_that_is_cut_is_never_accepted_whether_the_file_ends_there_or_not(number):
    lines = DATA.splitlines(keepends=True)
    line = lines[number]
    for length in {1, 2, len(line) // 2, len(line) - 2}:
        for rest in (b"", b"\n", b"\n" + b"".join(lines[number + 1 :])):
            data = b"".join(lines[:number]) + line[:length] + rest
            assert judged(data).decision is not Decision.ACCEPT, (length, rest[:1])


def test_a_file_without_the_last_newline_is_cut():
    assert "cut" in parse(DATA[:-1]).problems[0]


@pytest.mark.parametrize("most", [FIRST, pytest.param(ALL, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", KIND)
def test_a_record_without_one_of_its_fields_is_never_accepted(kind, most):
    survived = []
    for number in [n for n, k in enumerate(KINDS) if k == kind][:most]:
        for path in places(LINES[number]):
            if _inside_free(path) or isinstance(path[-1], int) or path[0] == "about":
                continue
            if _beyond(path, most):
                continue
            told = judged(changed(LINES, lambda c, n=number, p=path: take(c[n], p)))
            survived += [path] if told.decision is Decision.ACCEPT else []
    assert survived == []


@pytest.mark.parametrize("path", ["devices", "checks", "selftests"])
def test_a_plan_with_one_device_check_or_selftest_fewer_is_never_accepted(path):
    survived = []
    for index in range(len(LINES[0][path])):
        told = judged(changed(LINES, lambda c, i=index: take(c[0], (path, i))))
        survived += [LINES[0][path][index]] if told.decision is Decision.ACCEPT else []
    assert survived == []


@pytest.mark.parametrize("most", [FIRST, pytest.param(ALL, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", KIND)
def test_a_field_of_the_wrong_type_is_never_accepted(kind, most):
    survived = []
    for number in [n for n, k in enumerate(KINDS) if k == kind][:4]:
        for path in places(LINES[number]):
            if _inside_free(path) or _beyond(path, most):
                continue
            for value in OTHER[type(at(LINES[number], path))]:
                if path[-1] in {"planted", "reported"}:
                    continue
                if value is None and path[-1] in NULLABLE:
                    continue
                if path[-1] in {"loaded_s", "value", "at_least", "at_most"} and value == 0.5:
                    continue  # a number like any other there
                told = judged(changed(LINES, lambda c, n=number, p=path, v=value: put(c[n], p, v)))
                survived += [(path, value)] if told.decision is Decision.ACCEPT else []
    assert survived == []


@pytest.mark.parametrize(
    "text", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" * 400, "1" * 5000]
)
@pytest.mark.parametrize("field", ["value", "at_most", "loaded_s", "duration_s", "deadline_s"])
def test_what_is_no_finite_number_is_never_accepted(text, field):
    for number in [KINDS.index("plan"), KINDS.index("finding")]:
        for path in (p for p in places(LINES[number]) if p[-1] == field):
            lines = changed(LINES, lambda c, n=number, p=path: put(c[n], p, "PLACE"))
            told = judged(bytes_of(lines).replace(b'"PLACE"', text.encode()))
            assert told.decision is not Decision.ACCEPT, path


def test_loads_too_large_to_add_up_raise_nothing():
    for values in ((10**308, 10**308, 0.5), (1e308, 1e308, 1e308)):
        lines = copy.deepcopy(LINES)
        for line, value in zip([x for x in lines if x["type"] == "finding"], values, strict=False):
            line["loaded_s"] = value
        json.dumps(judged(lines).document())


@pytest.mark.parametrize("key", ["outcome", "caught", "boot_id", "value", "rehearsal", "device"])
def test_a_key_that_is_said_twice_is_never_accepted(key):
    # Readers differ in which of the two they believe.
    mark = f'"{key}":'.encode()
    assert mark in DATA
    data = DATA.replace(mark, mark + b'"something else",' + mark, 1)
    assert judged(data).decision is not Decision.ACCEPT


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16", "utf-32-be", "utf-8-sig"])
def test_a_line_that_is_not_utf_8_is_never_accepted(encoding):
    lines = DATA.splitlines()
    lines[2] = lines[2].decode().encode(encoding)
    assert b"\n" not in lines[2]
    assert judged(b"\n".join(lines) + b"\n").decision is not Decision.ACCEPT


@pytest.mark.parametrize("opened", ["[", '{"a":'])
@pytest.mark.parametrize("kind", [*KIND, "telemetry"])
def test_no_depth_of_nesting_raises_anything(kind, opened):
    number = KINDS.index(kind)
    deepest = _deepest()
    fields = [p for p in places(LINES[number]) if len(p) < 3 and p[-1] not in {0, "t"}]
    for path in fields[:14]:
        line = json.dumps(changed(LINES, lambda c, p=path: put(c[number], p, "PLACE"))[number])
        for depth in (*range(deepest - 40, deepest + 5), 100_000):
            well = opened * depth + "1" + ("]" if opened == "[" else "}") * depth
            parse(line.replace('"PLACE"', well).encode() + b"\n")


@pytest.mark.parametrize(
    "record", [None, [], 7, "text", {}, {"type": []}, {"type": "plan"}, {"type": "end", "seq": 0}]
)
def test_a_record_that_is_none_raises_nothing_and_is_a_problem(record):
    data = json.dumps(record).encode() + b"\n"
    assert judged(data + DATA).decision is not Decision.ACCEPT
    assert judged(data).decision is Decision.UNDECIDED
    assert judged([record, *LINES]).decision is not Decision.ACCEPT


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"\0", b"\xff\xfe\n", b"{}\n" * 3, b"[[[[\n", DATA[1:]]
)
def test_rubbish_is_undecided(data):
    assert judged(data).decision is Decision.UNDECIDED


@pytest.mark.parametrize("more", [{"type": "surprise"}, {"type": "finding"}, {"type": "telemetry"}])
def test_nothing_may_stand_after_the_end(more):
    lines = renumbered([*LINES, more | {"device": "x"}])
    assert judged(lines).decision is not Decision.ACCEPT


def test_fields_that_we_do_not_know_are_tolerated_since_they_prove_nothing():
    extra = [line | {"later": {"outcome": "fail"}} for line in LINES]
    assert judged(bytes_of(extra)).decision is Decision.ACCEPT


@pytest.mark.parametrize("files", [400, pytest.param(2000, marks=pytest.mark.long)])
def test_spoiled_files_raise_nothing_and_none_is_accepted_with_less_in_it(files):
    chance = random.Random(20261129)
    whole = parse(DATA)
    for _ in range(files):
        data = _spoil(DATA, chance)
        told = judged(data)
        if told.decision is Decision.ACCEPT:
            found = parse(data)
            assert [f.key for f in found.findings] == [f.key for f in whole.findings]
            assert all(f.outcome == "pass" for f in found.findings)
            assert {t.key for t in found.selftests if t.caught} >= {t.key for t in whole.selftests}
            assert (found.problems, found.end.boot_id) == ((), whole.end.boot_id)


def _spoil(data, chance):
    kind = chance.randrange(4)
    if kind == 0:  # flip bits
        spoiled = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            spoiled[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        return bytes(spoiled)
    if kind == 1:  # lose a stretch
        start = chance.randrange(len(data))
        return data[:start] + data[start + chance.randint(1, 400) :]
    if kind == 2:  # double a stretch
        start = chance.randrange(len(data))
        return data[:start] + data[start : start + chance.randint(1, 400)] + data[start:]
    lines = data.splitlines(keepends=True)
    a, b = chance.sample(range(len(lines)), 2)
    lines[a], lines[b] = lines[b], lines[a]
    return b"".join(lines)


def _deepest():
    """Levels that JSON can be read to from about here: what is shallower reaches our own code."""
    for depth in itertools.count(1):
        try:
            json.loads("[" * depth + "]" * depth)
        except RecursionError:
            return depth
    raise AssertionError


def _beyond(path, most):
    return any(isinstance(step, int) and step >= most for step in path)


def _inside_free(path):
    return any(part in FREE for part in path[:-1]) and path[-1] != "boot_id"
