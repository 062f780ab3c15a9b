"""InfiniBand and RoCE on machines made of files: what looks wrong and is right, and the reverse."""

from __future__ import annotations

import os

import pytest
from planted_bounds import everything_broken
from sysfs_tree import IB_PORT, Machine, dgx, working

from nodeproof.acceptance import test_infiniband as ib
from nodeproof.child import Loss, Lost, Raised
from nodeproof.model import Cause, Outcome
from tests.standin.build import judged

PORTS = "nodeproof.probes.infiniband:ports"
DATA = "mlx5_0 mlx5_1 mlx5_2 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_7"
EIGHT = ib.PortLimits(expected=8, gbs=400, names=DATA, issm=True)


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    with working(tmp_path_factory.mktemp("workers")) as made:
        yield made


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path / "m")


def verdict(worker, machine, limits=None):
    result = worker.answer(PORTS, machine.root)
    judgement, broken = judged(ib.test_infiniband_ports, result, limits)
    return judgement, broken, result


def named(name, **more):
    return ib.PortLimits(names=name, **more)


def port(result, device):
    return next(p for p in result["ports"] if p["device"] == device)


def test_a_machine_without_rdma_passes_and_one_without_sysfs_does_not(worker, machine, tmp_path):
    judgement, _, result = verdict(worker, machine)
    assert (judgement.outcome, result["ports"]) == (Outcome.PASS, [])
    everything_broken(ib.test_infiniband_ports, result)
    assert isinstance(worker.run(PORTS, tmp_path / "nothing"), Raised)


def test_ports_that_are_expected_and_not_there_are_no_pass(worker, machine):
    judgement, broken, _ = verdict(worker, machine, EIGHT)
    assert judgement.outcome is Outcome.FAIL
    assert set(broken) == {"ports up", "data ports missing"}


def test_a_whole_node_passes_and_every_bound_is_broken_by_a_plant(worker, tmp_path):
    judgement, _, result = verdict(worker, dgx(tmp_path / "m"), EIGHT)
    assert judgement.outcome is Outcome.PASS
    for limits in (
        EIGHT,
        ib.PortLimits(),
        ib.PortLimits(expected=10),
        named("mlx5_8 mlx5_9", gbs=200),
        named("not_here"),
    ):
        everything_broken(ib.test_infiniband_ports, result, limits)


@pytest.mark.parametrize(
    ("state", "physical"),
    [
        ("1: DOWN", "2: Polling"),
        ("1: DOWN", "3: Disabled"),
        ("2: INIT", "5: LinkUp"),  # no subnet manager
        ("4: ACTIVE", "6: LinkErrorRecovery"),
    ],
)
def test_a_data_port_that_is_not_up_is_named_and_blames_neither_end(
    worker, tmp_path, state, physical
):
    machine = dgx(tmp_path / "m", state=state, physical=physical)
    judgement, broken, _ = verdict(worker, machine, EIGHT)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert set(broken) == {"ports up", "data ports down"}
    assert "0000:50:00.0 mlx5_7 port 1" in broken["data ports down"].detail


@pytest.mark.parametrize("limits", [EIGHT, ib.PortLimits(expected=8, gbs=400)])
def test_a_switch_that_is_down_and_a_node_without_adapters_reject_nothing(worker, tmp_path, limits):
    dark = Machine(tmp_path / "dark")
    for n in range(8):
        dark.mellanox(
            f"0000:{0x18 + 8 * n:02x}:00.0", f"mlx5_{n}", state="1: DOWN", physical="2: Polling"
        )
    for machine in (dark, Machine(tmp_path / "none")):
        judgement, broken, _ = verdict(worker, machine, limits)
        assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
        assert broken["ports up"].value == 0


@pytest.mark.parametrize("claimed", [True, False])
def test_an_adapter_that_reads_all_ones_is_the_hardwares(worker, tmp_path, claimed):
    machine = dgx(tmp_path / "m")
    if not claimed:
        (machine.root / "sys/class/infiniband/mlx5_3").unlink()
    config = machine.root / "sys/bus/pci/devices/0000:30:00.0/config"
    config.write_bytes(b"\xff" * 64)
    judgement, broken, _ = verdict(worker, machine, EIGHT)
    assert judgement.cause is Cause.HARDWARE
    assert "0000:30:00.0" in broken["adapters off the bus"].detail


