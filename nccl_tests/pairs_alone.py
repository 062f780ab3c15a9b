"""The pairs on their own: CPU ranks on this machine, and a matrix of what they reach.

python -m nodeproof.nccl_tests.pairs_alone --ranks 4
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from nodeproof.nccl_tests.alone import meet

_CALL = "nodeproof.nccl_tests.pairs:pairs"


def main() -> None:
    """Prove that planted faults are found, then exchange; exit 1 for anything wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="CPU ranks (default: 2)")
    parser.add_argument("--bytes", type=int, default=1 << 20, help="of a message (1 MiB)")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long (2)")
    parser.add_argument("--seed", type=int, default=1, help="of the data; a run can be replayed")
    given = parser.parse_args()
    sizes = {"bytes_cpu": given.bytes, "bytes_gpu": given.bytes}
    results = meet(_CALL, sizes, ranks=given.ranks, seed=given.seed, seconds=given.seconds)
    print("\n".join(table(results)))
    sys.exit(1 if any(result["wrong"] for result in results) else 0)


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
