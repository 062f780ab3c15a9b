"""When rejects come in rows the suites are the suspect: stop condemning, and say so."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nodeproof.gate.names import TOO_OFTEN
from nodeproof.gate.node import Node
from nodeproof.gate.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruled:
    """One node that was accepted or rejected. Kept when the node itself is gone."""

    kind: str
    node_uid: str
    accepted: bool
    reason: str  # the check that condemned it, `TOO_OFTEN` for one that was quarantined undecided
    at: float  # seconds since 1970


def why_open(
    nodes: Iterable[Node], history: Iterable[Ruled], kind: str, settings: Settings, *, now: float
) -> str:
    """Why no further node of this kind may be quarantined, in a sentence; `""`: it may.

    Two rules: several rejects in a row for one reason, whatever became of the nodes since (an
    autoscaler replaces them, and a bad image would condemn every replacement); and too large a
    share of the kind's nodes in quarantine at once. An accept of the kind, or time, ends the first,
    a node less in quarantine the second: a later reject for another reason does not, since it says
    nothing for the suites. Rejects and nodes that stayed undecided make rows of their own: one of
    these among those ends no row.
    """
    named = kind or "unknown"
    alike = [n for n in nodes if n.labels.get(settings.kind_label, "") == kind]
    shut = [n for n in alike if n.has(settings.names.quarantined)]
    if len(shut) >= settings.breaker_least and len(shut) > settings.breaker_share * len(alike):
        return f"{len(shut)} of {len(alike)} nodes of kind {named} are quarantined"
    since = now - settings.breaker_window_s
    rulings = sorted((r for r in history if r.kind == kind and r.at >= since), key=lambda r: r.at)
    return _row(rulings, named, settings, undecided=False) or _row(
        rulings, named, settings, undecided=True
    )


def _row(rulings: Sequence[Ruled], named: str, settings: Settings, *, undecided: bool) -> str:
    """Why rulings since the last accept, of all these, oldest first, open the breaker; `""`: none."""
    alike = [r for r in rulings if r.accepted or (r.reason == TOO_OFTEN) == undecided]
    latest = {(r.node_uid, r.accepted, r.reason): r for r in alike}
    newest_first = sorted(latest.values(), key=lambda r: r.at, reverse=True)
    open_ones = itertools.takewhile(lambda r: not r.accepted, newest_first)
    for reason, run in itertools.groupby(open_ones, key=lambda r: r.reason):
        if (count := len(list(run))) >= settings.breaker_run:
            what = "stayed undecided" if undecided else f"were rejected for one reason, {reason}"
            return f"{count} nodes of kind {named} in a row {what}"
    return ""
