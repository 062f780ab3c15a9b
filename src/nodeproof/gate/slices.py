"""The GPUs that a node's DRA driver publishes: which they are, not how they are. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from nodeproof.gate import dispatch

DRIVER = "gpu.nvidia.com"
PATH = "/apis/resource.k8s.io/v1/resourceslices"


def node_of(found: Mapping[str, Any]) -> str:
    """The node whose devices a ResourceSlice holds, `""` where it holds others."""
    spec = found.get("spec") or {}
    return str(spec.get("nodeName") or "") if spec.get("driver") == DRIVER else ""


def digest(slices: Iterable[Mapping[str, Any]]) -> str:
    """One digest over the UUIDs of a node's GPUs, as an acceptance is stamped with.

    `""` where that can't be told: no slice, a pool that is not whole, a GPU without its UUID. A
    driver replaces its slices one by one, and half a picture is no other GPU.
    """
    pools: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for found in slices:
        spec = found.get("spec") or {}
        pools[str((spec.get("pool") or {}).get("name"))].append(spec)
    ids: list[str] = []
    for specs in pools.values():
        newest = max(_number(s, "generation") for s in specs)
        current = [s for s in specs if _number(s, "generation") == newest]
        if len(current) != max(_number(s, "resourceSliceCount") for s in current):
            return ""
        for spec in current:
            for device in spec.get("devices") or []:
                told = device.get("attributes") or {}
                if _text(told, "type") == "gpu":
                    ids.append(_text(told, "uuid"))
    return dispatch.digest_of_devices(ids) if ids and all(ids) else ""


def _number(spec: Mapping[str, Any], name: str) -> int:
    found = (spec.get("pool") or {}).get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) else -1


def _text(attributes: Mapping[str, Any], name: str) -> str:
    return str((attributes.get(name) or {}).get("string") or "")
