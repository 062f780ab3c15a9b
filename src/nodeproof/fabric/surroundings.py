"""What the environment says of this member: which rank it is, and of how many.

Read here and nowhere else, and only read: the mapping is given. What was said on the command line
comes first. Of launchers the innermost decides, since what an outer one set is inherited: `mpirun`
in a Slurm batch job starts all of its ranks with the batch script's `SLURM_PROCID=0`.

Sources of the names: torch/distributed/elastic/agent/server/local_elastic_agent.py (torchrun);
Open MPI 5 and MPICH 5 as they set them; Kubernetes, "Indexed completion mode"; man srun.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NODES = "NODEPROOF_NODES"  # how many there have to be, where the launcher does not say so
_NUMBER = re.compile(r"[0-9]{1,7}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which member this is."""

    rank: int  # 0 to nodes - 1
    nodes: int
    source: str  # where the rank was found, as the user would look for it
    beside: int = 0  # its number among the members that this machine has
    together: int = 1  # how many members this machine has, as far as the launcher says


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launcher:
    """The variables by which a launcher tells a process its place; "" where it has none."""

    name: str
    rank: str
    nodes: str = ""
    beside: str = ""
    together: str = ""
    mark: str = ""  # has to be there, too: the other names are not this launcher's alone
    own: bool = False  # sets its rank for each process that it starts, and for no other

    def started(self, environment: Mapping[str, str]) -> bool:
        return self.rank in environment and (not self.mark or self.mark in environment)


# The innermost first.
_LAUNCHERS = (
    _Launcher(
        name="torchrun",
        rank="RANK",
        nodes="WORLD_SIZE",
        beside="LOCAL_RANK",
        together="LOCAL_WORLD_SIZE",
        mark="TORCHELASTIC_RUN_ID",
        own=True,
    ),
    _Launcher(
        name="Open MPI",
        rank="OMPI_COMM_WORLD_RANK",
        nodes="OMPI_COMM_WORLD_SIZE",
        beside="OMPI_COMM_WORLD_LOCAL_RANK",
        together="OMPI_COMM_WORLD_LOCAL_SIZE",
        own=True,
    ),
    _Launcher(
        name="PMI",
        rank="PMI_RANK",
        nodes="PMI_SIZE",
        beside="MPI_LOCALRANKID",
        together="MPI_LOCALNRANKS",
        own=True,
    ),
    _Launcher(name="PMIx", rank="PMIX_RANK"),  # has no variable for the size
    _Launcher(name="Indexed Job", rank="JOB_COMPLETION_INDEX"),
    _Launcher(name="Slurm", rank="SLURM_PROCID", nodes="SLURM_NTASKS", beside="SLURM_LOCALID"),
    _Launcher(name="environment", rank="RANK", nodes="WORLD_SIZE"),
)


def place(
    environment: Mapping[str, str], *, rank: int | None = None, nodes: int | None = None
) -> Place:
    """Find the place of this member; `rank` and `nodes` are what the command line says.

    Raises `ValueError` with a sentence for the user where something is missing, is no number or
    contradicts something else.
    """
    launcher = next((each for each in _LAUNCHERS if each.started(environment)), None)
    if rank is not None:
        found = Place(
            rank=rank,
            nodes=_nodes(environment, None if nodes is not None else launcher, nodes),
            source="--node-rank",
        )
    elif launcher is None:
        known = ", ".join(dict.fromkeys(each.rank for each in _LAUNCHERS))
        raise ValueError(
            f"nothing says which rank this node is: give --node-rank, or set one of {known}"
        )
    else:
        found = Place(
            rank=_number(environment, launcher.rank),
            nodes=_nodes(environment, launcher, nodes),
            source=f"{launcher.rank} ({launcher.name})",
            beside=_optional(environment, launcher.beside, 0),
            together=_optional(environment, launcher.together, 1),
        )
    if found.nodes < 1:
        raise ValueError(f"a group has at least one node, not {found.nodes}")
    if not 0 <= found.rank < found.nodes:
        raise ValueError(
            f"{found.source} says rank {found.rank}, but a group of {found.nodes} has ranks 0 to "
            f"{found.nodes - 1}"
        )
    return found


def agreed(environment: Mapping[str, str], rank: int | None) -> None:
    """Raise `ValueError` where the command line says another rank than the launcher of this process.

    One command line for all ranks, with a rank in it, is a mistake: all would be that one. A Slurm
    job or an Indexed Job may well number its nodes otherwise, and is not asked.
    """
    launcher = next((each for each in _LAUNCHERS if each.own and each.started(environment)), None)
    if rank is None or launcher is None:
        return
    told = _number(environment, launcher.rank)
    if told != rank:
        raise ValueError(
            f"--node-rank says rank {rank} and {launcher.rank} ({launcher.name}) says {told}: leave "
            "--node-rank out, or start without the launcher"
        )


def _nodes(environment: Mapping[str, str], launcher: _Launcher | None, given: int | None) -> int:
    """How many nodes there have to be. All that say so have to agree: one of them is wrong."""
    said: dict[str, int] = {}
    if given is not None:
        said["--nodes"] = given
    elif NODES in environment:
        said[NODES] = _number(environment, NODES)
    if launcher is not None and launcher.nodes and launcher.nodes in environment:
        said[launcher.nodes] = _number(environment, launcher.nodes)
    if not said:
        raise ValueError(
            f"nothing says how many nodes there have to be: give --nodes, or set {NODES}"
        )
    (first, value), *others = said.items()
    for name, other in others:
        if other != value:
            raise ValueError(
                f"{first} says {value} nodes and {name} says {other}: start one member a node"
            )
    return value


def _optional(environment: Mapping[str, str], name: str, absent: int) -> int:
    return _number(environment, name) if name in environment else absent


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{name} is {text[:40]!r}, which is no number from 0 to 9999999")
    return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where one member says it is."""

    host: str
    boot_id: str  # "" where it can't be read
    given: str = ""  # what the cluster calls the node


def names(machines: Sequence[Machine], *, device: str) -> list[str]:
    """Name the members, by rank, so that no name is there twice.

    Members that share a host are `host#0`, `host#1`, and so on. That is a rehearsal: raises
    `ValueError` with a sentence where `device` is not "cpu", since one node that is two members
    would be its own partner.
    """
    if device != "cpu":
        _alone(machines)
    given = [machine.given for machine in machines]
    # A launcher that hands its own environment on gives them all one name, which is nobody's.
    called = given if all(given) and len(set(given)) == len(given) else [m.host for m in machines]
    often, seen = Counter(called), Counter[str]()
    named = []
    for name in called:
        named.append(f"{name}#{seen[name]}" if often[name] > 1 else name)
        seen[name] += 1
    return named


def _alone(machines: Sequence[Machine]) -> None:
    first: dict[str, int] = {}
    for rank, machine in enumerate(machines):
        for key in {f"host {machine.host}", f"boot {machine.boot_id or rank}"}:
            other = first.setdefault(key, rank)
            if other != rank:
                raise ValueError(
                    f"ranks {other} and {rank} are both on {machine.host}: start one member a "
                    "node; only --device cpu rehearses with more"
                )
