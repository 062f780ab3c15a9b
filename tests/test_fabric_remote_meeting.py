"""Ranks on hosts of their own that meet over a TCP store: sound, missing, killed, cut off."""

import json
import os
import selectors
import sys
import time

import netns
import pytest

from nodeproof.nccl_tests.bandwidth import Collective

PORT = 29400
EXCHANGE = "nodeproof.nccl_tests.inside:exchange"


class Worker:
    """The process of one device on a host, spoken to as `child.Pool` speaks to it."""

    def __init__(self, network, host):
        self.host, self.text, self.told = host, b"", []
        self.pipe, theirs = os.pipe()
        words = [sys.executable, "-P", "-m", "nodeproof.worker", theirs, os.getpid()]
        self.process = network.run(host, words, {}, stdin=-1, pass_fds=[theirs])
        os.close(theirs)

    def ask(self, call, args, context):
        request = {"id": 1, "call": call, "args": args, "context": context}
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        self.told = []

    def hear(self):
        """Take in what has come; an empty list where the worker is gone."""
        more = os.read(self.pipe, 1 << 16)
        *lines, self.text = (self.text + more).split(b"\n")
        self.told += [json.loads(line) for line in lines]
        return more

    def said(self, kind):
        """The last message of a kind."""
        return next((m[kind] for m in reversed(self.told) if kind in m), None)

    @property
    def done(self):
        return self.said("result") or self.said("error")

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        os.close(self.pipe)


class Hosts:
    """A worker on each host, and one more on the first that keeps the store."""

    def __init__(self, network):
        self.network, self.meetings = network, 0
        self.workers = [Worker(network, host) for host in range(network.size)]
        self.keep()

    def keep(self):
        self.keeper = Worker(self.network, 0)
        self.keeper.ask("nodeproof.nccl_tests.stores:serve", {"port": PORT}, self.context(0))
        self.until(lambda: self.keeper.said("progress"), [self.keeper])

    def replace(self, *ranks):
        """Put new workers in the place of these."""
        for rank in ranks:
            self.workers[rank].end()
            self.workers[rank] = Worker(self.network, rank)

    def end(self):
        for worker in (*self.workers, self.keeper):
            worker.end()

    def context(self, host, size=1, store=""):
        labels = [f"cpu0 of host{rank}" for rank in range(size)]
        named = dict.fromkeys(("device_id", "device_label"), f"cpu{host}")
        kinds = dict.fromkeys(("device_kind", "torch_device"), "cpu")
        group = {"rank": host, "size": size, "store": store, "labels": labels}
        told = {"threads": 1, "peers": 1, "profile": "gate", "seed": 7, "host_root": "/"}
        return {**named, **kinds, **told, "group": group | {"host": f"host{host}"}}

    def begin(self, *, size=None, **args):
        """Have every worker exchange; `size` pretends that there are more."""
        self.meetings += 1
        for worker in self.workers:
            context = self.context(worker.host, size or self.network.size, self.store)
            sizes = {"max_bytes_cpu": 4096, "max_bytes_gpu": 4096, "timeout_s": 15.0}
            worker.ask(EXCHANGE, sizes | args, context)

    @property
    def store(self):
        return f"tcp://{self.network.address(0)}:{PORT}/meeting-{self.meetings}"

    def begin_long(self):
        """Begin what takes some seconds at the rate of the links, and return in its midst."""
        self.begin(max_bytes_cpu=4 << 20, only=["all_reduce"], sweep=False, timeout_s=4.0)
        self.until(
            lambda: all((w.said("progress") or {}).get("repeat", 0) > 1 for w in self.workers)
        )

    def until(self, what, workers=None, seconds=180.0):
        """Listen to the workers until something is so."""
        ends = time.monotonic() + seconds
        with selectors.DefaultSelector() as ears:
            for worker in workers or self.workers:
                ears.register(worker.pipe, selectors.EVENT_READ, worker)
            while not what():
                assert time.monotonic() < ends, f"not within {seconds:g} s: {self.replies()}"
                for key, _ in ears.select(0.1):
                    if not key.data.hear():
                        ears.unregister(key.fd)

    def replies(self):
        return [worker.done for worker in self.workers]

    def results(self, **args):
        self.begin(**args)
        self.until(lambda: all(self.replies()))
        assert all("wrong" in reply for reply in self.replies()), self.replies()
        return self.replies()


