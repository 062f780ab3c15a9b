"""What a monitor says against a node: a reason to test it again, and never a proof. Pure.

A suspicion is a condition of somebody else that stands on the node in the status that the site named,
since some time. A new time is a new suspicion; one that was tested for is not tested for again. So a
monitor that goes on saying what it said, as one does that reads a log since boot, holds nobody twice.
And one that takes its word back proves nothing by that: what came up during a test is tested for.
"""

from __future__ import annotations

from nodeproof.gate.names import Names
from nodeproof.gate.node import Node
from nodeproof.gate.patches import short
from nodeproof.gate.settings import Settings
from nodeproof.gate.writes import stamp

MARK = "suspect: "  # how words of requests begin that a suspicion made
_OPEN = "?"  # how words of the annotation begin that no test has answered
_BETWEEN = "; "  # no type of a condition has it


def doubts(node: Node, settings: Settings) -> tuple[str, ...]:
    """The suspicions that the node was not tested for, as words that name each."""
    noted = _noted(node, settings)
    open_ = [word.removeprefix(_OPEN) for word in noted if word.startswith(_OPEN)]
    fresh = [word for word in _standing(node, settings) if word not in noted]
    return tuple(dict.fromkeys([*open_, *fresh]))


def overtaken(node: Node, settings: Settings) -> dict[str, str]:
    """The annotation that keeps what came up during a test; empty where nothing did."""
    noted, open_ = _noted(node, settings), [_OPEN + word for word in doubts(node, settings)]
    if set(open_) <= set(noted):
        return {}
    kept = [word for word in noted if word in _standing(node, settings)]
    return {settings.names.suspected: _BETWEEN.join([*kept, *open_])}


def tested_for(node: Node, settings: Settings) -> dict[str, str]:
    """The annotation that a test which starts now answers all that was said against the node."""
    words = dict.fromkeys([*doubts(node, settings), *_standing(node, settings)])
    return {settings.names.suspected: _BETWEEN.join(words)}


def asks(node: Node, settings: Settings) -> dict[str, str]:
    """The annotations by which the node is to be tested for what was not tested for yet."""
    word = MARK + _BETWEEN.join(doubts(node, settings))
    return {settings.names.requalify: word, **tested_for(node, settings)}


def against(node: Node, settings: Settings) -> str:
    """What was not tested for, in the monitors' own words."""
    said = {word: node.others[word.partition("=")[0]].message for word in _standing(node, settings)}
    return _BETWEEN.join(
        f"{word}: {said.get(word, 'and takes it back')}" for word in doubts(node, settings)
    )


def held(node: Node, names: Names) -> bool:
    """Whether the request that stands unanswered on the node is one of a suspicion."""
    word = node.annotations.get(names.requalify, "")
    return word.startswith(MARK) and word != node.annotations.get(names.requalified)


def crowded(holding: int, alike: int, kind: str, settings: Settings) -> str:
    """Why no further node of a kind is held for a suspicion, in a sentence; `""`: it may be.

    What a fifth of a kind shows at once is a driver's or a monitor's fault sooner than the
    hardware's, and a fleet must not be emptied for it. Measured as the circuit breaker measures.
    """
    if holding < settings.breaker_least or holding <= settings.breaker_share * alike:
        return ""
    return (
        f"as many nodes of kind {kind or 'unknown'} are held for such a suspicion as may be at once"
    )


def _noted(node: Node, settings: Settings) -> list[str]:
    return node.annotations.get(settings.names.suspected, "").split(_BETWEEN)


def _standing(node: Node, settings: Settings) -> tuple[str, ...]:
    words = []
    for wanted in settings.suspect_conditions:
        kind, _, status = wanted.partition("=")
        told = node.others.get(kind)
        if told is not None and told.status == status:
            # Without a time the text has to tell one suspicion from the next.
            since = told.transition
            when = short(told.reason + told.message) if since is None else stamp(since)
            words.append(f"{wanted} since {when}")
    return tuple(words)
