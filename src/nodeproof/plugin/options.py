"""What a run was told, checked: every wrong word is answered with the nearest right ones."""

from __future__ import annotations

import difflib
import math
import secrets
import uuid
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from nodeproof import spec, spec_choice, waivers
from nodeproof.model import Profile, Waiver
from nodeproof.nccl_tests import record as group_record
from nodeproof.nccl_tests.record import Record
from nodeproof.plugin import recording
from nodeproof.plugin.chosen import chosen
from nodeproof.plugin.recording import Recording
from nodeproof.spec import Spec

DEADLINE_S = {
    Profile.QUICK: 180.0,
    Profile.GATE: 480.0,
    Profile.DEEP: 4500.0,
    Profile.SOAK: 18000.0,
}


_COUNT = "node.devices.count"  # --expect-gpus is short for its limit `expected`


class Target(StrEnum):
    """What to test."""

    AUTO = "auto"  # the GPUs; without any the run is undecided and never falls back to CPU
    CUDA = "cuda"
    CPU = "cpu"  # a rehearsal


# Nearer in its letters to "cpu", which would rehearse.
_MEANT = {"gpu": Target.CUDA, "gpus": Target.CUDA, "nvidia": Target.CUDA}


class OptionError(ValueError):
    """Something was asked for that there is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of one run."""

    profile: Profile
    target: Target
    cpu_devices: int
    spec: Spec
    host_root: Path
    run_id: str
    nonce: str
    node_name: str
    node_uid: str
    deadline_s: float
    waivers: tuple[Waiver, ...]
    seed: int
    selftest_only: bool
    record: Path | None
    replay: Recording | None
    group: Record | None = None  # nodes that worked together, to be judged by what they wrote down


def read(given: Any) -> Options:
    """Check the options as pytest (or `nodeproof run`) has them, named nodeproof_*.

    Raises `OptionError`, `SpecError` or `WaiverError`, each with one sentence for a person.
    """
    profile = Profile(_one_of("profile", given.nodeproof_profile, list(Profile)))
    target = Target(_one_of("device", given.nodeproof_device, list(Target)))
    group = _group(given)
    cpu_devices, replay = given.nodeproof_cpu_devices, _replay(given)
    if replay:
        target, cpu_devices = _as_recorded(target, replay), replay.cpu_devices
    if group:
        target = _as_in_group(target, group)
    for name, value in (
        ("--cpu-devices", cpu_devices),
        ("--expect-gpus", given.nodeproof_expect_gpus),
        ("--deadline", given.nodeproof_deadline),
    ):
        if value is not None and not 0 < value < math.inf:
            raise OptionError(f"{name} {value}: it has to be more than 0")
    if given.nodeproof_expect_gpus is not None and target is Target.CPU:
        raise OptionError("--expect-gpus makes no sense with --device cpu: a rehearsal has no GPU")
    seed = given.nodeproof_seed
    told = chosen(
        _spec_word(given, replay),
        host_root=given.nodeproof_host_root,
        rehearsal=target is Target.CPU,
    )
    expected = given.nodeproof_expect_gpus
    if target is Target.CPU and told.products and replay is None:
        raise OptionError(
            f"--spec {given.nodeproof_spec} is of {', '.join(told.products)}: a rehearsal has no "
            "GPU to hold against it"
        )
    if target is Target.CPU:
        if group is None and "expected" not in told.limits.get(_COUNT, {}):
            expected = cpu_devices
        told = told.over(spec.load(spec.REHEARSAL))  # what a site sets, it sets for rehearsals too
    return Options(
        profile=profile,
        target=target,
        cpu_devices=cpu_devices,
        spec=told if expected is None else told.with_limit(_COUNT, "expected", expected),
        host_root=given.nodeproof_host_root,
        run_id=given.nodeproof_run_id or str(uuid.uuid4()),
        nonce=given.nodeproof_nonce,
        node_name=given.nodeproof_node_name,
        node_uid=given.nodeproof_node_uid,
        deadline_s=given.nodeproof_deadline or DEADLINE_S[profile],
        waivers=waivers.load(given.nodeproof_waivers) if given.nodeproof_waivers else (),
        # New data every run, so that no fault can hide behind data it happens to get right.
        seed=secrets.randbits(48) if seed is None else seed,
        selftest_only=given.nodeproof_selftest_only,
        record=given.nodeproof_record,
        replay=replay,
        group=group,
    )


def _replay(given: Any) -> Recording | None:
    if given.nodeproof_replay is None:
        return None
    if given.nodeproof_record is not None:
        raise OptionError("a replay can't be recorded: it reads no node")
    try:
        return recording.load(given.nodeproof_replay)
    except recording.RecordingError as error:
        raise OptionError(str(error)) from None


def _group(given: Any) -> Record | None:
    if given.nodeproof_group is None:
        return None
    for name, value in (
        ("--replay", given.nodeproof_replay),
        ("--record", given.nodeproof_record),
        ("--expect-gpus", given.nodeproof_expect_gpus),
    ):
        if value is not None:
            raise OptionError(f"{name} is about one node, and a group is judged by what it wrote")
    if given.nodeproof_spec == spec_choice.AUTO and given.nodeproof_device != Target.CPU:
        raise OptionError("--spec auto fits the machine it runs on: name the spec of the group")
    try:
        return group_record.load(given.nodeproof_group)
    except group_record.RecordError as error:
        raise OptionError(str(error)) from None


def _as_in_group(asked: Target, group: Record) -> Target:
    """Return what the group worked with, unless something else was asked for."""
    worked = Target(group.group.device)
    if asked is not Target.AUTO and asked is not worked:
        raise OptionError(f"--device {asked}: the group worked with --device {worked}")
    return worked


def _spec_word(given: Any, replay: Recording | None) -> str:
    word = str(given.nodeproof_spec)
    if replay and word == spec_choice.AUTO and replay.device != Target.CPU:
        return replay.spec  # what fitted the machine that was recorded, and not this one
    return word


def _as_recorded(asked: Target, replay: Recording) -> Target:
    """Return what the recording is of, unless something else was asked for."""
    recorded = Target(_one_of("device", replay.device, list(Target)))
    if asked is not Target.AUTO and (asked is Target.CPU) != (recorded is Target.CPU):
        raise OptionError(f"--device {asked}: the recording is of --device {recorded}")
    return recorded


def _one_of(what: str, given: str, known: list[str]) -> str:
    if given in known:
        return given
    near = [_MEANT[given]] if given in _MEANT else difflib.get_close_matches(given, known, n=2)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
    raise OptionError(f"there is no {what} {given!r}; {hint}")
