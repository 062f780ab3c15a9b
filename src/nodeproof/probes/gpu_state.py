"""What a GPU says of its own health: memory, modes, heat and clocks, and its link to the host.

Work functions, each one idea, so that a call that hangs costs that idea alone. `None` is what GPU
or driver does not support, never zero. All raise `NvmlError` for any other refusal: a GPU whose
state can't be read is unjudged.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

import pynvml

from nodeproof import physics
from nodeproof.probes import mig, nvml
from nodeproof.probes import pcie as bus
from nodeproof.probes.tree import Tree
from nodeproof.worker import Context

_VOLATILE, _AGGREGATE = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC
_UNCORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
_SRAM, _DRAM = pynvml.NVML_MEMORY_LOCATION_SRAM, pynvml.NVML_MEMORY_LOCATION_DRAM
_ECC = {  # name: what to ask for
    "uncorrected": (_UNCORRECTED, _VOLATILE),
    "corrected": (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, _VOLATILE),
    "uncorrected_ever": (_UNCORRECTED, _AGGREGATE),
    "corrected_ever": (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, _AGGREGATE),
}
_PLACES = {
    "sram_uncorrected": (_UNCORRECTED, _VOLATILE, _SRAM),
    "dram_uncorrected": (_UNCORRECTED, _VOLATILE, _DRAM),
    "sram_uncorrected_ever": (_UNCORRECTED, _AGGREGATE, _SRAM),
    "dram_uncorrected_ever": (_UNCORRECTED, _AGGREGATE, _DRAM),
}
_RETIRED = (
    pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
    pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
)
_THRESHOLDS = {
    "shutdown": pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN,
    "slowdown": pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
    "memory": pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX,
    "operation": pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX,
}
_POLICIES = {
    "power": pynvml.NVML_PERF_POLICY_POWER,
    "thermal": pynvml.NVML_PERF_POLICY_THERMAL,
    "board": pynvml.NVML_PERF_POLICY_BOARD_LIMIT,
    "reliability": pynvml.NVML_PERF_POLICY_RELIABILITY,
}


class _Gpu:
    """One GPU in an NVML session: every question names it."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.device = nvml.handle(uuid)

    def ask(self, call: str, *arguments: Any) -> Any:
        """What NVML answers; `None` for what is not supported."""
        return nvml.ask_if_supported(call, self.device, *arguments, about=self.uuid)

    def count(self, call: str, *arguments: Any) -> int | None:
        """A whole number; `None` also for the one that means that there is no value."""
        return nvml.counted(self.ask(call, *arguments))


def memory(context: Context) -> dict[str, Any]:
    """Work function: what ECC, row remapping and page retirement know of the GPU's memory.

    - `ecc`: `on` (now), `next` (after a reset), `usual` (as the product is delivered), as booleans;
    - `errors`: ECC errors since the driver was loaded (`uncorrected`, `corrected`; by place
      `sram_uncorrected`, `dram_uncorrected`) and since the GPU was made (the same with `_ever`);
    - `sram`: of NVML's status of on-chip memory, `uncorrected` and `uncorrected_ever` (parity and
      SEC-DED added up) and `exceeded`: the threshold at which the GPU is to be replaced;
    - `rows`: `corrected`, `uncorrected` (rows remapped for such errors), `pending`, `failed`
      (booleans), and `banks` by what spare rows they have left (`max` to `none`);
    - `pages`: `retired` for both reasons, `pending`: of GPUs before row remapping;
    - `product`: its name, "" where the driver has none; `built_in`: whether the product has ECC by
      its maker, `None` where nobody knows;
    - `counters`, `records`: how many of `errors`, and of `rows` and `pages`, there are in full.
    """
    with nvml.session(context.progress):
        gpu = _Gpu(context.device_id)
        errors = {n: gpu.count("nvmlDeviceGetTotalEccErrors", *what) for n, what in _ECC.items()}
        for name, what in _PLACES.items():
            # A place that this generation does not tell apart is an invalid argument to some drivers.
            said = nvml.ask_of_number(
                "nvmlDeviceGetMemoryErrorCounter", gpu.device, *what, about=gpu.uuid
            )
            errors[name] = nvml.counted(said)
        rows, pages = _rows(gpu), _pages(gpu)
        name = str(gpu.ask("nvmlDeviceGetName") or "")
        return {
            "ecc": _ecc_mode(gpu),
            "errors": errors,
            "sram": _sram(gpu),
            "rows": rows,
            "pages": pages,
            "product": name,
            "built_in": _has_ecc(name),
            "counters": sum(count is not None for count in errors.values()),
            "records": (rows is not None) + (pages is not None and None not in pages.values()),
        }


