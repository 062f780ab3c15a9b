"""Access Control Services of PCI Express switches: whether traffic between devices takes a detour.

A switch whose ports redirect sends what one device under it writes to another up to the root first.
Only root may read the registers: they lie beyond the first 64 bytes of the configuration space.
Layout: PCI Express Base Specification; numbers as in linux/pci_regs.h.
"""

from __future__ import annotations

import struct

from nodeproof.probes import pci
from nodeproof.probes.tree import Tree

_STATUS, _HAS_LIST, _LIST = 0x06, 0x10, 0x34
_PCIE, _PORT_TYPE, _DOWNSTREAM = 0x10, 0xF0, 0x60
_EXTENDED, _ACS = 0x100, 0x000D
_ACS_CONTROL = 6
_REDIRECTS = 0x04 | 0x08 | 0x20  # requests, completions, egress control
_STEPS = 64  # a list that is longer runs in a circle


def redirects(tree: Tree, address: str) -> bool | None:
    """Whether a switch's port sends traffic between devices over the root.

    `False` for what is no downstream port of a switch or can't redirect; `None` where the
    registers may not be read.
    """
    try:
        space = (tree.root / pci.DEVICES / address / "config").read_bytes()
    except OSError:
        return None
    if len(space) <= _EXTENDED:  # all that is given to one who isn't root
        return None
    if not _is_downstream(space):
        return False
    at = _extended(space)
    if at is None or at + _ACS_CONTROL + 2 > len(space):
        return False
    (control,) = struct.unpack_from("<H", space, at + _ACS_CONTROL)
    return bool(control & _REDIRECTS)


def _is_downstream(space: bytes) -> bool:
    if not space[_STATUS] & _HAS_LIST:
        return False
    at = space[_LIST] & ~3
    for _ in range(_STEPS):
        if at < 0x40:
            return False
        if space[at] == _PCIE:
            return space[at + 2] & _PORT_TYPE == _DOWNSTREAM
        at = space[at + 1] & ~3
    return False


def _extended(space: bytes) -> int | None:
    """Where the capability begins, `None` without it."""
    at = _EXTENDED
    for _ in range(_STEPS):
        if at < _EXTENDED or at + 4 > len(space):
            return None
        (header,) = struct.unpack_from("<I", space, at)
        if header & 0xFFFF == _ACS:
            return at
        at = header >> 20 & ~3
    return None
