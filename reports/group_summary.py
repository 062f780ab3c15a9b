"""What speaks against a group of nodes, for a person: one line for one cause, whoever it held up.

A node that is lost leaves every other check of it, and every check that wants all nodes, without an
answer. That is one cause and a dozen reasons: the line tells the cause, and the files hold all.
Nothing is left out that no line tells of, and what blames hardware always has a line of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from nodeproof.reports.counted import counted
from nodeproof.verdict import Reason, Verdict, Why

_PRESENCE = "fabric.member.presence"
_PAIRS = "fabric.member.pairs"
_LINK = "fabric.link.pair"
_COMMON = "fabric.group.common"
_GRADE = "fabric.group.grade"
_WIDTH = 320  # characters of a line; of a reason that is longer the files have the rest
_LOST = re.compile(r"(?P<what>came|stayed) 0 \(wants at least 1\): (?P<why>.+)", re.DOTALL)
_WITHOUT = re.compile(r", without (?P<names>[^;]+)")
_WRONG = re.compile(r"\bwrong\b")
_INTERRUPTED = re.compile(r"the run was interrupted: (?P<why>.+)", re.DOTALL)
_ADVISED = "see whether"  # the head has said by itself what to look at
_UNSTARTED = "see how it was started, and what it left in the log of that"
_LEFT = "see its own log and its kernel's (killed for memory, rebooted, evicted), then run again"


def told(verdict: Verdict) -> list[str]:
    """Return a line for each cause, those of lost nodes first, and one for what follows from them."""
    rest = list(verdict.undecided)
    if never := _never_told(verdict):
        return never
    lines = [_clipped(str(reason)) for reason in verdict.failed]
    lost = {r.device: found["why"] for r in rest if (found := _lost(r))}
    absent = {r.device for r in rest if (found := _lost(r)) and found["what"] == "came"}
    stopped = [found["why"] for r in rest if (found := _INTERRUPTED.fullmatch(r.text))]
    common = any(r.check == _COMMON and r.why is not Why.ERRORED for r in rest)
    causes, follow = list[Reason](), 0
    for reason in rest:
        if _lost(reason):
            advice = _UNSTARTED if reason.device in absent else _LEFT
            lines.append(_of_a_lost(reason.device, lost[reason.device], advice))
        elif _follows(reason, lost, stopped) or (common and _of_pairs(reason)):
            follow += 1
        else:
            causes.append(reason)
    lines += _grouped(causes)
    if follow:
        which = "which follows" if follow == 1 else "which follow"
        lines.append(
            f"and {counted(follow, 'more finding')}, {which} from the above: see the files"
        )
    return lines


def _never_told(verdict: Verdict) -> list[str]:
    """What a member says that heard nothing from its head: why, and nothing of what that leaves."""
    if verdict.plan is None or verdict.plan.checks or verdict.failed:
        return []
    whys = [found["why"] for r in verdict.undecided if (found := _INTERRUPTED.fullmatch(r.text))]
    return [f"no results of the group: {why}" for why in whys]


def _lost(reason: Reason) -> re.Match[str] | None:
    return _LOST.search(reason.text) if reason.check == _PRESENCE else None


def _of_a_lost(name: str, why: str, advice: str) -> str:
    """Say what became of a node; its name stands in front, once."""
    said = why.removeprefix(name).lstrip(" :")
    if _ADVISED in why:
        return f"{name}: {said}"
    return f"{name}: {_clipped(said)}; {advice}"


def _of_pairs(reason: Reason) -> bool:
    """Whether it is only that pairs were slow or did not finish; wrong bits are told by themselves."""
    blames = reason.why is Why.FAILED or _WRONG.search(reason.text)
    return reason.check in {_PAIRS, _LINK} and not blames


def _follows(reason: Reason, lost: dict[str, str], stopped: Sequence[str]) -> bool:
    """Whether a reason is there only because a node was lost, or the run was stopped."""
    if reason.check == _GRADE and (found := _WITHOUT.search(reason.text)):
        return set(found["names"].split(", ")) <= lost.keys()
    # Only what was not measured. What was, and fell short, is a cause of its own.
    if reason.why not in {Why.ERRORED, Why.SELFTEST}:
        return False
    whys = (*lost.values(), *stopped)
    return reason.device in lost or any(why in reason.text for why in whys)


def _grouped(reasons: Sequence[Reason]) -> Iterator[str]:
    """One line for all devices and checks that say the same."""
    # Nothing can be planted in what did not come back: told once, as not measured.
    measured = {(r.check, r.device) for r in reasons if r.why is not Why.SELFTEST}
    groups: dict[str, list[Reason]] = {}
    for reason in reasons:
        if reason.why is not Why.SELFTEST or (reason.check, reason.device) not in measured:
            groups.setdefault(reason.text, []).append(reason)
    for text, same in groups.items():
        if len(same) == 1 or not same[0].check:
            yield _clipped(str(same[0]))
            continue
        checks = list(Counter(reason.check for reason in same))
        names = list(Counter(r.label or r.device for r in same if r.device))
        yield _clipped(f"{_some(checks)} on {_some(names)}: {text}")


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


def _clipped(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH].rstrip()} ... (whole in the files)"
