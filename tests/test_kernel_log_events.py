"""What lines of the kernel come to: grades by code and by word, one incident for its many lines."""

from __future__ import annotations

import pytest

from nodeproof.parsers import kernel_log


def told(*lines):
    """Every event as `source code device severity remedy count unit`, stamped from 100 s on."""
    text = "".join(f"[{100 + n:5d}.000000] {line}\n" for n, line in enumerate(lines))
    return [
        (e.source, e.code, e.device, str(e.severity), str(e.remedy), e.count)
        for e in kernel_log.events(text)
    ]


def xid(rest, where="PCI:0000:3b:00"):
    return f"NVRM: Xid ({where}): {rest}"


GPU = "0000:3b:00.0"


@pytest.mark.parametrize(
    ("rest", "severity", "remedy"),
    [
        ("13, Graphics SM Warp Exception", "warning", "retest"),
        ("31, pid=1, name=a, MMU Fault", "warning", "retest"),
        ("32, Channel ID 4", "warning", "retest"),
        ("43, pid=1, Ch 1", "warning", "retest"),
        ("14, Channel 2", "info", "none"),
        ("45, pid=1, name=a, Ch 1, caused by previous Xid 48", "warning", "retest"),
        ("48, DBE, Xid 13 before", "fatal", "reset_gpu"),
        ("63, Row Remapper: New row marked", "warning", "reset_gpu"),
        ("64, Row Remapper Error", "fatal", "replace"),
        ("79, GPU has fallen off the bus.", "fatal", "reboot"),
        ("94, Contained: SM (0x1). RST: No, D-RST: No", "warning", "retest"),
        ("94, Contained: LTC (0x1). RST: Yes, D-RST: No", "fatal", "reset_gpu"),
        ("94, Contained: LTC (0x1). RST: No, D-RST: Yes", "fatal", "reset_gpu"),
        ("95, Uncontained", "fatal", "reset_gpu"),
        ("137, TLC RX interrupt", "warning", "retest"),
        ("109, pid=1, name=a, Ch 1", "fatal", "reset_gpu"),
        ("119, Timeout after 6s", "fatal", "reset_gpu"),
        ("92, high rate", "fatal", "contact_support"),
        ("999, what nobody knows", "fatal", "contact_support"),
        ("145, RLW_REMAP Fatal XC0 i0 Link 00 (0x4 0x1 0x0 0x0)", "fatal", "reset_gpu"),
        ("145, pid=1, name=Fatal, RLW_REMAP Nonfatal XC0 i0 Link 00 (0x4 0x1)", "warning", "none"),
        ("149, NETIR  Fatal   XC0 i0 Link -1 (0x000fe406 0x0)", "fatal", "reset_gpu"),
        ("145, RLW_REMAP (0x4 0x00000001 0x0 0x0)", "warning", "none"),  # decoded: no word
        ("145, RLW_REMAP (0x4 0x00000040 0x0 0x0)", "fatal", "reset_gpu"),
        ("145, RLW_REM", "fatal", "reset_gpu"),
        ("154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "fatal", "reset_gpu"),
        ("154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", "info", "none"),
        ("154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "fatal", "reboot"),
        ("154, GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", "fatal", "reset_gpu"),
        ("154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", "fatal", "reset_gpu"),
        ("154, GPU recovery action changed from 0x1 (GPU Reset Req", "fatal", "reset_gpu"),
    ],
)  # fmt: skip
def test_an_xid_is_graded_by_its_code_and_its_words(rest, severity, remedy):
    assert told(xid(rest)) == [("xid", int(rest.split(",")[0]), GPU, severity, remedy, 1)]


@pytest.mark.parametrize(
    ("where", "device"),
    [
        ("0000:3b:00", "0000:3b:00.0"),
        ("PCI:0000:20:1d", "0000:20:1d.0"),
        ("PCI:0008:01:00", "0008:01:00.0"),
        ("PCI:00000008:01:00", "0008:01:00.0"),
        ("PCI:0000:3B:00.1", "0000:3b:00.1"),
        ("PCI:0000:48:00 GPU-I:07 GPU-CI:00", "0000:48:00.0"),
    ],
)
def test_addresses_have_one_form(where, device):
    assert told(xid("79, lost", where))[0][2] == device


@pytest.mark.parametrize("line", ["NVRM: Xid (PCI:0000:3b:00): ", "NVRM: Xid (PCI:0000:3b", "NVRM: Xid (PCI:0000:3b:00): 7"])  # fmt: skip
def test_an_xid_that_is_cut_before_its_code_is_no_silence(line):
    got = kernel_log.read(line.encode(), {})
    assert got.grade == "warn"
    assert got.fields["events"][0]["code"] is None


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: _kgspLogXid119: ***** GSP Timeout *****",
        "NVRM: GPU at PCI:0000:3b:00: GPU-11111111-2222-3333-4444-555555555555",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 08:12:44 UTC 2024",
        "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!",
        "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context",
        "mlx5_core 0000:5d:00.0: Port module event: module 0, Cable plugged",
        "mlx5_core 0000:5d:00.0: mlx5_pcie_event:294:(pid 1): PCIe slot advertised sufficient power",
        "mlx5_core 0000:bd:00.0: 252.048 Gb/s available PCIe bandwidth (16.0 GT/s PCIe x16 link)",
        "EDAC MC1: Giving out device to module skx_edac controller Skylake Socket#0 IMC#1",
        "EDAC skx MC1: HANDLING MCE MEMORY ERROR",
        "INFO: lockdep is turned off.",
        "efa: module verification failed: signature and/or required key missing - tainting kernel",
        "efa 0000:4f:00.0: Setup irq:1861 name:efa-mgmnt@pci:0000:4f:00.0",
        "pcieport 0000:00:01.0: AER: enabled with IRQ 26",
        "Memory: 1056628K/1048576K available",
    ],
)
def test_chatter_is_no_event(line):
    assert told(line) == []


