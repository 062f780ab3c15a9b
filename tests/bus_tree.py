"""A PCI bus made of files: devices under their ports, linked as the kernel links them."""

from __future__ import annotations

import struct
from pathlib import Path

ROOT, UP, DOWN, GPU = "0000:16:01.0", "0000:17:00.0", "0000:18:00.0", "0000:1b:00.0"
NIC_PORT, NIC = "0000:18:04.0", "0000:1c:00.0"
SWITCH_PORT, SWITCH = "0000:64:00.0", "0000:65:00.0"

_GPU = {"vendor": "0x10de", "class": "0x030200", "device": "0x2330"}
_PORT = {"vendor": "0x1000", "class": "0x060400", "device": "0xc030"}
_NIC = {"vendor": "0x15b3", "class": "0x020700", "device": "0x1021"}
_NVSWITCH = {"vendor": "0x10de", "class": "0x068000", "device": "0x22a3"}
_LINK = {
    "current_link_width": "16",
    "max_link_width": "16",
    "current_link_speed": "32.0 GT/s PCIe",
    "max_link_speed": "32.0 GT/s PCIe",
    "numa_node": "0",
}
# A Hopper GPU: registers in two lines, then the window into its memory.
RESOURCE = """\
0x00003ffffa000000 0x00003ffffaffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x00003fe000000000 0x00003fffffffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x00003ffffc000000 0x00003ffffdffffff 0x000000000014220c
"""
NAMES = {
    "fatal": ("Undefined", "Surprise Down Error", "Malformed TLP"),
    "nonfatal": ("Completion Timeout", "Unsupported Request"),
    "correctable": ("Receiver Error", "Bad TLP", "Replay Timer Timeout"),
}
_TOTALS = {"fatal": "FATAL", "nonfatal": "NONFATAL", "correctable": "COR"}


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def put_device(root: Path, way: list[str], *, config: bytes = b"", **attributes: str) -> None:
    """A device at the end of `way`, the addresses from its root port to itself."""
    folder = "sys/devices/pci0000:16/" + "/".join(way)
    for name, text in attributes.items():
        put(root, f"{folder}/{name}", text + "\n")
    (root / folder / "config").write_bytes(config or b"\xde\x10\x30\x23" + bytes(60))
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    (bus / way[-1]).symlink_to(f"../../../devices/pci0000:16/{'/'.join(way)}")


def hgx(root: Path, *, flags: str = "fpu vme") -> Path:
    """One GPU and one adapter under a switch, an NVSwitch with its two lanes, two NUMA nodes."""
    narrow = {"current_link_width": "2", "max_link_width": "2"}
    put_device(root, [ROOT], **_PORT, **_LINK)
    put_device(root, [ROOT, UP], **_PORT, **_LINK)
    put_device(root, [ROOT, UP, DOWN], **_PORT, **_LINK)
    put_device(root, [ROOT, UP, DOWN, GPU], **_GPU, **_LINK, resource=RESOURCE)
    put_device(root, [ROOT, UP, NIC_PORT], **_PORT, **_LINK)
    put_device(root, [ROOT, UP, NIC_PORT, NIC], **_NIC, **_LINK)
    put_device(root, [SWITCH_PORT], **_PORT, **_LINK)
    put_device(root, [SWITCH_PORT, SWITCH], **_NVSWITCH, **{**_LINK, **narrow})
    put_device(root, ["0000:00:0e.0"], **_PORT, **{**_LINK, "current_link_width": "1"})
    for node in ("node0", "node1"):
        (root / "sys/devices/system/node" / node).mkdir(parents=True)
    put(root, "proc/cpuinfo", f"processor : 0\nvendor_id : Example\nflags : {flags}\n\n")
    put(root, "proc/cmdline", "BOOT_IMAGE=/vmlinuz iommu=pt secret=hunter2\n")
    put(root, "proc/sys/kernel/osrelease", "6.8.0-1012\n")
    return root


def at(root: Path, address: str, name: str, text: str) -> None:
    """Change what one file of a device says."""
    (root / "sys/bus/pci/devices" / address / name).write_text(text)


def count(root: Path, address: str, **named: dict[str, int]) -> None:
    """Counters of errors as the kernel writes them, `fatal={"Malformed TLP": 1}`."""
    for severity, names in NAMES.items():
        found = dict.fromkeys(names, 0) | named.get(severity, {})
        lines = [f"{name} {number}" for name, number in found.items()]
        lines.append(f"TOTAL_ERR_{_TOTALS[severity]} {sum(found.values())}")
        at(root, address, f"aer_dev_{severity}", "\n".join(lines) + "\n")


def space(*, port_type: int, control: int | None) -> bytes:
    """A configuration space with the PCI Express capability and, given a control word, ACS."""
    data = bytearray(4096)
    data[0:4] = b"\x00\x10\x30\xc0"
    data[0x06] = 0x10  # there is a list
    data[0x34] = 0x40
    data[0x40:0x42] = b"\x01\x68"  # power management, then
    data[0x68:0x6A] = b"\x10\x00"
    data[0x6A] = port_type << 4 | 2
    struct.pack_into("<I", data, 0x100, 0x158 << 20 | 1 << 16 | 0x0001)  # errors, then
    if control is not None:
        struct.pack_into("<IHH", data, 0x158, 1 << 16 | 0x000D, 0x5F, control)
    return bytes(data)


def put_gpu_under_port(root: Path, port: str, address: str) -> None:
    """One more GPU, at a root port of its own."""
    put_device(root, [port], **_PORT, **_LINK)
    put_device(root, [port, address], **_GPU, **_LINK, resource=RESOURCE)
