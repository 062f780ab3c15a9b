"""What a GPU counts of its own errors. A count says little; what it grows by under load does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pynvml

from nodeproof.probes import nvlink, nvml
from nodeproof.probes.gpu_state import held_s
from nodeproof.worker import Context

_UNCORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
_NVLINK = {
    "nvlink_replays": pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    "nvlink_recoveries": pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
    "nvlink_crc": pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
}
_ACTION = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_PLACES = {
    "sram_uncorrected": pynvml.NVML_MEMORY_LOCATION_SRAM,
    "dram_uncorrected": pynvml.NVML_MEMORY_LOCATION_DRAM,
}
_REASONS = (
    pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
    pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
)
NAMES = (
    "ecc_uncorrected",
    "ecc_corrected",
    "rows_remapped",
    "remap_pending",
    "remap_failed",
    "pcie_replays",
    *_NVLINK,
    *_PLACES,
    "retired_pages",
    "recovery_action",
    "thermal_violation_ns",
)


def read(context: Context, *, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Work function: `counters` of the device, and `refusals`, what could not be read and why.

    With what it returned `before`, that answer's counters are under `at_start`. Raises `NvmlError`
    without a driver.
    """
    with nvml.session(context.progress):
        found, refusals = counters(context.device_id)
        try:
            found.update(nvlink.errors(nvml.handle(context.device_id), context.device_id))
        except nvml.NvmlError as error:
            refusals.append(str(error))
    start = {} if before is None else {"at_start": before["counters"]}
    return {"counters": found, "refusals": refusals, **start}


def counters(uuid: str, device: Any = None) -> tuple[dict[str, int | None], list[str]]:
    """Read all counters of a GPU, in an NVML session, and say what refused.

    Volatile ECC errors (since the driver was loaded), in all and by place; rows of memory that were
    remapped and pages that were retired in all; whether a remap is pending or failed (0 or 1); PCIe
    replays; NVLink replays, recoveries and CRC errors over all links; the recovery action that the
    driver asks for; nanoseconds in which heat held the clocks down. `None` is not supported or
    refused, never zero. All ones, by which NVML says that there is no value, would stand still for
    ever: of uncorrected errors that nothing else counts, and of rows, they are a refusal too.
    `device` is NVML's handle, where the caller has it already.
    """
    found: dict[str, int | None] = dict.fromkeys(NAMES)
    refusals: list[str] = []
    hollow: set[str] = set()

    def note(take: Callable[[Any], dict[str, int | None]]) -> None:
        try:
            said = take(nvml.handle(uuid) if device is None else device)
        except nvml.NvmlError as error:
            refusals.append(str(error))
            return
        told = {name: nvml.counted(value) for name, value in said.items()}
        hollow.update(name for name in said if said[name] is not None and told[name] is None)
        found.update(told)

    note(lambda gpu: {"ecc_uncorrected": _ecc(gpu, uuid, _UNCORRECTED)})
    note(lambda gpu: {"ecc_corrected": _ecc(gpu, uuid, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED)})
    note(lambda gpu: {name: _ecc_at(gpu, uuid, place) for name, place in _PLACES.items()})
    note(lambda gpu: _rows(gpu, uuid))
    note(lambda gpu: {"retired_pages": _pages(gpu, uuid)})
    note(
        lambda gpu: {
            "pcie_replays": nvml.ask_if_supported("nvmlDeviceGetPcieReplayCounter", gpu, about=uuid)
        }
    )
    note(lambda gpu: _fields(gpu, uuid, _NVLINK))
    note(lambda gpu: _fields(gpu, uuid, {"recovery_action": _ACTION}))
    note(lambda gpu: {"thermal_violation_ns": _held_by_heat(gpu, uuid)})
    if found["ecc_uncorrected"] is not None or None not in {found[place] for place in _PLACES}:
        hollow -= {"ecc_uncorrected", *_PLACES}
    refusals += [
        f"{uuid}: NVML answers all ones for {name}, which is no count: update the driver"
        for name in sorted(hollow & {"ecc_uncorrected", *_PLACES, "rows_remapped"})
    ]
    return found, refusals


def _ecc(gpu: Any, uuid: str, kind: int) -> int | None:
    count: int | None = nvml.ask_if_supported(
        "nvmlDeviceGetTotalEccErrors", gpu, kind, pynvml.NVML_VOLATILE_ECC, about=uuid
    )
    return count


def _ecc_at(gpu: Any, uuid: str, place: int) -> int | None:
    count: int | None = nvml.ask_of_number(
        "nvmlDeviceGetMemoryErrorCounter",
        gpu,
        _UNCORRECTED,
        pynvml.NVML_VOLATILE_ECC,
        place,
        about=uuid,
    )
    return count


def _rows(gpu: Any, uuid: str) -> dict[str, int | None]:
    rows = nvml.ask_if_supported("nvmlDeviceGetRemappedRows", gpu, about=uuid)
    if rows is None:
        return {}
    corrected, uncorrected, pending, failed = rows
    hollow = nvml.counted(corrected) is None or nvml.counted(uncorrected) is None
    return {
        "rows_remapped": max(corrected, uncorrected) if hollow else corrected + uncorrected,
        "remap_pending": int(bool(pending)),
        "remap_failed": int(bool(failed)),
    }


def _pages(gpu: Any, uuid: str) -> int | None:
    known = [
        pages
        for reason in _REASONS
        if (pages := nvml.ask_if_supported("nvmlDeviceGetRetiredPages", gpu, reason, about=uuid))
        is not None
    ]
    return sum(len(pages) for pages in known) if known else None


def _fields(gpu: Any, uuid: str, wanted: Mapping[str, int]) -> dict[str, int | None]:
    values = nvml.fields(gpu, list(wanted.values()), about=uuid)
    return {
        name: None if value is None else int(value)
        for name, value in zip(wanted, values, strict=True)
    }


def _held_by_heat(gpu: Any, uuid: str) -> int | None:
    seconds = held_s(gpu, uuid, pynvml.NVML_PERF_POLICY_THERMAL)
    return None if seconds is None else round(seconds * 1e9)
