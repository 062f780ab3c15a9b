"""The GPUs that are in a node now, by whoever says so; never how they are. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from nodeproof.gate import dispatch
from nodeproof.gate.names import Names
from nodeproof.gate.node import Node

_NOTE = re.compile("([0-9a-zA-Z-]{1,64}) (sha256:[0-9a-f]{64})")


def note(boot_id: str, ids: Iterable[str]) -> str:
    """What `nodeproof watch` writes on its node: the boot, and one digest over the GPUs' UUIDs."""
    return f"{boot_id} {dispatch.digest_of_devices(ids)}"


def of(node: Node, published: str, names: Names) -> tuple[str, str]:
    """The digest of the node's GPUs by each source, `""` where one says nothing.

    `published` is what its DRA driver says. Of two that differ the first is the one that is not what
    the node was accepted with: to be wrong about that costs a test.
    """
    found = _NOTE.fullmatch(node.annotations.get(names.devices, ""))
    watched = found[2] if found and found[1] == node.boot_id else ""
    accepted = node.annotations.get(names.accepted_devices, "")
    if accepted and watched not in {"", accepted}:
        return watched, published
    return (published, watched) if published else (watched, "")
