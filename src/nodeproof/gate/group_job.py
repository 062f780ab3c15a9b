"""The Job of a group: one pod a node, all of them `nodeproof fabric run`, without a token of the API.

An Indexed Job: the pod of index 0 is the head, wherever it is scheduled. Which index a node gets is
the scheduler's; that each node gets one is held by its name and by anti-affinity.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from nodeproof.gate import job
from nodeproof.gate.actions import Measure
from nodeproof.gate.attempt import CONTAINER
from nodeproof.gate.group import LABEL, MEMBERS
from nodeproof.gate.settings import Settings
from nodeproof.spec import Spec

_HEAD_PORT = 29400
_JOIN_S, _COLLECTIVE_S = 300, 60
_MEMORY = "64Gi"  # /dev/shm, NCCL's buffers and a process for each GPU


def name_of(measure: Measure) -> str:
    """Name the Job after who takes part, with what proof: a second controller gets a conflict."""
    rows = sorted(f"{m.uid}\n{m.boot_id}\n{m.proof}" for m in measure.members)
    return f"npg-{hashlib.sha256(chr(10).join(rows).encode()).hexdigest()[:24]}-{measure.attempt}"


def build(measure: Measure, settings: Settings, spec: Spec, *, nonce: str) -> dict[str, Any]:
    """The Job as the API takes it (batch/v1, Kubernetes 1.33 or newer for all of its fields)."""
    names, group = settings.names, settings.of_groups()
    name, nodes = name_of(measure), len(measure.members)
    labels = {"app.kubernetes.io/name": LABEL, names.label("group"): name}
    told = {
        "attempt": str(measure.attempt),
        "nonce": nonce,
        "image": settings.image,
        "profile": group.profile.value,
        "spec-digest": spec.digest,
        "devices": str(measure.devices),
        MEMBERS: json.dumps([dataclasses.asdict(m) for m in measure.members]),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": names.namespace,
            "labels": labels,
            "annotations": {names.label(key): value for key, value in told.items()},
        },
        "spec": {
            "completionMode": "Indexed",
            "completions": nodes,
            "parallelism": nodes,
            # One that dies ends alone: the head has to live on to name it.
            "backoffLimitPerIndex": 0,
            "activeDeadlineSeconds": int(group.run_deadline_s + settings.job_margin_s),
            "ttlSecondsAfterFinished": job.KEPT_S,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": job.failures("FailIndex")},
            "template": {
                "metadata": {"labels": labels},
                "spec": _pod(measure, settings, name, labels, nonce),
            },
        },
    }


def _pod(
    measure: Measure, settings: Settings, name: str, labels: dict[str, str], nonce: str
) -> dict[str, Any]:
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
    pins = [job.pin(member.node) for member in measure.members]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    return {
        **job.frame(settings),
        "subdomain": LABEL,  # the headless Service: <job>-<index>.<subdomain>
        "affinity": {
            "nodeAffinity": {required: {"nodeSelectorTerms": pins}},
            "podAntiAffinity": {required: [apart]},
        },
        "containers": [_container(measure, settings, name, nonce)],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": job.SHM}},
            {"name": "results", "emptyDir": {}},
        ],
    }


def _container(measure: Measure, settings: Settings, name: str, nonce: str) -> dict[str, Any]:
    words = [
        *("fabric", "run", "--nodes", str(len(measure.members))),
        *("--head", f"{name}-0.{LABEL}:{_HEAD_PORT}", "--node-name", "$(NODEPROOF_NODE_NAME)"),
        *("--device", "cuda", "--nonce", nonce, "--max-bytes", settings.group_bytes),
        *("--join-timeout", str(_JOIN_S), "--timeout", str(_COLLECTIVE_S)),
        *("--deadline", str(int(settings.group_deadline_s)), "--output", "/results/run"),
        *("--dispatch", "/dev/termination-log"),
    ]
    if settings.spec:
        words += ["--spec", settings.spec]
    given = {
        settings.resource: str(measure.devices),
        "memory": _MEMORY,
        **settings.group_resources,
    }
    # Whoever meets the head says it. Not the nonce itself, which is told to all in the verdict.
    token = hashlib.sha256(f"token {nonce}".encode()).hexdigest()
    return {
        "name": CONTAINER,
        "image": settings.image,
        "command": ["nodeproof"],
        "args": words,
        "env": [
            {
                "name": "NODEPROOF_NODE_NAME",
                "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}},
            },
            {"name": "NODEPROOF_FABRIC_TOKEN", "value": token},
        ],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "resources": {"limits": given, "requests": {"cpu": "4", **given}},
        "securityContext": job.SECURITY,
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108  the pod's own
            {"name": "results", "mountPath": "/results"},
        ],
    }
