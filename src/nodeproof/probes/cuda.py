"""The CUDA driver's own view of the GPUs, asked without torch and without NVML.

The two can differ: NVML talks to the kernel module alone, CUDA also needs the unified memory
module, device files and the fabric. A GPU that only one of them lists can't be worked on.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from nodeproof.probes.nvml import cuda_version
from nodeproof.probes.pci import normalised

LIBRARY = "libcuda.so.1"
NO_DEVICE = 100

# Codes: cuda.h, enum cudaError_enum. The words are ours.
_SAYS = {
    2: "the driver has no memory left",
    3: "CUDA is not initialised",
    NO_DEVICE: "CUDA finds no GPU: none is there, none is given to this process, or the driver is not loaded",
    101: "CUDA does not know such a device",
    304: "a call to the operating system failed: look at the device files /dev/nvidia*",
    802: "the system is not ready: the fabric manager is not running or has not finished",
    803: "the driver's library and its kernel module differ in version: reboot, or reload the kernel module",
    804: "the compatibility library in use does not support this GPU",
    999: "CUDA reports an unknown error: read the kernel log, and check that nvidia-uvm is loaded",
}
_NAME_BYTES = 256
_BUS_ID_BYTES = 32


class CudaError(Exception):
    """CUDA's driver refused. `code` is its `CUresult`, 0 where there is no library."""

    cause = "environment"

    def __init__(self, code: int, call: str) -> None:
        self.code = code
        says = _SAYS.get(code, f"error {code}, unknown to this version of nodeproof")
        super().__init__(f"{says} (CUDA error {code} in {call})" if code else call)


class _Uuid(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * 16),)


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaGpu:
    """One GPU as CUDA describes it."""

    uuid: str  # "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", as NVML writes it
    product: str
    pci: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaView:
    """The node as CUDA sees it."""

    version: str  # the newest CUDA that the driver serves
    gpus: tuple[CudaGpu, ...]  # in PCI order


def view() -> CudaView:
    """Ask `libcuda.so.1`. Raises `CudaError`; no context is made, so no GPU is taken."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise CudaError(0, f"no CUDA driver library ({LIBRARY}): {error}") from None
    _call(library, "cuInit", ctypes.c_uint(0))
    number, count = ctypes.c_int(), ctypes.c_int()
    _call(library, "cuDriverGetVersion", ctypes.byref(number))
    _call(library, "cuDeviceGetCount", ctypes.byref(count))
    gpus = [_gpu(library, ordinal) for ordinal in range(count.value)]
    return CudaView(
        version=cuda_version(number.value), gpus=tuple(sorted(gpus, key=lambda g: g.pci))
    )


def _call(library: ctypes.CDLL, name: str, *arguments: Any) -> None:
    try:
        function = getattr(library, name)
    except AttributeError:
        raise CudaError(0, f"{LIBRARY} has no {name}: the driver is too old") from None
    code = function(*arguments)
    if code:
        raise CudaError(code, name)


def _gpu(library: ctypes.CDLL, ordinal: int) -> CudaGpu:
    device, uuid = ctypes.c_int(), _Uuid()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    bus = ctypes.create_string_buffer(_BUS_ID_BYTES)
    _call(library, "cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
    # From CUDA 11.4; the first form is what older drivers have.
    newer = hasattr(library, "cuDeviceGetUuid_v2")
    _call(library, "cuDeviceGetUuid_v2" if newer else "cuDeviceGetUuid", ctypes.byref(uuid), device)
    _call(library, "cuDeviceGetName", name, ctypes.c_int(_NAME_BYTES), device)
    _call(library, "cuDeviceGetPCIBusId", bus, ctypes.c_int(_BUS_ID_BYTES), device)
    return CudaGpu(
        uuid=_written(bytes(uuid.bytes)),
        product=name.value.decode(),
        pci=normalised(bus.value.decode()),
    )


def _written(uuid: bytes) -> str:
    digits = uuid.hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "GPU-" + "-".join(parts)
