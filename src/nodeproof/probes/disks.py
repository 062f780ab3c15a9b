"""Disks, arrays and file systems, as the kernel sees their state.

What a disk says of its own wear takes an ioctl and root; that is left to the site's tools.
"""

from __future__ import annotations

import re
from typing import Any

from nodeproof.probes.tree import Tree, Unreadable, whole
from nodeproof.worker import Context

_BLOCK, _NVME = "sys/block", "sys/class/nvme"
_DISK = re.compile(r"(nvme\d+n\d+|sd[a-z]+|vd[a-z]+|xvd[a-z]+|hd[a-z]+|mmcblk\d+)")
_EXT = frozenset({"ext2", "ext3", "ext4"})
_EMERGENCY = frozenset({"emergency_ro", "shutdown"})  # as ext4 shows since 6.15


def disks(context: Context) -> dict[str, Any]:
    """Work function: what is wrong with disks, arrays and file systems.

    Returns `disks` (names), `nvme` (local controllers, name to the kernel's word for their state),
    `models` (of these, `None`: not shown), `failed` (dead or offline), `unready` (neither dead nor live), `arrays` (md, name to members
    missing) and `broken` (arrays that lost their data), `read_only` (file systems that the kernel
    stopped writing to after errors) and `damaged` (ext file systems to errors they recorded).
    Raises `Unreadable` without /sys or a list of mounts.
    """
    tree = Tree(root=context.host_root)
    blocks = tree.names(_BLOCK)
    context.progress(step="reading the state of disks and arrays")
    nvme = _controllers(tree)
    scsi = {name: state for name in blocks if (state := _scsi(tree, name))}
    arrays = {name: array for name in blocks if (array := _array(tree, name))}
    return {
        "disks": [name for name in blocks if _DISK.fullmatch(name)],
        "nvme": nvme,
        "models": {name: _text(tree, f"{_NVME}/{name}/model") for name in nvme},
        "failed": [
            *[name for name, state in nvme.items() if state == "dead"],
            *[name for name, state in scsi.items() if state in {"offline", "transport-offline"}],
        ],
        "unready": [f"{name} ({s})" for name, s in nvme.items() if s not in {"live", "dead"}],
        "arrays": {name: missing for name, (missing, _) in arrays.items()},
        "broken": [name for name, (_, broken) in arrays.items() if broken],
        "read_only": _read_only(tree),
        "damaged": _damaged(tree),
    }


def _controllers(tree: Tree) -> dict[str, str]:
    try:
        names = tree.names(_NVME)
    except Unreadable:  # the kernel makes it with the driver
        return {}
    found = {}
    for name in names:
        try:
            if tree.text(f"{_NVME}/{name}/transport") != "pcie":  # a disk of another machine
                continue
        except Unreadable:  # kernels before 4.8 know no other
            pass
        found[name] = tree.text(f"{_NVME}/{name}/state")
    return found


def _scsi(tree: Tree, name: str) -> str | None:
    if not name.startswith("sd"):
        return None
    return _text(tree, f"{_BLOCK}/{name}/device/state")


def _array(tree: Tree, name: str) -> tuple[int, bool] | None:
    """Members missing, and whether the array is lost; `None` for what is no array."""
    folder = f"{_BLOCK}/{name}/md"
    state = _text(tree, f"{folder}/array_state")
    if state is None:
        return None
    # An array without redundancy can't be degraded and has no such file.
    redundant = (tree.root / folder / "degraded").exists()
    missing = tree.value(f"{folder}/degraded", whole) if redundant else 0
    return missing, state == "broken"


def _read_only(tree: Tree) -> list[str]:
    """Places of file systems that are read-only by an accident; many are so by design.

    A mount may be read-only where the file system isn't, so the file system's own options count,
    which stand last in proc_pid_mountinfo(5).
    """
    found: dict[str, str] = {}
    for line in _mounts(tree).splitlines():
        mount, _, system = line.partition(" - ")
        fields, told = mount.split(), system.split()
        if len(fields) < 5 or len(told) < 3:
            raise Unreadable(f"/proc/1/mountinfo has a line that isn't one: {line[:80]!r}")
        kind, options = told[0], set(told[2].split(","))
        accident = bool(options & _EMERGENCY) or (
            "ro" in options and kind in _EXT and "errors=remount-ro" in options
        )
        if accident or ("ro" in options and kind == "btrfs"):
            found.setdefault(fields[2], f"{fields[4]} ({kind})")
    return list(found.values())


def _mounts(tree: Tree) -> str:
    """Mounts as the node's first process sees them, or this one where that may not be read."""
    try:
        return tree.text("proc/1/mountinfo", keep=False)
    except Unreadable:
        return tree.text("proc/self/mountinfo", keep=False)


def _damaged(tree: Tree) -> dict[str, int]:
    try:
        names = tree.names("sys/fs/ext4")
    except Unreadable:  # there is none
        return {}
    counts = {
        name: tree.value(f"sys/fs/ext4/{name}/errors_count", whole)
        for name in names
        if (tree.root / f"sys/fs/ext4/{name}/errors_count").exists()
    }
    return {name: count for name, count in counts.items() if count}


def _text(tree: Tree, path: str) -> str | None:
    try:
        return tree.text(path)
    except Unreadable:
        return None
