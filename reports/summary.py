"""The last lines of a run: verdict, what failed on which device, what to do, where the files are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from nodeproof.reports.advice import TO_DO
from nodeproof.reports.legible import legible
from nodeproof.verdict import Decision, Reason, Verdict, Why

_SHOWN = 12  # reasons; the rest is in the files
_NO_GPU = "no GPU was tested, and this verdict can never release a node"


def lines(verdict: Verdict, where: str = "", *, rehearsal: bool = False) -> list[str]:
    """Say a verdict to a person in few lines; `where` is the directory of the files.

    `rehearsal` is what was asked for, in case that no plan was left behind to show it.
    """
    rehearsal = rehearsal or (verdict.plan is not None and verdict.rehearsal)
    return [legible(line) for line in _lines(verdict, where, rehearsal=rehearsal)]


def _lines(verdict: Verdict, where: str, *, rehearsal: bool) -> Iterator[str]:
    name = str(verdict.plan.node.get("name", "")) if verdict.plan else ""
    counts = verdict.counts
    yield (
        f"{verdict.decision.upper()} {name}: {counts['pass']} passed, {counts['fail']} failed, "
        f"{counts['error']} not measured, {counts['skip']} skipped, "
        f"{counts['trials']} on trial and not counted; "
        f"{counts['selftests']} planted faults caught"
    )
    reasons = [*verdict.failed, *verdict.undecided]
    shown = list(_told(reasons))
    yield from (f"  {line}" for line in shown[:_SHOWN])
    if len(shown) > _SHOWN:
        yield f"  and {len(shown) - _SHOWN} more, see the files"
    yield from (
        f"  waived: {w.check} on {w.device} until {w.expires}: {w.reason}" for w in verdict.waived
    )
    if verdict.decision is not Decision.ACCEPT:
        yield f"to do: {TO_DO[verdict.remedy]} (remedy {verdict.remedy})"
    if where:
        yield f"files: {where}: results.jsonl verdict.json junit.xml report.html metrics.prom"
    if rehearsal:
        yield f"REHEARSAL {verdict.decision}: {_NO_GPU}"
    elif not where:
        return
    else:
        yield f"verdict: {verdict.decision}"


def _told(reasons: Iterable[Reason]) -> Iterator[str]:
    """One line a reason, but one line in all for many of a kind on one device."""
    for (why, device), group in groupby(reasons, key=lambda r: (r.why, r.device)):
        same = list(group)
        if why in {Why.MISSING, Why.UNPLANNED, Why.SELFTEST} and len(same) > 2:
            on = f" on {same[0].label or device}" if device else ""
            some = ", ".join(r.check for r in same[:3])
            yield f"{len(same)} checks{on}: {why} ({some}, ...)"
        else:
            yield from map(str, same)
