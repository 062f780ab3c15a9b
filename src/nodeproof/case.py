"""One run held against the manifest: everything that speaks against an accept. Pure.

A new kind of doubt has to be added here to count, and everything that is unknown to this module is
a problem of the file, which makes undecided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum

from nodeproof.manifest import Manifest
from nodeproof.model import Cause, DeviceKind, Finding, Key, Outcome, Planned, Remedy, Waiver
from nodeproof.results import Plan, Results

# The self-test of the verdict, made in every run: a finding is withheld and has to be missed.
WITHHELD = "nodeproof.verdict.withheld"


class Why(StrEnum):
    """The kinds of reason a verdict can have."""

    FAILED = "failed"
    SHORT = "short of a limit for want of something other than sound hardware"
    LINK = "a link failed, which blames neither of its ends"
    GROUP = "the group failed together, which blames none of its members"
    UNTRUSTED = "failed, but its detector was not proved in this run"
    ERRORED = "not measured"
    SKIPPED = "skipped, though required"
    MISSING = "planned, but no finding came back"
    DOUBLED = "found more than once"
    UNPLANNED = "required, but not planned"
    UNKNOWN = "found, but not planned"
    UNPROVED = "the finding does not show what it claims"
    SELFTEST = "the detector did not report its planted fault"
    FILE = "the results file is not whole"
    RUN = "the run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One thing that speaks against an accept."""

    why: Why
    text: str
    check: str = ""
    device: str = ""  # id
    label: str = ""
    remedy: Remedy = Remedy.RETEST
    cause: Cause | None = None

    def __str__(self) -> str:
        where = f" on {self.label}" if self.label else ""
        where += f" {self.device}" if self.device and self.device != self.label else ""
        return f"{self.check}{where}: {self.text}" if self.check else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run held against the manifest."""

    plan: Plan
    results: Results
    manifest: Manifest
    planned: Mapping[Key, Planned]
    demanded: Mapping[Key, float]  # by the manifest: seconds of load by check and device
    required: Mapping[Key, float]  # the same, and what a site adds and calls required
    caught: frozenset[Key]

    @classmethod
    def of_run(cls, plan: Plan, results: Results, manifest: Manifest) -> Case:
        """Hold a run against what `manifest` demands of its devices."""
        demanded = {
            Key(check=check, kind=device.kind, device=device.id): loaded_s
            for device in plan.devices
            for check, loaded_s in manifest.required(plan.profile, device).items()
        }
        added = {
            p.key: max(p.loaded_s, demanded.get(p.key, 0.0)) for p in plan.checks if p.required
        }
        told = Counter(t.key for t in results.selftests)
        return cls(
            plan=plan,
            results=results,
            manifest=manifest,
            planned={p.key: p for p in plan.checks},
            demanded=demanded,
            required=demanded | added,
            caught=frozenset(
                t.key for t in results.selftests if t.caught and t.planted and told[t.key] == 1
            ),
        )

    def of_the_run(self) -> Iterator[Reason]:
        """Doubts about the run as a whole."""
        plan, end = self.plan, self.results.end
        boot = plan.node.get("boot_id")
        if not boot:
            yield doubt("the boot id could not be read at the start")
        if end and end.interrupted:
            yield doubt(f"the run was interrupted: {end.interrupted}")
        if end and end.boot_id != boot:
            yield doubt(f"the boot id changed from {boot} to {end.boot_id or 'unreadable'}")
        if plan.manifest_digest != self.manifest.digest:
            yield doubt(
                f"written by other suites ({plan.version}, manifest {plan.manifest_digest[:19]}) "
                f"than those that judge (manifest {self.manifest.digest[:19]}): judge it with the "
                "version that wrote it"
            )
        if end and self._day() is None:
            yield doubt(
                f"the run says it ended at {end.ended!r}, which is no time after its start at "
                f"{plan.started!r}"
            )
        if not any(f.outcome is Outcome.PASS and f.key in self.required for f in self._findings()):
            yield doubt("nothing was measured and passed")

    def of_the_plan(self) -> Iterator[Reason]:
        """Doubts about what the run undertook, and whether it did that."""
        named = Counter((device.kind, device.id) for device in self.plan.devices)
        for (kind, name), times in named.items():
            if times > 1 or not name:
                yield doubt(f"the plan names {kind} {name!r} {times} times")
        tested = set(self.plan.selftests)
        for key in self._to_be_tested():
            if key not in tested:
                yield self._about(Why.UNPLANNED, key)
        yield from self._unmatched()

    def _unmatched(self) -> Iterator[Reason]:
        found = Counter(f.key for f in self._findings())
        for key in self.demanded:
            if key not in self.planned:
                yield self._about(Why.UNPLANNED, key)
        for key in {**self.planned, **self.required}:
            if found[key] > 1:
                yield self._about(Why.DOUBLED, key)
            elif found[key] == 0 and key in self.planned and not self.trial(key):
                yield self._about(Why.MISSING, key)
        for key in found:
            if key not in self.planned:
                yield self._about(Why.UNKNOWN, key)

    def of_the_selftests(self) -> Iterator[Reason]:
        """Doubts about the detectors."""
        for key in self._to_be_tested():
            if key not in self.caught:
                said = next((t.summary for t in self.results.selftests if t.key == key), "")
                yield self._about(Why.SELFTEST, key, said)

    def of(self, finding: Finding) -> Reason | None:
        """What one finding says against the node, if anything."""
        if self.trial(finding.key):
            return None
        why = self._why(finding)
        if why is None:
            return None
        blames = why is Why.FAILED
        text = finding.summary
        if why is Why.UNPROVED:
            text = "; ".join(self._unproved(finding))
        elif why is not Why.FAILED and why is not Why.SHORT:
            text = f"{why}: {finding.summary}"
        return Reason(
            why=why,
            text=text,
            check=finding.check,
            device=finding.device.id,
            label=finding.device.label,
            remedy=finding.remedy if blames or why is Why.ERRORED else Remedy.RETEST,
            cause=finding.cause,
        )

    def waiver(self, finding: Finding) -> Waiver | None:
        """The waiver that covers a fail or an error, if it has not expired."""
        today = self._day()
        if finding.outcome not in {Outcome.FAIL, Outcome.ERROR} or today is None:
            return None
        for waiver in self.plan.waivers:
            if (waiver.check, waiver.device) == (
                finding.check,
                finding.device.id,
            ) and _until(waiver) >= today:
                return waiver
        return None

    def _day(self) -> date | None:
        """Return the day on which the run ended, in UTC, if it can be believed."""
        if self.results.end is None:
            return None
        try:
            started = datetime.fromisoformat(self.plan.started).astimezone(UTC)
            ended = datetime.fromisoformat(self.results.end.ended).astimezone(UTC)
        except (ValueError, OverflowError):
            return None
        return ended.date() if ended >= started else None

    def _why(self, finding: Finding) -> Why | None:
        match finding.outcome:
            case Outcome.PASS:
                return Why.UNPROVED if any(self._unproved(finding)) else None
            case Outcome.SKIP:
                return Why.SKIPPED
            case Outcome.ERROR:
                return Why.ERRORED
            case Outcome.FAIL if finding.cause is not Cause.HARDWARE:
                return Why.SHORT
            case Outcome.FAIL if finding.device.kind is DeviceKind.LINK:
                return Why.LINK
            case Outcome.FAIL if finding.device.kind is DeviceKind.GROUP:
                return Why.GROUP
            case Outcome.FAIL:
                return (
                    Why.FAILED
                    if finding.key in self.caught and finding.key in self.planned
                    else Why.UNTRUSTED
                )

    def _unproved(self, finding: Finding) -> Iterator[str]:
        if not any(m.bounded for m in finding.measurements):
            yield "a pass without a measurement that was held against a limit"
        if finding.cause is not None or finding.remedy is not Remedy.NONE:
            yield f"a pass that blames {finding.cause} and asks for {finding.remedy}"
        for a in finding.attempts:
            if a.outcome is Outcome.FAIL or a.cause is Cause.HARDWARE:
                yield f"a pass after {a.outcome} by {a.cause}: {a.summary}"
        for m in finding.measurements:
            if not m.held:
                yield f"a pass with a broken limit: {m}"
        floor = self.required.get(finding.key, 0.0)
        if finding.loaded_s < floor:
            yield f"{finding.loaded_s:.1f} s under load, {floor:g} s required"

    def _findings(self) -> tuple[Finding, ...]:
        return self.results.findings

    def trial(self, key: Key) -> bool:
        """Whether a finding of this key is only reported."""
        # By the manifest first: a plan can't make a trial of what the manifest demands.
        if key in self.required:
            return False
        entry = self.manifest.entries.get(key.check)
        return entry.trial if entry else key in self.planned and self.planned[key].trial

    def _to_be_tested(self) -> Iterator[Key]:
        # What is not planned at all is told once, as that.
        yield from (key for key in self.required if key in self.planned)
        yield from self._withheld()

    def _withheld(self) -> Iterator[Key]:
        for device in self.plan.devices:
            if device.kind in {DeviceKind.NODE, DeviceKind.GROUP}:
                yield Key(check=WITHHELD, kind=device.kind, device=device.id)

    def _about(self, why: Why, key: Key, said: str = "") -> Reason:
        label = next((d.label for d in self.plan.devices if d.id == key.device), "")
        text = f"{why}: {said}" if said else why.value
        return Reason(why=why, text=text, check=key.check, device=key.device, label=label)


def _until(waiver: Waiver) -> date:
    try:
        return date.fromisoformat(waiver.expires)
    except ValueError:
        return date.min  # a waiver without a date does nothing


def doubt(text: str) -> Reason:
    """Speak against the run as a whole."""
    return Reason(why=Why.RUN, text=text)
