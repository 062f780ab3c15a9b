"""A member that mpirun starts: rank, size and names come from MPI, all else is as without it.

    mpirun -n N python -P -m mpi4py -m nodeproof.fabric.by_mpi --head HOST:PORT --nodes N

Through `-m mpi4py`, since without it an uncaught exception in one rank leaves all others waiting
for ever, under Open MPI and MPICH alike. Nothing is measured by MPI.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
from collections.abc import Sequence
from typing import Any

from nodeproof.fabric import member
from nodeproof.fabric.surroundings import Machine, names
from nodeproof.probes.boot import boot_id


def main(argv: Sequence[str] | None = None) -> int:
    """Agree on names with the other ranks, take part, and return what `member.main` returns."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    world = _world()
    rank, size = int(world.Get_rank()), int(world.Get_size())
    told = _told(arguments)
    mine = (platform.node(), boot_id(told.host_root), os.environ.get(member.NODE_NAME, ""))
    # Every rank sees the same and comes to the same end.
    everyone = world.allgather(mine)
    try:
        if told.nodes not in {None, size}:
            # The mpirun of another MPI starts ranks that know nothing of each other.
            raise ValueError(
                f"MPI has {size} ranks, not {told.nodes}: mpirun and mpi4py have to belong to "
                "the same MPI, and mpirun has to start one rank a node"
            )
        machines = [Machine(host=host, boot_id=boot, given=name) for host, boot, name in everyone]
        name = names(machines, device=told.device)[rank]
    except ValueError as error:
        sys.stderr.write(f"nodeproof: {error}\n")
        return 2
    # What is said last counts.
    placed = ["--rank", str(rank), "--nodes", str(size), "--node-name", name]
    return member.main([*arguments, *placed])


def _world() -> Any:
    # By name: it is there only where MPI is, and importing it starts MPI.
    return importlib.import_module("mpi4py.MPI").COMM_WORLD


def _told(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="nodeproof.fabric.by_mpi", description=__doc__)
    parser.add_argument("--head", required=True, metavar="HOST:PORT")
    member.declare(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
