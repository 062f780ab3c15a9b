"""Texts of each kind that `nodeproof parse` reads: those of the field, and some that they lack."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from fake_dcgmi import FAULTY_MEMORY, PERSISTENCE, refused, styled, v2, v3, v4

HERE = Path(__file__).parent
FIELD = HERE / "field"
KINDS = (
    *("dcgm_json", "dcgm_text", "dcgm_health_text", "fi_info"),
    *("journal_json", "fabricmanager_log", "nccl_tests_text", "nccl_log"),
)

DIAG = """\
Successfully ran diagnostic for group.
+---------------------------+------------------------------------------------+
| Diagnostic                | Result                                         |
+===========================+================================================+
|-----  Metadata  ----------+------------------------------------------------|
| DCGM Version              | 4.2.3                                          |
| Driver Version Detected   | 570.148.08                                     |
| GPU Device IDs Detected   | 2330, 2330                                     |
|-----  Deployment  --------+------------------------------------------------|
| software                  | Pass                                           |
|                           | GPU0: Pass                                     |
|                           | GPU1: Pass                                     |
+-----  Hardware  ----------+------------------------------------------------+
| memory                    | {0:46} |
|                           | GPU0: {1:40} |
|                           | GPU1: {0:40} |
{2}+---------------------------+------------------------------------------------+
"""
DIAG_SOUND = DIAG.format("Pass", "Pass", "")
DIAG_FAILED = DIAG.format(
    "Fail",
    "Pass",
    "| Warning: GPU1             | Found 3 faulty memory elements on GPU 1        |\n",
)
DIAG_OLD = (
    DIAG_SOUND.replace("                           | GPU0: Pass ", "PCIe | Pass - All")
    .replace("|                           | GPU1: Pass", "| Memory | Fail - GPUs: 0, 1")
    .replace("+-----  Hardware  ", "| Info | Allocated 79628 MB |\n+-----  Hardware  ")
)
DIAG_OLD_SOUND = DIAG_OLD.replace("Memory | Fail - GPUs: 0, 1", "Memory | Pass - GPUs: 0, 1")
DIAG_NOTED = DIAG.format("Pass", "Pass", "| Info | Allocated 79628 MB |\n|      | of each GPU |\n")
HEALTH = """\
+---------------------------+----------------------------------------------------------+
| Health Monitor Report                                                                |
+===========================+==========================================================+
| Overall Health            | {}                                                       |
{}+---------------------------+----------------------------------------------------------+
"""
HEALTH_SOUND = HEALTH.format("Healthy", "")
HEALTH_LINKS = HEALTH.format(
    "Failure",
    """\
| GPU                       |                                                          |
| -> 2                      | Failure                                                  |
|    -> Errors              |                                                          |
|       -> NVLINK system    | Failure                                                  |
|                           | GPU 2's NvLink link 3 is currently down Run a field      |
|                           | diagnostic on the GPU., GPU 2's NvLink link              |
|                           | 11 is currently down Run a field diagnostic on the GPU.  |
| NvSwitch                  |                                                          |
| -> 0                      | Warning                                                  |
""",
)
HEALTH_OLD = """\
| Overall Health: Warning                                              |
| GPU ID: 0   | Warning                                                |
|             | PCIe system: Warning - Detected more than 8 PCIe       |
|             | replays per minute for GPU 0: 21                       |
"""
BLOCK = (
    "provider: efa\n    fabric: efa\n    domain: rdmap{0}s27-{1}\n    version: 203.10\n"
    "    type: FI_EP_{2}\n    protocol: FI_PROTO_EFA\n"
)
CARDS = "".join(
    BLOCK.format(79 + n, *of) for n in range(2) for of in (("rdm", "RDM"), ("dgrm", "DGRAM"))
)
LONG_BLOCK = """\
---
fi_info:
    caps: [ FI_MSG, FI_RMA ]
    fi_ep_attr:
        type: FI_EP_RDM
        protocol: FI_PROTO_EFA
    fi_domain_attr:
        name: rdmap70s0-rdm
    fi_fabric_attr:
        name: efa
        prov_name: efa
        prov_version: 200.0
