"""Where the kernel's log can be read on this node, and the log that comes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from nodeproof.probes import journal_files, kmsg, log_files, ring_buffer
from nodeproof.probes.kernel_lines import Log, extended
from nodeproof.probes.log_origin import of_this_machine
from nodeproof.probes.tree import Unreadable
from nodeproof.worker import Context

# The kernel's own memory first: what a daemon kept may have been left out, delayed or edited.
# A sandbox has no such memory and may make one up; files are the node's or are not there.
_SOURCES: tuple[Callable[[Context], Log], ...] = (
    lambda context: of_this_machine(ring_buffer.read(), context),
    lambda context: of_this_machine(kmsg.read(context.host_root), context),
    lambda context: journal_files.read(context.host_root),
    lambda context: log_files.read(context.host_root),
)


def current(context: Context, *, since: float = 0.0) -> Log:
    """Return the kernel's log, back to `since` (seconds of its own clock after boot) if it can be.

    The first source that can be read is taken; where it does not reach back, as when newer lines
    pushed out older ones or somebody cleared it, what the next ones have from before is put in
    front. `notes` then say what the others refused. Raises `Unreadable` with all refusals where
    there is none.
    """
    refusals: list[str] = []
    log: Log | None = None
    for source in _SOURCES:
        try:
            found = source(context)
        except Unreadable as refusal:
            refusals.append(str(refusal))
            continue
        log = extended(log, found) if log else found
        if log.reaches(since):
            return log
    if log is None:
        raise Unreadable("the kernel's log can't be read in any way: " + "; ".join(refusals))
    return replace(log, notes=(*log.notes, *refusals))