def test_reports_of_the_same_are_one_event_with_the_times_of_first_and_last():
    text = f"[  10.5] {xid('119, a')}\n[  20.5] {xid('119, b')}\n[  30.5] {xid('120, c')}\n"
    first, second = kernel_log.events(text)
    assert (first.count, first.at, first.last_at, first.text) == (2, 10.5, 20.5, xid("119, a"))
    assert (second.code, second.count) == (120, 1)


def test_a_lost_gpu_that_is_told_of_twice_is_lost_once():
    line = f"NVRM: GPU {GPU}: GPU has fallen off the bus."
    assert told(line, xid("79, GPU has fallen off the bus.")) == [
        ("xid", 79, GPU, "fatal", "reboot", 1)
    ]
    assert told(line) == [("nvrm", None, GPU, "fatal", "reboot", 1)]
    assert told(line.replace("3b", "5e"), xid("79, lost")) == [
        ("nvrm", None, "0000:5e:00.0", "fatal", "reboot", 1),
        ("xid", 79, GPU, "fatal", "reboot", 1),
    ]


def test_attempts_to_use_a_lost_gpu_are_no_further_faults():
    attempt = f"NVRM: GPU {GPU}: RmInitAdapter failed! (0x23:0x65:1477)"
    lost = f"NVRM: GPU {GPU}: GPU has fallen off the bus."
    assert told(lost, attempt, attempt) == [("nvrm", None, GPU, "fatal", "reboot", 1)]
    assert told(attempt, attempt, lost) == [("nvrm", None, GPU, "fatal", "reboot", 2)]


def test_firmware_that_names_no_gpu_counts_where_nothing_else_is_told():
    line = (
        "NVRM: kgspWaitForGfwBootOk_TU102: failed to wait for GFW boot complete: 0x65 VBIOS version"
    )
    assert told(line, line) == [("nvrm", None, None, "fatal", "reboot", 2)]
    assert told(line, xid("119, Timeout")) == [("xid", 119, GPU, "fatal", "reset_gpu", 1)]
    # A warning about a GPU does not explain it.
    assert [e[0] for e in told(line, xid("31, fault"))] == ["nvrm", "xid"]


def test_a_region_that_is_invalid_names_its_gpu_in_the_next_line():
    assert told(
        "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:",
        "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:17:00.0)",
        "NVRM: The NVIDIA probe routine failed for 1 device(s).",
    ) == [("nvrm", None, "0000:17:00.0", "fatal", "reboot", 1)]


