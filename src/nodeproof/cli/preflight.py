"""`nodeproof preflight`: what in this cluster would be in the gate's way. Reads, writes nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from nodeproof.gate.kube import Gone, Kube, Refused
from nodeproof.gate.node import node_of
from nodeproof.gate.preflight import Cluster, problems
from nodeproof.gate.settings import filled_in, parse

_POOLS = "/apis/karpenter.sh/v1/nodepools"
_BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"


def main(args: argparse.Namespace) -> int:
    """Print a line for each problem; 0 without one, 11 with one, 2 for settings of no use."""
    try:
        settings = parse(args.settings.read_text())
        filled_in(settings)
        kube = Kube.here()
    except (OSError, ValueError) as error:  # SettingsError, or bytes that are no text
        print(f"nodeproof: {args.settings}: {error}", file=sys.stderr)
        return 2
    except Refused as error:
        print(f"nodeproof: {error}", file=sys.stderr)
        return 11
    nodes = _items(kube, "/api/v1/nodes")
    bindings = _items(kube, _BINDINGS, absent=())
    deployments = _items(kube, "/apis/apps/v1/deployments")
    cluster = Cluster(
        nodes=None if nodes is None else [node_of(n, settings.names) for n in nodes],
        daemon_sets=_items(kube, "/apis/apps/v1/daemonsets"),
        node_pools=_items(kube, _POOLS, absent=()),
        policies=None if bindings is None else [b["metadata"]["name"] for b in bindings],
        autoscaler=None if deployments is None else _autoscaler(deployments),
    )
    found = problems(cluster, settings)
    for problem in found:
        print(f"{'DEADLOCK' if problem.deadlock else 'note'}  {problem.about} {problem.text}")
    print(f"{len(found)} found, {sum(p.deadlock for p in found)} of them deadlocks")
    return 11 if found else 0


def _items(
    kube: Kube, path: str, *, absent: Sequence[Mapping[str, Any]] | None = None
) -> Sequence[Mapping[str, Any]] | None:
    """Every object under a path; `absent` where the cluster does not know such objects."""
    try:
        return kube.list(path).items
    except Refused as refusal:
        return absent if refusal.status == 404 else None
    except Gone:
        return None


def _autoscaler(deployments: Sequence[Mapping[str, Any]]) -> list[str]:
    """The command line of the Cluster Autoscaler, empty without one."""
    for found in deployments:
        spec = found["spec"]["template"]["spec"]
        for container in spec.get("containers") or []:
            if "cluster-autoscaler" in str(container.get("image")):
                return [*(container.get("command") or []), *(container.get("args") or [])]
    return []
