"""What becomes of a node by what its kernel has logged: since boot, and while it was tested."""

from __future__ import annotations

import lzma
import time

import pytest

from conftest import TESTS
from nodeproof.acceptance import test_kernel_log as suite
from nodeproof.checks import spec_of
from nodeproof.child import Answer, Call, Pool, Raised
from nodeproof.model import Cause, Outcome, Remedy
from nodeproof.parsers.events import Event, Severity
from nodeproof.parsers.events import Remedy as Asked
from nodeproof.probes.pci import Controller
from nodeproof.probes.way_out import suspects
from tests.standin.build import build, judged, put_gpu

SINCE_BOOT = "nodeproof.probes.kernel_events:since_boot"
SINCE_START = "nodeproof.probes.kernel_events:since_start"
LOOK = "nodeproof.probes.way_out:look"
GPU, SWITCH = "0000:3b:00.0", "0000:86:00.0"


def line(text, at=200.0, level=3):
    return f"<{level}>[{at:12.6f}] {text}\n"


BOOT = line("Linux version 6.8.0-40-generic (builder@host)", 0.0, 5)
LOST = (
    "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)
OF_A_PROGRAM = (
    "NVRM: Xid (PCI:0000:3b:00): 13, pid=7, name=python, Graphics Exception: ESR 0x505730"
)
EDAC = "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0)"
CONTAINER_OOM = line(
    "Memory cgroup out of memory: Killed process 3087 (python) total-vm:353668kB, anon-rss:1kB"
)


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    """A worker whose syslog(2) gives the file `log` of this folder, and nothing without one."""
    folder = tmp_path_factory.mktemp("node")
    library = build("klogctl.c", folder / "klogctl.so")
    pool = Pool(ends=time.monotonic() + 300, logs=folder, listen=lambda *_: None)
    pool.add("w", {"LD_PRELOAD": str(library), "STANDIN_LOG": str(folder / "log")})
    yield pool, folder / "log"
    pool.close(grace_s=0.5)


@pytest.fixture
def ask(worker, context, tmp_path):
    """Ask a node whose log is `log`; None: it may not be read in any way."""
    pool, file = worker

    def asked(call, log, **args):
        file.unlink(missing_ok=True)
        if log is not None:
            file.write_text(log)
        own = context(device_kind="node", host_root=str(tmp_path / "root"))
        return pool.run({"w": Call(call=call, args=args, context=own)}, deadline_s=20)["w"]

    return asked


@pytest.fixture
def answer(ask):
    def answered(call, log, **args):
        reply = ask(call, log, **args)
        assert isinstance(reply, Answer), reply
        return dict(reply.result)

    return answered


# --- since boot ------------------------------------------------------------------------------


@pytest.mark.parametrize("log", [None, "", "no times\n"])
def test_a_log_that_cannot_be_read_is_no_log_without_faults(ask, log):
    for call, args in ((SINCE_BOOT, {}), (SINCE_START, {"before": {"at": 1.0}})):
        reply = ask(call, log, **args)
        assert isinstance(reply, Raised), reply
        assert reply.cause == "environment"
        assert "CAP_SYSLOG" in reply.message


@pytest.mark.parametrize(
    ("text", "device", "remedy"),
    [
        (LOST, GPU, Remedy.REBOOT),
        ("NVRM: Xid (PCI:0000:3b:00): 48, pid=7, DBE (double bit error)", GPU, Remedy.REBOOT),
        ("NVRM: Xid (PCI:0000:3b:00): 64, Row remapping failure", GPU, Remedy.REPLACE),
        (EDAC, "MC0", Remedy.REPLACE),
    ],
)
def test_a_fault_since_boot_rejects_and_names_part_code_and_remedy(answer, text, device, remedy):
    judgement, broken = judged(suite.test_events, answer(SINCE_BOOT, BOOT + line(text)))
    assert judgement.outcome is Outcome.FAIL
    assert judgement.cause is Cause.HARDWARE
    assert judgement.remedy is remedy
    assert list(broken) == ["fatal events"]
    assert device in judgement.summary


def test_of_several_faults_the_gravest_remedy_is_asked_and_each_is_named(answer):
    log = BOOT + line(LOST, 10.0) + line(EDAC, 20.0) + line(OF_A_PROGRAM, 5.0)
    judgement, broken = judged(suite.test_events, answer(SINCE_BOOT, log))
    assert judgement.remedy is Remedy.REPLACE
    assert broken["fatal events"].value == 2
    assert f"xid 79 on {GPU} at 10.000000 (remedy reboot)" in judgement.summary
    assert "edac on MC0 at 20.000000 (remedy replace)" in judgement.summary
    assert "xid 13" not in judgement.summary


@pytest.mark.parametrize(
    "text",
    [
        OF_A_PROGRAM,
        "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=python, Ch 00000010, MMU Fault: ENGINE GRAPHICS",
        "NVRM: Xid (PCI:0000:3b:00): 43, pid=7, name=python, Ch 00000010",
        "NVRM: Xid (PCI:0000:3b:00): 45, pid=7, name=python, Ch 00000010",
    ],
)
def test_what_a_program_did_condemns_no_hardware_and_is_shown(answer, text):
    result = answer(SINCE_BOOT, BOOT + line(text))
    judgement, _ = judged(suite.test_events, result)
    assert judgement.outcome is Outcome.PASS
    assert result["warning_events"] == 1
    assert result["events"][0]["device"] == GPU


def test_a_container_that_ran_out_of_memory_is_nothing_against_the_node(answer):
    result = answer(SINCE_BOOT, BOOT + CONTAINER_OOM)
    judgement, _ = judged(suite.test_events, result)
    assert judgement.outcome is Outcome.PASS
    assert result["fatal_events"] == result["warning_events"] == 0


def test_a_line_of_a_program_is_no_event(answer):
    result = answer(SINCE_BOOT, BOOT + line(LOST, level=12))
    assert result["events"] == []


def test_a_log_that_does_not_reach_back_can_condemn_and_cannot_acquit(answer):
    result = answer(SINCE_BOOT, line("usb: ready", 50000.0))
    judgement, broken = judged(suite.test_events, result)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert list(broken) == ["log reaches back to the boot"]
    assert (result["complete"], result["first_at"]) == (False, 50000.0)
    assert "50000 s after boot" in judgement.summary
    assert "/var/log/journal" in judgement.summary
    told = suite.EventLimits(whole=False)
    assert judged(suite.test_events, result, told)[0].outcome is Outcome.PASS
    judgement, _ = judged(
        suite.test_events, answer(SINCE_BOOT, line("usb: ready", 900.0) + line(LOST, 901.0))
    )
    assert judgement.cause is Cause.HARDWARE


@pytest.mark.parametrize("limits", [None, suite.EventLimits(whole=False)])
@pytest.mark.parametrize("more", ["", line("usb: ready", 900.0), line(LOST)])
def test_each_limit_of_the_log_is_broken_by_a_planted_fault(answer, limits, more):
    log = (BOOT if "usb" not in more else "") + more
    bounded = judged(suite.test_events, answer(SINCE_BOOT, log), limits)[0].bounded
    broken = set()
    for plant in spec_of(suite.test_events).plants:
        result = answer(SINCE_BOOT, log, **plant.args)
        result = plant.alter(result) if plant.alter else result
        broken |= judged(suite.test_events, result, limits)[0].broken
    assert bounded <= broken


@pytest.mark.parametrize(
    "text",
    [
        "INFO: task systemd-udevd:412 blocked for more than 120 seconds.",
        "watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [kworker/3:1:77]",
    ],
)
def test_a_task_that_hangs_or_a_processor_that_is_held_up_condemns_no_hardware(answer, text):
    result = answer(SINCE_BOOT, BOOT + line(text))
    judgement, broken = judged(suite.test_events, result)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert list(broken) == ["events of the set-up"]


def test_a_damaged_log_can_condemn_and_cannot_acquit(answer, tmp_path):
    folder = tmp_path / "root/var/log/journal/m"
    folder.mkdir(parents=True)
    boot = tmp_path / "root/proc/sys/kernel/random"
    boot.mkdir(parents=True)
    (boot / "boot_id").write_text("11112222-3333-4444-5555-666677778888")
    content = lzma.decompress((TESTS / "journals/wide.journal.xz").read_bytes())
    for text, cause in (
        (
            content[: content.index(b"MESSAGE=NVRM: Xid (PCI:0000:3b:00): 48") - 100],
            Cause.ENVIRONMENT,
        ),
        (content[: content.index(b"MESSAGE=NVRM: register") - 100], Cause.HARDWARE),
    ):
        (folder / "system.journal").write_bytes(text)
        judgement, broken = judged(suite.test_events, answer(SINCE_BOOT, None))
        assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, cause)
        assert "damaged parts of the log" in broken
        assert "cut short" in judgement.summary


