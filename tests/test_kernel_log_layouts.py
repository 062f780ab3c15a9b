"""One message in every layout in which it reaches us: the same event, and only if the kernel spoke."""

from __future__ import annotations

import json

import pytest

from nodeproof.parsers import journal_json, kernel_log

MESSAGES = {
    "xid": ("NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus.", "0000:3b:00.0"),
    "sxid": (
        "nvidia-nvswitch5: SXid (PCI:0000:c8:00.0): 20034, Fatal, Link 21 LTSSM",
        "0000:c8:00.0",
    ),
    "nvrm": ("NVRM: GPU 0000:4c:00.0: RmInitAdapter failed! (0x23:0x65:1477)", "0000:4c:00.0"),
    "aer": (
        "pcieport 0000:80:01.0: AER: Uncorrectable (Fatal) error message received from 0000:81:00.0",
        "0000:80:01.0",
    ),
    "pcie": (
        (
            "mlx5_core 0000:3c:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 2.5 GT/s PCIe x8 "
            "link at 0000:37:02.0 (capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)"
        ),
        "0000:3c:00.0",
    ),
    "edac": ("EDAC MC1: 3 UE memory read error on CPU_SrcID#0 (channel:0 slot:1)", None),
    "mce": ("mce: [Hardware Error]: Machine check events logged", None),
    "ghes": ("{5}[Hardware Error]: event severity: recoverable", None),
    "mlx5": ("mlx5_core 0000:9e:00.0 eth2: TX timeout detected", "0000:9e:00.0"),
    "efa": ("efa: Unknown symbol ib_register_device (err -22)", None),
    "netdev": ("NETDEV WATCHDOG: eno1 (tg3): transmit queue 2 timed out", None),
    "hung_task": ("INFO: task nvc:[init]:2290 blocked for more than 120 seconds.", None),
    "soft_lockup": ("watchdog: BUG: soft lockup - CPU#44 stuck for 22s! [python:281]", None),
    "oom": ("Out of memory: Killed process 3310 (stress) total-vm:1902204kB", None),
}
KERNELS = {  # layout to the prefix, and the uptime that it gives
    "uptime": ("[ 1234.500000] ", 1234.5),
    "ctime": ("[Fri Jan 16 10:02:51 2026] ", None),
    "ctime, padded day": ("[Mon Mar  9 07:14:02 2026] ", None),
    "minute stamp": ("[Jan30 08:21] ", None),
    "relative": ("[  +0.000204] ", None),
    "uptime with difference": ("[ 1234.500000 <    0.000123>] ", 1234.5),
    "caller, thread": ("[ 1234.500000] [  T88120] ", 1234.5),
    "caller, processor": ("[ 1234.500000][    C1] ", 1234.5),
    "decoded, iso": ("kern  :err   : 2026-03-02T12:44:31,902245+00:00 ", None),
    "decoded, uptime": ("kern  :warn  : [ 1234.500000] ", 1234.5),
    "iso": ("2026-03-02T12:44:31,902245+00:00 ", None),
    "syslog": ("Feb 12 09:18:44 gpu-node-1 kernel: ", None),
    "syslog with uptime": ("Jan  8 06:30:11 gpu-node-1 kernel: [ 1234.500000] ", 1234.5),
    "syslog without host": ("Feb 12 09:18:44 kernel: ", None),
    "syslog, RFC 3339": (
        "2026-01-27T22:14:31.123456+00:00 gpu-node-1 kernel: [ 1234.500000] ",
        1234.5,
    ),
    "syslog, RFC 5424": ("<3>1 2026-01-27T22:14:31.1Z gpu-node-1 kernel - - - ", None),
    "syslog, BusyBox": ("Tue Feb  3 04:51:10 2026 kern.warn kernel: [ 1234.500000] ", 1234.5),
    "journal, short": ("Jan 27 22:14:31 gpu-node-1.example.org kernel: ", None),
    "journal, precise": ("Jan 27 22:14:31.123456 gpu-node-1 kernel: ", None),
    "journal, iso": ("2026-01-27T22:14:31+0000 gpu-node-1 kernel: ", None),
    "journal, full": ("Tue 2026-01-27 22:14:31 UTC gpu-node-1 kernel: ", None),
    "journal, unix": ("1769552071.123456 gpu-node-1 kernel: ", None),
    "journal, monotonic": ("[ 1234.500000] gpu-node-1 kernel: ", 1234.5),
    "kmsg": ("3,1821,1234500000,-;", 1234.5),
    "netconsole": ("6.8.0-60-generic,3,1821,1234500000,-;", 1234.5),
    "syslog(2)": ("<3>[ 1234.500000] ", 1234.5),
    "remote": ("192.0.2.14: kern: err: [2026-01-19T08:30:15.44018203Z]: ", None),
    "guest": ("2026-02-25T23:11:09.004Z In(05) vcpu-2 - Guest: <3>[ 1234.500000] ", 1234.5),
    "coloured": ("\x1b[32m[ 1234.500000] \x1b[0m", 1234.5),
    "literal dots": ("[...] ", None),
    "bare": ("", None),
}
PROGRAMS = {
    "decoded, user": "user  :err   : 2026-03-02T12:44:31,902245+00:00 ",
    "kmsg, user": "11,1821,1234500000,-;",
    "syslog(2), user": "<11>[ 1234.500000] ",
    "syslog, RFC 5424": "<11>1 2026-01-27T22:14:31.1Z gpu-node-1 logger - - - ",
    "syslog": "Feb 12 09:18:44 gpu-node-1 gpu-probe[77]: ",
    "syslog, quoted": "Feb 12 09:18:44 gpu-node-1 agent[77]: kernel: [ 1234.500000] ",
    "syslog, BusyBox": "Tue Feb  3 04:51:10 2026 user.err kernel: ",
    "journal, monotonic": "[ 1234.500000] gpu-node-1 agent[12]: ",
    "remote": "192.0.2.14: user: err: [2026-01-19T08:30:15.44018203Z]: ",
    "kernel buffer": "[ 1234.500000] systemd[1]: ",
    "own log": "[gpu-probe] [CRITICAL] GPU-0001: ",
    "Go": '2026/02/24 07:19:02 INFO found message="',
}


