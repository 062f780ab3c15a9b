"""Device files of RDMA adapters, by what the kernel's classes say of them.

/sys/class/infiniband_verbs/uverbsN is what every RDMA program opens; umadN and issmN, one each per
port in InfiniBand mode, are for its management (ABI of infiniband_verbs and infiniband_mad).
"""

from __future__ import annotations

from nodeproof.probes.tree import Tree

_VERBS, _MAD = "infiniband_verbs", "infiniband_mad"


def uverbs(tree: Tree) -> set[str]:
    """Names of the RDMA devices that have a uverbs file. Raises `Unreadable`."""
    return {
        tree.text(f"sys/class/{_VERBS}/{name}/ibdev")
        for name in _names(tree, _VERBS)
        if name.startswith("uverbs")
    }


def management(tree: Tree, kind: str) -> set[tuple[str, int]]:
    """RDMA device and port of each file of `kind`, `umad` or `issm`. Raises `Unreadable`."""
    return {
        (
            tree.text(f"sys/class/{_MAD}/{name}/ibdev"),
            tree.value(f"sys/class/{_MAD}/{name}/port", int),
        )
        for name in _names(tree, _MAD)
        if name.startswith(kind)
    }


def _names(tree: Tree, group: str) -> list[str]:
    # A module that is not loaded has no class; that is an answer.
    return tree.names(f"sys/class/{group}") if group in tree.names("sys/class") else []
