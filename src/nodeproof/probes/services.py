"""The daemons that GPUs and jobs depend on: running, not running, or not to be seen from here.

A container with process numbers of its own sees only itself: what it doesn't find there is hidden
and not absent. The control group that systemd makes for a service is a second witness, which a
container sees where the node's /sys is mounted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from nodeproof.probes import pcie
from nodeproof.probes.tree import Tree, Unreadable
from nodeproof.worker import Context

_COMM_BYTES = 15  # the kernel cuts names of processes there
_SLICES = (
    "sys/fs/cgroup/system.slice",  # version 2
    "sys/fs/cgroup/systemd/system.slice",  # version 1
    "sys/fs/cgroup/unified/system.slice",  # both
)
_TOOLKIT = (
    "usr/bin/nvidia-container-runtime",
    "usr/bin/nvidia-ctk",
    "usr/local/nvidia/toolkit/nvidia-container-runtime",  # where the GPU operator puts it
    "usr/local/nvidia/toolkit/nvidia-ctk",
    "etc/cdi/nvidia.yaml",
    "run/cdi/nvidia.yaml",
    "var/run/cdi/nvidia.yaml",
)


class State(StrEnum):
    """What can be said of a service."""

    RUNNING = "running"
    ABSENT = "absent"
    HIDDEN = "not visible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One service by its programs and the units that systemd may run it under."""

    programs: tuple[str, ...]
    units: tuple[str, ...] = ()


KNOWN = {
    "nvidia-fabricmanager": Service(
        programs=("nv-fabricmanager",), units=("nvidia-fabricmanager.service",)
    ),
    "nvlsm": Service(programs=("nvlsm",)),  # the fabric manager's helper since the fourth NVSwitch
    "nvidia-imex": Service(programs=("nvidia-imex",), units=("nvidia-imex.service",)),
    "nvidia-persistenced": Service(
        programs=("nvidia-persistenced",), units=("nvidia-persistenced.service",)
    ),
    "nv-hostengine": Service(
        programs=("nv-hostengine",), units=("nvidia-dcgm.service", "dcgm.service")
    ),
    "nvidia-device-plugin": Service(programs=("nvidia-device-plugin",)),
    "efa-device-plugin": Service(programs=("efa-k8s-device-plugin",)),
    "kubelet": Service(programs=("kubelet",), units=("kubelet.service",)),
    "containerd": Service(programs=("containerd",), units=("containerd.service",)),
    "dockerd": Service(programs=("dockerd",), units=("docker.service",)),
    "crio": Service(programs=("crio",), units=("crio.service",)),
}


def services(context: Context) -> dict[str, Any]:
    """Work function: `states` (service to `State`), `implied` and `toolkit`.

    `implied` are services that the hardware on the bus asks for, with the reason; `toolkit` the
    files of NVIDIA's container toolkit that are there. Raises `Unreadable` without /proc or a bus.
    """
    tree = Tree(root=context.host_root)
    return {
        "states": states(tree),
        "implied": _implied(tree),
        "toolkit": [path for path in _TOOLKIT if (tree.root / path).exists()],
    }


def states(tree: Tree) -> dict[str, str]:
    """Each known service and its `State`. Raises `Unreadable` without /proc."""
    running, whole = _programs(tree), _sees_all(tree)
    return {name: _state(tree, service, running, whole=whole) for name, service in KNOWN.items()}


def _state(tree: Tree, service: Service, running: set[str], *, whole: bool) -> State:
    if running & {program[:_COMM_BYTES] for program in service.programs}:
        return State.RUNNING
    if any(_populated(tree, unit) for unit in service.units):
        return State.RUNNING
    return State.ABSENT if whole else State.HIDDEN


def _sees_all(tree: Tree) -> bool:
    """Whether /proc shows all processes: only then is the kernel's own second one among them."""
    try:
        return tree.text("proc/2/comm", keep=False) == "kthreadd"
    except Unreadable:
        return False


def _programs(tree: Tree) -> set[str]:
    """Names of all processes that live, as short as the kernel keeps them."""
    found = set()
    for pid in tree.names("proc"):
        if not pid.isdecimal():
            continue
        try:
            stat = tree.text(f"proc/{pid}/stat", keep=False)
        except Unreadable:  # it has ended since
            continue
        head, _, rest = stat.rpartition(")")
        if rest.split()[:1] not in (["Z"], ["X"], []):  # one that died waits for its parent there
            found.add(head.partition("(")[2])
    return found


def _populated(tree: Tree, unit: str) -> bool:
    for place in _SLICES:
        try:
            if "populated 1" in tree.text(f"{place}/{unit}/cgroup.events", keep=False).splitlines():
                return True
        except Unreadable:
            pass
        try:
            if tree.text(f"{place}/{unit}/cgroup.procs", keep=False, may_be_empty=True):
                return True
        except Unreadable:
            pass
    return False


def _implied(tree: Tree) -> dict[str, str]:
    switches = pcie.switches(tree)
    if not switches:
        return {}
    return {"nvidia-fabricmanager": f"{len(switches)} NVSwitches on the bus ({switches[0]}...)"}
