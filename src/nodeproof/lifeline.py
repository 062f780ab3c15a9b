"""Leave nothing running: processes that end with their parent, and a parent that finds orphans."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def end_with(parent: int, number: signal.Signals) -> bool:
    """Have the kernel send us `number` when `parent` ends; False if it has ended already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    return os.getppid() == parent


def adopt_orphans() -> None:
    """Become the parent of whatever our children leave behind."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_children(*, within_s: float = 5.0) -> list[int]:
    """SIGKILL every child, adopted ones included; return the ids of those that will not go."""
    ends = time.monotonic() + within_s
    while children := _children():
        for pid in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > ends:
            return sorted(_children())
        time.sleep(0.02)
    return []


def _children() -> set[int]:
    found: set[int] = set()
    for entry in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError, ValueError):
            found |= {int(pid) for pid in (entry / "children").read_text().split()}
    return found
