"""Which runs may speak for a kind of node, and for how many nodes they do.

A baseline of a bad node accepts bad nodes for ever, and one of two kinds is too lax for the better
of them. So every run has to be a whole, accepted one, and all have to be of one kind; whatever is
not is named, and nothing is made of the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Any

from nodeproof import manifest, results
from nodeproof.manifest import digest_of
from nodeproof.model import COMPUTE, Device, DeviceKind
from nodeproof.results import Plan, Results
from nodeproof.verdict import Decision, decide_any, is_rehearsal

LEAST_NODES = 3
LEAST_MEMBERS = 4  # of groups, over all their runs
LEAST_GROUP_RUNS = 3
_SHOWN = 3  # reasons or files that a sentence names


class BaselineError(ValueError):
    """These runs are no baseline. `reasons` has one sentence for each thing that is wrong."""

    def __init__(self, *reasons: str) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


@dataclass(frozen=True, kw_only=True)
class Run:
    """One accepted run: the name of its file, its content, and what it says."""

    file: str
    digest: str  # of the file
    plan: Plan
    results: Results
    ended: date  # in UTC

    @cached_property
    def group(self) -> bool:
        """Whether it is of nodes that worked together."""
        return any(device.kind is DeviceKind.GROUP for device in self.plan.devices)

    @cached_property
    def compute(self) -> tuple[Device, ...]:
        """The devices under test of one node; none of a group, which tells only their ids."""
        return tuple(d for d in self.plan.devices if d.kind in COMPUTE)

    @cached_property
    def members(self) -> tuple[Device, ...]:
        """The nodes of a group."""
        return tuple(d for d in self.plan.devices if d.kind is DeviceKind.MEMBER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Runs of one kind of node, in an order that does not depend on how they were given."""

    runs: tuple[Run, ...]
    nodes: int  # different ones
    warnings: tuple[str, ...]

    @property
    def first(self) -> Run:
        """Any of them, for what they have in common."""
        return self.runs[0]

    @property
    def rehearsal(self) -> bool:
        """Whether no GPU was tested."""
        return is_rehearsal(self.first.plan)

    @property
    def digest(self) -> str:
        """One digest over the digests of all of the files."""
        return digest_of("".join(f"{run.digest}\n" for run in self.runs).encode())

    @property
    def ended(self) -> date:
        """The day of the last run, in UTC."""
        return max(run.ended for run in self.runs)

    @property
    def products(self) -> tuple[str, ...]:
        """The names of the GPUs, each once; none of a rehearsal or a group."""
        gpus = [d for d in self.first.compute if d.kind is DeviceKind.GPU]
        return tuple(sorted({_product(gpu) for gpu in gpus} - {""}))

    @property
    def machine(self) -> str:
        """What the nodes are called: by their firmware, else by their GPU; `""` without either."""
        told = str(self.first.plan.node.get("instance_type") or "")
        return told or ("cpu" if self.rehearsal else ", ".join(self.products))

    @property
    def kind(self) -> str:
        """What these nodes are, in a few words."""
        plan, devices = self.first.plan, self.first.compute
        machine = str(plan.node.get("instance_type") or "")
        if self.first.group:
            what = f"groups of {len(self.first.members)} nodes"
        else:
            what = f"{len(devices)} x {', '.join(self.products) or 'devices'}"
        where = f" in {machine}" if machine else ""
        return f"{what}{where}{', a rehearsal without a GPU' if self.rehearsal else ''}"


def gather(files: Iterable[tuple[str, bytes]], *, least_nodes: int | None = None) -> Evidence:
    """Take the runs of these files, each a name and its content, as evidence of one kind of node.

    `least_nodes` overrides how many different nodes there have to be at least. Raises
    `BaselineError` for a file that is no whole accepted run, one that is given twice, runs of
    different kinds, and too few nodes or runs.
    """
    runs, wrong = list[Run](), list[str]()
    for file, data in files:
        try:
            runs.append(_run(file, data))
        except BaselineError as error:
            wrong += error.reasons
    runs.sort(key=lambda run: (run.plan.run_id, run.digest))
    wrong += [*_twice(runs), *_different(runs)]
    if wrong:
        raise BaselineError(*wrong)
    if not runs:
        raise BaselineError("no file was given")
    nodes, group = _count(runs), runs[0].group
    least = least_nodes or (LEAST_MEMBERS if group else LEAST_NODES)
    if nodes < least:
        raise BaselineError(
            f"{len(runs)} runs of {nodes} different nodes: {least} nodes are the least that say "
            "what is common to a kind (what counts is nodes, not runs; --least sets another number)"
        )
    if group and len(runs) < LEAST_GROUP_RUNS:
        raise BaselineError(
            f"{len(runs)} runs of groups: {LEAST_GROUP_RUNS} are the least, since each gives one "
            "figure of all its nodes"
        )
    return Evidence(runs=tuple(runs), nodes=nodes, warnings=tuple(_moved(runs)))


