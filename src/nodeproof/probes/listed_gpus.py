"""Which GPUs the driver has, by its own list in /proc: no library of it is asked, nothing is started."""

from __future__ import annotations

import re

from nodeproof.probes.tree import Tree, Unreadable

_LISTED = "proc/driver/nvidia/gpus"
_UUID = re.compile(
    r"^GPU UUID:[ \t]*(GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})[ \t]*$", re.MULTILINE
)
_EXCLUDED = re.compile(r"^GPU Excluded:[ \t]*Yes[ \t]*$", re.MULTILINE)  # by a module parameter


def uuids(tree: Tree) -> tuple[str, ...]:
    """UUIDs of all GPUs that the driver has taken and gives to programs, sorted.

    A driver that has not initialised a GPU yet writes question marks in their place. Raises
    `Unreadable` for that too: a list that is short by one is not the list.
    """
    found = []
    for address in tree.names(_LISTED):
        path = f"{_LISTED}/{address}/information"
        text = tree.text(path)
        if _EXCLUDED.search(text):
            continue
        told = _UUID.search(text)
        if told is None:
            raise Unreadable(f"{tree.root / path} names no GPU UUID: is the GPU initialised yet?")
        found.append(told[1])
    if not found:
        raise Unreadable(f"{tree.root / _LISTED} lists no GPU: is the driver loaded?")
    return tuple(sorted(found))
