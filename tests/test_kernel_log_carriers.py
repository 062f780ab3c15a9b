"""What carries lines of the kernel, and that none of them hides a fault: JSON, containers, relays."""

from __future__ import annotations

import json

import pytest

from nodeproof.parsers import kernel_log

XID = "NVRM: Xid (PCI:0000:86:00): 79, pid=1, name=<x>, GPU has fallen off the bus."
AER = "pcieport 0000:80:01.0: AER: Uncorrected (Fatal) error received: 0000:81:00.0"
QUIET = "[    1.000000] usb 1-1: new device\n"


def read(text, **context):
    got = kernel_log.read(text.encode(), context)
    return str(got.grade), [e["code"] or e["source"] for e in got.fields["events"]]


def dmesg(message, pri="3", time="   13.500000", caller=""):
    """`dmesg -J`, as util-linux prints it; the time stands there as it is."""
    first = '      {\n         "pri": 6,\n         "time":    12.000000,\n         "msg": "usb 1-1: new"\n      }'
    second = f'{{\n         "pri": {pri},\n         "time": {time},\n{caller}         "msg": {json.dumps(message)}\n      }}'
    return f'{{\n   "dmesg": [\n{first},{second}\n   ]\n}}\n'


@pytest.mark.parametrize("message", [XID, AER])
@pytest.mark.parametrize(
    "args",
    [
        {},
        {"time": "[Fri Jan 16 10:02:51 2026] "},  # no JSON, and what dmesg -J -T prints
        {"caller": '         "caller": "T1820",\n'},
        {"pri": '"err",\n         "fac": "kern"'},
    ],
)
def test_dmesg_as_json_tells_of_a_fault(message, args):
    text = dmesg(message, **args)
    assert read(text)[0] == "fail"
    assert len(read(text)[1]) == 1
    # A piece of it, and the same in one line.
    assert read(
        text[text.index('         "msg": "N' if message == XID else '         "msg": "p') :]
    )[0] in {"fail", "warn"}


def test_dmesg_as_json_keeps_the_time_of_a_record():
    (event,) = kernel_log.events(dmesg(XID))
    assert (event.at, event.text) == (13.5, XID)
    assert read(json.dumps(json.loads(dmesg(XID)))) == ("fail", [79])


@pytest.mark.parametrize("args", [{"pri": "11"}, {"pri": '"err",\n         "fac": "user"'}])
def test_what_a_program_wrote_into_the_buffer_is_its_own_in_json_too(args):
    assert read(dmesg(XID, **args)) == ("pass", [])


def test_dmesg_as_json_without_a_fault_is_a_log():
    assert read(dmesg("usb 1-2: new")) == ("pass", [])
    assert read(json.dumps(json.loads(dmesg("usb 1-2: new")))) == ("pass", [])


