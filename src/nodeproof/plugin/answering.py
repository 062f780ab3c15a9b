"""Answer for a group of nodes out of what it wrote down: nothing is asked of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nodeproof.checks import Work
from nodeproof.child import Answer, Raised, Reply
from nodeproof.manifest import shipped
from nodeproof.model import Cause, Device, DeviceKind
from nodeproof.nccl_tests import answers
from nodeproof.nccl_tests.record import LINK, WHOLE, Record
from nodeproof.plugin.performing import Done
from nodeproof.spec import Spec

_PAIRS = "fabric.member.pairs"  # whose limits say which link is bad


def whole(record: Record) -> Device:
    """Return what the members do together."""
    return Device(kind=DeviceKind.GROUP, id=WHOLE, label=WHOLE, facts={"nodes": record.group.nodes})


def members(record: Record) -> list[Device]:
    """Return each node, those that never came too: nobody may be missing without a finding."""
    return [
        Device(
            kind=DeviceKind.MEMBER,
            id=member.id,
            label=member.id,
            facts={
                "rank": member.rank,
                "address": member.address,
                "instance_type": member.instance_type,
                "boot_id": member.boot_id,
                "devices": [str(device["id"]) for device in member.devices],
            },
        )
        for member in record.members
    ]


def links(record: Record, spec: Spec) -> list[Device]:
    """Return the links that are bad where both ends are sound: what a finding can be about."""
    entry = shipped().entries.get(_PAIRS)
    limits = {**(entry.limits if entry else {}), **spec.limits.get(_PAIRS, {})}
    try:
        told = answers.localised(answers.pairs(record, WHOLE), limits)
    except (
        answers.AbsentError,
        KeyError,
        TypeError,
        ValueError,
    ):  # then the checks of the pairs have no answer either
        return []
    return [
        Device(kind=DeviceKind.LINK, id=f"{a}{LINK}{b}", label=f"{a} to {b}", facts={"why": why})
        for a, b, why in told.links
    ]


def software(record: Record) -> dict[str, Any]:
    """Return the versions that the members have in common; where they differ, all of them."""
    found: dict[str, list[str]] = {}
    for member in record.came:
        for name, version in member.software.items():
            found.setdefault(name, []).append(str(version))
    return {name: ", ".join(sorted(set(versions))) for name, versions in found.items()}


@dataclass(slots=True, kw_only=True)
class Answerer:
    """Stands where the workers of a run stand."""

    group: Record
    ends: float
    substitutes: dict[str, Any] = field(default_factory=dict)

    def admit(self, devices: Sequence[Device]) -> None:
        """Do nothing: no device needs a worker."""

    def watch(self) -> None:
        """Do nothing: no load is put on anything."""

    def note_starts(self, works: Sequence[tuple[Work, Device]]) -> None:
        """Do nothing: how it was at the start is in the record."""

    def perform(
        self,
        work: Work,
        args: Mapping[str, Any],
        devices: Sequence[Device],
        *,
        load_s: float,  # noqa: ARG002  what was done can't be done longer
    ) -> dict[str, Done]:
        """Return what the record has to say of this work, by device id."""
        return {
            device.id: Done(
                reply=self._reply(work.call, args, device), seconds=0.0, samples=(), since={}
            )
            for device in devices
        }

    def interrupt(self, reason: str) -> None:
        """Do nothing: nothing that is done here takes time."""

    def close(self, *, hurried: bool) -> list[str]:  # noqa: ARG002  nothing was started
        """Do nothing."""
        return []

    def _reply(self, call: str, args: Mapping[str, Any], device: Device) -> Reply:
        ask = answers.BY_CALL.get(call)
        if ask is None:
            return _refused(f"the record of a group holds no answer to {call}")
        try:
            return Answer(result=ask(self.group, device.id, **args), silence_s=0.0)
        except answers.AbsentError as error:
            return _refused(str(error))
        # An answer of a rank that isn't what ranks answer: foreign data, and no answer.
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return _refused(
                f"the record of {device} is not what nodes write: {type(error).__name__}: {error}"
            )


def _refused(why: str) -> Raised:
    return Raised(type="CannotMeasure", message=why, cause=Cause.ENVIRONMENT.value, trace="")
