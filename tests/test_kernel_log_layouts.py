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
    "blanks in front": (" \t[ 1234.500000] ", 1234.5),
    "ctime with difference": ("[Fri Jan 16 10:02:51 2026 <    0.000123>] ", None),
    "iso with difference": ("[2026-03-02T12:44:31,902245+01:00 <    0.000123>] ", None),
    "difference alone": ("[<    0.000123>] ", None),
    "journal, full, another zone": ("Tue 2026-01-27 22:14:31 CET gpu-node-1 kernel: ", None),
    "journal, full, numbered zone": ("Tue 2026-01-27 22:14:31 -03 gpu-node-1 kernel: ", None),
    "syslog, RFC 5424 with data": (
        '<3>1 2026-01-27T22:14:31.1Z gpu-node-1 kernel - - [meta@1 a="]"][b@1] ',
        None,
    ),
    "syslog, year in front": ("2026 Mar 11 02:40:17 gpu-node-1 kernel: ", None),
    "syslog, IPv6": ("Feb 12 09:18:44 fe80::1 kernel: ", None),
    "syslog, colon in the host": ("Feb 12 09:18:44 gpu:1 kernel: ", None),
    "syslog, bracketed address": ("Feb 12 09:18:44 [192.0.2.1] kernel: ", None),
    "selector in angles": ("<kern.err> ", None),
    "selector": ("kern.err gpu-node-1 kernel: ", None),
    "remote shell": ("gpu-node-1: [ 1234.500000] ", 1234.5),
    "compose": ("gpu-node-1  | [ 1234.500000] ", 1234.5),
    "search over files": ("/var/log/kern.log:12:Feb 12 09:18:44 gpu-node-1 kernel: ", None),
    "serial console": ("gpu-node-1 login: [ 1234.500000] ", 1234.5),
    "container, CRI": ("2026-03-11T02:40:17.003999999Z stdout F [ 1234.500000] ", 1234.5),
    "journal, short-delta, first": ("[ 1234.500000                ] gpu-node-1 kernel: ", 1234.5),
    "journal, short-delta": ("[ 1234.500000 <    0.000123 >] gpu-node-1 kernel: ", 1234.5),
    "journal, short-delta, unreliable": (
        "[ 1234.500000 <    0.000123*>] gpu-node-1 kernel: ",
        1234.5,
    ),
    "journal, export": ("MESSAGE=", None),
    "byte order mark": ("\ufeff[ 1234.500000] ", 1234.5),
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
STAMPED = f"[ 1.000000] usb 1-1: new\n[ 2.000000] {XID}\n"


@pytest.mark.parametrize(
    "data",
    [
        STAMPED.encode("utf-16"),
        STAMPED.encode("utf-16-le"),
        STAMPED.encode("utf-16-be"),
        STAMPED.encode("utf-8-sig"),
        STAMPED.replace("\n", "\r").encode(),
        (json.dumps({"log": f"[ 2.000000] {XID}\n", "stream": "stdout"}) + "\n").encode(),
    ],
)
def test_the_bytes_of_a_log_may_have_been_changed_on_the_way(data):
    got = kernel_log.read(data, {})
    assert [(e["code"], e["at"], e["text"]) for e in got.fields["events"]] == [(79, 2.0, XID)]


@pytest.mark.parametrize(
    ("line", "grade"),
    [
        (f"@@ what nobody knows {XID}", "warn"),
        (f"[ 1.000000] usb 1-1: ne[ 1.000001] {XID}", "warn"),
        (f"progress\r[ 1.000000] {XID}", "warn"),
        (f"[probe] [CRITICAL] GPU-1: {XID}", "pass"),
        (f'time="2026-01-01" level=warning msg="{XID}"', "pass"),
        (f"Feb 12 09:18:44 gpu-node-1 agent[77]: {XID}", "pass"),
    ],
)
def test_an_xid_behind_what_nobody_knows_is_no_pass(line, grade):
    got = kernel_log.read(f"{line}\nusb 1-1: new\n".encode(), {})
    assert (got.grade, got.fields["events"]) == (grade, [])


VERBOSE = """Wed 2026-03-11 02:40:17.123456 CET [s=abc;i=1]
    _TRANSPORT={}
    MESSAGE={}
"""
EXPORT = b"__CURSOR=a\n_TRANSPORT=kernel\n__MONOTONIC_TIMESTAMP=1500000\nMESSAGE\n"


@pytest.mark.parametrize(("transport", "grade"), [("kernel", "fail"), ("syslog", "pass")])
def test_a_journal_as_fields_says_whose_each_record_is(transport, grade):
    text = VERBOSE.format("kernel", "usb 1-1: new") + VERBOSE.format(transport, XID)
    assert kernel_log.read(text.encode(), {}).grade == grade


