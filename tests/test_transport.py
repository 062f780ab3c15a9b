"""What carried the bytes: nothing that is not shown twice is believed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from textwrap import dedent

import pytest

from nodeproof.nccl_tests.bandwidth import Collective
from nodeproof.nccl_tests.logs import said
from nodeproof.nccl_tests.transport import Carried, Least, judge, least, least_of

GB = 10**9
DUE = Least(out=8 * GB, into=8 * GB)
EFA_LOG = """\
node-a:9:9 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 4 nics)
node-a:9:9 [0] NCCL INFO Using network Libfabric
node-a:9:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/Libfabric/0/GDRDMA
"""
IB_LOG = """\
node-a:9:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>
node-a:9:9 [0] NCCL INFO Using network IB
node-a:9:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0(1)/GDRDMA/Shared
"""
ROCE_LOG = IB_LOG.replace("/IB ", "/RoCE ")
TCP_LOG = """\
node-a:9:9 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>
node-a:9:9 [0] NCCL INFO Using network Socket
node-a:9:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0
"""
FELL_BACK = EFA_LOG.replace("Using network Libfabric", "Using network Socket")
QUIET = "node-a:9:9 [0] NCCL INFO comm 0x1 rank 0 nranks 16 - Init COMPLETE\n"


def device(name, kind, sent, *, received=None, where="", **more):
    """A device before it moves, and how much it is going to."""
    address = f"0000:{sum(name.encode()) % 256:02x}:00.0"
    return {
        "where": where or f"{name} ({address})",
        "name": name,
        "kind": kind,
        "address": address,
        "physical": True,
        "tx_bytes": 5000,
        "rx_bytes": 6000,
        "faults": {} if kind in {"ethernet", "loopback"} else {"symbol_error": 3},
        "shown": {},
        "at_top": [],
        "moves": (sent, sent if received is None else received),
    } | more


def four(kind="efa", each=2 * GB):
    return [device(f"{kind}{n}", kind, each) for n in range(4)]


def eth(sent, **more):
    return device("eth0", "ethernet", sent, **more)


def readings(devices, *, own=True, change=None, **after):
    """Before and after; `change` maps a device's name to what its second reading says instead."""
    before = [{k: v for k, v in each.items() if k != "moves"} for each in devices]
    later = []
    for each, old in zip(devices, before, strict=True):
        moved = {
            f"{way}_bytes": old[f"{way}_bytes"] + by
            for way, by in zip(("tx", "rx"), each["moves"], strict=True)
            if old[f"{way}_bytes"] is not None
        }
        later.append(old | moved | (change or {}).get(old["name"], {}))
    return {"devices": before, "own": own}, {"devices": later, "own": own} | after


def case(cards, *, expected="efa", texts=(EFA_LOG,), backend="nccl", due=DUE, pair=None, **how):
    change = {key: how.pop(key) for key in ("own", "change") if key in how}
    before, after = pair or readings(cards, **change)
    return judge(
        before, after, backend=backend, least=due, expected=expected, texts=list(texts), **how
    )


def problem(carried: Carried, words: str) -> bool:
    return not carried.proved and any(words in each for each in carried.problems)


# --- what is missing proves nothing ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"pair": (None, readings(four())[1])}, "not read before"),
        ({"pair": (readings(four())[0], None)}, "not read after"),
        ({"pair": ({"devices": [], "own": True},) * 2}, "had to move"),
        ({"texts": ()}, "0 of 0 NCCL logs do not name"),
        ({"texts": ("",)}, "1 of 1 NCCL logs do not name"),
        ({"texts": (EFA_LOG, QUIET)}, "1 of 2 NCCL logs do not name"),
        ({"backend": "mpi"}, "'mpi'"),
        ({"backend": ""}, "not known"),
        ({"due": Least()}, "nothing had to leave"),
        ({"change": {"efa1": {"tx_bytes": 1}}}, "tx_bytes went back by 4999"),
        ({"change": {"efa1": {"rx_bytes": None}}}, "does not count its rx_bytes"),
        ({"change": {"efa1": {"faults": {}}}}, "symbol_error can't be read any more"),
        ({"change": {"efa1": {"faults": {"symbol_error": 1}}}}, "symbol_error went back by 2"),
        ({"change": {"efa1": {"at_top": ["symbol_error"]}}}, "symbol_error stands at its top"),
        ({"change": {"efa1": {"where": "efa9 (x)"}}}, "went away during the run"),
        ({"change": {"efa1": {"where": "efa9 (x)"}}}, "efa9 (x) came during the run"),
        ({"devices": 5}, "4 efa devices where 5"),
        ({"devices": 3}, "4 efa devices where 3"),
        ({"names": ("efa0", "efa1", "efa7")}, "no efa device is called efa7"),
    ],
)
def test_what_is_missing_or_not_to_be_believed_is_no_proof(given, words):
    carried = case(four(), **given)
    assert problem(carried, words), carried


