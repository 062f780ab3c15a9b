"""A thin reader over NVML: what the driver says of each GPU, and what its refusals mean.

Every call of NVML's either gives a value, or is not supported here (`None`, never zero), or
refuses (`NvmlError`, with a sentence that names the GPU and what to do). NVML can also hang: call
it only in a worker, under the parent's deadline, in a `session` that is told whom to tell each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import pynvml

from nodeproof.probes.pci import normalised

LIBRARY = "libnvidia-ml.so.1"
NOT_SUPPORTED = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND})
NO_PERMISSION = pynvml.NVML_ERROR_NO_PERMISSION
# Refusals that speak of the board itself. A timeout or an unknown error blames nobody by itself.
OF_THE_HARDWARE = frozenset(
    {
        pynvml.NVML_ERROR_INSUFFICIENT_POWER,
        pynvml.NVML_ERROR_IRQ_ISSUE,
        pynvml.NVML_ERROR_CORRUPTED_INFOROM,
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_RESET_REQUIRED,
    }
)
NO_DRIVER = frozenset({pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED})
# A driver rejects the number of a field, or of a link, that it does not have: that is no value.
_UNKNOWN_NUMBER = NOT_SUPPORTED | {pynvml.NVML_ERROR_INVALID_ARGUMENT}
# nvml.h, enum nvmlValueType_t: which member of the union holds the value of a field.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
# nvml.h, NVML_VALUE_NOT_AVAILABLE: all ones, which is a value that there is not.
_NOT_AVAILABLE = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})

Field = int | tuple[int, int]  # the number of a field, or that and its scope, such as a link
Step = Callable[..., None]  # `Context.progress`
_step: ContextVar[Step | None] = ContextVar("step", default=None)

# Codes: nvml.h, enum nvmlReturn_t. The words are ours.
_SAYS = {
    pynvml.NVML_ERROR_UNINITIALIZED: "NVML was not initialised: this is a fault of nodeproof's, report it",
    pynvml.NVML_ERROR_INVALID_ARGUMENT: "NVML does not know such a device",
    pynvml.NVML_ERROR_NOT_SUPPORTED: "this GPU or driver does not support the query",
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission: give the process access to the GPU's device file (in a container, request the GPU) or run it as root",
    pynvml.NVML_ERROR_ALREADY_INITIALIZED: "NVML was initialised twice: this is a fault of nodeproof's, report it",
    pynvml.NVML_ERROR_NOT_FOUND: "NVML finds nothing of that name: the device is gone or hidden from this process",
    pynvml.NVML_ERROR_INSUFFICIENT_SIZE: "the answer grew while it was read: test again",
    pynvml.NVML_ERROR_INSUFFICIENT_POWER: "external power cables are not attached: have the power connectors checked",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA kernel module is not loaded: load it (modprobe nvidia), and read the kernel log for why it was not",
    pynvml.NVML_ERROR_TIMEOUT: "the driver gave up waiting for the GPU: read the kernel log for Xids, then reset the GPU",
    pynvml.NVML_ERROR_IRQ_ISSUE: "the kernel has a problem with the GPU's interrupt: reboot the node",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: f"no driver library ({LIBRARY}): install the NVIDIA driver, or in a container use the NVIDIA runtime",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "this driver is too old for the query",
    pynvml.NVML_ERROR_CORRUPTED_INFOROM: "the GPU's InfoROM is corrupted: replace the GPU",
    pynvml.NVML_ERROR_GPU_IS_LOST: "the GPU is lost: it has fallen off the bus or can't be reached; reboot the node, and replace the GPU if it comes again",
    pynvml.NVML_ERROR_RESET_REQUIRED: "the GPU has to be reset before it can be used",
    pynvml.NVML_ERROR_OPERATING_SYSTEM: "the operating system or a container's device rules blocked the request",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver's library and its kernel module differ in version: reboot, or reload the kernel module, after a driver upgrade",
    pynvml.NVML_ERROR_IN_USE: "the GPU is in use by somebody else: end that first",
    pynvml.NVML_ERROR_MEMORY: "the driver has no memory left for the request",
    pynvml.NVML_ERROR_NO_DATA: "the driver has no data for the query yet",
    pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED: "not to be had on a virtual GPU while ECC is on",
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: "the driver has no resources left for the request",
    pynvml.NVML_ERROR_FREQ_NOT_SUPPORTED: "the driver ran out of critical resources, or does not know the clock",
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: "this driver knows the query in another version only: update the driver",
    pynvml.NVML_ERROR_DEPRECATED: "this driver has given the query up: update nodeproof",
    pynvml.NVML_ERROR_NOT_READY: "the GPU or a part it depends on is not ready: wait for the fabric manager, then test again",
    pynvml.NVML_ERROR_GPU_NOT_FOUND: "the driver finds no GPU",
    pynvml.NVML_ERROR_INVALID_STATE: "the GPU is in a state that does not allow the query: reset it",
    pynvml.NVML_ERROR_RESET_TYPE_NOT_SUPPORTED: "this GPU does not support that kind of reset",
    pynvml.NVML_ERROR_UNKNOWN: "the driver reports an internal error: read the kernel log, then reset the GPU",
}


def meaning(code: int) -> str:
    """What an nvmlReturn_t other than success means, and what to do about it."""
    return _SAYS.get(code, f"error {code}, unknown to this version of nodeproof")


class NvmlError(Exception):
    """NVML refused. `code` is its `nvmlReturn_t`; the text says what to do."""

    cause = "environment"  # a refusal says that nothing was measured, and blames nobody

    def __init__(self, code: int, *, call: str, about: str = "") -> None:
        self.code = code
        self.says = meaning(code)
        where = f"{about}: " if about else ""
        super().__init__(f"{where}{self.says} (NVML error {code} in {call})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as NVML describes it. `None` is what it does not support or refused to say.

    `refusals` maps a field to the sentence for why it could not be read.
    """

    index: int  # NVML's, good for nothing but messages
    uuid: str
    pci: str
    product: str | None
    serial: str | None
    vbios: str | None
    memory_bytes: int | None
    capability: tuple[int, int] | None  # CUDA compute capability
    mig: bool | None
    refusals: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """A GPU that NVML counts and that could not be identified, or lost its voice meanwhile."""

    index: int
    uuid: str | None
    code: int
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The node as NVML sees it."""

    driver: str | None
    cuda: str | None  # the newest CUDA that the driver serves, "12.8"
    nvml: str | None
    count: int  # how many GPUs NVML counts, answering or not
    gpus: tuple[Gpu, ...]  # in PCI order
    unanswered: tuple[Unanswered, ...]


@contextmanager
def session(step: Step | None = None) -> Iterator[None]:
    """Hold NVML open. Raises `NvmlError` where the driver does not answer.

    `step` is told of each call before it is made: of one that never returns it is the last word.
    """
    before = _step.set(step)
    try:
        ask("nvmlInitWithFlags", 0)
        try:
            yield
        finally:
            # What was read stays read; a driver that dies now is found by the next call.
            with suppress(NvmlError):
                ask("nvmlShutdown")
    finally:
        _step.reset(before)


def ask(call: str, *arguments: Any, about: str = "") -> Any:
    """Call NVML. Raises `NvmlError` for any refusal."""
    if (step := _step.get()) is not None:
        step(step=f"asking NVML: {call}{f' of {about}' if about else ''}")
    try:
        return getattr(pynvml, call)(*arguments)
    except pynvml.NVMLError as error:
        raise NvmlError(error.value, call=call, about=about) from None


def ask_if_supported(call: str, *arguments: Any, about: str = "") -> Any:
    """Call NVML; `None` where GPU or driver does not support it. Raises `NvmlError` otherwise."""
    try:
        return ask(call, *arguments, about=about)
    except NvmlError as error:
        if error.code in NOT_SUPPORTED:
            return None
        raise


def ask_of_number(call: str, *arguments: Any, about: str = "") -> Any:
    """Call NVML about a numbered part of a GPU; `None` where it has no part of that number."""
    try:
        return ask(call, *arguments, about=about)
    except NvmlError as error:
        if error.code in _UNKNOWN_NUMBER:
            return None
        raise


def fields(device: Any, wanted: Sequence[Field], *, about: str) -> list[int | float | None]:
    """Values of fields in the order of `wanted`; `None` for one that GPU or driver does not have.

    Each field has a status of its own, without which its value is undefined (nvml.h, struct
    nvmlFieldValue_t). Raises `NvmlError` for any other status.
    """
    call = "nvmlDeviceGetFieldValues"
    answers = ask_of_number(call, device, list(wanted), about=about)
    if answers is None:  # a driver that has none of them may refuse the whole call
        return [None] * len(wanted)
    values: list[int | float | None] = []
    for field_id, answer in zip(wanted, answers, strict=True):
        if answer.nvmlReturn in _UNKNOWN_NUMBER:
            values.append(None)
        elif answer.nvmlReturn != pynvml.NVML_SUCCESS:
            raise NvmlError(answer.nvmlReturn, call=f"{call} ({field_id})", about=about)
        else:
            known = answer.valueType < len(_MEMBERS)
            value = getattr(answer.value, _MEMBERS[answer.valueType]) if known else None
            values.append(None if value is None else available(value))
    return values


def available(value: float) -> int | float | None:
    """`None` for the number by which NVML says that there is no value."""
    return None if value in _NOT_AVAILABLE else value


def counted(value: float | None) -> int | None:
    """A whole number that NVML counted; `None` also for the one that means that there is no value."""
    found = None if value is None else available(value)
    return None if found is None else int(found)


def handle(uuid: str) -> Any:
    """NVML's handle of a GPU, by the only name that doesn't move."""
    return ask("nvmlDeviceGetHandleByUUID", uuid, about=uuid)


def view() -> View:
    """Read every GPU; to be called in a `session`. Raises `NvmlError` if they can't be counted."""
    count = ask("nvmlDeviceGetCount")
    gpus: list[Gpu] = []
    unanswered: list[Unanswered] = []
    for index in range(count):
        uuid = None
        try:
            device = ask("nvmlDeviceGetHandleByIndex", index, about=f"GPU number {index}")
            uuid = str(ask("nvmlDeviceGetUUID", device, about=f"GPU number {index}"))
            gpu, lost = _gpu(index, uuid, device)
            gpus.append(gpu)
            if lost:
                unanswered.append(_unanswered(index, uuid, lost))
        except NvmlError as error:
            unanswered.append(_unanswered(index, uuid, error))
    cuda = ask_if_supported("nvmlSystemGetCudaDriverVersion_v2")
    return View(
        driver=ask_if_supported("nvmlSystemGetDriverVersion"),
        cuda=None if cuda is None else cuda_version(cuda),
        nvml=ask_if_supported("nvmlSystemGetNVMLVersion"),
        count=count,
        gpus=tuple(sorted(gpus, key=lambda g: g.pci)),
        unanswered=tuple(unanswered),
    )


