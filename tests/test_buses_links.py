"""The links of GPUs and what stands above them, read from a bus and judged."""

from __future__ import annotations

from pathlib import Path

import pytest
from bus_tree import DOWN, GPU, NIC, ROOT, SWITCH, UP, at, hgx, put_device

from nodeproof.acceptance import test_buses as buses
from nodeproof.checks import spec_of
from nodeproof.model import Cause, Outcome
from nodeproof.probes import pcie
from nodeproof.probes.tree import Unreadable
from nodeproof.worker import Context
from tests.standin.build import judged, put_gpu

UUID = "GPU-5a4f3c2b-0001-4e6f-8a9b-c0d1e2f3a4b5"
FILES = ("current_link_width", "max_link_width", "current_link_speed", "max_link_speed")


def asked(root, context, pci="00000000:1B:00.0"):
    facts = {"pci": pci} if pci else {}
    return Context(**{**context(device_id=UUID, facts=facts), "host_root": Path(root)})


@pytest.fixture
def node(tmp_path):
    return hgx(tmp_path)


@pytest.fixture
def link(context):
    return lambda root, **more: pcie.link(asked(root, context, **more))


@pytest.fixture
def links(context):
    return lambda root: pcie.links(asked(root, context))


def broken_by_plants(check, result, limits=None):
    """Every bound the check holds has to be broken by one of its plants."""
    sound, _ = judged(check, result, limits)
    broken = set()
    for plant in spec_of(check).plants:
        told, names = judged(check, plant.alter(result), limits)
        assert told.outcome is Outcome.FAIL
        assert set(plant.breaks) <= set(names)
        broken |= set(names)
    return sound.bounded <= broken


def test_a_gpu_without_its_files_is_not_measured_and_not_passed(link, node):
    for name in FILES:
        (node / "sys/bus/pci/devices" / GPU / name).unlink()
    told, _ = judged(buses.test_gpu_link, link(node))
    assert told.outcome is Outcome.ERROR
    assert GPU in told.summary


@pytest.mark.parametrize("pci", ["", "00000000:99:00.0"])
def test_a_gpu_that_is_not_to_be_found_is_named(link, node, pci):
    with pytest.raises(Unreadable, match=UUID):
        link(node, pci=pci)


def test_a_sound_link_is_read_at_both_ends_and_passes(link, node):
    result = link(node)
    assert result["address"] == GPU
    assert result["port"]["address"] == DOWN
    assert result["device"]["width"] == result["port"]["width_max"] == 16
    assert (result["numa_node"], result["virtual"]) == (0, False)
    assert result["bar1_bytes"] == 128 << 30
    assert judged(buses.test_gpu_link, result)[0].outcome is Outcome.PASS
    full = buses.LinkLimits(width=16, speed_gts=32.0, bar1_mib=131072.0)
    assert judged(buses.test_gpu_link, result, full)[0].outcome is Outcome.PASS
    assert broken_by_plants(buses.test_gpu_link, result)
    assert broken_by_plants(buses.test_gpu_link, result, full)


def test_the_window_of_a_gpu_before_hopper_stands_one_line_higher(link, node):
    lines = ("0xfa000000 0xfaffffff 0x40200", "0x1000000000 0x1fffffffff 0x14220c", "0x0 0x0 0x0")
    at(node, GPU, "resource", "\n".join(lines) + "\n")
    assert link(node)["bar1_bytes"] == 64 << 30
    at(node, GPU, "resource", "0xfa000000 0xfaffffff 0x40200\n" + "0x0 0x0 0x0\n" * 5)
    told, broken = judged(buses.test_gpu_link, link(node), buses.LinkLimits(bar1_mib=1.0))
    assert (told.outcome, told.cause, list(broken)) == (Outcome.FAIL, Cause.CONFIG, ["bar1"])


