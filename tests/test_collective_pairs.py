"""Every pair of ranks in real workers over loopback, sound and sabotaged, and how it is judged."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from rehearsal import SMALL
from test_detectors import caught, run_with

from nodeproof import results
from nodeproof.acceptance import test_transfers as suite
from nodeproof.checks import CannotMeasure, Device, DeviceKind, spec_of
from nodeproof.child import Answer, Call, Lost, Pool, Raised
from nodeproof.model import Measurement
from nodeproof.nccl_tests.messages import Message, compare, rounds

SMALL_MESSAGES = {"bytes_cpu": 4096, "bytes_gpu": 4096}
NODE = Device(kind=DeviceKind.NODE, id="node-1", label="node-1")
PHASES = ("odd", "alone", "together")


class Node:
    """Workers of one node, and meetings of them."""

    def __init__(self, folder, ranks, environment=None):
        self.folder, self.meetings, self.listener = folder, 0, lambda *_: None
        self.pool = Pool(ends=time.monotonic() + 300, logs=folder, listen=self.hear)
        self.names = [f"cpu{rank}" for rank in range(ranks)]
        for name in self.names:
            self.pool.add(name, (environment or {}).get(name))

    def hear(self, *what):
        self.listener(*what)

    def meet(self, *, size=None, only=None, change=None, seed=7, **args):
        """Let workers meet; `size` pretends that there are more, `change` is by worker."""
        self.meetings += 1
        store = str(self.folder / f"meeting-{self.meetings}")
        names = self.names[:only]
        size = size or len(names)
        calls = {
            name: Call(
                call="nodeproof.nccl_tests.pairs:pairs",
                args={**SMALL_MESSAGES, **args, **(change or {}).get(name, {})},
                context={
                    "device_kind": "cpu",
                    "device_id": name,
                    "device_label": name,
                    "torch_device": "cpu",
                    "threads": 1,
                    "peers": size,
                    "profile": "quick",
                    "seed": seed,
                    "host_root": "/",
                    "group": {
                        "rank": rank,
                        "size": size,
                        "store": store,
                        "labels": [f"cpu{r}" for r in range(size)],
                    },
                },
            )
            for rank, name in enumerate(names)
        }
        return self.pool.run(calls, deadline_s=60)

    def results(self, **how):
        replies = self.meet(**how)
        assert all(isinstance(reply, Answer) for reply in replies.values()), replies
        return [reply.result for reply in replies.values()]


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """Three ranks; what `fault.py` holds is done to what they receive, while it is there."""
    folder = tmp_path_factory.mktemp("node")
    (folder / "sitecustomize.py").write_text(LIBRARY)
    names = ("cpu0", "cpu1", "cpu2")
    started = Node(folder, 3, {name: {"PYTHONPATH": str(folder)} for name in names})
    started.fault = folder / "fault.py"
    started.results()  # what is slow about a first meeting is over when a test wants to be quick
    yield started
    assert started.pool.close() == []


@pytest.fixture
def faulty(node):
    """Let the library spoil what arrives at rank 1, by `code` on `output` and `sender`."""

    def start(code, only="if receiver == 1:\n"):
        node.fault.write_text(only + textwrap.indent(code, "    " if only else ""))
        return node

    yield start
    node.fault.unlink(missing_ok=True)


LIBRARY = """
from pathlib import Path

import torch.distributed as dist

whole, kept = dist.batch_isend_irecv, {}

def batch_isend_irecv(operations):
    requests = whole(operations)
    fault = Path(__file__).with_name("fault.py")
    if fault.exists():
        for request in requests:
            request.wait()
        for operation in operations:
            if operation.op is dist.irecv:
                names = {"output": operation.tensor, "sender": operation.peer, "kept": kept}
                exec(fault.read_text(), {**names, "receiver": dist.get_rank()})
        return []
    return requests

