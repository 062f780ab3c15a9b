"""How fast the kernel's log is searched: our search over line by line, and over one literal.

    python benchmarks/kernel_log.py [--mib 50] [--rounds 5] [--seed 1]

One run makes a log, nearly all of it harmless, with a few faults whose number is known; then, in
alternation, on one thread and by its CPU seconds: our whole reading (search, parse, grade), a match
of each line with one regular expression that finds the same lines, and a count of one literal.
Prints one JSON line. `over_lines` has to be 10 or more; `over_literal` is how many counts of one
literal our reading costs.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable

from nodeproof.parsers import kernel_log, log_catalog
from nodeproof.parsers.log_scan import MATTERS

# What the logs of nodes that run containers are full of.
_HARMLESS = (
    "systemd[1]: Started session {n} of user root.",
    'audit: type=1400 audit(17000{n}.1:33): apparmor="STATUS" operation="profile_load" name="cri"',
    "eth0: renamed from veth{n:08x}",
    "docker0: port 3(veth{n:x}) entered blocking state",
    "usb 1-1: new high-speed USB device number {n} using xhci_hcd",
    "IPv6: ADDRCONF(NETDEV_CHANGE): cali{n:x}: link becomes ready",
    "nvme nvme0: {n}/0/0 default/read/poll queues",
    "EXT4-fs (nvme0n1p1): mounted filesystem with ordered data mode. Quota mode: none.",
    "TCP: request_sock_TCP: Possible SYN flooding on port {n}. Sending cookies.",
    "DROP IN=eth0 OUT= MAC=06:00 SRC=192.0.2.7 DST=192.0.2.9 LEN=60 TTL=64 ID={n} PROTO=TCP SPT=1",
    "overlayfs: lowerdir is in-use as upperdir/workdir of another mount, {n}",
)
_FAULT = "NVRM: Xid (PCI:0000:{n:02x}:00): 119, pid=1, name=a, Timeout after 6s of waiting for RPC"
_FAULTS = 40


def main() -> None:
    """Measure, and refuse to report a speed at which a fault is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    data = _log(args.mib << 20, args.seed)
    catalog = log_catalog.shipped()

    def ours() -> int:
        return len(kernel_log.understood(kernel_log.lines(data), catalog).events)

    def by_line() -> int:
        return sum(1 for line in data.split(b"\n") if MATTERS.search(line))

    def literal() -> int:
        return data.count(b"NVRM")

    works: tuple[Callable[[], int], ...] = (ours, by_line, literal)
    for work in works:
        if (found := work()) != _FAULTS:
            raise SystemExit(f"{work.__name__} found {found} of {_FAULTS} faults")
    times: list[list[float]] = [[] for _ in works]
    for _ in range(args.rounds):
        for work, taken in zip(works, times, strict=True):
            begun = time.thread_time()
            work()
            taken.append(time.thread_time() - begun)
    mine, lines, one = (statistics.median(taken) for taken in times)
    megabytes = len(data) / 1e6
    told = {
        "benchmark": "kernel_log",
        "mib": args.mib,
        "faults": _FAULTS,
        "ours_mb_per_s": round(megabytes / mine, 1),
        "lines_mb_per_s": round(megabytes / lines, 1),
        "literal_mb_per_s": round(megabytes / one, 1),
        "over_lines": round(lines / mine, 2),
        "over_literal": round(mine / one, 2),
    }
    print(json.dumps(told))


def _log(size: int, seed: int) -> bytes:
    draw = random.Random(seed)
    lines, length, number = [], 0, 0
    while length < size:
        text = draw.choice(_HARMLESS).format(n=draw.randrange(1 << 16))
        lines.append(f"[{number * 0.01:12.6f}] {text}")
        length += len(lines[-1]) + 1
        number += 1
    step = len(lines) // _FAULTS
    for n in range(_FAULTS):
        lines[n * step] = f"[{n * step * 0.01:12.6f}] {_FAULT.format(n=n)}"
    return "\n".join(lines).encode()


if __name__ == "__main__":
    main()
