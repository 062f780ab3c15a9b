"""The spec of a run: the one that was named, or the one that fits the machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from nodeproof import spec, spec_choice
from nodeproof.probes import pci
from nodeproof.probes.boot import instance_type
from nodeproof.probes.tree import Tree, Unreadable
from nodeproof.spec import NO_SPEC, Spec


def chosen(word: str, *, host_root: Path, rehearsal: bool) -> Spec:
    """Load the spec of that name or path, or the one that fits for "auto".

    Without a fitting one the run has none, and its plan says why. A rehearsal judges no hardware,
    so nothing fits it. Reads the firmware's names and the PCI bus; loads no driver. Raises
    `SpecError`.
    """
    if not word or (rehearsal and word == spec_choice.AUTO):
        return NO_SPEC
    if word != spec_choice.AUTO:
        return spec.load(word)
    products = spec_choice.of_bus(_on_bus(host_root))
    choice = spec_choice.choose(
        instance_type(host_root), products, len(products), asset_tag=_asset_tag(host_root)
    )
    fits = spec.load(choice.spec_name) if choice.spec_name else NO_SPEC
    return dataclasses.replace(fits, source=f"{fits.source or 'no spec'}; auto: {choice.why}")


def _on_bus(host_root: Path) -> list[int]:
    """Device ids of NVIDIA's GPUs; none where the bus can't be read, which chooses nothing."""
    try:
        return [controller.device for controller in pci.gpus(Tree(root=host_root))]
    except Unreadable:
        return []


def _asset_tag(host_root: Path) -> str:
    try:
        return (host_root / "sys/class/dmi/id/chassis_asset_tag").read_text().strip()
    except OSError:  # not every machine has one
        return ""
