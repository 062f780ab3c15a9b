"""What the kernel knows of its own clock: where it counts, and how far it may be off."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass

from nodeproof.probes.tree import Tree, Unreadable

_SOURCE = "sys/devices/system/clocksource/clocksource0"
_STA_UNSYNC = 0x0040  # adjtimex(2)
_STA_NANO = 0x2000  # the offset is in nanoseconds, else microseconds
_TIME_ERROR = 5
_DAEMONS = frozenset({"chronyd", "ntpd", "ntpsec", "systemd-timesyncd", "ptp4l", "phc2sys"})
_COMM_BYTES = 15  # the kernel cuts names of processes there


class _Timex(ctypes.Structure):
    """`struct timex` of a 64-bit kernel, sys/timex.h."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("microseconds", ctypes.c_long),
        ("rest", ctypes.c_long * 22),  # more than the kernel writes
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """The state of the kernel's clock discipline. Containers share their machine's.

    `max_error_s` is the kernel's bound on the clock's error: a daemon that synchronises the clock
    sets it, and the kernel lets it grow by 500 ppm until 16 s, where it stays and means "unknown"
    (kernel/time/ntp.c). It tells a disciplined clock from a free one even where a daemon leaves
    the flag `unsynchronised` set.
    """

    unsynchronised: bool
    max_error_s: float
    estimated_error_s: float
    offset_s: float  # that the kernel still has to slew away
    daemons: tuple[str, ...]  # running; empty where other processes are hidden, as in a container


def sync(tree: Tree) -> Sync:
    """Ask adjtimex(2), reading only. Raises `Unreadable` where the call is refused."""
    timex = _Timex()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    if state < 0:
        why = os.strerror(ctypes.get_errno())
        raise Unreadable(f"adjtimex(2): {why}: allow the call in the sandbox's system call filter")
    return Sync(
        unsynchronised=state == _TIME_ERROR or bool(timex.status & _STA_UNSYNC),
        max_error_s=timex.maxerror / 1e6,
        estimated_error_s=timex.esterror / 1e6,
        offset_s=timex.offset / (1e9 if timex.status & _STA_NANO else 1e6),
        daemons=tuple(sorted(_running(tree))),
    )


def source(tree: Tree) -> str:
    """The clock source in use: "tsc", "kvm-clock", "arch_sys_counter". Raises `Unreadable`."""
    return tree.text(f"{_SOURCE}/current_clocksource")


def sources(tree: Tree) -> list[str]:
    """The clock sources to choose from. Raises `Unreadable`."""
    return tree.text(f"{_SOURCE}/available_clocksource").split()


def _running(tree: Tree) -> set[str]:
    short = {name[:_COMM_BYTES]: name for name in _DAEMONS}
    found = set()
    for pid in tree.names("proc"):
        if not pid.isdecimal():
            continue
        try:
            comm = tree.text(f"proc/{pid}/comm", keep=False)
        except Unreadable:  # it has ended since
            continue
        if comm in short:
            found.add(short[comm])
    return found
