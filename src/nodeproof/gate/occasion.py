"""The occasion of a test: why a node has to be tested now, and when nobody but a person may ask."""

from __future__ import annotations

from dataclasses import dataclass

from nodeproof.gate.actions import Phase
from nodeproof.gate.names import BREAKER_OPEN, TOO_OFTEN
from nodeproof.gate.node import Node
from nodeproof.gate.patches import short
from nodeproof.gate.proof import Ruling
from nodeproof.gate.settings import Served, Settings
from nodeproof.gate.suspicion import MARK, answered

NEW, BOOT, SERVED = "new", "boot", "served"
_DEVICES, REQUALIFY = "devices-", "requalify-"
QUARANTINED = "Quarantined"  # reason of a node that carries the taint without a word of ours
GRANDFATHERED, SERVED_LATER = "Grandfathered", "ServedLater"  # reasons of nodes that are let alone
_LEFT_ALONE = frozenset({GRANDFATHERED, SERVED_LATER})


_REASONS = {
    NEW: ("Untested", "it has not been tested"),
    BOOT: ("Rebooted", "it was accepted for another boot"),
    SERVED: ("Untested", "it served before the gate was installed, and is to be tested"),
    "devices": ("DevicesChanged", "its GPUs are not those it was accepted with"),
    "requalify": ("Requalifying", "somebody asked for another test"),
}


def selected(node: Node, settings: Settings) -> bool:
    """Whether a node is ours: by its labels, a taint of ours, or because it was accepted once."""
    names = settings.names
    by_label = all(node.labels.get(k) == v for k, v in settings.selector.items())
    # Labels of the hardware come late, and go when who sets them restarts; a startup taint is there
    # from the first moment, and what was accepted may serve an unproved boot without a label.
    by_mark = node.has(names.pending) or node.has(names.quarantined)
    return by_label or by_mark or bool(node.annotations.get(names.accepted_boot))


def occasion(node: Node, devices: str, settings: Settings) -> str | None:
    """Why the node has to be tested, as a word that names this occasion; `None` if it has not.

    `devices` is the digest of the GPUs that are in the node now, `""` where nobody says.
    """
    names = settings.names
    word = node.annotations.get(names.requalify, "")
    done = node.annotations.get(names.requalified, "")
    if word and word != done:
        return f"{REQUALIFY}{word}"
    accepted_devices = node.annotations.get(names.accepted_devices, "")
    if devices and accepted_devices and devices != accepted_devices:
        # Changed twice, they are to be tested twice: the word names what they are now.
        return f"{_DEVICES}{short(devices)}"
    boot = node.annotations.get(names.accepted_boot)
    if boot and boot != node.boot_id:
        return BOOT
    if node.accepted(names):
        return None
    told = node.condition
    if told is None and boot and lost_its_word(node, settings):
        return None
    # Whoever says anything else of itself was held once, and has lost its taint since.
    free = not node.has(names.pending) and (told is None or told.reason in _LEFT_ALONE)
    if free and not boot and node.created < settings.installed_at:
        if settings.served is Served.REQUALIFY:
            return SERVED
        spared = told is not None and told.reason == GRANDFATHERED
        return BOOT if spared and node.told_for_this_boot is None else None
    # A request that was answered stays the occasion: what proved the node before it was asked for
    # proves nothing after it.
    return f"{REQUALIFY}{done}" if done else NEW


def lost_its_word(node: Node, settings: Settings) -> bool:
    """Whether a node was accepted for this boot, and only our condition of it is gone.

    Agents that write the whole list of conditions drop ours. The stamp came with the lift, and
    nothing has been held against the node since: it serves, and is not to be held for that.
    """
    names, notes = settings.names, node.annotations
    return (
        node.condition is None
        and bool(node.boot_id)
        and notes.get(names.accepted_boot) == node.boot_id
        and not notes.get(names.held_for)
        and not node.has(names.pending)
        and not node.has(names.quarantined)
    )


def token(node: Node, settings: Settings, trigger: str) -> str:
    """The occasion as Jobs name it: with the last verdict in it, so that a Job releases once.

    The patch that lifts writes the verdict, with the name of the Job that it came from. Whatever
    brings the taint back after that, no Job from before is one for this occasion. Nor is one from
    before a suspicion that was to be answered, whoever sets an older request again.
    """
    last = [node.annotations.get(settings.names.verdict, ""), *answered(node, settings)]
    return f"{trigger}@{short('; '.join(last))}" if any(last) else trigger


