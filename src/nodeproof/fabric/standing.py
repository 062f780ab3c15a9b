"""What a member writes of itself when it has nothing from the head: no verdict, and why."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from nodeproof import __version__
from nodeproof.fabric.member import Part
from nodeproof.manifest import shipped, suite_digest
from nodeproof.model import Device, DeviceKind, Profile
from nodeproof.probes.boot import boot_id
from nodeproof.reports.counted import counted
from nodeproof.results import SCHEMA, End, Plan, Writer, now, plain
from nodeproof.spec import NO_SPEC


def write(path: Path, part: Part, why: str, *, nonce: str) -> None:
    """Write a results file that ends in an undecided. Raises `OSError`."""
    boot = boot_id(part.host_root)
    plan = Plan(
        run_id=str(uuid.uuid4()),
        nonce=nonce,
        profile=Profile.QUICK,
        rehearsal=part.device == "cpu",
        version=__version__,
        suite_digest=suite_digest(),
        manifest_digest=shipped().digest,
        spec=NO_SPEC.summary(),
        node={"name": part.name, "boot_id": boot, "group": part.nodes},
        devices=(
            Device(
                kind=DeviceKind.GROUP, id="group", label=f"group of {counted(part.nodes, 'node')}"
            ),
            Device(kind=DeviceKind.MEMBER, id=part.name, label=part.name),
        ),
        expected_devices=None,
        checks=(),
        selftests=(),
        about={},
        waivers=(),
        seed=0,
        deadline_s=0.0,
        started=now(),
    )
    path.unlink(missing_ok=True)
    with Writer(path) as writer:
        whole: dict[str, Any] = plain(plan)
        writer.write("plan", {"schema": SCHEMA, **whole})
        writer.write("end", plain(End(boot_id=boot, ended=now(), interrupted=why)))
