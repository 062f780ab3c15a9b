"""What a GPU counts of its own errors. A count says little; what it grows by under load does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml

from nodeproof.probes import nvml
from nodeproof.worker import Context

# nvml.h, enum nvmlValueType_t: which member of the union holds the value of a field.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_NVLINK = {
    "nvlink_replays": pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    "nvlink_recoveries": pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
}
NAMES = (
    "ecc_uncorrected",
    "ecc_corrected",
    "rows_remapped",
    "remap_pending",
    "remap_failed",
    "pcie_replays",
    *_NVLINK,
)


def read(context: Context) -> dict[str, Any]:
    """Work function: `counters` of the device, and `refusals`, what could not be read and why.

    Raises `NvmlError` without a driver.
    """
    with nvml.session():
        found, refusals = counters(context.device_id)
    return {"counters": found, "refusals": refusals}


def counters(uuid: str) -> tuple[dict[str, int | None], list[str]]:
    """Read all counters of a GPU, in an NVML session, and say what refused.

    Volatile ECC errors (since the driver was loaded), rows of memory that were remapped in all,
    whether a remap is pending or failed (0 or 1), PCIe replays, NVLink replays and recoveries over
    all links. `None` is not supported or refused, never zero.
    """
    found: dict[str, int | None] = dict.fromkeys(NAMES)
    refusals: list[str] = []

    def note(take: Callable[[Any], dict[str, int | None]]) -> None:
        try:
            found.update(take(nvml.handle(uuid)))
        except nvml.NvmlError as error:
            refusals.append(str(error))

    note(
        lambda gpu: {"ecc_uncorrected": _ecc(gpu, uuid, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)}
    )
    note(lambda gpu: {"ecc_corrected": _ecc(gpu, uuid, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED)})
    note(lambda gpu: _rows(gpu, uuid))
    note(
        lambda gpu: {
            "pcie_replays": nvml.ask_if_supported("nvmlDeviceGetPcieReplayCounter", gpu, about=uuid)
        }
    )
    note(lambda gpu: _nvlink(gpu, uuid))
    return found, refusals


def _ecc(gpu: Any, uuid: str, kind: int) -> int | None:
    count: int | None = nvml.ask_if_supported(
        "nvmlDeviceGetTotalEccErrors", gpu, kind, pynvml.NVML_VOLATILE_ECC, about=uuid
    )
    return count


def _rows(gpu: Any, uuid: str) -> dict[str, int | None]:
    rows = nvml.ask_if_supported("nvmlDeviceGetRemappedRows", gpu, about=uuid)
    if rows is None:
        return {}
    corrected, uncorrected, pending, failed = rows
    return {
        "rows_remapped": corrected + uncorrected,
        "remap_pending": int(bool(pending)),
        "remap_failed": int(bool(failed)),
    }


def _nvlink(gpu: Any, uuid: str) -> dict[str, int | None]:
    values = nvml.ask_if_supported(
        "nvmlDeviceGetFieldValues", gpu, list(_NVLINK.values()), about=uuid
    )
    if values is None:
        return {}
    # Each field has a status of its own: a GPU without NVLink answers the call and none of them.
    return {
        name: int(getattr(value.value, _MEMBERS[value.valueType]))
        for name, value in zip(_NVLINK, values, strict=True)
        if value.nvmlReturn == pynvml.NVML_SUCCESS and value.valueType < len(_MEMBERS)
    }
