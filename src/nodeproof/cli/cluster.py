"""The commands that talk to a Kubernetes cluster, and the one that Node Problem Detector calls."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

_DOMAIN = "nodeproof.dev"
_DAY_S = 86400.0


def add(commands: Any) -> None:
    """Declare them. `commands` is what argparse's add_subparsers returns."""
    controller = commands.add_parser(
        "controller",
        help="hold nodes until they have proved themselves, and release those",
        description="Runs until it is told to stop. Of several, the one with the Lease decides.",
    )
    controller.set_defaults(module="controller")
    _settings(controller)
    controller.add_argument(
        "--port", type=int, default=8080, help="for /healthz and /metrics (default: %(default)s)"
    )
    controller.add_argument(
        "--dry-run", action="store_true", help="say what it would do, and write nothing"
    )

    preflight = commands.add_parser(
        "preflight",
        help="list what in this cluster would be in the gate's way",
        description="Reads and writes nothing. Exit status: 0 nothing found, 11 something, 2 usage.",
    )
    preflight.set_defaults(module="preflight")
    _settings(preflight)

    requalify = commands.add_parser("requalify", help="have a node tested again")
    requalify.set_defaults(module="requalify")
    requalify.add_argument("node", metavar="NODE")
    requalify.add_argument("--word", default="", help="of the request; default: a new one")
    requalify.add_argument(
        "--wait", type=float, default=0.0, metavar="SECONDS", help="until it is decided"
    )
    _domain(requalify)

    gate = commands.add_parser(
        "gate",
        help="judge this node's own results and lift its own taint, without a controller",
        description="For a pod whose token is bound to its node. Exit status is the verdict's.",
    )
    gate.set_defaults(module="gate")
    gate.add_argument("file", type=Path, metavar="RESULTS", help="results.jsonl of the run")
    gate.add_argument("--node-name", required=True, metavar="N", help="name of this node")
    _domain(gate)

    watch = commands.add_parser(
        "watch",
        help="tell the cluster which GPUs this node has, so that a change is tested for",
        description="Writes an annotation of its own node where that moved, until it is told to "
        "stop. It can have the node tested again, and never proves it.",
    )
    watch.set_defaults(module="watch")
    watch.add_argument("--node-name", required=True, metavar="N", help="name of this node")
    watch.add_argument("--host-root", type=Path, default=Path("/"), metavar="DIR")
    watch.add_argument(
        "--interval", type=_interval, default=60.0, metavar="SECONDS", help="default: %(default)s"
    )
    watch.add_argument(
        "--once", action="store_true", help="look a single time; exit status 11: could not"
    )
    _domain(watch)

    npd = commands.add_parser(
        "npd",
        help="look at the node for Node Problem Detector",
        description="One line of at most 80 bytes. Exit status: 0 nothing seen, 1 a fault, 2 "
        "could not look. It can ask for a test, and never proves a node.",
    )
    npd.set_defaults(module="npd")
    npd.add_argument("--host-root", type=Path, default=Path("/"), metavar="DIR")
    npd.add_argument("--deadline", type=float, default=20.0, metavar="SECONDS")


def _interval(text: str) -> float:
    seconds = float(text)
    if not 1.0 <= seconds <= _DAY_S:
        raise argparse.ArgumentTypeError(f"{text}: give 1 to {_DAY_S:g} seconds")
    return seconds


def _settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--settings", type=Path, required=True, metavar="FILE", help="docs/kubernetes.md (TOML)"
    )


def _domain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--domain", default=_DOMAIN, help="of taints and annotations (default: %(default)s)"
    )
