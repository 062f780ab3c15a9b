"""The writes that decide, as data: JSON Patches that change a node only as it was seen."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from nodeproof.gate.names import EFFECT, Names
from nodeproof.gate.node import Node

Patch = list[dict[str, Any]]


def lift(node: Node, names: Names, *, stamps: Mapping[str, str]) -> Patch:
    """Release a node in one atomic request: the same object, in the very version that we saw.

    Taints alone could come to look again as they did when the proof was read, with a request for
    another test in between.

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
    patch = [_version(node), *_same(node)]
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
    """Set annotations of ours on the very object that was seen, in the version that we saw.

    What somebody has written since, another request or suspicion, would be overwritten.
    """
    version = _version(node)
    same = [test for test in _same(node) if test != version]
    return [version, *same, *_annotated(node, stamps)]


def _same(node: Node) -> Patch:
    """Tests that fail unless the node is what we decided about."""
    patch = [_uid(node)]
    if not node.raw_taints or not node.annotations:
        # To add a list or a map would replace one that somebody has made since.
        patch.append(_version(node))
    if node.boot_id:
        patch.append({"op": "test", "path": "/status/nodeInfo/bootID", "value": node.boot_id})
    if node.raw_taints:
        taints = [dict(t) for t in node.raw_taints]
        patch.append({"op": "test", "path": "/spec/taints", "value": taints})
    return patch


def _version(node: Node) -> dict[str, Any]:
    return {"op": "test", "path": "/metadata/resourceVersion", "value": node.version}


def _uid(node: Node) -> dict[str, Any]:
    return {"op": "test", "path": "/metadata/uid", "value": node.uid}


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
