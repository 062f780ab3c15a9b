"""The kernel's log by /dev/kmsg, record by record; what was cleared for syslog(2) is still in it.

The format is in the kernel's Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from nodeproof.probes.kernel_lines import Log, lines_of, stamped
from nodeproof.probes.tree import Unreadable

_RECORD = 16384  # bytes; the kernel gives one whole record a read, and EINVAL for too little room
_MOST = 1 << 28  # bytes in all: a log that is written faster than it is read has no end
_HEAD = re.compile(r"(\d{1,9}),(\d{1,20}),(\d{1,20}),[^;]*;(.*)", re.DOTALL)
_ESCAPED = re.compile(r"\\x([0-9a-fA-F]{2})")


def read(host_root: Path) -> Log:
    """Return all records that the kernel still has. Raises `Unreadable`.

    Records that were pushed out between two reads, which shows in the numbers of those around
    them, are damage: nobody can say what was in them.
    """
    path = host_root / "dev/kmsg"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Unreadable(_refusal(path, error)) from None
    try:
        content = _drained(descriptor)
    except OSError as error:
        raise Unreadable(_refusal(path, error)) from None
    finally:
        os.close(descriptor)
    return _understood(content.decode("utf-8", "backslashreplace"), path)


def _drained(descriptor: int) -> bytes:
    content = bytearray()
    while len(content) < _MOST:
        try:
            record = os.read(descriptor, _RECORD)
        except BlockingIOError:  # no record after the last one
            break
        except OSError as error:
            # The kernel overwrote what was to be read next; the next read goes on behind the gap.
            if error.errno == errno.EPIPE:
                continue
            raise
        if not record:
            break
        content += record
    return bytes(content)


def _understood(content: str, path: Path) -> Log:
    lines, expected, lost, garbled = [], None, 0, 0
    for record in content.split("\n"):
        if not record or record.startswith(" "):  # " KEY=value": what the record is about
            continue
        head = _HEAD.fullmatch(record)
        if not head:
            garbled += 1
            continue
        number = int(head[2])
        lost += number - expected if expected is not None and number > expected else 0
        expected = number + 1
        lines.append(lines_of(int(head[1]), int(head[3]) / 1e6, _plain(head[4])))
    if not lines:
        raise Unreadable(f"{path}: it has no record of the kernel: mount the node's /dev/kmsg")
    notes = [f"{path}: {lost} records were overwritten while they were read"] if lost else []
    return stamped(
        "".join(lines), str(path), unreadable=garbled, damaged=int(lost > 0), notes=tuple(notes)
    )


def _plain(message: str) -> str:
    """Undo the kernel's escapes: bytes that are no printable ASCII, and the backslash."""
    if "\\x" not in message:
        return message
    raw = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), message)
    # Each escape is a byte, and several may be one character.
    return raw.encode("latin-1", "replace").decode("utf-8", "backslashreplace")


def _refusal(path: Path, error: OSError) -> str:
    return (
        f"{path}: {error.strerror or error}; mount the node's /dev/kmsg, which takes a privileged "
        "container, or give it CAP_SYSLOG instead"
    )