def test_an_idle_link_is_slow_and_passes(link, node):
    for address in (GPU, DOWN):
        at(node, address, "current_link_speed", "2.5 GT/s PCIe\n")
    told, _ = judged(buses.test_gpu_link, link(node), buses.LinkLimits(speed_gts=32.0))
    assert told.outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("port", "flags", "limits", "cause"),
    [
        ("16", "fpu", {}, Cause.HARDWARE),
        ("8", "fpu", {}, Cause.CONFIG),  # the slot has no more: the platform's design, or its fault
        ("16", "fpu hypervisor", {}, Cause.CONFIG),  # the port is made up
        ("8", "fpu", {"width": 16}, Cause.HARDWARE),
        ("16", "fpu hypervisor", {"width": 16}, Cause.HARDWARE),
    ],
    ids=["lanes lost", "narrow slot", "virtual", "spec, narrow slot", "spec, virtual"],
)
def test_a_narrow_link_blames_hardware_only_where_more_was_to_be_had(
    link, tmp_path, port, flags, limits, cause
):
    root = hgx(tmp_path / "node", flags=flags)
    at(root, GPU, "current_link_width", "8\n")
    at(root, DOWN, "max_link_width", f"{port}\n")
    told, broken = judged(buses.test_gpu_link, link(root), buses.LinkLimits(**limits))
    assert (told.outcome, told.cause, list(broken)) == (Outcome.FAIL, cause, ["width"])
    assert GPU in broken["width"].detail
    assert DOWN in broken["width"].detail


def test_a_link_that_is_narrow_by_design_passes_where_the_spec_says_so(link, node):
    at(node, GPU, "current_link_width", "8\n")
    told, _ = judged(buses.test_gpu_link, link(node), buses.LinkLimits(width=8))
    assert told.outcome is Outcome.PASS


def test_an_older_slot_is_a_fault_of_the_configuration(link, node):
    at(node, DOWN, "max_link_speed", "16.0 GT/s PCIe\n")
    result = link(node)
    told, broken = judged(buses.test_gpu_link, result, buses.LinkLimits(speed_gts=32.0))
    assert (told.outcome, told.cause) == (Outcome.FAIL, Cause.CONFIG)
    assert list(broken) == ["speed possible"]
    assert judged(buses.test_gpu_link, result)[0].outcome is Outcome.PASS


def test_a_speed_that_an_old_kernel_has_no_word_for_is_not_taken_for_any(link, node):
    at(node, GPU, "max_link_speed", "Unknown\n")
    at(node, GPU, "current_link_speed", "Unknown speed\n")
    result = link(node)
    assert judged(buses.test_gpu_link, result)[0].outcome is Outcome.PASS  # its width is known
    told, _ = judged(buses.test_gpu_link, result, buses.LinkLimits(speed_gts=32.0))
    assert told.outcome is Outcome.ERROR
    assert GPU in told.summary


def test_a_gpu_off_the_bus_is_condemned_whatever_its_registers_read(link, node):
    at(node, GPU, "current_link_width", "63\n")
    (node / "sys/bus/pci/devices" / GPU / "config").write_bytes(b"\xff" * 64)
    told, broken = judged(buses.test_gpu_link, link(node))
    assert (told.outcome, told.cause, list(broken)) == (Outcome.FAIL, Cause.HARDWARE, ["answers"])


def test_a_hypervisor_that_hides_the_link_is_let_off_by_the_spec_alone(link, tmp_path):
    root = tmp_path / "flat"
    put_gpu(root, "0000:00:1e.0")
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text("processor : 0\nflags : fpu hypervisor\n")
    for name in FILES:
        (root / "sys/bus/pci/devices/0000:00:1e.0" / name).unlink()
    result = link(root, pci="0000:00:1e.0")
    assert (result["port"], result["bar1_bytes"]) == (None, None)
    assert judged(buses.test_gpu_link, result)[0].outcome is Outcome.ERROR
    hidden = buses.LinkLimits(hidden=True)
    assert judged(buses.test_gpu_link, result, hidden)[0].outcome is Outcome.PASS
    assert broken_by_plants(buses.test_gpu_link, result, hidden)


def test_a_link_that_is_hidden_and_can_not_be_read_is_not_let_off(link, node):
    for name in FILES:
        at(node, GPU, name, "gibberish\n")
    told, _ = judged(buses.test_gpu_link, link(node), buses.LinkLimits(hidden=True))
    assert told.outcome is Outcome.ERROR


