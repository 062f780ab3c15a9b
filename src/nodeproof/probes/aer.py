"""What PCI Express devices count of their own errors (Advanced Error Reporting).

The kernel counts since the device was found (Linux ABI, sysfs-bus-pci-devices-aer). An error often
stands at the port above the device that made it. Machines whose firmware handles these errors
first, and most virtual ones, count nothing here: there the kernel's log is the witness.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from nodeproof.probes import pci, pcie
from nodeproof.probes.tree import Tree, whole
from nodeproof.worker import Context

_FILES = {
    "fatal": ("aer_dev_fatal", "TOTAL_ERR_FATAL"),
    "nonfatal": ("aer_dev_nonfatal", "TOTAL_ERR_NONFATAL"),
    "corrected": ("aer_dev_correctable", "TOTAL_ERR_COR"),
}
_LINE = re.compile(r"(.+) (\d+)")

Counts = dict[str, dict[str, dict[str, int]]]  # by address, severity and name of the error


def errors(context: Context) -> dict[str, Any]:
    """Work function: errors counted until now at GPUs, NVSwitches, RDMA adapters and their ports.

    Returns `watched` (addresses), `counts` (of those that count: address, then "fatal", "nonfatal"
    and "corrected", then the name of the error as the kernel writes it, without those that are
    zero), `off_bus` (addresses that read as all ones) and `unseen` (those for which that can't be
    told). Raises `Unreadable` without a bus, and where a file of counters is there and makes no
    sense.
    """
    tree = Tree(root=context.host_root)
    tell = pcie.tell(context)
    found = pcie.movers(tree, tell)
    watched, counts = _watched(tree, found), {}
    for address in watched:
        tell(address)
        if (counted := _counts(tree, address)) is not None:
            counts[address] = counted
    return {
        "watched": watched,
        "counts": counts,
        "off_bus": [m.address for m in found if m.present is False],
        "unseen": [m.address for m in found if m.present is None],
    }


def errors_since(context: Context, *, before: Mapping[str, Any]) -> dict[str, Any]:
    """Work function: what `errors` returns, and as `before` the counts that it gave at the start."""
    return {**errors(context), "before": before["counts"]}


def _watched(tree: Tree, found: list[pcie.Mover]) -> list[str]:
    ports = {port for mover in found for port in pcie.above(tree, mover.address)}
    return sorted({mover.address for mover in found} | ports)


def _counts(tree: Tree, address: str) -> dict[str, dict[str, int]] | None:
    """Counts of one device, `None` where it has none."""
    folder = f"{pci.DEVICES}/{address}"
    if not (tree.root / folder / _FILES["fatal"][0]).exists():
        return None
    return {
        severity: tree.value(f"{folder}/{file}", partial(_read, total))
        for severity, (file, total) in _FILES.items()
    }


def _read(total: str, text: str) -> dict[str, int]:
    """Read the lines "name count". The total counts messages, so it is kept under its own name."""
    found = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise ValueError(line)
        found[match[1].strip()] = whole(match[2])
    if total not in found:  # a file cut short says nothing about what it leaves out
        raise ValueError(text)
    return {name: count for name, count in found.items() if count}
