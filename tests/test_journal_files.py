"""The journal's binary files, made by systemd 252 from `journals/kernel.export`.

By systemd-journal-remote, as `compact` (compact, keyed hashes, long fields compressed by ZSTD) and
as `wide` (none of these); the text that they were made from is the witness of what is in them.
"""

from __future__ import annotations

import lzma
import os
import random
import struct
import time

import pytest

from conftest import TESTS
from nodeproof.probes import journal_files
from nodeproof.probes.journal_format import Compressed, Damaged, Journal
from nodeproof.probes.tree import Unreadable

JOURNALS = TESTS / "journals"
BOOT = "11112222-3333-4444-5555-666677778888"
MACHINE = "3d1219c7c4c5404aaa1f6d2a48adfda4"
OLD = "pid=1, name=old"  # a GPU that was lost in the boot before
LONG = "register 004f"  # the end of the only long message


def exported(content):
    """The records of a text in the journal's export format, as dictionaries of bytes."""
    records, record, at = [], {}, 0
    while at < len(content):
        end = content.index(b"\n", at)
        line = content[at:end]
        at = end + 1
        if not line:
            records.append(record)
            record = {}
        elif b"=" in line:
            name, _, value = line.partition(b"=")
            record[name.decode()] = value
        else:  # its length and then its bytes
            (length,) = struct.unpack_from("<Q", content, at)
            record[line.decode()] = content[at + 8 : at + 8 + length]
            at += 8 + length + 1
    return records


def wanted():
    """The lines of the kernel in this boot, from the text."""
    lines = []
    for r in exported((JOURNALS / "kernel.export").read_bytes()):
        if r["_TRANSPORT"] != b"kernel" or r["_BOOT_ID"].decode() != BOOT.replace("-", ""):
            continue
        priority = int(r["SYSLOG_FACILITY"]) * 8 + int(r["PRIORITY"])
        at = int(r["_SOURCE_MONOTONIC_TIMESTAMP"]) / 1e6
        message = r["MESSAGE"].decode("utf-8", "backslashreplace")
        lines += [f"<{priority}>[{at:12.6f}] {line}" for line in message.split("\n")]
    return lines


@pytest.fixture(scope="session")
def journals():
    return {
        name: lzma.decompress((JOURNALS / f"{name}.journal.xz").read_bytes())
        for name in ("compact", "wide")
    }


@pytest.fixture
def node(tmp_path):
    """A node's root; call it to put a journal's bytes there."""
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text(BOOT + "\n")

    def put(content, place="var/log/journal", name="system.journal", machine=MACHINE):
        folder = tmp_path / place / machine
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        return tmp_path

    put.root = tmp_path
    return put


@pytest.mark.parametrize("place", ["var/log/journal", "run/log/journal"])
def test_all_lines_of_the_kernel_in_this_boot_are_read_and_no_other(node, journals, place):
    log = journal_files.read(node(journals["wide"], place))
    assert log.text.splitlines() == wanted()
    assert (log.first_at, log.last_at, log.complete) == (0.0, 34.0, True)
    assert (log.unreadable, log.damaged, log.notes) == (0, 0, ())
    assert OLD not in log.text


def test_what_a_program_wrote_keeps_the_facility_of_programs_on_each_of_its_lines(node, journals):
    lines = journal_files.read(node(journals["wide"])).text.splitlines()
    assert [line[:4] for line in lines if "forged" in line] == ["<12>"]
    assert not any("quoted" in line for line in lines)


def test_a_message_that_cannot_be_decompressed_is_counted_and_not_dropped(node, journals):
    log = journal_files.read(node(journals["compact"]))
    lines, due = log.text.splitlines(), wanted()
    (at,) = [i for i, line in enumerate(due) if LONG in line]
    assert lines[:at] + lines[at + 1 :] == due[:at] + due[at + 1 :]
    assert "compressed by ZSTD" in lines[at]
    assert lines[at].startswith(due[at][:18])  # with its level and time
    assert (log.unreadable, log.damaged) == (1, 0)
    assert "1 messages are compressed by ZSTD" in log.notes[0]


def test_a_message_compressed_by_xz_is_read(node, journals):
    content = bytearray(journals["wide"])
    at = content.index(b"MESSAGE=NVRM: register")
    head = at - 64
    size = struct.unpack_from("<Q", content, head + 8)[0] - 64
    packed = lzma.compress(bytes(content[at : at + size]), check=lzma.CHECK_NONE)
    assert len(packed) < size
    content[at : at + len(packed)] = packed
    content[head + 1] = 1
    struct.pack_into("<Q", content, head + 8, 64 + len(packed))
    assert journal_files.read(node(bytes(content))).text.splitlines() == wanted()
    content[at + 30] ^= 255
    log = journal_files.read(node(bytes(content)))
    assert len(log.text.splitlines()) == len(wanted()) - 1
    assert "1 entries are damaged" in log.notes[0]
    assert log.damaged == 1


