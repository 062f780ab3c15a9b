"""Records of groups as `nodeproof fabric run` writes them: sound ones, to be harmed by a test."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nodeproof.nccl_tests.bandwidth import Collective

BOOT = "6f2c1c3e-8f0e-4a55-9a56-2c1b3a4d5e6f"
SECONDS = 0.010  # of a collective
GBS = 10.0  # between two members
REPEATS = 5

Document = dict[str, Any]


def names(nodes: int) -> list[str]:
    return [f"xh{n}" for n in range(nodes)]


def record(nodes: int = 3, *, device: str = "cpu", devices: int = 1, rounds: int = 3) -> Document:
    """A group of sound nodes, each with some devices."""
    return {
        "schema": 1,
        "version": "0.1.0",
        "group": {
            "nodes": nodes,
            "device": device,
            "launcher": "static",
            "bytes": 4 << 20,
            "seed": 7,
            "head": "10.77.0.1:29400",
            "head_name": "xh0",
            "boot_id": BOOT,
            "boot_id_end": BOOT,
            "started": "2026-11-30T20:00:00.000+00:00",
            "ended": "2026-11-30T20:01:00.000+00:00",
            "interrupted": "",
            "known": [],
            "ratio": 0.85 if device == "cuda" else 0.4,
            "floor_gbs": 0.0,
            "loopback": False,
            "join_timeout_s": 60.0,
            "timeout_s": 30.0,
        },
        "members": [_member(n, device, devices) for n in range(nodes)],
        "planted": {"ranks": _ranks(nodes, device, devices, planted=True)},
        "whole": {"ranks": _ranks(nodes, device, devices, planted=False)},
        "small": {"ranks": _ranks(nodes, device, devices, planted=False)},
        "pairs": paired(nodes, rounds),
        "rails": [],
        "traffic": {
            name: {"before": counted(0), "after": counted(1 << 34), "said": ""}
            for name in names(nodes)
        },
        "nccl": {name: {"texts": [], "said": ""} for name in names(nodes)},
    }


def counted(size: int) -> Document:
    """What a node's one interface has sent and received so far, as the probe reads it."""
    port = {
        "where": "eth0 (0000:00:05.0)",
        "name": "eth0",
        "kind": "ethernet",
        "address": "0000:00:05.0",
        "physical": True,
        "tx_bytes": size,
        "rx_bytes": size,
        "faults": {},
        "shown": {"tx_errors": 0, "rx_errors": 0},
        "at_top": [],
    }
    return {"devices": [port], "own": True}


def written(folder: Path, document: Document) -> Path:
    path = folder / "fabric.json"
    path.write_text(json.dumps(document))
    return path


