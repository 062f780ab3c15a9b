"""`nodeproof baseline FILE...`: from runs of known-good nodes to a spec of their kind."""

from __future__ import annotations

import argparse
import sys

from nodeproof import spec
from nodeproof.baseline import toml
from nodeproof.baseline.evidence import BaselineError, gather
from nodeproof.baseline.held import held
from nodeproof.baseline.learnt import learn
from nodeproof.reports.legible import legible


def main(args: argparse.Namespace) -> int:
    """Print the spec; the exit status is 0, or 2 where none can be made."""
    try:
        given = spec.load(args.spec) if args.spec else None
        files = [(str(path), path.read_bytes()) for path in args.files]
        evidence = gather(files, least_nodes=args.least)
        before = held(evidence, given)
        numbers, notes = learn(evidence, before, loosen=args.loosen)
    except BaselineError as error:
        return _refuse(*error.reasons)
    except spec.SpecError as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}")
    except RecursionError:
        return _refuse("a file holds what is nested too deeply to be compared")
    said = [*evidence.warnings, *notes]
    for note in said:
        print(f"nodeproof: note: {legible(note)}", file=sys.stderr)
    name = args.name or f"{evidence.machine or 'unnamed'}-baseline"
    print(toml.render(evidence, before, numbers, said, name=name), end="")
    return 0


def _refuse(*reasons: str) -> int:
    for reason in reasons:
        print(f"nodeproof: {legible(reason)}", file=sys.stderr)
    return 2