def test_the_links_of_a_node_are_paired_from_each_device_to_its_root(links, node):
    result = links(node)
    found = {m["address"]: m for m in result["movers"]}
    assert {a: m["kind"] for a, m in found.items()} == {
        GPU: "gpu",
        NIC: "rdma",
        SWITCH: "nvswitch",
    }
    pairs = [(way["device"]["address"], way["port"]["address"]) for way in found[GPU]["links"]]
    assert pairs == [(GPU, DOWN), (UP, ROOT)]
    assert (result["narrow"], result["untold"], result["mute"]) == ([], [], [])
    assert result["numa_nodes"] == 2
    assert judged(buses.test_links, result)[0].outcome is Outcome.PASS
    assert broken_by_plants(buses.test_links, result)
    assert broken_by_plants(buses.test_links, result, buses.PathLimits(devices=3, unplaced=0))


@pytest.mark.parametrize(
    ("flags", "cause"), [("fpu", Cause.HARDWARE), ("fpu hypervisor", Cause.CONFIG)]
)
@pytest.mark.parametrize("address", [UP, NIC])
def test_a_narrow_link_above_a_switch_or_of_an_adapter_is_found(
    links, tmp_path, flags, cause, address
):
    root = hgx(tmp_path / "node", flags=flags)
    at(root, address, "current_link_width", "4\n")
    result = links(root)
    told, broken = judged(buses.test_links, result)
    assert (told.outcome, told.cause, list(broken)) == (Outcome.FAIL, cause, ["narrow links"])
    assert address in broken["narrow links"].detail
    designed = buses.PathLimits(by_design=f"0000:99:00.0 {address}")
    assert judged(buses.test_links, result, designed)[0].outcome is Outcome.PASS


def test_bridges_and_cards_that_move_no_data_are_not_judged(links, node):
    """An NVSwitch has two lanes by design, and a card for management may have any."""
    narrow = {"current_link_width": "1", "max_link_width": "4"}
    card = {"vendor": "0x8086", "class": "0x020000", "device": "0x1521", **narrow}
    put_device(node, ["0000:00:1c.0"], vendor="0x8086", **{"class": "0x060400"}, **narrow)
    put_device(node, ["0000:00:1c.0", "0000:02:00.0"], **card)
    result = links(node)
    assert {m["address"] for m in result["movers"]} == {GPU, NIC, SWITCH}
    assert judged(buses.test_links, result)[0].outcome is Outcome.PASS


def test_a_wide_card_in_a_narrow_slot_is_no_narrow_link(links, node):
    at(node, NIC, "current_link_width", "8\n")
    at(node, "0000:18:04.0", "max_link_width", "8\n")
    assert links(node)["narrow"] == []


def test_a_virtual_function_is_not_judged_by_its_registers(links, node):
    at(node, NIC, "current_link_width", "0\n")
    (node / "sys/bus/pci/devices" / NIC / "physfn").symlink_to("../0000:1c:00.1")
    assert NIC not in {m["address"] for m in links(node)["movers"]}


def test_links_that_do_not_say_are_counted_and_not_called_wide(links, node):
    at(node, NIC, "current_link_width", "63\n")
    result = links(node)
    assert (result["untold"], result["narrow"]) == ([NIC], [])


BARE, GUEST, ARM = "flags : fpu", "flags : fpu hypervisor", "Features : fp"
MUTE = ["links that tell no width"]


