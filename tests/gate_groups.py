"""Groups for tests of the gate: nodes that wait, groups as a node sees them, and what a run leaves."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Any

from gate_cluster import DIGEST, IMAGE, NAMES, SETTINGS, SPEC
from gate_nodes import BOOT, NOW, UID, job, pod

from nodeproof.gate import dispatch, group_job, group_proof
from nodeproof.gate.actions import Measure, Place
from nodeproof.gate.attempt import CONTAINER
from nodeproof.gate.group import Group, Waiting, group_of
from nodeproof.gate.node import node_of
from nodeproof.gate.proof import Judged
from nodeproof.gate.settings import Settings
from nodeproof.manifest import Manifest, shipped, suite_digest
from nodeproof.model import Device, DeviceKind
from nodeproof.results import parse
from nodeproof.spec import Spec
from nodeproof.verdict import decide_any
from tests.results_samples import Run
from tests.test_fabric_verdict import GROUP, run_of

KIND = "p5.48xlarge"
GROUPED = dataclasses.replace(SETTINGS, grouped=[KIND], group_wait_s=300.0)
NONCE = "n0nce-of-this-group"
PROOF = "np-new-1"  # what `gate_nodes.over` is called
HERE = Place(node="gpu-a", uid=UID, boot_id=BOOT, proof=PROOF)


def place(letter: str, **differs: str) -> Place:
    """A node that is not the one under test."""
    made = Place(
        node=f"gpu-{letter}",
        uid=f"uid-{letter}",
        boot_id=f"boot-of-{letter}",
        proof=f"np-{letter}-1",
    )
    return dataclasses.replace(made, **differs)


OTHER = place("b")


def waits(where: Place, waited_s: float = 0.0) -> Waiting:
    """A node that has waited for so long."""
    return Waiting(place=where, alike=(KIND, ""), since=NOW - waited_s)


def group(*members: Place, name: str = "npg-1-1", over: bool = True, **differs: Any) -> Group:
    """A group as gpu-a sees it, by default one that has ended there, ten seconds ago."""
    ending = {"ended": NOW - 10, "complete": True, "pods": (pod(name=f"{name}-0-x"),)}
    made = job(
        name=name,
        uid=f"uid-of-{name}",
        trigger=PROOF,
        profile="quick",
        nonce=NONCE,
        **{**(ending if over else {}), **differs},
    )
    return Group(job=made, members=members or (HERE, OTHER))


# --- what a run leaves ----------------------------------------------------------------------

MEMBERS = tuple(place(letter) for letter in "wxyz")
ONE, TWO, THREE, FOUR = MEMBERS
UUIDS = {m.node: [f"GPU-{m.node}-{n}" for n in range(2)] for m in MEMBERS}


def member(of: Place, **facts: Any) -> Device:
    """A member as the head writes it down."""
    told = {"rank": 0, "boot_id": of.boot_id, "devices": UUIDS[of.node]}
    return Device(kind=DeviceKind.MEMBER, id=of.node, label=of.node, facts={**told, **facts})


def run(*devices: Device, **about: Any) -> Run:
    """A run of this group that nothing speaks against; `about` differs in what the head says."""
    rows = devices or tuple(map(member, MEMBERS))
    whole = run_of(GROUP, *rows)
    assert whole.plan is not None
    assert whole.end is not None
    head = {"name": ONE.node, "uid": "", "boot_id": ONE.boot_id, "group": len(rows), **about}
    return whole.replan(
        nonce=NONCE,
        node=head,
        spec={"name": "", "digest": SPEC.digest, "source": ""},
        suite_digest=suite_digest(),
    ).but(end=dataclasses.replace(whole.end, boot_id=head["boot_id"]))


@functools.cache
def _left(data: bytes) -> tuple[str, int, str]:
    """Message, exit status and log of the pod that leaves these results."""
    verdict = decide_any(parse(data), shipped())
    message = dispatch.message(verdict.document(), data)
    return message, verdict.decision.exit_code, "\n".join(dispatch.packed(data))


@functools.cache
def _sound() -> bytes:
    return run().data()


class Measured:
    """A group of four that is over, as its second member brings it out; sound until it is changed."""

    def __init__(self, mine: Place = TWO) -> None:
        self.mine = mine
        self.settings: Settings = GROUPED
        self.manifest: Manifest = shipped()
        self.spec: Spec = SPEC
        self.tested = dispatch.digest_of_devices(UUIDS[mine.node])
        measure = Measure(members=MEMBERS, attempt=1, devices=2)
        self.job: dict[str, Any] = group_job.build(measure, GROUPED, SPEC, nonce=NONCE)
        self.job["metadata"]["uid"] = "group-uid"
        self.job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
        self.node: dict[str, Any] = {
            "metadata": {
                "name": mine.node,
                "uid": mine.uid,
                "labels": {GROUPED.kind_label: KIND},
            },
            "status": {"nodeInfo": {"bootID": mine.boot_id}},
        }
        state = {"terminated": {"exitCode": 0, "message": ""}}
        row = {"name": CONTAINER, "imageID": f"mirror.example.com/x@{DIGEST}", "state": state}
        owner = {"kind": "Job", "uid": "group-uid"}
        self.pods: list[dict[str, Any]] = [
            {
                "metadata": {"name": "npg-1-x", "ownerReferences": [owner]},
                "spec": {
                    "nodeName": mine.node,
                    "containers": [{"name": CONTAINER, "image": IMAGE}],
                },
                "status": {"phase": "Succeeded", "containerStatuses": [row]},
            }
        ]
        self.log: str | None = None
        self.signed(_sound())

    @property
    def pod(self) -> dict[str, Any]:
        return self.pods[0]

    @property
    def ending(self) -> dict[str, Any]:
        ending: dict[str, Any] = self.container["state"]["terminated"]
        return ending

    @property
    def container(self) -> dict[str, Any]:
        row: dict[str, Any] = self.pod["status"]["containerStatuses"][0]
        return row

    @property
    def message(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.ending["message"])
        return said

    def says(self, **changes: Any) -> None:
        """Say something else in the message."""
        self.ending["message"] = json.dumps({**self.message, **changes})

    def told(self, **annotations: str) -> None:
        """Have something else in the Job's annotations."""
        more = {NAMES.label(k.replace("_", "-")): v for k, v in annotations.items()}
        self.job["metadata"]["annotations"].update(more)

    def of(self, *members: Place) -> None:
        """Have the Job name these members."""
        self.told(members=json.dumps([dataclasses.asdict(m) for m in members]))

    def signed(self, data: bytes) -> None:
        """Leave these results, with a message and a log that fit them."""
        self.ending["message"], self.ending["exitCode"], self.log = _left(data)

    def leaves(self, other: Run) -> None:
        self.signed(other.data())

    def now(self, **changes: Any) -> None:
        """Have other settings by the time it is judged."""
        self.settings = dataclasses.replace(self.settings, **changes)

    def results(self) -> bytes:
        whole = dispatch.unpacked(self.log or "", self.message["results"])
        assert whole is not None
        return whole

    def seen(self) -> Group | None:
        return group_of(self.job, self.pods, NAMES, node_of(self.node, NAMES))

    def judged(self) -> Judged:
        seen = self.seen()
        assert seen is not None, "the Job is none of ours"
        return group_proof.judge(
            seen,
            seen.job.pods[0] if seen.job.pods else None,
            self.log,
            node=node_of(self.node, NAMES),
            tested=self.tested,
            manifest=self.manifest,
            settings=self.settings,
            spec=self.spec,
        )
