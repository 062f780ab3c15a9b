"""What the gate has to remember beyond nodes and Jobs: when it was installed, and its last rulings."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from nodeproof.gate.breaker import Ruled
from nodeproof.gate.kube import Kube, Refused
from nodeproof.gate.names import Names
from nodeproof.gate.writes import MERGE, Request

NAME = "nodeproof-state"
_KEPT = 200  # rulings; the breaker looks at the last few of a kind
_TRIES = 5


class Memory:
    """A ConfigMap of ours, read once and written at each ruling."""

    def __init__(self, kube: Kube, names: Names) -> None:
        self._kube = kube
        self._maps = f"/api/v1/namespaces/{names.namespace}/configmaps"
        self.installed_at = 0.0
        self.rulings: tuple[Ruled, ...] = ()
        self._version = ""  # of the map that `rulings` stand in

    def load(self, now: float) -> None:
        """Read the map, or make it: the first start is the time of installation. Raises `Refused`."""
        self.installed_at = now
        self._take(self._make())

    def _take(self, found: Mapping[str, Any]) -> None:
        """Know what an answer holds. Raises `Refused` for one that is not the map: forget nothing."""
        data = found.get("data") or {}
        try:
            installed_at = float(data["installed-at"])
        except (KeyError, TypeError, ValueError):
            raise Refused(0, f"ConfigMap {NAME} does not say installed-at: delete it") from None
        self.installed_at, self.rulings = installed_at, _rulings(data)
        self._version = str((found.get("metadata") or {}).get("resourceVersion") or "")

    def _make(self) -> Mapping[str, Any]:
        """Make the map; the one that is there already, if there is one."""
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME},
            "data": {"installed-at": repr(self.installed_at), "rulings": "[]"},
        }
        request = Request(verb="POST", path=self._maps, body=body, settled=frozenset({409}))
        made = self._kube.send(request)
        return made if made is not None else self._kube.get(f"{self._maps}/{NAME}")

    def record(self, ruled: Ruled) -> None:
        """Add a ruling, once for each node and answer. Raises `Refused`.

        An accept counts only as the end of a row of rejects: without one of its kind it is not
        written down, which most never are.
        """
        for _ in range(_TRIES):
            if ruled.accepted and all(r.accepted or r.kind != ruled.kind for r in self.rulings):
                return
            if self._written(ruled):
                return
        raise Refused(409, f"ConfigMap {NAME} moved {_TRIES} times while it was to be written to")

    def _written(self, ruled: Ruled) -> bool:
        """Write a ruling beside those that are known; `False` where others have come meanwhile."""
        same = (ruled.node_uid, ruled.accepted, ruled.reason)
        others = [r for r in self.rulings if (r.node_uid, r.accepted, r.reason) != same]
        kept = sorted([*others, ruled], key=lambda r: r.at)[-_KEPT:]
        text = json.dumps([dataclasses.asdict(r) for r in kept], separators=(",", ":"))
        path = f"{self._maps}/{NAME}"
        body = {"metadata": {"resourceVersion": self._version}, "data": {"rulings": text}}
        try:
            found = self._kube.send(Request(verb="PATCH", path=path, body=body, content=MERGE))
        except Refused as refusal:
            if refusal.status == 404:  # somebody deleted it: no node waits for that
                self._take(self._make())
            elif refusal.status == 409:  # another one leads, or did until just now
                self._take(self._kube.get(path))
            else:
                raise
            return False
        self._take(found or {})
        return True


def _rulings(data: Mapping[str, Any]) -> tuple[Ruled, ...]:
    try:
        rows = json.loads(data.get("rulings") or "[]")
        return tuple(
            Ruled(
                kind=str(r["kind"]),
                node_uid=str(r["node_uid"]),
                accepted=r["accepted"] is True,
                reason=str(r["reason"]),
                at=float(r["at"]),
            )
            for r in rows
        )
    except (ValueError, TypeError, KeyError):
        return ()  # a breaker that forgot is closed, and the share of the kind still counts
