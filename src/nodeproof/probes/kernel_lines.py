"""What every source of the kernel's log is brought to: lines with level and time, and how far back."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from nodeproof.probes.tree import Unreadable

_AT_BOOT_S = 1.0  # the kernel stamps its first lines with zero
# What it says first on every boot (init/main.c, start_kernel: linux_banner), in a line of its own
# facility: a program can't write one, and a sandbox that makes up a log has another beginning.
_BOOTED = re.compile(r"^<[0-7]>\[ *0\.\d{1,9}\](?:\[ *[TC]\d+\])? Linux version ", re.MULTILINE)
# What Python takes for the end of a line and the kernel doesn't: with one of these, a part of a
# message could pass for a line of the kernel's own.
_BREAKS = {ord(c): f"\\x{ord(c):02x}" for c in "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"}
_STAMPED = re.compile(r"^<\d+>\[\s*(\d{1,12}\.\d{1,9})\]", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """The kernel's log as one source has it.

    `text` has lines of the form `<priority>[seconds] message`: the priority of syslog(2), whose
    facility is 0 for the kernel alone, and the kernel's clock since boot. `complete`: it has the
    line with which the kernel begins a boot. `unreadable` counts messages that are there and can't
    be shown, `damaged` parts of the source of which nobody can say what was in them: such a log can
    show a fault and can't show that there is none. `notes` say all that in words.
    """

    text: str
    source: str
    first_at: float
    last_at: float
    complete: bool
    unreadable: int = 0
    damaged: int = 0
    notes: tuple[str, ...] = ()

    @property
    def strange(self) -> bool:
        """Whether it goes back to the first second and does not have what the kernel says there.

        Its times are then no proof of anything: a sandbox may have made it up.
        """
        return self.first_at < _AT_BOOT_S and not self.complete

    def reaches(self, at: float) -> bool:
        """Whether the log begins no later than `at`, or with the boot."""
        return self.complete or (self.first_at <= at and not self.strange)


def stamped(
    text: str,
    source: str,
    *,
    unreadable: int = 0,
    damaged: int = 0,
    notes: tuple[str, ...] = (),
) -> Log:
    """Lines as a `Log`. Raises `Unreadable` where none has a time: nothing was read then."""
    text = text.replace("\r\n", "\n").translate(_BREAKS)
    times = [float(at) for at in _STAMPED.findall(text)]
    if not times:
        raise Unreadable(
            f"the kernel's log by {source} has no line with a time: it was cleared (dmesg --clear), "
            "or the kernel was started with printk.time=0"
        )
    return Log(
        text=text,
        source=source,
        first_at=min(times),
        last_at=max(times),
        complete=_BOOTED.search(text) is not None,
        unreadable=unreadable,
        damaged=damaged,
        notes=notes,
    )


def lines_of(priority: int, at: float, message: str) -> str:
    """One record as lines, each with its prefix, so that no line can pass for another's."""
    prefix = f"<{priority}>[{at:12.6f}] "
    return "".join(f"{prefix}{line}\n" for line in message.removesuffix("\n").split("\n"))


def extended(log: Log, older: Log) -> Log:
    """`log` with what `older` has from before it. Unchanged where `older` reaches no further.

    Damage to `older` counts with the rest: what was in it may be of that time. A log that is
    `strange` stands in nobody's way: `older` goes in its stead, with its lines besides.
    """
    if log.strange:
        return _besides(older, log)
    if older.first_at >= log.first_at:
        return log
    kept = []
    for line in older.text.splitlines(keepends=True):
        found = _STAMPED.match(line)
        if found and float(found[1]) < log.first_at:
            kept.append(line)
    return replace(
        log,
        text="".join(kept) + log.text,
        source=f"{older.source}, then {log.source}",
        first_at=older.first_at,
        complete=older.complete,
        unreadable=log.unreadable + older.unreadable,
        damaged=log.damaged + older.damaged,
        notes=(*log.notes, *older.notes),
    )


def _besides(log: Log, strange: Log) -> Log:
    """`log` with the lines that `strange` alone has: they may show a fault, and nothing else.

    Where the log ends is said by `log`, so that what came after counts as new.
    """
    own = log.text.splitlines(keepends=True)
    known = set(own)
    note = (
        f"{strange.source} has lines of the first second and not those of a kernel's start: it is a "
        "sandbox's invention, or has lost its beginning"
    )
    more = [line for line in strange.text.splitlines(keepends=True) if line not in known]
    return replace(
        log,
        text="".join(sorted(own + more, key=_at)),
        source=f"{log.source}, with {strange.source}",
        unreadable=log.unreadable + strange.unreadable,
        damaged=log.damaged + strange.damaged,
        notes=(*log.notes, *strange.notes, note),
    )


def _at(line: str) -> float:
    found = _STAMPED.match(line)
    return float(found[1]) if found else 0.0