dist.batch_isend_irecv = batch_isend_irecv
"""


STALE = """
name = sender, len(output)
new = output.clone()
output.copy_(kept.get(name, new))
kept[name] = new
"""


def of(label):
    return Device(kind=DeviceKind.CPU, id=f"id-{label}", label=label)


def judged(answers, limits=None, kind=DeviceKind.CPU):
    """The measurements that the check takes, by name."""
    taken = {}

    def measure(name, value, **bounds):
        taken[name] = Measurement(name=name, value=value, **bounds)

    given = [
        (
            Device(kind=kind, id=f"id-{a['rank']}", label=f"{kind}{a['rank']}"),
            {"telemetry": {"silence_s": 0.0}, **a},
        )
        for a in answers
    ]
    suite.test_pairs(device=NODE, results=given, measure=measure, limits=limits or suite.Pairs())
    return taken


def broken(taken):
    return {name for name, m in taken.items() if not m.held}


def test_sound_ranks_get_every_byte_of_every_pair_and_measure_both_directions(node):
    answers = node.results(seconds=0.2)
    assert [a["wrong"] for a in answers] == [0, 0, 0]
    assert [a["found"] + a["planted"] for a in answers] == [[], [], []]
    for rank, answer in enumerate(answers):
        assert (answer["rank"], answer["size"]) == (rank, 3)
        assert answer["transport"]["backend"] == "gloo"
        assert answer["loaded_s"] >= 0.2
        assert set(answer["received"]) == {str(r) for r in range(3) if r != rank}
        # Five timed messages of each sender in each sweep, those all at once and the odd ones.
        assert min(answer["received"].values()) > answer["sweeps"] * (5 * 4096 + 1024)
        assert answer["gbs"] == answers[0]["gbs"]
        assert answer["together_gbs"] == answers[0]["together_gbs"]
    matrix = answers[0]["gbs"]
    assert all(matrix[a][b] > 0 for a, b in itertools.permutations(range(3), 2))
    assert [matrix[r][r] for r in range(3)] == [0, 0, 0]
    taken = judged(answers)
    assert broken(taken) == set()
    assert taken["ordered pairs"].detail == "pairs 6 of 6"


def test_a_planted_flip_is_found_exactly_where_each_rank_put_it(node):
    answers = node.results(plant="flip")
    for rank, answer in enumerate(answers):
        assert answer["found"] == answer["planted"]
        assert answer["wrong"] == 3
        assert sorted(p["phase"] for p in answer["planted"]) == sorted(PHASES)
        assert all(p["receiver"] == rank != p["sender"] for p in answer["planted"])
        assert all(int(p["xor"], 16).bit_count() == 1 for p in answer["planted"])
    assert "wrong bytes" in broken(judged(answers))
    assert len({str(sorted(p["index"] for p in a["planted"])) for a in answers}) == 3
    again, other = node.results(plant="flip"), node.results(plant="flip", seed=8)
    assert [a["planted"] for a in again] == [a["planted"] for a in answers]
    assert [a["planted"] for a in other] != [a["planted"] for a in answers]


def test_what_comes_wrong_from_one_sender_names_the_pair_and_its_direction(faulty):
    answers = faulty("if sender == 2: output[len(output) // 2] ^= 8").results()
    assert [a["wrong"] > 0 for a in answers] == [False, True, False]
    found = answers[1]["found"]
    assert {(f["sender"], f["receiver"], f["bytes"], f["xor"]) for f in found} == {
        (2, 1, 1, "0x08")
    }
    assert {f["phase"] for f in found} == set(PHASES)
    taken = judged(answers)
    assert broken(taken) == {"wrong bytes"}
    assert taken["wrong bytes"].detail.startswith("cpu2 id-2 to cpu1 id-1, odd, round ")


def test_a_pair_that_is_broken_for_good_does_not_hide_the_planted_faults(faulty):
    node = faulty("if sender == 2: output[0] ^= 1")
    for seed in range(4):
        for answer in node.results(plant="flip", seed=seed):
            assert answer["found"] == answer["planted"]


def test_a_comparison_that_finds_no_pair_sound_is_no_witness(faulty):
    """All ranks get everything wrong: it may as well be the comparison, so all of it is shown."""
    for answer in faulty("output ^= 1", only="").results(plant="flip"):
        assert len(answer["planted"]) == 3
        assert answer["found"] != answer["planted"]


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("never written", "output.fill_(0xA5)"),
        ("shifted", "output.copy_(output.roll(1))"),
        ("what came before", STALE),
    ],
)
def test_messages_that_are_stale_or_shifted_show(faulty, what, code):
    answers = faulty(code).results()
    assert [a["wrong"] > 0 for a in answers] == [False, True, False], what
    assert {(f["sender"], f["receiver"]) for f in answers[1]["found"]} == {(0, 1), (2, 1)}


def test_one_rank_alone_copies_to_itself_and_claims_no_pairs(node):
    (answer,) = node.results(only=1, seconds=0.05)
    assert (answer["wrong"], answer["size"], answer["gbs"]) == (0, 1, [[0.0]])
    assert answer["loopback_gbs"] > 0
    taken = judged([answer])
    assert broken(taken) == set()
    assert {name for name, m in taken.items() if m.bounded} == {"ranks", "wrong bytes", "checked"}
    assert taken["ordered pairs"].detail == "pairs 0 of 0; one device"
    (planted,) = node.results(only=1, plant="flip")
    assert planted["found"] == planted["planted"]
    assert [p["phase"] for p in planted["planted"]] == ["loopback"]
    assert "wrong bytes" in broken(judged([planted]))


def test_a_rank_that_never_comes_is_named_and_the_others_can_meet_without_it(node):
    replies = node.meet(size=4, timeout_s=1.0)
    for reply in replies.values():
        assert isinstance(reply, Raised)
        assert "from rank 3 (cpu3) within 1 s: rank 3 (cpu3) never came" in reply.message
    assert [a["wrong"] for a in node.results()] == [0, 0, 0]


@pytest.mark.long  # its deadlines are short, and not for a crowded machine
@pytest.mark.parametrize(
    ("number", "seen"), [(signal.SIGKILL, "is dead"), (signal.SIGSTOP, "is stopped by a signal")]
)
def test_a_rank_lost_among_the_pairs_is_named_by_its_peers(tmp_path, number, seen):
    node = Node(tmp_path, 3)
    node.results()
    harmed = []

    def harm(worker, kind, _content):
        if (worker, kind) == ("cpu1", "progress") and not harmed:
            harmed.append(node.pool.pid("cpu1"))
            os.kill(harmed[0], number)

    node.listener = harm
    replies = node.meet(seconds=3.0, timeout_s=4.0)
    assert isinstance(replies["cpu1"], Lost)
    for peer in ("cpu0", "cpu2"):
        assert isinstance(replies[peer], Raised)
        assert (replies[peer].type, replies[peer].cause) == ("UnfinishedError", "environment")
        assert f"rank 1 (cpu1), process {harmed[0]}, {seen}" in replies[peer].message
    assert [a["wrong"] for a in node.results()] == [0, 0, 0]
    node.pool.close(grace_s=1.0)


@pytest.mark.parametrize(
    ("change", "type_", "said"),
    [
        ({"cpu2": {"bytes_cpu": 8192}}, "DisagreementError", "'bytes': 8192"),
        ({f"cpu{k}": {"plant": "swap"} for k in range(3)}, "ValueError", "'swap'"),
        ({f"cpu{k}": {"bytes_cpu": 0} for k in range(3)}, "ValueError", "of 0 bytes"),
    ],
)
def test_what_ranks_were_told_wrongly_is_refused(node, change, type_, said):
    replies = node.meet(change=change)
    assert {reply.type for reply in replies.values()} == {type_}
    assert said in replies["cpu0"].message


@pytest.mark.parametrize("ranks", range(1, 18))
def test_rounds_have_every_pair_once_and_no_rank_twice(ranks):
    made = rounds(ranks)
    assert all(len({r for pair in turn for r in pair}) == 2 * len(turn) for turn in made)
    assert sorted(pair for turn in made for pair in turn) == list(
        itertools.combinations(range(ranks), 2)
    )
    assert len(made) <= ranks


def test_no_two_messages_share_their_data():
    one = {"sender": 0, "receiver": 1, "phase": "odd", "round": 1, "size": 64}
    others = [{}, {"sender": 2}, {"receiver": 2}, {"phase": "alone"}, {"round": 2}, {"size": 63}]
    contents = [Message(**{**one, **change}).content(7, 0, 63, "cpu").tolist() for change in others]
    contents.append(Message(**one).content(8, 0, 63, "cpu").tolist())
    assert len({tuple(c) for c in contents}) == len(contents)
    with pytest.raises(ValueError, match="came as"):
        compare(Message(**one), torch.zeros(63, dtype=torch.uint8), 7)


def test_a_fault_past_the_first_piece_of_a_large_message_is_located():
    message = Message(sender=1, receiver=0, phase="alone", round=3, size=(1 << 18) + 1001)
    whole = torch.cat([message.content(7, *ends, "cpu") for ends in message.chunks("cpu")])
    assert compare(message, whole, 7) is None
    whole[(1 << 18) + 1000] ^= 128
    whole[(1 << 18) + 900] ^= 1
    found = compare(message, whole, 7)
    assert (found["index"], found["bytes"], found["xor"]) == ((1 << 18) + 900, 2, "0x01")
    assert int(found["expected"], 16) == message.byte(7, (1 << 18) + 900)


# --- judged --------------------------------------------------------------------------------------


def answered(matrix, **change):
    size = len(matrix)
    return [
        {
            "rank": rank,
            "size": size,
            "wrong": 0,
            "found": [],
            "received": {str(r): 4096 for r in range(size) if r != rank},
            "gbs": matrix,
            "together_gbs": [1.0] * size,
        }
        | change
        for rank in range(size)
    ]


def even(size, gbs=100.0, **slow):
    """A matrix in which `slow` says what is slower: a sender, a receiver or one pair."""
    matrix = [[0.0 if a == b else gbs for b in range(size)] for a in range(size)]
    for a, b in itertools.permutations(range(size), 2):
        if slow.get("sender") == a or slow.get("receiver") == b or slow.get("pair") == (a, b):
            matrix[a][b] = gbs / 4
    return matrix


SHORT = "shortfall of the slowest"


@pytest.mark.parametrize(
    ("slow", "named"),
    [
        ({"pair": (2, 5)}, "gpu2 id-2 to gpu5 id-5 at 25 GB/s"),
        ({"sender": 3}, "all that gpu3 id-3 sends"),
        ({"receiver": 3}, "all that gpu3 id-3 receives"),
        ({"sender": 3, "receiver": 3}, "all that gpu3 id-3 sends and receives"),
        (
            {"sender": 3, "pair": (6, 0)},
            "all that gpu3 id-3 sends; gpu6 id-6 to gpu0 id-0 at 25 GB/s",
        ),
    ],
)
def test_a_short_pair_is_named_and_a_device_of_which_all_pairs_are_short(slow, named):
    taken = judged(answered(even(8, **slow)), kind=DeviceKind.GPU)
    assert broken(taken) == {SHORT}
    assert taken[SHORT].detail == named
    assert taken[SHORT].cause == "environment"  # so is a board whose pairs differ by design


def test_of_two_devices_neither_is_named_alone():
    taken = judged(answered(even(2, pair=(1, 0))), kind=DeviceKind.GPU)
    assert taken[SHORT].value == pytest.approx(0.6)
    assert broken(taken) == {SHORT}
    assert taken[SHORT].detail == "gpu1 id-1 to gpu0 id-0 at 25 GB/s"


def test_a_floor_finds_a_node_that_is_slow_throughout():
    limits = suite.Pairs(pair_gbs=300.0)
    taken = judged(answered(even(8)), limits, DeviceKind.GPU)
    assert broken(taken) == {"slowest pair"}
    assert taken["slowest pair"].detail == "every pair is short: the cause is common to all"
    assert broken(judged(answered(even(8, 400.0)), limits, DeviceKind.GPU)) == set()


@pytest.mark.parametrize(
    ("size", "slow", "change", "cause"),
    [
        (8, {"sender": 3}, {}, "hardware"),
        (8, {"receiver": 3}, {}, "hardware"),
        (8, {"sender": 3, "receiver": 3}, {}, "hardware"),
        (8, {"sender": 3, "pair": (6, 0)}, {}, "environment"),
        (8, {"pair": (6, 0)}, {}, "environment"),
        (3, {"sender": 1, "receiver": 1}, {}, "environment"),
        (2, {"sender": 1, "receiver": 1}, {}, "environment"),
        (8, {"sender": 3}, {"settings": {"NCCL_P2P_DISABLE": "1"}}, "environment"),
        (8, {"sender": 3}, {"telemetry": {"silence_s": 3.0}}, "environment"),
    ],
)
def test_a_slow_device_is_blamed_only_below_the_floor_of_a_spec_and_as_a_whole(
    size, slow, change, cause
):
    limits = suite.Pairs(pair_gbs=80.0)
    taken = judged(answered(even(size, **slow), **change), limits, DeviceKind.GPU)
    assert "slowest pair" in broken(taken)
    assert taken["slowest pair"].cause == cause
    assert ("NCCL_P2P_DISABLE=1" in taken["slowest pair"].detail) == ("settings" in change)


def test_a_floor_that_every_pair_misses_blames_no_hardware():
    taken = judged(answered(even(8)), suite.Pairs(pair_gbs=300.0), DeviceKind.GPU)
    assert taken["slowest pair"].cause == "environment"


def spoilt(size, *ways):
    """Answers in which what went these ways (sender, receiver) came wrong."""
    answers = answered(even(size))
    for sender, receiver in ways:
        entry = {"sender": sender, "receiver": receiver, "phase": "alone", "round": 1}
        entry |= {"bytes": 1, "size": 9, "index": 0, "got": "1", "expected": "0", "xor": "1"}
        answers[receiver]["found"] = [*answers[receiver]["found"], entry]
        answers[receiver]["wrong"] += 1
    return answers


@pytest.mark.parametrize(
    ("size", "ways", "named"),
    [
        (8, [(3, 0), (3, 1)], True),
        (8, [(0, 3), (1, 3)], True),
        (8, [(0, 3), (3, 1)], True),
        (8, [(0, 3), (3, 0)], False),
        (8, [(0, 3)], False),
        (8, [(0, 3), (1, 2)], False),
        (8, list(itertools.permutations(range(8), 2)), False),
        (3, [(0, 1), (2, 1)], False),
        (2, [(0, 1), (1, 0)], False),
    ],
)
def test_wrong_bytes_are_hardware_and_name_the_device_that_all_have_in_common(size, ways, named):
    taken = judged(spoilt(size, *ways), kind=DeviceKind.GPU)
    assert broken(taken) == {"wrong bytes"}
    assert taken["wrong bytes"].cause == "hardware"  # no retry takes wrong bits back
    said = "all of it was sent or received by gpu3 id-3" if named else "IOMMU"
    assert said in taken["wrong bytes"].detail


def test_a_pair_that_was_not_measured_or_not_checked_is_no_pass():
    matrix = even(3)
    matrix[0][2] = 0.0
    assert "ordered pairs" in broken(judged(answered(matrix)))
    for received in ({}, {"0": 4096, "1": 0, "2": 4096}, {"0": 5, "1": 5}):
        assert broken(judged(answered(even(3), received=received))) == {"checked"}
    nothing = [[0.0] * 3] * 3
    assert broken(judged(answered(nothing))) == {"ordered pairs"}


def test_ranks_that_ran_apart_or_disagree_or_are_none_are_no_pass():
    apart = [{**a, "size": 1, "gbs": [[0.0]]} for a in answered(even(2))]
    assert "ranks" in broken(judged(apart))
    other = answered(even(2, 90.0))[1]
    with pytest.raises(CannotMeasure, match="report different bandwidths"):
        judged([answered(even(2))[0], other])
    with pytest.raises(CannotMeasure, match="no device of node-1"):
        judged([])


def test_a_device_whose_process_did_not_run_blames_no_link():
    answers = answered(even(3, pair=(0, 1)), telemetry={"silence_s": 3.0})
    assert judged(answers, kind=DeviceKind.GPU)[SHORT].cause == "environment"


@pytest.mark.parametrize("size", [1, 2, 3])
def test_each_altered_answer_breaks_what_it_names(size):
    answers = answered(even(size), loopback_gbs=1.0)
    if size == 1:
        answers[0]["received"] = {"0": 1}
    given = [(of(f"cpu{a['rank']}"), a) for a in answers]
    limits = suite.Pairs(pair_gbs=1.0)
    assert broken(judged(answers, limits)) == set()
    bounded = {name for name, m in judged(answers, limits).items() if m.bounded}
    seen = {"wrong bytes"}
    for plant in spec_of(suite.test_pairs).plants:
        if plant.alter is None:
            continue
        altered = plant.alter(given)
        if altered is None:
            assert size == 1
            continue
        taken = broken(judged([a for _, a in altered], limits))
        assert set(plant.breaks) <= taken
        seen |= taken
    assert seen >= bounded


def test_a_broken_pair_fails_the_node_through_pytest_and_every_plant_is_caught(tmp_path):
    only = (
        "from pathlib import Path\nif Path('/proc/self/fd/1').resolve().name == 'worker-cpu1.log':"
    )
    (tmp_path / "sitecustomize.py").write_text(only + textwrap.indent(LIBRARY, "    "))
    (tmp_path / "fault.py").write_text("if receiver == 1: output[0] ^= 2")
    spec = tmp_path / "small.toml"
    spec.write_text(SMALL)
    subprocess.run(
        [
            *(
                sys.executable,
                "-P",
                "-m",
                "pytest",
                "--pyargs",
                "nodeproof.acceptance.test_transfers",
            ),
            *("-p", "no:cacheprovider", "-q", "--nodeproof-device=cpu", "-k", "test_pairs"),
            *(f"--nodeproof-spec={spec}", f"--nodeproof-output={tmp_path / 'out'}"),
        ],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        check=False,
        capture_output=True,
    )
    found = results.read(tmp_path / "out" / "results.jsonl")
    (finding,) = found.findings
    assert (finding.check, finding.outcome, finding.cause) == (
        *("node.transfers.pairs", "fail", "hardware"),
    )
    assert "cpu0 to cpu1" in finding.summary
    assert "(xor 0x02)" in finding.summary
    assert caught(found, "transfers.pairs") == {True}


BROKEN = [
    ("nccl_tests/messages.py", "differs = got[start:stop] != wanted", "differs = got[start:stop] != got[start:stop]"),
    ("nccl_tests/messages.py", "differs = got[start:stop] != wanted", "differs = got[start:stop] == got[start:stop]"),
    ("nccl_tests/messages.py", "if count else None", "if count > 1 else None"),
    ("acceptance/test_transfers.py", '        at_most=0,\n        detail="; ".join(_message', '        detail="; ".join(_message'),
    ("acceptance/test_transfers.py", "size, at_least=len(results), detail", "size, detail"),
    ("acceptance/test_transfers.py", "len(rates), at_least=due,", "len(rates),"),
    ("acceptance/test_transfers.py", "        at_most=most,\n", ""),
    ("acceptance/test_transfers.py", '        at_least=1,\n        detail="the least that any', '        detail="the least that any'),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "old", "new"),
    BROKEN,
)
def test_a_comparison_of_pairs_that_is_broken_is_a_self_test_that_is_missed(
    tmp_path, file, old, new
):
    found = run_with(tmp_path, file, old, new, "pairs")
    assert False in caught(found, "transfers.pairs")


@pytest.mark.long
def test_the_pairs_run_alone_and_print_a_matrix():
    ran = subprocess.run(
        [sys.executable, "-m", "nodeproof.nccl_tests.pairs_alone", "--seconds", "0.1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = ran.stdout.splitlines()
    assert lines[0] == "# planted faults found exactly on 2 ranks"
    assert "wrong bytes 0" in lines[1]
    assert [line.split()[0] for line in lines[3:5]] == ["0", "1"]
