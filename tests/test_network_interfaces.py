"""Ethernet links, and what the adapters count while a node is tested."""

from __future__ import annotations

import pytest
from planted_bounds import everything_broken
from sysfs_tree import IB_PORT, Machine, instance, working

from nodeproof.acceptance import test_network as network
from nodeproof.child import Raised
from nodeproof.model import Cause, Outcome, Remedy
from nodeproof.probes.nic_counters import saturated
from tests.standin.build import judged

LINKS = "nodeproof.probes.ethernet:interfaces"
READ, GROWTH = "nodeproof.probes.nic_counters:read", "nodeproof.probes.nic_counters:growth"


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    with working(tmp_path_factory.mktemp("workers")) as made:
        yield made


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path / "m")


def card(machine, name, number=0, **how):
    """An interface of a card on the bus."""
    address = f"0000:0{number}:00.0"
    parent = machine.function(address, vendor="0x8086", device="0x1521", driver="igb")
    machine.interface(name, address, parent=parent, **how)
    return f"{parent}/net/{name}"


def links(worker, machine, limits=None):
    result = worker.answer(LINKS, machine.root)
    judgement, broken = judged(network.test_ethernet_links, result, limits)
    return judgement, broken, result


def names(text, **more):
    return network.LinkLimits(names=text, **more)


def test_this_machine_and_one_without_any_interface_pass(worker, machine):
    for root in ("/", machine.root):
        result = worker.answer(LINKS, root)
        assert judged(network.test_ethernet_links, result)[0].outcome is Outcome.PASS
        everything_broken(network.test_ethernet_links, result)


def test_without_sysfs_nothing_is_judged(worker, tmp_path):
    assert isinstance(worker.run(LINKS, tmp_path / "nothing"), Raised)
    assert isinstance(worker.run(READ, tmp_path / "nothing"), Raised)


def test_a_folder_without_a_loopback_is_no_view_of_a_kernels_interfaces(worker, machine):
    (machine.root / "sys/class/net/lo").unlink()
    for call in (LINKS, READ):
        reply = worker.run(call, machine.root)
        assert isinstance(reply, Raised)
        assert (reply.cause, "no loopback" in reply.message) == ("environment", True)


def test_every_bound_is_broken_by_a_plant(worker, machine):
    card(machine, "ens1", 1)
    card(machine, "ens2", 2, carrier=0, speed=None)
    result = worker.answer(LINKS, machine.root)
    for limits in (
        network.LinkLimits(expected=1),
        names("ens1", mbs=100_000),
        names("ens1 ens2", mbs=1, expected=2),
        names("ens9", mbs=100),
    ):
        everything_broken(network.test_ethernet_links, result, limits)


def test_an_interface_that_is_on_without_a_link_is_shown_and_fails_where_it_is_expected(
    worker, machine
):
    card(machine, "ens1", 1)
    card(machine, "ens2", 2, carrier=0, speed=-1, operstate="down")
    judgement, _, result = links(worker, machine)
    assert judgement.outcome is Outcome.PASS
    assert result["interfaces"][1]["speed_mbs"] is None
    judgement, broken, _ = links(worker, machine, names("ens1 ens2"))
    assert (judgement.cause, list(broken)) == (Cause.ENVIRONMENT, ["without a link"])
    assert "0000:02:00.0 ens2" in broken["without a link"].detail
    assert links(worker, machine, network.LinkLimits(expected=2))[0].outcome is Outcome.FAIL


def test_an_interface_that_somebody_switched_off_blames_no_hardware(worker, machine):
    card(machine, "ens1", 1, flags="0x1002", carrier=None, speed=None, operstate="down")
    judgement, broken, _ = links(worker, machine, names("ens1"))
    assert (judgement.cause, list(broken)) == (Cause.ENVIRONMENT, ["without a link"])


def test_an_interface_that_is_not_there_is_no_pass(worker, machine):
    judgement, broken, _ = links(worker, machine, names("ens1"))
    assert judgement.cause is Cause.ENVIRONMENT
    assert "not there: ens1" in broken["without a link"].detail


@pytest.mark.parametrize(
    ("speed", "broken", "cause"),
    [
        (100_000, [], None),
        (25_000, ["slow"], Cause.ENVIRONMENT),
        (-1, ["of unknown speed"], Cause.ENVIRONMENT),  # which is not zero
    ],
)
def test_a_speed_is_judged_where_it_is_asked_and_told(worker, machine, speed, broken, cause):
    card(machine, "ens1", 1, speed=speed)
    judgement, found, _ = links(worker, machine, names("ens1", mbs=100_000))
    assert (judgement.cause, list(found)) == (cause, broken)


