"""What the API last said of one kind of object: correct by the list, quick by the watch."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from nodeproof.gate.kube import Gone, Kube, Refused

Found = Mapping[str, Any]
_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 30.0  # between two requests that came to nothing: doubled
_LASTED_S = 10.0  # a watch that was open for this long came to something
_LIST_S = 300.0  # everything is listed again after this, whatever the watch has said
# What is large and nobody here asks for: ten thousand nodes have to fit.
_LEFT_OUT = {
    "metadata": frozenset({"managedFields"}),
    "spec": frozenset({"template", "initContainers", "volumes"}),
    "status": frozenset({"images"}),
}
_CONTAINER = frozenset({"name", "image"})  # what is kept of each

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
        self._lost: float | None = None  # monotonic: since when it has not been followed
        self._thread = threading.Thread(target=self._follow, daemon=True, name=f"watch {path}")

    def start(self) -> None:
        """Follow the API in a thread of its own."""
        self._lost = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Stop following."""
        self._stop.set()

    @property
    def dead(self) -> bool:
        """Whether nobody follows the API any more, and nobody asked for that."""
        started = self._thread.ident is not None
        return started and not self._thread.is_alive() and not self._stop.is_set()

    @property
    def blind_s(self) -> float:
        """For how long the API could not be listed or watched; 0 while it can."""
        lost = self._lost
        return 0.0 if lost is None or self._stop.is_set() else time.monotonic() - lost

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
        version, listed, pause = "", 0.0, _PAUSE_S
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                if not version or began - listed >= _LIST_S:
                    version, listed = self._list(), began
                for kind, found in self._kube.watch(
                    self._path, version, self._stop.is_set, **self._query
                ):
                    self._say("")
                    self._take(kind, found)
                    version = _stamp(found) or version
                self._say("")
            except Gone:
                version = ""
            except Refused as refusal:
                version = version if refusal.status == 0 else ""  # a connection that was cut
                self._say(str(refusal))
            # However it ended: nobody is asked again and again without a breath.
            pause = _PAUSE_S if time.monotonic() - began >= _LASTED_S else pause
            self._stop.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _list(self) -> str:
        """List everything; return the version to watch from."""
        listing = self._kube.list(self._path, kept=self._slim, **self._query)
        self._replace(listing.items)
        self._say("")
        self.listed.set()
        return listing.version

    def _slim(self, found: Found) -> Found:
        """What is kept of an object, while the rest of its page still comes: the same, if unmoved."""
        known = self.get(uid_of(found))
        return (
            known if known and _stamp(known) and _stamp(known) == _stamp(found) else _trimmed(found)
        )

    def _say(self, refusal: str) -> None:
        if refusal != self.refusal and not self._stop.is_set():
            log.warning("%s: %s", self._path, refusal or "it can be followed again")
        self.refusal = refusal
        if not refusal:
            self._lost = None
        elif self._lost is None:
            self._lost = time.monotonic()

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
            elif _older(found, self._objects.get(uid_of(found))):
                return  # an answer to a write of ours was quicker
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
    cut: dict[str, Any] = {}
    for part, names in _LEFT_OUT.items():
        if isinstance(inner := found.get(part), Mapping) and names & inner.keys():
            cut[part] = {k: v for k, v in inner.items() if k not in names}
    spec = found.get("spec")
    containers = spec.get("containers") if isinstance(spec, Mapping) else None
    if isinstance(containers, list) and any(c.keys() - _CONTAINER for c in containers):
        slim = [{k: c[k] for k in _CONTAINER & c.keys()} for c in containers]
        cut["spec"] = {**(cut.get("spec") or spec or {}), "containers": slim}
    return {**found, **cut} if cut else found


def uid_of(found: Found) -> str:
    """The uid of an object, `""` where it has none."""
    return str((found.get("metadata") or {}).get("uid") or "")


def owner_of(found: Found) -> str:
    """The uid of the Job that an object belongs to, `""` where there is none."""
    owners = (found.get("metadata") or {}).get("ownerReferences") or []
    return next((str(o.get("uid") or "") for o in owners if o.get("kind") == "Job"), "")


def _stamp(found: Found) -> str:
    return str((found.get("metadata") or {}).get("resourceVersion") or "")


def _older(found: Found, known: Found | None) -> bool:
    return known is not None and _version(found) < _version(known)


def _version(found: Found) -> int:
    text = str((found.get("metadata") or {}).get("resourceVersion") or "0")
    return int(text) if text.isdecimal() else 0
