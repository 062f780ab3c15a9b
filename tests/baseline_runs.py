"""Runs of known-good nodes: what the checks themselves measure of answers at a given pace.

A pace of 1 is that of a sound node; 0.8 is a fifth slower, in everything that is measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from nodeproof.acceptance import (
    test_burnin_pace,
    test_collectives,
    test_fabric,
    test_gpu_state,
    test_transfers,
)
from nodeproof.checks import spec_of
from nodeproof.manifest import digest_of
from nodeproof.model import Device, DeviceKind, Measurement
from nodeproof.plugin.watched import watched
from nodeproof.spec import Spec, limits_for
from tests.results_samples import BOOT, Run
from tests.shipped_run import NODE, accepted, bytes_of, records_of

GIB = 1 << 30
NO_SPEC = {"name": "", "digest": digest_of(b""), "source": ""}
COLLECTIVES = {"all_reduce": 440.0} | dict.fromkeys(
    ("all_gather", "reduce_scatter", "all_to_all", "broadcast", "sendrecv"), 330.0
)
GROUP = Device(kind=DeviceKind.GROUP, id="group", label="group")
_WAYS = ("h2d", "d2h", "d2d")


def _burnt(pace: float) -> dict[str, Any]:
    return {
        "median_tflops": 600.0 * pace,
        "p5_tflops": 590.0 * pace,
        "p5_of_median": 0.98,
        "windows": [600.0 * pace],
        "window_s": 0.25,
        "slow": [],
        "drift": 0.0,
        "telemetry": watched([{"throttle": 4}], since={}, seconds=1.0, silence_s=0.5),
    }


def _copied(pace: float) -> dict[str, Any]:
    arena = 64 << 20
    kinds = {
        "odd": (31, 98_679),
        "shifted": (1, arena),
        "aligned": (1, arena),
        "together": (4, arena),
    }
    ways = ("h2d pinned", "h2d pageable", "d2h pinned", "d2h pageable", "d2d device")
    return {
        "found": [],
        "wrong": 0,
        "reference_wrong": 0,
        "arena": arena,
        "rounds": 1,
        "flown": dict.fromkeys(ways, kinds),
        "checked": dict.fromkeys(_WAYS, 9 * arena),
        "gbs": {"h2d": 50.0 * pace, "d2h": 48.0 * pace, "d2d": 1300.0 * pace},
    }


def _paired(pace: float, rank: int) -> dict[str, Any]:
    return {
        "size": 2,
        "rank": rank,
        "wrong": 0,
        "found": [],
        "received": {str(1 - rank): GIB},
        "gbs": [[0.0, 360.0 * pace], [350.0 * pace, 0.0]],
        "together_gbs": [300.0, 300.0],
        "telemetry": {"silence_s": 0.1},
    }


def _exchanged(pace: float) -> dict[str, Any]:
    return {
        "size": 2,
        "busbw_gbs": {name: gbs * pace for name, gbs in COLLECTIVES.items()},
        "own_seconds": dict.fromkeys(COLLECTIVES, 0.001),
        "largest_bytes": dict.fromkeys(COLLECTIVES, GIB),
        "transport": {"backend": "nccl"},
    }


def _warm(pace: float) -> dict[str, Any]:
    """A GPU that is slow is hot here, by as many degrees as a baseline leaves and some."""
    hotter = 0.0 if pace >= 0.9 else 40.0
    return {
        "temperature_c": 35 + hotter,
        "memory_c": 40 + hotter,
        "margin_c": 50,
        "thresholds_c": {"operation": None, "slowdown": 89, "memory": 105},
    }


def _together(pace: float) -> dict[str, Any]:
    return {
        "devices": 32,
        "sizes": [32] * 32,
        "busbw_gbs": {name: [gbs * pace] * 32 for name, gbs in COLLECTIVES.items()},
        "largest_bytes": dict.fromkeys(COLLECTIVES, [8 * GIB] * 32),
        "backend": "nccl",
        "instance_type": "",
        "nics": 8,
        "gpus": 8,
        "nodes": 4,
        "nccl": "2.28.3",
    }


def _of_two(answer: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    gpus = (Device(kind=DeviceKind.GPU, id=f"GPU-{n}", label=f"gpu{n}") for n in range(2))
    return {"results": [(gpu, answer(n)) for n, gpu in enumerate(gpus)]}


# Every check that a baseline sets limits of, and what it is given at a pace.
CHECKS: Mapping[Any, Callable[[float], dict[str, Any]]] = {
    test_burnin_pace.test_throughput: lambda pace: {"result": _burnt(pace)},
    test_transfers.test_copies: lambda pace: {"result": _copied(pace)},
    test_transfers.test_pairs: lambda pace: _of_two(lambda rank: _paired(pace, rank)),
    test_collectives.test_collective_bandwidth: lambda pace: _of_two(lambda _: _exchanged(pace)),
    test_gpu_state.test_heat: lambda pace: {"result": _warm(pace)},
    test_fabric.test_bandwidth: lambda pace: {"result": _together(pace)},
}
BY_ID = {spec_of(check).id: check for check in CHECKS}
OF_A_NODE = [check for check in BY_ID if not check.startswith("fabric.")]


def measured(check: str, pace: float = 1.0, limits: Any = None) -> tuple[Measurement, ...]:
    """What a check measures of a device or node at this pace."""
    function, taken = BY_ID[check], list[Measurement]()

    def measure(name: str, value: float, **bounds: Any) -> None:
        taken.append(Measurement(name=name, value=float(value), **bounds))

    given = {
        "device": GROUP if check.startswith("fabric.") else Device(
            kind=DeviceKind.GPU, id="GPU-0", label="gpu0"
        ),
        "measure": measure,
        "limits": limits or spec_of(function).limits(),
        "peers": [],
        **CHECKS[function](pace),
    }  # fmt: skip
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    function(**{name: given[name] for name in names})
    return tuple(taken)


def short(spec: Spec, check: str, pace: float) -> list[str]:
    """Names of what is short of the limits of a spec at this pace."""
    limits = limits_for(spec, check, spec_of(BY_ID[check]).limits)
    return [m.name for m in measured(check, pace, limits) if not m.held]


def node(number: int, pace: float = 1.0, **plan: Any) -> Run:
    """An accepted run of a node of its own, with two GPUs, that was held against no spec."""
    run = accepted().replan(run_id=f"run-{number}", spec=NO_SPEC, **plan)
    at = {check: measured(check, pace) for check in OF_A_NODE}
    found = [dataclasses.replace(f, measurements=at.get(f.check, f.measurements)) for f in run.findings]  # fmt: skip
    return run.but(findings=tuple(found))


def data_of(run: Run) -> bytes:
    """Return what the writer would write, without waiting for a disk after each line."""
    return bytes_of(records_of(run))


@cache
def _sound(number: int) -> bytes:
    return data_of(node(number))


def own(number: int, data: bytes) -> bytes:
    """The same file with the identities of another node."""
    for was, now in (
        (BOOT, f"{number:08x}{BOOT[8:]}"),
        ("GPU-", f"GPU-{number:04x}-"),
        (NODE.id, f"node-{number}"),
        ("0d9f8c1b", f"uid-{number}"),
    ):
        data = data.replace(was.encode(), now.encode())
    return data


def write(folder: Path, number: int, run: Run | None = None, *, machine: int | None = None) -> Path:
    """Write the run of a node, which is a machine of that number unless another is given."""
    path = folder / f"node-{number}.jsonl"
    data = data_of(run) if run else _sound(number)
    path.write_bytes(own(number if machine is None else machine, data))
    return path
