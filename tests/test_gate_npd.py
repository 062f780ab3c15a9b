"""`nodeproof npd`: one short line and a status, within its deadline, whatever the node does."""

from __future__ import annotations

import os
import time

import pytest
from bus_tree import GPU as ADDRESS
from bus_tree import at, hgx
from nodeproof_command import nodeproof

from tests.standin.build import build

XID = "NVRM: Xid (PCI:{}): 79, pid=1234, name=python, GPU has fallen off the bus."
BOOTED = "<6>[    0.000000] Linux version 6.8.0\n"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build("klogctl.c", tmp_path_factory.mktemp("library") / "klogctl.so")


@pytest.fixture
def look(library, tmp_path):
    """Look at a node of one GPU; `ring` is what the kernel's log says of it."""
    root = hgx(tmp_path / "node")
    driver = root / "proc/driver/nvidia/gpus" / ADDRESS
    driver.mkdir(parents=True)
    (driver / "information").write_text("Model: NVIDIA H100\n")

    def looked(*words, ring=BOOTED):
        (tmp_path / "ring").write_text(ring)
        environment = {"LD_PRELOAD": str(library), "STANDIN_LOG": str(tmp_path / "ring")}
        begun = time.monotonic()
        done = nodeproof("npd", "--host-root", root, *words, **environment)
        looked.seconds = time.monotonic() - begun
        assert len(done.stdout.encode()) <= 81, done.stdout
        assert done.stdout.count("\n") == 1
        return done.returncode, done.stdout.strip()

    looked.root = root
    return looked


def test_a_node_without_a_fault_is_0(look):
    assert look() == (0, "kernel log and bus show no fault")


def test_a_gpu_that_fell_off_the_bus_by_the_kernels_log_is_1(look):
    status, line = look(ring=f"{BOOTED}<3>[ 1234.500000] {XID.format(ADDRESS)}\n")
    assert status == 1
    assert line.startswith(f"GPU {ADDRESS}: the kernel's log has xid 79")


def test_a_gpu_that_does_not_answer_on_the_bus_is_1(look):
    (look.root / "sys/bus/pci/devices" / ADDRESS / "config").write_bytes(b"\xff" * 64)
    status, line = look()
    assert status == 1
    assert line.startswith(f"GPU {ADDRESS}: it is in the kernel's list of devices")


def test_a_gpu_that_the_driver_has_not_taken_is_1(look):
    (look.root / "proc/driver/nvidia/gpus" / ADDRESS).rename(
        look.root / "proc/driver/nvidia/gpus/0000:99:00.0"
    )
    status, line = look()
    assert status == 1
    assert line.endswith("the driver has not taken it") or "(+1)" in line


def test_what_can_not_be_read_is_2_and_never_0(look):
    (look.root / "sys/bus/pci/devices").rename(look.root / "sys/bus/pci/hidden")
    status, line = look()
    assert (status, line[:10]) == (2, "not read: ")


def test_a_log_that_can_not_be_read_is_2(look):
    status, line = look(ring="")
    assert (status, line[:10]) == (2, "not read: ")


def test_a_read_that_hangs_is_2_within_the_deadline(look):
    """A file of the bus that gives nothing: opening it waits for ever."""
    vendor = look.root / "sys/bus/pci/devices" / ADDRESS / "vendor"
    at(look.root, ADDRESS, "vendor", "")
    vendor.unlink()
    os.mkfifo(vendor)
    status, line = look("--deadline", "3")
    assert (status, line) == (2, "could not look at the node within 3 s")
    assert look.seconds < 30  # an interpreter has to start, on a busy machine
