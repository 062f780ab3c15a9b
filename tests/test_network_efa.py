"""EFA on machines made of files: the bus, the driver, and a libfabric that tells the truth or not."""

from __future__ import annotations

import os
import threading
import time
from importlib.resources import files
from pathlib import Path

import pytest
from planted_bounds import everything_broken
from sysfs_tree import INSTANCES, Machine, efa_address, instance, tool, working

from nodeproof.acceptance import test_efa as efa
from nodeproof.child import Loss, Lost, Raised
from nodeproof.model import Cause, Outcome
from nodeproof.probes import efa_witness
from tests.standin.build import judged

DEVICES, READY = "nodeproof.probes.efa:devices", "nodeproof.probes.efa:ready"
EC2 = sorted({count: kind for kind, (count, *_) in INSTANCES.items() if count}.values())
FOUR = efa.EfaLimits(expected=4)


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    with working(tmp_path_factory.mktemp("workers")) as made:
        yield made


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    """A fi_info that lists these devices; returns the folder to put on PATH."""
    made = {}

    def build(names):
        key = tuple(names)
        if key not in made:
            block = "provider: efa\\n    fabric: efa\\n    domain: %s-rdm\\n    version: 203.10\\n    type: FI_EP_RDM\\n    protocol: FI_PROTO_EFA\\n"
            script = f"for d in {' '.join(names)}; do printf '{block}' $d; done"
            made[key] = tool(tmp_path_factory.mktemp("libfabric"), "fi_info", script)
        return made[key]

    return build


def seen(worker, machine, *, expected=0, wait_s=0.0, **how):
    return worker.answer(DEVICES, machine.root, expected=expected, wait_s=wait_s, **how)


def names(machine):
    return sorted(p.name for p in (machine.root / "sys/class/infiniband").iterdir())


@pytest.mark.parametrize("kind", EC2)
def test_each_instance_type_has_its_devices_and_all_three_witnesses_agree(
    worker, lists, tmp_path, kind
):
    machine = instance(tmp_path / kind, kind)
    count = INSTANCES[kind][0]
    result = seen(worker, machine, expected=count, path=lists(names(machine)))
    assert len(result["pci"]) == len(result["rdma"]) == len(result["fi_info"]["devices"]) == count
    judgement, _ = judged(efa.test_efa_devices, result, efa.EfaLimits(expected=count))
    assert judgement.outcome is Outcome.PASS


def test_a_machine_without_efa_passes_and_runs_no_tool(worker, tmp_path):
    marker = tmp_path / "ran"
    path = tool(tmp_path / "bin", "fi_info", f"touch {marker}")
    result = seen(worker, Machine(tmp_path / "plain"), path=path)
    assert (result["pci"], result["rdma"], result["fi_info"]) == ([], [], None)
    assert judged(efa.test_efa_devices, result)[0].outcome is Outcome.PASS
    assert not marker.exists()


def test_without_sysfs_nothing_is_judged(worker, tmp_path):
    reply = worker.run(DEVICES, tmp_path / "nothing", expected=0, wait_s=0.0)
    assert isinstance(reply, Raised)
    assert reply.cause == "environment"
    assert "sys/bus/pci/devices" in reply.message


@pytest.mark.parametrize(
    ("kind", "missing"),
    [("p5.48xlarge", 1), ("p5.48xlarge", 28), ("g6e.48xlarge", 1), ("g6e.48xlarge", 4)],
)
def test_fewer_on_the_bus_than_expected_is_what_a_launch_template_can_say(
    worker, lists, tmp_path, kind, missing
):
    count = INSTANCES[kind][0]
    machine = instance(tmp_path / "m", kind, missing_on_bus=missing)
    path = lists(names(machine)) if missing < count else ""
    result = seen(worker, machine, expected=count, path=path)
    judgement, broken = judged(efa.test_efa_devices, result, efa.EfaLimits(expected=count))
    assert (judgement.cause, list(broken)) == (Cause.ENVIRONMENT, ["on the bus"])
    assert "launch template" in broken["on the bus"].detail


def test_more_than_expected_contradict_the_spec(worker, lists, tmp_path):
    machine = instance(tmp_path / "m", "g6e.48xlarge")
    result = seen(worker, machine, expected=2, path=lists(names(machine)))
    judgement, broken = judged(efa.test_efa_devices, result, efa.EfaLimits(expected=2))
    assert (judgement.cause, list(broken)) == (Cause.CONFIG, ["surplus"])


def test_a_device_without_its_driver_is_named_by_its_address_and_blames_no_hardware(
    worker, lists, tmp_path
):
    machine = instance(tmp_path / "m", "g6e.48xlarge", missing_driver=2)
    result = seen(worker, machine, expected=4, path=lists(names(machine)))
    judgement, broken = judged(efa.test_efa_devices, result, FOUR)
    assert (judgement.cause, list(broken)) == (Cause.ENVIRONMENT, ["without an RDMA device"])
    for n in (0, 1):
        assert f"{efa_address(n)} (driver none)" in broken["without an RDMA device"].detail


