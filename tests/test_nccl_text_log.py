"""Log lines of NCCL: what they say of the network in use, and what they do not say."""

from __future__ import annotations

import pytest

from nodeproof.parsers import nccl_log

P = "node-a:88:99 [0] "
START = P + "NCCL INFO Bootstrap : Using eth0:192.0.2.1<0>\nNCCL version 2.27.7+cuda12.9\n"
DONE = P + "NCCL INFO ncclCommInitRank comm 0x55 rank 0 nranks 8 - Init COMPLETE\n"
OLD_EFA = P + "NCCL INFO NET/OFI Selected Provider is efa\n"
EFA = P + "NCCL INFO NET/OFI Selected Provider is efa (found 8 nics)\n"
NEW_EFA = P + "NCCL INFO NET/OFI Selected provider is efa, fabric is efa-direct (found 8 nics)\n"
DIRECT = P + "NCCL INFO NET/OFI Selected provider is efa-direct, fabric is x (found 8 nics)\n"
IB = P + "NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:192.0.2.1<0>\n"
ROCE = P + "NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE ; OOB eth0:192.0.2.1<0>\n"
NO_IB = P + "NCCL INFO NET/IB : No device found.\n"
TCP = P + "NCCL INFO NET/Socket : Using [0]eth0:192.0.2.1<0>\n"
NET_TCP = P + "NCCL INFO Using network Socket\n"
NET_IB = P + "NCCL INFO Using network IB\n"
NET_OFI = P + "NCCL INFO Using network AWS Libfabric\n"
NVLS = P + "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via NVLS\n"
P2P = P + "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read\n"
SETUP = P + "NCCL INFO misc/socket.cc:564 -> 2\n"


def read(text, **context):
    reading = nccl_log.read(text if isinstance(text, bytes) else text.encode(), context)
    assert reading.why
    return str(reading.grade), reading.fields["transport"]


TRANSPORTS = {
    "EFA, oldest words": (OLD_EFA, "efa"),
    "EFA, old words": (EFA, "efa"),
    "EFA, new words": (NEW_EFA, "efa"),
    "EFA, its direct fabric": (DIRECT, "efa"),
    "EFA, and NVLink inside the node": (EFA + NVLS, "efa"),
    "InfiniBand": (IB + NET_IB, "ib"),
    "RoCE": (ROCE, "ib"),
    "InfiniBand, chosen": (NET_IB, "ib"),
    "InfiniBand, not there": (NO_IB, "unknown"),
    "TCP": (NO_IB + TCP, "socket"),
    "TCP, chosen": (NET_TCP, "socket"),
    "TCP in the end": (EFA + TCP + NET_TCP, "socket"),
    "TCP on one of two hosts": (EFA + NET_OFI + NET_TCP.replace("-a", "-b"), "socket"),
    "NVLink": (NVLS, "nvlink"),
    "peers over anything": (P2P, "unknown"),
    "how to meet": (START + SETUP, "unknown"),
    "libfabric, over anything": (NET_OFI, "unknown"),
    "libfabric over TCP": (EFA.replace("is efa", "is tcp"), "unknown"),
}


@pytest.mark.parametrize("name", TRANSPORTS)
def test_the_network_in_use_is_read_from_what_says_so(name):
    text, transport = TRANSPORTS[name]
    assert read(text)[1] == transport


