"""What the PCI bus shows of NVIDIA's GPUs, whether a driver is loaded or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from nodeproof.probes.tree import Tree, Unreadable, whole
from nodeproof.worker import Context

NVIDIA = 0x10DE
GPU_CLASSES = frozenset({0x0300, 0x0302})  # VGA and 3D controller, PCI code and ID assignment 3.1
DEVICES = "sys/bus/pci/devices"
_WIDEST = 32  # lanes; a register that reads as all ones gives 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """One display or 3D controller of NVIDIA's. `None` is what the kernel doesn't show.

    `present` is false where the configuration space reads as all ones: the device is in the
    kernel's list and no longer answers on the bus.
    """

    address: str  # dddd:bb:dd.f
    device: int  # PCI device id
    present: bool | None
    numa_node: int | None
    width: int | None  # lanes, as trained now; idle links may train down
    width_max: int | None
    speed_gts: float | None  # GT/s
    speed_max_gts: float | None


def gpus(tree: Tree) -> list[Controller]:
    """NVIDIA's GPUs in the order of their addresses. Raises `Unreadable`, as `identities` does."""
    found = []
    for address, vendor, group in identities(tree):
        if vendor == NVIDIA and group in GPU_CLASSES:
            found.append(_controller(tree, address))
    return found


def identities(tree: Tree) -> Iterator[tuple[str, int, int]]:
    """Address, vendor and class (without its interface) of every function on the bus, in order.

    A function that does not tell what it is may be any: a bus with one on it can't be counted.
    Raises `Unreadable` for such a one, by its address, and without a bus.
    """
    for address in tree.names(DEVICES):
        folder = f"{DEVICES}/{address}"
        try:
            vendor = tree.value(f"{folder}/vendor", hexadecimal)
            kind = tree.value(f"{folder}/class", hexadecimal)
        except Unreadable as refusal:
            # One that goes away between the listing and here is one that is not there.
            if not (tree.root / folder).exists():
                continue
            raise Unreadable(
                f"the PCI function {address} does not tell what it is: {refusal}; its kind can't "
                "be counted on this bus: look for it in the kernel's log, and mount the node's /sys"
            ) from None
        yield address, vendor, kind >> 8


def controllers(context: Context) -> dict[str, Any]:
    """Work function: `controllers`, a list of `Controller` as mappings.

    Raises `Unreadable` where the bus can't be read: mount the node's /sys under the host root.
    """
    return {"controllers": [asdict(c) for c in gpus(Tree(root=context.host_root))]}


def normalised(address: str) -> str:
    """`00000000:3B:00.0`, as NVML and CUDA write it, as the kernel's `0000:3b:00.0`.

    Raises `ValueError` for what is no address.
    """
    domain, bus, rest = address.strip().lower().split(":")
    slot, function = rest.split(".")
    return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(slot, 16):02x}.{int(function, 16):x}"


def _controller(tree: Tree, address: str) -> Controller:
    folder = f"{DEVICES}/{address}"
    return Controller(
        address=normalised(address),
        device=tree.value(f"{folder}/device", hexadecimal),
        present=answers(tree, folder),
        numa_node=or_none(tree, f"{folder}/numa_node", numa),
        width=or_none(tree, f"{folder}/current_link_width", lanes),
        width_max=or_none(tree, f"{folder}/max_link_width", lanes),
        speed_gts=or_none(tree, f"{folder}/current_link_speed", gigatransfers),
        speed_max_gts=or_none(tree, f"{folder}/max_link_speed", gigatransfers),
    )


def answers(tree: Tree, folder: str) -> bool | None:
    """Whether the device of a folder answers on the bus; `None` where that can't be told."""
    try:
        with (tree.root / folder / "config").open("rb") as config:
            head = config.read(4)
    except OSError:  # which says nothing about the device
        return None
    return head != b"\xff\xff\xff\xff" if len(head) == 4 else None


def or_none(tree: Tree, path: str, read: Callable[[str], Any]) -> Any:
    """What `read` makes of a file, `None` where it can't be read."""
    try:
        return tree.value(path, read)
    except Unreadable:
        return None


def hexadecimal(text: str) -> int:
    """Read "0x10de"."""
    return int(text, 16)


def numa(text: str) -> int | None:
    """Read the number of a NUMA node."""
    return int(text) if int(text) >= 0 else None  # -1: the firmware names none


def lanes(text: str) -> int | None:
    """Read the width of a link; `None` for none and for what no link has."""
    return int(text) if 0 < int(text) <= _WIDEST else None


def number_of_lanes(text: str) -> str:
    """What a file of lanes says, also 0 or 255 where there is no link. Raises `ValueError`."""
    if text != "Unknown":
        whole(text)
    return text


def gigatransfers(text: str) -> float | None:
    """Read "16.0 GT/s PCIe" or "8 GT/s", as older kernels write it."""
    return float(text.split(maxsplit=1)[0]) if text[:1].isdigit() else None  # or "Unknown"
