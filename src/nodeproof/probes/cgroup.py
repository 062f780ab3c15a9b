"""How much of the machine this process may use, by its control groups (version 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nodeproof.probes.tree import Tree, Unreadable, whole

_CGROUPS = "sys/fs/cgroup"
_NO_LIMIT_V1 = 1 << 62  # version 1 writes "no limit" as the largest whole page below 2^63


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """The lowest ceiling of any group on the way up. `None`: none of them has one."""

    cpus: float | None
    memory_bytes: int | None
    memory_left_bytes: int | None  # below the tightest group's ceiling


@dataclass(frozen=True, slots=True, kw_only=True)
class _Memory:
    limit: int
    left: int


def ceilings(tree: Tree) -> Ceilings:
    """Read the ceilings of the groups this process is in.

    A container sees its own groups in its own /sys and, where the host's is mounted, the host's
    there; a ceiling in either place holds. Raises `Unreadable` where /proc does not say which
    groups these are.
    """
    trees = [tree] if tree.root == Path("/") else [tree, Tree(root=Path("/"))]
    quotas = [_cpus(*place) for place in _everywhere(trees, "cpu")]
    memory = [_memory(*place) for place in _everywhere(trees, "memory")]
    limits = [m for m in memory if m is not None]
    return Ceilings(
        cpus=min((q for q in quotas if q is not None), default=None),
        memory_bytes=min((m.limit for m in limits), default=None),
        memory_left_bytes=min((m.left for m in limits), default=None),
    )


def _everywhere(trees: list[Tree], wanted: str) -> Iterator[tuple[Tree, str]]:
    for tree in trees:
        for controllers, path in _groups(tree):
            for folder in _folders(tree, controllers, path, wanted):
                yield tree, folder


def _groups(tree: Tree) -> Iterator[tuple[frozenset[str], str]]:
    """Controllers and path of each hierarchy; no controllers for version 2."""
    for line in tree.text("proc/self/cgroup", keep=False).splitlines():
        _, controllers, path = line.split(":", 2)
        yield frozenset(filter(None, controllers.split(","))), path


def _folders(tree: Tree, controllers: frozenset[str], path: str, wanted: str) -> Iterator[str]:
    """The group's directory and those above it."""
    if controllers and wanted not in controllers:
        return
    mount = wanted if controllers else ""
    if not controllers and not (tree.root / _CGROUPS / "cgroup.controllers").exists():
        mount = "unified"  # version 2 beside version 1
    inside = PurePosixPath(path.lstrip("/"))
    for folder in (inside, *inside.parents):
        yield str(PurePosixPath(_CGROUPS, mount, folder))


def _cpus(tree: Tree, folder: str) -> float | None:
    """Processors' worth of time; `None` without a quota."""
    try:
        quota, period = tree.text(f"{folder}/cpu.max").split()
    except Unreadable:
        try:
            quota = tree.text(f"{folder}/cpu.cfs_quota_us")
            period = tree.text(f"{folder}/cpu.cfs_period_us")
        except Unreadable:  # a root group has neither file
            return None
    return None if quota in {"max", "-1"} else whole(quota) / whole(period)


def _memory(tree: Tree, folder: str) -> _Memory | None:
    for limit_file, usage_file in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            limit = tree.text(f"{folder}/{limit_file}")
            usage = tree.value(f"{folder}/{usage_file}", whole)
        except Unreadable:
            continue
        if limit != "max" and whole(limit) < _NO_LIMIT_V1:
            return _Memory(limit=whole(limit), left=max(0, whole(limit) - usage))
    return None
