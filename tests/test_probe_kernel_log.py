"""Xids in the kernel's log: found where they are, told apart from what only looks like them."""

from __future__ import annotations

import pytest

from nodeproof.child import Answer, Call, Raised
from nodeproof.probes.kernel_log import Xid, reported
from tests.standin.build import build

XIDS = "nodeproof.probes.kernel_log:xids"
CURSOR = "nodeproof.probes.kernel_log:cursor"
MINE, OTHER = "0000:3b:00.0", "0000:3c:00.0"
START = "<6>[  100.000000] nvidia: loading\n"


def xid(code, *, at=200.0, pci="PCI:0000:3b:00", level=3, caller="", text="pid=7, name=python"):
    return f"<{level}>[{at:12.6f}]{caller} NVRM: Xid ({pci}): {code}, {text}\n"


@pytest.mark.parametrize(
    "line",
    [
        xid(79),
        xid(79, caller="[ T1234]"),
        xid(79, pci="0000:3b:00"),  # drivers before 4xx
        xid(79, pci="PCI:0000:3B:00.0"),
        xid(79, pci="PCI:00000000:3b:00"),
        xid(79, level=6),
        xid(79, pci="PCI:0000:3b:00 GPU-I:03"),  # of a slice (MIG)
        xid(79, pci="PCI:0000:3b:00 GPU-I:03 GPU-CI:00"),
        xid(79).replace("NVRM: ", "NVRM: NVRM: "),
        xid(79).replace("79, ", "79 , "),
    ],
)
def test_an_xid_is_read_however_its_driver_writes_it(line):
    assert list(reported(START + line)) == [
        Xid(pci=MINE, code=79, at=200.0, text="pid=7, name=python")
    ]


@pytest.mark.parametrize(
    "line",
    [
        xid(79, level=12),  # written to /dev/kmsg by a program, which has the facility of users
        "<6>[  200.0] systemd[1]: unit says NVRM: Xid (PCI:0000:3b:00): 79, quoted\n",
        "<6>[  200.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module 570.124.06\n",
        "<6>[  200.0] NVRM: Xid catalogue: 79\n",
        "",
    ],
)
def test_what_only_looks_like_an_xid_is_none(line):
    assert list(reported(START + line)) == []


def test_what_of_an_xid_cannot_be_read_is_none_and_the_xid_is_there():
    assert [(x.pci, x.code) for x in reported(xid(79, pci="PCI:3b"))] == [(None, 79)]
    cut = "<3>[  200.000000] NVRM: Xid (PCI:0000:3b:00):\n"
    assert [(x.pci, x.code) for x in reported(cut)] == [(MINE, None)]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build("klogctl.c", tmp_path_factory.mktemp("log") / "klogctl.so")


@pytest.fixture
def ask(pool, context, library, tmp_path):
    """Ask a real worker whose log is what the test says; `None` is one that may not be read."""
    count = iter(range(9))

    def asked(call, log, **args):
        name = f"w{next(count)}"
        environment = {"LD_PRELOAD": str(library)}
        if log is not None:
            (tmp_path / name).write_text(log)
            environment["STANDIN_LOG"] = str(tmp_path / name)
        pool.add(name, environment)
        facts = {"pci": "00000000:3B:00.0"} if args.pop("known", True) else {}
        # Without the other sources of this machine: what is not in `log` can't be read.
        own = context(device_id="GPU-1", facts=facts, host_root=str(tmp_path / "root"))
        work = Call(call=call, args=args, context=own)
        return pool.run({name: work}, deadline_s=20)[name]

    return asked


def test_only_what_is_new_and_of_this_gpu_counts(ask):
    cursor = ask(CURSOR, START + xid(13, at=150.0))
    assert isinstance(cursor, Answer), cursor
    assert cursor.result == {"at": 150.0, "source": "syslog(2)"}
    log = (
        START
        + xid(13, at=150.0)
        + xid(48)
        + xid(74, at=201.0, pci="PCI:0000:3c:00")
        + xid(94, at=202.0)
    )
    reply = ask(XIDS, log, since=150.0)
    assert isinstance(reply, Answer), reply
    assert [x["code"] for x in reply.result["found"]] == [48, 94]
    assert reply.result["reaches_back"] is True
    assert reply.result["pci"] == MINE


def test_a_planted_line_goes_through_the_same_reader_and_is_found_as_it_was_planted(ask):
    reply = ask(XIDS, START, since=100.0, plant="line")
    assert isinstance(reply, Answer), reply
    assert reply.result["found"] == reply.result["planted"]
    assert [x["code"] for x in reply.result["found"]] == [79]


def test_an_xid_of_another_gpu_or_of_before_may_be_cut_short(ask):
    old = xid(79, at=90.0, pci="PCI:3b")
    log = START + old + "<3>[  200.000000] NVRM: Xid (PCI:0000:3c:00):\n"
    reply = ask(XIDS, log, since=100.0)
    assert isinstance(reply, Answer), reply
    assert reply.result["found"] == []


def test_an_xid_of_a_slice_is_its_gpus(ask):
    log = START + xid(94, pci="PCI:0000:3b:00 GPU-I:03") + xid(94, pci="PCI:0000:3c:00 GPU-I:03")
    reply = ask(XIDS, log, since=100.0)
    assert isinstance(reply, Answer), reply
    assert [(x["code"], x["pci"]) for x in reply.result["found"]] == [(94, MINE)]


def test_a_log_whose_older_lines_are_gone_says_so(ask):
    reply = ask(XIDS, "<6>[  900.0] eth0: flood\n", since=100.0)
    assert isinstance(reply, Answer), reply
    assert (reply.result["found"], reply.result["reaches_back"]) == ([], False)


def test_a_line_break_that_only_python_knows_begins_no_line_of_the_kernels_own(ask):
    log = START + "<12>[  200.0] said \x85" + xid(79) + "<12>[  201.0] and \u2028" + xid(79)
    reply = ask(XIDS, log, since=100.0)
    assert isinstance(reply, Answer), reply
    assert reply.result["found"] == []


@pytest.mark.parametrize(
    ("log", "more", "says"),
    [
        (None, {"since": 100.0}, "CAP_SYSLOG"),
        ("", {"since": 100.0}, "CAP_SYSLOG"),
        ("no times here\n", {"since": 100.0}, "no line with a time"),
        (START, {"since": None}, "when the run began"),
        (START, {"since": 100.0, "known": False}, "PCI address"),
        (
            START + xid(79, pci="PCI:3b"),
            {"since": 100.0},
            "GPU-1 at 0000:3b:00.0: the kernel's log",
        ),
        (START + "<3>[  200.000000] NVRM: Xid (PCI:0000:3b:00):\n", {"since": 100.0}, "not to be"),
    ],
)
def test_a_log_that_cannot_be_read_is_never_one_without_xids(ask, log, more, says):
    reply = ask(XIDS, log, **more)
    assert isinstance(reply, Raised), reply
    assert says in reply.message


def test_this_machines_own_log_is_read(pool, context):
    pool.add("w")
    reply = pool.run({"w": Call(call=CURSOR, args={}, context=context())}, deadline_s=20)["w"]
    if isinstance(reply, Raised):  # a container without the right to
        assert "CAP_SYSLOG" in reply.message
    else:
        assert isinstance(reply, Answer), reply
        assert reply.result["at"] > 0