def test_a_rate_limit_alone_says_that_the_gpu_needs_a_reset():
    line = "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:3b:00 (printing 1 of every 30).  The GPU likely needs to be reset."
    assert told(line) == [("nvrm", None, GPU, "fatal", "reset_gpu", 1)]
    assert told(xid("119, Timeout"), line) == [("xid", 119, GPU, "fatal", "reset_gpu", 1)]
    assert [e[0] for e in told(xid("31, fault"), line)] == ["xid", "nvrm"]


def test_a_clean_up_is_a_consequence_of_what_is_fatal():
    assert told(xid("45, Ch 1"), xid("62, halt"))[0][3:5] == ("info", "none")
    assert told(xid("45, Ch 1"), xid("43, Ch 1"))[0][3:5] == ("warning", "retest")
    assert (
        told(xid("45, Ch 1"), "INFO: task a:1 blocked for more than 120 seconds.")[0][3] == "info"
    )


SWITCH = "nvidia-nvswitch0: SXid (PCI:0000:c5:00.0): "


@pytest.mark.parametrize(
    ("rests", "events"),
    [
        (["20034, Fatal, Link 54 LTSSM Fault Up"], [("fatal", 1)]),
        (["20034, Severity 1 Engine instance 54", "20034, Fatal, Link 54", "20034, Data {0x1}"], [("fatal", 1)]),
        (["12028, Non-fatal, Link 33", "12028, Severity 0 Engine instance 33"], [("warning", 1)]),
        (["20034, Fatal, Link 1", "20034, Fatal, Link 2", "20034, Data {0x1}", "20034, Data {0x2}"], [("fatal", 2)]),
        (["12028, Data {0x1}"], [("warning", 1)]),  # by the catalogue
        (["20034, Data {0x1}"], [("fatal", 1)]),
        (["54321, Data {0x1}"], [("fatal", 1)]),
        (["54321, Severity 0 Engine instance 1"], [("warning", 1)]),
        (["24003, Correctable, Link 1"], [("warning", 1)]),
        (["22013, Non-fatal, Link 3 Minion Link DLREQ interrupt"], [("info", 1)]),
        (["22013, Fatal, Link 3 Minion"], [("fatal", 1)]),
    ],
)  # fmt: skip
def test_an_sxid_is_one_event_with_the_drivers_word(rests, events):
    got = told(*(SWITCH + rest for rest in rests))
    assert [(e[3], e[5]) for e in got] == events
    assert {e[:3] for e in got} == {("sxid", int(rests[0][:5]), "0000:c5:00.0")}


def test_a_link_that_asks_for_attention_is_news_when_no_switch_starts():
    line = f"{SWITCH}22013, Non-fatal, Link 3 Minion Link DLREQ interrupt"
    assert kernel_log.events(f"[ 4000.000000] {line}\n")[0].severity == "warning"
    starts = (
        "[ 3999.000000] nvidia-nvlink: Nvlink Core is being initialized, major device number 235\n"
    )
    assert kernel_log.events(f"{starts}[ 4000.000000] {line}\n")[0].severity == "info"


PORT = "pcieport 0000:80:01.0: "


@pytest.mark.parametrize(
    ("lines", "events"),
    [
        (
            [
                PORT + "AER: Corrected error received: 0000:81:00.0",
                "nvidia 0000:81:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
                "nvidia 0000:81:00.0:   device [10de:2330] error status/mask=00000001/00006000",
            ],
            [("0000:80:01.0", "warning", "none", 1)],
        ),
        (
            [
                PORT + "AER: Multiple Uncorrectable (Non-Fatal) error message received from 0000:81:00.0",
                "nvidia 0000:81:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer",
            ],
            [("0000:80:01.0", "warning", "retest", 1)],
        ),
        (
            [PORT + "PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, id=8008(Receiver ID)"],
            [("0000:80:01.0", "fatal", "reboot", 1)],
        ),
        ([PORT + "AER: Correctable error message received from 0000:00:00.0"] * 3, [("0000:80:01.0", "warning", "none", 3)]),
        ([PORT + "AER: device recovery failed"], [("0000:80:01.0", "fatal", "reboot", 1)]),
        (
            [PORT + "AER: Uncorrected (Fatal) error received: 0000:81:00.0", PORT + "AER: device recovery failed"],
            [("0000:80:01.0", "fatal", "reboot", 1)],
        ),
    ],
)  # fmt: skip
def test_an_aer_report_is_one_event_of_its_port(lines, events):
    assert [e[2:] for e in told(*lines)] == events


