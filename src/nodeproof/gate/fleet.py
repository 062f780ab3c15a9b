"""All nodes at once, kept as they move: no look at one of them has to walk over the others."""

from __future__ import annotations

import dataclasses
import threading
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from nodeproof.gate import suspicion
from nodeproof.gate.group import Waiting, waiting
from nodeproof.gate.node import Node, node_of
from nodeproof.gate.occasion import being_tested, selected
from nodeproof.gate.settings import Settings


class Fleet:
    """Nodes by uid and by kind, each cut down to what is asked of all; safe between threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._nodes: dict[str, Node] = {}
        self._kinds: defaultdict[str, dict[str, Node]] = defaultdict(dict)
        self._held: set[str] = set()  # uids of those that served before, and are to be tested
        self._suspects: defaultdict[str, set[str]] = defaultdict(set)  # uids held for that, by kind
        # Those that are to be measured with others, by what they are alike in.
        self._waiting: defaultdict[tuple[str, str], dict[str, Waiting]] = defaultdict(dict)
        self._alike: dict[str, tuple[str, str]] = {}  # of each that waits
        self.waits = 0  # how often anything moved among those that wait

    def take(self, uid: str, found: Mapping[str, Any] | None) -> None:
        """Take in a node as it is now; `None` for one that is gone."""
        whole = node_of(found, self._settings.names) if found else None
        waits = waiting(whole, self._settings) if whole else None
        node = self._cut(whole) if whole else None
        with self._lock:
            before = self._nodes.pop(uid, None)
            if before is not None:
                alike = self._kinds[self._kind(before)]
                alike.pop(uid, None)
                self._suspects[self._kind(before)].discard(uid)
                if not alike:
                    del self._kinds[self._kind(before)]
                    self._suspects.pop(self._kind(before), None)
            self._held.discard(uid)
            self._wait(uid, waits)
            if node is not None:
                self._nodes[uid] = node
                self._kinds[self._kind(node)][uid] = node
                if self._awaits(node):
                    self._held.add(uid)
                if whole is not None and self._suspected(whole):
                    self._suspects[self._kind(node)].add(uid)

    def held_beside(self, uid: str) -> int:
        """How many other nodes that served before the installation are held for their test."""
        with self._lock:
            return len(self._held) - (uid in self._held)

    def crowded(self, kind: str) -> str:
        """Why no further node of a kind is held because somebody suspects it; `""`: it may be."""
        with self._lock:
            held = len(self._suspects[kind]) if kind in self._suspects else 0
            alike = len(self._kinds[kind]) if kind in self._kinds else 0
        return suspicion.crowded(held, alike, kind, self._settings)

    def waiting(self, like: tuple[str, str]) -> list[Waiting]:
        """The nodes alike that passed alone and wait for others."""
        with self._lock:
            return list(self._waiting[like].values()) if like in self._waiting else []

    def of_kind(self, kind: str) -> list[Node]:
        """Every node of a kind, without its taints as they were told and most of its words."""
        with self._lock:
            return list(self._kinds[kind].values()) if kind in self._kinds else []

    def kinds(self) -> list[str]:
        """Every kind of which there is a node."""
        with self._lock:
            return list(self._kinds)

    def _wait(self, uid: str, waits: Waiting | None) -> None:
        like = self._alike.pop(uid, None)
        row = self._waiting[like] if like is not None else {}
        before = row.pop(uid, None)
        if like is not None and not row:
            del self._waiting[like]
        if waits is not None:
            self._waiting[waits.alike][uid] = waits
            self._alike[uid] = waits.alike
        self.waits += before != waits

    def _kind(self, node: Node) -> str:
        return node.labels.get(self._settings.kind_label, "")

    def _awaits(self, node: Node) -> bool:
        return being_tested(node, self._settings)

    def _suspected(self, node: Node) -> bool:
        ours = selected(node, self._settings) and not node.deleting
        return ours and suspicion.held(node, self._settings.names)

    def _cut(self, node: Node) -> Node:
        """Ten thousand of them have to fit beside the cache."""
        label = self._settings.kind_label
        kept = {label: node.labels[label]} if label in node.labels else {}
        return dataclasses.replace(
            node,
            labels=kept,
            annotations={},
            allocatable={},
            capacity={},
            raw_taints=(),
            others={},
        )
