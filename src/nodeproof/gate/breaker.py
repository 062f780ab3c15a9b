"""When rejects come in rows the suites are the suspect: stop condemning, and say so."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from nodeproof.gate.node import Node
from nodeproof.gate.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruled:
    """One node that was accepted or rejected. Kept when the node itself is gone."""

    kind: str
    node_uid: str
    accepted: bool
    reason: str  # the check that condemned it
    at: float  # seconds since 1970


def why_open(nodes: Iterable[Node], history: Iterable[Ruled], kind: str, settings: Settings) -> str:
    """Why no further node of this kind may be quarantined, in a sentence; `""`: it may.

    Two rules: several rejects in a row for one reason, whatever became of the nodes since (an
    autoscaler replaces them, and a bad image would condemn every replacement); and too large a
    share of the kind's nodes in quarantine at once. An accept of the kind ends the first, a node
    less in quarantine the second.
    """
    named = kind or "unknown"
    alike = [n for n in nodes if n.labels.get(settings.kind_label, "") == kind]
    shut = [n for n in alike if n.has(settings.names.quarantined)]
    if len(shut) >= settings.breaker_least and len(shut) > settings.breaker_share * len(alike):
        return f"{len(shut)} of {len(alike)} nodes of kind {named} are quarantined"
    latest = {r.node_uid: r for r in sorted(history, key=lambda r: r.at) if r.kind == kind}
    newest_first = sorted(latest.values(), key=lambda r: r.at, reverse=True)
    row = list(itertools.takewhile(lambda r: not r.accepted, newest_first))[: settings.breaker_run]
    if len(row) == settings.breaker_run and len({r.reason for r in row}) == 1:
        return (
            f"the last {len(row)} nodes of kind {named} were rejected for one reason, "
            f"{row[0].reason}"
        )
    return ""
