"""`nodeproof selftest`: every detector against its planted fault, and nothing else."""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from pathlib import Path

from nodeproof import lifeline, results
from nodeproof.cli import options, run, view
from nodeproof.results import FILE
from nodeproof.verdict import WITHHELD

_DEADLINE_S = 180.0


def main(args: argparse.Namespace) -> int:
    """Return 0 if every detector on every device caught its fault, 11 if not."""
    try:
        told = options.read(args)
    except ValueError as error:
        print(f"nodeproof: {error}", file=sys.stderr)
        return 2
    lifeline.adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="nodeproof-") as scratch:
        output = Path(scratch) / "results"
        output.mkdir()
        shown = view.Log(io.StringIO())
        args.run_id = told.run_id
        command = run.command(args, output, Path(scratch))
        ended = run.supervise(command, output, deadline_s=_DEADLINE_S, shown=shown)
        if ended.usage:
            print(f"nodeproof: {ended.usage}", file=sys.stderr)
            return 2
        lifeline.end_children()
        try:
            found = results.read(output / FILE)
        except OSError:
            print(f"nodeproof: no detector was tested: {ended.doubt}", file=sys.stderr)
            return 11
    tests = [t for t in found.selftests if t.check != WITHHELD]
    for test in tests:
        word = "caught" if test.caught else "MISSED"
        print(
            f"{word}  {test.check} on {test.device}" + ("" if test.caught else f": {test.summary}")
        )
    planned = [k for k in (found.plan.selftests if found.plan else ()) if k.check != WITHHELD]
    missed = [k for k in planned if k not in {t.key for t in tests if t.caught}]
    for key in missed:
        if key not in {t.key for t in tests}:
            print(f"MISSED  {key}: not tested")
    good = bool(planned) and not missed and not ended.doubt
    print(f"{len(planned) - len(missed)} of {len(planned)} planted faults caught")
    return 0 if good else 11
