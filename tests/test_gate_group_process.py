"""The command of a group's Job as local processes: what they leave is what the gate reads of them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from gate_cluster import DIGEST, IMAGE, NAMES, SETTINGS, SPEC
from rehearsal import NODEPROOF

from nodeproof.gate import dispatch, group_job, group_proof
from nodeproof.gate.actions import Measure, Place
from nodeproof.gate.attempt import CONTAINER
from nodeproof.gate.group import group_of
from nodeproof.gate.node import node_of
from nodeproof.gate.proof import Judged, Ruling
from nodeproof.manifest import shipped
from nodeproof.model import DeviceKind
from nodeproof.results import parse
from nodeproof.verdict import Decision, decide_any

KIND = "p5.48xlarge"
GROUPED = dataclasses.replace(
    SETTINGS,
    expected={KIND: 1},
    grouped=[KIND],
    group_bytes="1MiB",
    group_deadline_s=900.0,
)
NONCE = "5f0c8a1be0d3472f9a6d1c2e7b884d10"
MEMBERS = tuple(
    Place(node=f"gpu-{n}", uid=f"uid-{n}", boot_id=f"boot-of-{n}", proof=f"np-{n}-1") for n in "abc"
)
Left = tuple[int, str, str]  # exit status, message and log
_WAIT_S = GROUPED.group_deadline_s + 200.0


def host_root(folder: Path, boot_id: str) -> Path:
    """This machine as another one: the same but for its boot id."""
    real, mine = Path("/"), folder
    for step in ("proc", "sys", "kernel", "random", "boot_id"):
        mine.mkdir()
        for entry in real.iterdir():
            if entry.name != step and not entry.name.isdigit():
                (mine / entry.name).symlink_to(entry)
        real, mine = real / step, mine / step
    mine.write_text(boot_id + "\n")
    return folder


def words_of(
    job: dict[str, Any], folder: Path, place: Place, port: int, **more: object
) -> list[str]:
    """The arguments of the Job's container, with this machine in place of a cluster."""
    [container] = job["spec"]["template"]["spec"]["containers"]
    words = list(container["args"])
    told = {
        "device": "cpu",
        "head": f"127.0.0.1:{port}",
        "node-name": place.node,
        "output": folder / "run",
        "dispatch": folder / "termination-log",
        **more,
    }
    for option, value in told.items():
        words[words.index(f"--{option}") + 1] = str(value)
    root = host_root(folder / "host", place.boot_id)
    return [*container["command"][1:], *words, "--host-root", str(root), "--cpu-devices", "1"]


def environment(job: dict[str, Any], index: int, place: Place) -> dict[str, str]:
    """What the kubelet and the Job's controller set, beside what is set here."""
    [container] = job["spec"]["template"]["spec"]["containers"]
    told = {row["name"]: row.get("value", place.node) for row in container["env"]}
    return {**os.environ, **told, "JOB_COMPLETION_INDEX": str(index)}


