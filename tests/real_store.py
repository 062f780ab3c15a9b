"""The objects of a real API server, and what it answers to whom."""

from __future__ import annotations

import contextlib
import copy
import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gate_cluster import NAMES

from tests.apiserver.store import Status, place

_GONE_AT_ONCE = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
_LISTS = {
    "nodes": "/api/v1/nodes",
    "pods": "/api/v1/pods",
    "events": "/api/v1/events",
    "configmaps": f"/api/v1/namespaces/{NAMES.namespace}/configmaps",
    "jobs": "/apis/batch/v1/jobs",
    "leases": f"/apis/coordination.k8s.io/v1/namespaces/{NAMES.namespace}/leases",
}
_NEWER = {"resourceslices": "/apis/resource.k8s.io/v1/resourceslices"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """Somebody who asks: as the administrator says, or by a token of his own."""

    name: str = ""  # none: who the token says
    groups: tuple[str, ...] = ()
    node: str | None = None  # the node that its token names
    token: str = ""

    def headers(self) -> Iterator[tuple[str, str]]:
        if self.name:
            yield "Impersonate-User", self.name
        for group in self.groups:
            yield "Impersonate-Group", group
        if self.node is not None:
            yield "Impersonate-Extra-authentication.kubernetes.io%2Fnode-name", self.node


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the server says to a request: 200 to 299, or a refusal with its message."""

    status: int
    body: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def admitted(self) -> bool:
        return self.status < 300

    @property
    def message(self) -> str:
        return str(self.body.get("message"))


class RealStore:
    """The objects of a real cluster, changed as an administrator, a kubelet or a collector does."""

    def __init__(self, port: int, token: str, trust: ssl.SSLContext, kubelet: int) -> None:
        self._port, self._token, self._trust, self._kubelet = port, token, trust, kubelet
        self.logs: dict[str, str | None] = {}
        self.clock: Callable[[], float] = time.time

    # --- as the fake one ----------------------------------------------------------------------

    @property
    def version(self) -> int:
        """It moves with every write."""
        found = self.ask("GET", "/api/v1/nodes?limit=1")
        return int(found["metadata"]["resourceVersion"])

    def get(self, path: str) -> dict[str, Any]:
        return self.ask("GET", path)

    def objects(self, plural: str) -> list[dict[str, Any]]:
        kept = self.ask("GET", _LISTS.get(plural) or _NEWER[plural])["items"]
        return [o for o in kept if o["metadata"]["name"] != "kube-root-ca.crt"]

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        made = copy.deepcopy(dict(body))
        where = place(path)
        if where.plural == "nodes":
            made["status"]["addresses"] = [{"type": "InternalIP", "address": "127.0.0.1"}]
            made["status"]["daemonEndpoints"] = {"kubeletEndpoint": {"Port": self._kubelet}}
        if where.plural != "pods":
            return self.ask("POST", path, made)
        # As a scheduler does: a pod of the gate's namespace may not name its node itself.
        node = made["spec"].pop("nodeName", None)
        created = self.ask("POST", path, made)
        at = f"{path}/{created['metadata']['name']}"
        if node is not None:
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            metadata = {"name": created["metadata"]["name"]}
            bound = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
            self.ask("POST", f"{at}/binding", bound)
        if "status" in made:
            return self.change(at, lambda o: o["status"].update(made["status"]))
        return self.get(at)

    def change(self, path: str, how: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Change an object past every precondition: its main part, its status, or both."""
        for _ in range(20):
            before = self.get(path)
            wanted = copy.deepcopy(before)
            how(wanted)
            status, after = wanted.get("status"), before
            try:
                if {**wanted, "status": None} != {**before, "status": None}:
                    after = self.ask("PUT", path, wanted)
                if status != before.get("status"):
                    after = self.ask("PUT", f"{path}/status", {**after, "status": status})
            except Status as refusal:
                if refusal.code != 409:
                    raise
                continue
            return after
        raise Status(409, f"{path} never stood still")

    def delete(self, path: str) -> None:
        """Delete an object, and what belongs to it, as the garbage collector does."""
        gone = self.ask("DELETE", path, _GONE_AT_ONCE)
        uid = (gone.get("details") or {}).get("uid") or gone["metadata"]["uid"]
        self._collect({uid})

    def _collect(self, gone: set[str]) -> None:
        for plural in ("jobs", "pods"):
            for found in self.objects(plural):
                metadata = found["metadata"]
                if any(o["uid"] in gone for o in metadata.get("ownerReferences") or []):
                    base = "/apis/batch/v1" if plural == "jobs" else "/api/v1"
                    space = f"{base}/namespaces/{metadata['namespace']}"
                    self.delete(f"{space}/{plural}/{metadata['name']}")

    def collect(self) -> None:
        """Delete what belongs to a Job or a node that is gone."""
        there = {o["metadata"]["uid"] for kind in ("nodes", "jobs") for o in self.objects(kind)}
        owned = {
            o["uid"]
            for kind in ("jobs", "pods")
            for found in self.objects(kind)
            for o in found["metadata"].get("ownerReferences") or []
        }
        self._collect(owned - there)

    def stamp(self) -> str:
        return datetime.fromtimestamp(self.clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def clear(self) -> None:
        """Leave nothing of one test to the next."""
        for plural, path in _LISTS.items():
            for found in self.objects(plural):
                metadata = found["metadata"]
                space = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
                base = path.partition("/namespaces/")[0].removesuffix(f"/{plural}")
                self.ask("DELETE", f"{base}{space}/{plural}/{metadata['name']}", _GONE_AT_ONCE)
        self.logs.clear()

    # --- by HTTP ------------------------------------------------------------------------------

    def ask(self, verb: str, path: str, body: Any = None) -> dict[str, Any]:
        """One request as the administrator. Raises `Status` for what is no success."""
        answer = self.answer(verb, path, body)
        if not answer.admitted:
            raise Status(answer.status, answer.message)
        return answer.body

    def answer(
        self,
        verb: str,
        path: str,
        body: Any = None,
        *,
        who: Who | None = None,
        content: str = "application/json",
    ) -> Answer:
        """What the server says to one request of the administrator, or of somebody else."""
        data = b"" if body is None else json.dumps(body).encode()
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self._port, context=self._trust, timeout=60
        )
        with contextlib.closing(connection):
            connection.putrequest(verb, path)
            token = (who.token if who else "") or self._token
            connection.putheader("Authorization", f"Bearer {token}")
            connection.putheader("Content-Type", content)
            connection.putheader("Content-Length", str(len(data)))
            for name, value in who.headers() if who else ():
                connection.putheader(name, value)
            connection.endheaders(data)
            answer = connection.getresponse()
            return Answer(
                status=answer.status,
                body=dict(json.loads(answer.read())),
                warnings=tuple(answer.headers.get_all("Warning") or ()),
            )

    def apply(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """Make these objects, or make them so again, as `kubectl apply` does."""
        for wanted in objects:
            path = home(wanted)
            made = self.answer("POST", path, wanted)
            if made.status == 409:
                at = f"{path}/{wanted['metadata']['name']}"
                version = {"resourceVersion": self.get(at)["metadata"]["resourceVersion"]}
                self.ask("PUT", at, {**wanted, "metadata": {**wanted["metadata"], **version}})
            elif not made.admitted:
                raise Status(made.status, made.message)


def home(wanted: Mapping[str, Any]) -> str:
    """The path of the collection that an object belongs to."""
    group, _, version = wanted["apiVersion"].rpartition("/")
    base = f"/apis/{group}/{version}" if group else f"/api/{version}"
    space = wanted["metadata"].get("namespace")
    kind = wanted["kind"].lower()
    end = {"y": "ies", "s": "ses"}.get(kind[-1], kind[-1] + "s")
    plural = kind[:-1] + end
    return f"{base}/namespaces/{space}/{plural}" if space else f"{base}/{plural}"
