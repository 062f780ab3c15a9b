"""Records of groups as `nodeproof fabric run` writes them: sound ones, to be harmed by a test."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nodeproof.nccl_tests import bandwidth
from nodeproof.nccl_tests.bandwidth import Collective
from nodeproof.nccl_tests.pair_tests import opening_rounds

BOOT = "6f2c1c3e-8f0e-4a55-9a56-2c1b3a4d5e6f"
SIZE = 4 << 20
ELEMENTS = 1 << 20  # verified, of each collective
SECONDS = 4e-4  # of a collective, of the slowest rank
GBS = 10.0  # between two members
REPEATS = 5
ALL = tuple(Collective)

Document = dict[str, Any]


def names(nodes: int) -> list[str]:
    return [f"xh{n}" for n in range(nodes)]


def record(nodes: int = 3, *, device: str = "cpu", devices: int = 1, rounds: int = 6) -> Document:
    """A group of sound nodes, each with some devices."""
    return {
        "schema": 1,
        "version": "0.1.0",
        "group": {
            "nodes": nodes,
            "device": device,
            "launcher": "static",
            "bytes": SIZE,
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
        "whole": {"ranks": _ranks(nodes, device, devices)},
        "small": {"ranks": _ranks(nodes, device, devices, of=ALL[:1])},
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


def paired(nodes: int, rounds: int = 6, *, gbs: float = GBS) -> list[dict[str, Any]]:
    """Rounds of node-disjoint pairs, each node with another partner until it has met all.

    Few nodes meet again, as often as a group of them does at first.
    """
    around: Sequence[int | None] = [*range(nodes), *([None] if nodes % 2 else [])]
    found, size = [], len(around)
    for turn in range(min(rounds, max(size - 1, opening_rounds(nodes)))):
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


def timed(document: Document, collective: Collective, seconds: float, part: str = "whole") -> None:
    """One collective takes each rank so long, and all that follows from it is said too."""
    for row in document[part]["ranks"]:
        answer, name = row["answer"], collective.value
        answer["own_times"][name] = [seconds] * REPEATS
        _work_out(answer, name, [answer["own_times"][name]])


def fewer(document: Document) -> None:
    """The last rank was never asked, and the others met without it."""
    for part in ("planted", "whole", "small"):
        document[part]["ranks"].pop()
        for row in document[part]["ranks"]:
            row["answer"]["size"] -= 1


def corrupted(document: Document, rank: int, *, wrong: int = 1) -> None:
    """One rank received so many wrong elements in an all-reduce, and says so."""
    answer = document["whole"]["ranks"][rank]["answer"]
    answer |= {"wrong": wrong, "found": [_flip("all_reduce", rank)]}
    answer["rows"][0]["wrong"] = wrong


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
            {
                "kind": kind,
                "id": f"cpu{d}" if device == "cpu" else f"GPU-{n:04x}-{d:04x}",
                "label": f"{kind}{d}",
                "facts": {},
            }
            for d in range(devices)
        ],
        "software": {"torch": "2.13.0", "nccl": "" if device == "cpu" else "2.28.3"},
    }


def _ranks(
    nodes: int,
    device: str,
    devices: int,
    *,
    planted: bool = False,
    of: Sequence[Collective] = ALL,
) -> list[dict[str, Any]]:
    kind, total = "cpu" if device == "cpu" else "gpu", nodes * devices
    places = itertools.product(range(nodes), range(devices))
    return [
        {
            "rank": rank,
            "member": f"xh{node}",
            "device": f"{kind}{number}",
            "answer": _answer(rank, total, device, of, planted=planted),
            "said": "",
        }
        for rank, (node, number) in enumerate(places)
    ]


def _answer(
    rank: int, size: int, device: str, of: Sequence[Collective], *, planted: bool
) -> dict[str, Any]:
    all_of = [collective.value for collective in of]
    flipped = [_flip(name, rank) for name in all_of] if planted else []
    answer: dict[str, Any] = {
        "wrong": len(flipped),
        "found": flipped,
        "planted": flipped,
        "checked": dict.fromkeys(all_of, ELEMENTS),
        "rows": [_moved(name, wrong=int(planted)) for name in all_of],
        "repeats": dict.fromkeys(all_of, REPEATS),
        "own_times": {name: _times(rank) for name in all_of},
        "largest_bytes": dict.fromkeys(all_of, SIZE),
        "size": size,
        "transport": {
            "backend": "gloo" if device == "cpu" else "nccl",
            "nccl": "" if device == "cpu" else "2.28.3",
            "torch": "2.13.0",
        },
    }
    for name in all_of:
        _work_out(answer, name, [_times(each) for each in range(size)])
    return answer


def _times(rank: int) -> list[float]:
    """Each rank waits a little less than the one before."""
    return [SECONDS - 1e-7 * rank] * REPEATS


def _work_out(answer: Document, name: str, times: Sequence[Sequence[float]]) -> None:
    """Write down what the times of all ranks come to."""
    seconds, size = bandwidth.slowest(times), answer["largest_bytes"][name]
    busbw = bandwidth.busbw_gbs(Collective(name), size, seconds, answer["size"])
    for figure, value in (
        ("own_seconds", answer["own_times"][name][0]),
        ("seconds", seconds),
        ("algbw_gbs", bandwidth.algbw_gbs(size, seconds)),
        ("busbw_gbs", busbw),
    ):
        answer.setdefault(figure, {})[name] = value


def _moved(collective: str, *, wrong: int) -> dict[str, Any]:
    return {
        "collective": collective,
        "dtype": "float32",
        "bytes": SIZE,
        "elements": ELEMENTS,
        "wrong": wrong,
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
