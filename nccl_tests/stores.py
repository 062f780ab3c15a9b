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
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import torch.distributed as dist

from nodeproof.worker import Context, Group

_REMOTE = "tcp://"
_SIOCGIFADDR = 0x8915  # linux/sockios.h
_IN_IFREQ = slice(20, 24)  # where the IPv4 address stands in the kernel's answer
_OVER_S = 1.0  # after torch's own timeout, whose sentence says more

_Value = TypeVar("_Value")


class GoneError(RuntimeError):
    """The store can't be reached, or not any more. Says where it is."""


class Store:
    """Keys and values that all ranks of one meeting see.

    Every method raises `GoneError` where the store has gone away.
    """

    def __init__(self, group: Group, *, timeout_s: float) -> None:
        self._where = group.store
        self._patience_s = timeout_s + _OVER_S
        self._lost = ""  # why nothing is asked of it any more
        self._remote = _remote(group)
        self._store: Any = self._answered(lambda: _opened(group, timedelta(seconds=timeout_s)))

    def under(self, name: str) -> Any:
        """The same store for torch's own keys."""
        return dist.PrefixStore(name, self._store)

    def set(self, key: str, value: str) -> None:
        """Write a value; the last one stays."""
        self._answered(lambda: self._store.set(key, value))

    def find(self, key: str) -> bytes | None:
        """Return the value, or `None` where nobody wrote one yet."""
        return self._answered(
            lambda: bytes(self._store.get(key)) if self._store.check([key]) else None
        )

    def _answered(self, ask: Callable[[], _Value]) -> _Value:
        """Ask the store, and wait for its answer no longer than the patience."""
        if self._lost:
            raise GoneError(self._lost)
        try:
            return _in_time(ask, self._patience_s) if self._remote else ask()
        except TimeoutError as error:
            # Whoever asks now would stand in line behind the question that is still open.
            self._lost = f"the store {self._where} can't be reached: {error}"
            raise GoneError(self._lost) from None
        # torch raises RuntimeError and its kinds, for a store that is gone and for a timeout.
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise GoneError(f"the store {self._where} can't be reached: {reason}") from error


def _opened(group: Group, timeout: timedelta) -> Any:
    if not _remote(group):
        store = dist.FileStore(group.store, group.size)
        store.set_timeout(timeout)
        return store
    place = urlsplit(group.store)
    whole = dist.TCPStore(
        str(place.hostname),
        int(place.port or 0),
        is_master=False,
        wait_for_workers=False,
        timeout=timeout,
    )
    return dist.PrefixStore(place.path.strip("/"), whole)


def _in_time(ask: Callable[[], _Value], seconds: float) -> _Value:
    """Return or raise what `ask` does; `TimeoutError` where it is not over in time.

    torch's client waits for an answer that has begun for ever, whatever its timeout says (measured
    with torch 2.13 and a host that was cut off), and lets nobody interrupt it. So it waits in a
    thread, which is left behind: the worker that has it is ended and started anew after a failure.
    """
    told: Future[_Value] = Future()

    def answer() -> None:
        try:
            told.set_result(ask())
        except Exception as error:  # noqa: BLE001  raised again by the caller
            told.set_exception(error)

    threading.Thread(target=answer, daemon=True).start()
    try:
        return told.result(seconds)
    except TimeoutError:
        raise TimeoutError(f"it did not answer within {seconds:g} s") from None


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
