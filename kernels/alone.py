"""How a kernel file runs by itself, without pytest and without a pool of workers."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from nodeproof.kernels.place import NoPlaceError
from nodeproof.worker import Context


def context() -> Context:
    """Return the context of one device: the first GPU that torch sees, or else the processor."""
    gpu = torch.cuda.is_available()
    name = "cuda:0" if gpu else "cpu"
    return Context(
        device_kind="gpu" if gpu else "cpu",
        device_id=name,
        device_label=torch.cuda.get_device_name(0) if gpu else "cpu",
        torch_device=name,
        threads=len(os.sched_getaffinity(0)),
        peers=1,
        profile="quick",
        seed=time.time_ns() & 0xFFFFFFFF,
        host_root=Path("/"),
    )


def caught(planted: Mapping[str, Any], count: int = 0) -> list[Any]:
    """Return the faults that a planted run planted: each was found, and nothing else was.

    Ends the program where not, where there are none, or where they are not `count`.
    """
    faults: list[Any] = planted["planted"]
    if not faults or planted["found"] != faults or len(faults) != (count or len(faults)):
        raise SystemExit(f"planted {faults}, found {planted['found']}")
    return faults


def run(main: Callable[[], None]) -> None:
    """Run a kernel file that only a GPU can run; without one a sentence, and status 2."""
    try:
        main()
    except NoPlaceError as error:
        print(f"not tested: {error}", file=sys.stderr)
        sys.exit(2)
