"""The one module that talks to the API: reads, watches, and the requests that others composed."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlencode

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from nodeproof.gate.writes import JSON, Request

WATCH_S = 300  # a watch ends by itself after this, and everything is listed again
_CONNECT_S, _READ_S = 5.0, 30.0
_QUIET_S = 30.0  # past the end of a watch, a connection that says nothing is dead
_PAGE = 500
_ROUNDED_S = 3.0  # an answer's date has whole seconds, and takes a while to come
# A log is written by whoever is tested, and served by its node: neither may hold up the others.
_LONGEST_LOG = 24 << 20  # bytes; what the largest results take that don't shrink in packing
_LOG_S, _DRIP_S = 20.0, 10.0  # for all of it, and between two pieces


_BROKEN = (urllib3.exceptions.HTTPError, ApiException, config.ConfigException, OSError)


class Refused(Exception):  # noqa: N818  an answer of the API, not an error of ours
    """The API did not do what it was asked. `status` is HTTP's, 0 without an answer."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)


class Gone(Exception):  # noqa: N818  a state of the watch
    """The version that a watch was to start from is no longer kept: list again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """All objects of one kind, and the version to watch from."""

    items: tuple[Mapping[str, Any], ...]
    version: str


class Kube:
    """A connection to one API server, by the official client's configuration and authentication."""

    def __init__(self, api: client.ApiClient, *, patience_s: float = _READ_S) -> None:
        self._api = api
        self._patience_s = patience_s  # for an answer
        self._lock = threading.Lock()
        self._ahead_s = 0.0  # the server's clock, of ours
        self.sent = 0  # requests so far, for the metrics

    @classmethod
    def here(cls, *, patience_s: float = _READ_S) -> Kube:
        """Connect as a pod does, or by the kubeconfig of a person. Raises `Refused` without either."""
        try:
            config.load_incluster_config()  # type: ignore[no-untyped-call]  # it ships no types
        except config.ConfigException:
            try:
                config.load_kube_config()  # type: ignore[no-untyped-call]  # the same
            except Exception as error:  # noqa: BLE001  whatever may be wrong with a person's file
                raise Refused(0, f"no cluster to talk to: {error}") from None
        return cls(client.ApiClient(), patience_s=patience_s)

    def now(self) -> float:
        """Seconds since 1970 by the server's clock, which stamps what we measure the age of."""
        return time.time() + self._ahead_s

    def list(
        self,
        path: str,
        *,
        kept: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
        **query: str,
    ) -> Listing:
        """Every object under a path, or what is `kept` of each. Raises `Refused`, `Gone`."""
        items: list[Mapping[str, Any]] = []
        more: dict[str, str] = {"limit": str(_PAGE)}
        while True:
            page = self.get(path, **query, **more)
            found = page.get("items") or []
            items += map(kept, found) if kept else found
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                version = str(metadata.get("resourceVersion") or "")
                return Listing(items=tuple(items), version=version)
            more["continue"] = metadata["continue"]

    def get(self, path: str, **query: str) -> Mapping[str, Any]:
        """One object. Raises `Refused`."""
        try:
            found = json.loads(self._ask("GET", path, query).data)
        except ValueError:
            found = None  # as from a proxy that answers for the server
        if not isinstance(found, dict):
            raise Refused(0, f"GET {path}: the answer is no object")
        return found

    def serves(self, path: str) -> bool:
        """Whether the server knows a kind of object and lets us list it. Raises `Refused`."""
        try:
            self.get(path, limit="1")
        except Refused as refusal:
            if refusal.status in {403, 404}:
                return False
            raise
        return True

    def log(self, namespace: str, pod: str, container: str) -> str | None:
        """The log of a container, its first 24 MiB; `None` where it can't be had in time."""
        path = f"/api/v1/namespaces/{namespace}/pods/{quote(pod)}/log"
        query = {"container": container, "limitBytes": str(_LONGEST_LOG)}
        ends, data = time.monotonic() + _LOG_S, bytearray()
        try:
            answer = self._ask("GET", path, query, read_s=_DRIP_S, stream=True)
            with contextlib.closing(answer):
                for piece in answer.stream(65536):
                    data += piece
                    if time.monotonic() > ends or len(data) > _LONGEST_LOG:
                        return None
        except (Refused, Gone, urllib3.exceptions.HTTPError, OSError):
            return None
        return data.decode("utf-8", "replace")

    def send(self, request: Request) -> Mapping[str, Any] | None:
        """Do a request; `None` where its answer says that it was done before. Raises `Refused`."""
        headers = {"Content-Type": request.content}
        try:
            answer = self._ask(request.verb, request.path, {}, request.body, headers)
        except Refused as refusal:
            if refusal.status in request.settled:
                return None
            raise
        try:
            found = json.loads(answer.data or b"{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def watch(
        self, path: str, version: str, stop: Callable[[], bool], **query: str
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """What changes under a path from a version on: kind of event and object.

        Ends after `WATCH_S`. Raises `Gone` where the version is too old, `Refused` for all else.
        """
        query |= {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        answer = self._ask("GET", path, query, read_s=WATCH_S + _QUIET_S, stream=True)
        try:
            for line in _lines(answer):
                if stop():
                    return
                event = json.loads(line)
                found = event.get("object") or {}
                if event.get("type") == "ERROR":
                    if found.get("code") == 410:
                        raise Gone
                    raise Refused(int(found.get("code") or 0), str(found.get("message")))
                yield str(event.get("type")), found
        except (ValueError, urllib3.exceptions.HTTPError, OSError) as error:
            raise Refused(0, f"watching {path}: {error}") from None
        finally:
            answer.close()

    def _ask(
        self,
        verb: str,
        path: str,
        query: Mapping[str, str],
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        read_s: float | None = None,
        stream: bool = False,
    ) -> Any:
        given = {"Accept": JSON, **(headers or {})}
        asked: list[tuple[str, str]] = list(query.items())
        with self._lock:
            self.sent += 1
        try:
            # It reads the token's file anew, which may be gone for a moment.
            self._api.update_params_for_auth(given, asked, ["BearerToken"], path, verb, body)
            url = self._api.configuration.host + path + (f"?{urlencode(asked)}" if asked else "")
            answer = self._api.rest_client.pool_manager.request(
                verb,
                url,
                body=None if body is None else json.dumps(body).encode(),
                headers=given,
                timeout=urllib3.Timeout(connect=_CONNECT_S, read=read_s or self._patience_s),
                retries=False,
                preload_content=not stream,
            )
        except _BROKEN as error:
            raise Refused(0, f"{verb} {path}: {error}") from None
        self._compare(answer.headers.get("Date", ""))
        if answer.status == 410:
            answer.close()
            raise Gone
        if not 200 <= answer.status < 300:
            try:
                said = (answer.data or b"")[:2000]
            except _BROKEN as error:  # what is streamed is read only now
                said = str(error).encode()
            answer.close()
            raise Refused(answer.status, f"{verb} {path}: {answer.status}: {_message(said)}")
        return answer

    def _compare(self, date: str) -> None:
        """Take the server's clock from an answer; what is within its rounding is no difference."""
        try:
            ahead_s = parsedate_to_datetime(date).timestamp() - time.time()
        except (TypeError, ValueError, OverflowError):
            return
        self._ahead_s = ahead_s if abs(ahead_s) > _ROUNDED_S else 0.0


def _lines(answer: Any) -> Iterator[bytes]:
    rest = b""
    for chunk in answer.stream(65536):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())


def _message(said: bytes) -> str:
    try:
        return str(json.loads(said).get("message"))
    except (ValueError, AttributeError):
        return said.decode("utf-8", "replace")[:200]