OBJECTS = [
    ({"_TRANSPORT": "kernel", "MESSAGE": XID}, "fail"),
    ({"_TRANSPORT": "kernel", "MESSAGE": list(XID.encode())}, "fail"),
    ({"MESSAGE": XID, "_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0"}, "fail"),
    ({"_TRANSPORT": "kernel", "MESSAGE": None}, "warn"),
    ({"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "1", "MESSAGE": XID}, "pass"),
    ({"_TRANSPORT": "syslog", "SYSLOG_IDENTIFIER": "kernel", "MESSAGE": XID}, "pass"),
    ({"_TRANSPORT": "syslog", "MESSAGE": None}, "pass"),
    ({"MESSAGE": XID}, "fail"),
    ({"message": XID}, "fail"),
    ({"message": AER}, "fail"),
    ({"log": f"{XID}\n", "stream": "stdout", "time": "2026-03-11T02:40:17Z"}, "fail"),
    ({"log": json.dumps({"message": XID})}, "fail"),
    ({"priority": 3, "sequence": 7, "sec": 1, "usec": 2, "msg": XID}, "fail"),
    ({"priority": 11, "sequence": 7, "sec": 1, "usec": 2, "msg": XID}, "pass"),
    ({"host": "n", "facility": "kern", "severity": "err", "message": XID}, "fail"),
    ({"host": "n", "facility": "user", "severity": "err", "message": XID}, "pass"),
    ({"ident": "kernel", "pid": "-", "message": XID}, "fail"),
    ({"syslogtag": "kernel:", "msg": XID}, "fail"),
    ({"ident": "agent", "message": XID}, "pass"),
    ({"pid": 12, "message": XID}, "pass"),
    ({"logger": "gpu", "level": "warning", "msg": XID}, "pass"),
    ({"caller": "watch.go:12", "level": "warning", "msg": XID}, "pass"),
    ({"level": "warning", "msg": XID}, "warn"),  # of a program, or of a relay
    ({"level": "warning", "msg": AER}, "warn"),
    ({"level": "info", "msg": "all is well"}, "pass"),
    ({"message": f"watch[7]: {XID}"}, "pass"),
    ({"message": f"@@ {XID}"}, "warn"),
    ({"message": f"@@ {AER}"}, "warn"),
    ({"data": [{"more": [XID]}]}, "fail"),
    ({"Output": f"[    1.000000] usb 1-1: new\r\n[    2.000000] {XID}\r\n"}, "fail"),
    ({"message": "usb 1-1: new", "tags": ["NVRM"]}, "pass"),
]


@pytest.mark.parametrize(("found", "grade"), OBJECTS)
def test_an_object_is_the_kernels_or_a_programs_or_nobodys_known(found, grade):
    text = json.dumps(found)
    for front in ("", "data: ", "2026-03-11T02:40:17.003999999Z stdout F ", "[", "kern.log\t"):
        assert read(f"{QUIET}{front}{text}\n")[0] == grade, front
    assert read(QUIET + text.replace(" ", "") * (" " not in str(found)) + text)[0] == grade


@pytest.mark.parametrize(("found", "grade"), [o for o in OBJECTS if "data" not in o[0]])
def test_an_object_may_go_over_lines(found, grade):
    assert read(f"{QUIET}{json.dumps(found, indent=3)}\n")[0] == grade


@pytest.mark.parametrize(
    ("line", "grade"),
    [
        (f'[0] kmsg.0: [1769552071.1, {{"priority"=>3, "sequence"=>11, "msg"=>"{XID}"}}]', "fail"),
        (f'{{"_TRANSPORT": "kernel", "MESSAGE": "{XID}', "fail"),  # cut behind what decides
        (f'  "[    5.000000] {XID}",', "fail"),
        (f'  "{XID}",', "warn"),
        (f"2026-03-11T02:40:17.003999999Z stdout F {XID}", "warn"),
        (f"2026-03-11T02:40:17.003999999Z stderr F {AER}", "warn"),
        (f"@@ what nobody knows {AER}", "warn"),
        ("@@ what nobody knows EDAC MC0: 1 UE memory read error", "warn"),
        ("@@ INFO: task a:12 blocked for more than 120 seconds.", "warn"),
        (f'Feb 12 09:18:44 gpu-node-1 agent[77]: {{"message": "{XID}"}}', "pass"),
        (f'2026/02/24 07:19:02 INFO found {{"message": "{XID}"}}', "pass"),
        (f"Feb 12 09:18:44 gpu-node-1 agent[77]: {AER}", "pass"),
        (f'time="2026-01-01" level=warning msg="{AER}"', "pass"),
        (f"[probe] [CRITICAL] PCI: {AER}", "pass"),
        ("@@ mlx5_core 0000:5d:00.0: Port module event: module 0, Cable plugged", "pass"),
        ("Modules linked in: efa(OE) mlx5_core nvidia(OE) NVRM: x", "pass"),
    ],
)
def test_a_fault_behind_whatever_carries_it_is_no_pass(line, grade):
    assert read(f"{QUIET}{line}\n")[0] == grade


def test_braces_in_the_name_of_a_process_do_not_take_a_line_from_the_kernel():
    line = XID.replace("<x>", '{"message": "y"}')
    assert read(f"[    2.000000] {line}\n") == ("fail", [79])


def test_an_object_of_another_node_is_not_this_nodes():
    text = QUIET + json.dumps({"host": "gpu-node-2", "message": XID})
    assert read(text, node="gpu-node-1")[0] == "pass"
    assert read(text, node="gpu-node-2")[0] == "fail"


def test_each_field_of_an_object_over_lines_is_read_once():
    text = QUIET + json.dumps({"a": XID, "b": XID.replace("79", "48")}, indent=1)
    assert read(text) == ("fail", [79, 48])


@pytest.mark.parametrize("piece", ['{"a":', '{"NVRM":"', '"NVRM: ",\n', '{"NVRM',  '{"msg":{"NVRM":', ',"\\NVRM'])  # fmt: skip
def test_json_without_an_end_is_a_reading(piece):
    for end in ("", "\n", '"}'):
        kernel_log.read((piece * 3_000 + end).encode(), {})


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "1e999", "9" * 400, "true"])
def test_a_number_that_is_none_is_a_reading(number):
    for name in ("pri", "priority", "time"):
        got = kernel_log.read(f'{QUIET}{{"{name}": {number}, "msg": "{XID}"}}\n'.encode(), {})
        assert got.grade == "fail"
        json.dumps(dict(got.fields), allow_nan=False)


@pytest.mark.parametrize(("transport", "grade"), [("stdout", "pass"), ("kernel", "fail")])
def test_braces_in_a_text_are_no_end_of_an_object_over_lines(transport, grade):
    record = {"_TRANSPORT": transport, "_CMDLINE": "agent {x}", "MESSAGE": XID, "_EXE": "/a}b"}
    assert read(QUIET + json.dumps(record, indent=8) + "\n")[0] == grade
