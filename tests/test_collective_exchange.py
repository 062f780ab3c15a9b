"""Real workers that exchange real data over loopback, sound and sabotaged."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch

from nodeproof.child import Answer, Call, Lost, Pool, Raised
from nodeproof.nccl_tests.bandwidth import Collective, busbw_gbs
from nodeproof.nccl_tests.meeting import Meeting

SMALL = {"max_bytes_cpu": 2048, "max_bytes_gpu": 2048}
COLLECTIVES = {c.value for c in Collective}


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

    def meet(self, *, size=None, change=None, seed=7, **args):
        """Let all workers meet; `size` pretends that there are more, `change` is by worker."""
        self.meetings += 1
        store = str(self.folder / f"meeting-{self.meetings}")
        size = size or len(self.names)
        calls = {
            name: Call(
                call="nodeproof.nccl_tests.inside:exchange",
                args={**SMALL, **args, **(change or {}).get(name, {})},
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
            for rank, name in enumerate(self.names)
        }
        return self.pool.run(calls, deadline_s=60)

    def results(self, **how):
        replies = self.meet(**how)
        assert all(isinstance(reply, Answer) for reply in replies.values()), replies
        return [replies[name].result for name in self.names]


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    started = Node(tmp_path_factory.mktemp("node"), 3)
    started.results()  # what is slow about a first meeting is over when a test wants to be quick
    yield started
    assert started.pool.close() == []


@pytest.fixture
def nodes(tmp_path):
    """Make a node whose workers are the test's own to harm."""
    started = []

    def start(ranks, environment=None):
        started.append(Node(tmp_path, ranks, environment))
        return started[-1]

    yield start
    for each in started:
        each.pool.close(grace_s=1.0)


def sabotage(folder, code):
    """Environment of a worker in which `code` runs before everything else."""
    (folder / "sitecustomize.py").write_text(textwrap.dedent(code))
    # Before what is there already, so that all ranks run the same sources.
    inherited = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *([inherited] if inherited else [])])}


def test_sound_ranks_get_every_bit_right_and_measure_every_collective(node):
    results = node.results(max_bytes_cpu=100_000)
    assert [r["wrong"] for r in results] == [0, 0, 0]
    assert [r["found"] + r["planted"] for r in results] == [[], [], []]
    for result in results:
        assert set(result) == {
            *("wrong", "found", "planted", "checked", "rows", "repeats", "own_seconds", "seconds"),
            *("own_times", "settings"),
            *("algbw_gbs", "busbw_gbs", "largest_bytes", "size", "transport"),
        }
        assert result["size"] == 3
        assert result["transport"]["backend"] == "gloo"
        assert set(result["repeats"].values()) == {5}  # and two to warm up, which don't count
        for name in ("checked", "own_seconds", "seconds", "busbw_gbs", "algbw_gbs"):
            assert set(result[name]) == COLLECTIVES
            assert all(value > 0 for value in result[name].values())
        for c in Collective:
            assert result["largest_bytes"][c] == 100_008  # rounded up to 3 ranks
            assert result["busbw_gbs"][c] == busbw_gbs(c, 100_008, result["seconds"][c], 3)
    for name in ("seconds", "busbw_gbs", "algbw_gbs", "largest_bytes"):
        assert results[0][name] == results[1][name] == results[2][name]


def test_every_size_and_type_is_verified_and_every_repeat(node):
    result = node.results(max_bytes_cpu=3000)[0]
    rows = {(r["collective"], r["dtype"], r["bytes"]): r for r in result["rows"]}
    sums = [("all_reduce", t) for t in ("float32", "bfloat16", "int32", "int64")]
    assert {key[2] for key in rows if key[:2] == sums[0]} == {12, 132, 2052, 3000}
    kinds = {key[:2] for key in rows}
    assert kinds >= {*sums, *(("reduce_scatter", t) for _, t in sums)}
    assert len(kinds) == 12  # and the four that copy, as int32
    assert rows["all_reduce", "float32", 3000]["elements"] == 8 * 750  # once, and 2 and 5 times
    assert rows["all_reduce", "int64", 3000]["elements"] == 375
    assert rows["reduce_scatter", "float32", 3000]["elements"] == 8 * 250
    assert result["checked"]["all_reduce"] == sum(
        r["elements"] for r in result["rows"] if r["collective"] == "all_reduce"
    )


