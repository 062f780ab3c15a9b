"""MIG: the slices that a GPU is cut into, each tested in a process of its own, all at once.

A CUDA process sees one slice at most, so one worker can't test them all: it starts one for each.
"""

from __future__ import annotations

import dataclasses
import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pynvml

from nodeproof.child import Answer, Call, Lost, Pool, Raised, Reply
from nodeproof.probes import cuda, nvml
from nodeproof.worker import Context

_SEES = "nodeproof.probes.mig:sees"
# In this order: what computes brings CUDA up, so that all memory is then held at the same time.
_PRODUCTS = ("bfloat16", "float32")
_PRODUCT = "nodeproof.kernels.gemm:exact"
_PATTERN = "nodeproof.kernels.memory:pattern"
_CPU_SHARE = 0.02  # asked for by the kernel, and used on a processor only
# Read when a process makes its first product: without it cuBLAS may sum in another order each time.
_FIXED = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def mode(device: Any, uuid: str) -> tuple[bool, bool] | None:
    """Whether MIG is on now, and after a reset; `None` where GPU or driver has none."""
    said = nvml.ask_if_supported("nvmlDeviceGetMigMode", device, about=uuid)
    if said is None:
        return None
    now, following = (value == pynvml.NVML_DEVICE_MIG_ENABLE for value in said)
    return now, following


def listed(device: Any, uuid: str) -> list[dict[str, str]]:
    """Name `uuid` and `profile` (such as "1g.10gb") of each slice. Raises `NvmlError`."""
    count = nvml.ask_if_supported("nvmlDeviceGetMaxMigDeviceCount", device, about=uuid)
    found = []
    for index in range(count or 0):
        about = f"slice {index} of {uuid}"
        try:
            part = nvml.ask_if_supported(
                "nvmlDeviceGetMigDeviceHandleByIndex", device, index, about=about
            )
        except nvml.NvmlError as error:
            if error.code == pynvml.NVML_ERROR_NOT_FOUND:  # no slice was made there
                continue
            raise
        if part is not None:
            name = str(nvml.ask("nvmlDeviceGetUUID", part, about=about))
            product = str(nvml.ask("nvmlDeviceGetName", part, about=name))
            found.append({"uuid": name, "profile": product.rpartition(" MIG ")[2]})
    return found


def sees(context: Context) -> dict[str, Any]:
    """Work function: UUIDs of what CUDA gives to this process. Raises `CudaError`."""
    context.progress(step="asking CUDA")
    return {"sees": [gpu.uuid for gpu in cuda.view().gpus]}


def slices(
    context: Context, *, gpu_share: float, hold_s: float, limit_s: float = 240.0
) -> dict[str, Any]:
    """Work function: `on`, and `slices`: a row for each slice of the GPU, tested beside the others.

    Each slice gets a process that sees it alone. All multiply at once, each with operands of its
    own, and every bit is compared; then all fill `gpu_share` of their free memory with patterns of
    their own, and verify them for `hold_s` seconds at the same time: what one writes into the memory
    of another is a wrong word there. Before that each detector is fed a planted fault.

    A row has `uuid`, `profile`, `untested` (why a part of the test has no answer, "" if all have
    one), `foreign` (UUIDs of other devices that its process sees, and its own if it does not see
    that), `wrong` (elements and words), `compared`, `found` (some of what was wrong, described),
    `missed` (detectors that did not report their planted fault), `free_of_total` of its memory
    (`None` untested). Raises `NvmlError` where the slices can't be listed.
    """
    with nvml.session(context.progress):
        device = nvml.handle(context.device_id)
        said = mode(device, context.device_id)
        on = said is not None and said[0]
        rows = listed(device, context.device_id) if on else []
    if not rows:
        return {"on": on, "slices": []}
    ends = time.monotonic() + limit_s
    with TemporaryDirectory(prefix="nodeproof-slices-") as folder:
        # Each call ends by its own deadline; the pool's would be called that of the run.
        pool = Pool(ends=ends + 60, logs=Path(folder), listen=_telling(context))
        try:
            tests = [_Test(context, n, row, peers=len(rows)) for n, row in enumerate(rows)]
            for test in tests:
                pool.add(test.uuid, {"CUDA_VISIBLE_DEVICES": test.uuid, **_FIXED})
            for call, args, take in _steps(gpu_share, hold_s):
                left = {test.uuid: test for test in tests if not test.untested}
                calls = {name: test.call(call, args) for name, test in left.items()}
                replies = pool.run(calls, deadline_s=max(0.1, ends - time.monotonic()))
                for name, reply in replies.items():
                    left[name].hear(call, reply, take)
        finally:
            pool.close(grace_s=1.0)
    return {"on": True, "slices": [test.row() for test in tests]}