GRADES = {
    # a text, its context, the grade
    "EFA with all cards": (EFA + DONE, {"efa_expected": True, "efa_nics_expected": 8}, "pass"),
    "EFA with cards missing": (EFA, {"efa_expected": True, "efa_nics_expected": 16}, "fail"),
    "EFA with cards missing on one of two hosts": (
        EFA + EFA.replace("-a", "-b").replace("found 8", "found 7"),
        {"efa_expected": True, "efa_nics_expected": 8},
        "fail",
    ),
    "EFA with more cards than expected": (
        EFA + DONE,
        {"efa_expected": True, "efa_nics_expected": 4},
        "error",
    ),
    "EFA with a number that is not told": (
        OLD_EFA + DONE,
        {"efa_expected": True, "efa_nics_expected": 4},
        "warn",
    ),
    "TCP where EFA is": (TCP + DONE, {"efa_expected": True}, "fail"),
    "InfiniBand where EFA is": (IB + DONE, {"efa_expected": True}, "fail"),
    "libfabric over TCP where EFA is": (
        EFA.replace("is efa", "is tcp;ofi_rxm") + DONE,
        {"efa_expected": True},
        "fail",
    ),
    "no EFA found, and nothing more": (
        START + P + "NCCL INFO NET/OFI No eligible providers were found\n",
        {"efa_expected": True},
        "error",
    ),
    "EFA not named": (START + DONE, {"efa_expected": True}, "warn"),
    "only the start where EFA is": (START, {"efa_expected": True}, "error"),
    "TCP where InfiniBand is": (NO_IB + TCP, {"ib_expected": True}, "fail"),
    "InfiniBand where it is": (IB + DONE, {"ib_expected": True}, "pass"),
    "TCP where nothing is expected": (NO_IB + TCP + NET_TCP + DONE, {}, "pass"),
    "shared memory where NVLink is": (
        P + "NCCL INFO Channel 11 : 3[3] -> 2[2] via SHM/direct/direct\n",
        {"nvlink_expected": True},
        "fail",
    ),
    "only the start": (START, {}, "error"),
    "a communicator at work": (START + DONE, {}, "pass"),
    "no line of NCCL": ("hello\n", {}, "error"),
    "nothing": ("", {}, "error"),
    "a peer that went away": (
        IB + P + "misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer b<1>\n",
        {},
        "error",
    ),
    "a completion with an error, which names no end": (
        IB + P + "transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer b<1> with status=12\n",
        {},
        "error",
    ),
    "a port that fell": (
        IB + P + "transport/net_ib.cc:1 NCCL WARN NET/IB : mlx5_0:1 async fatal event: port error\n",
        {},
        "fail",
    ),
    "an ECC error": (
        P + "enqueue.cc:1 NCCL WARN Cuda failure 214 'uncorrectable ECC error encountered'\n",
        {},
        "fail",
    ),
    "a device busy with others": (
        P + "init.cc:1 NCCL WARN Cuda failure 'CUDA-capable device(s) is/are busy or unavailable'\n",
        {"idle": False},
        "error",
    ),
    "a set-up that came back with an error": (
        START + DONE + P + "NCCL INFO init.cc:1932 -> 2\n" + P + "NCCL INFO group.cc:69 -> 2 [Async thread]\n",
        {},
        "error",
    ),
    "a call that came back with a remote error": (IB + DONE + P + "NCCL INFO src/enqueue.cc:99 -> 6\n", {}, "error"),
    "a set-up that goes on": (IB + DONE + P + "NCCL INFO group.cc:131 -> 7\n", {}, "pass"),
    "a way that was tried, and another taken": (IB + SETUP + DONE, {}, "pass"),
    "a watchdog": (
        START + DONE + "[rank0]:[E1130 10:00:01 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE) ran for 600002 ms\n",
        {},
        "error",
    ),
    "a watchdog that ended": (
        START + DONE + "[PG 0 Rank 3] Process group watchdog thread terminated with exception: x\n",
        {},
        "error",
    ),
    "a program that crashed": (IB + DONE + "bash: line 1: 77 Bus error               (core dumped) ./train\n", {}, "error"),
    "a command that failed": (IB + DONE, {"exit_status": 1}, "error"),
    "a setting that slows down": (
        IB + DONE + P + "init.cc:1 NCCL WARN NUMA auto balancing enabled which can lead to variability\n",
        {},
        "warn",
    ),
    "a plugin that is not needed": (
        START + IB + P + "NCCL INFO NET/Plugin: Could not find: libnccl-net.so.\n" + DONE,
        {},
        "pass",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GRADES)
def test_a_log_proves_only_what_it_shows(name):
    text, context, grade = GRADES[name]
    assert read(text, **context)[0] == grade


ONE, SEVERAL = {"multi_node": False}, {"multi_node": True}
WANTED = {"efa_expected": True}
COUNTED = P + "NCCL INFO comm 0x55 rank 0 nRanks {} nNodes {} localRanks 8 localRank 0 MNNVL 0\n"
OVER_TCP = P + "NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/Socket/0\n"
OVER_OFI = P + "NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/AWS Libfabric/0/GDRDMA\n"
NODES = {
    # On one node no network is crossed, whichever was chosen.
    "TCP on one node": (NET_TCP + DONE, ONE | WANTED, "pass"),
    "TCP on one node, counted": (COUNTED.format(8, 1) + NET_TCP + DONE, ONE | WANTED, "pass"),
    "TCP on one node where InfiniBand is": (NO_IB + TCP + DONE, ONE | {"ib_expected": True}, "pass"),
    "InfiniBand on one node where EFA is": (IB + NET_IB + DONE, ONE | WANTED, "pass"),
    "no network named on one node": (START + DONE, ONE | WANTED, "pass"),
    "no EFA found on one node": (
        P + "NCCL INFO NET/OFI No eligible providers were found\n" + NET_TCP + DONE,
        ONE | WANTED,
        "pass",
    ),
    "EFA on one node with a number not told": (
        OLD_EFA + DONE, ONE | WANTED | {"efa_nics_expected": 8}, "pass",
    ),
    "logs of two nodes that each ran alone": (
        COUNTED.format(8, 1) + NET_TCP + (COUNTED.format(8, 1) + NET_TCP + DONE).replace("-a", "-b"),
        ONE | WANTED,
        "pass",
    ),
    # What is no network, or is no matter of crossing one, counts there too.
    "cards missing on one node": (EFA + DONE, ONE | WANTED | {"efa_nics_expected": 16}, "fail"),
    "shared memory on one node": (
        NET_TCP + P + "NCCL INFO Channel 11 : 3[3] -> 2[2] via SHM/direct/direct\n" + DONE,
        ONE | WANTED | {"nvlink_expected": True},
        "fail",
    ),
    "only the start on one node": (START, ONE | WANTED, "error"),
    # A text that shows several nodes, or a network at work, is not one node's, whatever is said.
    "several counted": (COUNTED.format(16, 2) + NET_TCP + DONE, ONE | WANTED, "fail"),
    "more ranks than here": (
        COUNTED.format(16, "x").replace("nNodes x ", "") + NET_TCP + DONE, ONE | WANTED, "fail",
    ),
    "two names": (NET_TCP + NET_TCP.replace("-a", "-b") + DONE, ONE | WANTED, "fail"),
    "data over TCP": (NET_TCP + OVER_TCP + DONE, ONE | WANTED, "fail"),
    "data over libfabric": (EFA + OVER_OFI + DONE, ONE | WANTED, "error"),
    "several counted, and nothing expected": (COUNTED.format(16, 2) + NET_TCP + DONE, ONE, "error"),
    "one counted where several were to be": (COUNTED.format(8, 1) + EFA + DONE, SEVERAL | WANTED, "error"),
    # Nothing changes where several took part, or nobody says how many.
    "EFA on several": (COUNTED.format(16, 2) + EFA + DONE, SEVERAL | WANTED, "pass"),
    "EFA on several, by the log of one": (EFA + DONE, SEVERAL | WANTED, "pass"),
    "TCP on several": (NET_TCP + DONE, SEVERAL | WANTED, "fail"),
    "TCP on nobody knows how many": (NET_TCP + DONE, WANTED, "fail"),
    "TCP on one that nobody told of": (COUNTED.format(8, 1) + NET_TCP + DONE, WANTED, "fail"),
}  # fmt: skip


@pytest.mark.parametrize("name", NODES)
def test_a_network_matters_where_more_than_one_node_takes_part(name):
    text, context, grade = NODES[name]
    assert read(text, **context)[0] == grade


def test_a_log_that_holds_a_test_is_judged_by_the_test():
    row = "  1048576  262144  float  sum  -1  31.20  33.61  33.61  4  30.90  33.93  33.93  0\n"
    assert read(IB + DONE + row)[0] == "fail"
    assert read(IB + DONE + row.replace("  4  ", "  0  "))[0] == "error"


@pytest.mark.parametrize("junk", [b"\xff" * 99, b"NCCL WARN" * 99, b"provider is", b"\x00\r\n"])
def test_no_bytes_break_the_reader(junk):
    assert read(junk)[0] == "error"
