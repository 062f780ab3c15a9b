"""Errors of the host's memory: by module where the kernel watches the controllers, by page elsewhere.

Controllers count in /sys/devices/system/edac (Linux ABI, sysfs-devices-edac) if a driver watches
them, which virtual machines rarely have. Pages that the kernel took out of use because they failed
stand in /proc/meminfo, also in a virtual machine whose host passed the error on.
"""

from __future__ import annotations

import re
from typing import Any

from nodeproof.probes.host import memory
from nodeproof.probes.tree import Tree, Unreadable, whole
from nodeproof.worker import Context

_SYSTEM = "sys/devices/system"
_CONTROLLERS = f"{_SYSTEM}/edac/mc"


def memory_errors(context: Context) -> dict[str, Any]:
    """Work function: errors since the controllers' drivers were loaded.

    Returns `controllers` (each `name`, `kind`, `uncorrected`, `corrected`), `modules` (each
    `controller`, `label`, `location`, `uncorrected`, `corrected`) and `taken_out_bytes` (`None`: the
    kernel doesn't say). Raises `Unreadable` without /sys, and where a counter makes no sense.
    """
    tree = Tree(root=context.host_root)
    controllers, modules = [], []
    for name in _controllers(tree):
        context.progress(step=f"reading the memory controller {name}")
        folder = f"{_CONTROLLERS}/{name}"
        controllers.append(
            {
                "name": name,
                "kind": _text(tree, f"{folder}/mc_name"),
                "uncorrected": tree.value(f"{folder}/ue_count", whole),
                "corrected": tree.value(f"{folder}/ce_count", whole),
            }
        )
        modules += [
            _module(tree, name, f"{folder}/{part}")
            for part in tree.names(folder)
            if re.fullmatch(r"(dimm|rank)\d+", part)
        ]
    return {
        "controllers": controllers,
        "modules": modules,
        "taken_out_bytes": _taken_out(tree),
    }


def _controllers(tree: Tree) -> list[str]:
    if "edac" not in tree.names(_SYSTEM):  # raises where /sys isn't the node's
        return []
    try:
        names = tree.names(_CONTROLLERS)
    except Unreadable:  # the core is there and no driver
        return []
    return [name for name in names if re.fullmatch(r"mc\d+", name)]


def _module(tree: Tree, controller: str, folder: str) -> dict[str, Any]:
    return {
        "controller": controller,
        "label": _text(tree, f"{folder}/dimm_label") or folder.rpartition("/")[2],
        "location": _text(tree, f"{folder}/dimm_location"),
        "uncorrected": _count(tree, f"{folder}/dimm_ue_count"),
        "corrected": _count(tree, f"{folder}/dimm_ce_count"),
    }


def _count(tree: Tree, path: str) -> int | None:
    """A counter of a module, which kernels before 4.10 don't have."""
    return tree.value(path, whole) if (tree.root / path).exists() else None


def _text(tree: Tree, path: str) -> str:
    try:
        return tree.text(path)
    except Unreadable:
        return ""


def _taken_out(tree: Tree) -> int | None:
    tree.text("proc/meminfo")  # raises where it can't be read; without the line, no such feature
    try:
        return memory(tree, "HardwareCorrupted")
    except Unreadable:
        return None