def test_without_an_expectation_what_is_missing_is_unproved_and_no_problem():
    carried = case(four(), expected="", texts=())
    assert carried.provider == "efa"  # by its counters
    assert not carried.proved
    assert carried.unproved
    assert carried.problems == ()


def test_devices_without_any_counter_of_faults_prove_nothing():
    carried = case([each | {"faults": {}} for each in four()])
    assert problem(carried, "has no counter of faults")


def test_too_few_bytes_do_not_show_how_they_are_spread():
    carried = case(four(each=1000), due=Least(out=4000, into=4000))
    assert problem(carried, "too few to be spread")


@pytest.mark.parametrize("reading", [{}, {"devices": 7}, {"devices": [{}]}])
def test_a_reading_that_is_none_is_refused(reading):
    with pytest.raises(ValueError, match="no reading of traffic"):
        judge(reading, reading, backend="nccl", least=DUE)


def test_an_unknown_provider_is_refused():
    with pytest.raises(ValueError, match="unknown provider 'EFA'"):
        case(four(), expected="EFA")


# --- fallback and contradiction ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "texts", "backend", "devices"),
    [
        ("efa", [TCP_LOG], "nccl", [*four(each=0), eth(9 * GB)]),
        ("efa", [TCP_LOG], "nccl", [eth(90 * GB)]),  # fast, and TCP all the same
        ("efa", [FELL_BACK], "nccl", [*four(each=0), eth(9 * GB)]),
        ("efa", [EFA_LOG, FELL_BACK], "nccl", [*four(), eth(GB)]),  # one rank alone
        ("efa", [EFA_LOG], "nccl", [*four(each=0), eth(9 * GB)]),  # the log says otherwise
        ("efa", ["NCCL INFO NET/OFI Selected provider is tcp;ofi_rxm"], "nccl", [eth(9 * GB)]),
        ("efa", [], "gloo", [*four(), eth(9 * GB)]),
        ("efa", [TCP_LOG], "nccl", four()),  # nobody knows what moved these
        ("infiniband", [TCP_LOG], "nccl", [*four("infiniband", 0), eth(9 * GB)]),
        ("roce", [TCP_LOG], "nccl", [*four("roce", 0), eth(9 * GB)]),
    ],
)
def test_tcp_where_a_fast_network_is_expected_is_a_fallback(expected, texts, backend, devices):
    carried = case(devices, expected=expected, texts=texts, backend=backend)
    assert f"by TCP and not by {expected}" in carried.fallback
    assert problem(carried, carried.fallback)
    assert carried.provider in {"tcp", "unknown"}


@pytest.mark.parametrize("sent", [0, 1 * GB, int(7.1 * GB / 4)])
def test_a_log_that_the_counters_do_not_bear_out_is_a_problem(sent):
    carried = case(four(each=sent))
    assert problem(carried, "efa is said to be used, and its devices sent")
    assert carried.provider == "unknown"


def test_bytes_that_left_and_never_came_in_are_no_proof():
    carried = case([device(f"efa{n}", "efa", 2 * GB, received=0) for n in range(4)])
    assert problem(carried, "received 0 bytes")