def run(
    job: dict[str, Any], folder: Path, indices: Sequence[int] = (0, 1, 2), **more: object
) -> list[Left]:
    """Run pods of a group on this machine; status, message and log of each."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    started = []
    try:
        for index in indices:
            place = MEMBERS[index]
            mine = folder / place.node
            mine.mkdir()
            with (mine / "log").open("wb") as log:
                started.append(
                    subprocess.Popen(
                        [*NODEPROOF, *words_of(job, mine, place, port, **more)],
                        env=environment(job, index, place),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                    )
                )
        codes = [process.wait(timeout=_WAIT_S) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    folders = [folder / MEMBERS[index].node for index in indices]
    return [
        (code, _read(mine / "termination-log"), _read(mine / "log"))
        for code, mine in zip(codes, folders, strict=True)
    ]


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def judged(job: dict[str, Any], place: Place, left: Left, tested: str) -> Judged:
    """What the gate makes of what one pod left."""
    code, message, log = left
    state = {"terminated": {"exitCode": code, "message": message}}
    row = {"name": CONTAINER, "imageID": f"registry.example.com/x@{DIGEST}", "state": state}
    pod = {
        "metadata": {"name": "p", "ownerReferences": [{"kind": "Job", "uid": "group-uid"}]},
        "spec": {"nodeName": place.node, "containers": [{"name": CONTAINER, "image": IMAGE}]},
        "status": {"phase": "Failed" if code else "Succeeded", "containerStatuses": [row]},
    }
    seen = node_of(
        {
            "metadata": {
                "name": place.node,
                "uid": place.uid,
                "labels": {GROUPED.kind_label: KIND},
            },
            "status": {"nodeInfo": {"bootID": place.boot_id}},
        },
        NAMES,
    )
    group = group_of(job, [pod], NAMES, seen)
    assert group is not None
    return group_proof.judge(
        group,
        group.job.pods[0],
        log,
        node=seen,
        tested=tested,
        manifest=shipped(),
        settings=GROUPED,
        spec=SPEC,
    )


def on_gpus(left: Left) -> Left:
    """The same as if it had been no rehearsal: whatever else is wrong has to show then."""
    data = results_of(left)
    plan = parse(data).plan
    assert plan is not None
    data = data.replace(b'"rehearsal":true', b'"rehearsal":false')
    data = data.replace(str(plan.spec["digest"]).encode(), SPEC.digest.encode())
    verdict = decide_any(parse(data), shipped())
    message = dispatch.message(verdict.document(), data)
    return verdict.decision.exit_code, message, "\n".join(dispatch.packed(data))


def results_of(left: Left) -> bytes:
    _, message, log = left
    told = dispatch.read(message)
    assert told is not None, log
    data = dispatch.unpacked(log, str(told["results"]))
    assert data is not None
    return data


def built() -> dict[str, Any]:
    measure = Measure(members=MEMBERS, attempt=1, devices=1)
    job = group_job.build(measure, GROUPED, SPEC, nonce=NONCE)
    job["metadata"]["uid"] = "group-uid"
    return job


def test_a_member_whose_head_never_comes_says_so_to_the_gate(tmp_path):
    job = built()
    [left] = run(job, tmp_path, [1], **{"join-timeout": 1})
    plan = parse(results_of(left)).plan
    assert plan is not None
    assert (plan.nonce, plan.node["name"]) == (NONCE, MEMBERS[1].node)
    told = judged(job, MEMBERS[1], on_gpus(left), tested="")
    assert (told.decision, told.ruling) == (Decision.UNDECIDED, Ruling.UNDECIDED)
    assert "was not reached within 1 s" in told.text


@pytest.mark.long
def test_what_the_command_of_the_job_leaves_is_what_the_gate_reads(tmp_path):
    job = built()
    everything = run(job, tmp_path)
    assert all(message for _, message, _ in everything), everything
    # The head told all of them the same.
    assert len({results_of(left) for left in everything}) == 1
    plan = parse(results_of(everything[0])).plan
    assert plan is not None
    devices = {d.id: d.facts["devices"] for d in plan.devices if d.kind is DeviceKind.MEMBER}
    assert set(devices) == {m.node for m in MEMBERS}
    for place, left in zip(MEMBERS, everything, strict=True):
        tested = dispatch.digest_of_devices(devices[place.node])
        told = judged(job, place, left, tested)
        assert (told.decision, told.ruling) == (Decision.UNDECIDED, Ruling.FOREIGN)
        assert told.text.split("; ") == [
            f"spec digest is {plan.spec['digest']}, not {SPEC.digest}",  # that of rehearsals
            "it was a rehearsal",
        ]
        told = judged(job, place, on_gpus(left), tested)
        assert told.decision is Decision.ACCEPT, told.text
        assert told.text.startswith("measured with 2 others")
        told = judged(job, place, on_gpus(left), dispatch.digest_of_devices(["GPU-1"]))
        assert told.ruling is Ruling.FOREIGN
        assert "its GPUs were not those" in told.text
