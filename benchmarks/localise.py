"""How soon bad nodes of a fleet are named, how often wrongly, and what two common ways come to.

    python benchmarks/localise.py [--json] [--seed S] [--seeds 5]

Fleets of 64 to 16,384 simulated nodes, of which 1 % are bad for good (`nccl_tests/fleets.py` says
what is assumed). Prints one line for each size: figures of `localise`, which has to be done in
`most_rounds`, and those of two-pass pairing and of bisection on the same fleets, which are told
the true rate (with `--json` under `compared`). Over the seeds, `rounds` and `seconds` are the
worst, tests per node are the mean, and nodes of whatever kind are summed, `bad` ones too. Seconds
are of the processor, on choosing pairs and judging. What is open when the rounds are spent is
flaky or unresolved. The status is 1 if a bad node was not called bad, or a good one was, or a
fleet took over 5 s.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from nodeproof.nccl_tests.fleets import Fleet
from nodeproof.nccl_tests.simulate import METHODS, Score, score

MOST_ROUNDS = {64: 6, 256: 6, 1024: 6, 16_384: 8}
MOST_S = 5.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON line for each fleet")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--seeds", type=int, default=5, help="fleets of each size")
    args = parser.parse_args()
    met = True
    for nodes, most_rounds in MOST_ROUNDS.items():
        bad = max(1, nodes // 100)
        lines = {
            method: _line(
                [_scored(method, nodes, bad, args.seed + more, how) for more in range(args.seeds)]
            )
            for method, how in (
                ("adaptive", {"most_rounds": most_rounds}),
                ("two_pass", {}),
                ("bisection", {}),
            )
        }
        ours = lines.pop("adaptive") | {"most_rounds": most_rounds, "compared": lines}
        ours["met"] = not ours["missed"] and not ours["wrongly_blamed"] and ours["seconds"] < MOST_S
        met = met and ours["met"]
        print(json.dumps(ours) if args.json else _text(ours), flush=True)
    return 0 if met else 1


def _scored(method: str, nodes: int, bad: int, seed: int, how: dict[str, Any]) -> Score:
    # Drawn anew for each method, since a fleet's chance goes on with every test.
    fleet = Fleet.drawn(nodes=nodes, bad=bad, links=0, intermittent=0, seed=seed)
    return score(method, fleet, METHODS[method](fleet, seed=seed, **how), seed=seed)


def _line(scores: Sequence[Score]) -> dict[str, Any]:
    return {
        "nodes": scores[0].nodes,
        "bad": sum(each.bad for each in scores),
        "seeds": len(scores),
        "rounds": max(each.rounds for each in scores),
        "rounds_median": statistics.median(each.rounds for each in scores),
        "tests_per_node": round(statistics.mean(each.tests_per_node for each in scores), 3),
        "missed": sum(each.missed for each in scores),
        "wrongly_blamed": sum(each.wrongly_blamed for each in scores),
        "flaky": sum(each.flaky for each in scores),
        "unresolved": sum(each.unresolved for each in scores),
        "links_wrong": sum(each.links_wrong for each in scores),
        "seconds": max(each.seconds for each in scores),
    }


def _text(ours: dict[str, Any]) -> str:
    rows = [("localise", ours), *ours["compared"].items()]
    return "\n".join(
        f"{line['nodes']:6} nodes  {method:10} {line['rounds']:3} rounds, "
        f"{line['tests_per_node']:6} tests per node, {line['missed']} of {line['bad']} missed, "
        f"{line['wrongly_blamed']} wrongly blamed, {line['seconds']:.3f} s"
        for method, line in rows
    )


if __name__ == "__main__":
    sys.exit(main())
