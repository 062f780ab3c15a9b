"""The verdict, row by row of the design's table (section 5), under the shipped manifest."""

from __future__ import annotations

import dataclasses
import json

import pytest

from nodeproof.manifest import shipped
from nodeproof.model import (
    Attempt,
    Cause,
    Device,
    DeviceKind,
    Key,
    Measurement,
    Outcome,
    Planned,
    Profile,
    Remedy,
)
from nodeproof.verdict import WITHHELD, Decision, Why
from tests.results_samples import device
from tests.shipped_run import (
    BAD,
    BURNIN,
    GPU,
    HOST,
    MEMORY,
    NODE,
    RUN,
    WRONG,
    accepted,
    decided,
    failed,
    judged,
    retest,
    without,
)

ACCEPT, REJECT, UNDECIDED = Decision.ACCEPT, Decision.REJECT, Decision.UNDECIDED
PLAN = RUN.plan


def site(kind=DeviceKind.NIC, *, trial=False, **changes):
    """The same run with a check of the site's own, on a device of its own."""
    on = Device(kind=kind, id="0000:3b:00.0", label="mlx5_0")
    key = Key(check="nic.port.state", kind=kind, device=on.id)
    finding = dataclasses.replace(RUN.findings[0], check=key.check, device=on, **changes)
    test = dataclasses.replace(RUN.selftests[0], check=key.check, device=on)
    planned = Planned(key=key, required=not trial, trial=trial)
    return RUN.replan(
        devices=(*PLAN.devices, on),
        checks=(*PLAN.checks, planned),
        selftests=(*PLAN.selftests, key),
    ).but(findings=(*RUN.findings, finding), selftests=(*RUN.selftests, test))


def end(**changes):
    return RUN.but(end=dataclasses.replace(RUN.end, **changes))


