"""Counters of traffic on machines made of files, and NCCL's logs as its workers leave them."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest
from sysfs_tree import IB_PORT, Machine, working

from nodeproof.child import Raised
from nodeproof.nccl_tests import logs

TRAFFIC = "nodeproof.probes.traffic:read"
LOGS = "nodeproof.nccl_tests.logs:read"
EFA = {"tx_bytes": 4000, "rx_bytes": 5000, "rdma_write_bytes": 3000, "retrans_bytes": 7}


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    with working(tmp_path_factory.mktemp("workers")) as made:
        yield made


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path / "m")


def device(result, name):
    return next(each for each in result["devices"] if each["name"] == name)


def counts(machine, folder, **counters):
    for name, value in counters.items():
        machine.put(f"{folder}/statistics/{name}", value)


# --- counters ---------------------------------------------------------------------------------


def test_a_node_without_sysfs_is_not_read_as_one_without_traffic(worker, tmp_path):
    assert isinstance(worker.run(TRAFFIC, tmp_path / "nothing"), Raised)
    (tmp_path / "bare/sys/class/net").mkdir(parents=True)
    reply = worker.run(TRAFFIC, tmp_path / "bare")
    assert isinstance(reply, Raised)
    assert "loopback" in str(reply)


def test_a_counter_that_is_not_there_is_none_and_not_zero(worker, machine):
    machine.efa("0000:80:00.0", name="rdmap128s0", counters={})
    machine.mellanox("0000:18:00.0", "mlx5_0", counters={})
    machine.interface("eth0", "0000:00:05.0")
    result = worker.answer(TRAFFIC, machine.root)
    for name in ("rdmap128s0", "mlx5_0", "eth0"):
        assert device(result, name)["tx_bytes"] is None
        assert device(result, name)["rx_bytes"] is None
    assert device(result, "rdmap128s0")["faults"] == {"cmds_err": 0}  # of the device, not the port
    assert device(result, "mlx5_0")["faults"] == {}


@pytest.mark.parametrize("text", ["", "many", "-1", "1.5"])
def test_a_counter_that_says_no_number_is_none(worker, machine, text):
    machine.efa("0000:80:00.0", name="rdmap128s0", counters=EFA | {"tx_bytes": text})
    result = worker.answer(TRAFFIC, machine.root)
    assert device(result, "rdmap128s0")["tx_bytes"] is None
    assert device(result, "rdmap128s0")["rx_bytes"] == 5000


def test_words_of_infiniband_are_bytes_and_those_of_efa_are_as_they_stand(worker, machine):
    machine.efa("0000:80:00.0", name="rdmap128s0", counters=EFA)
    counters = IB_PORT | {"port_xmit_data": 100, "port_rcv_data": 50}
    machine.mellanox("0000:18:00.0", "mlx5_0", counters=counters)
    machine.mellanox("0000:19:00.0", "mlx5_1", layer="Ethernet", counters=counters)
    result = worker.answer(TRAFFIC, machine.root)
    efa, infiniband, roce = (device(result, n) for n in ("rdmap128s0", "mlx5_0", "mlx5_1"))
    assert (efa["kind"], efa["tx_bytes"], efa["rx_bytes"]) == ("efa", 4000, 5000)
    assert efa["shown"]["retrans_bytes"] == 7
    for each, kind in ((infiniband, "infiniband"), (roce, "roce")):
        assert (each["kind"], each["tx_bytes"], each["rx_bytes"]) == (kind, 400, 200)
    assert infiniband["where"] == "mlx5_0 port 1 (0000:18:00.0)"
    assert infiniband["faults"]["symbol_error"] == 0
    assert infiniband["physical"]


def test_counters_at_the_top_of_their_width_are_named(worker, machine):
    counters = IB_PORT | {
        "port_xmit_data": (1 << 32) - 1,
        "port_rcv_data": 5,
        "symbol_error": 65535,
        "port_xmit_discards": 65535,  # no fault, so it does not matter
    }
    machine.mellanox("0000:18:00.0", "mlx5_0", counters=counters)
    result = worker.answer(TRAFFIC, machine.root)
    assert device(result, "mlx5_0")["at_top"] == ["port_xmit_data", "symbol_error"]


def test_interfaces_are_told_apart(worker, machine):
    counts(
        machine, machine.interface("eth0", "0000:00:05.0"), tx_bytes=10, rx_bytes=20, tx_errors=1
    )
    counts(machine, machine.interface("veth7"), tx_bytes=30, rx_bytes=40)
    machine.interface("ib0", kind=32)
    result = worker.answer(TRAFFIC, machine.root)
    eth0, veth7, lo = (device(result, name) for name in ("eth0", "veth7", "lo"))
    assert (eth0["kind"], eth0["physical"], eth0["address"]) == ("ethernet", True, "0000:00:05.0")
    assert (eth0["tx_bytes"], eth0["rx_bytes"], eth0["shown"]) == (10, 20, {"tx_errors": 1})
    assert (veth7["kind"], veth7["physical"], veth7["address"]) == ("ethernet", False, None)
    assert lo["kind"] == "loopback"
    assert not [each for each in result["devices"] if each["name"] == "ib0"]


def test_sysfs_of_another_namespace_is_seen_to_be_that(worker, machine):
    machine.interface("eth0", "0000:00:05.0")
    assert worker.answer(TRAFFIC, machine.root)["own"] is None  # no numbers
    machine.put("sys/class/net/lo/ifindex", 1)
    machine.put("sys/class/net/eth0/ifindex", 77001)
    assert worker.answer(TRAFFIC, machine.root)["own"] is False


def test_the_interfaces_of_this_machine_are_read(worker):
    """Real files, if /sys shows this process's own namespace."""
    result = worker.answer(TRAFFIC, "/")
    names = {name for _, name in socket.if_nameindex()}
    if {path.name for path in Path("/sys/class/net").iterdir()} != names:
        pytest.skip("/sys is mounted for another network namespace")
    assert result["own"] is True
    assert device(result, "lo")["tx_bytes"] >= 0


