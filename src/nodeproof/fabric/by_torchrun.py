"""A member that torchrun starts: its place comes from the environment, and so does its name.

torchrun --nproc-per-node N --no-python python -P -m nodeproof.fabric.by_torchrun --head H:P

Without --no-python torchrun would put the current directory on the path of what it starts.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence

from nodeproof.fabric import member
from nodeproof.fabric.surroundings import place


def main(argv: Sequence[str] | None = None) -> int:
    """Take part, and return what `member.main` returns; 2 where this machine has a member too many.

    Members that share a machine are `host#0`, `host#1`, and so on: a rehearsal.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="nodeproof.fabric.by_torchrun", description=__doc__)
    parser.add_argument("--head", required=True, metavar="HOST:PORT")
    member.declare(parser)
    told = parser.parse_args(arguments)
    try:
        found = place(os.environ, rank=told.rank, nodes=told.nodes)
    except ValueError as error:
        sys.stderr.write(f"nodeproof: {error}\n")
        return 2
    if found.together > 1 and told.device != "cpu":
        sys.stderr.write(
            f"nodeproof: rank {found.rank} shares {platform.node()} with {found.together - 1} "
            "more: start one member a node; only --device cpu rehearses with more\n"
        )
        return 2
    if found.together > 1:
        arguments += ["--node-name", f"{platform.node()}#{found.beside}"]
    return member.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