def test_a_device_that_reads_all_ones_is_off_the_bus(worker, tmp_path):
    machine = Machine(tmp_path / "m")
    machine.efa("0000:80:00.0", name="rdmap128s0", head=b"\xff\xff\xff\xff")
    judgement, broken = judged(efa.test_efa_devices, seen(worker, machine))
    assert judgement.cause is Cause.HARDWARE
    assert "0000:80:00.0" in broken["off the bus"].detail


@pytest.mark.parametrize("content", [None, b"", b"\x0f\x1d"])
def test_a_device_whose_registers_can_not_be_read_is_not_known_to_answer(worker, tmp_path, content):
    machine = Machine(tmp_path / "m")
    machine.efa("0000:80:00.0", name="rdmap128s0")
    config = machine.root / "sys/bus/pci/devices/0000:80:00.0/config"
    config.unlink()
    if content is not None:
        config.write_bytes(content)
    judgement, broken = judged(efa.test_efa_devices, seen(worker, machine))
    assert (judgement.cause, list(broken)) == (Cause.ENVIRONMENT, ["not told"])
    assert "0000:80:00.0" in broken["not told"].detail


def test_a_device_that_libfabric_leaves_out_is_named(worker, lists, tmp_path):
    machine = instance(tmp_path / "m", "g6e.48xlarge")
    *others, last = names(machine)
    judgement, broken = judged(
        efa.test_efa_devices, seen(worker, machine, expected=4, path=lists(others))
    )
    assert (judgement.cause, list(broken)) == (Cause.ENVIRONMENT, ["left out by libfabric"])
    assert f"{efa_address(3)} {last}" in broken["left out by libfabric"].detail


def test_what_is_late_is_waited_for_and_named_meanwhile(worker, tmp_path):
    machine = instance(tmp_path / "m", "g6e.48xlarge", missing_driver=1)
    heard = len(worker.heard)

    def load():
        while not any("waiting for" in str(c) for *_, c in worker.heard[heard:]):
            threading.Event().wait(0.02)
        machine.rdma(efa_address(0), "rdmap64s0")

    thread = threading.Thread(target=load)
    thread.start()
    result = seen(worker, machine, expected=4, wait_s=60.0)
    thread.join()
    steps = [str(c["step"]) for _, kind, c in worker.heard[heard:] if kind == "progress"]
    assert f"waiting for the RDMA device of {efa_address(0)}" in steps
    assert result["waits_for"] == ""
    assert 0 < result["waited_s"] < 50
    assert judged(efa.test_efa_devices, result, FOUR)[0].cause is None


def test_waiting_ends_and_what_blocked_is_still_missing(worker, tmp_path):
    machine = instance(tmp_path / "m", "g6e.48xlarge", missing_on_bus=3)
    result = seen(worker, machine, expected=4, wait_s=0.1)
    assert result["waits_for"] == "3 EFA devices on the PCI bus"
    assert judged(efa.test_efa_devices, result, FOUR)[0].outcome is Outcome.FAIL


@pytest.mark.parametrize("kind", ["plain", "g6e.48xlarge", "g5.48xlarge"])
@pytest.mark.parametrize("limits", [efa.EfaLimits(), efa.EfaLimits(expected=1), FOUR])
def test_every_bound_on_the_devices_is_broken_by_a_plant(worker, lists, tmp_path, kind, limits):
    machine = Machine(tmp_path / "m") if kind == "plain" else instance(tmp_path / "m", kind)
    path = "" if kind == "plain" else lists(names(machine))
    everything_broken(efa.test_efa_devices, seen(worker, machine, path=path), limits)


# --- what it needs besides ------------------------------------------------------------------


def ready(worker, machine, **how):
    return worker.answer(READY, machine.root, **how)


def able(result, **changes):
    return {**result, "memlock_bytes": -1, "ipc_lock": False, **changes}


def test_a_node_that_has_all_of_it_is_ready(worker, lists, tmp_path):
    machine = instance(tmp_path / "m", "p6-b200.48xlarge")
    result = able(ready(worker, machine, path=lists(names(machine))))
    assert result["huge_free_bytes"] == 5 << 30
    limits = efa.EfaReadyLimits(huge_free_mib=5120)
    assert judged(efa.test_efa_ready, result, limits)[0].outcome is Outcome.PASS
    for each in (efa.EfaReadyLimits(), limits, efa.EfaReadyLimits(fi_info=False)):
        everything_broken(efa.test_efa_ready, result, each)


