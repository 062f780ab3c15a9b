"""One node, everything known about it, one plan. Pure: no API, no clock of its own.

Level-triggered: it looks at how things stand and never at what happened. Each plan does at most one
thing to the node's taints, and says why the node is where it is; the next look goes on from there.
A node is lifted only in a look that holds its proof, and holds it for the boot the node is in.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nodeproof.gate import suspicion
from nodeproof.gate.actions import (
    Action,
    Evict,
    Lift,
    Phase,
    Plan,
    Read,
    Record,
    Remove,
    Say,
    Stamp,
    Tell,
    Test,
)
from nodeproof.gate.attempt import Job, Pod
from nodeproof.gate.breaker import Ruled
from nodeproof.gate.ending import attempt_text, ended, undecided, waiting_for, wall_s
from nodeproof.gate.group import Together, note
from nodeproof.gate.job import name_of
from nodeproof.gate.left_to_people import rejected, still, too_often
from nodeproof.gate.names import EVERYTHING_PASSED
from nodeproof.gate.node import Node
from nodeproof.gate.occasion import (
    REQUALIFY,
    SERVED,
    SERVED_LATER,
    answer,
    lost_its_word,
    occasion,
    quarantined_meanwhile,
    reason_of,
    selected,
    settled,
    token,
)
from nodeproof.gate.proof import Judged, Ruling
from nodeproof.gate.saying import doubt_told, doubted, heartbeat, hold, message_of, say
from nodeproof.gate.settings import Draining, Settings
from nodeproof.gate.together import follow, found_before, measured_now
from nodeproof.verdict import Decision

_SLOW_S = 30.0  # for a log that takes this long to be read, the condition says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A pod outside the gate that holds GPUs of the node."""

    namespace: str
    name: str
    uid: str
    leaving: bool
    stays: bool = False  # it would be put back at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of one node beside itself.

    `judged` holds the attempts that were judged, by name of their Job. `devices` is the digest of
    the GPUs that some source says are in the node now, `""` without a source. `room` is how many
    more tests may start, `served_held` how many other nodes that served before the installation are
    held. `breaker` is why it is open, `""` while it is not; `crowded` why no further node like it is
    held for a suspicion. `together` is about the nodes that it is measured with, where it has to be.
    """

    jobs: Sequence[Job] = ()
    judged: Mapping[str, Judged] | None = None
    tenants: Sequence[Tenant] = ()
    devices: str = ""
    also: str = ""  # what another source says they are
    room: int = 1
    served_held: int = 0
    breaker: str = ""
    crowded: str = ""
    together: Together = field(default_factory=Together)


def plan(node: Node, known: Known, settings: Settings, *, now: float) -> Plan:
    """Decide what to do about one node at `now`, seconds since 1970."""
    names = settings.names
    if node.deleting or not selected(node, settings):
        return Plan(phase=Phase.OUTSIDE)
    if not node.boot_id:
        return hold(node, settings, "BootUnknown", "the node does not tell its boot id", now)
    wanted = occasion(node, known.devices, settings)
    later = wanted == SERVED and known.served_held >= settings.served_at_once
    if wanted is None or later:
        return _serving(node, known, settings, now, later=later)
    if not node.has(names.pending):
        if held := settled(node, settings, wanted):
            return hold(node, settings, held.reason, held.text, now, status=held.status)
        reason, text = reason_of(node, settings, wanted)
        return hold(node, settings, reason, text, now)
    return _pending(node, known, settings, wanted, now)


def _serving(node: Node, known: Known, settings: Settings, now: float, *, later: bool) -> Plan:
    """What to do about a node that serves: nothing, unless somebody suspects it.

    `later` it is tested anyway, as one that served before the installation.
    """
    accepted = node.accepted(settings.names) or lost_its_word(node, settings)
    phase = Phase.ACCEPTED if accepted else Phase.GRANDFATHERED
    why_not, doubt = known.crowded, ""
    if node.has(settings.names.quarantined):
        why_not = "somebody quarantined it, and only who asks by hand has it tested"
    if doubts := suspicion.doubts(node, settings):
        if not why_not:
            return _suspected(node, settings, phase)
        phase, doubt = Phase.SUSPECT, "; ".join([why_not, *doubts])
    if later:
        text = "it served before the gate was installed; others like it are being tested"
        return say(
            node, settings, now, phase, "Unknown", SERVED_LATER,
            doubted(text, doubt), *doubt_told(node, doubt), wake_s=60.0,
        )  # fmt: skip
    kept = Phase.ACCEPTED if accepted else Phase.GRANDFATHERED
    return Plan(phase=phase, actions=heartbeat(node, kept, settings, now, doubt=doubt))


def _suspected(node: Node, settings: Settings, phase: Phase, *stale: Action) -> Plan:
    """Ask for a test as a person would: all that follows is what follows from that."""
    tell = Tell(reason="Suspected", message=suspicion.against(node, settings), warning=True)
    ask = Stamp(stamps=suspicion.asks(node, settings))
    return Plan(phase=phase, actions=(*stale, tell, ask), wake_s=1.0)


def _pending(node: Node, known: Known, settings: Settings, trigger: str, now: float) -> Plan:
    """What to do about a node that is held until it has proved itself."""
    judged = known.judged or {}
    wanted = token(node, settings, trigger)
    ours = [j for j in known.jobs if _of(j, node, wanted)]
    # What has ended stays for people, until its time to live is over.
    going = [j for j in known.jobs if j.ended is None and not j.deleting]
    ours.sort(key=lambda j: j.attempt)
    current = ours[-1] if ours else None
    stale = [Remove(job=j.name) for j in going if j is not current]
    held = settled(node, settings, trigger)
    if current is None and held:
        return still(node, known.breaker, settings, held, stale, now, trigger)
    if current is None:
        return _first(node, known, settings, trigger, stale, now)
    told = node.told_for_this_boot
    ending = ended(current, settings, now, told.message if told else "")
    if ending is None and (came_up := suspicion.overtaken(node, settings)):
        return Plan(phase=Phase.TESTING, actions=(*stale, Stamp(stamps=came_up)), wake_s=1.0)
    if ending is None:
        wake = current.created + wall_s(settings) - now
        return say(
            node, settings, now, Phase.TESTING, "Unknown", "Testing",
            attempt_text(current.attempt, settings, current.name) + waiting_for(current),
            *stale, wake_s=max(wake, 1.0),
        )  # fmt: skip
    if isinstance(ending, Pod) and current.name not in judged:
        read = Read(job=current.name, pod=ending.name)
        waits = node.annotations.get(settings.names.awaits) == note(current)
        if held or waits or current.ended is None or now - current.ended < _SLOW_S:
            # Of one that is held, or has passed and waits for others, a restart forgot it: the
            # condition stands while it is read again.
            phase = held.phase if held else Phase.TESTING
            return Plan(phase=phase, actions=(read, *stale), wake_s=5.0)
        return say(
            node, settings, now, Phase.TESTING, "Unknown", "Testing",
            f"attempt {current.attempt} of {settings.attempts} has ended and is being read",
            read, *stale, wake_s=5.0,
        )  # fmt: skip
    ruling = judged[current.name] if isinstance(ending, Pod) else ending
    if held and ruling.decision is Decision.ACCEPT and settings.measured_together(node.labels):
        together = found_before(node, current, known.together, settings, now=now)
        if isinstance(together, Read):
            return Plan(phase=held.phase, actions=(together, *stale), wake_s=5.0)
        ruling = together or ruling
    if held and ruling.decision is not Decision.REJECT:
        # Evidence that is lost, or older than the reject, takes nothing back.
        return still(node, known.breaker, settings, held, stale, now, trigger)
    return _ruled(node, known, settings, trigger, current, ruling, stale, now)


def _first(
    node: Node,
    known: Known,
    settings: Settings,
    trigger: str,
    stale: Sequence[Action],
    now: float,
    attempt: int = 1,
) -> Plan:
    """Start an attempt, or say what it waits for."""

    def waits(reason: str, text: str, *more: Action, wake_s: float | None = None) -> Plan:
        return say(
            node, settings, now, Phase.WAITING, "Unknown", reason, text,
            *more, *stale, wake_s=wake_s,
        )  # fmt: skip

    if text := node.not_ready:
        return waits("NotReady", text)
    if stale:
        return waits("Queued", "an earlier test of the node has to go first", wake_s=5.0)
    if job := measured_now(known.together, settings, now):
        text = f"Job {job} measures it with others, and has to end first"
        return waits("Queued", text, wake_s=30.0)
    expected = settings.gpus_of(node.labels)
    if expected is None:
        kind = node.labels.get(settings.kind_label, "")
        text = (
            f"the settings do not say how many GPUs a node of kind {kind or 'unknown'} has to have: "
            "add it to expected"
        )
        return waits("ExpectedUnknown", text)
    if known.tenants:
        going = [t for t in known.tenants if not t.leaving and not t.stays]
        named = ", ".join(f"{t.namespace}/{t.name}" for t in known.tenants[:3])
        evict = [Evict(namespace=t.namespace, pod=t.name, uid=t.uid) for t in going]
        acts = evict if settings.draining is Draining.EVICT else []
        wait = f"{len(known.tenants)} pods hold GPUs of the node and have to leave first: {named}"
        return waits("PodsPresent", wait, *acts, wake_s=30.0)
    if known.room < 1:
        return waits("Queued", f"{settings.tests_at_once} tests run at once", wake_s=30.0)
    requested = node.count(settings.resource) or 0
    since = now - max(node.ready_since, node.created)
    if not requested and since < settings.plugin_wait_s:
        text = f"the node offers no {settings.resource} yet: the device plugin has to register it"
        return waits("DevicePluginMissing", text, wake_s=settings.plugin_wait_s - since)
    if suspicion.doubts(node, settings):
        # It is stamped before the test starts, so that what comes up later is not taken for tested.
        answers = Stamp(stamps=suspicion.tested_for(node, settings))
        return Plan(phase=Phase.WAITING, actions=(answers,), wake_s=1.0)
    # Said as it is said while it runs: a condition is written twice only if something has moved.
    wanted = token(node, settings, trigger)
    test = Test(trigger=wanted, attempt=attempt, devices=expected, requested=requested)
    return say(
        node, settings, now, Phase.TESTING, "Unknown", "Testing",
        attempt_text(attempt, settings, name_of(node, test)), test, *stale, wake_s=30.0,
    )  # fmt: skip


def _ruled(
    node: Node,
    known: Known,
    settings: Settings,
    trigger: str,
    job: Job,
    ruling: Judged,
    stale: Sequence[Action],
    now: float,
) -> Plan:
    """Act on what an attempt came to."""
    if ruling.decision is Decision.ACCEPT and {known.devices, known.also} - {"", ruling.devices}:
        ruling = undecided(
            Ruling.FOREIGN,
            "the GPUs that were tested are not those in the node now, as its ResourceSlices or the "
            f"annotation {settings.names.devices} say",
        )
    if ruling.decision is Decision.ACCEPT:
        return _passed(node, known, settings, trigger, job, ruling, stale, now)
    if ruling.decision is Decision.REJECT:
        return rejected(node, known.breaker, settings, trigger, ruling, stale, now)
    return _undecided(node, known, settings, trigger, job, ruling, stale, now)


def _passed(
    node: Node,
    known: Known,
    settings: Settings,
    trigger: str,
    job: Job,
    ruling: Judged,
    stale: Sequence[Action],
    now: float,
) -> Plan:
    """Release a node that passed, if nothing has come up since and no group is to be passed, too."""
    names = settings.names
    if suspicion.doubts(node, settings):
        return _suspected(node, settings, Phase.WAITING, *stale)
    if quarantined_meanwhile(node, settings, trigger):
        # Once what a monitor asked for is answered, the node is held for what a person did.
        answers = Stamp(stamps=answer(node, settings, trigger))
        return Plan(phase=Phase.QUARANTINED, actions=(*stale, answers), wake_s=1.0)
    if text := node.not_ready:
        # Karpenter puts the taint back on a node that it has not registered.
        return say(
            node, settings, now, Phase.WAITING, "Unknown", "NotReady",
            f"{text}; {ruling.text}", *stale,
        )  # fmt: skip
    group = ""
    if settings.measured_together(node.labels):
        measured = follow(node, job, ruling, known.together, settings, stale, now=now)
        if isinstance(measured, Plan):
            return measured
        if measured.judged.decision is Decision.REJECT:
            return rejected(node, known.breaker, settings, trigger, measured.judged, stale, now)
        if measured.judged.decision is not Decision.ACCEPT:
            times = measured.attempts
            return too_often(
                node, known.breaker, settings, trigger, measured.judged, stale, now, times
            )
        together = f"{ruling.text}; {measured.judged.text}"
        ruling, group = dataclasses.replace(ruling, text=together), measured.group.name
    told = node.condition
    message = message_of(node, ruling.text)
    if told is None or (told.status, told.reason, told.message) != (
        "True", EVERYTHING_PASSED, message,
    ):  # fmt: skip
        # First the condition, then the taint: whoever guards the taint reads the condition.
        return Plan(
            phase=Phase.TESTING,
            actions=(Say(status="True", reason=EVERYTHING_PASSED, message=message),),
            wake_s=1.0,
        )
    asked = trigger.removeprefix(REQUALIFY) if trigger.startswith(REQUALIFY) else None
    verdict = _compact(job, ruling, group)
    stamps = {names.accepted_devices: ruling.devices, names.verdict: verdict}
    stamps |= {names.requalified: asked} if asked else {}
    stamps |= {names.awaits: ""} if node.annotations.get(names.awaits) else {}
    stamps |= {names.held_for: ""} if node.annotations.get(names.held_for) else {}
    kind = node.labels.get(settings.kind_label, "")
    ruled = Ruled(kind=kind, node_uid=node.uid, accepted=True, reason="", at=now)
    return Plan(
        phase=Phase.ACCEPTED,
        actions=(
            Record(ruled=ruled),
            Lift(stamps=stamps),
            Tell(reason="Accepted", message=ruling.text),
        ),
    )


def _undecided(
    node: Node,
    known: Known,
    settings: Settings,
    trigger: str,
    job: Job,
    ruling: Judged,
    stale: Sequence[Action],
    now: float,
) -> Plan:
    """Test again after a while, or leave it to people."""
    if job.attempt < settings.attempts:
        ended = job.ended if job.ended is not None else job.created + wall_s(settings)
        due = ended + settings.backoff_s * 2 ** (job.attempt - 1)
        if now < due:
            return say(
                node, settings, now, Phase.UNDECIDED, "Unknown", ruling.ruling.value,
                f"attempt {job.attempt} of {settings.attempts}: {ruling.text}; the next follows",
                *stale, wake_s=due - now,
            )  # fmt: skip
        return _first(node, known, settings, trigger, stale, now, attempt=job.attempt + 1)
    return too_often(node, known.breaker, settings, trigger, ruling, stale, now, job.attempt)


def _of(job: Job, node: Node, trigger: str) -> bool:
    """Whether a Job was started for this node, this boot and this occasion."""
    return (job.node_uid, job.boot_id, job.trigger) == (node.uid, node.boot_id, trigger)


def _compact(job: Job, ruling: Judged, group: str) -> str:
    told = {
        "verdict": ruling.decision.value,
        "job": job.name,
        "profile": job.profile,
        "attempt": job.attempt,
        **({"group": group} if group else {}),
    }
    return json.dumps(told, separators=(",", ":"))
