"""`nodeproof fabric` without a command: which there are."""

from __future__ import annotations

import argparse
import sys


def main(args: argparse.Namespace) -> int:
    """Print every command in one line, and return the status of a usage error."""
    sys.stderr.write(f"nodeproof: which of the fabric commands?\n{args.commands_help}")
    return 2
