"""What the API last said of one kind of object: correct by the list, quick by the watch."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from nodeproof.gate.kube import Gone, Kube, Refused

Found = Mapping[str, Any]
_PAUSE_S = 1.0
# What is large and nobody here asks for: ten thousand nodes have to fit.
_LEFT_OUT = {
    "metadata": frozenset({"managedFields"}),
    "spec": frozenset({"template", "containers", "initContainers", "volumes"}),
    "status": frozenset({"images"}),
}

log = logging.getLogger("nodeproof.gate")


class Cache:
    """Objects of one kind by uid, and by the group that each belongs to.

    `group` says of an object to what it belongs, such as the node of a Job; `changed` is told each
    object that came, moved or went.
    """

    def __init__(
        self,
        kube: Kube,
        path: str,
        *,
        group: Callable[[Found], str],
        changed: Callable[[Found], None],
        **query: str,
    ) -> None:
        self._kube, self._path, self._query = kube, path, query
        self._group, self._changed = group, changed
        self._objects: dict[str, Found] = {}
        self._groups: defaultdict[str, dict[str, Found]] = defaultdict(dict)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.listed = threading.Event()  # once: nothing is decided on half a picture
        self.refusal = ""  # why the API can't be followed at the moment
        self._thread = threading.Thread(target=self._follow, daemon=True, name=f"watch {path}")

    def start(self) -> None:
        """Follow the API in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Stop following."""
        self._stop.set()

    @property
    def dead(self) -> bool:
        """Whether nobody follows the API any more, and nobody asked for that."""
        started = self._thread.ident is not None
        return started and not self._thread.is_alive() and not self._stop.is_set()

    def get(self, uid: str) -> Found | None:
        """One object as it was last seen."""
        with self._lock:
            return self._objects.get(uid)

    def all(self) -> list[Found]:
        """Every object as it was last seen."""
        with self._lock:
            return list(self._objects.values())

    def of(self, group: str) -> list[Found]:
        """The objects of a group."""
        with self._lock:
            return list(self._groups[group].values()) if group in self._groups else []

    def known(self) -> dict[str, str]:
        """The version of every object, by its uid."""
        with self._lock:
            return {u: str(o["metadata"].get("resourceVersion")) for u, o in self._objects.items()}

    def put(self, found: Found) -> None:
        """Take in what an answer to a write of ours says, before the watch says it."""
        with self._lock:
            known = self._objects.get(uid_of(found))
            if known is None or _version(found) >= _version(known):
                self._keep(found)

    def _follow(self) -> None:
        while not self._stop.is_set():
            try:
                listing = self._kube.list(self._path, **self._query)
                self._replace(listing.items)
                self.listed.set()
                self._say("")
                for kind, found in self._kube.watch(
                    self._path, listing.version, self._stop.is_set, **self._query
                ):
                    self._take(kind, found)
            except Gone:
                continue
            except Refused as refusal:
                self._say(str(refusal))
                self._stop.wait(_PAUSE_S)

    def _say(self, refusal: str) -> None:
        if refusal != self.refusal and not self._stop.is_set():
            log.warning("%s: %s", self._path, refusal or "it can be followed again")
        self.refusal = refusal

    def _replace(self, items: tuple[Found, ...]) -> None:
        with self._lock:
            before, self._objects = self._objects, {}
            self._groups.clear()
            for found in items:
                self._keep(found)
            now = dict(self._objects)
        for uid, found in {**before, **now}.items():
            if before.get(uid) != now.get(uid):
                self._changed(found)

    def _take(self, kind: str, found: Found) -> None:
        if kind == "BOOKMARK":
            return
        with self._lock:
            if kind == "DELETED":
                self._drop(uid_of(found))
            else:
                self._keep(found)
        self._changed(found)

    def _keep(self, found: Found) -> None:
        uid = uid_of(found)
        self._drop(uid)
        self._objects[uid] = found = _trimmed(found)
        self._groups[self._group(found)][uid] = found

    def _drop(self, uid: str) -> None:
        known = self._objects.pop(uid, None)
        if known is None:
            return
        group = self._group(known)
        self._groups[group].pop(uid, None)
        if not self._groups[group]:
            del self._groups[group]


def _trimmed(found: Found) -> Found:
    kept = dict(found)
    for part, names in _LEFT_OUT.items():
        if isinstance(inner := kept.get(part), Mapping) and names & inner.keys():
            kept[part] = {k: v for k, v in inner.items() if k not in names}
    return kept


def uid_of(found: Found) -> str:
    """The uid of an object, `""` where it has none."""
    return str((found.get("metadata") or {}).get("uid") or "")


def owner_of(found: Found) -> str:
    """The uid of the Job that an object belongs to, `""` where there is none."""
    owners = (found.get("metadata") or {}).get("ownerReferences") or []
    return next((str(o.get("uid") or "") for o in owners if o.get("kind") == "Job"), "")


def _version(found: Found) -> int:
    text = str((found.get("metadata") or {}).get("resourceVersion") or "0")
    return int(text) if text.isdecimal() else 0
