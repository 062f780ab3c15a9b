"""A training step: the same weights and the same data have to end in the same bits."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

from nodeproof.checks import (
    COMPUTE,
    LONGER,
    Cause,
    Device,
    DeviceKind,
    Load,
    Measure,
    Plant,
    Remedy,
    Result,
    Results,
    Work,
    altered,
    check,
)

_MAJORITY = 3  # devices, of which two can outvote one
_BEGUN = {DeviceKind.CPU: 17, DeviceKind.GPU: 53}  # weights, and the data, that the host knows
_SEEN = {DeviceKind.CPU: 261, DeviceKind.GPU: 2513}  # values of one run, of all its steps


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vote:
    """What the other devices say of one device's answer."""

    witnesses: int
    alike: int
    against: int  # that count against it: none where it is others that are outvoted
    cause: Cause | None
    said: str


def _vote(result: Result, peers: Results) -> _Vote:
    """Hold an answer against those of the devices that have to come to the same."""
    heard = [
        (device, other)
        for device, other in peers
        if all(other[name] == value for name, value in result["asks"].items())
    ]
    own = result["digest"]
    unlike = [(device, other) for device, other in heard if other["digest"] != own]
    alike = len(heard) - len(unlike)
    answers = Counter([own, *(other["digest"] for _, other in heard)])
    leading, votes = answers.most_common(1)[0]
    decided = len(heard) + 1 >= _MAJORITY and 2 * votes > len(heard) + 1
    cause: Cause | None = None
    against, said = len(unlike), ""
    if result["golden"] == own or (decided and leading == own):
        against = 0
    elif unlike:
        device, other = next(((d, o) for d, o in unlike if o["digest"] == leading), unlike[0])
        said = f"parts from {device} at {_parted(result['trail'], other['trail'])}"
        if not (decided and answers[own] == 1):
            cause = Cause.ENVIRONMENT
            said += (
                "; no majority that it stands alone against, so no device is blamed: look for other "
                "software or settings, and test each of them beside sound ones"
            )
    return _Vote(
        witnesses=len(heard),
        alike=alike,
        against=against,
        cause=cause,
        said=said,
    )


def _parted(own: list[str], other: list[str]) -> str:
    """Say where two trails part: step, pass and module."""
    for mine, theirs in zip(own, other, strict=False):
        if mine != theirs:
            step, part, module = mine.rpartition(" ")[0].split(" ", 2)
            return f"step {step}, {part}, {module}"
    return "no value that both name"


def _summary(trail: list[str]) -> str:
    return hashlib.blake2b("\n".join(trail).encode(), digest_size=8).hexdigest()


def _dissent(result: dict[str, Any]) -> dict[str, Any] | None:
    """Answer otherwise than every other device, whatever kind of device that is."""
    if result["devices"] < 2:
        return None
    *before, last = result["trail"]
    trail = [*before, f"{last.rpartition(' ')[0]} {'0' * 16}"]
    asks = {"recipes": result["asks"]["recipes"]}  # which all kinds have in common
    return {**result, "trail": trail, "digest": _summary(trail), "golden": "", "asks": asks}


@check(
    "device.training.step",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    profiles=LONGER,
    work=Work(
        call="nodeproof.kernels.training_step:replay",
        load=Load(quick=1, gate=5, deep=60, soak=600),
        deadline_s=180,
    ),
    plant=(
        Plant(
            args={"plant": "flip"},
            breaks=(
                "runs that differ",
                "losses that are no number",
                "unlike the recorded answer",
            ),
        ),
        altered("repeats", runs=1),
        altered("digests compared", compared=0),
        altered("digests of a run", "answer unlike its digests", trail=[]),
        Plant(alter=_dissent, breaks=("witnesses against",)),
    ),
)
def test_training_step(device: Device, result: Result, peers: Results, measure: Measure) -> None:
    """A device that computes one step in a thousand otherwise trains another model than you think.

    A small transformer is trained for a few steps from fixed weights on fixed data, again and again:
    bfloat16 with float32 master weights on a GPU, float32 on a processor. Every bit of every
    activation, gradient, weight and moment goes into a digest, and two runs that part name step,
    pass and module. Losses are not compared: a flipped bit of an activation moves them by less than
    any threshold, and many not at all. A device that does not repeat itself is faulty. One that
    repeats itself and differs from two others that agree is too. Where two differ, both
    are undecided. Reset and update do not help: replace the device.

    What it cannot see: a fault that gives the same wrong bits in every run, on a device that has no
    two others like it ("witnesses" below 2) and no recorded answer; the known-answer checks are
    for that. It names a module and no unit of the chip. Without a difference in N compared runs, the
    rate of bad runs is below 3/N at 95 %.
    """
    detail = ""
    if result["found"]:
        first = result["found"][0]
        detail = (
            f"first in run {first['run']}, step {first['step']}, {first['pass']}, {first['module']}: digest "
            f"{first['got']} instead of {first['expected']}; that others agree excuses nothing"
        )
    measure("runs that differ", result["diverged"], at_most=0, detail=detail)
    measure("repeats", result["runs"] - 1, at_least=1)
    begun, seen = _BEGUN[device.kind], _SEEN[device.kind]
    measure("digests of a run", len(result["trail"]), at_least=seen, cause=Cause.ENVIRONMENT)
    # The first run has nothing before it: only what it begins with is known.
    measure("digests compared", result["compared"], at_least=begun + (result["runs"] - 1) * seen)
    measure(
        "answer unlike its digests",
        int(_summary(result["trail"]) != result["digest"]),
        at_most=0,
    )
    measure(
        "losses that are no number",
        result["unfinite"],
        at_most=0,
        detail="weights and data are such that sound arithmetic gives finite ones",
    )
    vote = _vote(result, peers)
    measure("witnesses", vote.witnesses)
    measure(
        "witnesses against",
        vote.against,
        # Alone there is nobody to ask; with others, the self-test proves that they are asked.
        at_most=0 if result["devices"] > 1 or peers else None,
        cause=vote.cause,
        detail=vote.said,
    )
    recorded = result["golden"]
    measure(
        "unlike the recorded answer",
        int(recorded != result["digest"]) if recorded else 0,
        at_most=0 if recorded else None,
        # What others show alike is software's, or the record is old.
        cause=Cause.CONFIG if vote.alike else None,
        detail=f"{result['digest']} instead of {recorded or 'none'}, as {vote.alike} other devices say",
    )
    measure("rate", result["steps_per_s"], unit="steps/s")
