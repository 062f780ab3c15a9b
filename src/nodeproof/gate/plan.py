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
    Quarantine,
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
from nodeproof.gate.names import BREAKER_OPEN, EVERYTHING_PASSED, TOO_OFTEN
from nodeproof.gate.node import Node
from nodeproof.gate.occasion import (
    REQUALIFY,
    SERVED,
    SERVED_LATER,
    Held,
    answer,
    lost_its_word,
    occasion,
    reason_of,
    settled,
    token,
)
from nodeproof.gate.proof import Judged, Ruling
from nodeproof.gate.saying import differs, heartbeat, hold, message_of, say
from nodeproof.gate.settings import Draining, Settings
from nodeproof.gate.together import follow, found_before, measured_now
from nodeproof.verdict import Decision

_SPARED = "; not quarantined, since the circuit breaker is open"
_SLOW_S = 30.0  # for a log that takes this long to be read, the condition says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A pod outside the gate that holds GPUs of the node."""

    namespace: str
    name: str
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
    room: int = 1
    served_held: int = 0
    breaker: str = ""
    crowded: str = ""
    together: Together = field(default_factory=Together)


def plan(node: Node, known: Known, settings: Settings, *, now: float) -> Plan:
    """Decide what to do about one node at `now`, seconds since 1970."""
    names = settings.names
    if node.deleting or not _selected(node, settings):
        return Plan(phase=Phase.OUTSIDE)
    if not node.boot_id:
        return hold(node, settings, "BootUnknown", "the node does not tell its boot id", now)
    wanted = occasion(node, known.devices, settings)
    if wanted is None:
        return _serving(node, known, settings, now)
    if wanted == SERVED and known.served_held >= settings.served_at_once:
        text = "it served before the gate was installed; others like it are being tested"
        return say(
            node, settings, now, Phase.GRANDFATHERED, "Unknown", SERVED_LATER, text, wake_s=60.0
        )
    if not node.has(names.pending):
        if held := settled(node, settings, wanted):
            return hold(node, settings, held.reason, held.text, now, status=held.status)
        reason, text = reason_of(wanted)
        return hold(node, settings, reason, text, now)
    return _pending(node, known, settings, wanted, now)


def _serving(node: Node, known: Known, settings: Settings, now: float) -> Plan:
    """What to do about a node that serves: nothing, unless somebody suspects it."""
    accepted = node.accepted(settings.names) or lost_its_word(node, settings)
    phase = Phase.ACCEPTED if accepted else Phase.GRANDFATHERED
    doubt = suspicion.against(node, settings)
    if doubt and not known.crowded:
        return _suspected(node, settings, phase)
    if doubt:
        doubt = f"{known.crowded}; {doubt}"
    said = heartbeat(node, phase, settings, now, doubt=doubt)
    return Plan(phase=Phase.SUSPECT if doubt else phase, actions=said)


def _suspected(node: Node, settings: Settings, phase: Phase) -> Plan:
    """Ask for a test as a person would: all that follows is what follows from that."""
    tell = Tell(reason="Suspected", message=suspicion.against(node, settings), warning=True)
    ask = Stamp(stamps=suspicion.asks(node, settings))
    return Plan(phase=phase, actions=(tell, ask), wake_s=1.0)


def _selected(node: Node, settings: Settings) -> bool:
    """Whether a node is ours: by its labels, or because it carries a taint of ours."""
    names = settings.names
    by_label = all(node.labels.get(k) == v for k, v in settings.selector.items())
    # Labels of the hardware come late; a startup taint is there from the first moment.
    return by_label or node.has(names.pending) or node.has(names.quarantined)


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
        return _still(node, known, settings, held, stale, now, trigger)
    if current is None:
        return _first(node, known, settings, trigger, stale, now)
    if not held and (came_up := suspicion.overtaken(node, settings)):
        return Plan(phase=Phase.TESTING, actions=(Stamp(stamps=came_up),), wake_s=1.0)
    told = node.told_for_this_boot
    ending = ended(current, settings, now, told.message if told else "")
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
        return _still(node, known, settings, held, stale, now, trigger)
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
        evict = [Evict(namespace=t.namespace, pod=t.name) for t in going]
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
    if ruling.decision is Decision.ACCEPT and known.devices not in {"", ruling.devices}:
        ruling = undecided(
            Ruling.FOREIGN, "the GPUs that were tested are not those in the node now"
        )
    if ruling.decision is Decision.ACCEPT:
        return _passed(node, known, settings, trigger, job, ruling, stale, now)
    if ruling.decision is Decision.REJECT:
        return _rejected(node, known, settings, trigger, ruling, stale, now)
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
        return _suspected(node, settings, Phase.WAITING)
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
            return _rejected(node, known, settings, trigger, measured.judged, stale, now)
        if measured.judged.decision is not Decision.ACCEPT:
            times = measured.attempts
            return _too_often(node, known, settings, trigger, measured.judged, stale, now, times)
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
    return _too_often(node, known, settings, trigger, ruling, stale, now, job.attempt)


