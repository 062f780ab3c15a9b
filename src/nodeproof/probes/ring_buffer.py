"""The kernel's log by syslog(2), which in a container takes CAP_SYSLOG and no more."""

from __future__ import annotations

import ctypes
import os

from nodeproof.probes.kernel_lines import Log, stamped
from nodeproof.probes.tree import Unreadable

_READ_ALL, _SIZE = 3, 10  # syslog(2)
_MOST = 1 << 28  # bytes; the usual buffer has one MiB
_RECORD = 8192  # bytes; the kernel leaves out whole records, and none is longer


def read() -> Log:
    """Return the kernel's buffer as it stands. Raises `Unreadable`.

    What `dmesg --clear` hid is not in it, and is no longer known to be missing but by the times.
    """
    return stamped(text(), "syslog(2)")


def text() -> str:
    """Return the buffer as text. Raises `Unreadable`."""
    library = ctypes.CDLL(None, use_errno=True)
    size = library.klogctl(_SIZE, None, 0)
    if size <= 0:
        raise Unreadable(_refusal(ctypes.get_errno()))
    # The size is of what the kernel stores; with the prefix of each line it takes more to show,
    # and the kernel leaves out the oldest lines of what doesn't fit.
    while True:
        buffer = ctypes.create_string_buffer(size + 1)
        length = library.klogctl(_READ_ALL, buffer, size + 1)
        if length < 0:
            raise Unreadable(_refusal(ctypes.get_errno()))
        if length <= size - _RECORD or size >= _MOST:
            return buffer.raw[:length].decode("utf-8", "backslashreplace")
        size *= 4


def _refusal(number: int) -> str:
    return (
        f"the kernel's log can't be read by syslog(2): {os.strerror(number)}; give the container "
        "CAP_SYSLOG, or run as root"
    )
