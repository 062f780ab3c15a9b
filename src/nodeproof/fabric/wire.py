"""What the head and its members say to each other: JSON objects, one a line, over TCP.

Nothing that is read is executed or imported; a line that is too long or no JSON object ends the
connection. Both sides send beats, so that a peer whose cable was cut, which sends no sign of it,
is missed all the same.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

LINE_LIMIT = 64 * 1024 * 1024  # bytes; what a whole sweep of a large group has to say
HELLO_LIMIT = 256 * 1024  # of somebody who has not said who he is
_MOST_LINES = 10_000  # of one reading
_MOST_BYTES = 4 * 1024 * 1024  # of one reading
_DEPTH = 24
BEAT_S = 1.0
SILENT_S = 12.0  # without a beat; more than a cable that is plugged in again
PORT = 29400
TOKEN = "NODEPROOF_FABRIC_TOKEN"  # the environment variable that holds the group's shared word


class GoneError(ConnectionError):
    """The other side has closed the connection, or what it says can't be read."""


class Line:
    """One connection. Neither sending nor receiving ever waits."""

    def __init__(self, connection: socket.socket, *, limit: int = LINE_LIMIT) -> None:
        connection.settimeout(0.0)  # never waits
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._arrived = bytearray()
        self._leaving = bytearray()
        self.limit = limit
        self.heard = time.monotonic()

    @property
    def unsent(self) -> int:
        """Bytes that the other side has not taken yet."""
        return len(self._leaving)

    @property
    def own_address(self) -> str:
        """The address of this side."""
        return str(self._socket.getsockname()[0])

    @property
    def peer(self) -> str:
        """The address of the other side, "" where it has gone."""
        try:
            return str(self._socket.getpeername()[0])
        except OSError:
            return ""

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._socket.fileno()

    def silence(self) -> float:
        """Seconds since something was last heard."""
        return time.monotonic() - self.heard

    def send(self, message: Mapping[str, Any]) -> None:
        """Take a message to be sent, and send what goes. Raises `GoneError`."""
        # allow_nan=False: what is no number may not travel as one.
        self._leaving += json.dumps(message, allow_nan=False).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send what the other side takes now. Raises `GoneError`."""
        try:
            while self._leaving:
                del self._leaving[: self._socket.send(self._leaving[: 1 << 20])]
        except BlockingIOError:
            return
        except OSError as error:
            raise GoneError(error.strerror or str(error)) from error

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages that have come since. Raises `GoneError`."""
        self._take()
        if self._arrived.count(b"\n") > _MOST_LINES:
            raise GoneError(f"sent more than {_MOST_LINES} lines at once")
        *lines, rest = self._arrived.split(b"\n")
        if len(rest) > self.limit or any(len(line) > self.limit for line in lines):
            raise GoneError(f"sent a line of more than {self.limit} bytes")
        self._arrived = rest
        messages = [_message(bytes(line)) for line in lines]
        return [message for message in messages if set(message) != {"beat"}]

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _take(self) -> None:
        most = len(self._arrived) + _MOST_BYTES  # the others have to be heard, too
        try:
            while part := self._socket.recv(1 << 20):
                self._arrived += part
                self.heard = time.monotonic()
                if len(self._arrived) > min(most, self.limit + (1 << 20)):
                    return
        except BlockingIOError:
            return
        except OSError as error:
            raise GoneError(error.strerror or str(error)) from error
        if b"\n" not in self._arrived:
            raise GoneError("closed the connection")
        # What came before the end is read first; the next call finds the end again.


def _message(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line, parse_constant=_no_number)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict) or _deep(message):
        shown = line[:80].decode("utf-8", "backslashreplace")
        raise GoneError(f"sent what is no message: {shown!r}")
    return message


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number")


def _deep(message: Any) -> bool:
    """Whether objects and lists stand in each other deeper than anything that is said here."""
    level = [message]
    for _ in range(_DEPTH):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def address(text: str) -> tuple[str, int]:
    """Split `HOST`, `HOST:PORT` or `[v6]:PORT`. Raises `ValueError`."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, PORT if parts.port is None else parts.port
    except ValueError as error:
        raise ValueError(f"{text!r} is no HOST:PORT: {error}") from None
    if not host or parts.path or parts.username is not None:
        raise ValueError(f"{text!r} is no HOST:PORT")
    return host, port


def shown(host: str, port: int) -> str:
    """`HOST:PORT`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