def test_a_part_that_went_by_ethernet_is_a_problem():
    assert problem(case([*four(), eth(GB)]), "bytes were sent by Ethernet beside efa")
    assert case([*four(), eth(GB // 2)]).proved  # a node has more to say than this
    image = eth(0, where="eth0", moves=(0, 90 * GB))  # what it pulls is none of ours
    assert case([*four(), image]).proved


def test_an_interface_of_the_rdma_device_itself_is_not_beside_it():
    cards = four("roce")
    netdev = eth(9 * GB, address=cards[0]["address"])
    carried = case([*cards, netdev], expected="roce", texts=[ROCE_LOG])
    assert carried.proved, carried


@pytest.mark.parametrize(
    ("expected", "texts", "kind", "words"),
    [
        ("infiniband", EFA_LOG, "efa", "efa was used where infiniband"),
        ("roce", IB_LOG, "infiniband", "infiniband was used where roce"),
        ("infiniband", ROCE_LOG, "roce", "roce was used where infiniband"),
        ("tcp", EFA_LOG, "efa", "efa was used where tcp"),
        ("efa", "NCCL INFO NET/OFI Selected provider is cxi", "efa", "'cxi'"),
    ],
)
def test_another_network_than_the_expected_is_a_problem(expected, texts, kind, words):
    assert problem(case(four(kind), expected=expected, texts=[texts]), words)


def test_ranks_that_took_different_networks_are_a_problem():
    carried = case([*four(), *four("infiniband")], texts=[EFA_LOG, IB_LOG])
    assert problem(carried, "different networks: efa, infiniband")


# --- single devices ---------------------------------------------------------------------------------


def test_a_device_that_moved_nothing_is_named():
    devices = [*four(each=3 * GB)[:3], device("efa3", "efa", 0)]
    carried = case(devices, devices=4)
    assert problem(carried, f"{devices[3]['where']} moved nothing")


@pytest.mark.parametrize("share", [0.75, 1.25])
def test_a_device_far_from_its_share_is_named(share):
    rest = (4 - share) / 3
    devices = [device(f"efa{n}", "efa", int(2 * GB * rest)) for n in range(3)]
    devices.append(device("efa3", "efa", int(2 * GB * share)))
    carried = case(devices, devices=4)
    assert len(carried.problems) == 1
    assert devices[3]["where"] in carried.problems[0]
    assert carried.shares[devices[3]["where"]] == pytest.approx(share / 4, rel=1e-3)


def test_a_device_within_its_share_is_not():
    spread = (0.85, 1.15, 0.9, 1.1)
    devices = [device(f"efa{n}", "efa", int(2 * GB * by)) for n, by in enumerate(spread)]
    assert case(devices, devices=4).proved


def test_faults_that_grew_are_problems_also_where_nothing_is_expected():
    grown = {"efa2": {"faults": {"symbol_error": 5}}}
    for expected in ("efa", ""):
        carried = case(four(), expected=expected, change=grown)
        assert problem(carried, "symbol_error grew by 2")
    wire = {"eth0": {"shown": {"rx_errors": 4}}}
    nic = eth(9 * GB, shown={"rx_errors": 1})
    assert problem(case([nic], expected="tcp", texts=[TCP_LOG], change=wire), "rx_errors grew by 3")


def test_adapters_for_storage_are_left_out_by_name():
    idle = device("mlx5_8", "infiniband", 0)
    data = [device(f"mlx5_{n}", "infiniband", 2 * GB) for n in range(4)]
    names = [each["name"] for each in data]
    broken = {"mlx5_8": {"faults": {"symbol_error": 900}}}
    how = {"expected": "infiniband", "texts": [IB_LOG], "devices": 4}
    assert case([*data, idle], names=names, change=broken, **how).proved
    assert not case([*data, idle], **how).proved
    # The names are of the data's network: Ethernet beside it is seen all the same.
    assert problem(case([*data, eth(9 * GB)], names=names, **how), "by Ethernet beside")


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ([EFA_LOG.replace("/GDRDMA", "")], "missing on a channel"),
        ([EFA_LOG, EFA_LOG.replace("/GDRDMA", "")], "missing on a channel"),
        ([EFA_LOG.rpartition("node-a")[0]], "not shown for any channel"),
        ([EFA_LOG.replace("found 4 nics", "found 3 nics")], "found 3 of 4 EFA devices"),
        ([EFA_LOG + "n:1:1 [0] NCCL WARN Cuda failure 'uncorrectable ECC error'\n"], "NCCL says"),
    ],
)
def test_what_else_a_log_says_against_the_node_is_heard(texts, words):
    assert problem(case(four(), texts=texts, devices=4, gdr_expected=True), words)


# --- proofs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "text", "kind"),
    [("efa", EFA_LOG, "efa"), ("infiniband", IB_LOG, "infiniband"), ("roce", ROCE_LOG, "roce")],
)
def test_log_and_counters_together_are_proof(expected, text, kind):
    for asked in (expected, ""):
        carried = case([*four(kind), eth(1000)], expected=asked, texts=[text] * 8)
        assert carried.proved, carried
        assert (carried.provider, carried.gdr, carried.fallback) == (expected, True, "")
        assert (carried.bytes, carried.expected_bytes) == (8 * GB, 8 * GB)
        assert list(carried.shares.values()) == [0.25] * 4


