"""The machine around the GPUs: what data loading, communication and logs depend on."""

from __future__ import annotations

import hashlib
import hmac
import resource
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nodeproof.probes import cgroup, clock, cpu
from nodeproof.probes.tree import Tree, Unreadable, whole
from nodeproof.worker import Context


def host(context: Context, *, output: str = ".", shm: str = "/dev/shm") -> dict[str, Any]:  # noqa: S108  read, never written
    """Work function: the state of the machine.

    `output` is the directory whose free space is of interest, `shm` the shared memory that this
    process (not the host) uses. Sizes are in bytes, times in seconds. What could not be read is
    `None`, and `unreadable` says why by the same name; `memlock_bytes` is -1 for "unlimited".
    """
    return describe(Tree(root=context.host_root), output=Path(output), shm=Path(shm))


def describe(tree: Tree, *, output: Path, shm: Path) -> dict[str, Any]:
    """See `host`."""
    ceilings = _Once(lambda: cgroup.ceilings(tree))
    readings: dict[str, Callable[[], Any]] = {
        "cores_online": lambda: cpu.online(tree),
        "cores_present": lambda: cpu.present(tree),
        "cores_usable": lambda: cpu.usable(ceilings()),
        "cpu_model": lambda: cpu.model(tree),
        "microcode": lambda: cpu.microcode(tree),
        "memory_total": lambda: memory(tree, "MemTotal"),
        "memory_usable": lambda: _least(memory(tree, "MemTotal"), ceilings().memory_bytes),
        "memory_available": lambda: _least(
            memory(tree, "MemAvailable"), ceilings().memory_left_bytes
        ),
        "clock_source": lambda: clock.source(tree),
        "clock_sources": lambda: clock.sources(tree),
        "time": lambda: asdict(clock.sync(tree)),
        "memlock_bytes": lambda: resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "shm": lambda: _space(shm),
        "disk_output": lambda: _space(output),
        "disk_root": lambda: _space(tree.root),
        "kernel": lambda: tree.text("proc/sys/kernel/osrelease"),
        "boot_id": lambda: tree.text("proc/sys/kernel/random/boot_id"),
        "uptime_s": lambda: tree.value("proc/uptime", lambda text: float(text.split()[0])),
        "machine": lambda: _machine(tree),
        "hostname": lambda: tree.text("proc/sys/kernel/hostname", keep=False),
        "huge_pages": lambda: tree.value("sys/kernel/mm/transparent_hugepage/enabled", _chosen),
    }
    result: dict[str, Any] = {}
    unreadable: dict[str, str] = {}
    for name, read in readings.items():
        try:
            result[name] = read()
        except Unreadable as error:
            result[name], unreadable[name] = None, str(error)
    return {**result, "unreadable": unreadable}


class _Once:
    """A reading that several others need, taken once, or refused to each of them."""

    def __init__(self, read: Callable[[], cgroup.Ceilings]) -> None:
        self._read = read
        self._value: cgroup.Ceilings | None = None

    def __call__(self) -> cgroup.Ceilings:
        if self._value is None:
            self._value = self._read()
        return self._value


def memory(tree: Tree, name: str) -> int:
    """Bytes of one line of /proc/meminfo. Raises `Unreadable`."""
    for line in tree.text("proc/meminfo").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return whole(value.split()[0]) * 1024
    raise Unreadable(f"/proc/meminfo has no {name}")


def _least(size: int, ceiling: int | None) -> int:
    return size if ceiling is None else min(size, ceiling)


def _space(path: Path) -> dict[str, Any]:
    """Size and free space of the file system that holds a path, for one who isn't root."""
    try:
        usage = shutil.disk_usage(path)
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror or error}") from None
    return {"path": str(path), "size": usage.total, "free": usage.free}


def _machine(tree: Tree) -> str:
    """A name for this installation that does not give away its machine id, machine-id(5)."""
    known = tree.text("etc/machine-id", keep=False).encode()
    return hmac.new(known, b"nodeproof", hashlib.sha256).hexdigest()[:32]


def _chosen(text: str) -> str:
    """The word in brackets of "always [madvise] never"."""
    return text[text.index("[") + 1 : text.index("]")]
