"""What the kernel shows of a process that hangs or is gone."""

from __future__ import annotations

import signal
from pathlib import Path


def state(pid: int) -> str:
    """The kernel's letter for what a process does, `""` if it can't be read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "in uninterruptible sleep, as in a hung driver",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "dead",
}


def shown(pid: int) -> str:
    """What the kernel shows of a process: its state and where in the kernel it waits."""
    letter = state(pid)
    words = (
        f"the kernel shows it {_STATES.get(letter, letter)}" if letter else "the kernel hides it"
    )
    try:
        where = Path(f"/proc/{pid}/wchan").read_text().strip()
    except OSError:
        where = ""
    return f"{words} in {where}" if where not in {"", "0"} else words


def oom_kill_count() -> int:
    """How many processes the kernel has killed for memory since boot; -1 where it doesn't say."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass
    return -1


def death(who: str, code: int, *, oom_kills: int, log: Path) -> str:
    """Say how a process ended: by its status, by which signal, for want of memory.

    `code` is `Popen.returncode`, `oom_kills` what `oom_kill_count` gave while it lived, `log` what
    it printed.
    """
    if code >= 0:
        return f"{who} ended with status {code}{_last_words(log)}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    if -code == signal.SIGKILL:
        if 0 <= oom_kills < oom_kill_count():
            return f"{who} was killed ({name}): out of memory, as the kernel's oom_kill count shows"
        return f"{who} was killed ({name}) by somebody else; the kernel counts no lack of memory"
    return f"{who} was killed ({name}){_last_words(log)}"


def _last_words(log: Path) -> str:
    try:
        lines = log.read_bytes()[-2000:].decode("utf-8", "backslashreplace").strip().splitlines()
    except OSError:
        return ""
    return f"; its last words: {lines[-1][:300]}" if lines else ""
