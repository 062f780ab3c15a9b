"""Where the ranks of a meeting write what they say: a file on one node, a TCP store among nodes.

`Group.store` is a path, or `tcp://HOST:PORT/MEETING`: a store that `serve` opened on some node, in
which each meeting has a name of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch.distributed as dist

from nodeproof.worker import Context, Group

_REMOTE = "tcp://"
_SIOCGIFADDR = 0x8915  # linux/sockios.h
_IN_IFREQ = slice(20, 24)  # where the IPv4 address stands in the kernel's answer


class GoneError(RuntimeError):
    """The store can't be reached, or not any more. Says where it is."""


class Store:
    """Keys and values that all ranks of one meeting see.

    Every method raises `GoneError` where the store has gone away.
    """

    def __init__(self, group: Group, *, timeout_s: float) -> None:
        self._where = group.store
        timeout = timedelta(seconds=timeout_s)
        with self._reached():
            if _remote(group):
                place = urlsplit(group.store)
                whole = dist.TCPStore(
                    str(place.hostname),
                    int(place.port or 0),
                    is_master=False,
                    wait_for_workers=False,
                    timeout=timeout,
                )
                self._store: Any = dist.PrefixStore(place.path.strip("/"), whole)
            else:
                self._store = dist.FileStore(group.store, group.size)
                self._store.set_timeout(timeout)

    def under(self, name: str) -> Any:
        """The same store for torch's own keys."""
        return dist.PrefixStore(name, self._store)

    def set(self, key: str, value: str) -> None:
        """Write a value; the last one stays."""
        with self._reached():
            self._store.set(key, value)

    def find(self, key: str) -> bytes | None:
        """Return the value, or `None` where nobody wrote one yet."""
        with self._reached():
            return bytes(self._store.get(key)) if self._store.check([key]) else None

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        # torch raises RuntimeError and its kinds, for a store that is gone and for a timeout.
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise GoneError(f"the store {self._where} can't be reached: {reason}") from error


def serve(context: Context, *, port: int = 0) -> dict[str, Any]:
    """Open a store for meetings among nodes and keep it until the process ends.

    Tells its port in a progress message, `{"port": N}`. Never returns. Raises `GoneError` where
    the port is taken.
    """
    try:
        store = dist.TCPStore(
            "127.0.0.1",  # by which this process reaches it; it listens on every address
            port,
            is_master=True,
            wait_for_workers=False,
        )
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise GoneError(f"no store can be opened on port {port}: {reason}") from error
    context.progress(port=float(store.port))
    threading.Event().wait()
    return {}


def interface(group: Group) -> str:
    """Name of the network interface by which this node reaches the others; `""` if it isn't known."""
    if not _remote(group):
        return "lo"  # one node: no other interface has a part in it
    place = urlsplit(group.store)
    address = _own_address(str(place.hostname), int(place.port or 0))
    for _, name in socket.if_nameindex():
        if address in _addresses(name):
            return name
    return ""


def _remote(group: Group) -> bool:
    return group.store.startswith(_REMOTE)


def _own_address(host: str, port: int) -> str:
    """The address from which the kernel would send there. Nothing is sent."""
    try:
        family, kind, proto, _, there = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, proto) as asking:
            asking.connect(there)
            return str(asking.getsockname()[0])
    except OSError:
        return ""


def _addresses(name: str) -> Iterator[str]:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking,
        contextlib.suppress(OSError),  # it has none
    ):
        request = struct.pack("256s", name.encode()[:15])
        answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
        yield socket.inet_ntoa(answer[_IN_IFREQ])
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, *_, of = line.split()
            if of == name:
                yield socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))


def prefer(group: Group) -> None:
    """Have Gloo and NCCL's bootstrap take the interface that leads to the others.

    What the user has set stays. Without a word Gloo takes what the host's name resolves to, and
    waits half a minute where it doesn't resolve.
    """
    name = interface(group)
    if name == "lo" and not _remote(group):
        os.environ["GLOO_SOCKET_IFNAME"] = name
    elif name:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")
