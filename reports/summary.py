"""The last lines of a run: verdict, what failed on which device, what to do, where the files are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from nodeproof.reports import group_summary
from nodeproof.reports.advice import TO_DO
from nodeproof.reports.counted import counted
from nodeproof.reports.legible import legible
from nodeproof.verdict import Decision, Reason, Verdict, Why

_SHOWN = 12  # reasons; the rest is in the files
_NO_GPU = "no GPU was tested; no gate may use this verdict"


def lines(verdict: Verdict, where: str = "", *, rehearsal: bool = False) -> list[str]:
    """Say a verdict to a person in few lines; `where` names the directory and its files.

    `rehearsal` is what was asked for, in case that no plan was left behind to show it.
    """
    rehearsal = rehearsal or (verdict.plan is not None and verdict.rehearsal)
    return [legible(line) for line in _lines(verdict, where, rehearsal=rehearsal)]


def _lines(verdict: Verdict, where: str, *, rehearsal: bool) -> Iterator[str]:
    name = _name(verdict)
    counts = verdict.counts
    yield (
        f"{verdict.decision.upper()} {name}: {counts['pass']} passed, {counts['fail']} failed, "
        f"{counts['error']} not measured, {counts['skip']} skipped, "
        f"{counts['trials']} on trial and not counted; "
        f"{counts['selftests']} planted faults caught"
    )
    reasons = [*verdict.failed, *verdict.undecided]
    shown = group_summary.told(verdict) if _nodes(verdict) else list(_told(reasons))
    yield from (f"  {line}" for line in shown[:_SHOWN])
    if len(shown) > _SHOWN:
        yield f"  and {len(shown) - _SHOWN} more, see the files"
    yield from (
        f"  waived: {w.check} on {w.device} until {w.expires}: {w.reason}" for w in verdict.waived
    )
    yield from (f"  note: {note}" for note in verdict.notes)
    if verdict.decision is not Decision.ACCEPT:
        yield f"to do: {TO_DO[verdict.remedy]} (remedy {verdict.remedy})"
    if where:
        yield f"files: {where}"
    if rehearsal:
        yield f"REHEARSAL {verdict.decision}: {_NO_GPU}"
    elif not where:
        return
    else:
        yield f"verdict: {verdict.decision}"


def _name(verdict: Verdict) -> str:
    if nodes := _nodes(verdict):
        return f"group of {counted(nodes, 'node')}" if type(nodes) is int else "group"
    return str(verdict.plan.node.get("name", "")) if verdict.plan else ""


def _nodes(verdict: Verdict) -> Any:
    """How many nodes a group has, as its plan says it; nothing true for one node."""
    return verdict.plan.node.get("group") if verdict.plan else None


def _told(reasons: Sequence[Reason]) -> Iterator[str]:
    """One line a reason, but one in all for many that say the same or follow from another."""
    measured = {(r.check, r.device) for r in reasons if r.why is not Why.SELFTEST}
    # Nothing can be planted in what did not come back: told once, as not measured.
    told = [r for r in reasons if r.why is not Why.SELFTEST or (r.check, r.device) not in measured]
    groups: dict[tuple[Why, str, str], list[Reason]] = {}
    for reason in told:
        groups.setdefault((reason.why, reason.device, reason.text), []).append(reason)
    for same in groups.values():
        first = same[0]
        if len(same) == 1 or not first.check:
            yield from map(str, same)
            continue
        on = f" on {first.label or first.device}" if first.device else ""
        some = ", ".join(r.check for r in same[:3])
        more = ", ..." if len(same) > 3 else ""
        yield f"{len(same)} checks{on} ({some}{more}): {first.text}"
