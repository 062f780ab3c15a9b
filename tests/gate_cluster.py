"""A small cluster for the gate: nodes, and a kubelet that plays Jobs out as they are told to end."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from typing import Any

from results_samples import MANIFEST, Run, accept, reject, undecided

from nodeproof.gate import dispatch
from nodeproof.gate.attempt import CONTAINER
from nodeproof.gate.names import Names
from nodeproof.gate.settings import Settings
from nodeproof.manifest import suite_digest
from nodeproof.model import Profile
from nodeproof.results import parse
from nodeproof.spec import NO_SPEC
from nodeproof.verdict import decide
from tests.apiserver.store import NODES, Store

NAMES = Names()
DIGEST = "sha256:" + "1f" * 32
IMAGE = f"registry.example.com/nodeproof@{DIGEST}"
SETTINGS = Settings(image=IMAGE, expected={"p5.48xlarge": 2}, installed_at=1.0, job_margin_s=120.0)
PENDING = {"key": NAMES.pending, "value": "true", "effect": "NoSchedule"}
GPU = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
JOBS = f"/apis/batch/v1/namespaces/{NAMES.namespace}/jobs"
PODS = f"/api/v1/namespaces/{NAMES.namespace}/pods"

_boots = itertools.count(1)


def boot() -> str:
    return f"{next(_boots):08d}-7b0f-4b52-9d7e-0c2f1f1d9a11"


def put_node(store: Store, name: str, **more: Any) -> dict[str, Any]:
    """Register a node as a kubelet and a cloud do: Ready, two GPUs, held by the startup taint."""
    node: dict[str, Any] = {
        "metadata": {
            "name": name,
            "labels": {
                "nvidia.com/gpu.present": "true",
                "node.kubernetes.io/instance-type": "p5.48xlarge",
            },
            "annotations": {"volumes.example.com/attached": "true"},
        },
        "spec": {"taints": [GPU, PENDING]},
        "status": {
            "nodeInfo": {"bootID": boot()},
            "capacity": {"nvidia.com/gpu": "2"},
            "allocatable": {"nvidia.com/gpu": "2"},
            "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": store.stamp()}
            ],
        },
    }
    for part, changes in more.items():
        node[part].update(changes)
    return store.create(NODES, node)


def told(job: dict[str, Any], what: str) -> str:
    return job["metadata"]["annotations"][NAMES.label(what)]


def results_of(job: dict[str, Any], node: dict[str, Any], run: Run | None = None) -> bytes:
    """The results that the suites leave of this Job on this node."""
    whole = run or accept()
    assert whole.plan is not None
    boot_id = node["status"]["nodeInfo"]["bootID"]
    about = {**whole.plan.node, "name": node["metadata"]["name"], "uid": node["metadata"]["uid"]}
    name = node["metadata"]["name"]

    def renamed(device):
        named = device.kind.value in {"node", "host"}
        return dataclasses.replace(device, id=name, label=name) if named else device

    def rekeyed(key):
        return dataclasses.replace(key, device=name) if key.device == "node-a17" else key

    plan = dataclasses.replace(
        whole.plan,
        nonce=told(job, "nonce"),
        node={**about, "boot_id": boot_id},
        profile=Profile(told(job, "profile")),
        spec={**whole.plan.spec, "digest": told(job, "spec-digest")},
        suite_digest=suite_digest(),
        devices=tuple(map(renamed, whole.plan.devices)),
        checks=tuple(dataclasses.replace(c, key=rekeyed(c.key)) for c in whole.plan.checks),
        selftests=tuple(map(rekeyed, whole.plan.selftests)),
    )
    findings = tuple(dataclasses.replace(f, device=renamed(f.device)) for f in whole.findings)
    tests = tuple(dataclasses.replace(t, device=renamed(t.device)) for t in whole.selftests)
    end = dataclasses.replace(whole.end, boot_id=boot_id) if whole.end else None
    return whole.but(plan=plan, findings=findings, selftests=tests, end=end).data()


class Kubelet:
    """Starts the pods of Jobs, and ends them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.full: set[str] = set()  # nodes on which the scheduler finds no room for a group's pod

    def start(self) -> list[dict[str, Any]]:
        """Make the pods of every Job that has none; return the pods that were made."""
        owned = {
            o["uid"]
            for p in self.store.objects("pods")
            for o in p["metadata"].get("ownerReferences") or []
        }
        made = []
        for job in self.store.objects("jobs"):
            if job["metadata"]["uid"] in owned or ended(job):
                continue
            if job["spec"].get("completionMode") == "Indexed":
                made += [self._create(job, *of) for of in self._indexed(job)]
            elif (node := self._node(job)) is not None:
                made.append(self._create(job, "pod", node["metadata"]["name"]))
        return made

    def _indexed(self, job: dict[str, Any]) -> list[tuple[str, str]]:
        """The index of each pod and its node: which one gets which is the scheduler's to say."""
        pod = job["spec"]["template"]["spec"]
        terms = next(iter(pod["affinity"]["nodeAffinity"].values()))["nodeSelectorTerms"]
        named = [value for t in terms for field in t["matchFields"] for value in field["values"]]
        there = [n["metadata"]["name"] for n in self.store.objects("nodes")]
        free = [n for n in reversed(named) if n in there and n not in self.full]
        free += [""] * (job["spec"]["completions"] - len(free))
        return [(str(index), node) for index, node in enumerate(free)]

    def _create(self, job: dict[str, Any], suffix: str, node: str) -> dict[str, Any]:
        template = job["spec"]["template"]
        index = {"batch.kubernetes.io/job-completion-index": suffix} if suffix != "pod" else {}
        waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        waits["message"] = "0/3 nodes are available: 1 Insufficient nvidia.com/gpu"
        pod = {
            "metadata": {
                "name": f"{job['metadata']['name']}-{suffix}",
                "labels": {**template["metadata"]["labels"], **index},
                **({"annotations": index} if index else {}),
                "ownerReferences": [
                    {
                        "apiVersion": "batch/v1",
                        "kind": "Job",
                        "name": job["metadata"]["name"],
                        "uid": job["metadata"]["uid"],
                    }
                ],
            },
            "spec": {**template["spec"], **({"nodeName": node} if node else {})},
            "status": {"phase": "Running"} if node else {"phase": "Pending", "conditions": [waits]},
        }
        return self.store.create(PODS, pod)

    def finish(
        self,
        job: dict[str, Any],
        run: Run | None = None,
        *,
        code: int | None = None,
        message: str | None = None,
        log: str | None = None,
        image: str = DIGEST,
        **pod: Any,
    ) -> None:
        """End a Job with what a run leaves, or with what is said instead."""
        node = self._node(job)
        assert node is not None
        data = results_of(job, node, run)
        verdict = decide(parse(data), MANIFEST)
        name = f"{job['metadata']['name']}-pod"
        said = dispatch.message(verdict.document(), data) if message is None else message
        self.store.logs[name] = "\n".join(dispatch.packed(data)) if log is None else log
        exit_code = verdict.decision.exit_code if code is None else code
        self.end_pod(name, exit_code, said, image=image, **pod)
        self.end_job(job, failed=exit_code != 0)

    def end_pod(
        self, name: str, code: int, message: str, *, image: str = DIGEST, **pod: Any
    ) -> None:
        """End the container of one pod."""

        def end(found: dict[str, Any]) -> None:
            found["status"] = {
                "phase": "Failed" if code else "Succeeded",
                "containerStatuses": [
                    {
                        "name": CONTAINER,
                        "imageID": f"registry.example.com/nodeproof@{image}",
                        "state": {"terminated": {"exitCode": code, "message": message}},
                    }
                ],
                **pod,
            }

        self.store.change(f"{PODS}/{name}", end)

    def end_job(self, job: dict[str, Any], *, failed: bool, reason: str = "") -> None:
        """Let the Job's controller see the end."""

        def over(found: dict[str, Any]) -> None:
            at = max(self.store.stamp(), found["metadata"]["creationTimestamp"])
            # Newer servers take an end only with the condition that comes before it, and times.
            kinds = ("FailureTarget", "Failed") if failed else ("SuccessCriteriaMet", "Complete")
            found["status"] = {
                "startTime": found["metadata"]["creationTimestamp"],
                **({"failed": 1} if failed else {"succeeded": 1, "completionTime": at}),
                "conditions": [
                    {"type": kind, "status": "True", "reason": reason, "lastTransitionTime": at}
                    for kind in kinds
                ],
            }

        self.store.change(f"{JOBS}/{job['metadata']['name']}", over)

    def _node(self, job: dict[str, Any]) -> dict[str, Any] | None:
        uid = told(job, "node-uid")
        return next((n for n in self.store.objects("nodes") if n["metadata"]["uid"] == uid), None)


def ended(job: dict[str, Any]) -> bool:
    return bool((job.get("status") or {}).get("conditions"))


def keys(node: dict[str, Any]) -> set[str]:
    return {t["key"] for t in (node["spec"].get("taints") or [])}


def condition(node: dict[str, Any]) -> dict[str, Any] | None:
    rows = node["status"].get("conditions") or []
    return next((c for c in rows if c["type"] == NAMES.accepted), None)


def evidence(change: Callable[[dict[str, Any]], None], message: str) -> str:
    """A message with something else in it."""
    said = json.loads(message)
    change(said)
    return json.dumps(said)


SPEC = NO_SPEC
rejected = reject
__all__ = ["MANIFEST", "rejected", "undecided"]