def _telling(context: Context) -> Callable[[str, str, Mapping[str, Any]], None]:
    def tell(slice_uuid: str, kind: str, content: Mapping[str, Any]) -> None:
        if kind == "progress" and "step" in content:
            context.progress(step=f"testing {slice_uuid}: {content['step']}")
        elif kind == "event":
            context.send("event", {**content, "slice": slice_uuid})

    return tell


def _steps(
    gpu_share: float, hold_s: float
) -> Iterator[tuple[str, dict[str, Any], Callable[[_Test, Mapping[str, Any]], None]]]:
    """Each call, its arguments, and what of the test takes in the answer."""
    yield _SEES, {}, _Test.seen
    pattern = {"cpu_share": _CPU_SHARE, "gpu_share": gpu_share}
    kernels: list[tuple[str, dict[str, Any]]] = [
        (_PRODUCT, {"dtype": dtype}) for dtype in _PRODUCTS
    ]
    for call, args in (*kernels, (_PATTERN, pattern)):
        yield call, {**args, "plant": "flip"}, _Test.planted
    for call, args in kernels:
        yield call, args, _Test.compared
    yield _PATTERN, {**pattern, "seconds": hold_s}, _Test.held


class _Test:
    """What is known of one slice so far."""

    def __init__(
        self, context: Context, number: int, row: Mapping[str, str], *, peers: int
    ) -> None:
        self.uuid, self._profile = row["uuid"], row["profile"]
        self.untested = ""
        self._foreign: list[str] = []
        self._wrong, self._compared = 0, 0
        self._found: list[dict[str, Any]] = []
        self._missed: list[str] = []
        self._free: float | None = None
        own = dataclasses.replace(
            context,
            device_id=self.uuid,
            device_label=f"{context.device_label}/{number}",
            peers=context.peers * peers,
            # Not the seed of its neighbours, whose words would else be right here too.
            seed=context.seed ^ zlib.crc32(self.uuid.encode()),
            group=None,
        )
        fields = {f.name: getattr(own, f.name) for f in dataclasses.fields(own)}
        del fields["send"]
        self._context = json.loads(json.dumps(fields, default=str))

    def call(self, call: str, args: Mapping[str, Any]) -> Call:
        return Call(call=call, args=args, context=self._context)

    def hear(
        self, call: str, reply: Reply, take: Callable[[_Test, Mapping[str, Any]], None]
    ) -> None:
        match reply:
            case Answer(result=result):
                take(self, result)
            case Raised(message=text) | Lost(text=text):
                self.untested = f"{call.rpartition(':')[0].rpartition('.')[2]}: {text}"

    def seen(self, result: Mapping[str, Any]) -> None:
        own = self.uuid.removeprefix("MIG-")
        tails = {uuid: uuid.removeprefix("GPU-") for uuid in result["sees"]}
        self._foreign = [uuid for uuid, tail in tails.items() if tail != own]
        if own not in tails.values():
            self._foreign.append(self.uuid)
        if self._foreign:  # whatever it computed, and where, would not be known
            self.untested = f"its process sees {', '.join(tails) or 'no device'}"

    def planted(self, result: Mapping[str, Any]) -> None:
        planted, found = result["planted"], result["found"]
        if not planted or not all(fault in found for fault in planted):
            self._missed.append(str(result.get("dtype", "memory")))

    def compared(self, result: Mapping[str, Any]) -> None:
        self._take(result, result["checked_elements"])

    def held(self, result: Mapping[str, Any]) -> None:
        self._take(result, result["compared"])
        self._wrong += result["reference_wrong"]
        self._free = result["free_of_total"]

    def _take(self, result: Mapping[str, Any], compared: int) -> None:
        self._wrong += result["wrong"]
        self._found += result["found"]
        self._compared += compared
        if not compared:
            self.untested = "nothing was compared"

    def row(self) -> dict[str, Any]:
        return {
            "uuid": self.uuid,
            "profile": self._profile,
            "untested": self.untested,
            "foreign": self._foreign,
            "wrong": self._wrong,
            "compared": self._compared,
            "found": self._found[:4],
            "missed": self._missed,
            "free_of_total": self._free,
        }
