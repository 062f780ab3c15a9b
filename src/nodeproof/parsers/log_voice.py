"""Whose voice a text is: the kernel's, a tool's that was refused, or nobody's that is known here.

A text in which the kernel does not speak says nothing of a node, and so is no log without faults.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from nodeproof.parsers.log_lines import LONGEST, of_buffer
from nodeproof.parsers.reading import text_of

# What tools say in place of a log: util-linux dmesg(1), systemd journalctl(1), shells.
_REFUSED = re.compile(
    rb"^(?:dmesg: (?:read kernel buffer failed|klogctl|cannot open|open)\b.*"
    rb"|-- No entries --"
    rb"|No journal files were (?:found|opened)\b.*"
    rb"|Hint: You are currently not seeing messages from\b.*"
    rb"|(?:sudo|bash|sh|zsh|env|cat|journalctl|tail|grep)\b.{0,200}: (?:command not found|not found"
    rb"|[Pp]ermission denied|Operation not permitted|No such file or directory|a password is required)"
    rb".*|Failed to (?:open|get|iterate|seek|add|search)\b.{0,80}\bjournal\b.*"
    rb"|Specifying boot ID .*|Data from the specified boot .*)$",
    re.MULTILINE,
)
# Lines without any stamp: a driver with its device, a frame of a stack, or a part of the kernel.
_BARE = re.compile(
    r"[\w-]{2,32} (?:[\da-fA-F]{4}:)?[\da-fA-F]{2}:[01][\da-fA-F]\.[0-7]\b"
    r"|(?:\? )?[\w.]+\+0x[\da-f]+/0x[\da-f]+"
    r"|(?:NVRM|nvidia(?:-[\w-]+)?|nvlink|nvidia_\w+|mlx[45]_\w+|mlx[45]|efa|ena|infiniband|ib_\w+|rdma"
    r"|gdrdrv|nouveau|nvme|usb|usbcore|hub|pci|pci_bus|pcieport|pciehp|ACPI|BERT|EDAC|GHES|HEST|mce|MCE"
    r"|APIC|x86|smp|smpboot|tsc|clocksource|cpuidle|EXT4-fs|XFS|BTRFS|Btrfs|FS-Cache|NFS|md|raid\d*"
    r"|device-mapper|scsi|sd|ata\d+(?:\.\d+)?|ahci|SCSI|TCP|UDP|IPv[46]|NET|Bluetooth|bond\d+|bonding"
    r"|docker0|br-\w+|eth\d+|en[ospx]\w+|veth\w+|cali\w+|cni\d+|lo|audit|random|SELinux|AppArmor|evm|ima"
    r"|integrity|kvm|vfio|vfio-pci|DMAR|AMD-Vi|iommu|hv_\w+|hyperv|xen\w*|virtio\w*|ipmi\w*|i2c|i40e|ice"
    r"|ixgbe|igb|tg3|bnxt_en|rcu|perf|hrtimer|watchdog|NMI watchdog|cgroup|overlayfs|squashfs|loop\d*"
    r"|loop|printk|microcode|Freeing [\w ]+|Memory|Out of memory|Kernel command line|Command line"
    r"|INFO|BUG|WARNING|RIP|Call Trace|Code|Modules linked in|CPU|PID|Hardware name)(?: \S{1,64}){0,3}?: "
    r"|Linux version \d|BIOS-e820: |Booting Linux|Call Trace:|Killed process \d|NETDEV WATCHDOG: "
    r"|CMCI storm|-+\[ cut here \]-+"
)
_WORDS = re.compile(
    r"NVRM: |SXid \(|AER: |PCIe Bus Error: |available PCIe bandwidth|\[Hardware Error\]|EDAC MC\d|mlx5_core"
    r"|NETDEV WATCHDOG: |soft lockup - CPU|hard LOCKUP|INFO: (?:task|rcu)|[Oo]ut of memory: Kill"
    r"|oom-kill:|-\[ cut here \]-|\+0x[\da-f]+/0x[\da-f]+ \["
)
_KERNEL_HIDDEN = re.compile(r"\bS?Xid \((?:PCI:)?[\da-fA-F:.]{5,20}[ )]")
# Where a message of the kernel or of one of its drivers may begin.
_HEADS = re.compile(
    r"(?<![\w.-])(?:NVRM: |nvidia[-_](?:nvswitch\d*|uvm): |EDAC MC\d|(?:mce: )?\[Hardware Error\]: "
    r"|\{\d{1,9}\}\[Hardware Error\]|mlx5_core |infiniband efa_|efa[: ]|NETDEV WATCHDOG: "
    r"|(?:(?:NMI )?watchdog: )?BUG: |(?:rcu: )?INFO: (?:task|rcu)|kernel BUG at |Kernel panic - "
    r"|(?:NMI )?[Ww]atchdog: |(?:Memory cgroup o|O)ut of memory: Kill|Memory failure: 0x"
    r"|Uncorrected hardware memory|[\w-]{2,32} [\da-fA-F]{4}:[\da-fA-F]{2}:[01][\da-fA-F]\.[0-7]: )"
)
_TRIED = 4  # places in a line at which a message may begin
# What a program puts in front of what it quotes: its name and number, its level, its keys.
_NAMED = (
    r"[\w.@/-]+\[\d+\]:|\b[\w-]+="
    r"|\b(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERR|ERROR|CRIT|CRITICAL|FATAL|ALERT)\b"
    r"|\b(?:trace|debug|info|notice|warn|warning|error|critical|fatal)(?:\t|: |\] )|\b[IWEF]\d{4} "
)
_NAMES_IT = re.compile(_NAMED)
_PROGRAM = re.compile(rf"[\"'`]|{_NAMED}")


def refusal(data: bytes) -> str | None:
    """Return the line by which a tool says that it could not read the log, if there is one."""
    for part in (data[:LONGEST], data[-LONGEST:]):
        if found := _REFUSED.search(part):
            return text_of(found[0]).strip()[:200]
    return None


def kernel_speaks(data: bytes) -> bool:
    """Whether any line has the form of the kernel's buffer, or words that only the kernel has."""
    for raw in _each(data):
        text = text_of(raw[:LONGEST])
        if of_buffer(text) or _BARE.match(text.strip()):
            return True
    return False


