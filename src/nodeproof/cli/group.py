"""The commands about nodes that work together."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import Any

_SIZE = re.compile(r"(\d+)\s*(?:([KMG])(?:i?B)?|B)?", re.IGNORECASE)
_POWERS = {"": 0, "K": 10, "M": 20, "G": 30}


def add(commands: Any) -> None:
    """Declare them. `commands` is what argparse's add_subparsers returns."""
    fabric = commands.add_parser(
        "fabric", help="measure nodes together, and name the bad node, link or device"
    )
    kinds = fabric.add_subparsers(metavar="COMMAND")
    run = kinds.add_parser("run", help="measure this group of nodes and decide", description=_RUN)
    run.set_defaults(module="fabric_run")
    _add_run(run)

    judge = kinds.add_parser("judge", help="decide again by what a group measured")
    judge.set_defaults(module="fabric_judge")
    judge.add_argument("file", type=Path, metavar="FILE", help="fabric.json of a run")
    judge.add_argument(
        "--output",
        type=Path,
        default=Path("nodeproof-judged"),
        metavar="DIR",
        help="where the files go (default: nodeproof-judged)",
    )
    _add_terms(judge)

    localise = kinds.add_parser(
        "localise", help="say which node or link pair results blame", description=_LOCALISE
    )
    localise.set_defaults(module="fabric_localise")
    localise.add_argument("file", type=Path, metavar="FILE", help="fabric.json, or a list of pairs")
    localise.add_argument(
        "--ratio",
        type=float,
        help="of the reference that a pair has to reach (default: that of the run, or 0.85)",
    )
    localise.add_argument(
        "--floor-gbs",
        type=float,
        metavar="GBS",
        help="least reference (default: that of the run, or none)",
    )
    localise.add_argument("--json", action="store_true", help="print one JSON object")

    perf = kinds.add_parser(
        "perf",
        help="run NVIDIA's all_reduce_perf and judge it",
        description="Prints one JSON object. Exit status: 0 pass or warn, 10 fail, 11 error, 2 usage.",
    )
    perf.set_defaults(module="fabric_perf")
    _add_perf(perf)

    partners = kinds.add_parser(
        "partners",
        help="say with whom a new node is to prove its network",
        description="Prints one JSON object. Exit status: 0 the grade is accepted, 11 not, 2 usage.",
    )
    partners.set_defaults(module="fabric_partners")
    partners.add_argument(
        "file", type=Path, metavar="FILE", help="JSON: node, pending, known, devices, seed"
    )
    partners.add_argument(
        "--least",
        type=int,
        default=2,
        choices=range(4),
        help="grade that the site accepts: 3 a group, 2 a known-good partner, 1 loopback, 0 alone",
    )

    simulate = kinds.add_parser("simulate", help="localise faults in a simulated fleet")
    simulate.set_defaults(module="fabric_simulate")
    simulate.add_argument("--nodes", type=int, required=True, metavar="N")
    simulate.add_argument("--bad", type=int, default=0, metavar="K", help="nodes that are slow")
    simulate.add_argument("--links", type=int, default=0, metavar="L", help="links that are slow")
    simulate.add_argument(
        "--intermittent",
        type=float,
        default=0.0,
        metavar="P",
        help="below 1: how often a bad node passes all the same; from 1: that many nodes more, "
        "which pass half of the time",
    )
    simulate.add_argument("--seed", type=int, default=1, metavar="S")
    simulate.add_argument("--json", action="store_true", help="print one JSON line")
    # Without a command: what there is. A command's own module takes the place of this.
    fabric.set_defaults(module="fabric_commands", commands_help=fabric.format_help())


def _add_perf(perf: argparse.ArgumentParser) -> None:
    perf.add_argument("--ranks", type=_whole, required=True, metavar="N", help="in all")
    perf.add_argument("--program", default="", metavar="PATH", help="default: on PATH")
    perf.add_argument("--gpus", type=_whole, default=1, metavar="N", help="of each process")
    perf.add_argument("--least-bytes", type=_size, default=1 << 20, metavar="SIZE")
    perf.add_argument("--most-bytes", type=_size, default=8 << 30, metavar="SIZE")
    perf.add_argument("--iterations", type=_whole, default=20, metavar="N")
    perf.add_argument("--hosts", default="", metavar="A,B,...", help="that have to take part")
    perf.add_argument("--deadline", type=_seconds, default=600.0, metavar="SECONDS")
    perf.add_argument(
        "launch", nargs="*", metavar="-- ARGUMENT", help="what starts it, such as mpirun -n 16"
    )


