"""Finds the few lines of a log that can matter, without looking at each.

Nearly all that the kernel writes of a fault holds capitals (`NVRM`, `AER`, `BUG:`) or characters
that are rare otherwise. A copy of the text with nothing but these and the line ends is made at the
speed of a search, is a fraction of the text, and so can be searched for many signs at little cost.
What has no sign is searched for in the text itself, by words long enough to be fast.

A sign says that a line may matter; `MATTERS` then decides, and the readers after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate

_KEPT = b"ABCDEFGHIJKLMNOPQRSTUVWXYZxy5_]+-*\n"
_DROPPED = bytes(set(range(256)) - set(_KEPT))
# What the copy has of each sign: no letter that is kept stands between these in the text.
_SIGNS = (
    b"NVRM",
    b"SX",  # SXid (PCI:
    b"AER",
    b"PCIBE",  # PCIe Bus Error
    b"DPC",  # DPC: containment event
    b"UDD",  # Unable to change power state from D3cold to D0
    b"]DD",  # [stamp] ... can't change power state from D3cold to D0
    b"-x",  # nvidia-uvm: uvm encountered global fatal error 0x60
    b"SC",  # pciehp: Slot(12): Card not present
    b"GPCI",  # 252.0 Gb/s available PCIe bandwidth
    b"HE]",  # [Hardware Error]
    b"EDACMC",
    b"x5_",  # mlx5_core
    b"NETDEVWATCHDOG",
    b"INFO",
    b"BUG",  # BUG: soft lockup - CPU#1, kernel BUG at
    b"LOCKUP",
    b"yK",  # Out of memory: Killed process
    b"y_",  # Unknown symbol ib_register_device
    b"SMP_",  # version magic of a module: SMP preempt mod_unload
    b"CONSTRAINT",  # oom-kill:constraint=CONSTRAINT_NONE
    b"----]----",  # the mark at which a report of the kernel begins
    b"Uy-",  # Uncorrected hardware memory error in user-access
    b"My",  # Memory failure: 0x5f8
    b"K-y",  # Kernel panic - not syncing
    b"]SMP",  # Oops: 0000 [#1] SMP
    b"]PREEMPT",  # the same of another kernel
    b"_Ty",  # infiniband efa_0: The device didn't send any completion
    b"_TM",  # ... driver didn't receive a MSI-X interrupt
    b"B]",  # [81B blob data]
    b"K]",  # [1.2K blob data]
    b"]M",  # systemd-journald[811]: Missed 812 kernel messages
    b"-M",  # the same without its number
    b"-B-B-",  # oom_reaper: reaped process 1 (a), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB
    b"**",  # ** 127 printk messages dropped **
    b"MESSAGE",  # of the journal as JSON: "MESSAGE" : [78, 86], or null
    b"+x",  # a frame of a stack: name+0x1f/0x40
)
_WORDS = (b"failed with error -", b"Killed process ")
MATTERS = re.compile(
    rb"NVRM|SXid|AER: |PCIe Bus Error|available PCIe bandwidth, limited"
    rb"|\[Hardware Error\]|EDAC MC|mlx5_|NETDEV WATCHDOG|blocked |soft lockup|LOCKUP"
    rb"|INFO: rcu|[Oo]ut of memory|oom-kill|Killed process|Unknown symbol|about version of|version magic|failed with error -"
    rb"|DPC: |Card not present|inaccessible|global fatal error|memory error in user|Memory failure: 0x"
    rb"|Memory error not|Kernel panic - |BUG: |kernel BUG at |\[#\d+\]|RIP: \d|pc : "
    rb"|infiniband efa_\d+: The device|INFO: task|oom_reaper: reaped"
    rb"|[BKMGTPE] blob data\]|printk messages dropped|Missed \d+ kernel messages"
    rb'|"MESSAGE"\s{0,3}:\s{0,3}(?:\[|null)'
    rb"|\[ cut here \]|\+0x[0-9a-f]+/0x[0-9a-f]+ \["
)
# Lines whose meaning the lines before and behind them decide: whose report it is, whether a switch
# was starting, who was killed.
_MARK = re.compile(rb"\[ cut here \]|\): 22013,|ut of memory: Kill")
_AROUND = 3
_BLOCK = 1 << 16  # bytes: what is searched again and again stays in the cache


def candidates(data: bytes) -> list[tuple[int, bytes]]:
    """Return the lines that can matter, each with the byte at which it begins, in order."""
    places: dict[int, bytes] = {}
    start, size = 0, len(data)
    while start < size:
        end = data.rfind(b"\n", start, start + _BLOCK) + 1
        if end <= start or start + _BLOCK >= size:
            end = data.find(b"\n", min(start + _BLOCK, size) - 1) + 1 or size
        block = data[start:end]
        if numbers := _marked(block):
            lines = block.split(b"\n")
            begins = list(accumulate((len(line) + 1 for line in lines), initial=start))
            for number in numbers:
                if MATTERS.search(lines[number]):
                    places[begins[number]] = lines[number]
                    if _MARK.search(lines[number]):
                        places.update(_neighbours(data, begins[number]))
        start = end
    if size and not data.endswith(b"\n"):  # a line without its end may be cut in what tells a fault
        last = data.rfind(b"\n") + 1
        places[last] = data[last:]
    return sorted(places.items())


def _marked(block: bytes) -> set[int]:
    copy = block.translate(None, _DROPPED)
    numbers: set[int] = set()
    for sign in _SIGNS:
        if sign in copy:
            numbers.update(_numbers(copy, sign))
    for word in _WORDS:
        if word in block:
            numbers.update(_numbers(block, word))
    return numbers


def _numbers(text: bytes, sign: bytes) -> Iterator[int]:
    """Yield the numbers of the lines that hold the sign, from 0."""
    where, number, counted = text.find(sign), 0, 0
    while where >= 0:
        number += text.count(b"\n", counted, where)
        counted = where
        yield number
        following = text.find(b"\n", where)
        where = text.find(sign, following) if following >= 0 else -1


def _neighbours(data: bytes, begin: int) -> Iterator[tuple[int, bytes]]:
    place = begin
    for _ in range(_AROUND):
        if place <= 0:
            break
        end = place - 1
        place = data.rfind(b"\n", 0, end) + 1
        yield place, data[place:end]
    place = begin
    for _ in range(_AROUND):
        following = data.find(b"\n", place) + 1
        if not following:
            break
        place = following
        end = data.find(b"\n", place)
        yield place, data[place : end if end >= 0 else len(data)]
