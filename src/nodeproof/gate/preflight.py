"""What in a cluster would keep the gate from working: found before anything is installed. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nodeproof.gate.names import EFFECT, Names
from nodeproof.gate.node import Node
from nodeproof.gate.settings import Settings

_DEVICES = ("nvidia", "gpu", "dcgm", "efa", "rdma", "mofed", "mlx", "sriov", "neuron")
_NETWORK = ("cni", "csi", "aws-node", "calico", "cilium", "flannel", "kube-proxy", "weave", "ovn")
_SETS_UP = (*_DEVICES, *_NETWORK)  # words in the names of what a node can't be tested without
_POLICY_KINDS = 6  # that come with the gate; each has its binding


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is in the way. `deadlock`: nodes would wait for ever."""

    deadlock: bool
    about: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What was read of a cluster. `None` is what may not be read, which is a problem of its own."""

    nodes: Sequence[Node] | None
    daemon_sets: Sequence[Mapping[str, Any]] | None
    node_pools: Sequence[Mapping[str, Any]] | None  # Karpenter's; empty without it
    policies: Sequence[str] | None  # names of bindings
    autoscaler: Sequence[str] | None  # its command line; empty without it


def problems(cluster: Cluster, settings: Settings) -> list[Problem]:
    """Everything that is in the way, deadlocks first."""
    found = [
        *_unread(cluster),
        *_daemons(cluster.daemon_sets or (), settings),
        *_pools(cluster.node_pools or (), settings.names),
        *_autoscaler(cluster.autoscaler or (), settings.names),
        *_policies(cluster.policies, settings.names),
        *_nodes(cluster.nodes, settings),
    ]
    return sorted(found, key=lambda p: not p.deadlock)


def _unread(cluster: Cluster) -> Iterable[Problem]:
    for name in Cluster.__dataclass_fields__:
        if getattr(cluster, name) is None:
            text = "could not be read, so that nothing is known about it"
            yield Problem(deadlock=False, about=name.replace("_", " "), text=text)


def _daemons(sets: Sequence[Mapping[str, Any]], settings: Settings) -> Iterable[Problem]:
    """DaemonSets that set a node up have to run while it is held."""
    key = settings.names.pending
    for found in sets:
        metadata = found.get("metadata") or {}
        spec = ((found.get("spec") or {}).get("template") or {}).get("spec") or {}
        if not _may_run(spec, settings) or _tolerates(spec, key):
            continue
        name = f"DaemonSet {metadata.get('namespace')}/{metadata.get('name')}"
        needed = any(word in name.lower() for word in _SETS_UP)
        text = (
            f"does not tolerate {key}:{EFFECT}, so that it does not start on a node that is held"
            + ("; what it sets up would be missing, and no node would ever pass" if needed else "")
        )
        yield Problem(deadlock=needed, about=name, text=text)


def _may_run(spec: Mapping[str, Any], settings: Settings) -> bool:
    """Whether its node selector can meet a node of ours; affinities are taken to."""
    chosen = spec.get("nodeSelector") or {}
    return all(settings.selector.get(k, v) == v for k, v in chosen.items())


def _tolerates(spec: Mapping[str, Any], key: str) -> bool:
    for t in spec.get("tolerations") or []:
        everything = not t.get("key") and t.get("operator") == "Exists"
        ours = t.get("key") == key and (
            t.get("operator") == "Exists" or t.get("value", "") == "true"
        )
        if (everything or ours) and t.get("effect") in {None, "", EFFECT}:
            return True
    return False


def _pools(pools: Sequence[Mapping[str, Any]], names: Names) -> Iterable[Problem]:
    for pool in pools:
        name = f"NodePool {(pool.get('metadata') or {}).get('name')}"
        spec = ((pool.get("spec") or {}).get("template") or {}).get("spec") or {}
        startup = {t.get("key") for t in spec.get("startupTaints") or []}
        effects = {
            t.get("effect", EFFECT)
            for t in spec.get("startupTaints") or []
            if t.get("key") == names.pending
        }
        always = {t.get("key") for t in spec.get("taints") or []}
        if names.pending in always:
            text = f"has {names.pending} among its taints: put it into startupTaints, or Karpenter puts it back"
            yield Problem(deadlock=True, about=name, text=text)
        elif effects - {EFFECT}:
            text = (
                f"starts its nodes with {names.pending}:{', '.join(sorted(effects - {EFFECT}))}, "
                f"which nobody lifts and no test pod tolerates: its effect has to be {EFFECT}"
            )
            yield Problem(deadlock=True, about=name, text=text)
        elif names.pending not in startup:
            text = (
                f"does not start its nodes with {names.pending}: pods can land before the gate "
                "sees them; add it to startupTaints"
            )
            yield Problem(deadlock=False, about=name, text=text)
        if names.quarantined in startup:
            text = f"has {names.quarantined} among its startupTaints: rejected nodes would count as coming capacity"
            yield Problem(deadlock=True, about=name, text=text)


def _autoscaler(words: Sequence[str], names: Names) -> Iterable[Problem]:
    if not words:
        return
    # `--flag value` is `--flag=value`; one of several values has to be ours, and whole.
    told = set(words) | {f"{a}={b}" for a, b in itertools.pairwise(words)}
    for key, flag in ((names.pending, "--startup-taint"), (names.quarantined, "--status-taint")):
        if f"{flag}={key}" not in told:
            text = (
                f"is not told {flag}={key}: it would misjudge the capacity of nodes that are held"
            )
            yield Problem(deadlock=False, about="Cluster Autoscaler", text=text)


def _policies(bindings: Sequence[str] | None, names: Names) -> Iterable[Problem]:
    ours = [b for b in bindings or () if b.startswith("nodeproof-")]
    if bindings is not None and len(ours) < _POLICY_KINDS:
        text = (
            f"{len(ours)} of {_POLICY_KINDS} are there: without them whoever may write to nodes can "
            f"lift {names.pending}; apply k8s/policies"
        )
        yield Problem(deadlock=False, about="admission policies", text=text)


def _nodes(nodes: Sequence[Node] | None, settings: Settings) -> Iterable[Problem]:
    if nodes is None:
        return
    names = settings.names
    ours = [n for n in nodes if all(n.labels.get(k) == v for k, v in settings.selector.items())]
    if not ours:
        chosen = ", ".join(f"{k}={v}" for k, v in settings.selector.items())
        text = f"none has {chosen}: the gate would have nothing to do"
        yield Problem(deadlock=False, about="nodes", text=text)
    unknown = sorted({n.labels.get(settings.kind_label, "") for n in ours} - set(settings.expected))
    if unknown:
        named = ", ".join(k or "(no label)" for k in unknown)
        text = (
            f"of kind {named} would be held for ever, ExpectedUnknown: nobody says how many GPUs "
            "they have to have; add them to `expected`"
        )
        yield Problem(deadlock=True, about="nodes", text=text)
    yield from _groups(ours, settings)
    held = [n.name for n in ours if n.has(names.pending) and n.condition is None]
    if held:
        text = f"{', '.join(held[:5])} carry {names.pending} already and say nothing of it"
        yield Problem(deadlock=False, about="nodes", text=text)


def _groups(ours: Sequence[Node], settings: Settings) -> Iterable[Problem]:
    """What keeps nodes from being measured together, where they have to be."""
    for kind in settings.grouped:
        alike = [n for n in ours if n.labels.get(settings.kind_label, "") == kind]
        about = f"nodes of kind {kind}"
        if 0 < len(alike) < settings.group_least:
            text = (
                f"are {len(alike)}, and `group_least` of them are measured together, "
                f"{settings.group_least}: each is held until others come"
            )
            yield Problem(deadlock=False, about=about, text=text)
        bare = [
            n.name for n in alike if settings.group_label and not n.labels.get(settings.group_label)
        ]
        if bare:
            text = f"have no label {settings.group_label} to be grouped by: {', '.join(bare[:5])}"
            yield Problem(deadlock=True, about=about, text=text)
        for name in settings.group_resources:
            without = [n.name for n in alike if name not in n.allocatable]
            if without:
                text = (
                    f"offer no {name}, which `group_resources` asks for: {', '.join(without[:5])}; "
                    "no pod of their group would be scheduled"
                )
                yield Problem(deadlock=True, about=about, text=text)
