"""Whether a line in a log of many nodes is another node's."""

from __future__ import annotations

import re

_ADDRESS = re.compile(
    r"\[?(?:\d{1,3}(?:\.\d{1,3}){3}|[\da-f]{0,4}(?::[\da-f]{0,4}){2,7}(?:%\w+)?)\]?"
)
_ANYBODY = {
    "localhost",
    "ip6-localhost",
    "(none)",
    "none",
    "unknown",
    "linux",
}  # before it has a name


def foreign(host: str | None, node: str) -> bool:
    """Whether a line of this host is certainly not this node's.

    Names compare without their domains and without regard to case. A node writes as `localhost`
    until it has its name, and relays write an address in place of one: those may be its own.
    """
    if host is None:
        return False
    host, node = host.casefold(), node.casefold()
    if _ADDRESS.fullmatch(host):
        return _ADDRESS.fullmatch(node) is not None and host.strip("[]") != node.strip("[]")
    if _ADDRESS.fullmatch(node):
        return False
    short = host.partition(".")[0]
    return short not in _ANYBODY and short != node.partition(".")[0]
