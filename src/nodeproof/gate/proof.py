"""Whether an attempt proves its node: what binds is judged again, and nothing else counts.

Exit status decides nothing. An accept needs the message of a container that has ended, the results
it names in the pod's log, and everything in them to be what this gate started: this nonce, node,
boot, image, profile, spec and manifest. Whatever is missing or foreign is undecided, with a reason.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from nodeproof import results, verdict
from nodeproof.gate import dispatch
from nodeproof.gate.attempt import Job, Pod
from nodeproof.gate.names import EVERYTHING_PASSED
from nodeproof.gate.node import Node
from nodeproof.gate.settings import Settings
from nodeproof.manifest import Manifest, suite_digest
from nodeproof.model import DeviceKind
from nodeproof.spec import Spec
from nodeproof.verdict import Decision, Verdict

log = logging.getLogger("nodeproof.gate")
_DEVICES = 128  # of one node: its GPUs, its links, the node itself
_WAIVERS = 64
_ROWS = 4096  # checks on devices; a node of eight GPUs has some hundred


class Ruling(StrEnum):
    """Reasons of the condition that an attempt can end in."""

    ACCEPTED = EVERYTHING_PASSED
    CONDEMNED = "HardwareCondemned"
    UNDECIDED = "Undecided"  # the suites ran and could not decide
    CRASHED = "TestCrashed"
    TIMEOUT = "TestTimedOut"
    EVICTED = "TestEvicted"
    LOST = "TestPodLost"
    MISSING = "ResultMissing"
    INVALID = "ResultInvalid"
    FOREIGN = "ResultForeign"  # bound to another node, boot, run or version


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What an attempt came to. `text` is one sentence for the condition."""

    decision: Decision
    ruling: Ruling
    text: str
    devices: str = ""  # digest of the GPUs that were tested
    check: str = ""  # the first that condemned the node


def judge(
    job: Job,
    pod: Pod | None,
    log: str | None,
    *,
    node: Node,
    manifest: Manifest,
    settings: Settings,
    spec: Spec,
) -> Judged:
    """Judge an attempt that is over. `log` is the pod's, `None` where it could not be read."""
    brought = bring(job, pod, log)
    if isinstance(brought, Judged):
        return brought
    decided = verdict.decide(brought.results, manifest)
    foreign = [
        *_foreign(job, decided, node),
        *of_another(job, brought, decided, node, settings, spec),
    ]
    if foreign:
        return _open(Ruling.FOREIGN, "; ".join(foreign))
    if decided.decision is Decision.REJECT:
        return Judged(
            decision=Decision.REJECT,
            ruling=Ruling.CONDEMNED,
            text=said(decided, decided.failed),
            check=decided.failed[0].check,
        )
    if decided.decision is Decision.UNDECIDED:
        return _open(Ruling.UNDECIDED, said(decided, decided.undecided))
    passed = decided.counts["pass"]
    return Judged(
        decision=Decision.ACCEPT,
        ruling=Ruling.ACCEPTED,
        text=f"{passed} checks passed, {decided.counts['selftests']} detectors proved, {job.profile}",
        devices=devices_digest(decided),
    )


