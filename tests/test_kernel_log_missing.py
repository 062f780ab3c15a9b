"""Records that are not in a log: no silence of the kernel."""

from __future__ import annotations

import pytest

from nodeproof.parsers import kernel_log

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
