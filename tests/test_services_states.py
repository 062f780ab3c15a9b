"""Services that run, that don't, and that can't be seen from here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from bus_tree import SWITCH, hgx, put, put_device

from nodeproof.acceptance import test_services as suite
from nodeproof.checks import spec_of
from nodeproof.model import Cause, Outcome
from nodeproof.probes import services
from nodeproof.probes.tree import Tree, Unreadable
from nodeproof.worker import Context
from tests.standin.build import judged

KTHREADD = {"proc/2/comm": "kthreadd\n", "proc/2/stat": "2 (kthreadd) S 0 0 0\n"}
UNIT = "nvidia-fabricmanager.service"
NEEDED = suite.ServiceLimits(needed="nvidia-fabricmanager nv-hostengine")


def process(pid, name, state="S"):
    return {f"proc/{pid}/stat": f"{pid} ({name}) {state} 1 1 1\n", f"proc/{pid}/comm": f"{name}\n"}


@pytest.fixture
def machine(tmp_path):
    """A machine whose processes are all to be seen, with files on top."""

    def make(*more, whole=True):
        root = hgx(tmp_path)
        for files in (*([KTHREADD] if whole else []), *more):
            for name, text in files.items():
                put(root, name, text)
        return root

    return make


@pytest.fixture
def read(context):
    return lambda root: services.services(Context(**{**context(), "host_root": Path(root)}))


def test_what_is_not_seen_in_a_container_is_hidden_and_never_absent(read, machine):
    result = read(machine(process(1, "python3"), whole=False))
    assert set(result["states"].values()) == {"not visible"}
    told, _ = judged(suite.test_needed, result, NEEDED)
    assert told.outcome is Outcome.ERROR
    assert "nvidia-fabricmanager" in told.summary
    assert "hostPID" in told.summary


def test_a_node_without_proc_is_not_judged(read, tmp_path):
    with pytest.raises(Unreadable, match="proc"):
        read(tmp_path)


def test_a_service_that_is_needed_and_absent_is_the_environments(read, machine):
    result = read(machine(process(70, "nv-hostengine")))
    assert result["states"]["nv-hostengine"] == "running"
    told, broken = judged(suite.test_needed, result, NEEDED)
    assert (told.outcome, told.cause, list(broken)) == (
        Outcome.FAIL,
        Cause.ENVIRONMENT,
        ["missing"],
    )
    assert "nvidia-fabricmanager" in broken["missing"].detail
    assert "nv-hostengine (" not in broken["missing"].detail


@pytest.mark.parametrize(
    ("name", "service"),
    [
        ("nv-fabricmanage", "nvidia-fabricmanager"),  # as the kernel cuts it
        ("nvidia-persiste", "nvidia-persistenced"),
        ("nvidia-imex", "nvidia-imex"),
        ("nvidia-device-p", "nvidia-device-plugin"),
        ("efa-k8s-device-", "efa-device-plugin"),
        ("nv-hostengine", "nv-hostengine"),
    ],
)
def test_a_service_is_known_by_the_name_of_its_process(read, machine, name, service):
    states = read(machine(process(70, name)))["states"]
    assert [s for s, state in states.items() if state == "running"] == [service]


@pytest.mark.parametrize("state", ["Z", "X"])
def test_a_process_that_died_and_waits_for_its_parent_does_not_run(read, machine, state):
    states = read(machine(process(70, "nv-fabricmanage", state)))["states"]
    assert states["nvidia-fabricmanager"] == "absent"


@pytest.mark.parametrize("name", ["nv-fabricmanag", "grep", "my (nv-hostengine) S 1"])
def test_a_process_that_is_only_called_like_one_is_none(read, machine, name):
    assert "running" not in read(machine(process(70, name)))["states"].values()


@pytest.mark.parametrize(
    ("file", "text", "state"),
    [
        (f"sys/fs/cgroup/system.slice/{UNIT}/cgroup.events", "populated 1\nfrozen 0\n", "running"),
        (f"sys/fs/cgroup/system.slice/{UNIT}/cgroup.events", "populated 0\n", "not visible"),
        (f"sys/fs/cgroup/systemd/system.slice/{UNIT}/cgroup.procs", "812\n", "running"),
        (f"sys/fs/cgroup/systemd/system.slice/{UNIT}/cgroup.procs", "", "not visible"),
        (f"sys/fs/cgroup/unified/system.slice/{UNIT}/cgroup.events", "populated 1\n", "running"),
    ],
)
def test_the_group_that_systemd_made_is_a_second_witness(read, machine, file, text, state):
    result = read(machine({file: text}, whole=False))
    assert result["states"]["nvidia-fabricmanager"] == state


def test_nvswitches_on_the_bus_ask_for_a_fabric_manager_that_is_known_to_be_missing(read, machine):
    root = machine()
    assert SWITCH in read(root)["implied"]["nvidia-fabricmanager"]
    told, broken = judged(suite.test_needed, read(root))
    assert (told.outcome, told.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert "NVSwitch" in broken["missing"].detail
    for name, text in process(70, "nv-fabricmanage").items():
        put(root, name, text)
    assert judged(suite.test_needed, read(root))[0].outcome is Outcome.PASS


def test_a_fabric_manager_that_switches_ask_for_and_nobody_sees_leaves_the_node_unjudged(
    read, machine
):
    root = machine(whole=False)
    assert read(root)["implied"]
    told, _ = judged(suite.test_needed, read(root))
    assert (told.outcome, told.cause) == (Outcome.ERROR, Cause.ENVIRONMENT)
    assert "nvidia-fabricmanager" in told.summary
    put(root, f"sys/fs/cgroup/system.slice/{UNIT}/cgroup.events", "populated 1\n")
    assert judged(suite.test_needed, read(root))[0].outcome is Outcome.PASS


def test_a_service_that_nobody_knows_is_a_fault_of_the_spec(read, machine):
    limits = suite.ServiceLimits(needed="nvidia-fabricmanagr")
    told, _ = judged(suite.test_needed, read(machine()), limits)
    assert (told.outcome, told.cause) == (Outcome.ERROR, Cause.CONFIG)
    assert "nvidia-fabricmanager" in told.summary


def test_the_container_toolkit_is_judged_where_the_spec_asks(read, machine):
    root = machine(process(70, "nv-fabricmanage"))
    limits = suite.ServiceLimits(toolkit=True)
    told, broken = judged(suite.test_needed, read(root), limits)
    assert (told.outcome, list(broken)) == (Outcome.FAIL, ["toolkit"])
    put(root, "usr/bin/nvidia-ctk", "")
    result = read(root)
    sound, _ = judged(suite.test_needed, result, limits)
    assert sound.outcome is Outcome.PASS
    broken_names = set()
    for plant in spec_of(suite.test_needed).plants:
        told, names = judged(suite.test_needed, plant.alter(result), limits)
        assert told.outcome is Outcome.FAIL
        assert set(plant.breaks) <= set(names)
        broken_names |= set(names)
    assert sound.bounded <= broken_names


def test_a_real_process_runs_until_it_is_dead_also_unreaped(tmp_path):
    program = tmp_path / "nv-hostengine"
    program.symlink_to(Path(sys.executable).resolve())
    hold = [program, "-I", "-S", "-c", "import os; os.read(0, 1)"]
    tree = Tree(root=Path("/"))
    before = services.states(tree)["nv-hostengine"]
    assert before != "running", "this test needs a machine that runs no nv-hostengine"
    with subprocess.Popen(hold, stdin=subprocess.PIPE) as daemon:
        assert services.states(tree)["nv-hostengine"] == "running"
        daemon.stdin.close()
        while Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            pass
        assert services.states(tree)["nv-hostengine"] == before


def test_this_machine_is_read(read):
    told, _ = judged(suite.test_needed, read("/"))
    assert told.outcome is Outcome.PASS


def test_a_bus_without_switches_asks_for_nothing(read, tmp_path):
    put_device(tmp_path, ["0000:00:1e.0"], vendor="0x10de", **{"class": "0x030200"})
    put(tmp_path, "proc/cpuinfo", "processor : 0\n")
    assert read(tmp_path)["implied"] == {}