def test_a_driver_that_does_not_answer_is_named(worker, machine):
    folder = card(machine, "ens1", 1)
    machine.put(f"{folder}/flags", "gibberish")
    judgement, broken, _ = links(worker, machine)
    assert (judgement.cause, list(broken)) == (Cause.ENVIRONMENT, ["interfaces without a state"])


def test_ip_over_infiniband_and_loopback_are_no_ethernet(worker, machine):
    assert (machine.root / "sys/class/net/lo/type").read_text() == "772\n"
    machine.mellanox("0000:18:00.0", "mlx5_0", interface="ib0", operstate="down")
    assert links(worker, machine)[2]["interfaces"] == []


# --- errors during the run ------------------------------------------------------------------


def grown(worker, machine, changes=(), limits=None):
    """Read, change the files, read again, judge."""
    before = worker.answer(READ, machine.root)
    for path, value in dict(changes).items():
        machine.put(path, value)
    result = worker.answer(GROWTH, machine.root, before=before)
    judgement, broken = judged(network.test_network_errors, result, limits)
    return judgement, broken, result


@pytest.fixture
def two(machine):
    """Two InfiniBand ports; returns the machine and the folders of their counters."""
    worn = {**IB_PORT, "link_downed": 4, "port_rcv_errors": 65535}
    first = machine.mellanox("0000:18:00.0", "mlx5_0", counters=worn)
    second = machine.mellanox("0000:20:00.0", "mlx5_1")
    return machine, f"{first}/counters", f"{second}/counters"


def test_nothing_new_passes_whatever_a_life_has_brought(worker, two):
    judgement, _, result = grown(worker, two[0])
    assert judgement.outcome is Outcome.PASS
    assert result["compared"] > 10
    assert result["at_top"] == ["mlx5_0 port 1 (0000:18:00.0)/port_rcv_errors"]
    everything_broken(network.test_network_errors, result)
    everything_broken(network.test_network_errors, result, network.ErrorLimits(losses=9, errors=9))


def test_this_machine_and_one_without_adapters_pass(worker, machine):
    for root in ("/", machine.root):
        before = worker.answer(READ, root)
        result = worker.answer(GROWTH, root, before=before)
        assert judged(network.test_network_errors, result)[0].outcome is Outcome.PASS
        everything_broken(network.test_network_errors, result)


def test_one_lost_link_is_no_pass_names_the_port_and_blames_neither_end(worker, two):
    machine, first, _ = two
    judgement, broken, _ = grown(worker, machine, {f"{first}/link_downed": 5})
    assert (judgement.cause, judgement.remedy) == (Cause.ENVIRONMENT, Remedy.RETEST)
    assert broken["link losses"].detail == "mlx5_0 port 1 (0000:18:00.0): 1 link_downed"


def test_a_limit_allows_as_many_losses_on_one_port(worker, two):
    machine, first, second = two
    changes = {f"{first}/link_downed": 7, f"{second}/link_downed": 3}
    allowed = network.ErrorLimits(losses=3)
    assert grown(worker, machine, changes, allowed)[0].outcome is Outcome.PASS
    judgement, _, _ = grown(worker, machine, {f"{first}/link_downed": 11}, allowed)
    assert judgement.outcome is Outcome.FAIL


def test_a_link_lost_on_every_port_at_once_is_the_switchs(worker, two):
    machine, first, second = two
    changes = {f"{first}/link_downed": 5, f"{second}/link_downed": 1}
    judgement, broken, _ = grown(worker, machine, changes)
    assert (judgement.cause, list(broken)) == (Cause.ENVIRONMENT, ["link losses"])


def test_single_errors_blame_nobody_and_congestion_is_not_judged(worker, two):
    machine, first, _ = two
    judgement, broken, _ = grown(worker, machine, {f"{first}/symbol_error": 1})
    assert (judgement.cause, list(broken)) == (Cause.ENVIRONMENT, ["link errors"])
    judgement, _, result = grown(worker, machine, {f"{first}/port_xmit_discards": 5000})
    assert judgement.outcome is Outcome.PASS
    assert [g["counter"] for g in result["grown"]] == ["port_xmit_discards"]


def test_a_counter_that_went_back_was_reset_meanwhile(worker, two):
    machine, first, _ = two
    judgement, broken, _ = grown(worker, machine, {f"{first}/link_downed": 0})
    assert (judgement.cause, list(broken)) == (Cause.ENVIRONMENT, ["counters that went back"])


def test_a_counter_that_could_be_read_at_the_start_only_is_named(worker, two):
    machine, first, _ = two
    judgement, broken, _ = grown(worker, machine, {f"{first}/link_downed": "N/A (no PMA)"})
    assert (judgement.cause, list(broken)) == (Cause.ENVIRONMENT, ["counters gone"])
    assert broken["counters gone"].detail == "mlx5_0 port 1 (0000:18:00.0)/link_downed"


