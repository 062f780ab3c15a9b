"""The tenants of a node: pods outside the gate that hold its GPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nodeproof.gate.plan import Tenant
from nodeproof.gate.settings import Settings


def of(pods: Iterable[Mapping[str, Any]], settings: Settings) -> tuple[Tenant, ...]:
    """Those of the pods of one node that hold GPUs, and have not ended."""
    return tuple(
        Tenant(
            namespace=str(p["metadata"].get("namespace")),
            name=str(p["metadata"].get("name")),
            leaving=bool(p["metadata"].get("deletionTimestamp")),
        )
        for p in pods
        if p["metadata"].get("namespace") != settings.names.namespace
        and (p.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}
        and holds(p, settings.resource)
    )


def holds(pod: Mapping[str, Any], resource: str) -> bool:
    """Whether a pod has GPUs: a resource of that family, or claims that may be some."""
    spec = pod.get("spec") or {}
    if spec.get("resourceClaims"):
        return True
    family = resource.partition("/")[0] + "/"
    containers = [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]
    return any(
        name.startswith(family)
        for c in containers
        for name in ((c.get("resources") or {}).get("limits") or {})
    )
