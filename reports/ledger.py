"""What became of everything planned or found, as the verdict counted it.

Every report shows these rows, so that none can look better than the verdict: what was planned and
did not come back has a row, and so has a pass that the verdict does not believe.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from nodeproof.model import Finding, Key, Outcome, SelfTest
from nodeproof.results import Results
from nodeproof.verdict import Reason, Verdict, Why


class Standing(StrEnum):
    """How one row counts."""

    PASS = "pass"
    FAIL = "fail"
    ERROR = "error"
    SKIP = "skip"
    MISSING = "missing"  # nothing came back, or it was not even planned
    UNPROVED = "unproved"  # says pass, and the verdict does not believe it
    UNCOUNTED = "not counted"  # no pass, but waived, on trial, or not required


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One check on one device."""

    check: str
    device: str  # id
    label: str
    standing: Standing
    says: str
    finding: Finding | None = None
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """One self-test on one device: `pass`, `error`, `missing` or `not counted`."""

    check: str
    device: str
    label: str
    standing: Standing
    says: str
    selftest: SelfTest | None = None


_Where = tuple[str, str]  # check and device id
_ABSENT = frozenset({Why.MISSING, Why.UNPLANNED})
_AS_FOUND = {
    Outcome.PASS: Standing.PASS,
    Outcome.FAIL: Standing.FAIL,
    Outcome.ERROR: Standing.ERROR,
    Outcome.SKIP: Standing.SKIP,
}


def rows(results: Results, verdict: Verdict) -> tuple[Row, ...]:
    """One row for each finding, then for each check that has none."""
    reasons = _reasons(verdict, of_selftests=False)
    found = [_found(finding, reasons, verdict) for finding in results.findings]
    return (*found, *_absent(results, reasons))


def proofs(results: Results, verdict: Verdict) -> tuple[Proof, ...]:
    """One row for each self-test, then for each that did not come back."""
    reasons = _reasons(verdict, of_selftests=True)
    told = Counter(test.key for test in results.selftests)
    made = [_made(t, told[t.key], reasons, verdict) for t in results.selftests]
    return (*made, *_unmade(results, reasons))


def _reasons(verdict: Verdict, *, of_selftests: bool) -> Mapping[_Where, list[Reason]]:
    index: defaultdict[_Where, list[Reason]] = defaultdict(list)
    for reason in (*verdict.failed, *verdict.undecided):
        if reason.check and (reason.why is Why.SELFTEST) == of_selftests:
            index[reason.check, reason.device].append(reason)
    return index


def _found(finding: Finding, index: Mapping[_Where, list[Reason]], verdict: Verdict) -> Row:
    reasons = index.get((finding.check, finding.device.id), [])
    standing, says = _AS_FOUND[finding.outcome], finding.summary
    # Without a plan nothing was judged one by one, so there is nothing to count differently.
    if verdict.plan is not None:
        if standing is Standing.PASS and reasons:
            standing, says = Standing.UNPROVED, "; ".join(r.text for r in reasons)
        elif standing in {Standing.FAIL, Standing.ERROR} and not reasons:
            standing, says = Standing.UNCOUNTED, _uncounted(finding, verdict)
    return Row(
        check=finding.check,
        device=finding.device.id,
        label=finding.device.label,
        standing=standing,
        says=says,
        finding=finding,
        reasons=tuple(reasons),
    )


def _uncounted(finding: Finding, verdict: Verdict) -> str:
    for waiver in verdict.waived:
        if (waiver.check, waiver.device) == (finding.check, finding.device.id):
            why = f"waived until {waiver.expires} ({waiver.reason})"
            break
    else:
        why = "a trial check does not count"
    return f"{finding.outcome.value}, {why}: {finding.summary}"


def _absent(results: Results, index: Mapping[_Where, list[Reason]]) -> Iterator[Row]:
    if results.plan is None:
        return
    found = {finding.key for finding in results.findings}
    there = {(key.check, key.device) for key in found}
    told: set[_Where] = set()
    for key in dict.fromkeys(planned.key for planned in results.plan.checks):
        if key in found:
            continue
        where = (key.check, key.device)
        told.add(where)
        reasons = [r for r in index.get(where, []) if r.why in _ABSENT]
        says = "; ".join(r.text for r in reasons)
        yield Row(
            check=key.check,
            device=key.device,
            label=_label(results, key),
            standing=Standing.MISSING if reasons else Standing.UNCOUNTED,
            says=says or "a trial check, from which no finding came back",
            reasons=tuple(reasons),
        )
    for where, reasons in index.items():
        if where in there or where in told:
            continue
        yield Row(
            check=where[0],
            device=where[1],
            label=reasons[0].label,
            standing=Standing.MISSING,
            says="; ".join(r.text for r in reasons),
            reasons=tuple(reasons),
        )


def _made(
    test: SelfTest, told: int, index: Mapping[_Where, list[Reason]], verdict: Verdict
) -> Proof:
    doubted = bool(index.get((test.check, test.device.id))) or verdict.plan is None
    standing, says = Standing.PASS, test.summary
    if not test.caught:
        standing = Standing.ERROR if doubted else Standing.UNCOUNTED
        says = test.summary or Why.SELFTEST.value
    elif told > 1:
        standing, says = Standing.ERROR, f"reported {told} times, which proves nothing"
    return Proof(
        check=test.check,
        device=test.device.id,
        label=test.device.label,
        standing=standing,
        says=says,
        selftest=test,
    )


def _unmade(results: Results, index: Mapping[_Where, list[Reason]]) -> Iterator[Proof]:
    there = {(test.check, test.device.id) for test in results.selftests}
    planned = results.plan.selftests if results.plan else ()
    wanted = {(key.check, key.device): _label(results, key) for key in planned}
    wanted |= {where: reasons[0].label for where, reasons in index.items()}
    for where, label in wanted.items():
        if where in there:
            continue
        needed = where in index
        yield Proof(
            check=where[0],
            device=where[1],
            label=label,
            standing=Standing.MISSING if needed else Standing.UNCOUNTED,
            says="no result of this self-test came back" + ("" if needed else "; none is required"),
        )


def _label(results: Results, key: Key) -> str:
    devices = results.plan.devices if results.plan else ()
    named = (d.label for d in devices if (d.kind, d.id) == (key.kind, key.device))
    return next(named, key.device)