TABLE = {
    # what the file shows: the run, the decision, a kind of reason
    "nothing against it": (RUN, ACCEPT, None),
    "a check of the site's own that passed": (site(), ACCEPT, None),
    "hardware failed": (failed(), REJECT, Why.FAILED),
    "hardware failed on a site's device": (site(**BAD), REJECT, Why.FAILED),
    "hardware failed on the node": (failed("node.devices.count", NODE.label), REJECT, Why.FAILED),
    "hardware failed on the host": (failed("host.cpu.cores", HOST.label), REJECT, Why.FAILED),
    "its detector missed": (retest(failed(), MEMORY, GPU, caught=False), UNDECIDED, Why.UNTRUSTED),
    "its detector was not tested": (
        failed().but(selftests=tuple(t for t in RUN.selftests if (t.check, t.device) != (MEMORY, GPU))),
        UNDECIDED,
        Why.UNTRUSTED,
    ),
    "its detector was tested twice": (
        failed().but(selftests=(*RUN.selftests, *(t for t in RUN.selftests if t.device == GPU))),
        UNDECIDED,
        Why.UNTRUSTED,
    ),
    "another device's detector missed": (
        retest(failed(), MEMORY, device(0), caught=False), REJECT, Why.FAILED
    ),
    "the environment failed": (failed(cause=Cause.ENVIRONMENT), UNDECIDED, Why.SHORT),
    "the spec is wrong": (failed(cause=Cause.CONFIG), UNDECIDED, Why.SHORT),
    "nobody says who failed": (failed(cause=None), UNDECIDED, Why.SHORT),
    "a link failed": (site(DeviceKind.LINK, **BAD), UNDECIDED, Why.LINK),
    "a finding is missing": (without(RUN, MEMORY), UNDECIDED, Why.MISSING),
    "a finding is doubled": (RUN.but(findings=(*RUN.findings, RUN.findings[0])), UNDECIDED, Why.DOUBLED),
    "an error": (
        RUN.refind(MEMORY, "gpu1", outcome=Outcome.ERROR, cause=Cause.ENVIRONMENT, measurements=()),
        UNDECIDED,
        Why.ERRORED,
    ),
    "a skip": (RUN.refind(MEMORY, "gpu1", outcome=Outcome.SKIP), UNDECIDED, Why.SKIPPED),
    "a check is not planned": (
        RUN.replan(checks=tuple(p for p in PLAN.checks if p.key.check != BURNIN)),
        UNDECIDED,
        Why.UNPLANNED,
    ),
    "a check is neither planned nor found": (
        RUN.replan(checks=tuple(p for p in PLAN.checks if p.key.check != BURNIN)).but(
            findings=tuple(f for f in RUN.findings if f.check != BURNIN)
        ),
        UNDECIDED,
        Why.UNPLANNED,
    ),
    "a required self-test is not planned": (
        RUN.replan(selftests=PLAN.selftests[1:]), UNDECIDED, None
    ),
    "a required self-test missed": (retest(RUN, BURNIN, GPU, caught=False), UNDECIDED, Why.SELFTEST),
    "a required self-test is missing": (RUN.but(selftests=RUN.selftests[1:]), UNDECIDED, Why.SELFTEST),
    "a required self-test is doubled": (
        RUN.but(selftests=(*RUN.selftests, RUN.selftests[0])), UNDECIDED, Why.SELFTEST
    ),
    "the verdict was not tested": (RUN.but(selftests=RUN.selftests[:-1]), UNDECIDED, Why.SELFTEST),
    "the verdict's test missed": (retest(RUN, WITHHELD, NODE, caught=False), UNDECIDED, Why.SELFTEST),
    "the boot id changed": (end(boot_id="another"), UNDECIDED, Why.RUN),
    "the boot id is gone": (end(boot_id=""), UNDECIDED, Why.RUN),
    "no boot id at all": (end(boot_id="").replan(node={**PLAN.node, "boot_id": ""}), UNDECIDED, Why.RUN),
    "interrupted": (end(interrupted="by SIGTERM"), UNDECIDED, Why.RUN),
    "too short a load": (RUN.refind(BURNIN, "gpu1", loaded_s=59.9), UNDECIDED, Why.UNPROVED),
    "no load": (RUN.refind(BURNIN, "gpu1", loaded_s=0.0), UNDECIDED, Why.UNPROVED),
    "a load made short by the plan": (
        RUN.replan(checks=tuple(dataclasses.replace(p, loaded_s=0.0) for p in PLAN.checks)).refind(
            BURNIN, "gpu1", loaded_s=1.0
        ),
        UNDECIDED,
        Why.UNPROVED,
    ),
    "a longer load planned than shown": (
        RUN.replan(checks=tuple(dataclasses.replace(p, loaded_s=999.0) for p in PLAN.checks)),
        UNDECIDED,
        Why.UNPROVED,
    ),
    "no end": (RUN.but(end=None), UNDECIDED, Why.FILE),
    "no plan": (RUN.but(plan=None), UNDECIDED, Why.FILE),
    "zero passes": (RUN.but(findings=()), UNDECIDED, Why.RUN),
    "fewer devices": (RUN.replan(expected_devices=8), UNDECIDED, Why.RUN),
    "more devices": (RUN.replan(expected_devices=1), UNDECIDED, Why.RUN),
    "fewer devices, and the driver said so": (
        failed("node.devices.count", NODE.label).replan(expected_devices=8), REJECT, Why.FAILED
    ),
    "no device": (accepted(devices=0), UNDECIDED, Why.RUN),
    "one device named twice": (
        accepted(devices=1).replan(devices=(device(0), device(0), NODE, HOST), expected_devices=2),
        UNDECIDED,
        Why.RUN,
    ),
    "two nodes": (
        RUN.replan(devices=(*PLAN.devices, dataclasses.replace(NODE, id="node-b"))), UNDECIDED, Why.RUN
    ),
    "no node": (RUN.replan(devices=tuple(d for d in PLAN.devices if d != NODE)), UNDECIDED, Why.RUN),
    "another manifest": (RUN.replan(manifest_digest="sha256:00"), UNDECIDED, Why.RUN),
    "a longer profile than was run": (RUN.replan(profile=Profile.DEEP), UNDECIDED, Why.UNPROVED),
    "a pass that measured nothing": (
        RUN.refind(MEMORY, "gpu1", measurements=()), UNDECIDED, Why.UNPROVED
    ),
    "a pass without a limit": (
        RUN.refind(MEMORY, "gpu1", measurements=(Measurement(name="seen", value=1.0),)),
        UNDECIDED,
        Why.UNPROVED,
    ),
    "a pass with a broken limit": (
        RUN.refind(MEMORY, "gpu1", measurements=(*RUN.findings[0].measurements, WRONG)),
        UNDECIDED,
        Why.UNPROVED,
    ),
    "a pass that blames": (
        RUN.refind(MEMORY, "gpu1", cause=Cause.HARDWARE, remedy=Remedy.REPLACE), UNDECIDED, Why.UNPROVED
    ),
    "required checks called a trial": (
        failed().replan(
            checks=tuple(dataclasses.replace(p, required=False, trial=True) for p in PLAN.checks)
        ),
        REJECT,
        Why.FAILED,
    ),
    "missing checks called not required": (
        without(RUN, MEMORY).replan(
            checks=tuple(dataclasses.replace(p, required=False, trial=True) for p in PLAN.checks)
        ),
        UNDECIDED,
        Why.MISSING,
    ),
    "a trial failed": (site(trial=True, **BAD), ACCEPT, None),
    "found, not planned": (site(**BAD).replan(checks=PLAN.checks), UNDECIDED, Why.UNKNOWN),
    "a device of another node failed": (
        site(**BAD).replan(checks=PLAN.checks, devices=PLAN.devices), UNDECIDED, Why.UNKNOWN
    ),
    "a failure and a doubt": (without(failed(), BURNIN), REJECT, Why.MISSING),
}  # fmt: skip


