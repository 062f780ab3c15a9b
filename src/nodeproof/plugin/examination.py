"""One check on one device: its work done, its answer taken, its detector tested."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from nodeproof.checks import CannotMeasure, CheckSpec, Plant, Results
from nodeproof.model import Device, Outcome, SelfTest
from nodeproof.plugin import findings, planning, selftesting
from nodeproof.plugin.judging import Judgement, Measurements, judge
from nodeproof.plugin.machine import Machine
from nodeproof.plugin.options import Options
from nodeproof.plugin.performing import Done, Performer


@dataclass(slots=True, kw_only=True)
class Examination:
    """What the checks of a session ask of the workers; every piece of work is done once."""

    options: Options
    runner: Performer
    machine: Machine
    limits_of: Callable[[CheckSpec], Any]
    planned: dict[str, list[Device]] = field(default_factory=dict)  # by check

    def done(self, declared: CheckSpec, device: Device) -> list[Done]:
        """Do the work of a check, and return what became of it where the check looks."""
        return self._work(declared, device, {}, self._load(declared))

    def answer(self, declared: CheckSpec, done: list[Done]) -> Any:
        """What the check's function judges. Raises `WorkFailed` where the work has no answer."""
        if declared.gathers:
            return [(d, o.result()) for d, o in zip(self.machine.devices, done, strict=True)]
        return done[0].result()

    def peers(
        self,
        declared: CheckSpec,
        device: Device,
        more: Mapping[str, Any] | None = None,
    ) -> Results:
        """What the same work came to on the other devices, of those that answered.

        `more` are the arguments that plant a fault; the peers of such a run had theirs too.
        """
        if declared.gathers:
            return []
        found = []
        done = self._done(declared, more or {}, 0.0 if more else self._load(declared))
        for other in self.planned[declared.id]:
            with contextlib.suppress(CannotMeasure):
                if other.id != device.id:
                    found.append((other, done[other.id].result()))
        return found

    def selftest(self, item: pytest.Function, declared: CheckSpec, device: Device) -> SelfTest:
        """Feed the detector its planted faults on this device."""
        peers: Results = []

        def attempt(answer: Any) -> Judgement:
            return self._attempt(item, declared, device, answer, peers)

        try:
            bounded, trials, faulty = frozenset[str](), [], False
            own = None if self.options.selftest_only else self._own_answer(declared, device)
            if own is not None:
                peers = self.peers(declared, device)
                judgement = attempt(own)
                bounded, faulty = judgement.bounded, judgement.outcome is Outcome.FAIL
            for plant in declared.plants:
                if plant.args:
                    done = self._work(declared, device, plant.args, 0.0)
                    answer = self.answer(declared, done)
                    peers = self.peers(declared, device, plant.args)
                    faulty = faulty and self._witness(item, declared, device, plant)
                    trials.append(
                        selftesting.planted_in_worker(
                            declared, plant, answer, attempt, faulty=faulty
                        )
                    )
                    continue
                answer = own or self._own_answer(declared, device)
                peers = self.peers(declared, device)
                trial = selftesting.planted_in_answer(declared, plant, answer, attempt)
                trials += [trial] if trial else []
            return selftesting.concluded(declared, device, trials, bounded)
        except Exception as error:  # noqa: BLE001  a self-test that broke is one that was missed
            return selftesting.missed(declared, device, f"{type(error).__name__}: {error}")

    def _work(
        self, declared: CheckSpec, device: Device, more: Mapping[str, Any], load_s: float
    ) -> list[Done]:
        """Do the work on every device, and return what became of it where this check looks."""
        done = self._done(declared, more, load_s)
        if declared.gathers:
            return [done[d.id] for d in self.machine.devices]
        return [done[device.id]]

    def _done(self, declared: CheckSpec, more: Mapping[str, Any], load_s: float) -> dict[str, Done]:
        """Do the work on every device that this session has under this check, all at once."""
        limits = self.limits_of(declared)
        asked = {name: getattr(limits, name) for name in declared.work.from_limits}
        args = {**declared.work.args, **asked, **more}
        gathered = self.machine.devices
        on = gathered if declared.gathers or declared.work.group else self.planned[declared.id]
        if not on:
            raise CannotMeasure(f"no device was under test: see {planning.COUNT}")
        return self.runner.perform(declared.work, args, on, load_s=load_s)

    def _witness(
        self, item: pytest.Function, declared: CheckSpec, device: Device, plant: Plant
    ) -> bool:
        """Whether something besides this device says that its detector tells wrong from right.

        A comparison that calls everything wrong looks like a device that is broken for good; it
        does so on every device. So another device has to be found sound, with its planted fault
        reported exactly; or where there is none, the host has to bear the mismatch out.
        """
        if declared.gathers:
            return False
        for other in self.planned[declared.id]:
            try:
                own = self.answer(declared, self._work(declared, other, {}, self._load(declared)))
                planted = self.answer(declared, self._work(declared, other, plant.args, 0.0))
            except CannotMeasure:
                continue
            sound = self._attempt(item, declared, other, own, []).outcome is Outcome.PASS
            if other.id != device.id and sound and planted["found"] == planted["planted"] != []:
                return True
        own = self._own_answer(declared, device)
        return len(self.planned[declared.id]) == 1 and selftesting.borne_out_by_the_host(own)

    def _attempt(
        self,
        item: pytest.Function,
        declared: CheckSpec,
        device: Device,
        answer: Any,
        peers: Results,
    ) -> Judgement:
        """Judge an answer by the check's own function, and record nothing."""
        measurements = Measurements()
        raised: BaseException | None = None
        try:
            limits = self.limits_of(declared)
            findings.call(item, device, answer, peers, measurements, limits)
        except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:  # noqa: BLE001  judged
            raised = error
        return judge(declared, measurements.taken, findings.as_assertion(raised))

    def _own_answer(self, declared: CheckSpec, device: Device) -> Any:
        """The answer on the device itself, if the work on it came back with one."""
        alters = any(plant.alter for plant in declared.plants)
        try:
            done = self._work(declared, device, {}, self._load(declared))
            return self.answer(declared, done)
        except CannotMeasure:
            if alters:
                raise
            return None

    def _load(self, declared: CheckSpec) -> float:
        load = None if self.options.selftest_only else declared.work.load
        return load.seconds(self.options.profile) if load else 0.0
