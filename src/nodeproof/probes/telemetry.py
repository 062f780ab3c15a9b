"""The state of every device, sampled beside all work until the run ends."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pynvml

from nodeproof.probes import nvml
from nodeproof.probes.counters import counters
from nodeproof.probes.gpu_state import reasons
from nodeproof.probes.host import memory
from nodeproof.probes.pcie import virtual_if_told
from nodeproof.probes.processes import machine_ticks
from nodeproof.probes.tree import Tree, Unreadable, whole
from nodeproof.worker import Context

_THERMAL = "sys/class/thermal"
_HWMON = "sys/class/hwmon"
# Counters take most of a sample's calls and stand still on a sound GPU, so they are read in every
# fifth tick, of each GPU in another one: with eight GPUs a tick would else outlast its second.
_COUNTING = 5
_CPU_SENSORS = frozenset({"coretemp", "k10temp", "zenpower", "cpu_thermal", "x86_pkg_temp"})


def watch(context: Context, *, devices: Sequence[Mapping[str, Any]], hz: float = 1.0) -> None:
    """Work function that never returns: one telemetry sample per device and tick, `hz` a second.

    `devices` have `kind` ("gpu" or "cpu") and `id`. A sample of a GPU has `power_w`,
    `temperature_c`, `sm_mhz`, `memory_mhz`, `throttle` (NVML's bits of clock event reasons),
    `utilisation` (0 to 1), `pcie_width`, `pcie_generation`, `pcie_width_able` and
    `pcie_generation_able` (of GPU and slot together), `virtual` (whether the machine is) and, in its
    first sample and every fifth, `counters` (of its errors, see `nodeproof.probes.counters`); of a
    CPU device, which is the whole machine, `utilisation`, `mhz`, `temperature_c` and
    `memory_available_bytes`. `None` is not supported, never zero. When a device refuses, the sample
    says so in `refusal`, and an event `telemetry.refused` is sent once for each new reason. Raises
    `ValueError` for a rate that is none, `NvmlError` without a driver.
    """
    if not 0 < hz <= 100:
        raise ValueError(f"{hz} samples a second: give more than 0 and at most 100")
    on_gpu = any(device["kind"] == "gpu" for device in devices)
    # One session for the whole run: to open one takes longer than to read.
    held: AbstractContextManager[None] = nvml.session() if on_gpu else nullcontext()
    with held:
        _watch(context, devices, 1 / hz)


def _watch(context: Context, devices: Sequence[Mapping[str, Any]], period_s: float) -> None:
    tree = Tree(root=context.host_root)
    machine, virtual = Machine(tree), virtual_if_told(tree)
    told: dict[str, str] = {}
    due = time.monotonic()
    for tick in itertools.count():
        cpu = machine.sample() if any(d["kind"] == "cpu" for d in devices) else {}
        for place, device in enumerate(devices):
            uuid = device["id"]
            counting = not tick or not (tick + place) % _COUNTING
            sample = (
                {**gpu_sample(uuid, counting=counting), "virtual": virtual}
                if device["kind"] == "gpu"
                else cpu
            )
            refusal = sample.get("refusal", "")
            if refusal and told.get(uuid) != refusal:
                told[uuid] = refusal
                context.event("telemetry.refused", device=uuid, text=refusal)
            context.telemetry(device=uuid, **sample)
        now = time.monotonic()
        # Held up: leave out what was missed and go on at once. To wait for the next beat would halve
        # the rate of a node whose ticks take a little longer than a period.
        due = max(due + period_s, now)
        time.sleep(due - now)


def gpu_sample(uuid: str, *, counting: bool = True) -> dict[str, Any]:
    """One sample of a GPU, with its counters if `counting`; to be called in an NVML session."""
    refusals = []
    readings: dict[str, Callable[[Any], Any]] = {
        "power_w": lambda d: _scaled(d, uuid, 1e-3, "nvmlDeviceGetPowerUsage"),
        "temperature_c": lambda d: _scaled(
            d, uuid, 1, "nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU
        ),
        "sm_mhz": lambda d: _scaled(d, uuid, 1, "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),
        "memory_mhz": lambda d: _scaled(
            d, uuid, 1, "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM
        ),
        "throttle": lambda d: reasons(d, uuid),
        "utilisation": lambda d: _utilisation(d, uuid),
        "pcie_width": lambda d: _scaled(d, uuid, 1, "nvmlDeviceGetCurrPcieLinkWidth"),
        "pcie_generation": lambda d: _scaled(d, uuid, 1, "nvmlDeviceGetCurrPcieLinkGeneration"),
        "pcie_width_able": lambda d: _scaled(d, uuid, 1, "nvmlDeviceGetMaxPcieLinkWidth"),
        "pcie_generation_able": lambda d: _scaled(d, uuid, 1, "nvmlDeviceGetMaxPcieLinkGeneration"),
    }
    sample: dict[str, Any] = dict.fromkeys(readings)
    try:
        gpu = nvml.handle(uuid)  # once: to ask again for each reading doubles the calls
    except nvml.NvmlError as error:
        return {**sample, "refusal": str(error)}
    for name, read in readings.items():
        try:
            sample[name] = read(gpu)
        except nvml.NvmlError as error:
            refusals.append(str(error))
    if counting:
        sample["counters"], refused = counters(uuid, gpu)
        refusals += refused
    return {**sample, "refusal": refusals[0]} if refusals else sample


class Machine:
    """The machine that all CPU devices share; remembers the last reading of what only counts."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._last: tuple[int, int] | None = None

    def sample(self) -> dict[str, Any]:
        """One sample; the first has no utilisation, which takes two readings."""
        readings: dict[str, Callable[[], Any]] = {
            "utilisation": self._utilisation,
            "mhz": lambda: _mhz(self._tree),
            "temperature_c": lambda: _temperature(self._tree),
            "memory_available_bytes": lambda: memory(self._tree, "MemAvailable"),
        }
        sample: dict[str, Any] = {}
        for name, read in readings.items():
            try:
                sample[name] = read()
            except Unreadable:  # in a sample, `None` is the whole message
                sample[name] = None
        return sample

    def _utilisation(self) -> float | None:
        last, self._last = self._last, machine_ticks(self._tree)
        if last is None or self._last[0] == last[0]:
            return None
        return (self._last[1] - last[1]) / (self._last[0] - last[0])


def _scaled(device: Any, uuid: str, scale: float, call: str, *which: int) -> float | None:
    value = nvml.ask_if_supported(call, device, *which, about=uuid)
    return None if value is None else value * scale


def _utilisation(device: Any, uuid: str) -> float | None:
    rates = nvml.ask_if_supported("nvmlDeviceGetUtilizationRates", device, about=uuid)
    return None if rates is None else rates.gpu / 100


def _mhz(tree: Tree) -> float | None:
    """Mean clock of the processors that show one."""
    clocks = [
        float(value)
        for key, _, value in (
            line.partition(":") for line in tree.text("proc/cpuinfo", keep=False).splitlines()
        )
        if key.strip() == "cpu MHz"
    ]
    if clocks:
        return sum(clocks) / len(clocks)
    path = "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq"  # kHz
    return tree.value(path, whole) / 1000


def _temperature(tree: Tree) -> float | None:
    """The hottest sensor of a processor, `None` where there is none, as in most VMs."""
    found = []
    for folder, label, suffix in ((_HWMON, "name", "_input"), (_THERMAL, "type", "temp")):
        for entry in _names(tree, folder):
            try:
                if tree.text(f"{folder}/{entry}/{label}") not in _CPU_SENSORS:
                    continue
                found += [
                    tree.value(f"{folder}/{entry}/{name}", int) / 1000
                    for name in _names(tree, f"{folder}/{entry}")
                    if name.startswith("temp") and name.endswith(suffix)
                ]
            except Unreadable:  # a sensor that does not answer is not the hottest
                continue
    return max(found, default=None)


def _names(tree: Tree, folder: str) -> list[str]:
    try:
        return tree.names(folder)
    except Unreadable:
        return []
