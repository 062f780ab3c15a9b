"""The texts of /proc and /sys that a node's description rests on, for a recorded node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodeproof.probes import cpu, host, pci, telemetry
from nodeproof.probes.tree import Tree, Unreadable
from nodeproof.worker import Context


def files(context: Context) -> dict[str, Any]:
    """Work function: `files`, path to text of what was read of /proc and /sys.

    For a person who reads a recording; its answers hold what the checks judge. Nothing of it names
    the machine to others: no environment, no host name, no machine id.
    """
    tree = Tree(root=context.host_root)
    readings: tuple[Callable[[], Any], ...] = (
        lambda: host.describe(tree, output=Path(), shm=Path("/dev/shm")),  # noqa: S108  read, never written
        lambda: pci.gpus(tree),
        lambda: cpu.model(tree),
        lambda: telemetry.Machine(tree).sample(),
    )
    for read in readings:
        try:
            read()
        except Unreadable:  # what can't be read is not among the files
            continue
    return {"files": dict(sorted(tree.seen.items()))}
