"""`nodeproof record -o FILE`: everything that can be read of this node, for reports and tests."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from nodeproof.child import Answer, Call, Lost, Pool
from nodeproof.cli import options

_DEADLINE_S = 120.0


def main(args: argparse.Namespace) -> int:
    """Read the node in a worker, so that a hung driver costs the reading and not the terminal."""
    try:
        options.read(args)
    except ValueError as error:
        print(f"nodeproof: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="nodeproof-") as scratch:
        pool = Pool(ends=time.monotonic() + _DEADLINE_S, logs=Path(scratch), listen=lambda *_: None)
        pool.add("node")
        context = {
            "device_kind": "",
            "device_id": "",
            "device_label": "",
            "torch_device": "",
            "threads": 1,
            "peers": 1,
            "profile": "quick",
            "seed": 0,
            "host_root": str(args.host_root),
            "group": None,
        }
        asked = {"device": args.device, "cpu_devices": args.cpu_devices}
        call = Call(call="nodeproof.probes.record:record", args=asked, context=context)
        reply = pool.run({"node": call}, deadline_s=_DEADLINE_S)["node"]
        pool.close()
    if not isinstance(reply, Answer):
        said = reply.text if isinstance(reply, Lost) else reply.message
        print(f"nodeproof: the node could not be read: {said}", file=sys.stderr)
        return 11
    try:
        args.output.write_text(json.dumps(reply.result, indent=1, sort_keys=True) + "\n")
    except OSError as error:
        print(f"nodeproof: {args.output}: {error.strerror}", file=sys.stderr)
        return 2
    return 0
