"""The machine's processors: how many there are, how many this process may use, and what they are."""

from __future__ import annotations

import os

from nodeproof.probes.cgroup import Ceilings
from nodeproof.probes.tree import Tree, Unreadable

_CPUS = "sys/devices/system/cpu"


def online(tree: Tree) -> int:
    """Processors that are switched on. Raises `Unreadable`."""
    return tree.value(f"{_CPUS}/online", _listed)


def present(tree: Tree) -> int:
    """Processors that are built in, switched on or not. Raises `Unreadable`."""
    return tree.value(f"{_CPUS}/present", _listed)


def usable(ceilings: Ceilings) -> float:
    """Processors that this process may run on, by its affinity and its group's quota."""
    allowed = float(len(os.sched_getaffinity(0)))
    return allowed if ceilings.cpus is None else min(allowed, ceilings.cpus)


def model(tree: Tree) -> str:
    """Model name as the kernel writes it. Raises `Unreadable`."""
    for name in ("model name", "Model", "cpu model", "CPU part"):  # the last is what arm64 has
        if value := _first(tree, name):
            return value
    raise Unreadable("/proc/cpuinfo names no model")


def microcode(tree: Tree) -> str:
    """Version of the microcode. Raises `Unreadable` where the kernel does not show one (arm64)."""
    if value := _first(tree, "microcode"):
        return value
    raise Unreadable("/proc/cpuinfo names no microcode")


def _first(tree: Tree, name: str) -> str:
    """Value of a line in /proc/cpuinfo, of the first processor that has it; `""` without one."""
    for line in tree.text("proc/cpuinfo", keep=False).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _listed(text: str) -> int:
    """How many numbers `0-3,8` names. Raises `ValueError`."""
    count = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count
