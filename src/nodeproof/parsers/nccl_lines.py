"""What the log lines of NCCL and of its libfabric plugin say: the network in use, and faults.

Read from NVIDIA/nccl (src/debug.cc, src/init.cc, src/transport, 2.4 to 2.30) and
aws/aws-ofi-nccl (0.9 to 1.20): the provider line is "Selected Provider is efa" up to 1.13 and
"Selected provider is efa, fabric is ..." since, with "(found N nics)" from 1.7 on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_PROVIDER = re.compile(r"provider is ([\w;.-]{1,40})", re.IGNORECASE)
_NICS = re.compile(r"\(found (\d{1,6}) nics?\)")
_NETWORK = re.compile(r"Using network ([\w/-]{1,40})")
_IB = re.compile(r"NET/IB ?: Using")
_SOCKET = re.compile(r"NET/Socket ?: Using")
_CHANNEL = re.compile(r"via (NVLS|P2P|SHM|NET/IB|NET/Socket)\b")
_WARNING = re.compile(r"NCCL WARN ?(.{0,300})")
_OURS = re.compile(r"NCCL (?:INFO|WARN|CALL|TRACE|version)|libfabric:")
_ASYNC = re.compile(r"async fatal event|Got async event ?: (?:port error|device fatal)")
_WORKS = re.compile(r"Init COMPLETE|Connected all (?:rings|trees)")
# NCCL notes each function that an error went through. Where networks and plugins are tried, another
# one is taken then; at the top the call itself came back with it. 7 is "in progress", ncclResult_t.
_CAME_BACK = re.compile(r"\b(?:init|group|enqueue)\.cc:\d{1,6} -> [1-6]\b.{0,80}")
# The program around it, when it gives up: PyTorch's watchdog, the C library, the shell.
_GAVE_UP = re.compile(
    r"[Ww]atchdog caught collective operation timeout.{0,200}|"
    r"[Ww]atchdog thread terminated with exception.{0,200}|"
    r"Some NCCL operations have failed or timed out.{0,80}|Timeout at NCCL work.{0,80}|"
    r"\b(?:Segmentation fault|Bus error|SIGSEGV|SIGBUS|SIGABRT|Fatal Python error)\b.{0,80}|"
    r"\(core dumped\)|terminate called after throwing.{0,80}"
)
# The node that a rank is on: NCCL puts its name in front, nccl-tests into the list of devices. How
# many there are NCCL says by itself (src/init.cc: "nranks 16 ... nNodes 2 localRanks 8").
_HOST = re.compile(r"(?:^|[\s>|\]]:?)(\w[\w.-]{0,253}):\d{1,9}:\d{1,9} \[\d{1,4}\] NCCL ")
_LISTED = re.compile(r"\bRank +\d{1,9} .{0,60}\bPid +\d{1,9} on +(\S{1,253}) +device +\d")
_NODES = re.compile(r"\bn_?Nodes:? (\d{1,9})\b", re.IGNORECASE)
_LOCAL = re.compile(r"\bnRanks (\d{1,9})\b.{0,60}\blocalRanks (\d{1,9})\b", re.IGNORECASE)
_NO_EFA = ("No eligible providers were found", "provider efa output empty list")

# CUDA's own words (cudaGetErrorString) for a device or driver in a bad state.
_BAD_STATE = re.compile(
    r"uncorrectable|hardware error|hardware stack error|busy or unavailable|'?unknown error|"
    r"GPU is lost|fallen off the bus",
    re.IGNORECASE,
)
_BUSY = "busy or unavailable"
# Warnings about settings, after which everything goes on.
_HARMLESS = re.compile(
    r"NUMA auto balancing|iommu|Linux kernel boot parameter|non-fatal async event|GID table changed|"
    r"unknown event type|MSCCL|is deprecated|Could not find|No NUMA|link_downed|BIOS",
    re.IGNORECASE,
)


@dataclass(slots=True, kw_only=True)
class Lines:
    """What the lines of one text show."""

    ours: int = 0  # lines, or parts of lines, of NCCL or libfabric
    providers: list[str] = field(default_factory=list)
    nics: list[int] = field(default_factory=list)
    networks: list[str] = field(default_factory=list)
    ib: bool = False
    socket: bool = False
    channels: set[str] = field(default_factory=set)  # how pairs of ranks are joined
    network: bool = False  # a pair of ranks is joined by a network, whichever
    hosts: set[str] = field(default_factory=set)  # whose lines of NCCL these are
    listed: set[str] = field(default_factory=set)  # hosts in the list of devices
    counted: int = 0  # nodes, by NCCL's own count; 0 where it is not shown
    works: bool = False  # a communicator was set up
    no_efa: bool = False
    faults: list[str] = field(default_factory=list)  # a device or port in a bad state
    stops: list[str] = field(default_factory=list)  # something failed, and nobody is to blame yet
    notes: list[str] = field(default_factory=list)  # warnings that stop nothing

    @property
    def transport(self) -> str:
        """The network that the text says is used: efa, ib, socket, nvlink or unknown.

        A rank that ended on sockets decides: what was found before was not used.
        """
        if "Socket" in self.networks:
            return "socket"
        if any(name.startswith("efa") for name in self.providers):
            return "efa"
        if self.ib or "IB" in self.networks:
            return "ib"
        if self.socket:
            return "socket"
        for channel, network in (("NET/IB", "ib"), ("NET/Socket", "socket"), ("NVLS", "nvlink")):
            if channel in self.channels:
                return network
        return "unknown"

    @property
    def crossed(self) -> bool:
        """Whether the text shows that ranks were joined by a network, or were on several nodes.

        Names in front of lines count only where NCCL does not say how many nodes there are: logs of
        nodes that each ran alone may stand in one text.
        """
        return self.network or max(self.counted or len(self.hosts), len(self.listed)) > 1


def lines_of(text: str, *, idle: bool) -> Lines:
    """Read a text line by line. `idle`: nobody else uses the node."""
    lines = Lines()
    for line in re.split(r"[\r\n]+", text):
        _take(lines, line, idle=idle)
    return lines


def bad_state(says: str, *, idle: bool) -> bool:
    """Does an error of CUDA show a device in a bad state? A busy one shows nothing if others work."""
    return _BAD_STATE.search(says) is not None and (idle or _BUSY not in says)


def _take(lines: Lines, line: str, *, idle: bool) -> None:
    if _OURS.search(line):
        lines.ours += 1
    if "rovider is" in line:
        lines.providers += [name.lower().rstrip(".") for name in _PROVIDER.findall(line)]
        lines.nics += [int(count) for count in _NICS.findall(line)]
    if "Using network" in line:
        lines.networks += _NETWORK.findall(line)
    lines.ib |= _IB.search(line) is not None
    lines.socket |= _SOCKET.search(line) is not None
    lines.channels.update(_CHANNEL.findall(line))
    lines.network |= "via NET/" in line
    if "NCCL" in line:
        lines.hosts.update(_HOST.findall(line))
    if "Rank" in line:
        lines.listed.update(_LISTED.findall(line))
    if "odes" in line or "ocalRanks" in line:
        lines.counted = max(lines.counted, _counted(line))
    lines.works |= _WORKS.search(line) is not None
    lines.no_efa |= any(words in line for words in _NO_EFA)
    if warned := _WARNING.search(line):
        _sort(lines, warned[1].strip(), line, idle=idle)
    elif stopped := _CAME_BACK.search(line) or _GAVE_UP.search(line):
        lines.stops.append(stopped[0].strip())


def _counted(line: str) -> int:
    nodes = max((int(count) for count in _NODES.findall(line)), default=0)
    ranks = _LOCAL.search(line)
    return max(nodes, 2 if ranks and int(ranks[1]) > int(ranks[2]) else 0)


def _sort(lines: Lines, says: str, line: str, *, idle: bool) -> None:
    if bad_state(says, idle=idle) or _ASYNC.search(says):
        lines.faults.append(says)
    elif _HARMLESS.search(line):
        lines.notes.append(says)
    else:
        lines.stops.append(says)