@pytest.fixture(scope="module")
def hosts():
    """Three hosts. Who harms them puts them right again."""
    with netns.network(3) as network:
        made = Hosts(network)
        yield made
        made.end()


def test_ranks_of_three_hosts_exchange_everything_and_get_every_bit_right(hosts):
    results = hosts.results(max_bytes_cpu=1 << 16)
    assert [(r["wrong"], r["found"], r["size"]) for r in results] == [(0, [], 3)] * 3
    for result in results:
        assert set(result["busbw_gbs"]) == {c.value for c in Collective}
        assert min(result["busbw_gbs"].values()) > 0
        assert result["transport"]["backend"] == "gloo"
    assert results[0]["seconds"] == results[1]["seconds"] == results[2]["seconds"]


def test_a_flip_planted_on_each_host_is_found_there_and_nowhere_else(hosts):
    for result in hosts.results(plant="flip"):
        assert result["found"] == result["planted"]
        assert result["wrong"] == 12


def test_what_the_ranks_exchange_has_gone_over_the_links_of_their_hosts(hosts):
    before = [hosts.network.carried(host) for host in range(3)]
    size = 1 << 20
    results = hosts.results(max_bytes_cpu=size, only=["all_reduce"], sweep=False)
    times = results[0]["repeats"]["all_reduce"] + 2  # and two to warm up
    least = times * size * 2 * 2 / 3  # what an all-reduce of three ranks costs each of them
    for host in range(3):
        gone = [b - a for a, b in zip(before[host], hosts.network.carried(host), strict=True)]
        assert all(least <= way < 1.5 * least for way in gone), (host, gone, least)


def test_a_slow_host_slows_the_whole_group_down_and_every_rank_says_the_same(hosts):
    how = {"max_bytes_cpu": 1 << 20, "only": ["all_reduce"], "sweep": False}
    sound = [r["busbw_gbs"]["all_reduce"] for r in hosts.results(**how)]
    hosts.network.slow(1, netns.MBIT / 5)
    slow = [r["busbw_gbs"]["all_reduce"] for r in hosts.results(**how)]
    hosts.network.slow(1, netns.MBIT)
    assert len({*slow}) == 1
    assert slow[0] < 0.5 * sound[0]


def test_a_rank_that_never_comes_is_named_on_every_host(hosts):
    hosts.begin(size=4, timeout_s=2.0)
    hosts.until(lambda: all(hosts.replies()))
    for reply in hosts.replies():
        assert reply["type"] == "UnfinishedError"
        assert "from rank 3 (cpu0 of host3) within 2 s" in reply["message"]
        assert "rank 3 (cpu0 of host3) never came to the meeting" in reply["message"]
    assert [r["wrong"] for r in hosts.results()] == [0, 0, 0]


HARMS = ["killed", pytest.param("cut off", marks=pytest.mark.long)]


@pytest.mark.parametrize("harm", HARMS)
def test_of_a_rank_lost_in_mid_exchange_the_others_hear_in_time_and_can_meet_again(hosts, harm):
    """They name it where it stayed behind; in the same step it can't be told from the living."""
    hosts.begin_long()
    lost, *others = [hosts.workers[rank] for rank in (1, 0, 2)]
    lost.process.kill() if harm == "killed" else hosts.network.cut(1)
    hosts.until(lambda: all(w.done for w in others), others, seconds=30)
    hosts.network.mend(1)
    hosts.replace(1)
    for worker in others:
        assert worker.done["type"] == "UnfinishedError"
        named = f"rank 1 (cpu0 of host1), process {lost.process.pid}, got no further than"
        unknown = "so none can be named"
        assert named in worker.done["message"] or unknown in worker.done["message"]
    assert [r["wrong"] for r in hosts.results()] == [0, 0, 0]


@pytest.mark.parametrize("harm", HARMS)
def test_a_store_that_goes_away_in_mid_exchange_is_what_the_ranks_name(hosts, harm):
    """And where it is: nothing can be known of the other ranks any more."""
    hosts.begin_long()
    store, others = hosts.store, hosts.workers[1:]
    hosts.keeper.process.kill() if harm == "killed" else hosts.network.cut(0)
    try:
        hosts.until(lambda: all(w.done for w in others), others, seconds=30)
    finally:
        hosts.network.mend(0)
        hosts.keeper.end()
        hosts.keep()
        hosts.replace(0, 1, 2)
    for worker in others:
        assert worker.done["type"] in {"UnfinishedError", "GoneError"}
        assert f"the store {store} can't be reached" in worker.done["message"]
