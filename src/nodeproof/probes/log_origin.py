"""Whether a log that begins with a boot is of this machine: it has to name what stands on its bus.

The kernel tells of each PCI function that it finds, with its address (drivers/pci/probe.c,
pci_setup_device), and so its memory, if it is whole, names every GPU of the machine. Who makes up a
log, as a sandbox does, may begin it as the kernel does, and still does not know these addresses.
A daemon's files may lack such a line, which is for debugging in older kernels.
"""

from __future__ import annotations

from dataclasses import replace

from nodeproof.probes.kernel_lines import Log
from nodeproof.probes.pci import DEVICES, GPU_CLASSES, NVIDIA, hexadecimal, normalised, or_none
from nodeproof.probes.tree import Tree, Unreadable
from nodeproof.worker import Context

_SHOWN = 4  # addresses in one sentence


def of_this_machine(log: Log, context: Context) -> Log:
    """Return `log`; not complete, with a note, where it has the boot and not this machine in it.

    It has to name every GPU of NVIDIA's on the bus under the host root, and the device under test,
    at the address that its driver gave; of a machine without any, one function of its bus at least.
    A bus that can't be read or is empty has nothing to hold the log against, and changes nothing:
    GPUs are missed there by the checks that count them.
    """
    if not log.complete:
        return log
    gpus, others = _on_bus(context)
    unnamed = [address for address in gpus if not _names(log.text, address)]
    if not gpus and others and not any(_names(log.text, address) for address in others):
        unnamed = others
    if not unnamed:
        return log
    shown = ", ".join(unnamed[:_SHOWN])
    more = f" and {len(unnamed) - _SHOWN} more" if len(unnamed) > _SHOWN else ""
    note = (
        f"{log.source} has the kernel's first line and does not name {shown}{more}, which this "
        "machine has: it is of another machine, or a sandbox's invention: run outside the sandbox"
    )
    return replace(log, complete=False, notes=(*log.notes, note))


def _on_bus(context: Context) -> tuple[list[str], list[str]]:
    """Addresses of NVIDIA's GPUs, and of all other functions."""
    tree = Tree(root=context.host_root)
    try:
        names = tree.names(DEVICES)
    except Unreadable:
        names = []
    gpus = {name: None for name in names if _is_gpu(tree, name)}
    own = context.facts.get("pci")
    if isinstance(own, str) and own:
        gpus[normalised(own)] = None
    return list(gpus), [name for name in names if name not in gpus]


def _is_gpu(tree: Tree, name: str) -> bool:
    vendor = or_none(tree, f"{DEVICES}/{name}/vendor", hexadecimal)
    kind = or_none(tree, f"{DEVICES}/{name}/class", hexadecimal)
    return vendor == NVIDIA and kind is not None and kind >> 8 in GPU_CLASSES


def _names(text: str, address: str) -> bool:
    """Whether a line of the kernel's own names a device; the driver leaves the function out."""
    device = address.lower().rpartition(".")[0]
    at = text.find(device)
    while at >= 0:
        line = text.rfind("\n", 0, at) + 1
        if text[line : line + 1] == "<" and text[line + 2 : line + 3] == ">":  # facility 0
            return True
        at = text.find(device, at + 1)
    return False
