"""What the gate has to remember beyond nodes and Jobs: when it was installed, and its last rulings."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from nodeproof.gate.breaker import Ruled
from nodeproof.gate.kube import Kube, Refused
from nodeproof.gate.names import Names
from nodeproof.gate.writes import MERGE, Request

NAME = "nodeproof-state"
_OF_A_KIND = 50  # rulings; the breaker looks at the last few of a kind
_KEPT = 4000  # of all kinds: a ConfigMap holds 1 MiB
_SAID_S = 600.0  # a ruling that stands is not written again within this
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
            text = f"ConfigMap {NAME} does not say installed-at: put it back, or delete the map"
            raise Refused(0, text) from None
        self.installed_at, self.rulings = installed_at, _rulings(data)
        self._version = str((found.get("metadata") or {}).get("resourceVersion") or "")

    def _make(self, rulings: str = "[]") -> Mapping[str, Any]:
        """Make the map with these rulings; the one that is there already, if there is one."""
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME},
            "data": {"installed-at": repr(self.installed_at), "rulings": rulings},
        }
        request = Request(verb="POST", path=self._maps, body=body, settled=frozenset({409}))
        made = self._kube.send(request)
        return made if made is not None else self._kube.get(f"{self._maps}/{NAME}")

    def record(self, ruled: Ruled) -> bool:
        """Add a ruling, once for each node and answer; whether others' have come to light by that.

        An accept counts only as the end of a row of rejects: where none of its kind is the newest it
        is not written down, which most never are. Raises `Refused`.
        """
        before = set(self.rulings)
        for _ in range(_TRIES):
            if self._needless(ruled) or self._written(ruled):
                return bool(set(self.rulings) - before - {ruled})
        raise Refused(409, f"ConfigMap {NAME} moved {_TRIES} times while it was to be written to")

    def _needless(self, ruled: Ruled) -> bool:
        """Whether what is written down says it already, or it ends no row of rejects."""
        of_kind = sorted((r for r in self.rulings if r.kind == ruled.kind), key=lambda r: r.at)
        if ruled.accepted:
            return not of_kind or of_kind[-1].accepted
        since = max([ruled.at - _SAID_S, *(r.at for r in of_kind if r.accepted)])
        return any(_same(r, ruled) and since < r.at for r in of_kind)

    def _written(self, ruled: Ruled) -> bool:
        """Write a ruling beside those that are known; `False` where others have come meanwhile."""
        others = [r for r in self.rulings if not _same(r, ruled)]
        kept = _kept([*others, ruled])
        text = json.dumps([dataclasses.asdict(r) for r in kept], separators=(",", ":"))
        path = f"{self._maps}/{NAME}"
        body = {"metadata": {"resourceVersion": self._version}, "data": {"rulings": text}}
        try:
            found = self._kube.send(Request(verb="PATCH", path=path, body=body, content=MERGE))
        except Refused as refusal:
            if refusal.status == 404:  # somebody deleted it: no node waits for that
                self._take(self._make(text))  # what is known is not forgotten with it
            elif refusal.status == 409:  # another one leads, or did until just now
                self._take(self._kube.get(path))
            else:
                raise
            return False
        self._take(found or {})
        return True


def _same(one: Ruled, other: Ruled) -> bool:
    return (one.node_uid, one.accepted, one.reason) == (
        other.node_uid, other.accepted, other.reason,
    )  # fmt: skip


def _kept(rulings: Iterable[Ruled]) -> list[Ruled]:
    """Those that are kept, oldest first. What one kind does pushes nothing of another's out."""
    of_kind: defaultdict[str, list[Ruled]] = defaultdict(list)
    for ruled in sorted(rulings, key=lambda r: r.at):
        of_kind[ruled.kind].append(ruled)
    kept = [ruled for rows in of_kind.values() for ruled in rows[-_OF_A_KIND:]]
    return sorted(kept, key=lambda r: r.at)[-_KEPT:]


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
