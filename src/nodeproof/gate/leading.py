"""One controller at a time, by a Lease. Two at once do no harm; they only ask twice."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from nodeproof.gate.kube import Gone, Kube, Refused
from nodeproof.gate.writes import Request

NAME = "nodeproof-controller"
LEASE_S = 15  # a holder that says nothing for this long has lost it
_RENEW_S = 10.0  # a holder that can't say so for this long gives up before another may take it
_RETRY_S = 2.0
_END_S = 3.0  # for the work to end before the Lease is left to run out

log = logging.getLogger("nodeproof.gate")


class Lease:
    """The Lease of one namespace, as one candidate sees it.

    Whether a holder is alive is told by its Lease moving, on our own clock: clocks of two machines
    need not agree.
    """

    def __init__(self, kube: Kube, namespace: str, *, identity: str = "") -> None:
        self._kube = kube
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self.identity = identity or f"{socket.gethostname()}-{os.getpid()}"
        self._seen: Mapping[str, Any] = {}
        self._since = 0.0  # monotonic; when it last moved
        self._renewed: float | None = None  # on `_clock`

    def held(self) -> bool:
        """Whether it was renewed so lately that no other one can have taken it."""
        return self._renewed is not None and _clock() - self._renewed <= _RENEW_S

    def take(self) -> bool:
        """Take it or renew it; `False` while another one holds it. Raises `Refused`, `Gone`."""
        began = _clock()  # not the answer's time: from then on it may run out
        taken = self._take()
        self._renewed = began if taken else None
        return taken

    def _take(self) -> bool:
        try:
            found = self._kube.get(f"{self._leases}/{NAME}")
        except Refused as refusal:
            if refusal.status != 404:
                raise
            return self._make()
        spec = found.get("spec") or {}
        if spec != self._seen:
            self._seen, self._since = spec, time.monotonic()
        holder = spec.get("holderIdentity") or ""
        alive = time.monotonic() < self._since + (spec.get("leaseDurationSeconds") or LEASE_S)
        if holder not in {"", self.identity} and alive:
            return False
        return self._put(found, self._ours(spec))

    def give_back(self) -> None:
        """Let another one have it at once. Raises `Refused`."""
        found = self._kube.get(f"{self._leases}/{NAME}")
        spec = found.get("spec") or {}
        if spec.get("holderIdentity") == self.identity:
            self._put(found, {**spec, "holderIdentity": "", "renewTime": _stamp()})

    def _make(self) -> bool:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": NAME},
            "spec": self._ours({}),
        }
        return self._did(Request(verb="POST", path=self._leases, body=body))

    def _put(self, found: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
        # With the version that was read: of two that write, one gets a conflict.
        body = {**found, "spec": spec}
        return self._did(Request(verb="PUT", path=f"{self._leases}/{NAME}", body=body))

    def _did(self, request: Request) -> bool:
        try:
            self._kube.send(request)
        except Refused as refusal:
            if refusal.status != 409:
                raise
            return False
        return True

    def _ours(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        now = _stamp()
        kept = spec.get("holderIdentity") == self.identity
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": LEASE_S,
            "acquireTime": spec.get("acquireTime") if kept else now,
            "renewTime": now,
            "leaseTransitions": (spec.get("leaseTransitions") or 0) + (0 if kept else 1),
        }


def lead(lease: Lease, *, run: Callable[[], None], stopping: threading.Event) -> str:
    """Wait for the Lease, then `run` for as long as it is held.

    Returns why the work is over, `""` where that was asked for by `stopping`. `run` has to return
    soon after `stopping` is set; whoever calls sees to that.
    """
    if not _waited(lease, stopping):
        return ""
    log.info("%s leads", lease.identity)
    worker = threading.Thread(target=run, daemon=True, name="controller")
    worker.start()
    why = ""
    while not why and not stopping.wait(_RETRY_S):
        try:
            if not lease.take():
                why = "another one took the Lease"
        except (Refused, Gone) as refusal:
            log.warning("the Lease can't be renewed: %s", refusal)
        if not why and not lease.held():
            why = f"the Lease could not be renewed for {_RENEW_S:g} s"
        if not worker.is_alive():
            why = "the controller's work ended by itself"
    stopping.set()
    worker.join(_END_S)
    if not worker.is_alive():
        try:
            lease.give_back()
        except (Refused, Gone) as refusal:
            log.warning("the Lease is left to run out: %s", refusal)
    return why


def _waited(lease: Lease, stopping: threading.Event) -> bool:
    said = ""
    while not stopping.is_set():
        try:
            if lease.take():
                return True
            why = "another one holds the Lease"
        except (Refused, Gone) as refusal:
            why = str(refusal)
        if why != said:
            log.info("%s waits: %s", lease.identity, why)
            said = why
        stopping.wait(_RETRY_S)
    return False


def _clock() -> float:
    """Seconds that pass while the machine is suspended, too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
