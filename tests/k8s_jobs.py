"""Writes k8s/jobs: the Jobs that the controller builds, for people to read, and the standalone form.

`python tests/k8s_jobs.py` writes them; a test holds them to what the code builds.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import yaml
from k8s_tree import K8S

from nodeproof.gate import group_job
from nodeproof.gate.actions import Measure, Place, Test
from nodeproof.gate.job import build
from nodeproof.gate.names import Names
from nodeproof.gate.node import node_of
from nodeproof.gate.settings import Settings
from nodeproof.spec import NO_SPEC

IMAGE = "registry.example.com/nodeproof@sha256:" + "0" * 64
SETTINGS = Settings(image=IMAGE)
NONCE = "5f0c8a1be0d3472f9a6d1c2e7b884d10"
NODE = {
    "metadata": {"name": "gpu-a17", "uid": "8c6f2a1e-4c1d-4a0b-9a53-0f2d7f1f9a11"},
    "status": {"nodeInfo": {"bootID": "1d4f6f0e-7b0f-4b52-9d7e-0c2f1f1d9a11"}},
}
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"  # where the client looks for it

Object = dict[str, Any]


def _built(trigger: str, *, devices: int, requested: int) -> Object:
    return built_with(SETTINGS, trigger, devices=devices, requested=requested)


def built_with(
    settings: Settings, trigger: str = "new", *, devices: int = 8, requested: int = 8
) -> Object:
    test = Test(trigger=trigger, attempt=1, devices=devices, requested=requested)
    return build(node_of(NODE, settings.names), test, settings, NO_SPEC, nonce=NONCE)


def group() -> Object:
    """Four nodes that passed alone, measured together over EFA."""
    settings = dataclasses.replace(
        SETTINGS,
        spec="p5",
        group_resources={"vpc.amazonaws.com/efa": "32", "hugepages-2Mi": "5120Mi"},
    )
    members = tuple(
        Place(
            node=f"gpu-a1{number}",
            uid=f"8c6f2a1e-4c1d-4a0b-9a53-0f2d7f1f9a1{number}",
            boot_id=f"1d4f6f0e-7b0f-4b52-9d7e-0c2f1f1d9a1{number}",
            proof=f"np-{number}c52f1f93a8b7d046e1f0a95-1",
        )
        for number in range(4)
    )
    measure = Measure(members=members, attempt=1, devices=8)
    return group_job.build(measure, settings, NO_SPEC, nonce=NONCE)


def standalone() -> Object:
    """Suites in an init container without a token, the gate beside no device with one."""
    node = {
        "metadata": {"name": "NODE_NAME", "uid": "NODE_UID"},
        "status": {"nodeInfo": {"bootID": "unused"}},
    }
    test = Test(trigger="new", attempt=1, devices=8, requested=8)
    job = copy.deepcopy(build(node_of(node, Names()), test, SETTINGS, NO_SPEC, nonce=""))
    labels = {"app.kubernetes.io/name": "nodeproof-standalone"}
    job["metadata"] = {
        "generateName": "nodeproof-",
        "namespace": job["metadata"]["namespace"],
        "labels": labels,
        "ownerReferences": job["metadata"]["ownerReferences"],
    }
    spec = job["spec"]
    # No rule by exit status: that of the gate is the verdict, and nobody tries again.
    spec["podFailurePolicy"]["rules"] = spec["podFailurePolicy"]["rules"][:1]
    spec["template"]["metadata"] = {"labels": labels}
    pod = spec["template"]["spec"]
    [suites] = pod.pop("containers")
    words = suites["args"]
    for option in ("--nonce", "--dispatch"):  # for whoever judges elsewhere
        at = words.index(option)
        del words[at : at + 2]
    suites["name"] = "suites"
    # Its exit status decides nothing, but one other than 0 would keep the gate from being asked.
    suites["command"] = ["sh", "-c", 'nodeproof "$@" || true', "nodeproof"]
    pod["initContainers"] = [suites]
    pod["serviceAccountName"] = "nodeproof-standalone"
    pod["containers"] = [_gate()]
    pod["volumes"].append(_token())
    return job


def _gate() -> Object:
    return {
        "name": "gate",
        "image": IMAGE,
        "command": ["nodeproof"],
        "args": ["gate", "/results/run/results.jsonl", "--node-name", "$(THIS_NODE)"],
        "env": [{"name": "THIS_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [
            {"name": "results", "mountPath": "/results", "readOnly": True},
            {"name": "token", "mountPath": TOKEN, "readOnly": True},
        ],
    }


def _token() -> Object:
    """As the kubelet would mount it, but into one container, and for ten minutes."""
    certificate = {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    return {
        "name": "token",
        "projected": {
            "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}},
                {"configMap": certificate},
            ]
        },
    }


def with_claim() -> tuple[Object, Object]:
    """The same by dynamic resource allocation: every GPU of the node, those with device taints too."""
    job = standalone()
    device = {
        "deviceClassName": "gpu.nvidia.com",
        "allocationMode": "All",
        "tolerations": [{"operator": "Exists"}],
    }
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "nodeproof-all-gpus", "namespace": "nodeproof-system"},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpus", "exactly": device}]}}},
    }
    pod = job["spec"]["template"]["spec"]
    pod["resourceClaims"] = [
        {"name": "gpus", "resourceClaimTemplateName": template["metadata"]["name"]}
    ]
    resources = pod["initContainers"][0]["resources"]
    for part in ("limits", "requests"):
        resources[part].pop(SETTINGS.resource)
    resources["claims"] = [{"name": "gpus"}]
    return template, job


def files() -> dict[str, str]:
    """Every file of k8s/jobs that is made here, by its path below k8s/."""
    read = "The controller builds it; this is for reading."
    make = "Made for each node: README.md says how to fill in NODE_NAME and NODE_UID."
    return {
        "jobs/node-acceptance.yaml": _text(
            f"The test of a new node with eight GPUs. {read}",
            _built("new", devices=8, requested=8),
        ),
        "jobs/seven-of-eight.yaml": _text(
            f"A node that offers seven of its eight GPUs: examined, and the missing one named. {read}",
            _built("new", devices=8, requested=7),
        ),
        "jobs/requalification.yaml": _text(
            f"The test that `nodeproof requalify NODE --word ticket-4711` asks for. {read}",
            _built("requalify-ticket-4711", devices=8, requested=8),
        ),
        "jobs/diagnostic.yaml": _text(
            f"A node that offers no GPU: it asks for none and reads the evidence. {read}",
            _built("new", devices=8, requested=0),
        ),
        "jobs/group.yaml": _text(
            f"Four nodes that passed alone, measured together. {read}", group()
        ),
        "jobs/standalone/job.yaml": _text(
            f"The test of one node without a controller. {make}", standalone()
        ),
        "jobs/standalone/job-dra.yaml": _text(
            f"The same by dynamic resource allocation (Kubernetes 1.34 or newer). {make}",
            *with_claim(),
        ),
    }


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  the base's signature
        """Write everything out: people read it."""
        return True


def _text(about: str, *objects: Object) -> str:
    dumped = [yaml.dump(o, Dumper=_Dumper, sort_keys=False, width=1000) for o in objects]
    return f"# {about}\n# Made by tests/k8s_jobs.py.\n" + "---\n".join(dumped)


if __name__ == "__main__":
    for name, text in files().items():
        (K8S / name).write_text(text)
        print(f"wrote k8s/{name}")