@pytest.mark.parametrize(
    ("says", "machine", "broken"),
    [
        ({"current_link_width": "0"}, BARE, MUTE),
        ({"current_link_width": "63"}, BARE, MUTE),
        ({"current_link_width": None}, BARE, MUTE),
        ({"current_link_width": "gibberish"}, BARE, MUTE),
        ({"max_link_width": "255"}, BARE, MUTE),
        ({"current_link_width": None, "max_link_width": None}, BARE, MUTE),
        # What virtual functions and invented ports tell of themselves in a sound guest.
        ({"current_link_width": "0"}, GUEST, []),
        ({"current_link_width": "0", "max_link_width": "255"}, GUEST, []),
        ({"current_link_width": "63", "max_link_width": "0"}, GUEST, []),
        ({"current_link_width": "Unknown", "max_link_width": "255"}, GUEST, []),
        ({"current_link_width": None, "max_link_width": None}, GUEST, []),
        ({"current_link_width": "0", "max_link_width": "255"}, ARM, []),
        # What no kernel tells of a sound device.
        ({"current_link_width": None}, GUEST, MUTE),
        ({"max_link_width": None}, GUEST, MUTE),
        ({"current_link_width": "gibberish"}, GUEST, MUTE),
        ({"current_link_width": ""}, GUEST, MUTE),
        ({"max_link_width": "-1"}, ARM, MUTE),
    ],
)
@pytest.mark.parametrize("address", [NIC, SWITCH, UP])
def test_lanes_that_should_be_told_and_are_not_are_no_wide_link(
    links, node, says, machine, broken, address
):
    (node / "proc/cpuinfo").write_text(f"processor : 0\n{machine}\n")
    for name, text in says.items():
        if text is None:
            (node / "sys/bus/pci/devices" / address / name).unlink()
        else:
            at(node, address, name, f"{text}\n")
    result = links(node)
    told, found = judged(buses.test_links, result)
    assert list(found) == broken
    assert told.cause is (Cause.ENVIRONMENT if broken else None)
    assert not broken or address in found[MUTE[0]].detail
    assert broken_by_plants(buses.test_links, result)
    designed = buses.PathLimits(by_design=address)
    assert judged(buses.test_links, result, designed)[0].outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("name", "text", "broken"),
    [
        ("max_link_width", "255\n", MUTE),
        ("max_link_width", "gibberish\n", MUTE),
        ("current_link_width", "gibberish\n", []),  # nobody asks the upper end how wide it is now
    ],
)
def test_the_upper_end_has_to_tell_what_it_could_do(links, node, name, text, broken):
    at(node, ROOT, name, text)
    told = judged(buses.test_links, links(node))[1]
    assert list(told) == broken
    assert not broken or UP in told[MUTE[0]].detail


def test_a_device_without_a_port_above_it_has_no_link_to_compare(links, tmp_path):
    put_gpu(tmp_path, "0000:00:1e.0", current_link_width="0", max_link_width="255")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("flags : fpu\n")
    result = links(tmp_path)
    assert (result["untold"], result["mute"]) == (["0000:00:1e.0"], [])


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"vendor": "0x1d0f", "class": "0x020000", "device": "0xefa2"}, "rdma"),
        ({"vendor": "0x15b3", "class": "0x020000", "device": "0x1021"}, None),
        ({"vendor": "0x8086", "class": "0x020000", "device": "0x1521"}, None),
    ],
    ids=["EFA", "Ethernet without verbs", "management"],
)
def test_an_adapter_is_known_by_what_it_does(links, node, files, kind):
    for name, text in files.items():
        at(node, NIC, name, text)
    found = {m["address"]: m["kind"] for m in links(node)["movers"]}
    assert found.get(NIC) == kind
    (node / "sys/bus/pci/devices" / NIC / "infiniband").mkdir()
    assert {m["address"]: m["kind"] for m in links(node)["movers"]}[NIC] == "rdma"


def test_an_amazon_device_that_does_not_say_which_it_is_may_be_an_adapter(links, node):
    at(node, NIC, "vendor", "0x1d0f")
    at(node, NIC, "class", "0x020000")
    at(node, NIC, "device", "gibberish")
    with pytest.raises(Unreadable, match=NIC):
        links(node)


def test_missing_devices_and_numa_nodes_are_judged_where_the_spec_asks(links, node):
    at(node, GPU, "numa_node", "-1\n")
    result = links(node)
    assert judged(buses.test_links, result)[0].outcome is Outcome.PASS
    told, broken = judged(buses.test_links, result, buses.PathLimits(unplaced=0))
    assert (told.cause, list(broken)) == (Cause.CONFIG, ["without NUMA node"])
    assert GPU in broken["without NUMA node"].detail
    told, broken = judged(buses.test_links, result, buses.PathLimits(devices=4))
    assert (told.cause, list(broken)) == (Cause.ENVIRONMENT, ["devices"])
    one = {**result, "numa_nodes": 1}
    assert judged(buses.test_links, one, buses.PathLimits(unplaced=0))[0].outcome is Outcome.PASS
    unknown = {**result, "numa_nodes": None}
    told, _ = judged(buses.test_links, unknown, buses.PathLimits(unplaced=0))
    assert told.outcome is Outcome.ERROR


def test_a_node_without_a_bus_is_not_judged(links, link, tmp_path):
    for read in (links, link):
        with pytest.raises(Unreadable, match="sys/bus/pci"):
            read(tmp_path)


def test_this_machines_own_bus_is_read(links):
    result = links("/")
    assert judged(buses.test_links, result)[0].outcome is Outcome.PASS
    assert broken_by_plants(buses.test_links, result)
