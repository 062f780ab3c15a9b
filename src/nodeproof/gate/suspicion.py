"""What a monitor says against a node: a reason to test it again, and never a proof. Pure.

A suspicion is a condition of somebody else that stands on the node in the status that the site named,
since some time. A new time is a new suspicion; one that was tested for is not tested for again. So a
monitor that goes on saying what it said, as one does that reads a log since boot, holds nobody twice.
And one that takes its word back proves nothing by that: what came up during a test is tested for.
"""

from __future__ import annotations

from collections.abc import Iterable

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
    open_ = [word.removeprefix(_OPEN) for word in _noted(node, settings) if _is_open(word)]
    return tuple(dict.fromkeys([*open_, *_fresh(node, settings)]))


def answered(node: Node, settings: Settings) -> tuple[str, ...]:
    """The suspicions that a test was started for since the node was last in service."""
    return tuple(word for word in _noted(node, settings) if not _is_open(word))


def overtaken(node: Node, settings: Settings) -> dict[str, str]:
    """The annotation that keeps what came up during a test; empty where nothing did.

    Of each condition the last one: one is enough to have the node tested again, and a monitor that
    goes back and forth fills no annotation.
    """
    fresh = _fresh(node, settings)
    if not fresh:
        return {}
    again = tuple(_OPEN + word.partition("=")[0] + "=" for word in fresh)
    kept = [word for word in _noted(node, settings) if not word.startswith(again)]
    return _annotation(settings, [*kept, *(_OPEN + word for word in fresh)])


def tested_for(node: Node, settings: Settings) -> dict[str, str]:
    """The annotation that a test which starts now answers all that was said against the node.

    What was answered before stays as long as the node is held: Jobs are told apart by it.
    """
    before = answered(node, settings) if node.has(settings.names.pending) else ()
    return _annotation(settings, [*before, *doubts(node, settings), *_standing(node, settings)])


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
    """Whether the node is held, or is about to be, because somebody suspected it."""
    word = node.annotations.get(names.requalify, "")
    asked = word != node.annotations.get(names.requalified)
    return word.startswith(MARK) and (asked or node.has(names.pending))


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


def _annotation(settings: Settings, words: Iterable[str]) -> dict[str, str]:
    return {settings.names.suspected: _BETWEEN.join(dict.fromkeys(words))}


def _noted(node: Node, settings: Settings) -> list[str]:
    return [w for w in node.annotations.get(settings.names.suspected, "").split(_BETWEEN) if w]


def _is_open(word: str) -> bool:
    return word.startswith(_OPEN)


def _fresh(node: Node, settings: Settings) -> list[str]:
    noted = {word.removeprefix(_OPEN) for word in _noted(node, settings)}
    return [word for word in _standing(node, settings) if word not in noted]


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
