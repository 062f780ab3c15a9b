"""What a controller tells of itself over HTTP: that it lives, and its metrics."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_SLOW_S = 10.0  # for a request to be said in full


def serve(port: int, *, alive: Callable[[], str], metrics: Callable[[], str]) -> int:
    """Answer `/healthz` and `/metrics` in a thread of its own; return the port.

    `alive` gives the reason why this process should be started anew, `""` for none. Raises
    `OSError` where the port can't be had.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = _SLOW_S

        def do_GET(self) -> None:
            """Answer the two paths; everything else is not found."""
            why = alive() if self.path == "/healthz" else ""
            if self.path == "/healthz":
                self._send(503 if why else 200, why or "ok")
            elif self.path == "/metrics":
                self._send(200, metrics())
            else:
                self._send(404, "there are /healthz and /metrics")

        def _send(self, status: int, text: str) -> None:
            data = text.encode() + b"\n"
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base's name
            """Keep probes out of the log."""

    server = _Server(("", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True, name="serving").start()
    return int(server.server_address[1])


class _Server(ThreadingHTTPServer):
    """On IPv4 and IPv6 alike: a kubelet asks the pod's address, whichever that is."""

    daemon_threads = True
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def server_bind(self) -> None:
        """Bind to both families where there are both."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()
