"""A file of the node's that must say something and is empty is not read as if nothing were wrong."""

from __future__ import annotations

import pytest
from sysfs_tree import working

from nodeproof.child import Raised
from nodeproof.probes.tree import Tree, Unreadable

# Each work function and the file of /proc or /sys that it cannot do without.
NEEDED = {
    "edac:memory_errors": "proc/meminfo",
    "disks:disks": "proc/self/mountinfo",
    "cores:cores": "proc/cpuinfo",
    "kernel_command:command": "proc/cmdline",
    "ethernet:interfaces": "sys/class/net",
    "nic_counters:read": "sys/class/net",
}
EMPTY = (
    *("meminfo", "cpuinfo", "cmdline", "stat", "uptime", "version"),
    *("1/mountinfo", "self/mountinfo", "self/cgroup", "sys/kernel/osrelease"),
)


@pytest.fixture(scope="module")
def hollow(tmp_path_factory):
    """The root of a node whose files are all there and all empty, and so are its folders."""
    root = tmp_path_factory.mktemp("hollow")
    for name in ("block", "bus/pci/devices", "class/net", "devices/system/cpu"):
        (root / "sys" / name).mkdir(parents=True)
    for name in EMPTY:
        file = root / "proc" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return root


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    with working(tmp_path_factory.mktemp("workers")) as made:
        yield made


@pytest.mark.parametrize("work", NEEDED)
def test_an_empty_node_is_an_error_of_the_environment(worker, hollow, work):
    reply = worker.run(f"nodeproof.probes.{work}", hollow)
    assert isinstance(reply, Raised)
    assert reply.cause == "environment"
    assert NEEDED[work] in reply.message


def test_a_file_that_may_be_empty_is_read_and_one_that_may_not_is_named(tmp_path):
    (tmp_path / "white").write_text(" \n")
    tree = Tree(root=tmp_path)
    assert tree.text("white", may_be_empty=True) == ""
    with pytest.raises(Unreadable, match="white is empty"):
        tree.text("white")
    with pytest.raises(Unreadable, match="white is empty"):
        tree.value("white", str)
