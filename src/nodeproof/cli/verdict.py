"""`nodeproof verdict FILE...`: decide from results files, here or on another machine."""

from __future__ import annotations

import argparse
import sys

from nodeproof import manifest, results
from nodeproof.reports import json as json_report
from nodeproof.reports import summary
from nodeproof.verdict import Decision, decide_any


def main(args: argparse.Namespace) -> int:
    """Print a verdict for each file; the exit status is that of the worst."""
    decisions = []
    for path in args.files:
        try:
            found = results.read(path)
        except OSError as error:
            print(f"nodeproof: {path}: {error.strerror}", file=sys.stderr)
            return 2
        told = decide_any(found, manifest.shipped())
        decisions.append(told.decision)
        if args.json:
            print(json_report.render(found, told), end="")
        else:
            print("\n".join(summary.lines(told)))
    worst = max(decisions, key=[Decision.ACCEPT, Decision.UNDECIDED, Decision.REJECT].index)
    return worst.exit_code
