"""The kernel's lines of this boot in the text files of a syslog daemon, where nothing else is left.

A text file says neither which boot a line is of nor whether the kernel wrote it, so that it is the
last source: it is cut where the present boot begins, and refused where that can't be seen.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from nodeproof.probes.kernel_lines import Log, lines_of, stamped
from nodeproof.probes.tree import Tree, Unreadable

# kern.log has the kernel's lines alone, the others those of all (Debian's and Red Hat's names).
_FILES = ("var/log/kern.log", "var/log/messages", "var/log/syslog")
_TAIL = 1 << 24  # bytes
# Time, host, and "kernel:" as the daemon's own word for who speaks; then the kernel's clock, if the
# daemon left it there.
_LINE = re.compile(
    r"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S+) \S+ kernel: "
    r"(?:\[\s*(?P<at>\d{1,12}\.\d{1,9})\] ?)?(?P<text>.*)"
)
_FIRST = "Linux version "  # the first line of every boot


def read(host_root: Path) -> Log:
    """Return the lines of this boot from the first file that has them. Raises `Unreadable`."""
    refusals = []
    for name in _FILES:
        try:
            return _this_boot(host_root, name)
        except Unreadable as refusal:
            refusals.append(str(refusal))
    raise Unreadable("; ".join(refusals))


def _this_boot(host_root: Path, name: str) -> Log:
    path = host_root / name
    content = _tail(path, _booted(host_root))
    entries: list[tuple[float | None, str]] = []
    found = False
    for line in content.split("\n"):
        match = _LINE.fullmatch(line)
        if not match:
            continue
        at = float(match["at"]) if match["at"] else None
        back = at is not None and entries and (entries[-1][0] or 0.0) > at + _SKEW_S
        if back or match["text"].startswith(_FIRST):  # the clock began anew
            entries.clear()
            found = True
        entries.append((at, match["text"]))
    if not entries:
        raise Unreadable(f"{path}: no line of the kernel in its last {_TAIL >> 20} MiB")
    if not found:
        raise Unreadable(
            f"{path}: the beginning of this boot is not in its last {_TAIL >> 20} MiB, so that its "
            "lines can't be told from those of an older one"
        )
    if any(at is None for at, _ in entries):
        raise Unreadable(
            f"{path}: its lines do not have the kernel's clock, as rsyslog can leave it"
        )
    text = "".join(lines_of(_UNKNOWN, at, said) for at, said in entries if at is not None)
    return stamped(text, str(path))


_UNKNOWN = 4  # the daemon does not write the level; this one is the kernel's default
_SKEW_S = 1.0  # processors' clocks differ; a boot goes back further


def _booted(host_root: Path) -> int:
    """Seconds since the epoch at which this boot began. Raises `Unreadable`."""
    stat = Tree(root=host_root).text("proc/stat", keep=False)
    times = re.findall(r"^btime (\d+)$", stat, re.MULTILINE)
    if not times:
        raise Unreadable(f"{host_root}/proc/stat does not say when this boot began")
    return int(times[0])


def _tail(path: Path, booted: int) -> str:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if os.fstat(file.fileno()).st_mtime < booted:
                raise Unreadable(f"{path}: nothing was written to it since this boot")
            file.seek(max(0, size - _TAIL))
            return file.read(_TAIL).decode("utf-8", "backslashreplace")
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror or error}") from None
