"""A log that begins with a boot is believed if it names what this machine has on its bus."""

from __future__ import annotations

import time

import pytest

from nodeproof.acceptance import test_kernel_log as suite
from nodeproof.child import Answer, Call, Pool
from nodeproof.model import Outcome
from nodeproof.probes.kernel_lines import extended, stamped
from nodeproof.probes.log_origin import of_this_machine
from nodeproof.worker import Context
from tests.standin.build import build, judged, put_gpu

GPU, OTHER, DISK = "0000:3b:00.0", "0001:1b:00.0", "0000:00:1f.2"
FIRST = "<5>[    0.000000] Linux version 4.4.0\n"
# A sandbox's lines (google/gvisor, pkg/sentry/kernel/syslog.go) behind a first one of the kernel's.
INVENTED = FIRST + "<6>[    0.354495] Daemonizing children...\n<6>[    2.100000] Ready!\n"


def found(address, *, level=6, at=0.9):
    """What the kernel says of a function on the bus."""
    return f"<{level}>[{at:12.6f}] pci {address}: [10de:2330] type 00 class 0x030200\n"


@pytest.fixture
def machine(tmp_path):
    """A machine with these functions on its bus; `pci` is what the driver of a device under test says."""

    def made(gpus=(), others=(), pci=None):
        for address in gpus:
            put_gpu(tmp_path, address)
        for address in others:
            put_gpu(tmp_path, address, vendor="0x8086", kind="0x010601")
        return Context(
            device_kind="node",
            device_id="node",
            device_label="node",
            torch_device="",
            threads=1,
            peers=1,
            profile="quick",
            seed=7,
            host_root=tmp_path,
            facts={} if pci is None else {"pci": pci},
        )

    return made


@pytest.mark.parametrize(
    ("has", "text", "unnamed"),
    [
        ({"gpus": [GPU]}, INVENTED, GPU),
        ({"gpus": [GPU, OTHER]}, FIRST + found(GPU), OTHER),
        ({"gpus": [GPU]}, FIRST + found(GPU, level=14), GPU),  # a program says so
        ({"gpus": [GPU], "others": [DISK]}, FIRST + found(DISK), GPU),
        ({"others": [DISK]}, INVENTED, DISK),
        ({"pci": f"0000{GPU.upper()}"}, INVENTED, GPU),  # of a hidden bus the driver tells
        ({"gpus": [GPU], "pci": OTHER}, FIRST + found(GPU), OTHER),
    ],
)
def test_a_log_that_does_not_name_the_machines_own_devices_is_no_whole_log(
    machine, has, text, unnamed
):
    log = of_this_machine(stamped(text, "syslog(2)"), machine(**has))
    assert not log.complete
    assert not log.reaches(1.0)
    assert f"does not name {unnamed}, " in log.notes[-1]


@pytest.mark.parametrize(
    ("has", "text"),
    [
        ({"gpus": [GPU, OTHER], "others": [DISK]}, FIRST + found(OTHER) + found(GPU)),
        ({"gpus": [GPU]}, FIRST + "<4>[    9.000000] NVRM: Xid (PCI:0000:3b:00): 13, x\n"),
        ({"gpus": [GPU], "pci": f"0000{GPU.upper()}"}, FIRST + found(GPU)),
        ({"others": [DISK, "0000:00:02.0"]}, FIRST + found(DISK)),
        ({}, FIRST),  # nothing to hold it against: GPUs are missed by who counts them
    ],
)
def test_a_log_of_this_machine_is_whole(machine, has, text):
    log = stamped(text, "syslog(2)")
    assert of_this_machine(log, machine(**has)) == log


def test_a_log_that_does_not_begin_with_the_boot_is_asked_for_no_names(machine):
    log = stamped("<6>[  900.000000] usb: ready\n", "syslog(2)")
    assert of_this_machine(log, machine(gpus=[GPU])) == log


def test_ten_gpus_that_are_not_named_are_one_short_sentence(machine):
    context = machine(gpus=[f"0000:{bus:02x}:00.0" for bus in range(16, 26)])
    note = of_this_machine(stamped(INVENTED, "syslog(2)"), context).notes[-1]
    assert "0000:13:00.0 and 6 more, which" in note


def test_an_invented_log_does_not_stand_before_the_machines_own(machine):
    context = machine(gpus=[GPU])
    invented = of_this_machine(stamped(INVENTED, "syslog(2)"), context)
    both = extended(invented, stamped(FIRST + found(GPU), "the journal"))
    assert both.complete
    assert both.text.count("Linux version") == 1
    assert "sandbox" in both.notes[-1]


def test_a_node_whose_log_is_made_up_from_the_first_line_on_does_not_pass(
    context, machine, tmp_path
):
    machine(gpus=[GPU])
    build("klogctl.c", tmp_path / "klogctl.so")
    told = {"LD_PRELOAD": str(tmp_path / "klogctl.so"), "STANDIN_LOG": str(tmp_path / "log")}
    pool = Pool(ends=time.monotonic() + 120, logs=tmp_path, listen=lambda *_: None)
    pool.add("w", told)
    own = context(device_kind="node", host_root=str(tmp_path))
    call = Call(call="nodeproof.probes.kernel_events:since_boot", args={}, context=own)
    try:
        for text, outcome in ((INVENTED, Outcome.FAIL), (INVENTED + found(GPU), Outcome.PASS)):
            (tmp_path / "log").write_text(text)
            reply = pool.run({"w": call}, deadline_s=60)["w"]
            assert isinstance(reply, Answer), reply
            judgement, broken = judged(suite.test_events, reply.result)
            assert judgement.outcome is outcome, broken
    finally:
        pool.close(grace_s=0.5)
