"""One attempt that is over, sound in every part until a test changes one."""

from __future__ import annotations

import json
from typing import Any

from gate_cluster import DIGEST, IMAGE, MANIFEST, NAMES, SETTINGS, SPEC, results_of
from gate_evidence import evidence

from nodeproof.gate import dispatch, proof
from nodeproof.gate.attempt import CONTAINER, job_of
from nodeproof.gate.node import node_of
from nodeproof.gate.proof import Judged
from nodeproof.gate.settings import Settings
from nodeproof.manifest import Manifest
from nodeproof.results import parse
from nodeproof.spec import Spec
from nodeproof.verdict import decide

UID = "5e1f0c1a-0000-4000-8000-00000000000a"
BOOT = "0b007000-7b0f-4b52-9d7e-0c2f1f1d9a11"
OTHER = "0b007001-7b0f-4b52-9d7e-0c2f1f1d9a11"


class Attempt:
    """One attempt that is over, with everything that is judged about it, as the API gives it."""

    def __init__(self, kind: str = "accept") -> None:
        labels = {SETTINGS.kind_label: "p5.48xlarge"}
        self.node: dict[str, Any] = {
            "metadata": {"name": "gpu-a", "uid": UID, "labels": labels},
            "status": {"nodeInfo": {"bootID": BOOT}},
        }
        said = {
            "node-uid": UID,
            "boot-id": BOOT,
            "trigger": "new",
            "nonce": "n0nce-of-this-attempt",
            "image": IMAGE,
            "profile": "gate",
            "spec-digest": SPEC.digest,
            "attempt": "1",
            "devices": "2",
        }
        self.job: dict[str, Any] = {
            "metadata": {
                "name": "np-1",
                "uid": "job-uid",
                "annotations": {NAMES.label(k): v for k, v in said.items()},
            },
            "status": {"conditions": [{"type": "Complete", "status": "True"}]},
        }
        state = {"terminated": {"exitCode": 0, "message": ""}}
        row = {"name": CONTAINER, "imageID": f"mirror.example.com/x@{DIGEST}", "state": state}
        self.pod: dict[str, Any] | None = {
            "metadata": {"name": "np-1-x", "ownerReferences": [{"kind": "Job", "uid": "job-uid"}]},
            "spec": {"nodeName": "gpu-a", "containers": [{"name": CONTAINER, "image": IMAGE}]},
            "status": {"phase": "Succeeded", "containerStatuses": [row]},
        }
        self.log: str | None = None
        self.manifest: Manifest = MANIFEST
        self.settings: Settings = SETTINGS  # those of now
        self.spec: Spec = SPEC
        message, self.log = evidence(kind, self.job, self.node, BOOT)
        self.say(message)

    def say(self, message: str) -> None:
        self.ending["message"] = message

    @property
    def message(self) -> str:
        return str(self.ending["message"])

    @property
    def ending(self) -> dict[str, Any]:
        assert self.pod is not None
        ending: dict[str, Any] = self.pod["status"]["containerStatuses"][0]["state"]["terminated"]
        return ending

    def told(self, **annotations: str) -> None:
        more = {NAMES.label(k.replace("_", "-")): v for k, v in annotations.items()}
        self.job["metadata"]["annotations"].update(more)

    def signed(self, data: bytes) -> None:
        """Leave these results, with a message and a log that fit them."""
        verdict = decide(parse(data), MANIFEST)
        self.say(dispatch.message(verdict.document(), data))
        self.log = "\n".join(dispatch.packed(data))

    def results(self) -> bytes:
        whole = dispatch.unpacked(self.log or "", json.loads(self.message)["results"])
        assert whole is not None
        return whole

    def replaced(self, old: str, new: str, count: int = -1) -> None:
        """Leave other results, by what stands in them."""
        data = self.results()
        assert old.encode() in data
        self.signed(data.replace(old.encode(), new.encode(), count))

    def run(self, run: Any) -> None:
        self.signed(results_of(self.job, self.node, run))

    def judged(self) -> Judged:
        job = job_of(self.job, [self.pod] if self.pod else [], NAMES)
        assert job is not None
        pod = job.pods[0] if job.pods else None
        return proof.judge(
            job,
            pod,
            self.log,
            node=node_of(self.node, NAMES),
            manifest=self.manifest,
            settings=self.settings,
            spec=self.spec,
        )
