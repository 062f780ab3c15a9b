"""Elastic Fabric Adapters: on the PCI bus, as RDMA devices, and in libfabric's eyes.

The state of an EFA port is no evidence: the driver answers ACTIVE and LinkUp whatever is (efa_verbs.c
of amzn-drivers, r3.1.0). What counts is whether each adapter on the bus has its RDMA device,
whether libfabric lists it, and what its counters do (`nic_counters`).
"""

from __future__ import annotations

import resource
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nodeproof.probes import efa_witness, nic, nic_files
from nodeproof.probes.pci import or_none
from nodeproof.probes.tree import Tree, Unreadable, whole
from nodeproof.worker import Context

_POLL_S = 0.5
_LONGEST_S = 120.0  # of waiting, so that the check's deadline is never what ends it
_IPC_LOCK = 14  # CAP_IPC_LOCK, linux/capability.h
_PAGES = "sys/kernel/mm/hugepages"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    pci: list[nic.Function]
    rdma: list[nic.Rdma]

    def waits_for(self, expected: int) -> str:
        """What is not up yet, `""` if all is."""
        alone = nic.unclaimed(self.pci, self.rdma)
        missing = expected - len(self.pci)
        waits = [f"the RDMA device of {f.address}" for f in alone]
        waits += [f"{missing} EFA devices on the PCI bus"] if missing > 0 else []
        return ", ".join(waits)


def devices(context: Context, *, expected: int, wait_s: float) -> dict[str, Any]:
    """Work function: the EFA devices of this node, once all `expected` are up or `wait_s` is over.

    Drivers enumerate late after a boot (seen on p5en), so what is missing is waited for and named
    in the progress. Returns `pci` (`address`, `driver`, `present`, `rdma`: the name of its RDMA
    device or `None`), `rdma` (`name`, `address`), `fi_info` (see `efa_witness`, `None` without a
    device), `waited_s` and `waits_for` ("" if nothing is missing). Raises `Unreadable` where /sys
    can't be read.
    """
    tree, started = Tree(root=context.host_root), time.monotonic()
    pause, wait_s = threading.Event(), min(wait_s, _LONGEST_S)
    while True:
        context.progress(step="reading EFA devices in /sys")
        seen = _look(tree)
        waits_for = seen.waits_for(expected)
        waited = time.monotonic() - started
        if not waits_for or waited >= wait_s:
            break
        context.progress(step=f"waiting for {waits_for}")
        pause.wait(min(_POLL_S, wait_s - waited))
    context.progress(step="asking fi_info")
    by_address = {d.address: d.name for d in seen.rdma}
    return {
        "pci": [{**asdict(f), "rdma": by_address.get(f.address)} for f in seen.pci],
        "rdma": [{"name": d.name, "address": d.address} for d in seen.rdma],
        "fi_info": efa_witness.ask() if seen.rdma else None,
        "waited_s": waited,
        "waits_for": waits_for,
    }


def ready(context: Context) -> dict[str, Any]:
    """Work function: what a program needs besides the devices to use EFA.

    `devices` (`name`, `address`, `uverbs`: whether it has that file, `p2p`: what the driver says of
    GPU memory, `None` or "" without), `memlock_bytes` (-1: unlimited), `ipc_lock` (whether this
    process may lock memory past that limit), `huge_free_bytes` (`None` where the kernel has no
    huge pages), `fi_info` (`None` without a device). Raises `Unreadable` where /sys can't be read.
    """
    tree = Tree(root=context.host_root)
    context.progress(step="reading EFA devices in /sys")
    found, files = _look(tree).rdma, nic_files.uverbs(tree)
    context.progress(step="asking fi_info")
    return {
        "devices": [
            {
                "name": d.name,
                "address": d.address,
                "uverbs": d.name in files,
                "p2p": or_none(tree, f"{nic.RDMA}/{d.name}/device/p2p", str),
            }
            for d in found
        ],
        "memlock_bytes": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "ipc_lock": _may_lock(),
        "huge_free_bytes": _huge(tree),
        "fi_info": efa_witness.ask() if found else None,
    }


def _look(tree: Tree) -> _Seen:
    return _Seen(
        pci=[f for f in nic.functions(tree) if f.efa],
        rdma=[d for d in nic.rdma(tree) if d.efa],
    )


def _huge(tree: Tree) -> int | None:
    """Bytes of free huge pages of all sizes."""
    try:
        sizes = tree.names(_PAGES)
    except Unreadable:
        return None
    free = 0
    for name in sizes:
        size = whole(name.removeprefix("hugepages-").removesuffix("kB")) * 1024
        free += size * tree.value(f"{_PAGES}/{name}/free_hugepages", whole)
    return free


def _may_lock() -> bool:
    """Whether this process has CAP_IPC_LOCK where the kernel asks for it: outside any container.

    In a user namespace of its own a process has capabilities that count for nothing there.
    """
    status = Path("/proc/self/status").read_text()
    effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    everyone = Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
    return everyone and bool(int(effective.split()[1], 16) >> _IPC_LOCK & 1)
