"""What runs leave of a node that is tested alone, and of a group: bound to Job, nodes and boots."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

from gate_cluster import NAMES, SETTINGS, SPEC, results_of, told
from results_samples import CHECKS, Run, accept, reject, undecided

from nodeproof import manifest as manifests
from nodeproof.gate import dispatch
from nodeproof.manifest import suite_digest
from nodeproof.model import Device, DeviceKind
from nodeproof.results import parse
from nodeproof.verdict import decide_any
from tests.test_fabric_verdict import GROUP, run_of

_SHIPPED = json.loads(resources.files("nodeproof").joinpath("catalog/manifest.json").read_text())
# The few checks of a node that quick tests have, and those of groups that ship.
MANIFEST = manifests.parse(
    json.dumps(
        {
            "schema": 1,
            "checks": CHECKS
            | {k: v for k, v in _SHIPPED["checks"].items() if k.startswith("fabric.")},
        }
    )
)
_RUNS = {
    "accept": lambda: accept(samples=0),
    "reject": lambda: reject().but(telemetry=()),
    "undecided": lambda: undecided().but(telemetry=()),
}
Left = tuple[int, str, str]  # exit status, message and log of a pod
Change = Callable[[Run], Run]


@functools.cache
def _alone(how: str) -> bytes:
    """Results of one node, with words in place of what binds them."""
    said = {"nonce": "@nonce@", "profile": SETTINGS.profile.value, "spec-digest": SPEC.digest}
    job = {"metadata": {"annotations": {NAMES.label(k): v for k, v in said.items()}}}
    node = {
        "metadata": {"name": "@name@", "uid": "@uid@"},
        "status": {"nodeInfo": {"bootID": "@boot@"}},
    }
    run = _RUNS[how]().replan(manifest_digest=MANIFEST.digest)
    return results_of(job, node, run).replace(b"GPU-00000", b"GPU-@name@0")


def gpus(name: str) -> list[str]:
    """The UUIDs of a node's GPUs."""
    return [f"GPU-{name}0{number:03d}-2222-3333-4444-555555555555" for number in range(2)]


def left_alone(how: str, job: dict[str, Any], node: dict[str, Any]) -> Left:
    """What the test of one node leaves."""
    data = _alone(how)
    for word, value in (
        ("@nonce@", told(job, "nonce")),
        ("@uid@", node["metadata"]["uid"]),
        ("@name@", node["metadata"]["name"]),
        ("@boot@", boot_of(node)),
    ):
        data = data.replace(word.encode(), value.encode())
    return _left(data)


def left_together(job: dict[str, Any], boots: Mapping[str, str], change: Change) -> Left:
    """What a group of nodes in these boots leaves: on each the same, as the head told it."""
    members = [
        Device(
            kind=DeviceKind.MEMBER,
            id=name,
            label=name,
            facts={"boot_id": boot, "devices": gpus(name)},
        )
        for name, boot in boots.items()
    ]
    whole = change(run_of(GROUP, *members))
    assert whole.end
    head, boot = next(iter(boots.items()))
    run = whole.replan(
        nonce=told(job, "nonce"),
        manifest_digest=MANIFEST.digest,
        suite_digest=suite_digest(),
        spec={"name": "", "digest": told(job, "spec-digest"), "source": ""},
        node={"name": head, "uid": "", "boot_id": boot, "group": len(members)},
    )
    return _left(run.but(end=dataclasses.replace(whole.end, boot_id=boot)).data())


def _left(data: bytes) -> Left:
    verdict = decide_any(parse(data), MANIFEST)
    message = dispatch.message(verdict.document(), data)
    return verdict.decision.exit_code, message, "\n".join(dispatch.packed(data))


def cleared(left: Left) -> dict[str, str]:
    """What a group's run has found of each of its members."""
    _, message, log = left
    data = dispatch.unpacked(log, json.loads(message)["results"])
    assert data is not None
    found: dict[str, str] = decide_any(parse(data), MANIFEST).document()["members"]
    return found


def boot_of(node: dict[str, Any]) -> str:
    return str(node["status"]["nodeInfo"]["bootID"])
