"""`nodeproof fabric simulate`: how well faults are localised in a fleet whose faults are known."""

from __future__ import annotations

import argparse
import json
import sys

from nodeproof.nccl_tests.fleets import DIPS, NOISE, Fleet
from nodeproof.nccl_tests.simulate import Score, adaptive, score


def main(args: argparse.Namespace) -> int:
    """Draw a fleet, localise, and print how right that was: a table, or one JSON line."""
    try:
        fleet = Fleet.drawn(
            nodes=args.nodes,
            bad=args.bad,
            links=args.links,
            intermittent=args.intermittent,
            seed=args.seed,
        )
    except ValueError as error:
        print(f"nodeproof: {error}", file=sys.stderr)
        return 2
    told = score("adaptive", fleet, adaptive(fleet, seed=args.seed), seed=args.seed)
    if args.json:
        print(json.dumps(told.json(), allow_nan=False))
    else:
        print("\n".join(_table(told)))
    return 0


_LEGEND = """
bad            slow with everybody; by turns: passes half of the time, or as often as asked
tests per node pairs that a node was in, in all rounds
missed         broken and called good: let in by mistake
wrongly bad    sound and called bad: kept out by mistake
flaky          passed here and failed there: retest, nobody is condemned
unresolved     too little is known to tell: undecided
common cause   so many fail that it is the fabric, and no single node
rates, slow    what healthy nodes are assumed to do, which must blame nobody"""


def _table(told: Score) -> list[str]:
    rows = [
        ("nodes", f"{told.nodes}, of which {told.bad} bad, {told.intermittent} by turns"),
        ("bad links", f"{told.links}, of which {told.links_named} were tested enough to be named"),
        ("rounds", f"{told.rounds}, {told.tests_per_node} tests per node"),
        ("missed", f"{told.missed}, of which {told.intermittent_missed} fail by turns"),
        ("wrongly bad", f"{told.wrongly_blamed}"),
        ("flaky", f"{told.flaky}, of which {told.wrongly_flaky} wrongly"),
        ("links wrongly", f"{told.links_wrong}"),
        ("unresolved", f"{told.unresolved}"),
        ("common cause", told.common or "none"),
        ("computing", f"{told.seconds} s"),
        ("assumed", f"rates vary by {NOISE:.0%}, {DIPS:.0%} of tests are slow by chance"),
    ]
    return [*(f"{name:14} {value}" for name, value in rows), _LEGEND]