def _has_ecc(name: str) -> bool | None:
    product = physics.by_name().get(name)
    if product is not None:
        return product.ecc
    return False if physics.for_players(name) else None


def _ecc_mode(gpu: _Gpu) -> dict[str, bool | None]:
    modes = gpu.ask("nvmlDeviceGetEccMode")
    usual = gpu.ask("nvmlDeviceGetDefaultEccMode")
    return {
        "on": None if modes is None else bool(modes[0]),
        "next": None if modes is None else bool(modes[1]),
        "usual": None if usual is None else bool(usual[0]),
    }


def _sram(gpu: _Gpu) -> dict[str, Any] | None:
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    if gpu.ask("nvmlDeviceGetSramEccErrorStatus", ctypes.byref(status)) is None:
        return None
    return {
        "uncorrected": _added(status.volatileUncParity, status.volatileUncSecDed),
        "uncorrected_ever": _added(status.aggregateUncParity, status.aggregateUncSecDed),
        "exceeded": bool(status.bThresholdExceeded),
    }


def _added(*counts: int) -> int | None:
    """Their sum; `None` where one of them is no value."""
    known = [count for said in counts if (count := nvml.counted(said)) is not None]
    return sum(known) if len(known) == len(counts) else None


def _rows(gpu: _Gpu) -> dict[str, Any] | None:
    rows = gpu.ask("nvmlDeviceGetRemappedRows")
    if rows is None:
        return None
    corrected, uncorrected, pending, failed = rows
    banks = gpu.ask("nvmlDeviceGetRowRemapperHistogram")
    names = ("max", "high", "partial", "low", "none")
    return {
        "corrected": nvml.counted(corrected),
        "uncorrected": nvml.counted(uncorrected),
        "pending": bool(pending),
        "failed": bool(failed),
        "banks": None if banks is None else {name: int(getattr(banks, name)) for name in names},
    }


def _pages(gpu: _Gpu) -> dict[str, Any] | None:
    retired = [gpu.ask("nvmlDeviceGetRetiredPages", reason) for reason in _RETIRED]
    pending = gpu.ask("nvmlDeviceGetRetiredPagesPendingStatus")
    known = [pages for pages in retired if pages is not None]
    if not known and pending is None:
        return None
    return {
        "retired": sum(len(pages) for pages in known) if known else None,
        "pending": None if pending is None else bool(pending),
    }


def modes(context: Context) -> dict[str, Any]:
    """Work function: how the GPU is set, and what the driver asks to be done with it.

    - `persistence`: boolean; `compute_mode`: nvmlComputeMode_t, 0 is the default;
    - `recovery_action`: nvmlDeviceGpuRecoveryAction_t, 0 is none; drivers before 570 do not say;
      `recovery_told`: 1 where it is told, else 0;
    - `mig`, `mig_next`: MIG now and after a reset, as booleans; `slices`: `uuid` and `profile` (such
      as "1g.10gb") of each MIG device.
    """
    with nvml.session(context.progress):
        gpu = _Gpu(context.device_id)
        persistence = gpu.ask("nvmlDeviceGetPersistenceMode")
        said = mig.mode(gpu.device, gpu.uuid)
        (action,) = nvml.fields(
            gpu.device, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION], about=gpu.uuid
        )
        on, following = said or (None, None)
        return {
            "persistence": None if persistence is None else bool(persistence),
            "compute_mode": gpu.ask("nvmlDeviceGetComputeMode"),
            "recovery_action": None if action is None else int(action),
            "recovery_told": int(action is not None),
            "mig": on,
            "mig_next": following,
            "slices": mig.listed(gpu.device, gpu.uuid) if on else [],
        }


