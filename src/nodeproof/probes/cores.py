"""Whether all processors of a machine are of one kind, run one microcode and are governed alike."""

from __future__ import annotations

from typing import Any

from nodeproof.probes.tree import Tree, Unreadable
from nodeproof.worker import Context

_POLICIES = "sys/devices/system/cpu/cpufreq"
# What tells two processors apart in /proc/cpuinfo: on x86, then on arm64.
_OF_A_KIND = (
    ("vendor_id", "cpu family", "model", "model name", "stepping"),
    ("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision"),
)


def cores(context: Context) -> dict[str, Any]:
    """Work function: how many processors there are of each sort.

    Returns `kinds` (in the kernel's words), `microcodes` (version to count; empty: none shown, as
    on arm64) and `governors` (of frequency; empty: nobody governs, as in most virtual machines).
    Raises `Unreadable` without /proc/cpuinfo, or where it describes no processor.
    """
    tree = Tree(root=context.host_root)
    kinds: dict[str, int] = {}
    microcodes: dict[str, int] = {}
    for core in _described(tree):
        names = next((names for names in _OF_A_KIND if names[0] in core), ())
        kind = " ".join(core[name] for name in names if name in core)
        if not kind:
            raise Unreadable("/proc/cpuinfo describes a processor without its kind")
        kinds[kind] = kinds.get(kind, 0) + 1
        if version := core.get("microcode"):
            microcodes[version] = microcodes.get(version, 0) + 1
    if not kinds:
        raise Unreadable("/proc/cpuinfo describes no processor")
    return {"kinds": kinds, "microcodes": microcodes, "governors": _governors(tree)}


def _described(tree: Tree) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for line in tree.text("proc/cpuinfo", keep=False).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "processor" and value.strip().isdecimal():
            found.append({})
        if found:
            found[-1][name.strip()] = value.strip()
    return found


def _governors(tree: Tree) -> dict[str, int]:
    try:
        policies = [name for name in tree.names(_POLICIES) if name.startswith("policy")]
    except Unreadable:
        return {}
    said = [tree.text(f"{_POLICIES}/{name}/scaling_governor") for name in policies]
    return {governor: said.count(governor) for governor in sorted(set(said))}
