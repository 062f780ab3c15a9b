"""What an API server keeps, and how it answers: versions, conflicts, patches, subresources.

Only what the gate uses, and that as the real one does it: taints are one atomic list, conditions
merge by type, a failed test of a JSON Patch is 422, a stale version 409, a version that was
compacted 410, and each write of nothing new leaves the version alone.
"""

from __future__ import annotations

import copy
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import jsonpatch

NODES = "/api/v1/nodes"
_KINDS = {
    "nodes": ("v1", "Node"),
    "pods": ("v1", "Pod"),
    "events": ("v1", "Event"),
    "configmaps": ("v1", "ConfigMap"),
    "jobs": ("batch/v1", "Job"),
    "leases": ("coordination.k8s.io/v1", "Lease"),
    "resourceslices": ("resource.k8s.io/v1", "ResourceSlice"),
    "daemonsets": ("apps/v1", "DaemonSet"),
    "deployments": ("apps/v1", "Deployment"),
}
_MERGED = {"conditions": "type"}  # lists with a merge key; every other list is replaced


class Status(Exception):  # noqa: N818  an answer, as the API names it
    """An answer that is no success, with HTTP's status."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


@dataclass(slots=True)
class Place:
    """A path taken apart: the kind, the namespace, the name and the subresource."""

    plural: str
    namespace: str = ""
    name: str = ""
    sub: str = ""


def place(path: str) -> Place:
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    found = Place(plural="")
    if rest[0] == "namespaces" and len(rest) > 2:
        found.namespace, rest = rest[1], rest[2:]
    found.plural, *more = rest
    found.name = more[0] if more else ""
    found.sub = more[1] if len(more) > 1 else ""
    if found.plural not in _KINDS:
        raise Status(404, f"the server could not find the requested resource {path}")
    return found


@dataclass
class Store:
    """The objects of a cluster. `clock` is the server's."""

    clock: Callable[[], float] = time.time
    logs: dict[str, str | None] = field(default_factory=dict)  # by name of the pod
    budgets: set[str] = field(default_factory=set)  # pods that no disruption budget lets go
    version: int = 1
    oldest: int = 0  # versions before this one were compacted
    writes: int = 0

    def __post_init__(self) -> None:
        self._objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.history: list[tuple[int, str, dict[str, Any]]] = []  # version, kind of event, object
        self.changed = threading.Condition()

    # --- as the API answers -----------------------------------------------------------------

    def get(self, path: str) -> Any:
        where = place(path)
        with self.changed:
            if where.sub == "log":
                self._one(where)
                log = self.logs.get(where.name)
                if log is None:
                    raise Status(500, "the kubelet does not answer")
                return log
            return copy.deepcopy(self._one(where))

    def list(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        where = place(path)
        with self.changed:
            items = [
                copy.deepcopy(o)
                for (plural, namespace, _), o in self._objects.items()
                if plural == where.plural
                and where.namespace in {"", namespace}
                and selected(o, query)
            ]
            version, kind = _KINDS[where.plural]
            metadata = {"resourceVersion": str(self.version)}
            return {
                "apiVersion": version,
                "kind": f"{kind}List",
                "metadata": metadata,
                "items": items,
            }

    def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        where = place(path)
        with self.changed:
            if where.sub == "eviction":
                return self._evict(where, body)
            name = body["metadata"]["name"]
            namespace = where.namespace or body["metadata"].get("namespace", "")
            if (where.plural, namespace, name) in self._objects:
                raise Status(409, f"{where.plural} {name!r} already exists")
            version, kind = _KINDS[where.plural]
            made = {"apiVersion": version, "kind": kind, **copy.deepcopy(body)}
            made["metadata"] = {
                "uid": str(uuid.uuid4()),
                "creationTimestamp": self.stamp(),
                **made["metadata"],
            }
            if namespace:
                made["metadata"]["namespace"] = namespace
            self._objects[where.plural, namespace, name] = made
            self._bump("ADDED", made)
            return copy.deepcopy(made)

    def patch(self, path: str, content: str, body: Any) -> dict[str, Any]:
        where = place(path)
        with self.changed:
            before = self._one(where)
            if content == "application/json-patch+json":
                try:
                    after = jsonpatch.apply_patch(copy.deepcopy(before), body)
                except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
                    raise Status(422, f"the server rejected our request: {error}") from None
            else:
                strategic = content == "application/strategic-merge-patch+json"
                after = _merged(before, body, strategic=strategic)
            return self._replaced(where, before, after)

    def replace(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        where = place(path)
        with self.changed:
            before = self._one(where)
            after = copy.deepcopy(body)
            after["metadata"].setdefault("resourceVersion", before["metadata"]["resourceVersion"])
            return self._replaced(where, before, after)

    def delete(self, path: str) -> dict[str, Any]:
        where = place(path)
        with self.changed:
            gone = self._one(where)
            del self._objects[where.plural, gone["metadata"].get("namespace", ""), where.name]
            self._bump("DELETED", gone)
            for (plural, namespace, name), other in list(self._objects.items()):
                owners = other["metadata"].get("ownerReferences") or []
                if any(o["uid"] == gone["metadata"]["uid"] for o in owners):
                    del self._objects[plural, namespace, name]
                    self._bump("DELETED", other)
            return {"kind": "Status", "status": "Success"}

    # --- as others change it ----------------------------------------------------------------

    def change(self, path: str, how: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Change an object as a kubelet or a controller does, past every precondition."""
        where = place(path)
        with self.changed:
            found = self._one(where)
            before = copy.deepcopy(found)
            how(found)
            if found != before:
                self._bump("MODIFIED", found)
            return copy.deepcopy(found)

    def objects(self, plural: str) -> list[dict[str, Any]]:
        with self.changed:
            return [copy.deepcopy(o) for (p, _, _), o in self._objects.items() if p == plural]

    def compact(self) -> None:
        """Forget how it came to be as it is: watches from an older version get 410."""
        with self.changed:
            self.oldest = self.version
            self.history = [h for h in self.history if h[0] > self.oldest]
            self.changed.notify_all()

    def stamp(self) -> str:
        return datetime.fromtimestamp(self.clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _one(self, where: Place) -> dict[str, Any]:
        found = self._objects.get((where.plural, where.namespace, where.name))
        if found is None:
            raise Status(404, f"{where.plural} {where.name!r} not found")
        return found

    def _replaced(
        self, where: Place, before: dict[str, Any], after: dict[str, Any]
    ) -> dict[str, Any]:
        if after["metadata"].get("resourceVersion") != before["metadata"]["resourceVersion"]:
            raise Status(409, "the object has been modified")
        for name in ("uid", "creationTimestamp", "name"):
            if after["metadata"].get(name) != before["metadata"].get(name):
                raise Status(422, f"metadata.{name}: Invalid value: field is immutable")
        if where.sub == "status":
            after["spec"] = copy.deepcopy(before.get("spec"))
            if after["spec"] is None:
                del after["spec"]
        elif where.plural in {"nodes", "pods", "jobs"} and "status" in before:
            after["status"] = copy.deepcopy(before["status"])
        if after != before:
            self._objects[where.plural, where.namespace, where.name] = after
            self._bump("MODIFIED", after)
        return copy.deepcopy(after)

    def _evict(self, where: Place, body: Mapping[str, Any]) -> dict[str, Any]:
        pod = self._one(where)
        wanted = ((body.get("deleteOptions") or {}).get("preconditions") or {}).get("uid")
        if wanted not in {None, pod["metadata"]["uid"]}:
            raise Status(409, f"the UID in the precondition ({wanted}) is not the pod's")
        if where.name in self.budgets:
            raise Status(429, "Cannot evict pod as it would violate the pod's disruption budget.")
        pod["metadata"]["deletionTimestamp"] = self.stamp()
        self._bump("MODIFIED", pod)
        return {"kind": "Status", "status": "Success"}

    def _bump(self, event: str, found: dict[str, Any]) -> None:
        self.version += 1
        self.writes += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, event, copy.deepcopy(found)))
        self.changed.notify_all()


def selected(found: Mapping[str, Any], query: Mapping[str, str]) -> bool:
    """Whether an object is meant by a list's selectors: equality alone."""
    labels = found["metadata"].get("labels") or {}
    for term in filter(None, query.get("labelSelector", "").split(",")):
        key, _, value = term.partition("=")
        if labels.get(key) != value:
            return False
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        key, _, value = term.partition("=")
        at: Any = found
        for part in key.split("."):
            at = (at or {}).get(part)
        if at != value:
            return False
    return True


def _merged(old: Any, new: Any, *, strategic: bool, name: str = "") -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        both = copy.deepcopy(old)
        for key, value in new.items():
            if value is None:
                both.pop(key, None)
            else:
                both[key] = _merged(old.get(key), value, strategic=strategic, name=key)
        return both
    if strategic and name in _MERGED and isinstance(old, list) and isinstance(new, list):
        key = _MERGED[name]
        rows = copy.deepcopy(old)
        for row in new:
            same = next((r for r in rows if r[key] == row[key]), None)
            if same is None:
                rows.append(copy.deepcopy(row))
            else:
                same.update(copy.deepcopy(row))
        return rows
    return copy.deepcopy(new)
