"""The kernel's lines of this boot in the journal's files, which may reach back further than memory.

journald keeps what the kernel's own buffer has no room for, and its files can be read where they
are mounted, without a privilege but that of the files.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nodeproof.probes.boot import boot_id
from nodeproof.probes.journal_format import Compressed, Damaged, Entry, Journal
from nodeproof.probes.kernel_lines import Log, lines_of, stamped
from nodeproof.probes.tree import Unreadable

# On disk, or in memory where that is not kept. Other names are other journals: of users, of
# namespaces, of other machines. The tilde is of a file that was not closed in order.
_PLACES = ("var/log/journal", "run/log/journal")
_NAMES = ("system.journal", "system@*.journal", "system.journal~", "system@*.journal~")
_MOST = 1 << 25  # bytes of text; what is older than that is left out, and the log not complete
_OWN = (b"MESSAGE=", b"_SOURCE_MONOTONIC_TIMESTAMP=")  # of one entry, mostly: not worth keeping
_DEFAULT_PRIORITY = 4  # what the kernel takes for a line that has none


@dataclass(slots=True)
class _Found:
    """What was read so far, from all files."""

    lines: list[tuple[float, int, str]] = field(default_factory=list)  # at, number, text
    numbers: set[tuple[bytes, int]] = field(default_factory=set)
    compressed: dict[str, int] = field(default_factory=dict)
    damaged: int = 0
    notes: list[str] = field(default_factory=list)
    size: int = 0
    files: int = 0


def read(host_root: Path) -> Log:
    """Return what the journal has of the kernel since boot. Raises `Unreadable`.

    Messages that are compressed in a way that Python can't undo are counted, with their time and a
    line that says so. Files that are damaged or cut are in the notes, with what could be read of
    them.
    """
    boot = boot_id(host_root).replace("-", "")
    try:
        this_boot = bytes.fromhex(boot)
    except ValueError:
        this_boot = b""
    if len(this_boot) != 16:
        raise Unreadable(
            f"the journal under {host_root}: /proc does not say which boot this is, so that its "
            "entries can't be told from older ones: mount the node's /proc"
        )
    found = _Found()
    paths = list(_paths(host_root, found))
    for path in paths:
        _take(path, this_boot, found)
    where = f"the journal under {host_root}"
    if not found.lines:
        why = "; ".join(found.notes) or (
            f"its {found.files} files have no line of the kernel of this boot"
            if paths
            else "there is none in /var/log/journal and /run/log/journal"
        )
        raise Unreadable(f"{where}: {why}; mount the node's /var/log and /run/log")
    text = "".join(lines for _, _, lines in sorted(found.lines))
    notes = [
        f"{where}: {count} messages are compressed by {how} and were not read"
        for how, count in sorted(found.compressed.items())
    ]
    return stamped(
        text,
        where,
        unreadable=sum(found.compressed.values()),
        damaged=found.damaged,
        notes=(*found.notes, *notes),
    )


def _paths(host_root: Path, found: _Found) -> Iterator[Path]:
    for place in _PLACES:
        for folder in _within(host_root / place, found):
            names = [path.name for path in _within(folder, found)]
            kept = {name for pattern in _NAMES for name in fnmatch.filter(names, pattern)}
            yield from (folder / name for name in sorted(kept))


def _within(folder: Path, found: _Found) -> list[Path]:
    """What a directory has. One that is there and can't be listed goes into the notes."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        found.notes.append(f"{folder}: {error.strerror or error}")
        return []


def _take(path: Path, boot: bytes, found: _Found) -> None:
    """Add what a file has of the kernel in this boot; its faults go into the notes."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        found.damaged += 1
        found.notes.append(f"{path}: {error.strerror or error}")
        return
    found.files += 1
    try:
        journal = Journal(descriptor)
        if journal.cut:
            found.damaged += 1
            found.notes.append(f"{path}: it is cut short")
        _take_entries(journal, path, boot, found)
    except Damaged as damage:
        found.damaged += 1
        found.notes.append(f"{path}: {damage}")
    except OSError as error:
        found.damaged += 1
        found.notes.append(f"{path}: {error.strerror or error}")
    finally:
        os.close(descriptor)


def _take_entries(journal: Journal, path: Path, boot: bytes, found: _Found) -> None:
    damaged = 0
    offsets = journal.entries_with(b"_TRANSPORT", b"kernel")
    if journal.damage:
        found.damaged += 1
        found.notes.append(f"{path}: {journal.damage}")
    cache: dict[int, bytes] = {}
    for offset in reversed(offsets):
        if found.size > _MOST:
            found.notes.append(f"{path}: older lines were left out after {found.size} bytes")
            break
        try:
            entry = journal.entry(offset)
            if entry.boot != boot:  # and all before it
                break
            if entry.number not in found.numbers:
                at, lines = _lines(journal, entry, cache, found)
                found.numbers.add(entry.number)
                found.lines.append((at, entry.number[1], lines))
                found.size += len(lines)
        except Damaged:
            damaged += 1
    found.damaged += damaged
    if damaged:
        found.notes.append(f"{path}: {damaged} entries are damaged and were not read")


def _lines(
    journal: Journal, entry: Entry, cache: dict[int, bytes], found: _Found
) -> tuple[float, str]:
    fields: dict[bytes, bytes] = {}
    packed = ""
    for item in entry.items:
        content = cache.get(item)
        if content is None:
            try:
                content = journal.data(item)
            except Compressed as how:
                packed = str(how)
                continue
            if len(cache) < 1 << 14 and not content.startswith(_OWN):
                cache[item] = content
        name, _, value = content.partition(b"=")
        fields.setdefault(name, value)
    at = _number(fields, b"_SOURCE_MONOTONIC_TIMESTAMP")
    seconds = entry.monotonic if at is None else at / 1e6
    facility = _number(fields, b"SYSLOG_FACILITY") or 0
    level = _number(fields, b"PRIORITY")
    priority = facility * 8 + (_DEFAULT_PRIORITY if level is None else level)
    if b"MESSAGE" in fields:
        message = fields[b"MESSAGE"].decode("utf-8", "backslashreplace")
    elif packed:
        found.compressed[packed] = found.compressed.get(packed, 0) + 1
        message = f"[a message that is compressed by {packed} and can't be shown]"
    else:
        raise Damaged("an entry without a message")
    return seconds, lines_of(priority, seconds, message)


def _number(fields: dict[bytes, bytes], name: bytes) -> int | None:
    text = fields.get(name, b"")
    return int(text) if text.isdigit() and len(text) < 20 else None
