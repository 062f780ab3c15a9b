"""What a GPU says of its NVLinks, and of the fabric that they lead to."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml

from nodeproof import physics
from nodeproof.probes import nvml, pcie
from nodeproof.probes.tree import Tree, Unreadable
from nodeproof.worker import Context

# An upper bound over all products, not what a GPU has: surplus numbers are invalid arguments.
_MOST = pynvml.NVML_NVLINK_MAX_LINKS
_ENDS = {0: "gpu", 1: "cpu", 2: "switch"}  # nvml.h, nvmlIntNvLinkDeviceType_t
_STATES = ("not supported", "not started", "in progress", "completed")
_SUMMARIES = ("not supported", "healthy", "unhealthy", "limited capacity")
# nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*: name, first bit, width. In a part of two bits 1 is yes, 2 is
# no and 0 is not supported; the configuration is a number, of which 1 is right.
_HEALTH = (
    ("degraded_bandwidth", 0, 0x3),
    ("route_recovery", 2, 0x3),
    ("route_unhealthy", 4, 0x3),
    ("access_timeout_recovery", 6, 0x3),
)
_CONFIGURATION = (8, 0xF)
_CONFIGURED = (
    None,  # not supported
    "",
    "system GUID",
    "chassis serial number",
    "no partition",
    "too few NVLinks",
    "GPU firmware that does not fit",
    "invalid location",
    "invalid state of the GPU",
)
_SPEED = pynvml.NVML_FI_DEV_NVLINK_GET_SPEED
_COMMON_SPEED = pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON  # what older drivers and GPUs tell
# From NVLink 5 on the counters of the data link are these, each link its own (nvml.h).
_PACKET_ERRORS = {
    "malformed": pynvml.NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS,
    "overrun": pynvml.NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS,
    "integrity": pynvml.NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS,
}
_RETRAINED = pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS


def links(context: Context) -> dict[str, Any]:
    """Work function: `links`, a row for each NVLink that the GPU has, and how many are `active`.

    A row has `link` (number), `active`, `speed_mbs` (MB/s as the driver counts, `None` where it
    does not say or the link is down), `end` ("gpu", "switch", "cpu", `None` where unknown). Beside
    them `built_in`: how many the product has by its maker, at least 1 for an SXM board that the
    catalogue does not know, `None` for any other; `product`: its name, "" where the driver has none;
    `known`: whether what it has is known, by the catalogue or because it is made for players;
    `switches`: NVSwitches on the bus, `None` where it
    can't be read. Raises `NvmlError` for any refusal.
    """
    try:
        switches = len(pcie.switches(Tree(root=context.host_root)))
    except Unreadable:
        switches = None
    with nvml.session(context.progress):
        device = nvml.handle(context.device_id)
        rows = []
        for link in range(_MOST):
            state = nvml.ask_of_number(
                "nvmlDeviceGetNvLinkState", device, link, about=context.device_id
            )
            if state is not None:
                rows.append(_row(device, context.device_id, link, active=bool(state)))
        said = nvml.ask_if_supported("nvmlDeviceGetName", device, about=context.device_id)
        name = str(said or "")
        return {
            "links": rows,
            "active": sum(row["active"] for row in rows),
            "built_in": _built_in(name),
            "product": name,
            "known": name in physics.by_name() or physics.for_players(name),
            "switches": switches,
        }


def _built_in(name: str) -> int | None:
    product = physics.by_name().get(name)
    if product is not None:
        return product.nvlinks
    return 1 if "SXM" in name else None


def _row(device: Any, uuid: str, link: int, *, active: bool) -> dict[str, Any]:
    speed, end = None, None
    if active:  # what a link that is down says of itself means nothing
        own, common = nvml.fields(device, [(_SPEED, link), _COMMON_SPEED], about=uuid)
        speed = common if own is None else own
        end = nvml.ask_of_number("nvmlDeviceGetNvLinkRemoteDeviceType", device, link, about=uuid)
    return {
        "link": link,
        "active": active,
        "speed_mbs": speed,
        "end": None if end is None else _ENDS.get(end),
    }


def errors(device: Any, uuid: str) -> dict[str, int]:
    """Count what NVLinks of the fifth generation and later report, all links of a GPU together.

    `nvlink_packet_errors` (malformed, discarded for want of room, more local errors than a link
    stands) and `nvlink_retrainings`; a GPU that has no such counters has none of these keys. Takes
    a question per link and counter: for the start and the end of a run, not for each sample.
    Raises `NvmlError`.
    """
    (count,) = nvml.fields(device, [pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT], about=uuid)
    if not count:
        return {}
    numbers = range(min(int(count), _MOST))
    names = {"nvlink_packet_errors": _PACKET_ERRORS.values(), "nvlink_retrainings": [_RETRAINED]}
    found = {}
    for name, counters in names.items():
        wanted = [(counter, link) for counter in counters for link in numbers]
        known = [v for v in nvml.fields(device, wanted, about=uuid) if v is not None]
        if known:
            found[name] = int(sum(known))
    return found


def fabric(context: Context) -> dict[str, Any]:
    """Work function: where the GPU stands with the fabric of its NVSwitches.

    - `state`: "not supported", "not started", "in progress" or "completed", or "state N";
    - `status`: nvmlReturn_t of the registration, which means something only once it is completed,
      and `status_says` in words;
    - `clique`, `cluster` (hexadecimal; all zeros where the fabric is this node's own);
    - `health`: by name `True`, `False` or `None` for what is not supported; `summary` in words,
      `None` where the driver has none; `configuration`: what is wrong with it, "" if nothing,
      `None` where not supported.

    A GPU that has no fabric says "not supported". Raises `NvmlError`.
    """
    with nvml.session(context.progress):
        info = _fabric_info(nvml.handle(context.device_id), context.device_id)
    if info is None:
        return _said(0, 0, None)
    return _said(info.state & 0xFF, info.status, info)


def _said(state: int, status: int, info: Any) -> dict[str, Any]:
    mask = getattr(info, "healthMask", 0)
    summary = getattr(info, "healthSummary", 0)
    first, width = _CONFIGURATION
    wrong = mask >> first & width
    known = wrong < len(_CONFIGURED)
    return {
        "state": _STATES[state] if state < len(_STATES) else f"state {state}",
        "status": status,
        "status_says": "success" if status == 0 else nvml.meaning(status),
        "clique": getattr(info, "cliqueId", None),
        "cluster": None if info is None else bytes(info.clusterUuid).hex(),
        "health": {name: _three(mask >> bit & width) for name, bit, width in _HEALTH},
        "summary": _word(summary) if summary else None,
        "configuration": _CONFIGURED[wrong] if known else f"number {wrong}",
    }


def _three(bits: int) -> bool | None:
    return {1: True, 2: False}.get(bits)


def _word(summary: int) -> str:
    return _SUMMARIES[summary] if summary < len(_SUMMARIES) else f"summary {summary}"


def _fabric_info(device: Any, uuid: str) -> Any:
    """The newest version of the answer that binding and driver both know, `None` without any."""
    for name in ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t"):
        if not hasattr(pynvml, name):
            continue
        info = getattr(pynvml, name)()
        try:
            nvml.ask("nvmlDeviceGetGpuFabricInfoV", device, ctypes.byref(info), about=uuid)
        except nvml.NvmlError as error:
            if error.code == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
                continue
            if error.code in nvml.NOT_SUPPORTED:
                break
            raise
        return info
    info = pynvml.c_nvmlGpuFabricInfo_t()
    asked = nvml.ask_if_supported(
        "nvmlDeviceGetGpuFabricInfo", device, ctypes.byref(info), about=uuid
    )
    return None if asked is None else info