def test_a_planted_flip_is_found_exactly_where_each_rank_put_it(node):
    results = node.results(plant="flip", max_bytes_cpu=4 << 20)
    for result in results:
        assert result["found"] == result["planted"]
        assert result["wrong"] == 12
        # One in the sweep and one in the repeats of each collective.
        assert sorted((p["collective"], p["repeat"] > 0) for p in result["planted"]) == sorted(
            (name, repeated) for name in COLLECTIVES for repeated in (False, True)
        )
        assert all(len(p["bits"]) == 1 and p["bytes"] < 40_000 for p in result["planted"])
    places = [{(p["collective"], p["element"]) for p in r["planted"]} for r in results]
    assert len({frozenset(p) for p in places}) == 3
    again = node.results(plant="flip", max_bytes_cpu=4 << 20)
    assert [r["planted"] for r in again] == [r["planted"] for r in results]
    other = node.results(plant="flip", max_bytes_cpu=4 << 20, seed=8)
    assert [r["planted"] for r in other] != [r["planted"] for r in results]


def test_one_rank_alone_verifies_its_data_and_claims_no_bandwidth(nodes):
    node = nodes(1)
    (result,) = node.results()
    assert result["wrong"] == 0
    assert set(result["busbw_gbs"].values()) == {0.0}
    assert min(result["checked"].values()) > 0
    (planted,) = node.results(plant="flip")
    assert planted["found"] == planted["planted"]
    assert len(planted["planted"]) == 12


def test_two_ranks_with_a_faulty_library_on_one_show_which_data_is_wrong(nodes, tmp_path):
    """A flipped bit, swapped pieces, a term left out and an output never written."""
    environment = sabotage(
        tmp_path,
        """
        import torch
        import torch.distributed as dist

        ATTRIBUTES = {name: getattr(dist, name, None) for name in (
            "all_reduce", "all_to_all_single", "all_gather_single", "all_gather_into_tensor",
            "reduce_scatter_single", "reduce_scatter_tensor")}

        def all_reduce(x, *args, **more):
            ATTRIBUTES["all_reduce"](x, *args, **more)
            if x.dtype == torch.float32 and x.numel() == 512:
                x.view(torch.int32)[77] ^= 1 << 30

        def all_to_all_single(output, given, *args, **more):
            ATTRIBUTES["all_to_all_single"](output, given, *args, **more)
            output.copy_(output.roll(len(output) // 2))

        def never_written(name):
            def gather(output, given, *args, **more):
                ATTRIBUTES[name](output.clone(), given, *args, **more)
            return gather

        def own_term_left_out(name):
            def reduce(output, given, *args, **more):
                ATTRIBUTES[name](output, given, *args, **more)
                output -= given.chunk(2)[dist.get_rank()]
            return reduce

        dist.all_reduce, dist.all_to_all_single = all_reduce, all_to_all_single
        for name, original in ATTRIBUTES.items():
            if original is not None and "gather" in name:
                setattr(dist, name, never_written(name))
            if original is not None and "scatter" in name:
                setattr(dist, name, own_term_left_out(name))
        """,
    )
    sound, faulty = nodes(2, {"cpu1": environment}).results()
    assert (sound["wrong"], sound["found"]) == (0, [])
    rows = {(r["collective"], r["dtype"], r["bytes"]): r for r in faulty["rows"]}
    flipped = {key: row["wrong"] for key, row in rows.items() if key[0] == "all_reduce"}
    # Once in the sweep and once in each of seven repeats.
    assert flipped == dict.fromkeys(flipped, 0) | {("all_reduce", "float32", 2048): 8}
    for (collective, _, size), row in rows.items():
        if collective in {"all_to_all", "all_gather"}:
            assert row["wrong"] == row["elements"]
        if collective == "reduce_scatter" and size >= 128:
            assert row["wrong"] > 0.8 * row["elements"]
        if collective in {"broadcast", "sendrecv"}:
            assert row["wrong"] == 0
    assert faulty["wrong"] == sum(row["wrong"] for row in rows.values())
    assert len(faulty["found"]) == 16


