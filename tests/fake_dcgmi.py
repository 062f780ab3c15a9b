"""A `dcgmi` on the PATH, and what the real one prints: DCGM, dcgmi/Diag.cpp of 2, 3 and 4."""

from __future__ import annotations

import json
from pathlib import Path

from nodeproof.worker import Context

UUIDS = [f"GPU-11111111-2222-3333-4444-55555555000{n}" for n in range(8)]
WARNING = {"warning": "", "error_id": 0, "error_category": 16, "error_severity": 4}
PERSISTENCE = {
    **WARNING,
    "warning": "Persistence mode for GPU 1 is disabled. Enable persistence mode.",
    "error_id": 29,
    "error_category": 8,
}
FAULTY_MEMORY = {
    **WARNING,
    "warning": "Found 3 faulty memory elements on GPU 1",
    "error_id": 52,
    "error_category": 10,
}
DEPLOYMENT = (
    "Denylist",
    "NVML Library",
    "Persistence Mode",
    "Page Retirement/Row Remap",
    "Inforom",
)


def v4(tests, *, gpus=2, version="4.2.3"):
    """`tests`: name to the status of each GPU, or to (status, warning)."""
    rows = []
    for name, statuses in tests.items():
        results = []
        for gpu, status in enumerate(statuses):
            word, *warnings = [status] if isinstance(status, str) else status
            entity = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu}
            results.append(entity | {"status": word} | ({"warnings": warnings} if warnings else {}))
        worst = next((r["status"] for r in results if r["status"] != "Pass"), "Pass")
        rows.append({"name": name, "results": results, "test_summary": {"status": worst}})
    entities = [{"entity_id": n, "serial_num": f"165{n}", "device_id": "2330"} for n in range(gpus)]
    categories = [
        {"category": "Deployment", "tests": [r for r in rows if r["name"] == "software"]},
        {"category": "Hardware", "tests": [r for r in rows if r["name"] != "software"]},
    ]
    return {
        "DCGM Diagnostic": {"test_categories": [c for c in categories if c["tests"]]},
        "entity_groups": [{"entity_group": "GPU", "entity_group_id": 1, "entities": entities}],
        "metadata": {"version": version, "Driver Version Detected": "570.148.08"},
    }


def v3(memory=("Pass", "Pass"), deployment=(), *, version="3.3.9"):
    """`deployment`: name to (status, gpu, message) where one isn't a pass."""
    told = dict(deployment)
    rows = []
    for name in DEPLOYMENT:
        status, gpu, message = told.get(name, ("Pass", None, ""))
        result = {"status": status}
        if message:
            result |= {"gpu_id": gpu, "warnings": [{"warnings": message, "error_id": 29}]}
        rows += [{"name": name, "results": [result]}, None]
    hardware = [{"gpu_id": str(n), "status": s, "info": "x"} for n, s in enumerate(memory)]
    return {
        "DCGM Diagnostic": {
            "test_categories": [
                {"category": "Deployment", "tests": rows},
                {"category": "Hardware", "tests": [{"name": "GPU Memory", "results": hardware}]},
            ]
        },
        "Driver Version Detected": "535.129.03",
        "GPU Device IDs": ["2330"] * len(memory),
        "version": version,
    }


def v2(memory=("Pass", "Pass"), warning=""):
    hardware = [{"gpu_ids": str(n), "status": s} for n, s in enumerate(memory)]
    if warning:
        hardware[-1]["warnings"] = warning
    rows = [{"name": name, "results": [{"status": "Pass"}]} for name in DEPLOYMENT]
    return {
        "DCGM GPU Diagnostic": {
            "test_categories": [
                {"category": "Deployment", "tests": rows},
                {"category": "Hardware", "tests": [{"name": "GPU Memory", "results": hardware}]},
            ]
        }
    }


def refused(message, *, version="4.2.3"):
    return {"DCGM Diagnostic": {"runtime_error": message, "version": version}}


def styled(document):
    """As jsoncpp writes it."""
    return json.dumps(document, indent=3, sort_keys=True) + "\n"


def discovery(count=2):
    rows = []
    for n in range(count):
        rows += [
            f"| {n}      | Name: NVIDIA H100 80GB HBM3                                          |",
            f"|        | PCI Bus ID: 00000000:{0x1B + n:02X}:00.0                                         |",
            f"|        | Device UUID: {UUIDS[n]}                |",
            "+--------+----------------------------------------------------------------------+",
        ]
    head = "| GPU ID | Device Information                                                   |"
    switches = "0 NvSwitches found.\n| Switch ID |\n| 0         |\n"
    return "\n".join([f"{count} GPUs found.", head, *rows, switches])


class Dcgmi:
    """The folder of a fake command, and the work done where it is on the PATH."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder = folder
        self.root = root
        self.asked = folder / "asked"

    def script(self, body: str) -> None:
        command = self.folder / "dcgmi"
        command.write_text(f'#!/bin/sh\ncd {self.folder}\necho "$@" >>asked\n{body}\n')
        command.chmod(0o755)

    def says(self, text: str, *, status=0, errors="", gpus=2) -> None:
        (self.folder / "text").write_text(text)
        (self.folder / "errors").write_text(errors)
        (self.folder / "table").write_text(discovery(gpus))
        self.script(
            'if [ "$1" = discovery ]; then cat table; exit 0; fi\n'
            f"cat text; cat errors >&2; exit {status}"
        )

    def context(self, profile="quick") -> Context:
        return Context(
            device_kind="node",
            device_id="node",
            device_label="node",
            torch_device="",
            threads=1,
            peers=1,
            profile=profile,
            seed=7,
            host_root=self.root,
        )