def test_a_node_without_efa_has_nothing_to_be_ready_for(worker, tmp_path):
    result = ready(worker, Machine(tmp_path / "m"))
    assert judged(efa.test_efa_ready, result)[0].outcome is Outcome.PASS
    everything_broken(efa.test_efa_ready, result, efa.EfaReadyLimits())


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"memlock_bytes": 8 << 20}, ["memlock"]),
        ({"memlock_bytes": 8 << 20, "ipc_lock": True}, []),
        ({"huge_free_bytes": 0}, ["huge pages free"]),
    ],
)
def test_what_is_too_little_is_the_environments(worker, lists, tmp_path, changes, broken):
    machine = instance(tmp_path / "m", "g5.48xlarge")
    result = able(ready(worker, machine, path=lists(names(machine))), **changes)
    judgement, found = judged(efa.test_efa_ready, result, efa.EfaReadyLimits(huge_free_mib=1024))
    assert list(found) == broken
    assert judgement.cause is (Cause.ENVIRONMENT if broken else None)


def test_huge_pages_that_a_kernel_has_not_are_not_zero(worker, lists, tmp_path):
    machine = Machine(tmp_path / "m")
    machine.efa("0000:80:00.0", name="rdmap128s0")
    result = able(ready(worker, machine, path=lists(["rdmap128s0"])))
    assert result["huge_free_bytes"] is None
    assert judged(efa.test_efa_ready, result)[0].outcome is Outcome.PASS
    asked = judged(efa.test_efa_ready, result, efa.EfaReadyLimits(huge_free_mib=1))[0]
    assert asked.outcome is Outcome.ERROR


def test_a_device_that_no_program_can_open_is_named(worker, lists, tmp_path):
    machine = Machine(tmp_path / "m")
    machine.efa("0000:80:00.0", name="rdmap128s0", uverbs=False)
    result = able(ready(worker, machine, path=lists(["rdmap128s0"])))
    judgement, broken = judged(efa.test_efa_ready, result)
    assert (judgement.cause, list(broken)) == (Cause.ENVIRONMENT, ["without uverbs"])
    assert "0000:80:00.0 rdmap128s0" in broken["without uverbs"].detail


TOOLS = {
    "is not there": (None, "neither on PATH"),
    "finds nothing": ("echo 'fi_getinfo: -61 (No data available)' >&2; exit 61", "0 EFA devices"),
    "prints half and dies": (
        "printf 'provider: efa\\n    fabric: efa\\n    dom'; kill -9 $$",
        "status",
    ),
    "is no fi_info": ("echo hello", "'hello'"),
    "lists what was built in": ("printf 'efa:\\n    version: 120.0\\n'", "built in"),
    "prints too much": ("head -c 3000000 /dev/zero", "nothing here"),
}


@pytest.mark.parametrize("fault", TOOLS)
def test_a_tool_that_shows_no_device_is_no_witness(worker, tmp_path, fault):
    script, says = TOOLS[fault]
    machine = Machine(tmp_path / "m")
    machine.efa("0000:80:00.0", name="rdmap128s0")
    path = tool(tmp_path / "bin", "fi_info", script) if script else ""
    result = able(ready(worker, machine, path=path))
    judgement, broken = judged(efa.test_efa_ready, result)
    assert (judgement.cause, list(broken)) == (Cause.ENVIRONMENT, ["libfabric answers"])
    assert says in broken["libfabric answers"].detail or says in result["fi_info"]["says"]
    without = efa.EfaReadyLimits(fi_info=False)
    assert judged(efa.test_efa_ready, result, without)[0].outcome is Outcome.PASS


def test_a_tool_that_hangs_is_ended_with_what_it_started(monkeypatch, tmp_path):
    pids = tmp_path / "pids"
    path = tool(tmp_path / "bin", "fi_info", f"sleep 600 & echo $! $$ > {pids}; wait")
    monkeypatch.setenv("PATH", f"{path}:/usr/bin:/bin")
    said = efa_witness.ask(deadline_s=3)
    assert "did not end in 3 s" in said["says"]
    ends = time.monotonic() + 20
    while any(running(int(pid)) for pid in pids.read_text().split()):
        assert time.monotonic() < ends
        time.sleep(0.01)


def running(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "backslashreplace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


def test_a_file_of_sysfs_that_hangs_costs_its_deadline_and_is_named(worker, tmp_path):
    machine = instance(tmp_path / "m", "g5.48xlarge")
    seen(worker, machine, path="/hung")  # so that starting it is not in the deadline
    vendor = machine.root / f"sys/devices/pci0000:00/{efa_address(0)}/vendor"
    vendor.unlink()
    os.mkfifo(vendor)
    reply = worker.run(DEVICES, machine.root, path="/hung", expected=1, wait_s=0.0, deadline_s=2)
    assert isinstance(reply, Lost)
    assert reply.how is Loss.DEADLINE
    assert "while reading EFA devices in /sys" in reply.text


def test_a_shipped_spec_states_its_ports_or_says_that_it_does_not():
    stated = ('"node.infiniband.ports"', 'node.efa.devices"', "not stated here", "rehearsal")
    for spec in (files("nodeproof") / "specs").iterdir():
        assert any(words in spec.read_text("utf-8") for words in stated), spec.name