# --- since the run began ---------------------------------------------------------------------


def test_only_what_was_logged_during_the_run_is_new(answer):
    log = BOOT + line(LOST, 100.0)
    for more, wanted in (("", Outcome.PASS), (line(EDAC, 200.0), Outcome.FAIL)):
        result = answer(SINCE_START, log + more, before={"at": 100.0})
        judgement, _ = judged(suite.test_new, result)
        assert judgement.outcome is wanted
        assert result["fatal_events"] == (wanted is Outcome.FAIL)


def test_a_fault_that_is_reported_again_during_the_run_is_new(answer):
    log = BOOT + line(LOST, 100.0) + line(LOST, 300.0)
    judgement, broken = judged(suite.test_new, answer(SINCE_START, log, before={"at": 200.0}))
    assert judgement.outcome is Outcome.FAIL
    assert list(broken) == ["new fatal events"]


def test_a_log_whose_lines_of_the_run_were_pushed_out_is_no_pass_and_blames_no_hardware(answer):
    result = answer(SINCE_START, line("eth0: flood", 900.0), before={"at": 100.0})
    judgement, broken = judged(suite.test_new, result)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert list(broken) == ["log reaches back to the start"]


# --- the detector ----------------------------------------------------------------------------


@pytest.mark.parametrize("earlier", ["", line(LOST, 50.0), line(EDAC, 50.0)])
@pytest.mark.parametrize(
    ("call", "more", "check"),
    [
        (SINCE_BOOT, {}, suite.test_events),
        (SINCE_START, {"before": {"at": 100.0}}, suite.test_new),
    ],
)
def test_a_planted_line_is_found_as_it_was_planted_whatever_else_is_in_the_log(
    answer, call, more, check, earlier
):
    result = answer(call, BOOT + earlier, plant="line", **more)
    assert result["found"] == result["planted"] != []
    assert set(spec_of(check).plants[0].breaks) <= judged(check, result)[0].broken
    assert answer(call, BOOT + earlier, **more)["found"] == []


