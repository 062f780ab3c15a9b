"""A recorded node: everything the probes read, for bug reports and for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nodeproof.probes import host, pci, software, telemetry
from nodeproof.probes.cuda import CudaError
from nodeproof.probes.devices import listing
from nodeproof.probes.nvml import NvmlError, session
from nodeproof.probes.tree import Tree, Unreadable
from nodeproof.worker import Context

SCHEMA = 1


def record(context: Context, *, device: str, cpu_devices: int) -> dict[str, Any]:
    """Work function: the node as the probes see it.

    Parts: `devices`, `host`, `pci`, `software`, `telemetry` (one sample by device id), each its
    probe's answer or `{"unreadable": why}`; and `files`, path to text of what was read of /proc
    and /sys. No environment, no host name, no machine id: `machine` stands for it.
    """
    tree = Tree(root=context.host_root)
    parts: dict[str, Callable[[], Any]] = {
        "devices": lambda: listing(context, tree, device=device, cpu_devices=cpu_devices),
        "host": lambda: _host(tree),
        "pci": lambda: [asdict(controller) for controller in pci.gpus(tree)],
        "software": lambda: software.versions(context, device=device),
    }
    read = {name: _part(part) for name, part in parts.items()}
    read["telemetry"] = _part(lambda: _samples(tree, read["devices"]))
    return {"schema": SCHEMA, **read, "files": dict(sorted(tree.seen.items()))}


def _part(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (Unreadable, NvmlError, CudaError, OSError, ValueError, KeyError) as error:
        return {"unreadable": f"{type(error).__name__}: {error}"}


def _host(tree: Tree) -> dict[str, Any]:
    found = host.describe(tree, output=Path(), shm=Path("/dev/shm"))  # noqa: S108  read, never written
    return {name: value for name, value in found.items() if name != "hostname"}


def _samples(tree: Tree, devices: dict[str, Any]) -> dict[str, Any]:
    samples = {}
    for device in devices["devices"]:
        if device["kind"] == "gpu":
            with session():
                samples[device["id"]] = telemetry.gpu_sample(device["id"])
        else:
            samples[device["id"]] = telemetry.Machine(tree).sample()
    return samples
