"""What the PCI bus shows of NVIDIA's GPUs, whether a driver is loaded or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from nodeproof.probes.tree import Tree, Unreadable
from nodeproof.worker import Context

_NVIDIA = 0x10DE
_GPU_CLASSES = frozenset({0x0300, 0x0302})  # VGA and 3D controller, PCI code and ID assignment 3.1
_DEVICES = "sys/bus/pci/devices"
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
    """NVIDIA's GPUs in the order of their addresses. Raises `Unreadable` without a PCI bus."""
    found = []
    for address in tree.names(_DEVICES):
        folder = f"{_DEVICES}/{address}"
        # One that goes away between the listing and here is one that is not there.
        vendor = _or_none(tree, f"{folder}/vendor", _hex)
        if vendor != _NVIDIA:
            continue
        if tree.value(f"{folder}/class", _hex) >> 8 in _GPU_CLASSES:
            found.append(_controller(tree, address))
    return found


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
    folder = f"{_DEVICES}/{address}"
    return Controller(
        address=normalised(address),
        device=tree.value(f"{folder}/device", _hex),
        present=_answers(tree, folder),
        numa_node=_or_none(tree, f"{folder}/numa_node", _node),
        width=_or_none(tree, f"{folder}/current_link_width", _lanes),
        width_max=_or_none(tree, f"{folder}/max_link_width", _lanes),
        speed_gts=_or_none(tree, f"{folder}/current_link_speed", _speed),
        speed_max_gts=_or_none(tree, f"{folder}/max_link_speed", _speed),
    )


def _answers(tree: Tree, folder: str) -> bool | None:
    try:
        with (tree.root / folder / "config").open("rb") as config:
            head = config.read(4)
    except OSError:  # which says nothing about the device
        return None
    return head != b"\xff\xff\xff\xff" if len(head) == 4 else None


def _or_none(tree: Tree, path: str, read: Callable[[str], Any]) -> Any:
    try:
        return tree.value(path, read)
    except Unreadable:
        return None


def _hex(text: str) -> int:
    return int(text, 16)


def _node(text: str) -> int | None:
    return int(text) if int(text) >= 0 else None  # -1: the firmware names none


def _lanes(text: str) -> int | None:
    return int(text) if 0 < int(text) <= _WIDEST else None


def _speed(text: str) -> float | None:
    return float(text.split(maxsplit=1)[0]) if text[:1].isdigit() else None  # or "Unknown"