def test_a_record_in_two_files_is_one(node, journals):
    node(journals["wide"], name="system@0001-0002.journal")
    node(journals["wide"], name="system@0003.journal~")
    log = journal_files.read(node(journals["wide"], "run/log/journal"))
    assert log.text.splitlines() == wanted()


def test_journals_of_users_and_namespaces_are_not_the_kernels(node, journals):
    root = node(journals["wide"], name="user-1000.journal")
    with pytest.raises(Unreadable, match=r"there is none in /var/log/journal"):
        journal_files.read(root)


def test_a_journal_of_other_boots_alone_is_no_log_without_faults(node, journals):
    root = node(journals["wide"])
    (root / "proc/sys/kernel/random/boot_id").write_text(BOOT.replace("1111", "9999"))
    with pytest.raises(Unreadable, match=r"1 files have no line of the kernel of this boot"):
        journal_files.read(root)


@pytest.mark.parametrize("text", [None, "", "unknown", "1111"])
def test_without_the_id_of_this_boot_nothing_is_taken(node, journals, text):
    root = node(journals["wide"])
    file = root / "proc/sys/kernel/random/boot_id"
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(Unreadable, match=r"which boot"):
        journal_files.read(root)


@pytest.mark.parametrize("length", [0, 7, 8, 183, 184, 5000])
def test_a_file_cut_before_its_entries_is_unreadable_and_named(node, journals, length):
    root = node(journals["wide"][:length])
    with pytest.raises(Unreadable, match=r"system\.journal: "):
        journal_files.read(root)


def test_of_a_file_cut_in_the_middle_the_rest_is_read_and_it_says_so(node, journals):
    content = journals["wide"]
    log = journal_files.read(node(content[: content.index(b"MESSAGE=mlx5_core") - 100]))
    assert log.text.splitlines() == wanted()[: log.text.count("\n")]
    assert 0 < log.text.count("\n") < len(wanted())
    assert log.damaged > 1
    assert "cut short" in " ".join(log.notes)
    assert "entries are damaged" in " ".join(log.notes)


def test_one_damaged_file_beside_a_sound_one_is_named(node, journals):
    node(b"LPKSHHRH rubbish", name="system@0001.journal")
    log = journal_files.read(node(journals["wide"]))
    assert log.text.splitlines() == wanted()
    assert "system@0001.journal" in log.notes[0]
    assert log.damaged == 1


def test_a_feature_of_a_later_format_is_refused_and_not_guessed_at(node, journals):
    content = bytearray(journals["wide"])
    struct.pack_into("<I", content, 12, 1 << 5)
    with pytest.raises(Unreadable, match=r"features that are not known"):
        journal_files.read(node(bytes(content)))


def test_a_file_that_cannot_be_read_is_named(node):
    (node.root / "var/log/journal" / MACHINE / "system.journal").mkdir(parents=True)
    with pytest.raises(Unreadable, match=r"system\.journal: Is a directory"):
        journal_files.read(node.root)


@pytest.mark.parametrize("name", ["compact", "wide"])
def test_no_damage_hangs_the_reader_or_raises_what_is_not_its_own(journals, tmp_path, name):
    """Any byte of what is not empty may be wrong; the reader ends, with what it has or a refusal."""
    content = journals[name]
    used = [i for i, byte in enumerate(content) if byte]
    draw = random.Random(f"{name} 7")
    path = tmp_path / "system.journal"
    path.write_bytes(content)
    ends = time.monotonic() + 20
    with path.open("r+b", buffering=0) as file:
        for _ in range(400):
            places = draw.sample(used, draw.choice((1, 1, 1, 8)))
            for place in places:
                os.pwrite(file.fileno(), bytes([draw.randrange(256)]), place)
            read_all(file.fileno())
            for place in places:
                os.pwrite(file.fileno(), content[place : place + 1], place)
            assert time.monotonic() < ends
        assert read_all(file.fileno()) == 49


def read_all(descriptor):
    """How many entries of the kernel can be read in all boots."""
    found = 0
    try:
        journal = Journal(descriptor)
        for offset in journal.entries_with(b"_TRANSPORT", b"kernel"):
            try:
                for item in journal.entry(offset).items:
                    journal.data(item)
                found += 1
            except Compressed:
                found += 1
            except Damaged:
                pass
    except Damaged:
        pass
    return found
