"""The Job that tests one node: pinned, bounded by nested deadlines, without a token of the API."""

from __future__ import annotations

import hashlib
from typing import Any

from nodeproof.gate.actions import Test
from nodeproof.gate.attempt import CONTAINER
from nodeproof.gate.names import EFFECT
from nodeproof.gate.node import Node
from nodeproof.gate.settings import Settings
from nodeproof.spec import Spec

KEPT_S = 24 * 3600  # an ended Job stays this long, for people; its verdict is on the node
SHM = "16Gi"


def name_of(node: Node, test: Test) -> str:
    """Name a Job after what it is for: a second controller gets a conflict, not a second test."""
    occasion = f"{node.uid}\n{node.boot_id}\n{test.trigger}"
    return f"np-{hashlib.sha256(occasion.encode()).hexdigest()[:24]}-{test.attempt}"


def build(node: Node, test: Test, settings: Settings, spec: Spec, *, nonce: str) -> dict[str, Any]:
    """The Job as the API takes it (batch/v1, Kubernetes 1.31 or newer for all of its fields).

    The test pod requests the GPUs that the node can give, and is told apart from that how many it
    has to have: so a node with seven of eight is examined and named instead of pending for ever.
    """
    names = settings.names
    told = {
        "node-uid": node.uid,
        "boot-id": node.boot_id,
        "trigger": test.trigger,
        "attempt": str(test.attempt),
        "nonce": nonce,
        "image": settings.image,
        "profile": settings.profile.value,
        "spec-digest": spec.digest,
        "devices": str(test.devices),
    }
    run_s = int(settings.run_deadline_s)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name_of(node, test),
            "namespace": names.namespace,
            "labels": {names.label("node-uid"): node.uid, "app.kubernetes.io/name": "nodeproof"},
            "annotations": {names.label(key): value for key, value in told.items()},
            # It goes with its node: a node of the same name is another node.
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
            ],
        },
        "spec": {
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": 0,
            "activeDeadlineSeconds": run_s + int(settings.job_margin_s),
            "ttlSecondsAfterFinished": KEPT_S,
            "podReplacementPolicy": "Failed",  # never two pods on one set of GPUs
            "podFailurePolicy": {"rules": failures("FailJob")},
            "template": {
                "metadata": {"labels": {"app.kubernetes.io/name": "nodeproof"}},
                "spec": _pod(node, test, settings, nonce),
            },
        },
    }


def failures(action: str) -> list[dict[str, Any]]:
    """Rules for pods that fail: another try is the controller's to start, so nothing is tried twice."""
    return [
        {"action": action, "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {
            "action": action,
            "onExitCodes": {"containerName": CONTAINER, "operator": "NotIn", "values": [0]},
        },
    ]


def _pod(node: Node, test: Test, settings: Settings, nonce: str) -> dict[str, Any]:
    words = [
        *("run", "--device", "cuda", "--profile", settings.profile.value),
        *("--expect-gpus", str(test.devices), "--nonce", nonce),
        *("--node-name", node.name, "--node-uid", node.uid),
        *("--deadline", str(int(settings.run_deadline_s)), "--host-root", "/host"),
        *("--output", "/results/run", "--dispatch", "/dev/termination-log"),
    ]
    if settings.spec:
        words += ["--spec", settings.spec]
    terms = {"nodeSelectorTerms": [pin(node.name)]}
    return {
        **frame(settings),
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        "containers": [_container(test, settings, words)],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": SHM}},
            {"name": "results", "emptyDir": {}},
            *(
                {"name": name, "hostPath": {"path": path, "type": "Directory"}}
                for name, path in _HOST.items()
            ),
        ],
    }


def frame(settings: Settings) -> dict[str, Any]:
    """What every pod of the gate has in common: tried once, no token, past the gate's own taints."""
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **({"runtimeClassName": settings.runtime_class} if settings.runtime_class else {}),
        **({"priorityClassName": settings.priority_class} if settings.priority_class else {}),
        "terminationGracePeriodSeconds": 30,
        "tolerations": _tolerations(settings),
    }


SECURITY = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": False,  # libraries write caches beside themselves
    "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK", "SYSLOG"]},
}
_HOST = {"host-proc": "/proc", "host-sys": "/sys", "host-log": "/var/log"}


def _container(test: Test, settings: Settings, words: list[str]) -> dict[str, Any]:
    gpus = {settings.resource: str(test.requested)} if test.requested else {}
    return {
        "name": CONTAINER,
        "image": settings.image,
        "command": ["nodeproof"],
        "args": words,
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "resources": {"limits": gpus, "requests": {"cpu": "2", "memory": "16Gi", **gpus}},
        "securityContext": SECURITY,
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108  the pod's own
            {"name": "results", "mountPath": "/results"},
            *(
                {"name": name, "mountPath": f"/host{path}", "readOnly": True}
                for name, path in _HOST.items()
            ),
        ],
    }


def pin(node: str) -> dict[str, Any]:
    """One node, through the scheduler, which then keeps account of what the pod takes."""
    return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}


def _tolerations(settings: Settings) -> list[dict[str, Any]]:
    names = settings.names
    ours = [names.pending, names.quarantined, settings.resource, "node.kubernetes.io/unschedulable"]
    passed = {**settings.tolerate, **dict.fromkeys(ours, EFFECT)}
    return [{"key": k, "operator": "Exists", "effect": effect} for k, effect in passed.items()]