def test_a_port_whose_counters_all_stand_at_their_top_was_not_watched(worker, machine):
    worn = {"symbol_error": 65535, "link_error_recovery": 255, "link_downed": 255}
    folder = machine.mellanox("0000:18:00.0", "mlx5_0", counters=worn)
    (machine.root / folder / "hw_counters/out_of_sequence").unlink()
    judgement, broken, _ = grown(worker, machine)
    assert (judgement.cause, list(broken)) == (Cause.ENVIRONMENT, ["ports without counters"])
    assert broken["ports without counters"].detail == "mlx5_0 port 1 (0000:18:00.0)"


@pytest.mark.parametrize(
    ("counter", "top"),
    [
        ("link_downed", 255),
        ("link_error_recovery", 255),
        ("symbol_error", 65535),
        ("local_link_integrity_errors", 15),
        ("excessive_buffer_overrun_errors", 15),
    ],
)
@pytest.mark.parametrize("state", ["at its top", "rubbish", "refused", "missing beside the others"])
def test_a_counter_that_counts_for_a_limit_and_could_not_have_moved_is_no_zero(
    worker, two, counter, top, state
):
    machine, first, _ = two
    spoil(machine, f"{first}/{counter}", state, top)
    judgement, broken, result = grown(worker, machine)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert list(broken) == ["counters that tell nothing"]
    said = broken["counters that tell nothing"].detail
    assert f"mlx5_0 port 1 (0000:18:00.0)/{counter}" in said
    assert "perfquery -R" in said
    everything_broken(network.test_network_errors, result)
    allowed = network.ErrorLimits(untold=1)
    assert grown(worker, machine, limits=allowed)[0].outcome is Outcome.PASS
    everything_broken(network.test_network_errors, result, allowed)


def spoil(machine, path, state, top=255):
    """Leave a counter in a state in which it tells nothing."""
    if state == "at its top":
        machine.put(path, top)
    elif state == "rubbish":
        machine.put(path, "gibberish")
    else:
        (machine.root / path).unlink()
    if state == "refused":  # reading a folder fails, as a file whose device does not answer
        (machine.root / path).mkdir()


def test_a_counter_that_can_be_read_at_the_end_only_tells_no_difference(worker, two):
    machine, first, _ = two
    machine.put(f"{first}/link_downed", "gibberish")
    judgement, broken, _ = grown(worker, machine, {f"{first}/link_downed": 5})
    assert (judgement.cause, list(broken)) == (Cause.ENVIRONMENT, ["counters that tell nothing"])


@pytest.mark.parametrize(
    ("layer", "says", "broken"),
    [
        ("Ethernet", "N/A (no PMA)", []),  # an old kernel, of a driver that has none
        ("Ethernet", None, []),  # a newer one
        ("Unknown", "N/A (no PMA)", []),  # as of EFA
        ("", "N/A (no PMA)", ["counters that tell nothing"]),  # it may be InfiniBand's
        ("InfiniBand", "N/A (no PMA)", ["counters that tell nothing"]),
        ("InfiniBand", None, ["counters that tell nothing"]),
    ],
)
def test_counters_of_infiniband_are_asked_of_infiniband_alone(worker, machine, layer, says, broken):
    counters = {} if says is None else dict.fromkeys(IB_PORT, says)
    machine.mellanox("0000:18:00.0", "mlx5_0", layer=layer, counters=counters)
    assert list(grown(worker, machine)[1]) == broken


@pytest.mark.parametrize("counter", ["port_rcv_errors", "port_xmit_discards"])
def test_a_counter_at_its_top_that_is_only_shown_stops_nothing(worker, two, counter):
    machine, first, _ = two
    machine.put(f"{first}/{counter}", 65535)
    assert grown(worker, machine)[0].outcome is Outcome.PASS


def test_a_counter_of_64_bits_has_no_top_to_stand_at(worker, tmp_path):
    machine = instance(tmp_path / "m", "g5.48xlarge")
    counter = "sys/class/infiniband/rdmap64s0/hw_counters/cmds_err"
    for value in (255, 65535, (1 << 32) - 1):
        machine.put(counter, value)
        assert grown(worker, machine)[0].outcome is Outcome.PASS
        _, broken, _ = grown(worker, machine, {counter: value + 1})
        assert list(broken) == ["EFA errors"]


@pytest.mark.parametrize("state", ["rubbish", "refused"])
def test_an_efa_counter_that_is_there_and_can_not_be_read_is_no_zero(worker, tmp_path, state):
    machine = instance(tmp_path / "m", "g5.48xlarge")
    spoil(machine, "sys/class/infiniband/rdmap64s0/ports/1/hw_counters/rdma_read_wr_err", state)
    judgement, broken, _ = grown(worker, machine)
    assert (judgement.cause, list(broken)) == (Cause.ENVIRONMENT, ["counters that tell nothing"])
    assert "rdma_read_wr_err" in broken["counters that tell nothing"].detail


