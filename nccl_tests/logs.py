"""NCCL's own word on what it used: have it written to files, and read what was written.

Sources: NVIDIA/nccl (src/debug.cc: %h and %p in NCCL_DEBUG_FILE; src/plugin/net.cc: a network that
NCCL_NET names and nobody offers ends the init), aws/aws-ofi-nccl at 2daf7d30
(src/nccl_ofi_interface_nvidia.cpp: it answers to "AWS Libfabric" in all of its versions).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodeproof.parsers.nccl_lines import Lines, lines_of
from nodeproof.worker import Context

MOST_BYTES = 256 * 1024  # of one log: some hundred KiB are usual for 16 ranks
_MOST_FILES = 256
_PREFIX, _SUFFIX = "nccl.", ".log"
_SUBSYSTEMS = ("INIT", "NET", "ENV")
_NETWORKS = {
    "": {},
    "efa": {"NCCL_NET": "AWS Libfabric"},
    "infiniband": {"NCCL_NET": "IB"},
    "roce": {"NCCL_NET": "IB"},
    "tcp": {"NCCL_NET": "Socket"},
}
# How two ranks are joined by a network, and whether it reads the GPU's memory itself
# (src/transport/net.cc: "via NET/<name>/<device>(<proxy's rank>)/GDRDMA").
_CHANNEL = re.compile(r"via NET/[\w .-]{1,40}?/\d{1,6}(?:\(\d{1,6}\))?(/GDRDMA)?")
_LAYER = re.compile(r"NET/IB ?: Using.{0,400}?:\d{1,3}/(RoCE|IB)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What the logs of one node's ranks say together."""

    networks: frozenset[str]  # efa, infiniband, roce, tcp, or a provider of libfabric's by its name
    logs: int
    silent: int  # logs that name no network
    gdr: bool | None  # whether every channel to another node used GPUDirect; `None`: none is shown
    nics: int | None  # EFA devices that libfabric found, where it found fewest
    faults: tuple[str, ...]  # what NCCL says of a device or port in a bad state


def said(texts: Sequence[str], *, idle: bool = True) -> Said:
    """Read the logs of one node. `idle`: nobody else uses it, so a busy GPU is a broken one."""
    read_each = [(text, lines_of(text, idle=idle)) for text in texts]
    used = [_network(text, lines) for text, lines in read_each]
    channels = [found for text in texts for found in _CHANNEL.findall(text)]
    nics = [count for _, lines in read_each for count in lines.nics]
    return Said(
        networks=frozenset(used) - {""},
        logs=len(texts),
        silent=used.count(""),
        gdr=all(channels) if channels else None,
        nics=min(nics, default=None),
        faults=tuple(dict.fromkeys(fault for _, lines in read_each for fault in lines.faults)),
    )


def _network(text: str, lines: Lines) -> str:
    """The network between nodes by one log, "" where it names none."""
    others = [name for name in lines.providers if not name.startswith("efa")]
    if lines.transport == "socket" or any("tcp" in name or "sockets" in name for name in others):
        return "tcp"
    if others:
        return others[0]
    if lines.transport == "ib":
        layers = set(_LAYER.findall(text))
        return "roce" if layers == {"RoCE"} else "infiniband"
    return "efa" if lines.transport == "efa" else ""


def environment(folder: str, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """What to set for a worker, so that NCCL writes to `folder` which network it takes.

    `given` is what is set already (by default, this process's): a level above INFO and subsystems
    of the user's own stay, beside ours.
    """
    given = os.environ if given is None else given
    trace = given.get("NCCL_DEBUG", "").upper() == "TRACE"
    return {
        "NCCL_DEBUG": "TRACE" if trace else "INFO",
        "NCCL_DEBUG_SUBSYS": _subsystems(given.get("NCCL_DEBUG_SUBSYS", "")),
        "NCCL_DEBUG_FILE": str(Path(folder) / f"{_PREFIX}%h.%p{_SUFFIX}"),
    }


def required(provider: str) -> dict[str, str]:
    """What to set so that NCCL fails at its start rather than fall back to another network.

    `provider` is what the spec expects: efa, infiniband, roce or tcp; nothing for "". These stand
    above what the user has set. Raises `ValueError` for any other.
    """
    if provider not in _NETWORKS:
        known = ", ".join(name for name in _NETWORKS if name)
        raise ValueError(f"unknown provider {provider!r}: one of {known}")
    needed = dict(_NETWORKS[provider])
    if provider in {"infiniband", "roce"}:
        # A port that takes over for a dead one would hide it (NCCL 2.30 and later).
        needed["NCCL_IB_RESILIENCY_PORT_FAILOVER"] = "0"
    return needed


def read(context: Context, *, folder: str, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """Work function: `texts`, one for each log that NCCL wrote to `folder`, by their names' order.

    Of a log that is longer than `most_bytes` a quarter of that from its start, where the networks
    are chosen, and the rest from its end; cut between lines, with a line between them that says so.
    No log is an empty list, which proves nothing. Raises `OSError` where the folder can't be read,
    `ValueError` where it holds too many logs to be those of one node.
    """
    files = sorted(
        file
        for file in Path(folder).iterdir()
        if file.name.startswith(_PREFIX) and file.name.endswith(_SUFFIX) and file.is_file()
    )
    if len(files) > _MOST_FILES:
        raise ValueError(f"{folder} holds {len(files)} NCCL logs: are they all of this node's run?")
    texts = []
    for file in files:
        context.progress(step=f"reading {file.name}")
        texts.append(_shortened(file, most_bytes))
    return {"texts": texts}


def _subsystems(given: str) -> str:
    names = [name.strip().upper() for name in given.removeprefix("^").split(",") if name.strip()]
    if given.startswith("^"):  # all but these
        left = [name for name in names if name not in _SUBSYSTEMS]
        return f"^{','.join(left)}" if left else "ALL"
    return "ALL" if "ALL" in names else ",".join(dict.fromkeys([*names, *_SUBSYSTEMS]))


def _shortened(file: Path, most: int) -> str:
    with file.open("rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(0)
        if size <= most:
            return log.read(most).decode("utf-8", "backslashreplace")
        start = log.read(most // 4)
        start = start[: start.rfind(b"\n") + 1]
        # The byte before it, to see whether the cut falls between two lines.
        log.seek(size - (most - most // 4) - 1)
        before, end = log.read(1), log.read(most - most // 4)
    if before != b"\n":
        end = end[end.find(b"\n") + 1 :] if b"\n" in end else b""
    left_out = f"[{size - len(start) - len(end)} bytes left out]\n"
    return "".join(
        (
            start.decode("utf-8", "backslashreplace"),
            left_out,
            end.decode("utf-8", "backslashreplace"),
        )
    )
