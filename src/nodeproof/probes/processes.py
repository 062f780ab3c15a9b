"""Who else works on a device: other processes on a GPU, other load on the processors."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodeproof.probes import nvml
from nodeproof.probes.tree import Tree, Unreadable, whole
from nodeproof.worker import Context

_ON_GPU = {
    "compute": "nvmlDeviceGetComputeRunningProcesses_v3",
    "graphics": "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "mps": "nvmlDeviceGetMPSComputeRunningProcesses_v3",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process as /proc shows it."""

    parent: int
    ticks: int  # of processor time, of its own and of its ended children


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Processor time spent until one moment, in ticks of the kernel's."""

    total: int  # of all processors, idle time included
    busy: int
    ours: int  # by this run


def family(table: Mapping[int, Process], me: int) -> set[int]:
    """This run's processes: the parent of process `me`, and all that it started."""
    head = table[me].parent
    ours = {head, me}
    for pid in table:
        line = []
        at = pid
        while at in table and at not in ours and at not in line:
            line.append(at)
            at = table[at].parent
        if at in ours:
            ours.update(line)
    return ours


def processes(tree: Tree) -> dict[int, Process]:
    """Every process that is to be seen. Raises `Unreadable` if there is no /proc."""
    table = {}
    for name in tree.names("proc"):
        if not name.isdecimal():
            continue
        try:
            stat = tree.text(f"proc/{name}/stat", keep=False)
        except Unreadable:  # it has ended since
            continue
        fields = stat.rpartition(")")[2].split()  # after the name, which may hold anything
        if len(fields) > 14:  # else it ended while it was read
            ticks = sum(whole(field) for field in fields[11:15])
            table[int(name)] = Process(parent=whole(fields[1]), ticks=ticks)
    return table


def myself(tree: Tree) -> int:
    """Number of this process where the tree's /proc was mounted. Raises `Unreadable`."""
    link = tree.root / "proc" / "self"
    try:
        return whole(str(link.readlink()))
    except (OSError, ValueError) as error:
        raise Unreadable(f"{link}: {error}: mount the node's /proc there") from None


def on_gpu(context: Context) -> dict[str, Any]:
    """Work function: the processes that NVML lists on this GPU.

    Returns `listed` (`pid`, `kind`, `name` or `None` where /proc doesn't show it), `others`: those
    that are not this run's, and `ours_unseen`: 1 where this process holds the GPU and NVML lists
    it under a number that it can't know (a container without the host's process numbers), so
    that one of the others is ours. Raises `NvmlError`, `Unreadable`.
    """
    tree = Tree(root=context.host_root)
    with nvml.session(context.progress):
        device = nvml.handle(context.device_id)
        listed = {
            process.pid: kind
            for kind, call in _ON_GPU.items()
            for process in _asked(kind, call, device, context.device_id)
        }
    ours: set[int] = set()
    for place in {tree.root, Path("/")}:
        own = Tree(root=place)
        ours |= family(processes(own), myself(own))
    rows = [{"pid": p, "kind": k, "name": _name(tree, p)} for p, k in sorted(listed.items())]
    seen = bool(ours & listed.keys())
    return {
        "listed": rows,
        "others": [row for row in rows if row["pid"] not in ours],
        "ours_unseen": int(bool(listed) and not seen and _holds_gpu()),
    }


def on_cpu(context: Context, *, window_s: float = 1.0) -> dict[str, Any]:
    """Work function: processor time of others over `window_s` seconds.

    Returns `others_share` and `ours_share` of the machine's processor time, and `window_s` as it
    was. Raises `Unreadable` where /proc does not count.
    """
    tree = Tree(root=context.host_root)
    before, started = snapshot(tree), time.monotonic()
    time.sleep(window_s)
    after, ended = snapshot(tree), time.monotonic()
    return {**shares(before, after), "window_s": ended - started}


def snapshot(tree: Tree) -> Snapshot:
    """Processor time until now. Raises `Unreadable`."""
    table = processes(tree)
    ours = sum(table[pid].ticks for pid in family(table, myself(tree)) if pid in table)
    total, busy = machine_ticks(tree)
    return Snapshot(total=total, busy=busy, ours=ours)


def shares(before: Snapshot, after: Snapshot) -> dict[str, float]:
    """What others and this run used between two snapshots. Raises `Unreadable` for no time."""
    total = after.total - before.total
    if total <= 0:
        raise Unreadable("/proc/stat did not count any time: is the mounted /proc a copy?")
    ours = max(0, after.ours - before.ours)
    others = max(0, after.busy - before.busy - ours)
    return {"others_share": others / total, "ours_share": ours / total}


def machine_ticks(tree: Tree) -> tuple[int, int]:
    """Ticks of all processors since boot, and those of them spent busy. Raises `Unreadable`.

    Time that a hypervisor took (steal) is busy: somebody else had it.
    """
    return tree.value("proc/stat", _machine_ticks)


def _machine_ticks(text: str) -> tuple[int, int]:
    name, *fields = text.splitlines()[0].split()
    if name != "cpu":
        raise ValueError(text)
    # user nice system idle iowait irq softirq steal; guest time is in user already, proc(5)
    ticks = [whole(field) for field in fields[:8]]
    return sum(ticks), sum(ticks) - ticks[3] - ticks[4]


def _asked(kind: str, call: str, device: Any, uuid: str) -> list[Any]:
    if kind == "compute":  # the one that must answer: silence is not an idle GPU
        return list(nvml.ask(call, device, about=uuid))
    return list(nvml.ask_if_supported(call, device, about=uuid) or ())


def _name(tree: Tree, pid: int) -> str | None:
    try:
        return tree.text(f"proc/{pid}/comm", keep=False)
    except Unreadable:
        return None


def _holds_gpu() -> bool:
    torch = sys.modules.get("torch")  # never imported for this question
    return bool(torch and torch.cuda.is_initialized())
