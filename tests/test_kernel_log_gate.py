"""What a gate decides on a log, with what it knows beside the text; and how a site overrides it."""

from __future__ import annotations

import pytest

from nodeproof.parsers import fabricmanager_log, kernel_log, log_catalog

XID = "NVRM: Xid (PCI:0000:3b:00): "
LIMITED = "mlx5_core {device}: 252.056 Gb/s available PCIe bandwidth, limited by {speed} GT/s PCIe x{width} link at 0000:37:02.0 (capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)"
SLOW = LIMITED.format(device="0000:19:00.0", speed="16.0", width="16")
NARROW = LIMITED.format(device="0000:19:00.0", speed="32.0", width="8")
WATCHDOG = (
    "ice 0000:e4:00.1 enp228s0f1: NETDEV WATCHDOG: CPU: 61: transmit queue 38 timed out 5212 ms"
)
UNPLUGGED = "mlx5_core 0000:5d:00.1: Port module event: module 1, Cable unplugged"
EFA = "efa: Unknown symbol ib_register_device (err -22)"
KILLED = "Memory cgroup out of memory: Killed process 12 (stress_gpu_test) total-vm:1kB"
ACTION = "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"


@pytest.mark.parametrize(
    ("lines", "context", "grade"),
    [
        ([], {}, "error"),
        (["usb 1-1: new device"], {}, "pass"),
        ([XID + "79, lost"], {}, "fail"),
        ([XID + "31, fault"], {}, "warn"),
        ([XID + "14, Channel 2"], {}, "pass"),
        ([XID + "63, Row Remapper: New row marked for remapping"], {}, "fail"),
        ([XID + ACTION], {}, "warn"),
        ([XID + "31, fault", XID + ACTION], {}, "warn"),
        ([XID + "14, Channel 2", XID + ACTION], {}, "pass"),
        ([XID], {}, "warn"),
        ([SLOW], {}, "fail"),
        ([SLOW], {"known_gen4_slots": ["0000:19:00.0"]}, "warn"),
        ([SLOW], {"known_gen4_slots": ["0000:3c:00.0"]}, "fail"),
        ([NARROW], {"known_gen4_slots": ["0000:19:00.0"]}, "fail"),
        ([WATCHDOG], {}, "warn"),
        ([WATCHDOG], {"data_nics": ["0000:1a:00.0"]}, "warn"),
        ([WATCHDOG], {"data_nics": ["0000:e4:00.1"]}, "fail"),
        ([WATCHDOG], {"data_nics": ["enp228s0f1"]}, "fail"),
        ([UNPLUGGED], {}, "pass"),
        ([UNPLUGGED], {"data_nics": ["0000:5d:00.1"]}, "fail"),
        ([UNPLUGGED, UNPLUGGED.replace("un", "")], {"data_nics": ["0000:5d:00.1"]}, "pass"),
        ([EFA], {}, "fail"),
        ([EFA], {"efa_expected": True}, "fail"),
        ([EFA], {"efa_expected": False}, "warn"),
        ([KILLED], {}, "pass"),
        ([KILLED], {"test_process": "stress_gpu_test"}, "error"),
        ([KILLED], {"test_process": "stress_gpu_test_of_ours"}, "error"),  # 15 bytes of a name
        ([KILLED], {"test_process": "another"}, "pass"),
        ([KILLED, XID + "79, lost"], {"test_process": "stress_gpu_test"}, "fail"),
        ([" ? nv_open_device+0x1e0/0x7c0 [nvidia]"], {}, "warn"),
        ([" ? ext4_sync_file+0x1e0/0x7c0 [ext4]"], {}, "pass"),
        (["Feb 1 00:00:00 gpu-node-2 kernel: " + XID + "79, lost"], {"node": "gpu-node-2"}, "fail"),
        (["Feb 1 00:00:00 gpu-node-2 kernel: " + XID + "79, lost"], {"node": "gpu-node-1"}, "pass"),
        (["Feb 1 00:00:00 gpu-node-1.a.example kernel: " + XID + "79, lost"], {"node": "gpu-node-1"}, "fail"),
        ([SLOW], {"known_gen4_slots": "0000:19:00.0", "data_nics": 7, "node": None}, "fail"),
    ],
)  # fmt: skip
def test_the_gate_decides_by_the_log_and_what_it_knows(lines, context, grade):
    got = kernel_log.read("\n".join(lines).encode(), context)
    assert (got.grade, bool(got.why)) == (grade, True)


@pytest.mark.parametrize(
    "text",
    [
        "dmesg: read kernel buffer failed: Operation not permitted",
        "-- No entries --",
        "No journal files were opened due to insufficient permissions.",
        "bash: dmesg: command not found",
        "All is well with this node.",
        "hello",
        "Feb 12 09:18:44 gpu-node-1 cron[77]: job done",
        "[2026-02-24 07:19:02] request served",
    ],
)
def test_a_text_in_which_the_kernel_does_not_speak_is_an_error(text):
    got = kernel_log.read(f"{text}\n".encode(), {})
    assert (got.grade, got.fields["events"]) == ("error", [])


@pytest.mark.parametrize(
    ("host", "node", "grade"),
    [
        ("localhost", "gpu-node-1", "fail"),
        ("GPU-NODE-1", "gpu-node-1", "fail"),
        ("10.0.0.7", "ip-10-0-0-7", "fail"),
        ("10.0.0.7", "10.0.0.7", "fail"),
        ("10.0.0.7", "10.9.9.9", "pass"),
        ("gpu-node-1", "10.0.0.7", "fail"),
        ("gpu-node-2.a.example", "GPU-NODE-1.a.example", "pass"),
    ],
)
def test_a_line_counts_unless_it_is_certainly_another_nodes(host, node, grade):
    text = f"Feb 1 00:00:00 {host} kernel: {XID}79, lost\n"
    assert kernel_log.read(text.encode(), {"node": node}).grade == grade