"""
BUILT_IN = "efa:\n    version: 120.0\ntcp;ofi_rxm:\n    version: 120.0\n"
TCP = "provider: tcp\n    fabric: 192.0.2.0/24\n    domain: ens5\n    type: FI_EP_MSG\n    protocol: FI_PROTO_SOCK_TCP\n"
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."
QUIET = "usb 1-1: new high-speed USB device number 2 using xhci_hcd"


def record(message: object, **fields: object) -> str:
    """One record of the kernel as `journalctl -o json` prints it."""
    own = {"_TRANSPORT": "kernel", "PRIORITY": "6", "__MONOTONIC_TIMESTAMP": "11000000"}
    return json.dumps({**own, "MESSAGE": message, **fields}) + "\n"


JOURNAL = [
    record(QUIET) + record(XID) + record("IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready"),
    record(QUIET) + record(list(QUIET.encode()), SYSLOG_FACILITY="0"),
    record(QUIET) + record(None) + record(["two", "values"]) + record(XID, SYSLOG_FACILITY="1"),
    "[" + record(QUIET).strip() + ",\n" + record(XID).strip() + "]\n",
    "{\n" + record(QUIET)[1:].replace(", ", ",\n\t"),
    "data: " + record(QUIET) + "\n\x1e" + record(QUIET, _TRANSPORT="syslog", _PID="1"),
]
MANAGER = """\
[Jan 14 2026 03:12:40] [INFO] [tid 2210] Connected to 1 node.
[Jan 14 2026 03:12:40] [INFO] [tid 2210] Successfully configured all the available NVSwitches
{}[Jan 14 2026 03:12:49] [INFO] [tid 2214] multicast group 0 is freed.
"""
MANAGER_FAULT = (
    "[Jan 14 2026 03:12:45] [ERROR] [tid 2211] detected NVSwitch fatal error 20034 on fid 0 on "
    "NVSwitch pci bus id 00000000:c8:00.0 physical id 11 port 44\n"
)
MANAGER_ENDED = (
    "Jan 14 03:12:45 gpu-node-1 systemd[1]: nvidia-fabricmanager.service: Main process exited, "
    "code=exited, status=1/FAILURE\nJan 14 03:12:45 gpu-node-1 systemd[1]: Failed to start NVIDIA "
    "fabric manager service.\n"
)
MANAGER_JOURNAL = """\
Nov 05 13:55:24 gpu-node-1 systemd[1]: Starting NVIDIA fabric manager service...
Nov 05 13:55:25 gpu-node-1 nv-fabricmanager[2116]: Connected to 1 node.
{}Nov 05 13:55:26 gpu-node-1 nv-fabricmanager[2116]: Successfully configured all the available NVSwitches to route GPU NVLink traffic.
Nov 05 13:55:26 gpu-node-1 systemd[1]: Started NVIDIA fabric manager service.
"""
MANAGER_SWITCH = (
    "Nov 05 13:55:25 gpu-node-1 kernel: nvidia-nvswitch0: SXid (PCI:0000:c5:00.0): 20034, Fatal, "
    "Link 54 LTSSM Fault Up\n"
)
PERF = """\
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 1048576 maxBytes 2147483648 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: {2} graph: 0
# Using devices
#  Rank  0 Group  0 Pid   5110 on     node-a device  0 [0000:53:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   5110 on     node-a device  1 [0000:64:00] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
     1048576        262144     float     sum      -1    31.20   33.61   33.61       0    30.90   33.93   33.93       0
  2147483648     536870912     float     sum      -1   6620.1  324.39  324.39       {0}   6618.4  324.47  324.47       0