_RUN = """Start it on every node of the group, or once with a launcher that starts it there. One node
alone is no group: what it proves has a lower grade. Writes fabric.json and the five files of a run,
on every node. Exit status: 0 accept, 10 reject, 11 undecided, 2 usage."""


_LOCALISE = """Reads the record of a group, or a list such as [{"round": 1, "a": "n1", "b": "n2",
"gbs": 10.2}, ...]: in one round no node has two pairs; "wrong" counts elements, "said" is why a pair
did not finish. Exit status: 0 all good, 10 a node is bad, 11 anything else, 2 usage."""


def _add_run(run: argparse.ArgumentParser) -> None:
    run.add_argument(
        "--launcher",
        choices=("static", "mpirun", "torchrun"),
        default="static",
        help="static: this command runs on every node (an Indexed Job); else it starts the members",
    )
    run.add_argument("--nodes", type=int, metavar="N", help="how many there have to be")
    run.add_argument(
        "--node-rank",
        dest="rank",
        type=int,
        metavar="R",
        help="of this node, 0 coordinates; default: JOB_COMPLETION_INDEX and the like",
    )
    run.add_argument(
        "--head",
        default="",
        metavar="HOST[:PORT]",
        help="where rank 0 listens; the same on every node",
    )
    run.add_argument(
        "--names",
        default="",
        metavar="A,B,...",
        help="of the nodes, by rank: no other may come, and one that is missing is called by it",
    )
    run.add_argument(
        "--known",
        default="",
        metavar="A,B,...",
        help="of the nodes, by name: known to be good, as partners of one that is not",
    )
    run.add_argument("--node-name", default="", metavar="NAME", help="default: the host's name")
    run.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"))
    run.add_argument(
        "--cpu-devices", type=int, default=1, metavar="K", help="of each node, for --device cpu"
    )
    run.add_argument("--host-root", type=Path, default=Path("/"), metavar="DIR")
    run.add_argument(
        "--max-bytes",
        type=_size,
        metavar="SIZE",
        help="the size that is judged (default: 8GiB on GPUs with 40 GB, 1GiB on smaller ones, "
        "4MiB in a rehearsal)",
    )
    run.add_argument(
        "--rounds", type=_whole, default=10, metavar="N", help="of pairs, at most (default: 10)"
    )
    run.add_argument(
        "--join-timeout", type=_seconds, default=120.0, metavar="SECONDS", help="default: 120"
    )
    run.add_argument(
        "--timeout",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="of each thing done together (default: 30)",
    )
    run.add_argument(
        "--deadline",
        type=_seconds,
        default=1500.0,
        metavar="SECONDS",
        help="of the whole run (default: 1500)",
    )
    run.add_argument(
        "--output",
        type=Path,
        default=Path("nodeproof-fabric"),
        metavar="DIR",
        help="where the files go (default: nodeproof-fabric)",
    )
    run.add_argument(
        "--dispatch", type=Path, metavar="FILE", help="in a pod: where the termination message goes"
    )
    run.add_argument("--seed", type=int, help="repeat the data of a run")
    _add_terms(run)
    run.add_argument("launch", nargs="*", metavar="-- ARGUMENT", help="for the launcher, after --")


def _add_terms(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--spec", default="", metavar="NAME|FILE", help="limits of the fabric checks (TOML)"
    )
    parser.add_argument("--waivers", type=Path, metavar="FILE", help="what may fail until when")
    parser.add_argument("--nonce", default="", help="repeated in the verdict, so that it binds")


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    if not found or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no size, such as 4MiB, 1G or 65536")
    return int(found[1]) << _POWERS[(found[2] or "").upper()]


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds")
    return seconds


def _whole(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 up")
    return int(text)
