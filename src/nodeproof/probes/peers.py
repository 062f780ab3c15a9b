"""How a GPU reaches the others of its node: what the driver allows between each two of them."""

from __future__ import annotations

from typing import Any

import pynvml

from nodeproof.probes import nvml
from nodeproof.probes.pci import normalised
from nodeproof.worker import Context

# nvml.h, nvmlGpuP2PCapsIndex_t. As numbers: the binding has a tuple in place of the first.
_CAPABILITIES = {"read": 0, "write": 1, "nvlink": 2, "atomics": 3, "pcie": 4}
# nvml.h, nvmlGpuP2PStatus_t
_STATUSES = (
    "ok",
    "chipset not supported",
    "GPU not supported",
    "not supported in this place of the PCIe tree",
    "disabled by a registry key",
    "not supported",
    "unknown",
)
# nvml.h, nvmlGpuTopologyLevel_t
_ANCESTORS = {
    0: "one board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "a host bridge",
    40: "a NUMA node",
    50: "the link between sockets",
}
_SWITCH, _GPU = 2, 0  # nvml.h, nvmlIntNvLinkDeviceType_t


def paths(context: Context) -> dict[str, Any]:
    """Work function: `paths`, a row for each other GPU that NVML lists.

    A row has `uuid` and `pci` of the other; `read`, `write`, `nvlink`, `atomics`, `pcie`: the status
    of that kind of peer-to-peer access from this GPU to it, in words ("ok" and no other is good;
    `None` where the driver does not tell); `ancestor`: what the two have in common on the PCIe tree,
    `None` where not told; `direct`: NVLinks that are up and end at it. Beside them `told`: 1 where
    reads and writes are told of all, else 0; `switched`: NVLinks that are up and end at a switch; `elsewhere`: PCI addresses of GPUs at the end of a link
    that are not listed; `silent`: how many GPUs NVML counts and does not identify. Raises
    `NvmlError` for any refusal.
    """
    with nvml.session(context.progress):
        own = nvml.handle(context.device_id)
        others, silent = _others(context.device_id)
        ends, switched = _ends(own, context.device_id)
        listed = {pci for _, _, pci in others}
        rows = [
            {
                "uuid": uuid,
                "pci": pci,
                **_statuses(own, other, f"{context.device_id} and {uuid}"),
                "direct": ends.count(pci),
            }
            for uuid, other, pci in others
        ]
        return {
            "paths": rows,
            "told": int(all(row["read"] and row["write"] for row in rows)),
            "switched": switched,
            "elsewhere": sorted(set(ends) - listed),
            "silent": silent,
        }


def _others(uuid: str) -> tuple[list[tuple[str, Any, str]], int]:
    """UUID, handle and address of each other GPU, in PCI order; and how many do not answer."""
    found, silent = [], 0
    for index in range(nvml.ask("nvmlDeviceGetCount")):
        about = f"GPU number {index}"
        try:
            device = nvml.ask("nvmlDeviceGetHandleByIndex", index, about=about)
            name = str(nvml.ask("nvmlDeviceGetUUID", device, about=about))
            pci = normalised(str(nvml.ask("nvmlDeviceGetPciInfo", device, about=name).busId))
        except nvml.NvmlError:
            silent += 1  # what it refuses with is told by the check of the number of devices
            continue
        if name != uuid:
            found.append((name, device, pci))
    return sorted(found, key=lambda row: row[2]), silent


def _statuses(own: Any, other: Any, about: str) -> dict[str, str | None]:
    row = {
        name: _status(nvml.ask_of_number("nvmlDeviceGetP2PStatus", own, other, index, about=about))
        for name, index in _CAPABILITIES.items()
    }
    level = nvml.ask_if_supported("nvmlDeviceGetTopologyCommonAncestor", own, other, about=about)
    return {**row, "ancestor": None if level is None else _ANCESTORS.get(level, f"level {level}")}


def _status(number: int | None) -> str | None:
    if number is None:
        return None
    return _STATUSES[number] if number < len(_STATUSES) else f"status {number}"


def _ends(own: Any, uuid: str) -> tuple[list[str], int]:
    """Addresses of the GPUs at the end of each link that is up, and how many links end at a switch."""
    ends, switched = [], 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = nvml.ask_of_number("nvmlDeviceGetNvLinkState", own, link, about=uuid)
        if not state:
            continue
        kind = nvml.ask_of_number("nvmlDeviceGetNvLinkRemoteDeviceType", own, link, about=uuid)
        switched += kind == _SWITCH
        if kind == _GPU:
            end = nvml.ask_of_number("nvmlDeviceGetNvLinkRemotePciInfo", own, link, about=uuid)
            if end is not None:
                ends.append(normalised(str(end.busId)))
    return ends, switched
