"""`nodeproof gate RESULTS`: judge this node's own results, and lift its own taint if they hold."""

from __future__ import annotations

import argparse
import sys
import time

from nodeproof.gate.kube import Kube, Refused
from nodeproof.gate.lone import gate
from nodeproof.gate.names import Names
from nodeproof.gate.settings import Settings
from nodeproof.manifest import shipped


def main(args: argparse.Namespace) -> int:
    """Exit with the status of the verdict; 11 also where the API does not answer."""
    try:
        data = args.file.read_bytes()
    except OSError as error:
        print(f"nodeproof: {args.file}: {error.strerror}", file=sys.stderr)
        return 2
    settings = Settings(image="", names=Names(domain=args.domain))
    try:
        outcome = gate(
            Kube.here(), data, settings, shipped(), node_name=args.node_name, now=time.time()
        )
    except Refused as error:
        print(f"nodeproof: undecided: {error}", file=sys.stderr)
        return 11
    print(f"{args.node_name}: {outcome.decision}, {outcome.reason}: {outcome.text}")
    return outcome.decision.exit_code
