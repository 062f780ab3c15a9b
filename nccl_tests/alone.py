"""The collectives on their own: CPU ranks on this machine, in a table like that of nccl-tests."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodeproof.child import Answer, Call, Pool

_CALL = "nodeproof.nccl_tests.inside:exchange"
_DEADLINE_S = 120.0


def main() -> None:
    """Prove that a planted fault is found, then exchange; exit 1 for anything wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="CPU ranks (default: 2)")
    parser.add_argument("--max-bytes", type=int, default=4 << 20, help="largest size (4 MiB)")
    parser.add_argument("--seed", type=int, default=1, help="of the data; a run can be replayed")
    given = parser.parse_args()
    sizes = {"max_bytes_cpu": given.max_bytes, "max_bytes_gpu": given.max_bytes}
    results = meet(_CALL, sizes, ranks=given.ranks, seed=given.seed)
    print("\n".join(table(results)))
    sys.exit(1 if any(result["wrong"] for result in results) else 0)


def meet(
    call: str, args: Mapping[str, Any], *, ranks: int, seed: int, seconds: float = 0.0
) -> list[Mapping[str, Any]]:
    """Have CPU ranks meet with a planted fault, and then without: what each says of the second.

    Ends the program where a rank has no answer, or did not find exactly what was planted.
    """
    names = [f"cpu{rank}" for rank in range(ranks)]
    with tempfile.TemporaryDirectory(prefix="nodeproof-") as made:
        folder = Path(made)
        ends = time.monotonic() + 2 * _DEADLINE_S + seconds
        pool = Pool(ends=ends, logs=folder, listen=lambda *_: None)
        for name in names:
            pool.add(name)
        try:
            planted = _run(pool, names, call, {**args, "plant": "flip"}, folder, seed)
            for name, result in planted.items():
                if not result["planted"] or result["found"] != result["planted"]:
                    sys.exit(f"{name}: the planted faults were not found as planted: {result}")
            print(f"# planted faults found exactly on {len(planted)} ranks")
            more = {**args, "seconds": seconds} if seconds else args
            return list(_run(pool, names, call, more, folder, seed).values())
        finally:
            pool.close()


def _run(
    pool: Pool, names: list[str], call: str, args: Mapping[str, Any], folder: Path, seed: int
) -> dict[str, Mapping[str, Any]]:
    store = tempfile.mkstemp(dir=folder, prefix="store-")[1]
    calls = {
        name: Call(call=call, args=args, context=_context(names, rank, store, seed))
        for rank, name in enumerate(names)
    }
    results = dict[str, Mapping[str, Any]]()
    deadline_s = _DEADLINE_S + float(args.get("seconds", 0.0))
    for name, reply in pool.run(calls, deadline_s=deadline_s).items():
        if not isinstance(reply, Answer):
            sys.exit(f"{name}: {reply}")
        results[name] = reply.result
    return results


def table(results: list[Mapping[str, Any]]) -> list[str]:
    """Rows of all ranks together: times and bandwidths only where they were taken."""
    lines = [f"# {results[0]['transport']} {results[0]['size']} ranks"]
    head = ("collective", "bytes", "type", "time us", "algbw", "busbw", "#wrong")
    form = "{:>15} {:>10} {:>9} {:>10} {:>8} {:>8} {:>7}".format
    lines.append(form(*head))
    for rows in zip(*(result["rows"] for result in results), strict=True):
        row = rows[0]
        name, first = row["collective"], results[0]
        figures = (
            [
                f"{first['seconds'][name] * 1e6:.1f}",
                f"{first['algbw_gbs'][name]:.4g}",
                f"{first['busbw_gbs'][name]:.4g}",
            ]
            if row["timed"]
            else ["-", "-", "-"]
        )
        wrong = sum(r["wrong"] for r in rows)
        lines.append(form(name, row["bytes"], row["dtype"], *figures, wrong))
    return lines


def _context(names: list[str], rank: int, store: str, seed: int) -> dict[str, Any]:
    return {
        "device_kind": "cpu",
        "device_id": names[rank],
        "device_label": names[rank],
        "torch_device": "cpu",
        "threads": 1,
        "peers": len(names),
        "profile": "quick",
        "seed": seed,
        "host_root": "/",
        "group": {"rank": rank, "size": len(names), "store": store, "labels": names},
    }
