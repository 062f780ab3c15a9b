"""How much of the host's memory may be taken before the kernel starts to kill."""

from __future__ import annotations

from pathlib import Path

_NO_LIMIT = 1 << 60  # cgroup v1 writes "no limit" as a number near 2**63


def available(root: Path = Path("/")) -> tuple[int, int]:
    """Return bytes that may still be taken, and bytes there are in all.

    The least of what the machine has (`MemAvailable`, `MemTotal`) and what each control group
    around this process allows, version 1 or 2. File cache that a group would give back is not
    counted as used. `root` is where `/proc` and `/sys` are looked for. Raises `RuntimeError` where
    the machine does not say.
    """
    free, total = _machine(root)
    for limit, used in _groups(root):
        free, total = min(free, max(limit - used, 0)), min(total, limit)
    return free, total


def _machine(root: Path) -> tuple[int, int]:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        sizes = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
        return int(sizes["MemAvailable"][0]) * 1024, int(sizes["MemTotal"][0]) * 1024
    except (OSError, KeyError, IndexError, ValueError) as error:
        raise RuntimeError(
            f"/proc/meminfo does not say how much memory is available ({error!r}): mount /proc"
        ) from error


def _groups(root: Path) -> list[tuple[int, int]]:
    """Limit and use of every group that holds this process and has a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # a kernel without control groups limits nobody
        return []
    held = []
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            names = ("memory.max", "memory.current", "inactive_file")
            top = root / "sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            top = root / "sys/fs/cgroup/memory"
        else:
            continue
        # Inside a container the path may be the one outside; the mount's root is then our own.
        folder = top / path.lstrip("/")
        while True:
            group = _group(folder, *names)
            if group:
                held.append(group)
            if folder == top:
                break
            folder = folder.parent
    return held


def _group(folder: Path, maximum: str, current: str, cache: str) -> tuple[int, int] | None:
    try:
        text = (folder / maximum).read_text().strip()
    except OSError:  # not visible from here, or the root, which has no limit
        return None
    if text == "max" or int(text) >= _NO_LIMIT:
        return None
    used = int((folder / current).read_text())
    for line in (folder / "memory.stat").read_text().splitlines():
        name, _, size = line.partition(" ")
        if name == cache:
            used -= int(size)
    return int(text), used
