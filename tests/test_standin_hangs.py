"""A call to the driver that never returns costs its deadline, and the last word names it."""

from __future__ import annotations

import re

import pynvml
import pytest

from nodeproof.child import Loss, Lost
from nodeproof.probes import nvml
from tests.standin.node import standing

MEMORY = "nodeproof.probes.gpu_state:memory"
MODES = "nodeproof.probes.gpu_state:modes"
HEAT = "nodeproof.probes.gpu_state:heat"
PCIE = "nodeproof.probes.gpu_state:pcie"
LINKS = "nodeproof.probes.nvlink:links"
PEERS = "nodeproof.probes.peers:paths"
FABRIC = "nodeproof.probes.nvlink:fabric"
COUNTERS = "nodeproof.probes.counters:read"
DEVICES = "nodeproof.probes.devices:enumerate_devices"
ON_GPU = "nodeproof.probes.processes:on_gpu"
ARGS = {DEVICES: {"device": "cuda", "cpu_devices": 1}}
SCENARIO = ("hgx-h100", "mig", "bridged")
# What the bindings call the same function of the library.
IN_LIBRARY = {
    "nvmlDeviceGetCount": "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex": "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetPciInfo": "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetNvLinkRemotePciInfo": "nvmlDeviceGetNvLinkRemotePciInfo_v2",
}
CALLS = {
    MEMORY: (
        "nvmlInitWithFlags",
        "nvmlDeviceGetHandleByUUID",
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetMemoryErrorCounter",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetRetiredPages",
        "nvmlDeviceGetRetiredPagesPendingStatus",
        "nvmlDeviceGetEccMode",
        "nvmlDeviceGetDefaultEccMode",
        "nvmlDeviceGetSramEccErrorStatus",
        "nvmlShutdown",
    ),
    MODES: (
        "nvmlDeviceGetPersistenceMode",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetComputeMode",
        "nvmlDeviceGetMaxMigDeviceCount",
        "nvmlDeviceGetMigDeviceHandleByIndex",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetName",
    ),
    HEAT: (
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetMarginTemperature",
        "nvmlDeviceGetTemperatureThreshold",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetViolationStatus",
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetMaxClockInfo",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetPowerManagementDefaultLimit",
    ),
    PCIE: (
        "nvmlDeviceGetCurrPcieLinkWidth",
        "nvmlDeviceGetMaxPcieLinkWidth",
        "nvmlDeviceGetCurrPcieLinkGeneration",
        "nvmlDeviceGetMaxPcieLinkGeneration",
        "nvmlDeviceGetGpuMaxPcieLinkGeneration",
        "nvmlDeviceGetPcieReplayCounter",
    ),
    LINKS: ("nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemoteDeviceType"),
    PEERS: (
        "nvmlDeviceGetP2PStatus",
        "nvmlDeviceGetTopologyCommonAncestor",
        "nvmlDeviceGetNvLinkRemotePciInfo",
    ),
    FABRIC: ("nvmlDeviceGetGpuFabricInfoV",),
    COUNTERS: (),
    DEVICES: (
        "nvmlDeviceGetCount",
        "nvmlDeviceGetHandleByIndex",
        "nvmlDeviceGetPciInfo",
        "nvmlDeviceGetSerial",
        "nvmlDeviceGetVbiosVersion",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlSystemGetDriverVersion",
        "nvmlSystemGetNVMLVersion",
        "nvmlSystemGetCudaDriverVersion_v2",
    ),
    ON_GPU: (
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    ),
}
PAIRS = [(work, call) for work, calls in CALLS.items() for call in calls]


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with standing(tmp_path_factory) as one:
        yield one


def hang(node, work, call, *, deadline_s):
    node.says(*SCENARIO)
    node.answer(work, args=ARGS.get(work))  # with a worker that is up, only the call takes time
    node.says(*SCENARIO, also=f"{IN_LIBRARY.get(call, call)}=hang")
    reply = node.reply(work, args=ARGS.get(work), deadline_s=deadline_s)
    assert isinstance(reply, Lost)
    assert reply.how is Loss.DEADLINE
    assert not reply.stuck
    assert re.search(rf"while asking NVML: {call}\b", reply.text), reply.text
    return reply.text


@pytest.mark.parametrize(
    ("work", "call"),
    [(MEMORY, "nvmlDeviceGetRemappedRows"), (LINKS, "nvmlDeviceGetNvLinkState")],
)
def test_a_call_that_hangs_costs_its_deadline_and_is_named_with_its_gpu(node, work, call):
    said = hang(node, work, call, deadline_s=1)
    assert node.uuids[0] in said


@pytest.mark.long
@pytest.mark.parametrize(("work", "call"), PAIRS)
def test_every_call_that_hangs_costs_its_deadline_and_is_named(node, work, call):
    hang(node, work, call, deadline_s=2)


def test_the_calls_above_are_all_that_the_product_makes(node):
    node.says(*SCENARIO)
    node.steps.clear()
    for work in CALLS:
        node.answer(work, args=ARGS.get(work))
    asked = {m[1] for step in node.steps if (m := re.match(r"asking NVML: (\w+)", step))}
    assert asked == {call for _, call in PAIRS}


def test_every_error_of_nvml_has_a_meaning_of_its_own():
    codes = [getattr(pynvml, name) for name in dir(pynvml) if name.startswith("NVML_ERROR_")]
    meanings = {code: nvml.meaning(code) for code in codes}
    assert not [code for code, text in meanings.items() if "unknown to this version" in text]
    assert len(set(meanings.values())) == len(codes)
    assert "unknown to this version" in nvml.meaning(12345)