def kernel_quoted(texts: Iterable[str]) -> bool:
    """Whether any line has words of the kernel or of its drivers, whoever repeats them."""
    return any(map(_WORDS.search, texts))


def named(front: str) -> bool:
    """Whether what stands in front of a quotation names the program that quotes, or its level."""
    return _NAMES_IT.search(front) is not None


def unplaced(text: str) -> bool:
    """Whether an Xid or SXid stands in a line behind something that nobody knows.

    A program that quotes the kernel is known by its name, level or keys; without those it may be
    the kernel itself, by way of a writer that this version can't read.
    """
    found = _KERNEL_HIDDEN.search(text)
    return found is not None and _PROGRAM.search(text, 0, found.start()) is None


def quoted(text: str, *, doubtful: bool = False) -> list[str]:
    """What may be messages of the kernel behind something that nobody knows, as far as `unplaced`.

    Of a line that is `doubtful`, whatever stands in front; else no program may be named there.
    """
    begins = [found.start() for found in islice(_HEADS.finditer(text), _TRIED)]
    if not doubtful:
        begins = [b for b in begins if b and _PROGRAM.search(text, 0, b) is None]
    return [text[begin:] for begin in begins]


def _each(data: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        if end > start:
            yield data[start:end]
        start = end + 1


def plain(data: bytes) -> bytes:
    """Bytes in UTF-8 with line feeds, whatever a tool on the way made of them.

    UTF-16, with its mark or without, is brought to UTF-8; a text without a line feed has its
    carriage returns for line ends.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        data = data.decode("utf-16", "backslashreplace").encode("utf-8", "backslashreplace")
    elif nulled := _nulled(data):
        data = data.decode(nulled, "backslashreplace").encode("utf-8", "backslashreplace")
    data = data.removeprefix(b"\xef\xbb\xbf")
    if b"\r" in data and b"\n" not in data.rstrip(b"\n"):
        data = data.replace(b"\r", b"\n")
    return data


def _nulled(data: bytes) -> str | None:
    """Return how a text is coded in which every other byte is null."""
    head = data[:256]
    half = len(head) // 2
    if half > 4 and head[1::2].count(0) > half * 0.9:
        return "utf-16-le"
    return "utf-16-be" if half > 4 and head[0::2].count(0) > half * 0.9 else None