def test_the_number_in_front_of_ce_counts():
    got = kernel_log.events("EDAC MC0: 7 CE a\nEDAC MC0: 318 CE b\nEDAC MC2: CE page 0x0\n")
    assert [(e.unit, e.count) for e in got] == [("MC0", 325), ("MC2", 1)]


@pytest.mark.parametrize(
    ("word", "severity", "remedy"),
    [
        ("corrected", "warning", "none"),
        ("recoverable", "warning", "contact_support"),
        ("fatal", "fatal", "contact_support"),
        ("info", "info", "none"),
        ("of no known kind", "warning", "contact_support"),
    ],
)
def test_a_record_of_the_firmware_is_one_event_though_others_speak_between(word, severity, remedy):
    assert told(
        "{2}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 4",
        "EDAC MC0: 3 CE memory read error",
        f"{{2}}[Hardware Error]: event severity: {word}",
        "{2}[Hardware Error]:   device_id: 0000:17:01.0",
        "{2}[Hardware Error]:   vendor_id: 0x8086, device_id: 0x2f02",
        "{2}[Hardware Error]:  Error 1, type: corrected",
        "{2}[Hardware Error]:   device_id: 0000:18:00.0",
    )[0] == ("ghes", None, "0000:17:01.0", severity, remedy, 1)


@pytest.mark.parametrize(
    ("status", "severity"), [("ba00000000000400", "fatal"), ("8c00004000010091", "warning")]
)
def test_a_machine_check_is_fatal_where_its_status_says_uncorrected(status, severity):
    line = f"mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: {status}"
    assert [(e[0], e[3]) for e in told(line, "mce: [Hardware Error]: TSC 1")] == [("mce", severity)]


@pytest.mark.parametrize(
    ("line", "severity", "remedy"),
    [
        ("TX timeout on queue: 3, SQ: 0x1", "fatal", "reboot"),
        ("wait_func:1158:(pid 9): CREATE_MKEY(0x200) timeout. Will cause a leak of a command resource", "fatal", "reboot"),
        ("poll_health:800:(pid 0): device's health compromised - reached miss count", "fatal", "reboot"),
        ("Port module event[error]: module 0, Cable error, High Temperature", "fatal", "contact_support"),
        ("Port module event[error]: module 0, Cable error, Bad or unsupported EEPROM", "warning", "contact_support"),
        ("mlx5_cmd_out_err:838:(pid 1): ACCESS_REG(0x805) op_mod(0x1) failed, status bad resource(0x5)", "warning", "none"),
        ("mlx5_pcie_event:299:(pid 1): Detected insufficient power on the PCIe slot (27W).", "warning", "none"),
    ],
)  # fmt: skip
def test_the_mlx5_driver_is_graded_by_its_words(line, severity, remedy):
    assert told(f"mlx5_core 0000:1a:00.0: {line}") == [
        ("mlx5", None, "0000:1a:00.0", severity, remedy, 1)
    ]


def test_a_card_that_stopped_sending_is_one_event_for_driver_and_watchdog():
    assert told(
        "NETDEV WATCHDOG: eth2 (mlx5_core): transmit queue 3 timed out",
        "mlx5_core 0000:9e:00.0 eth2: TX timeout detected",
        "mlx5_core 0000:9e:00.0 eth2: TX timeout on queue: 3, SQ: 0x1",
    ) == [("mlx5", None, "0000:9e:00.0", "fatal", "reboot", 1)]


CUT = "------------[ cut here ]------------"


def test_a_warning_of_the_kernel_is_of_the_driver_right_before_it():
    assert told(
        "efa 0000:4f:00.0: Setup irq:1861", CUT, "WARNING: CPU: 2 PID: 1 at device.c:1"
    ) == [("efa", None, "0000:4f:00.0", "fatal", "contact_support", 1)]
    assert told("efa 0000:4f:00.0: Setup irq:1861", "usb 1-1: new device", CUT) == []
    watchdog = "WARNING: CPU: 3 PID: 0 at net/sched/sch_generic.c:316 dev_watchdog+0x22c/0x244"
    got = told("mlx5_core 0000:1a:00.0 eth2: Link up", CUT, watchdog, "NETDEV WATCHDOG: eno1 (tg3): transmit queue 2 timed out")  # fmt: skip
    assert [e[0] for e in got] == ["netdev"]