@pytest.mark.parametrize("row", TABLE)
def test_what_the_file_shows_decides(row):
    run, decision, why = TABLE[row]
    told = decided(run)
    json.dumps(told.document(), allow_nan=False)
    assert told.decision is decision, [str(r) for r in told.undecided]
    assert why is None or why in {r.why for r in (*told.failed, *told.undecided)}
    assert decision is not ACCEPT or (told.failed, told.undecided) == ((), ())


@pytest.mark.parametrize(
    "attempt", [(Outcome.FAIL, Cause.HARDWARE), (Outcome.ERROR, Cause.HARDWARE)]
)
def test_what_hardware_did_is_never_retried_into_a_pass(attempt):
    outcome, cause = attempt
    tried = (Attempt(outcome=outcome, cause=cause, summary="wrong bits"),)
    assert decided(RUN.refind(MEMORY, "gpu1", attempts=tried)).decision is not ACCEPT


def test_an_environment_error_that_was_retried_is_a_pass_with_a_note():
    tried = (Attempt(outcome=Outcome.ERROR, cause=Cause.ENVIRONMENT, summary="busy"),)
    told = decided(RUN.refind(MEMORY, "gpu1", attempts=tried))
    assert told.decision is ACCEPT
    assert told.notes == (f"{MEMORY} on {GPU}: passed after busy",)


@pytest.mark.parametrize("planted", [None, [], {}, ""])
def test_a_self_test_that_planted_nothing_proves_nothing(planted):
    told = decided(retest(RUN, MEMORY, GPU, planted=planted, reported=planted))
    assert told.decision is UNDECIDED


def test_the_most_severe_remedy_of_what_failed_is_given_and_none_of_the_doubts_is():
    run = failed(BURNIN, "gpu0", remedy=Remedy.RESET_GPU)
    run = run.refind("node.collective.bandwidth", NODE.label, **{**BAD, "remedy": Remedy.REBOOT})
    run = run.refind(
        MEMORY, "gpu1", outcome=Outcome.ERROR, cause=Cause.ENVIRONMENT, remedy=Remedy.REPLACE
    )
    told = decided(run)
    assert (told.decision, told.remedy, len(told.failed)) == (REJECT, Remedy.REBOOT, 2)


def test_what_the_environment_lacks_asks_for_no_more_than_a_retest():
    assert decided(failed(cause=Cause.ENVIRONMENT)).remedy is Remedy.RETEST


@pytest.mark.parametrize("claims", [True, False])
def test_a_run_on_cpu_devices_is_a_rehearsal_whatever_it_says(claims):
    told = decided(accepted(kind=DeviceKind.CPU).replan(rehearsal=claims))
    assert (told.decision, told.rehearsal) == (ACCEPT, True)


def test_a_gpu_run_that_says_rehearsal_or_has_a_cpu_device_or_no_plan_is_one_too():
    mixed = RUN.replan(devices=(*PLAN.devices, device(9, DeviceKind.CPU)))
    assert decided(RUN.replan(rehearsal=True)).rehearsal
    assert decided(mixed).rehearsal
    assert judged(b"").rehearsal
    assert not decided(RUN).rehearsal


def test_exit_codes_are_what_scripts_rely_on():
    assert [d.exit_code for d in (ACCEPT, REJECT, UNDECIDED)] == [0, 10, 11]


def test_the_document_binds_the_verdict_to_its_run():
    document = decided(failed()).document()
    assert document["verdict"] == "reject"
    assert (document["run_id"], document["nonce"]) == (PLAN.run_id, "n0nce")
    assert document["digests"]["manifest"] == shipped().digest
    assert [r["device"] for r in document["failed"]] == [GPU.id]