def test_what_was_sent_again_is_a_share_where_every_device_counts_it():
    counting = [each | {"shown": {"retrans_bytes": 70}} for each in four()]
    again = {f"efa{n}": {"shown": {"retrans_bytes": 70 + 4_000_000}} for n in range(4)}
    assert case(counting, change=again).retransmitted == pytest.approx(0.002)
    assert case(counting).retransmitted == 0
    assert case([*counting[:3], four()[3]]).retransmitted is None


def test_tcp_is_proved_by_the_interfaces_of_the_own_namespace():
    for backend, texts in (("gloo", []), ("nccl", [TCP_LOG])):
        how = {"expected": "tcp", "texts": texts, "backend": backend}
        carried = case([eth(9 * GB)], **how)
        assert (carried.proved, carried.provider) == (True, "tcp"), carried
        for own in (False, None):
            assert problem(case([eth(9 * GB)], own=own, **how), "this network namespace")
        before, after = readings([eth(9 * GB)])
        for pair in ((before | {"own": False}, after), (before, after | {"own": None})):
            assert problem(case([], pair=pair, **how), "this network namespace")
        assert problem(case([eth(GB)], **how), "had to move")


def test_virtual_interfaces_count_only_where_no_others_are():
    bridge = eth(9 * GB, physical=False, address=None)
    how = {"expected": "tcp", "texts": [], "backend": "gloo"}
    assert case([bridge], **how).proved
    nic = device("ens5", "ethernet", 0)
    assert problem(case([bridge, nic], **how), "had to move")


def test_loopback_is_seen_and_is_no_network_between_nodes():
    devices = [eth(100), device("lo", "loopback", 9 * GB)]
    how = {"texts": [], "backend": "gloo"}
    carried = case(devices, expected="", **how)
    assert (carried.provider, carried.proved) == ("loopback", True)
    assert problem(case(devices, expected="tcp", **how), "loopback was used where tcp")
    assert "by TCP and not by efa" in case(devices, expected="efa", **how).fallback


SENDS = """
    import json, socket, sys
    from pathlib import Path
    from nodeproof.probes.traffic import read
    from nodeproof.worker import Context

    here = Context(device_kind="node", device_id="a", device_label="a", torch_device="", threads=1,
                   peers=1, profile="quick", seed=1, host_root=Path("/"))
    before, sent = read(here), 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        for _ in range(2000):
            sent += out.sendto(bytes(1400), ("10.99.0.2", 9))
    json.dump({"before": before, "after": read(here), "sent": sent}, sys.stdout)
    """


@pytest.fixture
def two_hosts():
    """Two network namespaces with a wire between them; the name of the first."""
    if os.geteuid() or not shutil.which("ip") or not shutil.which("nsenter"):
        pytest.skip("wants root, ip and nsenter")
    a, b = (f"nptr-{os.getpid()}-{end}" for end in "ab")
    steps = [
        *(f"netns add {a}", f"netns add {b}"),
        f"link add v0 netns {a} type veth peer name v1 netns {b}",
        *(f"-n {a} addr add 10.99.0.1/24 dev v0", f"-n {b} addr add 10.99.0.2/24 dev v1"),
        *(f"-n {a} link set v0 up", f"-n {b} link set v1 up"),
    ]
    try:
        for step in steps:
            made = subprocess.run(["ip", *step.split()], capture_output=True, check=False)
            if made.returncode:
                pytest.skip(f"no network namespaces here: {made.stderr.decode().strip()}")
        yield a
    finally:
        for name in (a, b):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@pytest.mark.parametrize(
    ("enter", "proved"),
    [("ip netns exec {}", True), ("nsenter --net=/var/run/netns/{}", False)],
    ids=["with a /sys of its own", "with the /sys of another"],
)
def test_a_real_wire_is_proved_by_its_own_counters_alone(two_hosts, enter, proved):
    command = [*enter.format(two_hosts).split(), sys.executable, "-c", dedent(SENDS)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    told = json.loads(done.stdout)
    carried = case([], pair=(told["before"], told["after"]), expected="tcp", texts=[],
                   backend="gloo", due=Least(out=told["sent"]))  # fmt: skip
    assert carried.proved is proved, carried
    if proved:
        assert told["sent"] < carried.bytes < 1.1 * told["sent"]
        more = Least(out=2 * told["sent"])
        assert problem(
            case(
                [], pair=(told["before"], told["after"]), expected="tcp", backend="gloo", due=more
            ),
            "had to move",
        )


# --- the fewest bytes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("collective", "nodes", "ranks", "out", "into"),
    [
        (Collective.ALL_REDUCE, 2, 8, 4800, 4800),
        (Collective.ALL_REDUCE, 8, 1, 4800, 4800),
        (Collective.ALL_GATHER, 2, 8, 2400, 2400),
        (Collective.ALL_GATHER, 8, 1, 600, 4200),
        (Collective.REDUCE_SCATTER, 8, 1, 4200, 600),
        (Collective.ALL_TO_ALL, 2, 1, 2400, 2400),
        (Collective.ALL_TO_ALL, 2, 8, 19200, 19200),
        (Collective.ALL_TO_ALL, 8, 2, 8400, 8400),
        (Collective.SENDRECV, 3, 4, 4800, 4800),
        (Collective.BROADCAST, 3, 4, 0, 0),
    ],
)
def test_the_fewest_bytes_that_have_to_move(collective, nodes, ranks, out, into):
    assert least(collective, 4800, nodes=nodes, ranks_per_node=ranks) == Least(out=out, into=into)