def test_a_flip_in_a_collective_is_located_to_element_and_bit(nodes, tmp_path):
    environment = sabotage(
        tmp_path,
        """
        import torch
        import torch.distributed as dist

        whole = dist.broadcast

        def broadcast(x, *args, **more):
            whole(x, *args, **more)
            if x.numel() == 512:
                x[301] ^= 1 << 9

        dist.broadcast = broadcast
        """,
    )
    faulty, sound = nodes(2, {"cpu0": environment}).results()
    assert sound["wrong"] == 0
    assert faulty["wrong"] == 8
    assert {
        (f["collective"], f["bytes"], f["dtype"], f["element"], *f["bits"]) for f in faulty["found"]
    } == {("broadcast", 2048, "int32", 301, 9)}
    assert [f["repeat"] for f in faulty["found"]] == list(range(8))


@pytest.mark.long  # its deadlines are short, and not for a crowded machine
@pytest.mark.parametrize(
    ("number", "seen"), [(signal.SIGKILL, "is dead"), (signal.SIGSTOP, "is stopped by a signal")]
)
def test_a_rank_lost_in_mid_exchange_is_named_by_its_peers_and_can_be_replaced(nodes, number, seen):
    node = nodes(3)
    node.results()
    harmed = []

    def harm(worker, kind, _content):
        if (worker, kind) == ("cpu1", "progress") and not harmed:
            harmed.append(node.pool.pid("cpu1"))
            os.kill(harmed[0], number)

    node.listener = harm
    replies = node.meet(max_bytes_cpu=1 << 20, timeout_s=4.0)
    assert isinstance(replies["cpu1"], Lost)
    for peer in ("cpu0", "cpu2"):
        reply = replies[peer]
        assert isinstance(reply, Raised)
        assert reply.type == "UnfinishedError"
        assert reply.cause == "environment"
        assert f"rank 1 (cpu1), process {harmed[0]}, {seen}" in reply.message
    survivors = [node.pool.pid("cpu0"), node.pool.pid("cpu2")]
    assert [r["wrong"] for r in node.results()] == [0, 0, 0]
    assert [node.pool.pid("cpu0"), node.pool.pid("cpu2")] == survivors
    assert node.pool.pid("cpu1") != harmed[0]


def test_a_rank_that_never_comes_is_named_and_the_others_can_meet_without_it(node):
    replies = node.meet(size=4, timeout_s=1.0)
    for reply in replies.values():
        assert isinstance(reply, Raised)
        assert "from rank 3 (cpu3) within 1 s: rank 3 (cpu3) never came" in reply.message
    assert [r["wrong"] for r in node.results()] == [0, 0, 0]


def test_a_rank_that_gives_up_for_a_reason_of_its_own_is_named_with_it(nodes, tmp_path):
    environment = sabotage(
        tmp_path,
        """
        import torch

        def full(*_, **__):
            raise MemoryError("no room on this device")

        torch.full = full
        """,
    )
    replies = nodes(2, {"cpu1": environment}).meet()
    assert replies["cpu1"].type == "MemoryError"
    assert replies["cpu0"].type == "UnfinishedError"
    assert "rank 1 (cpu1) gave up: MemoryError: no room on this device" in replies["cpu0"].message


def test_a_rank_that_hangs_in_its_own_work_is_named_as_the_one_behind(nodes, tmp_path):
    environment = sabotage(
        tmp_path,
        """
        import pathlib
        import threading
        import torch

        whole = torch.full

        def full(*args, **more):
            if pathlib.Path(__file__).with_name("hang").exists():
                threading.Event().wait(6)  # longer than the peer's patience
            return whole(*args, **more)

        torch.full = full
        """,
    )
    node = nodes(2, {"cpu1": environment})
    node.results()
    (tmp_path / "hang").touch()
    replies = node.meet(timeout_s=2.0)
    assert replies["cpu0"].type == "UnfinishedError"
    assert "the barrier before all_gather of 8 bytes of int32 failed: rank 1" in (
        replies["cpu0"].message
    )
    assert "got no further than all_reduce of 16 bytes of int64" in replies["cpu0"].message
    assert not isinstance(replies["cpu1"], Answer)


