"""`nodeproof npd`: a look at the node for Node Problem Detector. It can ask for a test, never prove.

Exit status 0: nothing seen, 1: a fault, 2: could not look. One line of at most 80 bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import tempfile
import time
from pathlib import Path
from types import FrameType

from nodeproof.child import Answer, Call, Lost, Pool, Raised, Reply

_LONGEST = 80  # bytes that Node Problem Detector keeps


class _Late(Exception):  # noqa: N818  a state of the clock
    """The deadline has passed."""


def main(args: argparse.Namespace) -> int:
    """Look through no library of the driver, in a child, within the deadline."""

    def late(_number: int, _frame: FrameType | None) -> None:
        raise _Late

    with tempfile.TemporaryDirectory(prefix="nodeproof-") as scratch:
        pool = Pool(
            ends=time.monotonic() + 2 * args.deadline, logs=Path(scratch), listen=lambda *_: None
        )
        pool.add("node")
        signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, args.deadline)
        try:
            reply = _look(pool, args)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except _Late:
            # What hangs in the kernel takes no signal, and nobody here waits for it.
            if pid := pool.pid("node"):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            return _say(2, f"could not look at the node within {args.deadline:g} s")
        pool.close(grace_s=1.0)
    return _told(reply)


def _look(pool: Pool, args: argparse.Namespace) -> Reply:
    context = {
        **dict.fromkeys(("device_kind", "device_id", "device_label", "torch_device"), ""),
        "threads": 1,
        "peers": 1,
        "profile": "quick",
        "seed": 0,
        "group": None,
        "host_root": str(args.host_root),
    }
    call = Call(call="nodeproof.probes.way_out:look", args={}, context=context)
    return pool.run({"node": call}, deadline_s=2 * args.deadline)["node"]


def _told(reply: Reply) -> int:
    match reply:
        case Lost(text=text):
            return _say(2, f"could not look: {text}")
        case Raised(type=kind, message=text):
            return _say(2, f"could not look: {kind}: {text}")
        case Answer(result=result):
            suspects = result["suspects"]
            if suspects:
                more = f" (+{len(suspects) - 1})" if len(suspects) > 1 else ""
                return _say(1, f"GPU {suspects[0]['address']}{more}: {suspects[0]['why'][0]}")
            if result["unreadable"]:
                return _say(2, f"not read: {result['unreadable'][0]}")
    return _say(0, "kernel log and bus show no fault")


def _say(status: int, text: str) -> int:
    print(text.encode()[:_LONGEST].decode("utf-8", "ignore"))
    return status