@pytest.mark.parametrize("layout", KERNELS)
@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_what_the_kernel_says_is_one_event_in_every_layout(layout, end):
    prefix, at = KERNELS[layout]
    assert [
        [(e.source, e.device, e.at, e.last_at, e.text) for e in events]
        for message, _ in MESSAGES.values()
        for events in [kernel_log.events(f"{prefix}{message}{end}")]
    ] == [[(source, device, at, at, message)] for source, (message, device) in MESSAGES.items()]


@pytest.mark.parametrize("layout", PROGRAMS)
def test_what_a_program_writes_is_no_event(layout):
    text = "".join(f"{PROGRAMS[layout]}{message}\n" for message, _ in MESSAGES.values())
    assert kernel_log.events(text) == []


@pytest.mark.parametrize("joint", ["\\x0a", "#012"])
def test_a_record_of_several_lines_is_read_as_such(joint):
    said = ["NVRM: The NVIDIA GPU 0000:65:00.0", "NVRM: installed in this system has"]
    said += ["NVRM: fallen off the bus and is not responding to commands."]
    (event,) = kernel_log.events(f"4,1,1000000,-;{joint.join(said)}\n SUBSYSTEM=pci\n")
    assert (event.source, event.device, event.count) == ("nvrm", "0000:65:00.0", 1)


XID = MESSAGES["xid"][0]


def journal(*records):
    return journal_json.read("\n".join(json.dumps(r) for r in records).encode(), {})


@pytest.mark.parametrize("message", [XID, list(XID.encode()), [XID, "and another value"]])
def test_a_record_of_the_journal_holds_text_bytes_or_several_values(message):
    got = journal({"_TRANSPORT": "kernel", "MESSAGE": message, "__MONOTONIC_TIMESTAMP": "1500000"})
    (event,) = got.fields["events"]
    assert (event["code"], event["at"], got.grade) == (79, 1.5, "fail")


@pytest.mark.parametrize(
    "record",
    [
        {"_TRANSPORT": "syslog", "SYSLOG_IDENTIFIER": "kernel"},
        {"_TRANSPORT": "stdout"},
        {"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "1"},  # written into the kernel's buffer
        {"SYSLOG_IDENTIFIER": "agent"},
        {"_PID": "12"},
    ],
)
def test_a_record_of_a_program_is_no_event(record):
    got = journal({**record, "MESSAGE": XID})
    assert (got.fields["events"], got.grade) == ([], "pass")


def test_a_record_without_its_message_is_not_known_to_be_harmless():
    got = journal(
        {"_TRANSPORT": "kernel", "MESSAGE": "usb 1-1: new device"},
        {"_TRANSPORT": "kernel", "MESSAGE": None},
    )
    assert (got.grade, got.fields["facts"]) == ("warn", {"unreadable_records": 1})


@pytest.mark.parametrize("text", ["", "\n", "{}", "[]", "null", '{"a": 1}', XID, "{" * 100_000])
def test_what_is_no_journal_is_an_error(text):
    assert journal_json.read(text.encode(), {}).grade == "error"


def test_a_journal_that_is_cut_is_no_pass():
    text = json.dumps({"_TRANSPORT": "kernel", "MESSAGE": "usb"}) + '\n{"_TRANSPORT": "ker'
    assert journal_json.read(text.encode(), {}).grade == "warn"


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("listed", [False, True])
def test_records_may_go_over_lines_or_stand_in_a_list(indent, listed):
    records = [{"_TRANSPORT": "kernel", "MESSAGE": "usb"}, {"_TRANSPORT": "kernel", "MESSAGE": XID}]
    texts = [records] if listed else records
    text = "\n".join(json.dumps(t, indent=indent) for t in texts)
    assert [e["code"] for e in journal_json.read(text.encode(), {}).fields["events"]] == [79]
