"""The tenants of a node: pods outside the gate that hold its GPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nodeproof.gate.plan import Tenant
from nodeproof.gate.settings import Settings

# What a DeviceClass is called as an extended resource unless it is given a name of its own
# (KEP-5004): such a pod has devices and no claim of its own making.
IMPLICIT = "deviceclass.resource.kubernetes.io/"


def of(pods: Iterable[Mapping[str, Any]], settings: Settings) -> tuple[Tenant, ...]:
    """Those of the pods of one node that hold GPUs, and have not ended."""
    return tuple(
        Tenant(
            namespace=str(p["metadata"].get("namespace")),
            name=str(p["metadata"].get("name")),
            uid=str(p["metadata"].get("uid") or ""),
            leaving=bool(p["metadata"].get("deletionTimestamp")),
            stays=_of_a_daemon(p),
        )
        for p in pods
        if p["metadata"].get("namespace") != settings.names.namespace
        and (p.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}
        and holds(p, settings.resource)
    )


def holds(pod: Mapping[str, Any], resource: str) -> bool:
    """Whether a pod has GPUs: a resource of that family, or claims that may be some."""
    spec = pod.get("spec") or {}
    if spec.get("resourceClaims") or (pod.get("status") or {}).get("extendedResourceClaimStatus"):
        return True
    families = (resource.partition("/")[0] + "/", IMPLICIT)
    containers = [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]
    return any(
        name.startswith(families)
        for c in containers
        for name in ((c.get("resources") or {}).get("limits") or {})
    )


def _of_a_daemon(pod: Mapping[str, Any]) -> bool:
    """Whether a DaemonSet would put the pod back as soon as it has left."""
    owners = pod["metadata"].get("ownerReferences") or []
    return any(o.get("kind") == "DaemonSet" for o in owners)