def test_an_interface_whose_losses_can_not_be_read_is_named_and_one_without_the_file_is_not(
    worker, machine
):
    folder = card(machine, "ens1", 1)
    machine.interface("veth0", losses="gibberish")
    file = f"{folder}/carrier_down_count"
    machine.put(file, "gibberish")
    judgement, broken, _ = grown(worker, machine)
    assert (judgement.cause, list(broken)) == (Cause.ENVIRONMENT, ["counters that tell nothing"])
    assert "ens1/carrier_down_count" in broken["counters that tell nothing"].detail
    (machine.root / file).unlink()  # kernels before 4.16 have none
    assert grown(worker, machine)[0].outcome is Outcome.PASS


def test_a_device_whose_ports_can_not_be_listed_is_no_device_without_ports(worker, machine):
    folder = machine.rdma(None, "rxe0")
    (machine.root / folder / "ports").rmdir()
    assert isinstance(worker.run(READ, machine.root), Raised)


def test_a_port_that_came_during_the_run_was_not_watched(worker, machine):
    before = worker.answer(READ, machine.root)
    machine.mellanox("0000:18:00.0", "mlx5_0")
    result = worker.answer(GROWTH, machine.root, before=before)
    judgement, broken = judged(network.test_network_errors, result)
    assert (judgement.cause, list(broken)) == (Cause.ENVIRONMENT, ["ports without counters"])


def test_an_adapter_that_went_away_during_the_run_is_named(worker, two):
    machine, *_ = two
    before = worker.answer(READ, machine.root)
    (machine.root / "sys/class/infiniband/mlx5_1").unlink()
    result = worker.answer(GROWTH, machine.root, before=before)
    _, broken = judged(network.test_network_errors, result)
    assert "mlx5_1 port 1 (0000:20:00.0)" in broken["adapters gone"].detail


def test_a_port_without_any_counter_is_unjudged(worker, machine):
    folder = machine.mellanox("0000:18:00.0", "mlx5_0", counters={})
    (machine.root / folder / "hw_counters/out_of_sequence").unlink()
    judgement, broken, _ = grown(worker, machine)
    assert (judgement.cause, list(broken)) == (Cause.ENVIRONMENT, ["ports without counters"])


@pytest.mark.parametrize(
    ("counter", "value", "broken"),
    [
        ("ports/1/hw_counters/rdma_write_wr_err", 1, ["EFA errors"]),
        ("hw_counters/cmds_err", 2, ["EFA errors"]),
        ("ports/1/hw_counters/rx_drops", 900, []),
        ("ports/1/hw_counters/retrans_pkts", 900, []),
        ("ports/1/hw_counters/tx_bytes", 1 << 60, []),
        ("ports/1/hw_counters/unresponsive_remote_events", 1, []),  # an older driver has it not
    ],
)
def test_efa_counts_what_it_could_not_do(worker, tmp_path, counter, value, broken):
    machine = instance(tmp_path / "m", "g5.48xlarge")
    folder = "sys/class/infiniband/rdmap64s0"
    judgement, found, _ = grown(worker, machine, {f"{folder}/{counter}": value})
    assert list(found) == broken
    assert judgement.cause is (Cause.ENVIRONMENT if broken else None)


def test_an_interface_that_loses_its_link_is_named_and_blames_nobody(worker, machine):
    folder = card(machine, "ens1", 1, losses=1)
    judgement, broken, _ = grown(worker, machine, {f"{folder}/carrier_down_count": 2})
    assert (judgement.cause, list(broken)) == (Cause.ENVIRONMENT, ["interface losses"])


def test_interfaces_that_come_and_go_by_nature_are_not_counted(worker, machine):
    machine.interface("veth0", losses=1)
    machine.interface("usb0", "1-1.2:1.0", losses=1)  # of the board's controller
    folder = "sys/devices/virtual/net"
    changes = {f"{folder}/{name}/carrier_down_count": 9 for name in ("veth0", "usb0")}
    judgement, _, result = grown(worker, machine, changes)
    assert (judgement.outcome, result["compared"]) == (Outcome.PASS, 0)


@pytest.mark.parametrize(
    ("counter", "top"),
    [
        ("link_downed", 255),
        ("link_error_recovery", 255),
        ("local_link_integrity_errors", 15),
        ("excessive_buffer_overrun_errors", 15),
        ("symbol_error", 65535),
        ("port_rcv_errors", 65535),
    ],
)
def test_a_counter_at_the_top_of_its_width_means_at_least(counter, top):
    assert saturated(counter, top)
    assert not saturated(counter, top - 1)
    assert not saturated("out_of_sequence", top)
