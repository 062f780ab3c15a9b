"""What it takes for a network adapter to read and write a GPU's memory itself (GPUDirect RDMA)."""

from __future__ import annotations

import re
from typing import Any

from nodeproof.probes import acs, pci, pcie
from nodeproof.probes.kernel_command import options
from nodeproof.probes.tree import Tree, Unreadable
from nodeproof.worker import Context

# NVIDIA's own module and the one of Mellanox that went before it.
_MODULES = ("nvidia_peermem", "nv_peer_mem")
_DMA_BUF_SINCE = (5, 12)  # the first kernel that registers a dma-buf as memory for RDMA
_OPEN = "Open Kernel Module"  # /proc/driver/nvidia/version, of the driver that exports dma-bufs
_GROUPS = "sys/kernel/iommu_groups"


def ready(context: Context) -> dict[str, Any]:
    """Work function: the ways there are, and what lies in them.

    Returns `ways` ("nvidia_peermem", "dma-buf", "efa p2p"; empty: none), `why_not` (a sentence for
    each way that is not there), `movers` (counts by kind), `redirecting` (ports of switches above
    GPUs and adapters that redirect), `untold` (such ports whose registers may not be read),
    `iommu` (kind of translation to how many of the movers have it; "none" is no IOMMU), `options`
    of the kernel that are about it, `unplaced` (movers without a NUMA node), `numa_nodes` and
    `virtual`. Raises `Unreadable` without a bus or a kernel release.
    """
    tree = Tree(root=context.host_root)
    found = pcie.movers(tree, pcie.tell(context))
    ways, why_not = _ways(tree, found)
    ports = sorted({p for m in found for p in pcie.above(tree, m.address)})
    redirect = {port: acs.redirects(tree, port) for port in ports}
    kinds = [m.kind for m in found]
    return {
        "ways": ways,
        "why_not": why_not,
        "movers": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "redirecting": [port for port, does in redirect.items() if does],
        "untold": [port for port, does in redirect.items() if does is None],
        "iommu": _translations(tree, found),
        "options": {k: v for k, v in options(tree).items() if "iommu" in k or k == "pci"},
        "unplaced": [m.address for m in found if m.numa_node is None and m.kind != "nvswitch"],
        "numa_nodes": pcie.numa_nodes(tree),
        "virtual": pcie.is_virtual(tree),
    }


def _ways(tree: Tree, found: list[pcie.Mover]) -> tuple[list[str], list[str]]:
    ways, why_not = [], []
    loaded = [name for name in _MODULES if (tree.root / "sys/module" / name).is_dir()]
    ways += loaded
    if not loaded:
        why_not.append("no module nvidia_peermem: load it (modprobe nvidia_peermem)")
    kernel, driver = _kernel(tree), _driver(tree)
    if kernel < _DMA_BUF_SINCE:
        why_not.append(f"no dma-buf: kernel {kernel[0]}.{kernel[1]} is older than 5.12")
    elif driver is None:
        why_not.append("no dma-buf: the NVIDIA driver is not loaded")
    elif _OPEN not in driver:
        why_not.append("no dma-buf: it takes the open kernel modules of the NVIDIA driver")
    else:
        ways.append("dma-buf")
    if any(_efa_reads_gpus(tree, m.address) for m in found if m.kind == "rdma"):
        ways.append("efa p2p")
    return ways, why_not


def _efa_reads_gpus(tree: Tree, address: str) -> bool:
    """Whether the EFA driver names NVIDIA as a provider of memory (amzn-drivers, efa_sysfs.c)."""
    said = pci.or_none(tree, f"{pci.DEVICES}/{address}/p2p", str)
    return said is not None and said.upper().startswith("NVIDIA")


def _kernel(tree: Tree) -> tuple[int, int]:
    release = tree.text("proc/sys/kernel/osrelease")
    match = re.match(r"(\d+)\.(\d+)", release)
    if match is None:
        raise Unreadable(f"/proc/sys/kernel/osrelease says {release[:40]!r}")
    return int(match[1]), int(match[2])


def _driver(tree: Tree) -> str | None:
    try:
        return tree.text("proc/driver/nvidia/version")
    except Unreadable:
        return None


def _translations(tree: Tree, found: list[pcie.Mover]) -> dict[str, int]:
    said = [_translation(tree, mover.address) for mover in found]
    return {kind: said.count(kind) for kind in sorted(set(said))}


def _translation(tree: Tree, address: str) -> str:
    """The kind of the device's group: "identity", "DMA", "DMA-FQ"; Linux ABI, iommu_groups."""
    place = tree.root / pci.DEVICES / address / "iommu_group"
    try:
        group = place.readlink().name
    except OSError:
        return "none"
    return str(pci.or_none(tree, f"{_GROUPS}/{group}/type", str) or "not shown")
