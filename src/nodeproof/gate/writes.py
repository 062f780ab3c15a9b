"""Actions as requests to the API: which verb, which path, which body. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from nodeproof.gate import group_job, job, patches
from nodeproof.gate.actions import (
    Action,
    Evict,
    Hold,
    Lift,
    Measure,
    Quarantine,
    Remove,
    Say,
    Stamp,
    Tell,
    Test,
)
from nodeproof.gate.names import Names
from nodeproof.gate.node import Node
from nodeproof.gate.settings import Settings
from nodeproof.spec import Spec

JSON_PATCH = "application/json-patch+json"
MERGE = "application/strategic-merge-patch+json"
JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request. Statuses in `settled` mean that it was done before, or is no longer wanted."""

    verb: str  # POST, PATCH, DELETE
    path: str
    body: Any = None
    content: str = JSON
    settled: frozenset[int] = frozenset()


def request(
    action: Action, node: Node, settings: Settings, spec: Spec, *, now: float, nonce: str
) -> Request | None:
    """The request that does `action`; `None` for what is no write to the API.

    409 and 422 of a patch mean that the node has moved: read again and decide again.
    """
    jobs = f"/apis/batch/v1/namespaces/{settings.names.namespace}/jobs"
    match action:
        case Test():
            made = job.build(node, action, settings, spec, nonce=nonce)
            return Request(verb="POST", path=jobs, body=made, settled=frozenset({409}))
        case Measure():
            made = group_job.build(action, settings, spec, nonce=nonce)
            return Request(verb="POST", path=jobs, body=made, settled=frozenset({409}))
        case Remove(job=name):
            body = {"propagationPolicy": "Background"}
            path = f"{jobs}/{name}"
            return Request(verb="DELETE", path=path, body=body, settled=frozenset({404}))
        case Evict():
            return _evicted(action)
        case Tell():
            return _event(action, node, now)
        case Say():
            return _said(action, node, settings, now)
    patch = _patch(action, node, settings.names)
    if patch is None:
        return None
    path = f"/api/v1/nodes/{node.name}"
    return Request(verb="PATCH", path=path, body=patch, content=JSON_PATCH)


def _patch(action: Action, node: Node, names: Names) -> patches.Patch | None:
    """The JSON Patch of an action on the node itself."""
    match action:
        case Hold():
            return patches.add_taint(node, names.pending)
        case Quarantine(stamps=stamps):
            return patches.add_taint(node, names.quarantined, stamps=stamps)
        case Lift(stamps=stamps):
            return patches.lift(node, names, stamps=stamps)
        case Stamp(stamps=stamps):
            return patches.annotate(node, stamps)
    return None


def _said(say: Say, node: Node, settings: Settings, now: float) -> Request:
    body: dict[str, Any] = {"status": {"conditions": [_condition(say, node, settings, now)]}}
    # Of another node of that name the server refuses to change it, 422, and of one that has moved, 409:
    # a condition that was true of an older picture would have what was released since held again.
    body["metadata"] = {"uid": node.uid, "resourceVersion": node.version}
    path = f"/api/v1/nodes/{node.name}/status"
    return Request(verb="PATCH", path=path, body=body, content=MERGE)


def _evicted(evict: Evict) -> Request:
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": evict.pod, "namespace": evict.namespace},
        "deleteOptions": {"preconditions": {"uid": evict.uid}},
    }
    path = f"/api/v1/namespaces/{evict.namespace}/pods/{evict.pod}/eviction"
    # 409: another pod has its name; 429: a disruption budget does not allow it now. Asked again at
    # the next look.
    return Request(verb="POST", path=path, body=body, settled=frozenset({404, 409, 429}))


def stamp(now: float) -> str:
    """Seconds since 1970 as the API writes times."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _condition(say: Say, node: Node, settings: Settings, now: float) -> dict[str, str]:
    told = node.condition
    kept = told is not None and told.status == say.status and told.transition is not None
    since = told.transition if kept and told and told.transition is not None else now
    return {
        "type": settings.names.accepted,
        "status": say.status,
        "reason": say.reason,
        "message": say.message,
        "lastHeartbeatTime": stamp(now),
        "lastTransitionTime": stamp(since),
    }


def _event(tell: Tell, node: Node, now: float) -> Request:
    """An event about the node. Its name is a function of what it says: said twice, it is one."""
    key = json.dumps([node.uid, node.boot_id, tell.reason, tell.message])
    plain = re.sub(r"[^a-z0-9.-]", "-", node.name.lower())[:200]
    body: Mapping[str, Any] = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{plain}.{patches.short(key)}", "namespace": "default"},
        # Its uid is the node's name, as the kubelet writes it, so that describe shows it.
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.name},
        "type": "Warning" if tell.warning else "Normal",
        "reason": tell.reason,
        "message": tell.message[:1024],
        "source": {"component": "nodeproof-controller"},
        "firstTimestamp": stamp(now),
        "lastTimestamp": stamp(now),
        "count": 1,
    }
    path = "/api/v1/namespaces/default/events"
    return Request(verb="POST", path=path, body=body, settled=frozenset({409}))