def _run(file: str, data: bytes) -> Run:
    found = results.parse(data)
    told = decide_any(found, manifest.shipped())
    if found.plan is None or found.end is None or found.problems:
        raise BaselineError(f"{file}: not a whole results file: {_some(found.problems)}")
    if told.decision is not Decision.ACCEPT:
        said = _some([str(reason) for reason in (*told.failed, *told.undecided)])
        raise BaselineError(f"{file}: not an accept but {told.decision}: {said}")
    if told.waived:
        said = _some([f"{w.check} on {w.device}" for w in told.waived])
        raise BaselineError(f"{file}: accepted by a waiver, which knows nothing good: {said}")
    ended = datetime.fromisoformat(found.end.ended).astimezone(UTC).date()
    return Run(file=file, digest=digest_of(data), plan=found.plan, results=found, ended=ended)


def _twice(runs: Sequence[Run]) -> Iterator[str]:
    """Name runs that are given twice; each node of a group has a file of the same run."""
    seen: dict[str, str] = {}
    for run in runs:
        record = run.plan.node.get("record") if run.group else None
        for what in {f"run {run.plan.run_id}", f"record {record}" if record else ""} - {""}:
            if what in seen:
                yield f"{run.file}: {what} is given twice, first as {seen[what]}"
            seen.setdefault(what, run.file)


def _different(runs: Sequence[Run]) -> Iterator[str]:
    """Say in what the runs differ that makes them runs of different things."""
    traits: Mapping[str, Any] = {
        "what was tested": lambda r: "a group of nodes" if r.group else "one node",
        "being a rehearsal": lambda r: is_rehearsal(r.plan),
        "their devices": lambda r: sorted(f"{d.kind} {_product(d)}" for d in r.compute),
        "their instance type": lambda r: r.plan.node.get("instance_type") or "",
        "the devices of each member": lambda r: sorted(_held(m) for m in r.members),
        "their profile": lambda r: r.plan.profile,
        "the digest of the suites": lambda r: r.plan.suite_digest,
        "the spec that they were held against": lambda r: r.plan.spec.get("digest"),
    }
    for trait, of in traits.items():
        if said := _sides(runs, {run.file: of(run) for run in runs}):
            yield f"the runs are not of one kind; they differ in {trait}: {said}"


def _moved(runs: Sequence[Run]) -> Iterator[str]:
    """Say in which versions the runs differ: a floor may be that of the slower one."""
    named = [_versions(run.plan.node) for run in runs]
    for name in sorted({name for versions in named for name in versions}):
        values = {run.file: told.get(name) for run, told in zip(runs, named, strict=True)}
        if said := _sides(runs, values):
            yield f"the runs differ in {name}, which may move figures: {said}"


def _versions(node: Mapping[str, Any]) -> dict[str, Any]:
    found = {"kernel": node.get("kernel")}
    for part in ("driver", "software"):
        told = node.get(part)
        inner = told if isinstance(told, Mapping) else {"": told}
        found |= {f"{part} {name}".strip(): value for name, value in inner.items()}
    return found


def _sides(runs: Sequence[Run], values: Mapping[str, Any]) -> str:
    """Say which files say what, `""` where all say the same."""
    sides: dict[str, list[str]] = {}
    for run in runs:
        sides.setdefault(json.dumps(values[run.file], sort_keys=True), []).append(run.file)
    if len(sides) < 2:
        return ""
    return "; ".join(f"{value} in {_some(sorted(sides[value]))}" for value in sorted(sides))


def _count(runs: Sequence[Run]) -> int:
    """Count the different nodes. Whatever two have in common that only one can have, they are one."""
    groups: list[set[str]] = []
    for run in runs:
        for marks in map(set, _marks(run)):
            same = [group for group in groups if group & marks]
            groups = [group for group in groups if not group & marks]
            groups.append(marks.union(*same))
    return len(groups)


def _marks(run: Run) -> Iterator[list[str]]:
    """Yield of each node of a run what tells it from every other."""
    if not run.group:
        node = run.plan.node
        gpus = [f"gpu {d.id}" for d in run.compute if d.kind is DeviceKind.GPU]
        # The verdict has seen to it that there is a boot id.
        uid = [f"uid {node['uid']}"] if node.get("uid") else []
        yield [*gpus, *uid, f"boot {node['boot_id']}"]
        return
    for member in run.members:
        told = member.facts.get("devices")
        ids = [str(each) for each in told] if isinstance(told, list) else []
        # Devices of a rehearsal are called alike on every node.
        gpus = [] if is_rehearsal(run.plan) else [f"gpu {each}" for each in ids]
        yield [*gpus, f"member {member.id}"]


def _product(device: Device) -> str:
    return str(device.facts.get("product") or "")


def _held(member: Device) -> tuple[str, int]:
    told = member.facts.get("devices")
    machine = str(member.facts.get("instance_type") or "")
    return machine, len(told) if isinstance(told, list) else 0


def _some(said: Sequence[str]) -> str:
    more = f" and {len(said) - _SHOWN} more" if len(said) > _SHOWN else ""
    return "; ".join(said[:_SHOWN]) + more
