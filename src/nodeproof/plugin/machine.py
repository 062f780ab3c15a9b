"""What stands before us: the devices under test and the identity of their node."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodeproof.checks import Work
from nodeproof.manifest import shipped
from nodeproof.model import Device, DeviceKind
from nodeproof.nccl_tests.record import Record
from nodeproof.plugin import answering
from nodeproof.plugin.options import Options, Target
from nodeproof.plugin.performing import Performer, WorkFailed
from nodeproof.probes.boot import boot_id, instance_type
from nodeproof.results import device_from

# Equal to what the inventory checks declare, so that each is done once in a run.
ENUMERATE = Work(
    call="nodeproof.probes.devices:enumerate_devices",
    args={"device": "@device", "cpu_devices": "@cpu_devices"},
    deadline_s=30,
)
READY = "node.services.ready"
WAIT = Work(call="nodeproof.probes.readiness:wait", deadline_s=660)
CURSOR = Work(call="nodeproof.probes.kernel_log:cursor", deadline_s=10)
VERSIONS = Work(
    call="nodeproof.probes.software:versions", args={"device": "@device"}, deadline_s=60
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One node as it was found at the start of a run, or a group of them."""

    node: Device  # or the group
    host: Device | None  # a group has none
    devices: tuple[Device, ...]  # under test
    says: str  # one sentence for people about the devices
    identity: Mapping[str, Any]
    replayed: bool

    @property
    def rehearsal(self) -> bool:
        """Whether there is anything but GPUs under test."""
        if self.node.kind is DeviceKind.GROUP:
            return bool(self.identity["rehearsal"])
        return self.replayed or any(d.kind is not DeviceKind.GPU for d in self.devices)

    def of_kinds(self, kinds: tuple[DeviceKind, ...]) -> list[Device]:
        """Return what a check of these kinds is about, in a stable order."""
        return [d for d in self.all if d.kind in kinds]

    @property
    def all(self) -> tuple[Device, ...]:
        """Everything that can be judged."""
        return (self.node, *((self.host,) if self.host else ()), *self.devices)


def look(runner: Performer, options: Options, *, identify: bool) -> Machine:
    """Ask the node what it has. Never raises: a driver that does not answer has no devices.

    With `identify` the versions of the software are read too, which loads torch in a worker.
    """
    if options.group:
        return _group(options.group, options)
    replay = options.replay
    here = "replayed" if replay else platform.node() or "node"  # a recording does not say its name
    name = options.node_name or here
    node = Device(kind=DeviceKind.NODE, id=name, label=name)
    host = Device(kind=DeviceKind.HOST, id=name, label=name)
    if identify:
        _wait(runner, options, node)
    answer = _ask(runner, ENUMERATE, node)
    devices = tuple(device_from(row) for row in answer.get("devices", []))
    runner.admit(devices)
    versions = _ask(runner, VERSIONS, node) if identify else {}
    if identify and any(d.kind is DeviceKind.GPU for d in devices):
        # Before anything is done to them: what the log says later is of this run.
        runner.substitutes["@log_cursor"] = _ask(runner, CURSOR, node).get("at")
    driver = answer.get("versions") or {}
    return Machine(
        node=node,
        host=host,
        devices=devices,
        says=str(answer.get("says", "")),
        identity={
            "name": name,
            "uid": options.node_uid,
            **(replay.machine if replay else _firmware_and_kernel(options)),
            "rehearsal": options.target is Target.CPU or replay is not None,
            **({"replayed": replay.digest} if replay else {}),
            "driver": driver,
            "software": versions.get("versions") or {},
            "devices_say": str(answer.get("says", "")),
        },
        replayed=replay is not None,
    )


def _group(record: Record, options: Options) -> Machine:
    """Return the members of a group and what is between them; nothing is asked of this machine."""
    name = options.node_name or record.group.head_name
    whole = answering.whole(record)
    return Machine(
        node=whole,
        host=None,
        devices=(*answering.members(record), *answering.links(record, options.spec)),
        says=f"a group of {record.group.nodes}",
        identity={
            "name": name,
            "uid": options.node_uid,
            "boot_id": record.group.boot_id,
            "instance_type": ", ".join(sorted({m.instance_type for m in record.came} - {""})),
            "kernel": "",
            "rehearsal": options.target is Target.CPU,
            "group": record.group.nodes,
            "record": record.digest,
            "driver": {},
            "software": answering.software(record),
            "devices_say": f"a group of {record.group.nodes}",
        },
        replayed=False,
    )


def _firmware_and_kernel(options: Options) -> dict[str, str]:
    return {
        "boot_id": boot_id(options.host_root),
        "instance_type": instance_type(options.host_root),
        "kernel": platform.release(),
    }


def _wait(runner: Performer, options: Options, node: Device) -> None:
    """Let come up what the spec names, before anything is asked that would miss it.

    What is still missing then is told by the check of this name, which has the same answer.
    """
    entry = shipped().entries.get(READY)
    if entry is not None and READY in options.spec.limits:
        args = {**entry.limits, **options.spec.limits[READY]}
        runner.perform(WAIT, args, [node], load_s=0.0)


def _ask(runner: Performer, work: Work, node: Device) -> Mapping[str, Any]:
    done = runner.perform(work, work.args, [node], load_s=0.0)[node.id]
    try:
        return done.result()
    except WorkFailed as error:
        return {"says": str(error)}
