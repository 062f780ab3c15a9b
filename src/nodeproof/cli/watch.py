"""`nodeproof watch`: tell the cluster which GPUs this node has, so that a change is tested for.

It reads the driver's list in /proc, and writes one annotation on its own node where that moved. It
can have its node tested again, and never proves one.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import threading
from pathlib import Path

from nodeproof.gate import devices
from nodeproof.gate.kube import Gone, Kube, Refused
from nodeproof.gate.names import Names
from nodeproof.gate.writes import MERGE, Request
from nodeproof.probes.boot import boot_id
from nodeproof.probes.listed_gpus import uuids
from nodeproof.probes.tree import Tree, Unreadable

_AFRESH = 60  # looks
_PATIENCE_S = 5.0  # for what the kernel answers at once


class _Look(threading.Thread):
    """One reading of the driver's list: a driver that hangs holds this thread, and nobody else."""

    def __init__(self, root: Path) -> None:
        super().__init__(daemon=True)
        self._root, self._found = root, ""
        self._refusal = Unreadable(f"{root}: it could not be read")
        self.start()

    def run(self) -> None:
        """Read it."""
        try:
            here = boot_id(self._root)
            if not here:
                text = f"{self._root} does not tell the boot id: is it the node's root?"
                raise Unreadable(text)
            self._found = devices.note(here, uuids(Tree(root=self._root)))
        except Unreadable as refusal:
            self._refusal = refusal

    def note(self) -> str:
        """The boot and the GPUs. Raises `Unreadable`, also where the list does not answer in time."""
        self.join(_PATIENCE_S)
        if self.is_alive():
            text = f"the driver's list under {self._root} does not answer: does the driver hang?"
            raise Unreadable(text)
        if not self._found:
            raise self._refusal
        return self._found


def main(args: argparse.Namespace) -> int:
    """Look until told to stop; with --once a single time. 0 said or as said before, 11 could not."""
    # Waited for and not handled: a handler that sets what this very thread waits for could hang.
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    written, complained = "", ""
    look: _Look | None = None
    for looks in itertools.count():
        complaint = ""
        if look is None or not look.is_alive():  # beside one that hangs others would hang, too
            look = _Look(args.host_root)
        try:
            # Now and then as if for the first time: what stands on the node is everybody's to write.
            written = _tell(args, look.note(), written if looks % _AFRESH else "")
        except (Unreadable, Refused, Gone) as refusal:
            complaint = f"{args.node_name}: {refusal or 'the node can not be asked for'}"
        if complaint and complaint != complained:
            print(f"nodeproof: {complaint}", file=sys.stderr, flush=True)
        complained = complaint
        if args.once:
            return 11 if complaint else 0
        if signal.sigtimedwait(ends, args.interval):
            break
    return 0


def _tell(args: argparse.Namespace, now: str, written: str) -> str:
    """Write what the node has, unless that was `written`; what stands on the node now."""
    if now == written:
        return now
    names, path = Names(domain=args.domain), f"/api/v1/nodes/{args.node_name}"
    kube = Kube.here()
    before = kube.get(path)
    notes = (before.get("metadata") or {}).get("annotations") or {}
    if notes.get(names.devices) != now:
        body = {"metadata": {"annotations": {names.devices: now}}}
        kube.send(Request(verb="PATCH", path=path, body=body, content=MERGE))
        print(f"{args.node_name}: {names.devices}={now}", flush=True)
    return now
