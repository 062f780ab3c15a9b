"""The command that learns what a kind of node gives."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

_ABOUT = """Read results.jsonl of accepted runs of nodes of one kind that are known to be good, and print a
spec: what they give less a tenth, each number with its source. Exit status: 0 printed, 2 not, and
why."""


def add(commands: Any) -> None:
    """Declare it. `commands` is what argparse's add_subparsers returns."""
    baseline = commands.add_parser(
        "baseline", help="make a spec of runs of known-good nodes", description=_ABOUT
    )
    baseline.set_defaults(module="baseline")
    baseline.add_argument("files", nargs="+", type=Path, metavar="FILE")
    baseline.add_argument("--name", default="", help="of the spec (default: by machine or GPU)")
    baseline.add_argument(
        "--spec",
        default="",
        metavar="NAME|FILE",
        help="what the runs were held against, which is kept; a shipped one is found by itself",
    )
    baseline.add_argument(
        "--least",
        type=_count,
        metavar="N",
        help="different nodes there have to be (default: 3; of groups 4, in 3 runs)",
    )
    baseline.add_argument(
        "--loosen", action="store_true", help="let figures replace a limit that asks for more"
    )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of nodes")
    return int(text)
