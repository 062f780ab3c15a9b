"""`nodeproof watch`: tell the cluster which GPUs this node has, so that a change is tested for.

It reads the driver's list in /proc, and writes one annotation on its own node where that moved. It
can have its node tested again, and never proves one.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys

from nodeproof.gate import devices
from nodeproof.gate.kube import Gone, Kube, Refused
from nodeproof.gate.names import Names
from nodeproof.gate.writes import MERGE, Request
from nodeproof.probes.boot import boot_id
from nodeproof.probes.listed_gpus import uuids
from nodeproof.probes.tree import Tree, Unreadable

_AFRESH = 60  # looks


def main(args: argparse.Namespace) -> int:
    """Look until told to stop; with --once a single time. 0 said or as said before, 11 could not."""
    # Waited for and not handled: a handler that sets what this very thread waits for could hang.
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    written, complained = "", ""
    for looks in itertools.count():
        complaint = ""
        try:
            # Now and then as if for the first time: what stands on the node is everybody's to write.
            written = _tell(args, written if looks % _AFRESH else "")
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


def _tell(args: argparse.Namespace, written: str) -> str:
    """Write what the node has, unless that was `written`; what stands on the node now."""
    here = boot_id(args.host_root)
    if not here:
        raise Unreadable(f"{args.host_root} does not tell the boot id: is it the node's root?")
    now = devices.note(here, uuids(Tree(root=args.host_root)))
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