@pytest.mark.parametrize(
    ("lines", "scope"),
    [
        (["Memory cgroup out of memory: Killed process 12 (python) total-vm:1kB"], "info"),
        (["Out of memory: Killed process 12 (python) total-vm:1kB"], "warning"),
        (
            [
                "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/a,task=python,pid=12,uid=0",
                "Memory cgroup out of memory: Killed process 12 (python) total-vm:1kB",
            ],
            "info",
        ),
        (["oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),global_oom,task=python,pid=12"], "warning"),
        (["oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python,pid=12"], "info"),
        (
            [
                "Memory cgroup out of memory: Kill process 9022 (java) score 0 or sacrifice child",
                "Killed process 9817 (java) total-vm:11204800kB, anon-rss:803212kB, file-rss:9120kB",
            ],
            "info",
        ),
    ],
)  # fmt: skip
def test_a_kill_for_memory_is_one_event_with_its_scope(lines, scope):
    assert [(e[0], e[3], e[5]) for e in told(*lines)] == [("oom", scope, 1)]


def test_a_writer_that_says_how_often_a_line_came_is_believed():
    text = f"Jan 27 22:14:31 n kernel: message repeated 4 times: [ [  200.5] {xid('31, fault')}]\n"
    (event,) = kernel_log.events(text)
    assert (event.code, event.count, event.at, event.text) == (31, 4, 200.5, xid("31, fault"))


def test_two_sentences_at_once_name_their_own_gpus():
    lines = [
        "NVRM: The NVIDIA GPU 0000:65:00.0",
        "NVRM: The NVIDIA GPU 0000:a5:00.0",
        "NVRM: (PCI ID: 10de:2335) installed in this system has",
        "NVRM: (PCI ID: 10de:2335) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
        "NVRM: fallen off the bus and is not responding to commands.",
    ]
    assert [(e[0], e[2], e[5]) for e in told(*lines)] == [
        ("nvrm", "0000:65:00.0", 1),
        ("nvrm", "0000:a5:00.0", 1),
    ]


def test_heads_of_two_ports_keep_their_own_details():
    lines = [
        "pcieport 0000:80:01.0: AER: Corrected error received: 0000:81:00.0",
        "pcieport 0000:c0:01.0: AER: Corrected error received: id=c008",
        "nvidia 0000:81:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        "pcieport 0000:c0:01.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, id=c008",
    ]
    assert [(e[2], e[5]) for e in told(*lines)] == [("0000:80:01.0", 1), ("0000:c0:01.0", 1)]


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ("NVRM: rm_init_adapter(0) failed", ("nvrm", None, "fatal", "reboot")),
        ("NVRM: The NVIDIA probe routine was not called for 8 device(s).", ("nvrm", None, "warning", "contact_support")),
        ("NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover.", ("nvrm", None, "fatal", "reboot")),
        ("nvidia: probe of 0000:3b:00.0 failed with error -1", ("nvrm", GPU, "fatal", "reboot")),
        ("nvidia 0000:3b:00.0: probe with driver nvidia failed with error -1", ("nvrm", GPU, "fatal", "reboot")),
        ("efa: version magic '6.8.0-60-generic SMP preempt mod_unload ' should be '6.8.0-61-generic SMP preempt mod_unload '", ("efa", None, "fatal", "contact_support")),
        ("efa 0000:4f:00.0: probe with driver efa failed with error -62", ("efa", "0000:4f:00.0", "fatal", "contact_support")),
        ("rcu: INFO: rcu_sched self-detected stall on CPU", ("soft_lockup", None, "warning", "retest")),
        ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 3", ("soft_lockup", None, "fatal", "reboot")),
    ],
)  # fmt: skip
def test_what_keeps_a_driver_from_its_device_is_an_event(line, event):
    assert [(e[0], *e[2:5]) for e in told(line)] == [event]


def test_a_sentence_that_is_never_ended_is_no_event_of_the_next_gpu():
    lines = ["NVRM: The NVIDIA GPU 0000:65:00.0", f"NVRM: GPU {GPU}: GPU has fallen off the bus."]
    assert [e[2] for e in told(*lines)] == [GPU]