def _too_often(
    node: Node,
    known: Known,
    settings: Settings,
    trigger: str,
    ruling: Judged,
    stale: Sequence[Action],
    now: float,
    times: int,
) -> Plan:
    """Leave a node to people whose attempts, alone or with others, are used up."""
    names = settings.names
    text = f"undecided {times} times, the last time {ruling.ruling}: {ruling.text}"
    actions: list[Action] = list(stale)
    stamps = _held_for(node, settings, trigger, TOO_OFTEN)
    if settings.quarantine_undecided and not known.breaker and not node.has(names.quarantined):
        actions.append(Quarantine(stamps=stamps))
    elif stamps:
        actions.append(Stamp(stamps=stamps))
    if differs(node, "Unknown", TOO_OFTEN):
        if settings.quarantine_undecided:
            # What quarantines counts, or an outage would empty a fleet past the breaker.
            actions.append(Record(ruled=_failed(node, settings, TOO_OFTEN, now)))
        actions.append(Tell(reason=TOO_OFTEN, message=text, warning=True))
    return say(
        node, settings, now, Phase.UNDECIDED, "Unknown", TOO_OFTEN,
        f"{text}; set the annotation {names.requalify} to a new word to test again",
        *actions,
    )  # fmt: skip


def _rejected(
    node: Node,
    known: Known,
    settings: Settings,
    trigger: str,
    ruling: Judged,
    stale: Sequence[Action],
    now: float,
) -> Plan:
    told = node.told_for_this_boot
    before = (told.status, told.reason) if told else ("", "")
    first = before not in {("False", Ruling.CONDEMNED.value), ("Unknown", BREAKER_OPEN)}
    actions: list[Action] = list(stale)
    if first:
        actions.append(Record(ruled=_failed(node, settings, ruling.check, now)))
        actions.append(Tell(reason="Rejected", message=ruling.text, warning=True))
    return _condemned(node, known, settings, ruling.text, actions, now, trigger)


def _condemned(
    node: Node,
    known: Known,
    settings: Settings,
    text: str,
    actions: Sequence[Action],
    now: float,
    trigger: str,
) -> Plan:
    """Quarantine a rejected node; while the breaker is open, hold it and don't call it condemned.

    Whoever repairs or replaces what is condemned would do so to a whole fleet.
    """
    more = list(actions)
    open_ = bool(known.breaker) and not node.has(settings.names.quarantined)
    status, reason = ("Unknown", BREAKER_OPEN) if open_ else ("False", Ruling.CONDEMNED.value)
    stamps = _held_for(node, settings, trigger, reason)
    if open_:
        text += f"{_SPARED}: {known.breaker}"
        if differs(node, status, reason):
            more.append(Tell(reason=BREAKER_OPEN, message=known.breaker, warning=True))
    elif not node.has(settings.names.quarantined):
        # In one write with the taint: a request must not outlive the reject that answers it.
        more.append(Quarantine(stamps=stamps))
        stamps = {}
    if stamps:
        more.append(Stamp(stamps=stamps))
    return say(node, settings, now, Phase.QUARANTINED, status, reason, text, *more)


def _held_for(node: Node, settings: Settings, trigger: str, reason: str) -> dict[str, str]:
    """What is stamped on a node that is held until somebody asks, as far as it is not yet."""
    names = settings.names
    held = {} if node.annotations.get(names.held_for) == reason else {names.held_for: reason}
    return {**answer(node, settings, trigger), **held}


def _failed(node: Node, settings: Settings, reason: str, now: float) -> Ruled:
    kind = node.labels.get(settings.kind_label, "")
    return Ruled(kind=kind, node_uid=node.uid, accepted=False, reason=reason, at=now)


def _still(
    node: Node,
    known: Known,
    settings: Settings,
    held: Held,
    stale: Sequence[Action],
    now: float,
    trigger: str,
) -> Plan:
    """Leave a node held as it is; a condemned one that lost its taint gets it back."""
    if held.status == "False" or held.reason == BREAKER_OPEN:
        text = held.text.partition(_SPARED)[0]
        return _condemned(node, known, settings, text, stale, now, trigger)
    return say(node, settings, now, held.phase, held.status, held.reason, held.text, *stale)


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
