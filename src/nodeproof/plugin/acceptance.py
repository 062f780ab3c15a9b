"""One acceptance run inside one pytest session: plan, do, judge, record."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import pytest

from nodeproof import lifeline, manifest, plugin, spec, verdict
from nodeproof.checks import CannotMeasure, CheckSpec, spec_of
from nodeproof.child import Interrupted
from nodeproof.model import COMPUTE, Device, Finding, Outcome
from nodeproof.plugin import findings, options, planning, selftesting
from nodeproof.plugin.examination import Examination
from nodeproof.plugin.judging import Measurements, judge
from nodeproof.plugin.machine import Machine, look
from nodeproof.plugin.performing import Done
from nodeproof.plugin.recording import FILES, Recorder, is_reading
from nodeproof.plugin.refusal import Refusal
from nodeproof.plugin.replaying import performer
from nodeproof.probes.boot import boot_id
from nodeproof.results import FILE, End, Writer, now, parse, plain
from nodeproof.spec import SpecError
from nodeproof.verdict import Verdict, Why
from nodeproof.waivers import WaiverError

_DEVICE = pytest.StashKey[Device]()
_FINDING = pytest.StashKey[Finding]()
_STARTED = pytest.StashKey[float]()
SUPERVISOR = "NODEPROOF_SUPERVISOR"  # process id of `nodeproof run`, which this run ends with
_LAST_RESORT_S = 120.0  # past every deadline of ours; reached only through a bug of ours


@dataclasses.dataclass(frozen=True, slots=True)
class _Slot:
    """Stands for an argument that exists only once the work is done."""

    device: Device

    def __repr__(self) -> str:
        return self.device.label


class Acceptance:
    """The hooks of a session that has at least one check."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._limits: dict[str, Any] = {}
        self._verdict: Verdict | None = None
        self._writer: Writer | None = None
        self._early: list[Mapping[str, Any]] | None = []  # events from before there was a plan
        self._interrupted = ""
        self._refused = False
        self._begun: set[str] = set()
        self._handlers: dict[signal.Signals, Any] = {}
        supervisor = os.environ.get(SUPERVISOR, "")
        if supervisor and not (
            supervisor.isdecimal() and lifeline.end_with(int(supervisor), signal.SIGTERM)
        ):
            raise Refusal("the process that started this run is gone")
        try:
            self.options = options.read(config.option)
        except (options.OptionError, SpecError, WaiverError) as error:
            raise Refusal(str(error)) from None
        self._scratch = TemporaryDirectory(prefix="nodeproof-")
        self._output = config.option.nodeproof_output or Path(self._scratch.name)
        self._recorder = Recorder(
            device=self.options.target.value,
            cpu_devices=self.options.cpu_devices,
            profile=self.options.profile,
            spec=self.options.spec.summary(),
        )
        self._runner = performer(
            self.options, record=self._record, note=self._recorder.note, output=self._output
        )
        config.add_cleanup(self._scratch.cleanup)
        config.add_cleanup(self._close)
        identify = not config.option.collectonly
        self.machine: Machine = look(self._runner, self.options, identify=identify)
        self._examination = Examination(
            options=self.options,
            runner=self._runner,
            machine=self.machine,
            limits_of=self._limits_of,
        )

    # --- collecting -------------------------------------------------------------------------

    def parametrise(self, metafunc: pytest.Metafunc) -> None:
        """Make one test of a check per device of its kinds; the id is the device's label."""
        declared = _declared(metafunc.function)
        of_kinds = self.machine.of_kinds(declared.kinds)
        devices = [d for d in of_kinds if d.has(declared.capability)]
        if self.options.profile not in declared.profiles:
            devices = []
        self._limits_of(declared)
        names = findings.arguments(metafunc.function)
        metafunc.parametrize(
            names,
            [tuple(_Slot(device) for _ in names) for device in devices],
            ids=[device.label for device in devices],
        )

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Mark each check by its component, for -m."""
        declared = spec_of(getattr(item, "function", None))
        if declared is None:
            return
        slots = getattr(getattr(item, "callspec", None), "params", {}).values()
        for slot in slots:
            if isinstance(slot, _Slot):
                item.stash[_DEVICE] = slot.device
        for mark in ("check", declared.id.split(".")[1], *(["trial"] if declared.trial else [])):
            line = f"{mark}: acceptance checks of this name (nodeproof)"
            if line not in self._config.getini("markers"):
                self._config.addinivalue_line("markers", line)
            item.add_marker(mark)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out what applies to no device here: an empty parameter set would only skip."""
        if plugin.REFUSAL in self._config.stash:
            self._refused = True
            return
        ids = {s.id for i in items if (s := spec_of(getattr(i, "function", None)))}
        absent = [i for i in items if (d := _declared_by(i)) and not self._applies(d, i)]
        if absent:
            self._config.hook.pytest_deselected(items=absent)
            items[:] = [i for i in items if i not in absent]
        items.sort(key=lambda i: _stage(_declared_by(i)))  # stable: within a stage as written
        try:
            spec.known(self.options.spec, ids | set(manifest.shipped().entries))
        except SpecError as error:
            self._refused = True
            raise pytest.UsageError(f"nodeproof: {error}") from None

    def _applies(self, declared: CheckSpec, item: pytest.Item) -> bool:
        # A recording can't hold what a device computes, so that is not done for one.
        recorded = not self.options.record or is_reading(declared.work.call)
        return _DEVICE in item.stash and recorded

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Write the plan before the first check runs."""
        if self._config.option.collectonly or self._refused or session.shouldfail:
            return
        checks = [(d, i.stash[_DEVICE]) for i in session.items if (d := _declared_by(i))]
        for declared, device in checks:
            self._examination.planned.setdefault(declared.id, []).append(device)
        plan = planning.plan(
            checks,
            machine=self.machine,
            options=self.options,
            manifest=manifest.shipped(),
            expected=self._expected(),
        )
        try:
            self._output.mkdir(parents=True, exist_ok=True)
            self._writer = Writer(self._output / FILE)
            self._record("plan", planning.record(plan))
            early, self._early = self._early or [], None
            for event in early:
                self._record("event", event)
        except OSError as error:
            raise pytest.UsageError(
                f"nodeproof: results can't be written to {self._output}: {error.strerror}"
            ) from None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._handlers[number] = signal.signal(number, self._stop)
        self._runner.watch()
        self._runner.note_starts([(declared.work, device) for declared, device in checks])

    def _close(self) -> None:
        self._runner.close(hurried=True)

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        if self._interrupted:  # asked twice: whatever runs may be none of ours
            raise KeyboardInterrupt
        self._interrupted = self._interrupted or f"by {signal.Signals(number).name}"
        self._runner.interrupt(self._interrupted)

    # --- running ----------------------------------------------------------------------------

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Note the start, and stop here if the run was told to."""
        if _declared_by(item):
            item.stash[_STARTED] = time.monotonic()
            if self._interrupted:
                raise Interrupted(self._interrupted)
            if self._config.pluginmanager.hasplugin("timeout"):
                left = self._runner.ends - time.monotonic() + _LAST_RESORT_S
                item.add_marker(pytest.mark.timeout(max(left, _LAST_RESORT_S), method="signal"))

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Do the work of a check, call it with the answer, judge what it measured."""
        declared = _declared_by(pyfuncitem)
        if declared is None:
            return None
        device = pyfuncitem.stash[_DEVICE]
        if self.options.selftest_only:
            test = self._examination.selftest(pyfuncitem, declared, device)
            self._record("selftest", plain(test))
            if not test.caught:
                pytest.fail(f"{declared.id} on {device}: {test.summary}", pytrace=False)
            return True
        if declared.id not in self._begun:
            self._begun.add(declared.id)
            self._record("event", {"name": "check.started", "check": declared.id})
        measurements = Measurements()
        raised: BaseException | None = None
        answer: Any = None
        done: list[Done] = []
        try:
            done = self._examination.done(declared, device)
            answer = self._examination.answer(declared, done)
            peers = self._examination.peers(declared, device)
            limits = self._limits_of(declared)
            findings.call(pyfuncitem, device, answer, peers, measurements, limits)
        except pytest.skip.Exception as skip:
            pyfuncitem.stash[_FINDING] = findings.unjudged(
                declared, device, Outcome.SKIP, str(skip)
            )
            test = self._examination.selftest(pyfuncitem, declared, device)
            self._record("selftest", plain(test))
            raise
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  judged below
            raised = error
        judgement = judge(declared, measurements.taken, findings.as_assertion(raised))
        pyfuncitem.stash[_FINDING] = findings.finding(
            declared, device, judgement, measurements, answer, done
        )
        test = self._examination.selftest(pyfuncitem, declared, device)
        self._record("selftest", plain(test))
        if judgement.outcome is Outcome.FAIL:
            pytest.fail(f"{device}: {judgement.summary}", pytrace=False)
        if judgement.outcome is Outcome.ERROR:
            if raised is None or isinstance(raised, CannotMeasure):  # our own sentence says it all
                pytest.fail(f"{device}: not measured: {judgement.summary}", pytrace=False)
            raise raised
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Write the finding when the test is over, whatever ended it."""
        report = yield
        declared = _declared_by(item)
        if declared is None or self.options.selftest_only:
            return report
        device = item.stash[_DEVICE]
        if not report.passed and (report.when != "call" or _FINDING not in item.stash):
            # Ended from outside the check: a mark, a fixture, a time-out, another plugin.
            outcome = Outcome.SKIP if report.skipped else Outcome.ERROR
            said = str(call.excinfo.value) if call.excinfo else report.longreprtext
            item.stash[_FINDING] = findings.unjudged(
                declared, device, outcome, f"{call.when}: {said}"
            )
        if call.when == "teardown":
            took = time.monotonic() - item.stash.get(_STARTED, time.monotonic())
            finding = dataclasses.replace(item.stash[_FINDING], duration_s=round(took, 3))
            self._record("finding", plain(finding))
            report.user_properties.append(("nodeproof.outcome", finding.outcome.value))
            report.user_properties.append(("nodeproof.device", device.id))
        return report

    def _limits_of(self, declared: CheckSpec) -> Any:
        if declared.id not in self._limits:
            try:
                limits = spec.limits_for(self.options.spec, declared.id, declared.limits)
            except SpecError as error:
                raise Refusal(str(error)) from None
            self._limits[declared.id] = limits
        return self._limits[declared.id]

    def _expected(self) -> int | None:
        if self.options.group:  # how many members there have to be, the identity says
            return None
        expected = getattr(self._limits.get(planning.COUNT), "expected", None)
        return expected if isinstance(expected, int) else None

    # --- ending -----------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """End the workers, test the verdict itself, write the last line, decide."""
        for number in self._handlers:  # the last lines are not to be cut off
            signal.signal(number, signal.SIG_IGN)
        self._record_node(exitstatus)
        for sentence in self._runner.close(hurried=bool(self._interrupted)):
            self._record("event", {"name": "worker.stuck", "text": sentence})
        if self._writer is None:
            return
        if self._writer.lost:
            self._record("event", {"name": "telemetry.lost", "lines": self._writer.lost})
        if exitstatus not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
            self._interrupted = self._interrupted or f"pytest ended with status {int(exitstatus)}"
        if self.options.group:
            self._interrupted = self._interrupted or self.options.group.group.interrupted
        end = End(boot_id=self._boot_id(), ended=now(), interrupted=self._interrupted)
        so_far = dataclasses.replace(parse(self._writer.content()), end=end, problems=())
        test = selftesting.withheld(self.machine.node, so_far, manifest.shipped())
        self._record("selftest", plain(test))
        self._record("end", plain(end))
        content = self._writer.content()
        writer, self._writer = self._writer, None
        writer.close()
        if self.options.selftest_only:
            return
        self._verdict = verdict.decide_any(parse(content), manifest.shipped())
        # A selection is no accept, and yet no failure of the tests that were selected.
        doubts = [r for r in self._verdict.undecided if r.why is not Why.UNPLANNED]
        if exitstatus == pytest.ExitCode.OK and (doubts or self._verdict.failed):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _boot_id(self) -> str:
        if self.options.replay:
            return str(self.machine.identity["boot_id"])
        if self.options.group:
            return self.options.group.group.boot_id_end
        return boot_id(self.options.host_root)

    def _record_node(self, exitstatus: int) -> None:
        """Write the recording that was asked for, of a run that got as far as its plan."""
        if self.options.record is None or self._writer is None:
            return
        whole = exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}
        interrupted = self._interrupted or ("" if whole else "pytest did not come to its end")
        try:
            if not interrupted:
                self._runner.perform(FILES, FILES.args, [self.machine.node], load_s=0.0)
            self._recorder.write(
                self.options.record, self.machine.identity, interrupted=interrupted
            )
        except OSError as error:
            self._record("event", {"name": "recording.lost", "text": str(error)})

    def pytest_unconfigure(self) -> None:
        """Leave signals as they were."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say the verdict."""
        told = self._verdict
        if told is None:
            return
        rehearsal = "rehearsal " if told.rehearsal else ""
        terminalreporter.section(f"{rehearsal}{told.decision}, remedy {told.remedy}")
        unplanned = sum(r.why is Why.UNPLANNED for r in told.undecided)
        for reason in (*told.failed, *(r for r in told.undecided if r.why is not Why.UNPLANNED)):
            terminalreporter.line(str(reason))
        if unplanned:
            terminalreporter.line(f"{unplanned} required checks were not selected")

    # --- recording --------------------------------------------------------------------------

    def _record(self, kind: str, content: Mapping[str, Any]) -> None:
        if self._writer is None:
            if kind == "event" and self._early is not None:
                self._early.append(content)
            return
        try:
            self._writer.write(kind, content)
        except OSError as error:
            self._interrupted = f"results can't be written to {self._output}: {error.strerror}"
            pytest.exit(
                f"nodeproof: {self._interrupted}", returncode=pytest.ExitCode.INTERNAL_ERROR
            )


def _stage(declared: CheckSpec | None) -> tuple[int, float]:
    """Order the checks: what is cheap and tells most comes first, the longest load last."""
    if declared is None:
        return 0, 0.0
    if declared.work.last:
        return 5, 0.0
    if declared.work.load:
        return 4, declared.work.load.quick
    if declared.work.group:
        return 3, 0.0
    of_the_machine = not declared.gathers and not set(declared.kinds) & set(COMPUTE)
    return 1 if of_the_machine else 2, 0.0


def _declared(function: object) -> CheckSpec:
    declared = spec_of(function)
    assert declared is not None
    return declared


def _declared_by(item: pytest.Item) -> CheckSpec | None:
    return spec_of(getattr(item, "function", None))
