"""Records that are not in a log, and lines that end too early: no silence of the kernel."""

from __future__ import annotations

import pytest

from nodeproof.parsers import kernel_log
from nodeproof.parsers.log_scan import candidates

QUIET = "[    1.000000] usb 1-1: new device\n"


def grade(text, **context):
    return str(kernel_log.read(text.encode(), context).grade)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Mar 29 22:08:00 gpu-node-1 kernel: [81B blob data]", "warn"),
        ("Mar 29 22:08:00 gpu-node-1 kernel: [1.2K blob data]", "warn"),
        ("[    2.000000] gpu-node-1 kernel: [5B blob data]", "warn"),
        ("** 127 printk messages dropped **", "warn"),
        ("** 5 printk messages dropped ** [    2.000000] usb 1-1: new", "warn"),
        ("Mar 29 22:08:00 gpu-node-1 systemd-journald[855]: Missed 812 kernel messages", "warn"),
        ("[    2.000000] systemd-journald[811]: Missed 5 kernel messages", "warn"),
        ("Mar 29 22:08:00 gpu-node-1 agent[81]: [81B blob data]", "pass"),
        ("[    2.000000] net_ratelimit: 12 callbacks suppressed", "pass"),
        ("[    2.000000] kauditd_printk_skb: 5 callbacks suppressed", "pass"),
        ("[    2.000000] Memory: 1056628K/1048576K available", "pass"),
        ("Mar 29 22:08:00 n systemd-journald[811]: Suppressed 12 messages from a.service", "pass"),
        ("Mar 29 22:08:00 n agent[81]: 12 messages dropped", "pass"),
    ],
)
@pytest.mark.parametrize("end", ["\n", ""])
def test_a_log_that_says_that_records_are_missing_is_no_pass(line, expected, end):
    assert grade(f"{QUIET}{line}{end}") == expected


WHOLE = [  # with the shortest beginning that is known for one, and from where on its words decide
    ("pcieport 0000:80:01.0: AER: Uncorrected (Fatal) error received: 0000:81:00.0", "AER:", "(Fatal) error"),
    ("pcieport 0000:80:01.0: AER: Multiple Uncorrectable (Fatal) error message received from 0000:81:00.0", "AER:", "(Fatal) error"),
    ("pcieport 0000:80:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Data Link Layer", "PCIe ", "(Fatal"),
    ("pcieport 0000:16:00.0: DPC: unmasked uncorrectable error detected", "DPC:", "detected"),
    ("INFO: task nvidia-smi:2290 blocked for more than 120 seconds.", ":2290", "for m"),
    ("NVRM: GPU 0000:5e:00.0: GPU has fallen off the bus.", "GPU has", "fallen off"),
    ("NVRM: GPU 0000:4c:00.0: RmInitAdapter failed! (0x23:0x65:1477)", "RmI", "failed!"),
    ("watchdog: BUG: soft lockup - CPU#44 stuck for 22s! [python:281]", "BUG: s", "stuck for"),
    ("Kernel panic - not syncing: Fatal exception", "Kernel pan", "syncing"),
    ("EDAC MC1: 3 UE memory read error", "EDAC MC1:", "UE"),
    ("mlx5_core 0000:9e:00.0 eth2: TX timeout detected", "TX", "detected"),
    ("infiniband efa_0: The device didn't send any completion for admin cmd CREATE_QP(1)", "The", "completion"),
    ("BUG: unable to handle page fault for address: ffff", "BUG: u", "handle p"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "begins", "decides"), WHOLE)
@pytest.mark.parametrize("end", ["\n", ""])
def test_a_line_that_is_cut_in_its_deciding_words_is_no_pass(line, begins, decides, end):
    known = line.index(begins) + len(begins)
    told = line.index(decides) + len(decides)
    for length in range(known, len(line) + 1):
        text = f"{QUIET}[ 3181.000000] {line[:length]}{end}"
        got = grade(text)
        seen = candidates(text.encode())
        allowed = {"fail"} if length >= told else {"fail", "warn"} if seen else {"warn", "pass"}
        assert got in allowed, line[:length]