# Out of bounds values : {0} {1}
# Avg bus bandwidth    : 179.1
# Collective test concluded: all_reduce_perf
"""
PERF_SOUND = PERF.format(0, "OK", 1)
NCCL = """\
gpu-node-1:100:100 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 32 nics)
gpu-node-1:100:100 [0] NCCL INFO Using network AWS Libfabric
gpu-node-1:100:120 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
gpu-node-1:100:120 [0] NCCL INFO Connected all rings
{}gpu-node-1:100:120 [0] NCCL INFO comm 0x55 rank 0 nranks 2 - Init COMPLETE
"""
NCCL_SOUND = NCCL.format("")
NCCL_FAULT = NCCL.format(
    "gpu-node-1:100:121 [0] misc/ibvwrap.cc:94 NCCL WARN Got async event : port error\n"
    "gpu-node-1:100:121 [0] init.cc:1358 NCCL WARN Cuda failure 'uncorrectable ECC error encountered'\n"
)

OWN: dict[str, list[str]] = {
    "dcgm_json": [
        styled(v4({"software": ["Pass", "Pass"], "memory": ["Pass", "Pass"]})),
        json.dumps(v4({"memory": ["Pass", ("Fail", FAULTY_MEMORY)], "pcie": ["Skip", "Pass"]})),
        json.dumps(v3(deployment={"Inforom": ("Fail", "1", "Persistence mode for GPU 1")})),
        json.dumps(v3(("Pass", "Fail"))),
        json.dumps(v2(("Pass", "Warn"), "GPU 1's NvLink link 3 is currently down")),
        json.dumps(v4({"software": [("Fail", PERSISTENCE), "Pass"], "memory": ["Pass", "Pass"]})),
        styled(refused("Unable to connect to host engine")),
    ],
    "dcgm_text": [DIAG_SOUND, DIAG_OLD_SOUND, DIAG_NOTED, DIAG_FAILED, DIAG_OLD],
    "dcgm_health_text": [HEALTH_SOUND, HEALTH_LINKS, HEALTH_OLD],
    "fi_info": [CARDS, LONG_BLOCK, BUILT_IN, TCP + CARDS, "fi_getinfo: -61 (No data available)\n"],
    "journal_json": JOURNAL,
    "fabricmanager_log": [
        *(MANAGER.format(""), MANAGER.format(MANAGER_FAULT), MANAGER_ENDED),
        *(MANAGER_JOURNAL.format(""), MANAGER_JOURNAL.format(MANAGER_SWITCH)),
    ],
    "nccl_tests_text": [PERF_SOUND, PERF.format(3, "FAILED", 1), PERF.format("N/A", "OK", 0)],
    "nccl_log": [NCCL_SOUND, NCCL_FAULT, NCCL_SOUND + PERF_SOUND],
}
CONTEXTS: dict[str, list[dict[str, object]]] = {
    "dcgm_json": [{}, {"exit_status": 0, "gpus_expected": 2}, {"nvlink_expected": False}],
    "dcgm_text": [{}, {"exit_status": 226, "ecc_expected": True}, {"nvlinks_per_gpu": 18}],
    "dcgm_health_text": [{}, {"nvlink_expected": True}, {"gpu_product": "NVIDIA A100-PCIE-40GB"}],
    "fi_info": [{}, {"efa_expected": True, "efa_nics_expected": 2}, {"ib_expected": True}],
    "journal_json": [{}, {"data_nics": ["eth0"], "node": "gpu-node-1", "test_process": "python3"}],
    "fabricmanager_log": [{}, {"fabric_expected": True, "node": "gpu-node-1"}],
    "nccl_tests_text": [{}, {"ranks_expected": 2, "exit_status": 0}, {"efa_expected": True}],
    "nccl_log": [{}, {"efa_expected": True, "efa_nics_expected": 32}, {"idle": False}],
}


@cache
def texts(kind: str) -> list[bytes]:
    """The field's texts of a kind, with their bytes, and those above."""
    listed = json.loads((FIELD / "expected.json").read_text("utf-8"))
    field = [(FIELD / of["file"]).read_bytes() for of in listed if of["kind"] == kind]
    return field + [text.encode() for text in OWN[kind]]