def test_a_plant_that_this_probe_does_not_know_is_an_error(ask):
    reply = ask(SINCE_BOOT, BOOT, plant="flip")
    assert isinstance(reply, Raised), reply
    assert reply.type == "ValueError"


# --- where the driver hangs ------------------------------------------------------------------


def gpu(address, *, present=True):
    return Controller(
        address=address,
        device=0x2330,
        present=present,
        numa_node=None,
        width=16,
        width_max=16,
        speed_gts=32.0,
        speed_max_gts=32.0,
    )


def event(device, source="xid", code=79, severity=Severity.FATAL):
    return Event(
        source=source, code=code, device=device, severity=severity, remedy=Asked.REBOOT, text="text"
    )


@pytest.mark.parametrize(
    ("events", "on_bus", "listed", "wanted"),
    [
        ([event(GPU)], [gpu(GPU), gpu(SWITCH)], [GPU, SWITCH], {GPU: "xid 79: text"}),
        ([event(GPU)], None, None, {GPU: "xid 79: text"}),
        ([event(GPU, "aer", None)], [gpu(GPU)], None, {GPU: "aer: text"}),
        ([], [gpu(GPU, present=False), gpu(SWITCH)], None, {GPU: "does not answer on the bus"}),
        ([], [gpu(GPU), gpu(SWITCH)], [SWITCH], {GPU: "driver has not taken it"}),
        ([], [gpu(SWITCH)], [GPU, SWITCH], {GPU: "the bus does not"}),
        ([], [gpu(GPU)], [], {}),  # no driver is loaded, which is against none of them
        ([], [gpu(GPU, present=None)], None, {}),  # not read, which says nothing about it
        ([event(SWITCH, "sxid", 20034)], [gpu(GPU)], None, {}),  # a switch is no GPU
        ([event(GPU, severity=Severity.WARNING)], [gpu(GPU)], None, {}),
        ([event(None)], [gpu(GPU)], None, {}),
    ],
)
def test_the_gpu_at_fault_is_named_from_what_kernel_and_bus_show(events, on_bus, listed, wanted):
    found = {each.address: "; ".join(each.why) for each in suspects(events, on_bus, listed)}
    assert found.keys() == wanted.keys()
    assert all(said in found[address] for address, said in wanted.items())


def test_the_way_out_asks_all_witnesses_and_names_what_was_not_read(answer, tmp_path):
    put_gpu(tmp_path / "root", GPU)
    put_gpu(tmp_path / "root", SWITCH, head=b"\xff\xff\xff\xff")
    result = answer(LOOK, BOOT + line(LOST))
    assert [each["address"] for each in result["suspects"]] == [GPU, SWITCH]
    assert f"GPU {GPU}: the kernel's log has xid 79" in result["says"]
    assert "proc/driver/nvidia/gpus" in result["unreadable"][0]
    silent = answer(LOOK, None)
    assert [each["address"] for each in silent["suspects"]] == [SWITCH]
    assert "CAP_SYSLOG" in silent["says"]
