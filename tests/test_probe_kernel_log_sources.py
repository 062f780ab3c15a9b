"""Where the kernel's log is read, in which order, and what becomes of it where nobody may."""

from __future__ import annotations

import lzma
import os
import time

import pytest

from conftest import TESTS
from nodeproof.child import Answer, Call, Pool, Raised
from nodeproof.probes import kmsg, log_files
from nodeproof.probes.kernel_lines import extended, stamped
from nodeproof.probes.tree import Unreadable
from tests.standin.build import build

CURSOR = "nodeproof.probes.kernel_log:cursor"
XIDS = "nodeproof.probes.kernel_log:xids"
BOOT = "11112222-3333-4444-5555-666677778888"
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus."
GPU = "0000:3b:00.0"
FIRST = "<5>[    0.000000] Linux version 6.8.0\n"
# What a sandbox gives for the kernel's log: google/gvisor, pkg/sentry/kernel/syslog.go.
SANDBOX = "<6>[    0.000000] Starting gVisor...\n<6>[    0.354495] Daemonizing children...\n"
RECORDS = (
    "5,0,0,-;Linux version 6.8.0\n"
    "6,1,1000000,-,caller=T1;pci 0000:3b:00.0: found\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n"
    f"3,2,20500000,-;{XID}\n"
    "12,3,21000000,-;said \\x0aNVRM: Xid (PCI:0000:3b:00): 48, forged \\xc3\\xa9\\x5c\n"
)


def plain(text, at=0.0, level=6):
    return f"<{level}>[{at:12.6f}] {text}\n"


@pytest.fixture
def root(tmp_path):
    """A node's root without any log."""
    node = tmp_path / "root"
    (node / "proc/sys/kernel/random").mkdir(parents=True)
    (node / "proc/sys/kernel/random/boot_id").write_text(BOOT)
    (node / "proc/stat").write_text("cpu 1 2 3\nbtime 1700000000\n")
    (node / "dev").mkdir()
    (node / "var/log").mkdir(parents=True)
    return node


# --- /dev/kmsg -------------------------------------------------------------------------------


def test_records_of_kmsg_are_the_lines_that_syslog_gives(root):
    (root / "dev/kmsg").write_text(RECORDS)
    log = kmsg.read(root)
    assert log.text == (
        plain("Linux version 6.8.0", level=5)
        + plain("pci 0000:3b:00.0: found", 1.0)
        + plain(XID, 20.5, 3)
        + plain("said ", 21.0, 12)
        + plain("NVRM: Xid (PCI:0000:3b:00): 48, forged é\\", 21.0, 12)
    )
    assert (log.first_at, log.last_at, log.complete) == (0.0, 21.0, True)
    assert (log.notes, log.unreadable) == ((), 0)


def test_records_that_were_overwritten_meanwhile_are_damage(root):
    (root / "dev/kmsg").write_text("6,5,9000000,-;a\n6,9,9500000,-;b\n")
    log = kmsg.read(root)
    assert "3 records were overwritten" in log.notes[0]
    assert (log.complete, log.damaged) == (False, 1)


def test_a_record_that_is_none_is_counted(root):
    (root / "dev/kmsg").write_text("6,0,0,-;a\nrubbish\n6,x,1,-;b\n")
    assert kmsg.read(root).unreadable == 2


@pytest.mark.parametrize("content", ["", " KEY=value\n", "rubbish\n"])
def test_a_kmsg_without_records_is_no_log_without_faults(root, content):
    (root / "dev/kmsg").write_text(content)
    with pytest.raises(Unreadable, match=r"mount the node's /dev/kmsg"):
        kmsg.read(root)


def test_a_kmsg_that_is_not_there_says_what_to_mount(root):
    with pytest.raises(Unreadable, match=r"dev/kmsg: No such file.*CAP_SYSLOG"):
        kmsg.read(root)


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    """A worker whose syslog(2) gives the file `ring` of a folder, and whose kmsg is one there."""
    folder = tmp_path_factory.mktemp("node")
    libraries = [build(f"{name}.c", folder / f"{name}.so") for name in ("klogctl", "kmsg")]
    environment = {
        "LD_PRELOAD": " ".join(map(str, libraries)),
        "STANDIN_LOG": str(folder / "ring"),
        "STANDIN_KMSG": str(folder / "kmsg"),
    }
    pool = Pool(ends=time.monotonic() + 300, logs=folder, listen=lambda *_: None)
    pool.add("w", environment)
    yield pool, folder
    pool.close(grace_s=0.5)


