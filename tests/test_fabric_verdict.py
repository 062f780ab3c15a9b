"""The verdict on a group and on each of its members, and that it can never be that on a node."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from nodeproof import gate
from nodeproof.manifest import shipped
from nodeproof.model import (
    Cause,
    Device,
    DeviceKind,
    Finding,
    Key,
    Measurement,
    Outcome,
    Planned,
    Profile,
    Remedy,
    SelfTest,
)
from nodeproof.results import End, Plan, assemble
from nodeproof.verdict import WITHHELD, Decision, Why, decide, decide_any
from tests.results_samples import BOOT, Run, device
from tests.shipped_run import RUN as OF_A_NODE
from tests.shipped_run import records_of

ACCEPT, REJECT, UNDECIDED = Decision.ACCEPT, Decision.REJECT, Decision.UNDECIDED
GROUP = Device(kind=DeviceKind.GROUP, id="group", label="group")
MEMBERS = tuple(Device(kind=DeviceKind.MEMBER, id=f"xh{n}", label=f"xh{n}") for n in range(4))
LINK = Device(kind=DeviceKind.LINK, id="xh0|xh3", label="xh0 to xh3")
PAIRS, PRESENCE, DATA = "fabric.member.pairs", "fabric.member.presence", "fabric.member.data"
BANDWIDTH, COMMON, GRADE = "fabric.group.bandwidth", "fabric.group.common", "fabric.group.grade"
HELD = Measurement(name="sound", value=1, at_least=1)
BROKEN = Measurement(name="sound", value=0, at_least=1)


def run_of(*devices):
    """A run of every check that these need, which nothing speaks against."""
    pairs = [
        (entry, on)
        for entry in shipped().entries.values()
        for on in devices
        if on.kind in entry.kinds
    ]
    tested = [*((entry.id, on) for entry, on in pairs), (WITHHELD, GROUP)]
    return Run(
        plan=Plan(
            run_id="r",
            nonce="n0nce",
            profile=Profile.QUICK,
            rehearsal=False,
            version="0.1.0",
            suite_digest="sha256:" + "ab" * 32,
            manifest_digest=shipped().digest,
            spec={"name": "", "digest": "sha256:" + "cd" * 32, "source": ""},
            node={"name": "xh0", "uid": "", "boot_id": BOOT, "group": 4},
            devices=devices,
            expected_devices=None,
            checks=tuple(
                Planned(key=key(e.id, d), required=not e.trial, trial=e.trial) for e, d in pairs
            ),
            selftests=tuple(key(c, d) for c, d in tested),
            about={e.id: e.about for e, _ in pairs},
            waivers=(),
            seed=7,
            deadline_s=120.0,
            started="2026-03-01T03:12:00.125+00:00",
        ),
        findings=tuple(
            Finding(check=e.id, device=d, outcome=Outcome.PASS, measurements=(HELD,))
            for e, d in pairs
        ),
        selftests=tuple(
            SelfTest(check=c, device=d, caught=True, planted=[1], reported=[1]) for c, d in tested
        ),
        telemetry=(),
        events=(),
        end=End(boot_id=BOOT, ended="2026-03-01T03:18:42.500+00:00", interrupted=""),
    )


def key(check, on):
    return Key(check=check, kind=on.kind, device=on.id)


RUN = run_of(GROUP, *MEMBERS)


def short(run, check, on, cause=Cause.ENVIRONMENT):
    """The same run with one check short, for this cause."""
    return change(
        run,
        check,
        on,
        outcome=Outcome.FAIL,
        cause=cause,
        remedy=Remedy.REPLACE if cause is Cause.HARDWARE else Remedy.RETEST,
        measurements=(BROKEN,),
        summary="short",
    )


def errored(run, check, on):
    return change(run, check, on, outcome=Outcome.ERROR, cause=Cause.ENVIRONMENT, measurements=())


def change(run, check, on, **changes):
    changed = [
        dataclasses.replace(f, **changes) if (f.check, f.device) == (check, on) else f
        for f in run.findings
    ]
    assert changed != list(run.findings)
    return run.but(findings=tuple(changed))


def bad(run, on):
    return short(run, PAIRS, on, Cause.HARDWARE)


def found(run):
    return assemble(records_of(run))


def told(run):
    return decide_any(found(run), shipped())


def each(run):
    """What becomes of each member, in a word of four letters."""
    letters = {ACCEPT: "a", REJECT: "r", UNDECIDED: "u"}
    return "".join(letters[d] for d in told(run).members.values())


ONE, TWO, THREE, FOUR = MEMBERS


def test_a_group_that_nothing_speaks_against_is_accepted_and_so_is_each_member():
    assert told(RUN).decision is ACCEPT, told(RUN).undecided
    assert each(RUN) == "aaaa"
    document = told(RUN).document()
    assert document["members"] == dict.fromkeys(["xh0", "xh1", "xh2", "xh3"], "accept")
    json.dumps(document)


def test_the_same_group_judged_as_a_node_is_undecided():
    as_a_node = decide(found(RUN), shipped())
    assert as_a_node.decision is UNDECIDED
    assert {r.text for r in as_a_node.undecided} == {
        "no device was under test",
        "the plan names 0 devices of kind node, not one",
        "the plan names 0 devices of kind host, not one",
    }
    assert as_a_node.members is None


def test_the_gate_judges_nodes_by_the_proof_of_one_node_and_only_groups_by_a_groups():
    files = sorted(Path(gate.__file__).parent.glob("*.py"))
    assert sum("verdict.decide(" in file.read_text() for file in files) == 2
    assert [f.name for f in files if "decide_any" in f.read_text()] == ["group_proof.py"]


def test_a_node_is_judged_as_before_whichever_way_it_is_asked():
    assert decide_any(found(OF_A_NODE), shipped()) == decide(found(OF_A_NODE), shipped())
    assert "members" not in decide_any(found(OF_A_NODE), shipped()).document()


@pytest.mark.parametrize("kind", [DeviceKind.MEMBER, DeviceKind.GROUP])
def test_a_node_with_a_group_in_its_plan_is_no_accept_of_either(kind):
    more = Device(kind=kind, id="group", label="group")
    plan = OF_A_NODE.plan
    mixed = OF_A_NODE.replan(devices=(*plan.devices, more))
    assert decide(found(mixed), shipped()).decision is UNDECIDED
    assert decide_any(found(mixed), shipped()).decision is UNDECIDED


@pytest.mark.parametrize(
    ("devices", "node", "said"),
    [
        (MEMBERS[:3], {}, "the plan names 3 members of a group of 4"),
        (MEMBERS, {"group": 5}, "the plan names 4 members of a group of 5"),
        (MEMBERS, {"group": None}, "of its group that it is of None nodes"),
        (MEMBERS, {"group": True}, "of its group that it is of True nodes"),
        ((), {"group": 0}, "of its group that it is of 0 nodes"),
        ((*MEMBERS, dataclasses.replace(GROUP, id="other")), {}, "the plan names 2 groups, not one"),
        ((*MEMBERS, device(1)), {}, "names 1 devices of kind gpu"),
        ((*MEMBERS, device(1, DeviceKind.CPU)), {}, "names 1 devices of kind cpu"),
        ((*MEMBERS, dataclasses.replace(ONE, kind=DeviceKind.NODE)), {}, "names 1 devices of kind node"),
        ((*MEMBERS, dataclasses.replace(ONE, kind=DeviceKind.HOST)), {}, "names 1 devices of kind host"),
    ],
)  # fmt: skip
def test_a_plan_that_is_not_of_one_group_with_all_its_members_is_undecided(devices, node, said):
    run = run_of(GROUP, *devices)
    run = run.replan(node={**run.plan.node, **node})
    verdict = told(run)
    assert verdict.decision is UNDECIDED
    assert any(said in r.text for r in verdict.undecided)
    assert set(verdict.members.values()) <= {UNDECIDED}


# --- of each member -----------------------------------------------------------------------------

WITH_LINK = run_of(GROUP, *MEMBERS, LINK)
LINK_CHECK = "fabric.link.pair"


@pytest.mark.parametrize(
    ("run", "decision", "members"),
    [
        pytest.param(bad(RUN, THREE), REJECT, "aara", id="one bad"),
        pytest.param(bad(bad(RUN, THREE), ONE), REJECT, "rara", id="two bad"),
        # All wait for the bad one.
        pytest.param(short(bad(RUN, THREE), BANDWIDTH, GROUP), REJECT, "aara", id="slow by it"),
        # And if nobody is found bad, everybody may be.
        pytest.param(short(RUN, BANDWIDTH, GROUP), UNDECIDED, "uuuu", id="slow by nobody"),
        # A lost member is found bad by nothing, so that it explains nothing.
        pytest.param(short(RUN, PRESENCE, TWO), UNDECIDED, "auaa", id="one lost"),
        pytest.param(
            short(short(RUN, PRESENCE, TWO), BANDWIDTH, GROUP), UNDECIDED, "uuuu", id="lost and slow"
        ),
        pytest.param(
            errored(bad(RUN, THREE), BANDWIDTH, GROUP), REJECT, "uuru", id="bad, and not measured"
        ),
        pytest.param(short(bad(RUN, THREE), COMMON, GROUP), REJECT, "uuru", id="bad, and common"),
        pytest.param(short(bad(RUN, THREE), GRADE, GROUP), REJECT, "uuru", id="bad, and low grade"),
        pytest.param(short(bad(RUN, THREE), PAIRS, TWO), REJECT, "aura", id="bad, and one unclear"),
        pytest.param(errored(RUN, DATA, FOUR), UNDECIDED, "aaau", id="one not measured"),
        pytest.param(short(RUN, DATA, FOUR, Cause.HARDWARE), REJECT, "aaar", id="bad by another"),
        pytest.param(
            short(WITH_LINK, LINK_CHECK, LINK, Cause.HARDWARE), UNDECIDED, "uaau", id="a link"
        ),
        pytest.param(
            bad(short(WITH_LINK, LINK_CHECK, LINK, Cause.HARDWARE), TWO), REJECT, "urau", id="both"
        ),
    ],
)  # fmt: skip
def test_what_becomes_of_each_member(run, decision, members):
    assert told(run).decision is decision
    assert each(run) == members


def test_a_fail_of_the_group_blames_nobody_whatever_its_cause_says():
    verdict = told(short(RUN, BANDWIDTH, GROUP, Cause.HARDWARE))
    assert (verdict.decision, verdict.failed) == (UNDECIDED, ())
    assert [r.why for r in verdict.undecided] == [Why.GROUP]


def test_a_detector_that_was_not_proved_on_a_member_clears_and_condemns_nobody():
    tests = tuple(
        dataclasses.replace(t, caught=False) if t.key == key(PAIRS, THREE) else t
        for t in RUN.selftests
    )
    assert each(RUN.but(selftests=tests)) == "aaua"
    unproved = bad(RUN, THREE).but(selftests=tests)
    assert told(unproved).decision is UNDECIDED
    assert each(unproved) == "aaua"


@pytest.mark.parametrize(
    "run",
    [
        RUN.but(end=None),
        RUN.but(end=dataclasses.replace(RUN.end, interrupted="by SIGTERM")),
        RUN.but(end=dataclasses.replace(RUN.end, boot_id="another")),
        RUN.replan(node={**RUN.plan.node, "boot_id": ""}),
        RUN.replan(manifest_digest="sha256:" + "00" * 32),
        RUN.but(selftests=RUN.selftests[:-1]),  # that of the verdict itself
        RUN.replan(selftests=RUN.plan.selftests[:-1]),
    ],
)
def test_what_speaks_against_the_run_speaks_against_every_member(run):
    assert told(run).decision is UNDECIDED
    assert each(run) == "uuuu"
    assert each(bad(run, THREE)) == "uuru"


@pytest.mark.parametrize("check", sorted({f.check for f in RUN.findings if f.device is TWO}))
def test_a_member_without_one_of_its_findings_is_undecided(check):
    left = tuple(f for f in RUN.findings if (f.check, f.device) != (check, TWO))
    assert each(RUN.but(findings=left)) == "auaa"
    unplanned = RUN.replan(
        checks=tuple(p for p in RUN.plan.checks if p.key != key(check, TWO)),
        selftests=tuple(k for k in RUN.plan.selftests if k != key(check, TWO)),
    ).but(findings=left)
    assert each(unplanned) == "auaa"