@pytest.mark.parametrize("collective", list(Collective))
def test_one_node_has_to_send_nothing(collective):
    assert least(collective, 4800, nodes=1, ranks_per_node=8) == Least()


@pytest.mark.parametrize(("size", "nodes", "ranks"), [(-1, 2, 1), (8, 0, 1), (8, 2, 0)])
def test_numbers_that_are_none_are_refused(size, nodes, ranks):
    with pytest.raises(ValueError, match="bytes among"):
        least(Collective.ALL_REDUCE, size, nodes=nodes, ranks_per_node=ranks)


@pytest.mark.parametrize("nodes", [2, 3, 5, 8])
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_a_ring_and_a_direct_exchange_move_no_less(nodes, ranks):
    """The ring's one edge out of a node carries what each of its ranks passes on."""
    total, size = nodes * ranks, 1 << 20
    steps = total - 1
    ring = {
        Collective.ALL_REDUCE: 2 * steps * size // total,
        Collective.ALL_GATHER: steps * size // total,
        Collective.REDUCE_SCATTER: steps * size // total,
        Collective.ALL_TO_ALL: ranks * (total - ranks) * size // total,
        Collective.SENDRECV: size,
    }
    for collective, moved in ring.items():
        bound = least(collective, size, nodes=nodes, ranks_per_node=ranks)
        assert max(bound.out, bound.into) <= moved + 8
        assert bound.out > 0


def test_the_rows_of_an_exchange_add_up_with_their_repeats():
    rows = [
        # 1 + 7 all-reduces of 1024 bytes, in two types
        {"collective": "all_reduce", "dtype": "float32", "bytes": 1024, "elements": 8 * 256},
        {"collective": "all_reduce", "dtype": "bfloat16", "bytes": 1024, "elements": 512},
        # a rank is left with a sixth of 4800 bytes, 200 elements, three times
        {"collective": "reduce_scatter", "dtype": "int32", "bytes": 4800, "elements": 3 * 200},
        {"collective": "broadcast", "dtype": "int32", "bytes": 4800, "elements": 1200},
    ]
    total = least_of(rows, nodes=3, ranks_per_node=2)
    assert total == Least(out=9 * 1024 + 3 * 3200, into=9 * 1024 + 3 * 1600)
    with pytest.raises(ValueError, match="no row"):
        least_of([rows[0] | {"dtype": "float8"}], nodes=2, ranks_per_node=1)
    with pytest.raises(ValueError, match="no row"):
        least_of([rows[0] | {"bytes": 0}], nodes=2, ranks_per_node=1)


def test_logs_are_summed_up():
    told = said([EFA_LOG, IB_LOG, QUIET])
    assert told.networks == {"efa", "infiniband"}
    assert (told.logs, told.silent, told.gdr, told.nics) == (3, 1, True, 4)
    assert said([]).networks == frozenset()
    assert said(["NCCL INFO Channel 0 : 0 -> 1 via NET/AWS Libfabric/3"]).gdr is False