@pytest.mark.parametrize("line", [
    "nvidia-nvswitch0: SXid (PCI:0000:c5:0",
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0",
    "nvidia-nvswitch0: SXid (PCI:0000:c5:00.0): ",
    "nvidia-nvswitch0: SXid (PCI:0000:c5:00.0): 220",
    "NVRM: The NVIDIA GPU 0000:65:00.0",
    "NVRM: The NVIDIA GPU 0000:65:00.0\nNVRM: (PCI ID: 10de:2335) installed in this system has",
    "ice 0000:e4:00.1 enp228s0f1: NETDEV WATCHDOG: CPU: 61: transmit que",
    "mlx5_core 0000:3c:00.0: 63.008 Gb/s available PCIe bandwidth, limi",
    "mlx5_core 0000:3c:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 2.5 GT/s PC",
    "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: ba00",
    "rcu: INFO: rcu_sched self-det",
])  # fmt: skip
def test_the_last_line_may_be_cut_before_anything_is_told(line):
    got = kernel_log.read(f"{QUIET}[    2.000000] {line}".encode(), {})
    assert (got.grade, got.fields["events"]) == ("warn", [])


@pytest.mark.parametrize(
    "line",
    [
        "pcieport 0000:00:01.0: AER: enabled with IRQ 26",
        "pcieport 0000:00:01.0: AER: device recovery successful",
        "pcieport 0000:00:01.0: AER: Root Port link has been reset (0)",
        "pcieport 0000:00:01.0: DPC: error containment capabilities: Int Msg #0",
        "pcieport 0000:00:01.0: PME: Signaling with IRQ 26",
        "mlx5_core 0000:bd:00.0: 252.048 Gb/s available PCIe bandwidth (16.0 GT/s PCIe x16 link)",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07",
        "NVRM: GPU at PCI:0000:3b:00: GPU-11111111-2222-3333-4444-555555555555",
        "Kernel command line: quiet",
        "EDAC MC1: Giving out device to module skx_edac controller Skylake Socket#0 IMC#1",
        "EDAC MC: Ver: 3.0.0",
        "INFO: lockdep is turned off.",
        "mlx5_core 0000:5d:00.0 eth2: Link up",
        "BUG",
        "watchdog: Delayed init of the lockup detector failed: -1",
        "systemd[1]: Started session 4",
        "usb 1-1: Prod",  # cut, and of nothing that matters
    ],
)
def test_lines_that_only_look_as_if_they_were_cut_change_nothing(line):
    assert grade(f"{QUIET}[    2.000000] {line}") == "pass"
    assert grade(f"[    2.000000] {line}\n{QUIET}") == "pass"


@pytest.mark.parametrize(
    ("line", "context", "expected"),
    [
        ("Killed process 3310 (stress_gpu) total-vm:1902204kB, anon-rss:1801164kB, file-rss:0kB", {"test_process": "stress_gpu"}, "error"),
        ("Killed process 3310 (stress_gpu) total-vm:5kB, anon-rss:5kB, file-rss:5kB", {"test_process": "another"}, "warn"),
        ("Killed process 3310 (stress_gpu) total-vm:5kB, anon-rss:5kB, file-rss:5kB", {}, "warn"),
        ("oom_reaper: reaped process 3310 (stress_gpu), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB", {"test_process": "stress_gpu"}, "error"),
        ("oom_reaper: reaped process 3310 (stress_gpu), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB", {}, "pass"),
        ("Out of memory (oom_kill_allocating_task): Killed process 3310 (stress_gpu) total-vm:1kB", {"test_process": "stress_gpu"}, "error"),
    ],
)  # fmt: skip
def test_a_kill_counts_without_the_lines_before_it(line, context, expected):
    for stamp in ("[ 4410.116240] ", "Feb 12 09:18:44 gpu-node-1 kernel: ", ""):
        assert grade(f"{QUIET}{stamp}{line}\n", **context) == expected


def test_a_process_that_a_program_kills_is_no_victim_of_the_kernel():
    line = "Feb 12 09:18:44 gpu-node-1 agent[7]: Killed process 3310 (stress_gpu)"
    assert grade(f"{QUIET}{line}\n", test_process="stress_gpu") == "pass"