@pytest.fixture
def ask(worker, context, root):
    """Ask on a node; `ring` is what syslog(2) gives, None where it may not be asked."""
    pool, folder = worker

    def asked(call=CURSOR, ring=None, **args):
        for name in ("ring", "kmsg"):
            (folder / name).unlink(missing_ok=True)
        if ring is not None:
            (folder / "ring").write_text(ring)
        if (root / "dev/kmsg").exists():
            (folder / "kmsg").hardlink_to(root / "dev/kmsg")
        own = context(device_id="GPU-1", facts={"pci": GPU}, host_root=str(root))
        return pool.run({"w": Call(call=call, args=args, context=own)}, deadline_s=20)["w"]

    return asked


def test_a_reader_that_was_overtaken_goes_on_behind_the_gap(ask, root):
    (root / "dev/kmsg").write_text("5,0,0,-;first\nEPIPE\n3,40,20000000,-;" + XID + "\n")
    reply = ask(XIDS, since=1.0)
    assert isinstance(reply, Answer), reply
    assert [x["code"] for x in reply.result["found"]] == [79]
    assert reply.result["source"] == str(root / "dev/kmsg")


def test_a_kmsg_that_fails_in_the_middle_is_unreadable(ask, root):
    (root / "dev/kmsg").write_text("5,0,0,-;first\nEIO\n")
    reply = ask()
    assert isinstance(reply, Raised), reply
    assert "Input/output error" in reply.message


# --- text files ------------------------------------------------------------------------------


def old(at, text, host="gpu-node-7"):
    return f"Mar  3 10:20:30 {host} kernel: [{at:12.6f}] {text}\n"


def new(at, text):
    return f"2026-03-03T10:20:30.123456+00:00 gpu-node-7 kernel: [{at:12.6f}] {text}\n"


@pytest.mark.parametrize("line", [old, new])
@pytest.mark.parametrize("name", ["kern.log", "messages", "syslog"])
def test_of_a_text_file_the_kernels_lines_of_this_boot_are_taken(root, line, name):
    (root / "var/log" / name).write_text(
        line(0.0, "Linux version 6.8.0")
        + line(900.0, XID)
        + line(0.0, "Linux version 6.8.1")
        + f"Mar  3 10:20:31 gpu-node-7 watcher[7]: kernel: [ 3.0] {XID}\n"
        + line(4.0, "usb: ready")
    )
    log = log_files.read(root)
    assert log.text == plain("Linux version 6.8.1", 0.0, 4) + plain("usb: ready", 4.0, 4)
    assert log.complete is True


def test_a_boot_without_its_first_line_is_seen_by_its_clock(root):
    (root / "var/log/kern.log").write_text(old(900.0, XID) + old(5.0, "usb: ready"))
    log = log_files.read(root)
    assert (log.first_at, log.complete) == (5.0, False)
    assert "Xid" not in log.text


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (old(900.0, XID) + old(901.0, "more"), "can't be told from those of an older one"),
        ("Mar  3 10:20:30 n kernel: Linux version 6\n", "do not have the kernel's clock"),
        ("Mar  3 10:20:30 n sshd[3]: hello\n", "no line of the kernel"),
        ("", "no line of the kernel"),
    ],
)
def test_a_text_file_that_does_not_show_this_boot_is_refused(root, content, says):
    (root / "var/log/kern.log").write_text(content)
    with pytest.raises(Unreadable, match=says):
        log_files.read(root)


def test_a_text_file_from_before_this_boot_is_refused(root):
    file = root / "var/log/kern.log"
    file.write_text(old(0.0, "Linux version 6.8.0") + old(900.0, XID))
    os.utime(file, (1600000000, 1600000000))
    with pytest.raises(Unreadable, match=r"nothing was written to it since this boot"):
        log_files.read(root)


# --- together --------------------------------------------------------------------------------


def test_the_kernels_own_call_is_asked_first_and_alone_if_it_reaches_back(ask, root):
    (root / "dev/kmsg").write_text(RECORDS)
    reply = ask(XIDS, plain("Linux version 6.8.0") + plain(XID, 30.0, 3), since=1.0)
    assert isinstance(reply, Answer), reply
    assert [x["at"] for x in reply.result["found"]] == [30.0]
    assert reply.result["source"] == "syslog(2)"