@pytest.mark.parametrize("limits", [EIGHT, ib.PortLimits(expected=10, gbs=200)])
def test_a_port_at_work_whose_rate_is_not_told_is_no_pass_where_a_rate_is_asked(
    worker, tmp_path, limits
):
    machine = dgx(tmp_path / "m", rate="")
    judgement, broken, _ = verdict(worker, machine, limits)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert "mlx5_7" in broken["ports up"].detail
    assert ("data ports of unknown rate" in broken) == (limits is EIGHT)
    without = ib.PortLimits(expected=10)
    assert verdict(worker, machine, without)[0].outcome is Outcome.PASS


def test_a_port_that_nobody_expects_may_be_down(worker, tmp_path):
    machine = dgx(tmp_path / "m", state="1: DOWN", physical="2: Polling")
    assert verdict(worker, machine)[0].outcome is Outcome.PASS
    others = DATA.removesuffix(" mlx5_7")
    assert verdict(worker, machine, named(others, expected=7))[0].outcome is Outcome.PASS


def test_the_rate_and_lid_of_a_port_that_is_down_are_placeholders(worker, machine):
    machine.mellanox(
        "0000:18:00.0", "mlx5_0", state="1: DOWN", physical="2: Polling", rate="10 Gb/sec (4X)"
    )
    _, _, result = verdict(worker, machine)
    assert port(result, "mlx5_0")["rate_gbs"] is None


def test_a_data_port_below_its_rate_is_named(worker, tmp_path):
    machine = dgx(tmp_path / "m", rate="200 Gb/sec (2X NDR)")
    judgement, broken, _ = verdict(worker, machine, EIGHT)
    assert judgement.cause is Cause.ENVIRONMENT
    assert "mlx5_7 port 1 (ACTIVE, LinkUp 200 Gb/s)" in broken["slowest data port"].detail


def test_storage_ports_do_not_stand_in_for_data_ports(worker, tmp_path):
    machine = dgx(tmp_path / "m", state="1: DOWN", physical="2: Polling")
    by_rate = ib.PortLimits(expected=8, gbs=400)
    assert verdict(worker, machine, by_rate)[0].outcome is Outcome.FAIL


# --- RoCE -----------------------------------------------------------------------------------


def test_a_roce_port_that_says_ndr_on_ethernet_is_healthy(worker, machine):
    machine.mellanox(
        "0000:18:00.0", "mlx5_7", layer="Ethernet", rate="200 Gb/sec (2X NDR)", interface="ens1np0"
    )
    judgement, _, result = verdict(worker, machine, named("ens1np0", expected=1, gbs=200))
    assert judgement.outcome is Outcome.PASS
    assert port(result, "mlx5_7")["rate_gbs"] == 200
    everything_broken(ib.test_infiniband_ports, result, named("mlx5_7", expected=1, gbs=200))


@pytest.mark.parametrize(("layer", "fails"), [("Ethernet", True), ("InfiniBand", False)])
def test_an_interface_that_is_down_is_the_port_on_ethernet_alone(worker, machine, layer, fails):
    machine.mellanox("0000:18:00.0", "mlx5_1", layer=layer, interface="ens2np0", operstate="down")
    judgement, broken, _ = verdict(worker, machine, named("mlx5_1"))
    assert (judgement.outcome is Outcome.FAIL) == fails
    assert list(broken) == (["data ports down"] if fails else [])


def test_a_roce_port_without_a_v2_address_is_the_environments(worker, machine):
    machine.mellanox("0000:18:00.0", "mlx5_1", layer="Ethernet", gid="IB/RoCE v1")
    judgement, broken, _ = verdict(worker, machine, named("mlx5_1"))
    assert (judgement.cause, list(broken)) == (
        Cause.ENVIRONMENT,
        ["RoCE ports without a v2 address"],
    )


def test_efa_is_no_infiniband_card(worker, machine):
    machine.efa("0000:80:00.0", name="rdmap16s27")
    assert verdict(worker, machine)[2]["ports"] == []


def test_a_virtual_function_without_a_lid_contradicts_itself_and_is_not_counted(worker, machine):
    machine.mellanox("0000:18:00.0", "mlx5_0")
    machine.mellanox("0000:18:00.2", "mlx5_22", state="1: DOWN", rate="100 Gb/sec (4X EDR)")
    machine.link("sys/devices/pci0000:00/0000:18:00.2/physfn", "../0000:18:00.0")
    judgement, _, result = verdict(worker, machine, ib.PortLimits(expected=1))
    assert port(result, "mlx5_22")["virtual"]
    assert judgement.outcome is Outcome.PASS
    assert verdict(worker, machine, named("mlx5_22"))[0].outcome is Outcome.FAIL
    machine.put("sys/class/infiniband/mlx5_22/ports/1/state", "4: ACTIVE")
    assert verdict(worker, machine, ib.PortLimits(expected=2))[0].outcome is Outcome.FAIL


