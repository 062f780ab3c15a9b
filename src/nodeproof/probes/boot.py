"""Which boot of which machine this is: an acceptance belongs to a boot."""

from __future__ import annotations

from pathlib import Path


def boot_id(host_root: Path) -> str:
    """The kernel's random id of this boot, `""` where it can't be read (which is no accept)."""
    try:
        return (host_root / "proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def instance_type(host_root: Path) -> str:
    """What the firmware calls this kind of machine, `""` where it doesn't say."""
    try:
        return (host_root / "sys/class/dmi/id/product_name").read_text().strip()
    except OSError:
        return ""
