"""The pairs on their own: CPU ranks on this machine, and a matrix of what they reach.

python -m nodeproof.nccl_tests.pairs_alone --ranks 4
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodeproof.child import Pool
from nodeproof.nccl_tests.alone import run

_CALL = "nodeproof.nccl_tests.pairs:pairs"
_DEADLINE_S = 120.0


def main() -> None:
    """Prove that planted faults are found, then exchange; exit 1 for anything wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="CPU ranks (default: 2)")
    parser.add_argument("--bytes", type=int, default=1 << 20, help="of a message (1 MiB)")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long (2)")
    parser.add_argument("--seed", type=int, default=1, help="of the data; a run can be replayed")
    given = parser.parse_args()
    names = [f"cpu{rank}" for rank in range(given.ranks)]
    sizes = {"bytes_cpu": given.bytes, "bytes_gpu": given.bytes}
    with tempfile.TemporaryDirectory(prefix="nodeproof-") as folder:
        ends = time.monotonic() + 2 * _DEADLINE_S + given.seconds
        pool = Pool(ends=ends, logs=Path(folder), listen=lambda *_: None)
        for name in names:
            pool.add(name)
        try:
            planted = run(
                pool, names, {**sizes, "plant": "flip"}, Path(folder), given.seed, call=_CALL
            )
            for name, result in planted.items():
                if not result["planted"] or result["found"] != result["planted"]:
                    sys.exit(f"{name}: the planted faults were not found as planted: {result}")
            print(f"# planted faults found exactly on {len(planted)} ranks")
            more = {**sizes, "seconds": given.seconds}
            results = run(pool, names, more, Path(folder), given.seed, call=_CALL)
        finally:
            pool.close()
    print("\n".join(table(list(results.values()))))
    sys.exit(1 if any(result["wrong"] for result in results.values()) else 0)


def table(results: list[Mapping[str, Any]]) -> list[str]:
    """The matrix of all ordered pairs, senders down and receivers across."""
    first = results[0]
    ranks = range(first["size"])
    head = (
        f"# {first['transport']['backend']}, {first['size']} ranks, {first['bytes']} bytes, "
        f"{first['sweeps']} sweeps, wrong bytes {sum(r['wrong'] for r in results)}; GB/s"
    )
    lines = [head, "from \\ to" + "".join(f"{rank:>9}" for rank in ranks)]
    for sender in ranks:
        row = "".join(f"{first['gbs'][sender][receiver]:>9.3g}" for receiver in ranks)
        lines.append(f"{sender:>9}{row}")
    lines.append("  at once" + "".join(f"{gbs:>9.3g}" for gbs in first["together_gbs"]))
    return lines


if __name__ == "__main__":
    main()