def sure(judging: Callable[[], Judged], pod: str) -> Judged:
    """What judging comes to; undecided where it breaks on what a node wrote.

    Asked again it would break again: the node would wait without a word, and its log be read for
    ever.
    """
    try:
        return judging()
    except Exception as error:
        log.exception("the results of pod %s", pod)
        text = f"the results of pod {pod} can't be judged: {type(error).__name__}: {error}"
        return _open(Ruling.INVALID, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """What a pod has brought out: the verdict that its message tells, and the results themselves."""

    pod: Pod
    verdict: str
    results: results.Results


def bring(job: Job, pod: Pod | None, log: str | None) -> Brought | Judged:
    """Take what an attempt has brought out; a ruling where it brought nothing that can be judged."""
    if pod is None:
        return _open(Ruling.LOST, "its pod is gone, and the evidence with it")
    told = dispatch.read(pod.message)
    if pod.exit_code is None or told is None:
        return _open(*_why_silent(job, pod))
    if log is None:
        return _open(Ruling.MISSING, f"the log of pod {pod.name} could not be read")
    whole = dispatch.unpacked(log, str(told["results"]))
    if whole is None:
        return _open(
            Ruling.INVALID,
            f"the log of pod {pod.name} does not hold the results that its message names",
        )
    found = results.parse(whole)
    if beyond := _beyond(found):
        return _open(Ruling.INVALID, f"the results of pod {pod.name} hold {beyond}: no run does")
    return Brought(pod=pod, verdict=str(told["verdict"]), results=found)


def _beyond(found: results.Results) -> str:
    """What there is more of than in any run, `""` for nothing: judging all of it would take hours."""
    plan = found.plan
    if plan is None:
        return ""
    counts = {
        "devices": (len(plan.devices), _DEVICES),
        "waivers": (len(plan.waivers), _WAIVERS),
        "planned checks": (len(plan.checks), _ROWS),
        "findings": (len(found.findings), _ROWS),
        "self-tests": (len(found.selftests), _ROWS),
    }
    return ", ".join(f"{n} {name}" for name, (n, most) in counts.items() if n > most)


def devices_digest(decided: Verdict) -> str:
    """One digest over the GPUs of a run, by UUID."""
    devices = decided.plan.devices if decided.plan else ()
    return dispatch.digest_of_devices(d.id for d in devices if d.kind is DeviceKind.GPU)


def _foreign(job: Job, decided: Verdict, node: Node) -> Iterator[str]:
    """What the results of one node are bound to that this attempt is not."""
    plan = decided.plan
    if plan is None:
        return
    told = plan.node
    yield from _differing(
        {
            "node uid": (told.get("uid"), job.node_uid),
            "boot id": (told.get("boot_id"), job.boot_id),
            "node name": (told.get("name"), node.name),
        }
    )
    gpus = sum(d.kind is DeviceKind.GPU for d in plan.devices)
    if decided.decision is Decision.ACCEPT and (gpus != job.devices or not gpus):
        yield f"{gpus} GPUs were tested, {job.devices} expected"


def of_another(
    job: Job, brought: Brought, decided: Verdict, node: Node, settings: Settings, spec: Spec
) -> Iterator[str]:
    """What ties the results to another attempt, or the attempt to other settings than these."""
    plan = decided.plan
    if plan is None:
        yield "the results have no plan"
        return
    yield from _differing(
        {
            "nonce": (plan.nonce, job.nonce),
            "uid of the node now": (node.uid, job.node_uid),
            "boot id of the node now": (node.boot_id, job.boot_id),
            "node of the pod": (brought.pod.node, node.name),
            "profile": (plan.profile.value, job.profile),
            "spec digest": (plan.spec.get("digest"), job.spec_digest),
            "suite digest": (plan.suite_digest, suite_digest()),
        }
    )
    if decided.rehearsal:
        yield "it was a rehearsal"
    if plan.waivers:
        yield f"{len(plan.waivers)} waivers that this gate did not give"
    yield from _unlike(job, node, settings, spec)
    yield from _image(job, brought.pod, settings)
    if brought.verdict != decided.decision.value:
        yield f"the message says {brought.verdict}, the results {decided.decision}"


def _differing(wanted: Mapping[str, tuple[Any, Any]]) -> Iterator[str]:
    """Sentences about what was found and is not what was expected; nobody's word is no match."""
    for name, (found, expected) in wanted.items():
        if not expected or found != expected:
            yield f"{name} is {found or 'not told'}, not {expected or 'known'}"


def _image(job: Job, pod: Pod, settings: Settings) -> Iterator[str]:
    """Whether the pod ran another image than its Job's.

    What the kubelet was told to pull is what it ran: it checks the digest. Runtimes call an image
    by a digest of several: that of its index, of its manifest in another repository, or, with no
    repository before it, of its configuration. A site names those that are one image.
    """
    wanted = job.image.rpartition("@")[2]
    if not wanted.startswith("sha256:") or pod.image.rpartition("@")[2] != wanted:
        yield f"the pod was made with image {pod.image or 'unknown'}, not {job.image}"
    repository, _, ran = pod.image_id.rpartition("@")
    known = {wanted, *settings.image_ids}
    if ran not in known and (repository or not re.fullmatch("sha256:[0-9a-f]{64}", ran)):
        yield (
            f"the pod ran image {pod.image_id or 'unknown'}, not {job.image}; if these are one "
            "image, add its digest to the setting image_ids"
        )


def _unlike(job: Job, node: Node, settings: Settings, spec: Spec) -> Iterator[str]:
    """In what a Job is none that these settings start for this node.

    What a Job says of itself proves nothing: somebody else may have made one of its name, and
    settings change while it runs.
    """
    wanted: dict[str, tuple[str | int | None, str | int | None]] = {
        "image": (job.image, settings.image),
        "profile": (job.profile, settings.profile.value),
        "spec digest": (job.spec_digest, spec.digest),
        "GPUs expected": (job.devices, settings.gpus_of(node.labels)),
    }
    for name, (told, now) in wanted.items():
        if told != now:
            yield f"{name} of the Job: {told or 'none'}, of the settings now: {now or 'none'}"


def _why_silent(job: Job, pod: Pod) -> tuple[Ruling, str]:
    """Why there is no message: what the kubelet and the Job's controller say."""
    if pod.reason == "OOMKilled":
        return Ruling.CRASHED, f"pod {pod.name} was killed for its memory (OOMKilled)"
    if pod.reason in {"Evicted", "Preempting", "NodeShutdown", "Terminated"} or (
        pod.exit_code is None and pod.deleting
    ):
        return Ruling.EVICTED, f"pod {pod.name} was taken away: {pod.reason or 'deleted'}"
    if "DeadlineExceeded" in {pod.reason, job.failure}:
        waited = f": {pod.waiting}" if pod.waiting else ""
        return Ruling.TIMEOUT, f"pod {pod.name} ran past the Job's deadline{waited}"
    if pod.exit_code is None:
        waited = f": {pod.waiting}" if pod.waiting else ""
        return Ruling.LOST, f"pod {pod.name} ended without a word of its container{waited}"
    if pod.message:
        return (
            Ruling.INVALID,
            f"the message of pod {pod.name} is none of ours: {pod.message[:80]!r}",
        )
    return Ruling.MISSING, f"pod {pod.name} ended with status {pod.exit_code} and left no message"


def said(decided: Verdict, reasons: Sequence[verdict.Reason]) -> str:
    """The first of some reasons, how many more there are, and what to do."""
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return f"{reasons[0]}{more}; {decided.remedy}"


def _open(ruling: Ruling, text: str) -> Judged:
    return Judged(decision=Decision.UNDECIDED, ruling=ruling, text=text)