def test_a_journal_of_programs_alone_is_an_error():
    assert kernel_log.read(VERBOSE.format("syslog", "hello").encode(), {}).grade == "error"


@pytest.mark.parametrize("lost", [0, 3])
def test_an_exported_message_stands_behind_its_length(lost):
    body = f"usb 1-1: new\n{XID}".encode()
    data = EXPORT + len(body).to_bytes(8, "little") + body[: len(body) - lost]
    got = kernel_log.read(data + (b"" if lost else b"\n\n"), {})
    assert got.grade == ("warn" if lost else "fail")
    assert [e["at"] for e in got.fields["events"]] == ([] if lost else [1.5])


def journal(*records):
    return journal_json.read("\n".join(json.dumps(r) for r in records).encode(), {})


@pytest.mark.parametrize(
    "message",
    [
        XID,
        list(XID.encode()),
        [XID, "and another value"],
        ["another value", list(XID.encode())],
        [b - 256 if b > 127 else b for b in f"{XID} é".encode()],
    ],
)
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


@pytest.mark.parametrize("message", [None, 7, True, {}, [78, 999], ["text", 7], [[78, "x"]]])
def test_a_record_without_its_message_is_not_known_to_be_harmless(message):
    got = journal(
        {"_TRANSPORT": "kernel", "MESSAGE": "usb 1-1: new device"},
        {"_TRANSPORT": "kernel", "MESSAGE": message},
    )
    assert (got.grade, got.fields["facts"]) == ("warn", {"unreadable_records": 1})


def test_a_journal_without_a_record_of_the_kernel_is_an_error():
    assert journal({"_TRANSPORT": "stdout", "MESSAGE": "hello"}).grade == "error"


def test_a_name_that_stands_twice_hides_no_message():
    text = json.dumps({"_TRANSPORT": "kernel", "MESSAGE": XID})[:-1] + ', "MESSAGE": "fine"}'
    assert journal_json.read(text.encode(), {}).grade == "fail"


def test_a_journal_may_be_a_stream_of_events():
    text = f"data: {json.dumps({'_TRANSPORT': 'kernel', 'MESSAGE': XID})}\n\n"
    assert journal_json.read(text.encode(), {}).grade == "fail"


@pytest.mark.parametrize("text", ["", "\n", "{}", "[]", "null", '{"a": 1}', XID, "{" * 100_000])
def test_what_is_no_journal_is_an_error(text):
    assert journal_json.read(text.encode(), {}).grade == "error"


def test_a_journal_that_is_cut_is_no_pass():
    text = json.dumps({"_TRANSPORT": "kernel", "MESSAGE": "usb"}) + '\n{"_TRANSPORT": "ker'
    assert journal_json.read(text.encode(), {}).grade == "warn"


@pytest.mark.parametrize(
    ("text", "grade"),
    [
        ("[\n{x},\n{q}\n]\n", "fail"),
        ("[\n{q},\n{q}\n]\n", "pass"),
        ("[\n{q},\n{q},\n", "warn"),  # the end of the list is missing
        ("{q},\n{q}\n]\n", "warn"),
        ("{x},\n{q}\n", "fail"),
        ("{x} {q}\n{q}\n", "fail"),
        ("[{x}]\n{q}\n", "fail"),
        ("{x}\r{q}\r\n{q}", "fail"),
        ("{x}\n{q}\n{{", "fail"),
    ],
)
def test_a_fault_is_found_whichever_way_records_are_parted(text, grade):
    """A record that is only not readable is a warning, which lets the node go on."""
    fault, quiet = ({"_TRANSPORT": "kernel", "MESSAGE": said} for said in (XID, "usb 1-1: new"))
    data = text.format(x=json.dumps(fault), q=json.dumps(quiet)).encode()
    assert journal_json.read(data, {}).grade == grade


def test_a_name_that_stands_twice_hides_no_message_in_a_list_either():
    twice = json.dumps({"_TRANSPORT": "kernel", "MESSAGE": XID})[:-1] + ', "MESSAGE": "fine"}'
    assert journal_json.read(f"[{twice}, {twice}]".encode(), {}).grade == "fail"


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("listed", [False, True])
def test_records_may_go_over_lines_or_stand_in_a_list(indent, listed):
    records = [{"_TRANSPORT": "kernel", "MESSAGE": "usb"}, {"_TRANSPORT": "kernel", "MESSAGE": XID}]
    texts = [records] if listed else records
    text = "\n".join(json.dumps(t, indent=indent) for t in texts)
    assert [e["code"] for e in journal_json.read(text.encode(), {}).fields["events"]] == [79]