def cuda_version(number: int) -> str:
    """CUDA's 12080 as "12.8"."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _unanswered(index: int, uuid: str | None, error: NvmlError) -> Unanswered:
    return Unanswered(index=index, uuid=uuid, code=error.code, says=str(error))


def _gpu(index: int, uuid: str, device: Any) -> tuple[Gpu, NvmlError | None]:
    """One GPU, and the first refusal that means more than a missing feature or permission."""
    refusals: dict[str, str] = {}
    graver: list[NvmlError] = []

    def read(name: str, call: str, take: Callable[[Any], Any]) -> Any:
        try:
            return take(ask(call, device, about=uuid))
        except NvmlError as error:
            refusals[name] = str(error)
            if error.code not in NOT_SUPPORTED and error.code != NO_PERMISSION:
                graver.append(error)
            return None

    # Not through `read`: without an address the GPU can't be put in order or found on the bus.
    pci = _text(ask("nvmlDeviceGetPciInfo", device, about=uuid).busId)
    gpu = Gpu(
        index=index,
        uuid=uuid,
        pci=normalised(pci),
        product=read("product", "nvmlDeviceGetName", _text),
        serial=read("serial", "nvmlDeviceGetSerial", _text),
        vbios=read("vbios", "nvmlDeviceGetVbiosVersion", _text),
        memory_bytes=read("memory_bytes", "nvmlDeviceGetMemoryInfo", lambda m: int(m.total)),
        capability=read("capability", "nvmlDeviceGetCudaComputeCapability", lambda c: (c[0], c[1])),
        mig=read("mig", "nvmlDeviceGetMigMode", lambda m: m[0] == pynvml.NVML_DEVICE_MIG_ENABLE),
        refusals=refusals,
    )
    return gpu, graver[0] if graver else None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