def heat(context: Context, *, readings: int = 5, pause_s: float = 0.1) -> dict[str, Any]:
    """Work function: temperature, clocks, power, and what holds the clocks down, without load.

    - `temperature_c`, `memory_c`; `thresholds_c` (`shutdown`, `slowdown`, `memory`, `operation`);
      `margin_c`: degrees left below the nearest slowdown, as newer GPUs count;
    - `throttle`: the bits of the clock event reasons that were set in every one of `readings`;
      `momentary`: those of any; `None` where not one could be read;
    - `held_s`: seconds since the driver was loaded in which `power`, `thermal`, `board` and
      `reliability` kept the clocks down;
    - `utilisation` (0 to 1);
    - `sm_mhz`, `memory_mhz` and the greatest, `sm_mhz_max`, `memory_mhz_max`;
    - `power_w`, `power_limit_w` (in force), `power_limit_usual_w`.
    """
    with nvml.session(context.progress):
        gpu = _Gpu(context.device_id)
        (memory_c,) = nvml.fields(gpu.device, [pynvml.NVML_FI_DEV_MEMORY_TEMP], about=gpu.uuid)
        always, ever = _reasons(gpu, readings, pause_s)
        rates = gpu.ask("nvmlDeviceGetUtilizationRates")
        return {
            "temperature_c": gpu.count("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),
            "memory_c": memory_c or None,  # GPUs without a sensor there say zero
            "margin_c": gpu.ask("nvmlDeviceGetMarginTemperature"),
            "thresholds_c": {
                name: gpu.count("nvmlDeviceGetTemperatureThreshold", which)
                for name, which in _THRESHOLDS.items()
            },
            "throttle": always,
            "momentary": ever,
            "held_s": {name: held_s(gpu.device, gpu.uuid, p) for name, p in _POLICIES.items()},
            "utilisation": None if rates is None else rates.gpu / 100,
            "sm_mhz": gpu.count("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),
            "memory_mhz": gpu.count("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM),
            "sm_mhz_max": gpu.count("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM),
            "memory_mhz_max": gpu.count("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_MEM),
            "power_w": _watts(gpu, "nvmlDeviceGetPowerUsage"),
            "power_limit_w": _watts(gpu, "nvmlDeviceGetEnforcedPowerLimit"),
            "power_limit_usual_w": _watts(gpu, "nvmlDeviceGetPowerManagementDefaultLimit"),
        }


def held_s(device: Any, uuid: str, policy: int) -> float | None:
    """Seconds in which an nvmlPerfPolicyType_t kept the clocks down since the driver was loaded.

    By this call and not by its fields, whose numbers differ from driver to driver (nvml.h of 12.9
    and of 13.1, NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN).
    """
    status = nvml.ask_of_number("nvmlDeviceGetViolationStatus", device, policy, about=uuid)
    time_ns = None if status is None else nvml.available(status.violationTime)
    return None if time_ns is None else time_ns * 1e-9


def reasons(device: Any, uuid: str) -> int | None:
    """The bits of NVML's clock event reasons as they are now."""
    # The second is the name that drivers before 535 know.
    for call in (
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
    ):
        bits = nvml.ask_if_supported(call, device, about=uuid)
        if bits is not None:
            return int(bits)
    return None


def _reasons(gpu: _Gpu, readings: int, pause_s: float) -> tuple[int | None, int | None]:
    always, ever = None, None
    for number in range(readings):
        if number:
            time.sleep(pause_s)
        bits = reasons(gpu.device, gpu.uuid)
        if bits is not None:
            always = bits if always is None else always & bits
            ever = bits if ever is None else ever | bits
    return always, ever


def _watts(gpu: _Gpu, call: str) -> float | None:
    milliwatts = gpu.count(call)
    return None if milliwatts is None else milliwatts * 1e-3


def pcie(context: Context) -> dict[str, Any]:
    """Work function: the link to the host, by the GPU's own word.

    `width` and `generation` now, `width_max` and `generation_max` of GPU and slot together,
    `generation_gpu` of the GPU alone, `replays` since the driver was loaded, `told`: 1 where the
    width is told, else 0, `virtual`: whether this is a virtual machine, `None` where that is not
    told. An idle link trains down in generation; nvidia-smi(1) says that its width may fall too.
    """
    with nvml.session(context.progress):
        gpu = _Gpu(context.device_id)
        width = gpu.count("nvmlDeviceGetCurrPcieLinkWidth")
        return {
            "told": int(width is not None),
            "width": width,
            "width_max": gpu.count("nvmlDeviceGetMaxPcieLinkWidth"),
            "generation": gpu.count("nvmlDeviceGetCurrPcieLinkGeneration"),
            "generation_max": gpu.count("nvmlDeviceGetMaxPcieLinkGeneration"),
            "generation_gpu": gpu.count("nvmlDeviceGetGpuMaxPcieLinkGeneration"),
            "replays": gpu.count("nvmlDeviceGetPcieReplayCounter"),
            "virtual": bus.virtual_if_told(Tree(root=context.host_root)),
        }