def test_ranks_that_were_told_different_sizes_refuse_to_exchange(node):
    replies = node.meet(change={"cpu2": {"max_bytes_cpu": 4096}})
    for reply in replies.values():
        assert isinstance(reply, Raised)
        assert (reply.type, reply.cause) == ("DisagreementError", "config")
    assert "'largest': 4096" in replies["cpu0"].message


def test_an_unknown_plant_is_refused(node):
    replies = node.meet(plant="swap")
    assert {reply.type for reply in replies.values()} == {"ValueError"}
    assert "unknown plant 'swap'" in replies["cpu0"].message


def test_the_collectives_run_alone_and_print_a_table():
    command = [sys.executable, "-m", "nodeproof.nccl_tests.inside", "--ranks", "2"]
    ran = subprocess.run(
        [*command, "--max-bytes", "2048"], capture_output=True, text=True, timeout=60, check=True
    )
    lines = ran.stdout.splitlines()
    assert lines[0] == "# planted faults found exactly on 2 ranks"
    timed = [line.split() for line in lines[3:] if " - " not in line]
    assert {row[0] for row in timed} == COLLECTIVES
    assert all(row[1] == "2048" and row[-1] == "0" and float(row[4]) > 0 for row in timed)


class Barrier:
    """What NCCL gives for a barrier: its wait never ends before the barrier does."""

    def __init__(self, *, over, failure=None):
        self.over, self.failure, self.waited = over, failure, False

    def is_completed(self):
        return self.over

    def exception(self):
        return self.failure

    def wait(self):
        assert self.over, "this would block until the watchdog aborts the process"
        self.waited = True


def barrier(monkeypatch, work, device="cuda"):
    def begin(*, async_op=False):
        assert async_op, "this would block until the watchdog aborts the process"
        return work

    monkeypatch.setattr("torch.distributed.barrier", begin)
    meeting = object.__new__(Meeting)
    meeting.timeout_s, meeting._device = 0.2, torch.device(device)
    meeting.barrier("the barrier before a thing")


def test_a_barrier_over_nccl_that_never_ends_is_given_up_in_time(monkeypatch):
    with pytest.raises(RuntimeError, match="the barrier before a thing was not done"):
        barrier(monkeypatch, Barrier(over=False))


def test_a_barrier_over_nccl_that_is_over_because_it_failed_is_not_taken_for_done(monkeypatch):
    with pytest.raises(RuntimeError, match="remote process exited"):
        barrier(monkeypatch, Barrier(over=True, failure=RuntimeError("remote process exited")))


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_barrier_that_everybody_came_to_is_done(monkeypatch, device):
    work = Barrier(over=True)
    barrier(monkeypatch, work, device)
    assert work.waited


def test_a_rank_that_is_slow_to_say_where_it_is_slows_no_collective(nodes, tmp_path):
    """What a rank does between the barrier and the start is nobody's time on the wire."""
    environment = sabotage(
        tmp_path,
        """
        import sys
        import time

        class Late:
            def find_spec(self, name, path=None, target=None):
                if name == "nodeproof.nccl_tests.inside":
                    from nodeproof.nccl_tests.stores import Store
                    whole = Store.set

                    def set(self, key, value):
                        if key.startswith("step/"):
                            time.sleep(0.3)
                        whole(self, key, value)

                    Store.set = set

        sys.meta_path.insert(0, Late())
        """,
    )
    results = nodes(2, {"cpu1": environment}).results(only=["sendrecv"], sweep=False)
    for result in results:
        assert result["seconds"]["sendrecv"] < 0.15


def test_a_wait_looks_without_a_pause_at_first_and_not_for_long():
    pauses = []
    meeting = object.__new__(Meeting)
    meeting.timeout_s = 5.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.sleep", pauses.append)
        ends = time.monotonic() + 0.002
        meeting.finished(lambda: time.monotonic() > ends, "a short thing")
        assert pauses == []
        ends = time.monotonic() + 0.05
        meeting.finished(lambda: time.monotonic() > ends, "a long thing")
        assert pauses