def paired(nodes: int, rounds: int = 3, *, gbs: float = GBS) -> list[dict[str, Any]]:
    """Rounds of node-disjoint pairs, each node with another partner every round."""
    around: Sequence[int | None] = [*range(nodes), *([None] if nodes % 2 else [])]
    found, size = [], len(around)
    for turn in range(min(rounds, size - 1)):
        order = [around[0], *(around[1 + (k + turn) % (size - 1)] for k in range(size - 1))]
        for a, b in zip(order[: size // 2], reversed(order[size // 2 :]), strict=True):
            if a is not None and b is not None:
                found.append(_row(turn + 1, f"xh{a}", f"xh{b}", gbs))
    return found


def slowed(document: Document, name: str, *, to: float = GBS / 4) -> Document:
    """One member is slow with whomever it works."""
    for row in document["pairs"]:
        if name in {row["a"], row["b"]}:
            row["gbs"] = to
    return document


def lost(document: Document, name: str, why: str) -> Document:
    """One member went away while all worked together."""
    rank = names(len(document["members"])).index(name)
    document["members"][rank] |= {"lost": why, "lost_after_s": 12.5, "boot_id_end": ""}
    for row in (*document["whole"]["ranks"], *document["small"]["ranks"]):
        row |= {"answer": None, "said": f"rank {rank} ({name}) is not there: {why}"}
    document["pairs"] = []
    return document


def never_came(document: Document, rank: int) -> Document:
    """One member was never heard of."""
    was = document["members"][rank]["id"]
    document["members"][rank] |= {
        "id": f"rank {rank}",
        "came": False,
        "lost": f"rank {rank} never came within 60 s",
        "boot_id": "",
        "boot_id_end": "",
        "address": "",
        "devices": [],
        "software": {},
    }
    for part in ("planted", "whole", "small"):
        document[part]["ranks"] = []
    document["pairs"] = []
    for part in ("traffic", "nccl"):
        del document[part][was]
    return document


def _row(number: int, a: str, b: str, gbs: float) -> dict[str, Any]:
    return {"round": number, "a": a, "b": b, "gbs": gbs, "wrong": 0, "said": ""}


def _member(n: int, device: str, devices: int) -> dict[str, Any]:
    kind = "cpu" if device == "cpu" else "gpu"
    return {
        "id": f"xh{n}",
        "rank": n,
        "came": True,
        "lost": "",
        "lost_after_s": None,
        "boot_id": BOOT if n == 0 else f"{n:08x}{BOOT[8:]}",
        "boot_id_end": BOOT if n == 0 else f"{n:08x}{BOOT[8:]}",
        "address": f"10.77.0.{n + 1}",
        "instance_type": "",
        "devices": [
            {"kind": kind, "id": f"{kind}{d}", "label": f"{kind}{d}", "facts": {}}
            for d in range(devices)
        ],
        "software": {"torch": "2.13.0", "nccl": "" if device == "cpu" else "2.28.3"},
    }


def _ranks(nodes: int, device: str, devices: int, *, planted: bool) -> list[dict[str, Any]]:
    kind, total = "cpu" if device == "cpu" else "gpu", nodes * devices
    places = itertools.product(range(nodes), range(devices))
    return [
        {
            "rank": rank,
            "member": f"xh{node}",
            "device": f"{kind}{number}",
            "answer": _answer(rank, total, device, planted=planted),
            "said": "",
        }
        for rank, (node, number) in enumerate(places)
    ]


def _answer(rank: int, size: int, device: str, *, planted: bool) -> dict[str, Any]:
    all_of = [collective.value for collective in Collective]
    flipped = [_flip(name, rank) for name in all_of] if planted else []
    return {
        "wrong": len(flipped),
        "found": flipped,
        "planted": flipped,
        "checked": dict.fromkeys(all_of, 100_000),
        "rows": [_moved(name) for name in all_of],
        "repeats": dict.fromkeys(all_of, REPEATS),
        "own_times": {name: [SECONDS - 1e-5 * rank] * REPEATS for name in all_of},
        "own_seconds": dict.fromkeys(all_of, SECONDS - 1e-5 * rank),
        "seconds": dict.fromkeys(all_of, SECONDS),
        "algbw_gbs": dict.fromkeys(all_of, GBS),
        "busbw_gbs": dict.fromkeys(all_of, GBS),
        "largest_bytes": dict.fromkeys(all_of, 4 << 20),
        "size": size,
        "transport": {
            "backend": "gloo" if device == "cpu" else "nccl",
            "nccl": "" if device == "cpu" else "2.28.3",
            "torch": "2.13.0",
        },
    }


def _moved(collective: str) -> dict[str, Any]:
    return {
        "collective": collective,
        "dtype": "float32",
        "bytes": 4 << 20,
        "elements": 1 << 20,
        "wrong": 0,
        "timed": True,
    }


def _flip(collective: str, rank: int) -> dict[str, Any]:
    return {
        "collective": collective,
        "dtype": "float32",
        "bytes": 2048,
        "repeat": 0,
        "element": 10 + rank,
        "got": 3.0,
        "expected": 1.0,
        "bits": [30],
    }
