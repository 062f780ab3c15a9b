"""The store behind HTTP: an API server of one process, for the official client.

`interfere` is called before and after each request that writes, with verb and path: a `Cut` that it
raises ends the connection, so that a test can end a controller between any two requests, and a
`Status` is the answer.
"""

from __future__ import annotations

import bisect
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import itemgetter
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from kubernetes import client

from tests.apiserver.store import Place, Status, Store, place, selected

Interfere = Callable[[str, str, str], None]


class Cut(Exception):  # noqa: N818  what becomes of the connection
    """The connection ends here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # it would hold each answer's body back for 40 ms
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        split = urlsplit(self.path)
        query = dict(parse_qsl(split.query))
        try:
            where = place(split.path)
        except Status as status:
            self._send(status.code, _failure(status))
            return
        if query.get("watch") == "true":
            self.server.reads.append(("WATCH", split.path))
            self._watch(split.path, query)
            return
        self.server.reads.append(("GET", split.path))
        store = self.server.store
        self._answer(
            lambda: store.get(split.path) if where.name else store.list(split.path, query), 200
        )

    def do_POST(self) -> None:
        self._write(lambda body: self.server.store.create(self.path, body), 201)

    def do_PATCH(self) -> None:
        content = self.headers["Content-Type"]
        self._write(lambda body: self.server.store.patch(self.path, content, body), 200)

    def do_PUT(self) -> None:
        self._write(lambda body: self.server.store.replace(self.path, body), 200)

    def do_DELETE(self) -> None:
        self._write(lambda _body: self.server.store.delete(self.path), 200)

    def _write(self, do: Callable[[Any], Any], code: int) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"null")
        self.path = urlsplit(self.path).path
        try:
            self.server.interfere(self.command, self.path, "before")
            self.server.wrote.append((self.command, self.path, body))
            answer: tuple[int, Any]
            try:
                answer = code, do(body)
            except Status as status:
                answer = status.code, _failure(status)
            self.server.interfere(self.command, self.path, "after")
        except Status as status:
            answer = status.code, _failure(status)
        except Cut:
            self.close_connection = True
            self.connection.close()
            return
        self._send(*answer)

    def _answer(self, do: Callable[[], Any], code: int) -> None:
        try:
            answer: tuple[int, Any] = code, do()
        except Status as status:
            answer = status.code, _failure(status)
        self._send(*answer)

    def _send(self, code: int, found: Any) -> None:
        data = found.encode() if isinstance(found, str) else json.dumps(found).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _watch(self, path: str, query: dict[str, str]) -> None:
        store, where = self.server.store, place(path)
        at = int(query["resourceVersion"])
        if at < store.oldest:
            self._send(410, _failure(Status(410, "too old resource version")))
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        epoch = self.server.epoch
        try:
            while not self.server.closing and epoch == self.server.epoch:
                with store.changed:
                    if at < store.oldest:
                        gone = {"kind": "Status", "code": 410, "message": "compacted"}
                        self._chunk({"type": "ERROR", "object": gone})
                        break
                    first = bisect.bisect_right(store.history, at, key=itemgetter(0))
                    due = store.history[first:]
                    if not due:
                        if not store.changed.wait(0.1) and self.server.bookmarks:
                            self._chunk(_bookmark(where, at))
                        continue
                for version, event, found in due:
                    at = version
                    metadata = found["metadata"]
                    ours = found["kind"].lower() + "s" == where.plural
                    here = where.namespace in {"", metadata.get("namespace", "")}
                    if ours and here and selected(found, query):
                        self._chunk({"type": event, "object": found})
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            pass
        self.close_connection = True

    def _chunk(self, event: dict[str, Any]) -> None:
        data = json.dumps(event).encode() + b"\n"
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    """The server and what it saw. `epoch` is moved to drop every watch."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, store: Store) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.store = store
        self.interfere: Interfere = lambda *_: None
        self.wrote: list[tuple[str, str, Any]] = []
        self.reads: list[tuple[str, str]] = []
        self.closing = False
        self.bookmarks = False  # whether a watch that is quiet gets one
        self.epoch = 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""

    def client(self) -> client.ApiClient:
        """The official client, pointed here."""
        configuration = client.Configuration()
        configuration.host = f"http://127.0.0.1:{self.server_address[1]}"
        return client.ApiClient(configuration)

    def drop(self) -> None:
        """End every watch."""
        self.epoch += 1


@contextmanager
def serving(store: Store) -> Iterator[Server]:
    server = Server(store)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing = True
        server.shutdown()
        server.server_close()


def _bookmark(where: Place, version: int) -> dict[str, Any]:
    about = {"kind": where.plural, "metadata": {"resourceVersion": str(version)}}
    return {"type": "BOOKMARK", "object": about}


def _failure(status: Status) -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "code": status.code, "message": str(status)}