def test_a_bond_is_one_device_for_both_functions_of_its_card(worker, machine):
    machine.mellanox("0000:18:00.0", "mlx5_bond_0", layer="Ethernet")
    machine.function("0000:18:00.1", vendor="0x15b3", device="0x1021", driver="mlx5_core")
    judgement, _, result = verdict(worker, machine, named("mlx5_bond_0", expected=1))
    assert (judgement.outcome, result["unclaimed"]) == (Outcome.PASS, [])


def test_a_device_of_software_stands_for_no_port(worker, machine):
    folder = machine.rdma(None, "rxe0")
    machine.port(
        f"{folder}/ports/1", state="4: ACTIVE", physical="5: LinkUp", rate="2.5 Gb/sec (1X SDR)"
    )
    judgement, broken, _ = verdict(worker, machine, ib.PortLimits(expected=1))
    assert (judgement.outcome, list(broken)) == (Outcome.FAIL, ["ports up"])


# --- driver, files, counters ----------------------------------------------------------------


def test_an_adapter_without_its_driver_is_named_where_it_is_expected(worker, machine):
    machine.function("0000:18:00.0", vendor="0x15b3", device="0x1021", driver="mlx5_core")
    assert verdict(worker, machine)[0].outcome is Outcome.PASS
    judgement, broken, _ = verdict(worker, machine, ib.PortLimits(expected=1))
    assert judgement.cause is Cause.ENVIRONMENT
    assert "0000:18:00.0 (driver mlx5_core)" in broken["adapters without an RDMA device"].detail


def test_a_virtual_function_that_was_given_away_is_no_adapter_without_a_driver(worker, machine):
    machine.mellanox("0000:18:00.0", "mlx5_0")
    given = machine.function("0000:18:00.2", vendor="0x15b3", device="0x101e", driver="vfio-pci")
    machine.link(f"{given}/physfn", "../0000:18:00.0")
    judgement, _, result = verdict(worker, machine, named("mlx5_0"))
    assert (judgement.outcome, result["unclaimed"]) == (Outcome.PASS, [])


def test_a_port_that_does_not_say_its_state_is_named(worker, machine):
    folder = machine.mellanox("0000:18:00.0", "mlx5_0")
    machine.put(f"{folder}/state", "gibberish")
    judgement, broken, _ = verdict(worker, machine)
    assert (judgement.cause, list(broken)) == (Cause.ENVIRONMENT, ["ports without a state"])
    assert "0000:18:00.0 mlx5_0 port 1" in broken["ports without a state"].detail


def unlink(machine, path):
    (machine.root / path).unlink()


@pytest.mark.parametrize(
    ("says", "outcome"),
    [
        ("Ethernet", Outcome.PASS),
        ("Unknown", Outcome.FAIL),
        ("", Outcome.FAIL),
        (None, Outcome.FAIL),
    ],
)
@pytest.mark.parametrize("limits", [named("mlx5_1"), ib.PortLimits(expected=1)])
def test_a_port_that_does_not_tell_its_layer_was_asked_for_nothing(
    worker, machine, limits, says, outcome
):
    folder = machine.mellanox("0000:18:00.0", "mlx5_1", layer="Ethernet", interface="ens2np0")
    if says is None:
        unlink(machine, f"{folder}/link_layer")
    else:
        machine.put(f"{folder}/link_layer", says)
    judgement, broken, result = verdict(worker, machine, limits)
    fails = outcome is Outcome.FAIL
    assert (judgement.outcome, list(broken)) == (outcome, ["not told"] if fails else [])
    assert judgement.cause is (Cause.ENVIRONMENT if fails else None)
    assert not fails or "mlx5_1 port 1 (ACTIVE, LinkUp 400 Gb/s): link_layer" in str(broken)
    everything_broken(ib.test_infiniband_ports, result, limits)


