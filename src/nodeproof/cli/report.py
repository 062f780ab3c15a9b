"""`nodeproof report FILE --format F`: render a results file."""

from __future__ import annotations

import argparse
import importlib
import sys

from nodeproof import manifest, results
from nodeproof.verdict import decide_any


def main(args: argparse.Namespace) -> int:
    """Write one report. The exit status says whether it was written, not what it says."""
    try:
        found = results.read(args.file)
    except OSError as error:
        print(f"nodeproof: {args.file}: {error.strerror}", file=sys.stderr)
        return 2
    renderer = importlib.import_module(f"nodeproof.reports.{args.format}")
    text: str = renderer.render(found, decide_any(found, manifest.shipped()))
    if args.output is None:
        sys.stdout.write(text)
        return 0
    try:
        args.output.write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"nodeproof: {args.output}: {error.strerror}", file=sys.stderr)
        return 2
    return 0
