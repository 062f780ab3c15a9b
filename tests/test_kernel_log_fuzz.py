"""Any bytes are a reading, never an exception; the fast search finds what a look at each line finds."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeproof.parsers import fabricmanager_log, journal_json, kernel_log, log_catalog
from nodeproof.parsers.log_scan import candidates

GRAVE = [
    "pcieport 0000:16:00.0: DPC: containment event, status:0x1f01 source:0x0000",
    "pcieport 0000:16:00.0: pciehp: Slot(12): Card not present",
    "nvidia 0000:3b:00.0: Unable to change power state from D3cold to D0, device inaccessible",
    "nvidia 0000:3b:00.0: can't change power state from D3cold to D0 (config space inaccessible)",
    "mce: Uncorrected hardware memory error in user-access at 5f8cd80",
    "Memory failure: 0x5f8: Sending SIGBUS to a:12 due to hardware memory corruption",
    "Kernel panic - not syncing: Fatal exception",
    "BUG: unable to handle page fault for address: ffff",
    "Oops: 0000 [#1] SMP PTI",
    "general protection fault, probably for non-canonical address 0xdead: 0000 [#1] PREEMPT SMP",
    "RIP: 0010:nv_x+0x1/0x2 [nvidia]",
    "RIP: 0010:do_idle+0x1/0x2",
    "kernel BUG at nvidia/nv.c:12!",
    "BUG: workqueue lockup - pool cpus=0 node=0 flags=0x0 nice=0 stuck for 31s!",
    "nvidia-uvm: uvm encountered global fatal error 0x60, requiring os reboot to recover.",
    "infiniband efa_0: The device didn't send any completion for admin cmd CREATE_QP(1) status 0",
    "nvidia-nvswitch3: SXid (0000:c8:00.0): 24007, Fatal, Link 44",
]

TEXTS = [path.read_bytes() for path in sorted((Path(__file__).parent / "field/kernel").iterdir())]
# What the texts of the field do not have, so that the search is tried on it too.
TEXTS += [f"[{n}.000000] {line}\n".encode() for n, line in enumerate(GRAVE)]
READERS = [kernel_log.read, journal_json.read, fabricmanager_log.read]
CONTEXT = {"data_nics": ["0000:1a:00.0"], "node": "gpu-node-1", "test_process": "a"}


def shown(data):
    """Read by all readers; each reading has to be printable as JSON."""
    for read in READERS:
        got = read(data, CONTEXT)
        assert got.why
        json.dumps(dict(got.fields), ensure_ascii=False, allow_nan=False).encode()


@given(st.binary(max_size=400))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_a_reading(data):
    shown(data)


PIECES = sorted(
    {piece for text in TEXTS for piece in re.findall(rb"[A-Za-z_]+|\d+|[^A-Za-z_\d]", text)}
)


@given(st.lists(st.sampled_from(PIECES), max_size=60).map(b"".join))
@settings(max_examples=100, deadline=None)
def test_any_pieces_of_logs_are_a_reading(data):
    shown(data)


def mutated(draw):
    """A text of ours with a few bytes, lines or pieces changed."""
    data = bytearray(draw.choice(TEXTS))
    for _ in range(draw.randrange(1, 6)):
        at, what = draw.randrange(len(data) + 1), draw.randrange(6)
        if what == 0:
            data[at : at + 1] = bytes([draw.randrange(256)])
        elif what == 1:
            del data[at : at + draw.randrange(1, 40)]
        elif what == 2:
            data[at:at] = draw.choice(PIECES) * draw.randrange(1, 4)
        elif what == 3:
            data[at:at] = b"9" * draw.randrange(1, 400)
        elif what == 4:
            lines = data.split(b"\n")
            draw.shuffle(lines)
            data = bytearray(b"\n".join(lines))
        else:
            other = draw.choice(TEXTS)
            data[at:at] = other[draw.randrange(len(other)) :][:300]
    return bytes(data)


def test_changed_logs_are_a_reading():
    draw = random.Random(4)
    for _ in range(300):
        shown(mutated(draw))


@pytest.mark.long
def test_a_million_changed_logs_are_a_reading():
    draw = random.Random(5)
    for _ in range(1_000_000):
        shown(mutated(draw))


def by_looking_at_each_line(data):
    lines, place = [], 0
    for raw in data.split(b"\n"):
        lines += kernel_log.physical(data, place, raw)
        place += len(raw) + 1
    return kernel_log.understood(lines, log_catalog.shipped())


def test_the_search_finds_what_a_look_at_each_line_finds():
    draw = random.Random(6)
    lines = [line for text in TEXTS for line in text.split(b"\n")]
    some = [b"\n".join(draw.choices(lines, k=draw.randrange(1, 60))) for _ in range(200)]
    for data in [*TEXTS, *some]:
        found = kernel_log.understood(kernel_log.lines(data), log_catalog.shipped())
        each = by_looking_at_each_line(data)
        # A killed task is looked for beside the line that says why, and not all over the log.
        assert found == replace(each, victims=found.victims), data


def test_the_search_crosses_its_blocks():
    harmless = b"[    1.000000] usb 1-1: new high-speed USB device number 2 using xhci_hcd\n"
    fault = b"[    2.000000] NVRM: Xid (PCI:0000:3b:00): 79, lost\n"
    for before in range(850, 930):  # the first block ends among these lines
        data = harmless * before + fault + harmless * 900 + fault
        places = [len(harmless) * before, len(data) - len(fault)]
        assert candidates(data) == [(place, fault[:-1]) for place in places]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_longer_than_a_block_hides_none(end):
    fault = b"NVRM: Xid (PCI:0000:3b:00): 79, lost"
    data = b"x" * 200_000 + b"\n" + fault + end
    assert candidates(data) == [(200_001, fault)]


@pytest.mark.parametrize(
    "work", ["NVRM: ", "Xid (", "abort ", "fatal ", "0000:3b:00", "[1.0] ", "oom "]
)
def test_a_line_that_repeats_itself_is_read_once(work):
    """A reader whose cost grows by the square of a line's length would not end in the time of a test."""
    shown(b"NVRM: Xid (PCI:0000:3b:00): 79, " + work.encode() * 400_000)