def being_tested(node: Node, settings: Settings) -> bool:
    """Whether a node that served before the installation is held for its test now."""
    names, told = settings.names, node.told_for_this_boot
    return (
        node.created < settings.installed_at
        and node.has(names.pending)
        and not node.has(names.quarantined)
        and (told is None or (told.status, told.reason) not in _SETTLED)
        and node.annotations.get(names.held_for) != BREAKER_OPEN
    )


def reason_of(node: Node, settings: Settings, trigger: str) -> tuple[str, str]:
    """Reason and sentence for the condition of a node that is held for this occasion."""
    if trigger.startswith(REQUALIFY + MARK) and asked(node, settings, trigger):
        return "Suspected", f"a monitor suspects it: {trigger.removeprefix(REQUALIFY + MARK)}"
    return _REASONS[trigger.partition("-")[0]]


def asked(node: Node, settings: Settings, trigger: str) -> bool:
    """Whether the occasion is a request that has no answer yet."""
    word = trigger.removeprefix(REQUALIFY)
    return word != trigger and word != node.annotations.get(settings.names.requalified)


def answer(node: Node, settings: Settings, trigger: str) -> dict[str, str]:
    """The note that a request for another test was answered, so that it is not answered twice."""
    if not asked(node, settings, trigger):
        return {}
    return {settings.names.requalified: trigger.removeprefix(REQUALIFY)}


def quarantined_meanwhile(node: Node, settings: Settings, trigger: str) -> bool:
    """Whether somebody quarantined the node while it was tested for what a monitor said.

    What we quarantine is stamped with a reason. Only who asks by hand takes back what a hand did.
    """
    return (
        trigger.startswith(REQUALIFY + MARK)
        and asked(node, settings, trigger)
        and node.has(settings.names.quarantined)
        and not node.annotations.get(settings.names.held_for)
    )


_SETTLED = {
    ("False", Ruling.CONDEMNED.value): Phase.QUARANTINED,
    ("Unknown", BREAKER_OPEN): Phase.QUARANTINED,
    ("Unknown", TOO_OFTEN): Phase.UNDECIDED,
}


def may_be_said_anew(node: Node) -> bool:
    """Whether our condition holds nothing that the node would be released or held by."""
    if node.condition is None:
        return True
    told = node.told_for_this_boot
    return told is not None and told.status != "True" and (told.status, told.reason) not in _SETTLED


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a node is held for until somebody asks."""

    phase: Phase
    status: str
    reason: str
    text: str


def settled(node: Node, settings: Settings, trigger: str) -> Held | None:
    """What a node is held for, where only a request starts another test.

    Jobs and pods are cleaned up after a while, and logs get lost. A reject is not tried again by
    that, nor by a reboot: only somebody who asks for it, by the annotation, has the node tested
    again.
    """
    if asked(node, settings, trigger):
        return None
    names, told = settings.names, node.told_for_this_boot
    if told and (told.status, told.reason) in _SETTLED:
        return Held(
            phase=_SETTLED[told.status, told.reason],
            status=told.status,
            reason=told.reason,
            text=told.message.partition("; ")[2],
        )
    stamped = node.annotations.get(names.held_for, "")
    again = f"set the annotation {names.requalify} to a new word to test again"
    if stamped == BREAKER_OPEN:
        return _held("Unknown", BREAKER_OPEN, f"it was rejected before; {again}")
    if not node.has(names.quarantined):
        return None
    before = node.condition
    reason = stamped or (before.reason if before and before.status != "True" else "")
    if reason == Ruling.CONDEMNED:
        return _held("False", reason, f"it was condemned and quarantined before; {again}")
    if reason == TOO_OFTEN:
        return _held("Unknown", reason, f"it was undecided and quarantined before; {again}")
    return Held(
        phase=Phase.QUARANTINED,
        status="Unknown",
        reason=QUARANTINED,
        text=f"it is quarantined, and nothing of ours says for what; {again}",
    )


def _held(status: str, reason: str, text: str) -> Held:
    return Held(phase=_SETTLED[status, reason], status=status, reason=reason, text=text)