# --- NCCL's logs --------------------------------------------------------------------------------


def test_no_log_is_an_empty_list_and_no_folder_an_error(worker, tmp_path):
    assert worker.answer(LOGS, "/", folder=str(tmp_path)) == {"texts": []}
    assert isinstance(worker.run(LOGS, "/", folder=str(tmp_path / "nothing")), Raised)


def test_logs_of_all_ranks_are_read_and_nothing_else(worker, tmp_path):
    (tmp_path / "nccl.node-a.12.log").write_text("one\n")
    (tmp_path / "nccl.node-a.13.log").write_bytes(b"two \xff\n")
    (tmp_path / "worker.log").write_text("ours\n")
    os.mkfifo(tmp_path / "nccl.node-a.14.log")  # nobody writes to it: opening it would hang
    texts = worker.answer(LOGS, "/", folder=str(tmp_path))["texts"]
    assert texts == ["one\n", "two \\xff\n"]


def test_a_folder_that_others_write_to_is_refused(worker, tmp_path):
    for number in range(257):
        (tmp_path / f"nccl.n.{number}.log").touch()
    assert isinstance(worker.run(LOGS, "/", folder=str(tmp_path)), Raised)


@pytest.mark.parametrize("most", [64, 100, 101, 102, 103, 104, 250])
def test_a_long_log_is_cut_between_lines_and_says_so(worker, tmp_path, most):
    lines = [f"line {number:03}" for number in range(100)]  # of nine bytes with their ends
    (tmp_path / "nccl.n.1.log").write_text("".join(f"{line}\n" for line in lines))
    (text,) = worker.answer(LOGS, "/", folder=str(tmp_path), most_bytes=most)["texts"]
    kept = text.splitlines()
    (note,) = [line for line in kept if line not in lines]
    left_out = int(re.fullmatch(r"\[(\d+) bytes left out\]", note)[1])
    at = kept.index(note)
    assert kept[:at] == lines[:at]
    assert kept[at + 1 :] == lines[-(len(kept) - at - 1) :]
    assert left_out == 900 - 9 * (len(kept) - 1)
    assert 9 * (len(kept) - 1) <= most < 9 * (len(kept) + 1)
    assert at > 0


def test_a_log_of_one_endless_line_shows_nothing_of_it(worker, tmp_path):
    (tmp_path / "nccl.n.1.log").write_text("x" * 1000)
    (text,) = worker.answer(LOGS, "/", folder=str(tmp_path), most_bytes=100)["texts"]
    assert text == "[1000 bytes left out]\n"


@pytest.mark.parametrize(
    ("given", "subsystems"),
    [
        ("", "INIT,NET,ENV"),
        ("COLL,net", "COLL,NET,INIT,ENV"),
        ("ALL", "ALL"),
        ("^NET,GRAPH", "^GRAPH"),
        ("^INIT", "ALL"),
    ],
)
def test_what_the_user_wants_logged_stays_beside_what_we_need(given, subsystems):
    made = logs.environment("/run/logs", {"NCCL_DEBUG_SUBSYS": given, "NCCL_DEBUG": "WARN"})
    assert made == {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": subsystems,
        "NCCL_DEBUG_FILE": "/run/logs/nccl.%h.%p.log",
    }
    assert logs.environment("/x", {"NCCL_DEBUG": "trace"})["NCCL_DEBUG"] == "TRACE"


def test_a_network_that_is_expected_must_be_named_to_nccl():
    assert logs.required("") == {}
    assert logs.required("efa") == {"NCCL_NET": "AWS Libfabric"}
    assert logs.required("roce") == {"NCCL_NET": "IB", "NCCL_IB_RESILIENCY_PORT_FAILOVER": "0"}
    assert logs.required("tcp") == {"NCCL_NET": "Socket"}
    with pytest.raises(ValueError, match="unknown provider 'EFA'"):
        logs.required("EFA")


def test_a_log_is_what_its_name_says(worker, tmp_path):
    """NCCL puts host and process for %h and %p; what it makes of the name has to be found again."""
    written = logs.environment(str(tmp_path), {})["NCCL_DEBUG_FILE"]
    Path(written.replace("%h", "node-a").replace("%p", "7")).write_text("NCCL INFO\n")
    assert worker.answer(LOGS, "/", folder=str(tmp_path)) == {"texts": ["NCCL INFO\n"]}
