"""What the kernel was told when it started."""

from __future__ import annotations

from typing import Any

from nodeproof.probes.tree import Tree
from nodeproof.worker import Context

# Only options of the kernel's that bear on GPUs, buses, memory and evidence: others may hold names,
# addresses and keys, and are nobody's business.
KNOWN = frozenset(
    {
        "amd_iommu", "cgroup_enable", "default_hugepagesz", "edac_report", "hugepages", "hugepagesz",
        "init_on_alloc", "intel_iommu", "intel_idle.max_cstate", "iommu", "iommu.passthrough",
        "iommu.strict", "isolcpus", "maxcpus", "mce", "mem", "mitigations", "modprobe.blacklist",
        "module_blacklist", "nomodeset", "nohz_full", "nomce", "nosmt", "nr_cpus", "numa",
        "numa_balancing", "panic", "pci", "pcie_aspm", "pcie_ports", "processor.max_cstate",
        "ras", "rcu_nocbs", "transparent_hugepage", "tsc",
    }
)  # fmt: skip


def options(tree: Tree) -> dict[str, str]:
    """Options by name, of those that are `KNOWN`; `""` for one without a value.

    What comes again is joined by commas. Words behind `--` are init's. Raises `Unreadable`.
    """
    found: dict[str, str] = {}
    for word in words(tree):
        name, _, value = word.partition("=")
        if name in KNOWN:
            found[name] = f"{found[name]},{value}" if found.get(name) else value
    return found


def words(tree: Tree) -> list[str]:
    """All words for the kernel. Raises `Unreadable`."""
    # Not remembered: see `KNOWN`.
    line = tree.text("proc/cmdline", keep=False).split()
    return line[: line.index("--")] if "--" in line else line


def command(context: Context) -> dict[str, Any]:
    """Work function: `options` and `count`, how many words there are. Raises `Unreadable`."""
    tree = Tree(root=context.host_root)
    return {"options": options(tree), "count": len(words(tree))}
