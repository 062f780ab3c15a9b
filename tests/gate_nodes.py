"""Nodes and Jobs for tables of `plan`: one call builds one, with what differs said by name."""

from __future__ import annotations

import dataclasses
from typing import Any

from gate_cluster import GPU, IMAGE, NAMES, PENDING, SPEC

from nodeproof.gate.attempt import Job, Pod
from nodeproof.gate.node import Node, node_of
from nodeproof.gate.proof import Judged, Ruling
from nodeproof.gate.writes import stamp
from nodeproof.verdict import Decision

NOW = 1_800_000_000.0
UID, BOOT = "uid-a", "boot-1"
QUARANTINED = {"key": NAMES.quarantined, "value": "true", "effect": "NoSchedule"}
PASSED = "9 checks passed, 10 detectors proved, gate"
GPUS = "sha256:" + "9" * 64


def raw_node(
    *,
    taints: list[dict[str, Any]] | None = None,
    said: tuple[str, str, str] | None = None,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    allocatable: str | None = "2",
    capacity: str | None = "2",
    ready: str = "True",
    ready_s: float = 3600.0,
    boot: str = BOOT,
    created: float = NOW - 3600,
    told_s: float = 0.0,
    **metadata: Any,
) -> dict[str, Any]:
    """A node as the API gives it; pending unless `taints` say otherwise, `said` is our condition."""
    conditions = [
        {"type": "Ready", "status": ready, "lastTransitionTime": stamp(NOW - ready_s)},
        {"type": "MemoryPressure", "status": "False"},
    ]
    if said:
        status, reason, message = said
        row = {"type": NAMES.accepted, "status": status, "reason": reason, "message": message}
        told = stamp(NOW - told_s)
        conditions.append({**row, "lastHeartbeatTime": told, "lastTransitionTime": told})
    return {
        "metadata": {
            "name": "gpu-a",
            "uid": UID,
            "resourceVersion": "7",
            "creationTimestamp": stamp(created),
            "labels": {
                "nvidia.com/gpu.present": "true",
                "node.kubernetes.io/instance-type": "p5.48xlarge",
                **(labels or {}),
            },
            "annotations": annotations,
            **metadata,
        },
        "spec": {"taints": [GPU, PENDING] if taints is None else taints},
        "status": {
            "nodeInfo": {"bootID": boot},
            "capacity": {"nvidia.com/gpu": capacity} if capacity else {},
            "allocatable": {"nvidia.com/gpu": allocatable} if allocatable else {},
            "conditions": conditions,
        },
    }


def node(**differs: Any) -> Node:
    return node_of(raw_node(**differs), NAMES)


def accepted(**differs: Any) -> Node:
    """A node that was accepted for this boot, and serves."""
    notes = {NAMES.accepted_boot: BOOT, NAMES.accepted_devices: GPUS}
    return node(
        **{
            "taints": [GPU],
            "said": ("True", "AllChecksPassed", f"boot {BOOT}; {PASSED}"),
            **differs,
            "annotations": {**notes, **differs.get("annotations", {})},
        }
    )


def job(**differs: Any) -> Job:
    """A Job that runs."""
    made = Job(
        name=f"np-{differs.get('trigger', 'new')}-{differs.get('attempt', 1)}",
        uid="job-uid",
        node_uid=UID,
        boot_id=BOOT,
        trigger="new",
        attempt=1,
        nonce="n0nce",
        image=IMAGE,
        profile="gate",
        spec_digest=SPEC.digest,
        devices=2,
        created=NOW - 100,
        ended=None,
        complete=False,
        failure="",
        deleting=False,
    )
    return dataclasses.replace(made, **differs)


def pod(**differs: Any) -> Pod:
    """A pod whose container has ended."""
    made = Pod(
        name="np-new-1-x",
        uid="pod-uid",
        node="gpu-a",
        phase="Succeeded",
        reason="",
        exit_code=0,
        message="{}",
        image="",
        image_id="",
        waiting="",
        deleting=False,
    )
    return dataclasses.replace(made, **differs)


def over(**differs: Any) -> Job:
    """A Job that has ended, ten seconds ago, with its pod."""
    return job(**{"ended": NOW - 10, "pods": (pod(),), **differs})


def ruled(decision: Decision, ruling: Ruling | None = None, **differs: Any) -> Judged:
    """What an attempt came to."""
    usual = {
        Decision.ACCEPT: Ruling.ACCEPTED,
        Decision.REJECT: Ruling.CONDEMNED,
        Decision.UNDECIDED: Ruling.UNDECIDED,
    }
    text = PASSED if decision is Decision.ACCEPT else "device.memory.pattern on gpu1: 4 words"
    made = Judged(decision=decision, ruling=ruling or usual[decision], text=text, devices=GPUS)
    return dataclasses.replace(made, **differs)