def test_a_layer_that_is_not_told_matters_where_something_is_asked_of_the_port(worker, machine):
    machine.mellanox("0000:18:00.0", "mlx5_0")
    folder = machine.mellanox("0000:20:00.0", "mlx5_1")
    unlink(machine, f"{folder}/link_layer")
    for limits, broken in (
        (ib.PortLimits(), []),
        (named("mlx5_0"), []),
        (named("mlx5_0", issm=True), ["not told"]),
    ):
        assert list(verdict(worker, machine, limits)[1]) == broken


@pytest.mark.parametrize(
    ("operstate", "broken"),
    [("up", []), ("unknown", []), ("", ["not told"]), ("down", ["data ports down"])],
)
def test_an_interface_of_a_roce_port_that_says_nothing_is_not_up(
    worker, machine, operstate, broken
):
    machine.mellanox(
        "0000:18:00.0", "mlx5_1", layer="Ethernet", interface="ens2np0", operstate=operstate
    )
    assert list(verdict(worker, machine, named("mlx5_1"))[1]) == broken


def test_an_interface_in_another_network_namespace_is_not_asked(worker, machine):
    machine.mellanox("0000:18:00.0", "mlx5_1", layer="Ethernet")
    assert verdict(worker, machine, named("mlx5_1"))[0].outcome is Outcome.PASS


@pytest.mark.parametrize("content", [None, b"", b"\xb3\x15"])
def test_an_adapter_whose_registers_can_not_be_read_is_not_known_to_answer(
    worker, machine, content
):
    machine.mellanox("0000:18:00.0", "mlx5_1")
    config = machine.root / "sys/bus/pci/devices/0000:18:00.0/config"
    config.unlink()
    if content is not None:
        config.write_bytes(content)
    judgement, broken, _ = verdict(worker, machine, named("mlx5_1"))
    assert (judgement.cause, list(broken)) == (Cause.ENVIRONMENT, ["not told"])
    assert "0000:18:00.0: whether it is still on the bus" in broken["not told"].detail
    assert verdict(worker, machine)[0].outcome is Outcome.PASS


@pytest.mark.parametrize("issm_expected", [True, False])
def test_a_missing_issm_is_a_fault_only_where_it_is_expected(worker, machine, issm_expected):
    machine.mellanox("0000:18:00.0", "mlx5_1", issm=False)
    judgement, broken, _ = verdict(worker, machine, named("mlx5_1", issm=issm_expected))
    assert list(broken) == (["without issm"] if issm_expected else [])
    assert judgement.cause is (Cause.ENVIRONMENT if issm_expected else None)


def test_a_missing_uverbs_is_a_fault_on_every_node_that_uses_rdma(worker, machine):
    machine.mellanox("0000:18:00.0", "mlx5_1", uverbs=False)
    assert list(verdict(worker, machine, named("mlx5_1"))[1]) == ["without uverbs"]


def test_counters_of_a_life_are_shown_with_their_top_and_judge_nothing(worker, machine):
    worn = {**IB_PORT, "link_downed": 255, "excessive_buffer_overrun_errors": 15, "symbol_error": 3}
    machine.mellanox("0000:18:00.0", "mlx5_3", counters=worn)
    judgement, _, result = verdict(worker, machine, named("mlx5_3"))
    assert judgement.outcome is Outcome.PASS
    found = port(result, "mlx5_3")
    assert found["errors"] == {
        "symbol_error": 3,
        "link_downed": 255,
        "excessive_buffer_overrun_errors": 15,
    }
    assert set(found["saturated"]) == {"link_downed", "excessive_buffer_overrun_errors"}


def test_a_counter_that_is_not_there_is_not_zero(worker, machine):
    machine.mellanox("0000:18:00.0", "mlx5_3", counters={"link_downed": "N/A (no PMA)"})
    found = port(verdict(worker, machine)[2], "mlx5_3")
    assert (found["errors"], found["saturated"]) == ({}, [])


def test_a_state_that_hangs_when_read_costs_its_deadline_and_names_the_device(worker, machine):
    folder = machine.mellanox("0000:18:00.0", "mlx5_0")
    worker.answer(PORTS, machine.root, path="/hung")  # so that starting it is not in the deadline
    state = machine.root / folder / "state"
    state.unlink()
    os.mkfifo(state)
    reply = worker.run(PORTS, machine.root, path="/hung", deadline_s=2)
    assert isinstance(reply, Lost)
    assert reply.how is Loss.DEADLINE
    assert "while reading mlx5_0 (0000:18:00.0) in /sys" in reply.text
