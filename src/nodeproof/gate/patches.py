"""The writes that decide, as data: JSON Patches that change a node only as it was seen.

Each tests the version of the object: what was decided on an older picture is not done. Two that lead
at once, as when one stood still while its lease ran out, would else undo what the other has done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from nodeproof.gate.names import EFFECT, Names
from nodeproof.gate.node import Node

Patch = list[dict[str, Any]]


def lift(node: Node, names: Names, *, stamps: Mapping[str, str]) -> Patch:
    """Release a node in one atomic request.

    Both taints of ours go, whatever else is there stays in its place; `stamps` are annotations that
    say for what the node was accepted. The API answers 422 where anything has moved: read again and
    decide again. Raises `ValueError` where there is nothing to lift or no boot to bind to.
    """
    ours = {names.pending, names.quarantined}
    places = [
        n
        for n, t in enumerate(node.raw_taints)
        if t.get("key") in ours and t.get("effect") == EFFECT
    ]
    if not places or not node.boot_id:
        msg = f"{node.name}: no taint of ours to lift, or no boot id"
        raise ValueError(msg)
    patch = _same(node)
    # From the end, so that no removal moves the next; the whole list is tested above all.
    patch += [{"op": "remove", "path": f"/spec/taints/{place}"} for place in reversed(places)]
    return patch + _annotated(node, {names.accepted_boot: node.boot_id, **stamps})


def add_taint(node: Node, key: str, *, stamps: Mapping[str, str] | None = None) -> Patch:
    """Put a taint of ours on a node, and annotations with it. Raises `ValueError` if it is on."""
    if node.has(key):
        msg = f"{node.name}: {key} is on the node"
        raise ValueError(msg)
    taint = {"key": key, "value": "true", "effect": EFFECT}
    patch = _same(node)
    if node.raw_taints:
        patch.append({"op": "add", "path": "/spec/taints/-", "value": taint})
    else:
        patch.append({"op": "add", "path": "/spec/taints", "value": [taint]})
    return patch + _annotated(node, stamps or {})


def annotate(node: Node, stamps: Mapping[str, str]) -> Patch:
    """Set annotations of ours."""
    return _same(node) + _annotated(node, stamps)


def _same(node: Node) -> Patch:
    """Tests that fail unless the node is what we decided about, and say of what it moved."""
    patch: Patch = [
        _test("/metadata/resourceVersion", node.version),
        _test("/metadata/uid", node.uid),
    ]
    if node.boot_id:
        patch.append(_test("/status/nodeInfo/bootID", node.boot_id))
    if node.raw_taints:
        patch.append(_test("/spec/taints", [dict(t) for t in node.raw_taints]))
    return patch


def _test(path: str, value: Any) -> dict[str, Any]:
    return {"op": "test", "path": path, "value": value}


def _annotated(node: Node, stamps: Mapping[str, str]) -> Patch:
    patch: Patch = []
    if stamps and not node.annotations:
        patch.append({"op": "add", "path": "/metadata/annotations", "value": {}})
    for name, value in stamps.items():
        path = f"/metadata/annotations/{_escaped(name)}"
        patch.append({"op": "add", "path": path, "value": value})
    return patch


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")  # RFC 6901


def short(text: str) -> str:
    """Sixteen hexadecimal digits that stand for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
