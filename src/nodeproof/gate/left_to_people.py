"""Nodes that are left to people: condemned, or undecided too often. Pure.

Only somebody who asks has such a node tested again; until then it is held, and quarantined unless the
circuit breaker is open.
"""

from __future__ import annotations

from collections.abc import Sequence

from nodeproof.gate.actions import Action, Phase, Plan, Quarantine, Record, Stamp, Tell
from nodeproof.gate.breaker import Ruled
from nodeproof.gate.names import BREAKER_OPEN, TOO_OFTEN
from nodeproof.gate.node import Node
from nodeproof.gate.occasion import Held, answer
from nodeproof.gate.proof import Judged, Ruling
from nodeproof.gate.saying import differs, say
from nodeproof.gate.settings import Settings

_SPARED = "; not quarantined, since the circuit breaker is open"


def rejected(
    node: Node,
    breaker: str,
    settings: Settings,
    trigger: str,
    ruling: Judged,
    stale: Sequence[Action],
    now: float,
) -> Plan:
    """Write a reject down, tell it, and quarantine the node."""
    told = node.told_for_this_boot
    before = (told.status, told.reason) if told else ("", "")
    first = before not in {("False", Ruling.CONDEMNED.value), ("Unknown", BREAKER_OPEN)}
    actions: list[Action] = list(stale)
    if first:
        actions.append(Record(ruled=_failed(node, settings, ruling.check, now)))
        actions.append(Tell(reason="Rejected", message=ruling.text, warning=True))
    return _condemned(node, breaker, settings, ruling.text, actions, now, trigger)


def too_often(
    node: Node,
    breaker: str,
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
    if settings.quarantine_undecided and not breaker and not node.has(names.quarantined):
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


def still(
    node: Node,
    breaker: str,
    settings: Settings,
    held: Held,
    stale: Sequence[Action],
    now: float,
    trigger: str,
) -> Plan:
    """Leave a node held as it is; a condemned one that lost its taint gets it back."""
    if held.status == "False" or held.reason == BREAKER_OPEN:
        text = held.text.partition(_SPARED)[0]
        return _condemned(node, breaker, settings, text, stale, now, trigger)
    return say(node, settings, now, held.phase, held.status, held.reason, held.text, *stale)


def _condemned(
    node: Node,
    breaker: str,
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
    open_ = bool(breaker) and not node.has(settings.names.quarantined)
    status, reason = ("Unknown", BREAKER_OPEN) if open_ else ("False", Ruling.CONDEMNED.value)
    stamps = _held_for(node, settings, trigger, reason)
    if open_:
        text += f"{_SPARED}: {breaker}"
        if differs(node, status, reason):
            more.append(Tell(reason=BREAKER_OPEN, message=breaker, warning=True))
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