def test_lines_that_were_cleared_for_one_source_are_had_from_the_next(ask, root):
    """`dmesg --clear` hides what was logged from syslog(2), and not from /dev/kmsg."""
    (root / "dev/kmsg").write_text(RECORDS + "6,4,30000000,-;usb: after\n")
    reply = ask(XIDS, plain("usb: after", 30.0), since=1.0)
    assert isinstance(reply, Answer), reply
    assert [x["at"] for x in reply.result["found"]] == [20.5]
    assert reply.result["reaches_back"] is True
    assert reply.result["source"] == f"{root}/dev/kmsg, then syslog(2)"


def test_without_a_right_but_that_of_files_the_journal_is_read(ask, root):
    folder = root / "var/log/journal/3d1219c7c4c5404aaa1f6d2a48adfda4"
    folder.mkdir(parents=True)
    packed = (TESTS / "journals/wide.journal.xz").read_bytes()
    (folder / "system.journal").write_bytes(lzma.decompress(packed))
    reply = ask(XIDS, since=1.0)
    assert isinstance(reply, Answer), reply
    assert [(x["code"], x["at"]) for x in reply.result["found"]] == [(48, 30.123456)]
    assert "journal" in reply.result["source"]


def test_without_a_journal_the_text_files_are_read(ask, root):
    (root / "var/log/kern.log").write_text(old(0.0, "Linux version 6") + old(7.0, XID))
    reply = ask(XIDS, since=1.0)
    assert isinstance(reply, Answer), reply
    assert [x["at"] for x in reply.result["found"]] == [7.0]


def test_where_no_source_can_be_read_all_refusals_are_told(ask, root):
    reply = ask()
    assert isinstance(reply, Raised), reply
    assert reply.cause == "environment"
    for said in ("CAP_SYSLOG", "dev/kmsg", "/var/log/journal", "kern.log", "messages"):
        assert said in reply.message


def test_what_is_put_in_front_ends_where_the_log_begins():
    ring = stamped(plain("c", 9.0) + plain("d", 10.0), "syslog(2)")
    older = stamped(FIRST + plain("b", 8.0) + plain("c", 9.0) + plain("x", 9.5), "j")
    whole = extended(ring, older)
    assert whole.text == FIRST + plain("b", 8.0) + plain("c", 9.0) + plain("d", 10.0)
    assert (whole.first_at, whole.last_at, whole.complete) == (0.0, 10.0, True)
    assert extended(ring, stamped(plain("c", 9.0), "j")) == ring
    assert extended(ring, stamped(plain("a", 0.0), "j", damaged=2)).damaged == 2


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        (FIRST, True),
        (FIRST.replace("] ", "][    T0] "), True),
        (plain("microcode: updated early") + FIRST, True),
        (SANDBOX, False),
        (plain("Linux version 6.8.0", 0.5, level=14), False),  # of a program
        (plain("Linux version 6.8.0", 40.0), False),  # a guest's, or anybody's
        (plain("said: Linux version 6.8.0"), False),
    ],
    ids=["first", "with its caller", "not the first", "sandbox", "program", "late", "quoted"],
)
def test_a_log_is_whole_by_the_kernels_first_line_alone(text, complete):
    log = stamped(text + plain("usb: ready", 41.0), "syslog(2)")
    assert log.complete is complete
    assert log.reaches(50.0) is (complete or log.first_at >= 1.0)


def test_an_invented_log_does_not_keep_the_next_source_from_being_read(ask, root):
    (root / "dev/kmsg").write_text(RECORDS)
    assert ask(CURSOR, SANDBOX).result == {
        "at": 21.0,
        "source": f"{root}/dev/kmsg, with syslog(2)",
    }
    told = ask(XIDS, SANDBOX, since=1.0).result
    assert [x["at"] for x in told["found"]] == [20.5]
    assert told["reaches_back"] is True


def test_an_invented_log_alone_reaches_back_to_nothing(ask):
    assert ask(XIDS, SANDBOX, since=0.354495).result["reaches_back"] is False


def test_of_an_invented_log_the_lines_that_it_alone_has_are_kept():
    strange = stamped(plain("bios", 0.0) + plain(XID, 30.0, 3), "syslog(2)", unreadable=1)
    journal = stamped(plain("bios", 0.0) + plain("b", 8.0), "j", damaged=1)
    for log in (journal, stamped(plain("b", 8.0), "j", damaged=1)):
        both = extended(strange, log)
        assert both.text == plain("bios", 0.0) + plain("b", 8.0) + plain(XID, 30.0, 3)
        assert (both.first_at, both.last_at) == (log.first_at, 8.0)
        assert (both.complete, both.unreadable, both.damaged) == (False, 1, 1)
        assert "sandbox" in both.notes[-1]