@pytest.mark.parametrize(("end", "grade"), [("", "warn"), ("\n", "pass")])
def test_a_code_at_the_end_of_the_text_may_be_the_start_of_another(end, grade):
    assert kernel_log.read(f"{XID}14{end}".encode(), {}).grade == grade


def test_the_reason_names_what_where_and_what_to_do():
    why = kernel_log.read(f"[ 1.000000] {XID}79, lost\n".encode(), {}).why
    assert all(word in why for word in ("xid 79", "0000:3b:00.0", "reboot"))


TAG = "[Jan 14 2026 03:12:45] [{level}] [tid 2210] {text}"
ON = "on fid 0 on NVSwitch pci bus id 00000000:c5:00.0 physical id 0 port 17"


@pytest.mark.parametrize(
    ("level", "text", "grade", "event"),
    [
        ("ERROR", f"detected NVSwitch fatal error 20034 {ON}", "fail", (20034, "0000:c5:00.0", "fatal", "reboot")),
        ("ERROR", f"detected NVSwitch non-fatal error 12028 {ON}", "warn", (12028, "0000:c5:00.0", "warning", "none")),
        ("ERROR", "failed to find the GPU handle 5 in the multicast team request setup 6.", "warn", (None, None, "warning", "retest")),
        ("ERROR", "detected number of NVSwitches don't match with any supported system topology, aborting fabric manager", "fail", (None, None, "fatal", "reboot")),
        ("INFO", "multicast group 0 is freed.", "pass", None),
        ("WARNING", "multicast group 0 is slow.", "pass", None),
    ],
)  # fmt: skip
def test_the_fabric_manager_is_graded_by_its_words_and_not_by_its_tag(level, text, grade, event):
    got = fabricmanager_log.read(TAG.format(level=level, text=text).encode(), {})
    assert got.grade == grade
    told = [(e["code"], e["device"], e["severity"], e["remedy"]) for e in got.fields["events"]]
    assert told == ([event] if event else [])


@pytest.mark.parametrize(("expected", "grade"), [(None, "warn"), (False, "warn"), (True, "fail")])
def test_a_fabric_manager_without_switches_is_a_fault_where_there_have_to_be_some(expected, grade):
    text = b"Sep 18 03:19:01 n nv-fabricmanager[4756]: request to query NVSwitch device information from NVSwitch driver failed with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]\n"
    context = {} if expected is None else {"fabric_manager_expected": expected}
    assert fabricmanager_log.read(text, context).grade == grade


@pytest.mark.parametrize(
    "text", ["", "hello", "-- No entries --", "bash: nv-fabricmanager: command not found"]
)
def test_what_is_no_log_of_the_fabric_manager_is_an_error(text):
    assert fabricmanager_log.read(f"{text}\n".encode(), {}).grade == "error"


@pytest.mark.parametrize(
    "text",
    [
        "gpu systemd[1]: Failed to start NVIDIA fabric manager service.",
        "gpu systemd[1]: nvidia-fabricmanager.service: Main process exited, code=exited, status=1/FAILURE",
        "gpu systemd[1]: nvidia-fabricmanager.service: Failed with result 'exit-code'.",
    ],
)
def test_a_fabric_manager_that_did_not_start_is_one_event(text):
    got = fabricmanager_log.read(f"Jan 14 03:12:45 {text}\n".encode() * 2, {})
    assert (got.grade, len(got.fields["events"])) == ("warn", 1)
    assert "count" not in got.fields["events"][0]


SITE = """
[xid]
94 = { severity = "fatal", remedy = "reset_gpu" }
[kind]
"aer.nonfatal" = { severity = "fatal", remedy = "reboot" }
"""


def test_a_site_overrides_single_entries():
    line = f"{XID}94, pid=1, Ch 1\n{XID}31, fault\n"
    assert kernel_log.read(line.encode(), {}).grade == "warn"
    got = kernel_log.read(line.encode(), {"catalog": SITE})
    assert [e["severity"] for e in got.fields["events"]] == ["fatal", "warning"]
    assert kernel_log.events(line, catalog=SITE)[0].severity == "fatal"


@pytest.mark.parametrize(
    ("site", "says"),
    [
        ("[xid", "no TOML"),
        ("xid = 3", "no table"),
        ("[xids]\n", "known are"),
        ("[xid]\nninety = 3", "no numbers"),
        ("[xid]\n94 = 3", "needs a severity"),
        ('[xid]\n94 = { severity = "bad", remedy = "none" }', "xid 94"),
        ('[kind]\n"aer.odd" = { severity = "info", remedy = "none" }', "which no reader reports"),
    ],
)
def test_a_catalogue_that_is_wrong_decides_nothing(site, says):
    got = kernel_log.read(f"{XID}79, lost".encode(), {"catalog": site})
    assert got.grade == "error"
    assert says in got.why


def test_the_shipped_catalogue_lets_off_no_code_that_nobody_knows():
    shipped = log_catalog.shipped()
    assert shipped.of_xid(100_000).severity == "fatal"
    assert shipped.of_sxid(99_999).severity == "fatal"
    assert len(shipped.xid) > 170


@pytest.mark.parametrize("name", ["xid", "sxid", "nvlink5", "kernel"])
def test_every_file_of_the_catalogue_says_from_where_and_of_when(name):
    import tomllib
    from datetime import date
    from pathlib import Path

    path = Path(log_catalog.__file__).parents[1] / "catalog" / f"{name}.toml"
    file = tomllib.loads(path.read_text("utf-8"))
    assert len(file["source"]) > 20
    assert date.fromisoformat(file["date"]).year > 2020
