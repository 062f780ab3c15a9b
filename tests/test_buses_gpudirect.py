"""Whether adapters reach GPUs' memory themselves, and what lies in their way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bus_tree import DOWN, GPU, NIC, NIC_PORT, ROOT, SWITCH_PORT, UP, hgx, put, space

from nodeproof.acceptance import test_buses as buses
from nodeproof.checks import spec_of
from nodeproof.model import Cause, Outcome
from nodeproof.probes import acs, peer_memory
from nodeproof.probes.tree import Tree, Unreadable
from nodeproof.worker import Context
from tests.standin.build import judged

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Mon\n"
DRIVER = "proc/driver/nvidia/version"
DOWNSTREAM, ROOT_PORT, UPSTREAM = 6, 4, 5


@pytest.fixture
def node(tmp_path):
    return hgx(tmp_path)


@pytest.fixture
def ready(context):
    return lambda root: peer_memory.ready(Context(**{**context(), "host_root": Path(root)}))


def config(root, address, data):
    (root / "sys/bus/pci/devices" / address / "config").write_bytes(data)


def test_without_any_way_the_spec_that_asks_for_one_is_not_met(ready, node):
    result = ready(node)
    assert result["ways"] == []
    told, broken = judged(buses.test_gpudirect, result, buses.PeerLimits(ways=1))
    assert (told.outcome, told.cause, list(broken)) == (Outcome.FAIL, Cause.ENVIRONMENT, ["ways"])
    assert "modprobe nvidia_peermem" in broken["ways"].detail
    assert judged(buses.test_gpudirect, result)[0].outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("module", "kernel", "driver", "ways"),
    [
        ("nvidia_peermem", "5.4.0", CLOSED, ["nvidia_peermem"]),
        ("nv_peer_mem", "5.4.0", CLOSED, ["nv_peer_mem"]),
        (None, "5.12.0-rc1", OPEN, ["dma-buf"]),
        (None, "5.11.22", OPEN, []),
        (None, "6.8.0", CLOSED, []),
        (None, "6.8.0", None, []),
        ("nvidia_peermem", "6.8.0", OPEN, ["nvidia_peermem", "dma-buf"]),
    ],
)
def test_the_ways_follow_module_kernel_and_driver(ready, node, module, kernel, driver, ways):
    put(node, "proc/sys/kernel/osrelease", kernel)
    if module:
        (node / "sys/module" / module).mkdir(parents=True)
    if driver:
        put(node, DRIVER, driver)
    result = ready(node)
    assert result["ways"] == ways
    told, _ = judged(buses.test_gpudirect, result, buses.PeerLimits(ways=1))
    assert (told.outcome is Outcome.PASS) == bool(ways)


@pytest.mark.parametrize(
    ("said", "ways"), [("NVIDIA peermem\n", ["efa p2p"]), ("NEURON\n", []), ("\n", [])]
)
def test_efa_says_itself_whether_it_reads_gpus(ready, node, said, ways):
    (node / "sys/bus/pci/devices" / NIC / "p2p").write_text(said)
    assert ready(node)["ways"] == ways


def test_a_kernel_that_does_not_say_its_release_is_not_judged(ready, node):
    put(node, "proc/sys/kernel/osrelease", "unknown\n")
    with pytest.raises(Unreadable, match="osrelease"):
        ready(node)


@pytest.mark.parametrize(
    ("port_type", "control", "redirects"),
    [
        (DOWNSTREAM, 0x1D, True),  # as the kernel turns it on
        (DOWNSTREAM, 0x08, True),
        (DOWNSTREAM, 0x20, True),
        (DOWNSTREAM, 0x11, False),  # source validation and upstream forwarding
        (DOWNSTREAM, 0x00, False),
        (DOWNSTREAM, None, False),
        (ROOT_PORT, 0x1D, False),  # there all goes over the root anyway
        (UPSTREAM, 0x1D, False),
    ],
)
def test_only_a_port_of_a_switch_that_redirects_is_one(node, port_type, control, redirects):
    config(node, DOWN, space(port_type=port_type, control=control))
    assert acs.redirects(Tree(root=node), DOWN) is redirects


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 64,
        space(port_type=DOWNSTREAM, control=0x1D)[:256],
    ],
    ids=["empty", "not root", "no extended space"],
)
def test_registers_that_may_not_be_read_are_not_told(node, data):
    config(node, DOWN, data)
    assert acs.redirects(Tree(root=node), DOWN) is None


@pytest.mark.parametrize("at", [0x34, 0x41, 0x102])
def test_a_list_that_runs_in_a_circle_or_out_of_the_space_ends(node, at):
    for value in (0x00, 0x40, 0xFC, 0xFF):
        data = bytearray(space(port_type=DOWNSTREAM, control=0x1D))
        data[at : at + 2] = bytes([value, value])
        config(node, DOWN, bytes(data))
        assert acs.redirects(Tree(root=node), DOWN) in {True, False}
    config(node, DOWN, space(port_type=DOWNSTREAM, control=0x1D)[:0x159])
    assert acs.redirects(Tree(root=node), DOWN) is False


def test_redirecting_ports_are_judged_where_the_spec_asks_and_may_be_read(ready, node):
    asks = buses.PeerLimits(redirecting=0)
    told, _ = judged(buses.test_gpudirect, ready(node), asks)
    assert told.outcome is Outcome.ERROR  # nobody but root may read them
    assert DOWN in told.summary
    for address in (ROOT, UP, NIC_PORT, SWITCH_PORT):
        config(node, address, space(port_type=ROOT_PORT, control=None))
    config(node, DOWN, space(port_type=DOWNSTREAM, control=0x1D))
    result = ready(node)
    assert (result["redirecting"], result["untold"]) == ([DOWN], [])
    told, broken = judged(buses.test_gpudirect, result, asks)
    assert (told.cause, list(broken)) == (Cause.CONFIG, ["redirecting"])
    assert DOWN in broken["redirecting"].detail
    assert judged(buses.test_gpudirect, result)[0].outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("kind", "broken"),
    [("identity\n", []), ("DMA-FQ\n", ["translated"]), ("DMA\n", ["translated"])],
)
def test_an_iommu_that_translates_is_told_by_the_groups(ready, node, kind, broken):
    put(node, "sys/kernel/iommu_groups/17/type", kind)
    for address in (GPU, NIC):
        group = node / "sys/bus/pci/devices" / address / "iommu_group"
        group.symlink_to("../../../../../kernel/iommu_groups/17")
    result = ready(node)
    assert result["iommu"] == {kind.strip(): 2, "none": 1}
    assert result["options"] == {"iommu": "pt"}
    told = judged(buses.test_gpudirect, result, buses.PeerLimits(translated=0))[1]
    assert list(told) == broken


def test_a_group_that_does_not_tell_its_kind_is_no_group_that_translates_nothing(ready, node):
    group = node / "sys/bus/pci/devices" / NIC / "iommu_group"
    group.symlink_to("../../../../../kernel/iommu_groups/17")
    result = ready(node)
    assert result["iommu"] == {"none": 2, "not shown": 1}
    assert judged(buses.test_gpudirect, result)[0].outcome is Outcome.PASS
    asked = judged(buses.test_gpudirect, result, buses.PeerLimits(translated=0))[0]
    assert (asked.outcome, asked.cause) == (Outcome.ERROR, Cause.ENVIRONMENT)


def test_no_word_of_the_command_line_is_kept_that_is_not_known(ready, node):
    assert "hunter2" not in json.dumps(ready(node))


def test_each_limit_is_broken_by_the_planted_fault(ready, node):
    (node / "sys/module/nvidia_peermem").mkdir(parents=True)
    limits = buses.PeerLimits(ways=1, redirecting=0, translated=0)
    result = {**ready(node), "untold": []}
    sound, _ = judged(buses.test_gpudirect, result, limits)
    assert sound.outcome is Outcome.PASS
    (plant,) = spec_of(buses.test_gpudirect).plants
    told, broken = judged(buses.test_gpudirect, plant.alter(result), limits)
    assert told.outcome is Outcome.FAIL
    assert sound.bounded <= set(broken)


def test_this_machine_is_read(ready):
    assert judged(buses.test_gpudirect, ready("/"))[0].outcome is Outcome.PASS
