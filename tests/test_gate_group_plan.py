"""What is to be done about a node that is measured with others, state by state."""

from __future__ import annotations

import dataclasses
import json

import pytest
from gate_cluster import GPU, NAMES, PENDING
from gate_groups import GROUPED, HERE, OTHER, group, place, waits
from gate_nodes import BOOT, GPUS, NOW, PASSED, QUARANTINED, job, node, over, pod, ruled
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from nodeproof.gate.actions import (
    Lift,
    Measure,
    Phase,
    Quarantine,
    Read,
    Record,
    Remove,
    Say,
    Stamp,
    Tell,
)
from nodeproof.gate.actions import Test as Started
from nodeproof.gate.ending import wall_s
from nodeproof.gate.group import Together, note
from nodeproof.gate.plan import Known, plan
from nodeproof.gate.proof import Ruling
from nodeproof.verdict import Decision

ACCEPT, REJECT, UNDECIDED = Decision.ACCEPT, Decision.REJECT, Decision.UNDECIDED
WALL_S = wall_s(GROUPED.of_groups())
FULL_TEXT = f"{PASSED}; measured with 1 others, 9 checks passed"
FULL = ("True", "AllChecksPassed", f"boot {BOOT}; {FULL_TEXT}")
TOGETHER = ruled(ACCEPT, text="measured with 1 others, 9 checks passed")
BAD = ruled(REJECT, text="fabric.member.pairs on gpu-a: 3 of 3", check="fabric.member.pairs")
OPEN = ruled(UNDECIDED, text="fabric.group.bandwidth on group: short")
BETWEEN = (HERE, OTHER)
AWAITS = {NAMES.awaits: note(over())}
OTHER_GPUS = "sha256:" + "8" * 64


def does(made, *kinds):
    return [a for a in made.actions if isinstance(a, kinds)]


def says(made):
    [say] = does(made, Say)
    return say.status, say.reason


def text(made):
    [say] = does(made, Say)
    return say.message


def alone(*groups, judged=None, waiting=(), room=1, judged_alone=None, **more):
    """Known of a node that passed alone: groups that name it, and what they came to by their order."""
    rulings = dict(zip((g.job.name for g in groups), judged or (), strict=False))
    together = Together(
        groups=groups,
        judged={name: r for name, r in rulings.items() if r},
        waiting=waiting,
        room=room,
    )
    proof = over()
    rulings = {proof.name: ruled(ACCEPT)} if judged_alone is None else judged_alone
    return Known(**{"jobs": (proof,), **more}, judged=rulings, together=together)


def look(of=None, seen=None, now=NOW, **site):
    return plan(of or node(), seen or alone(), dataclasses.replace(GROUPED, **site), now=now)


READY = (waits(HERE, 301), waits(OTHER, 10))


# --- it waits -------------------------------------------------------------------------------

SAID = [
    None,
    FULL,
    ("True", "AllChecksPassed", f"boot {BOOT}; {PASSED}"),
    ("True", "AllChecksPassed", "boot boot-0; fine"),
    ("Unknown", "Testing", f"boot {BOOT}; attempt 1 of 3"),
    ("Unknown", "AwaitingGroup", f"boot {BOOT}; waits"),
]


@pytest.mark.parametrize("said", SAID)
def test_who_passed_alone_is_not_released_but_says_that_it_waits(said):
    notes = {NAMES.accepted_boot: BOOT} if said else {}
    made = look(node(said=said, annotations=notes))
    assert (made.phase, says(made)) == (Phase.WAITING, ("Unknown", "AwaitingGroup"))
    assert not does(made, Lift, Measure, Started)
    assert [type(a) for a in made.actions] == [Say, Stamp]
    [stamp] = does(made, Stamp)
    told = json.loads(stamp.stamps[NAMES.awaits])
    assert told == {"boot": BOOT, "proof": "np-new-1", "since": int(NOW - 10)}
    assert "kind p5.48xlarge" in text(made)
    assert "2 to 8 together" in text(made)
    assert PASSED in text(made)
    assert made.wake_s is not None


def test_it_says_so_once_and_waits_for_ever():
    said = ("Unknown", "AwaitingGroup", text(look()))
    assert look(node(said=said, annotations=AWAITS)).actions == ()
    for hours in (1, 24, 24 * 365):
        now = NOW + 3600 * hours
        made = look(node(said=said, annotations=AWAITS), now=now)
        assert [type(a) for a in made.actions] == [Say], "a heartbeat"
        assert says(made) == ("Unknown", "AwaitingGroup")


@pytest.mark.parametrize("lie", ["", "{}", "null", AWAITS[NAMES.awaits][:-1], '{"since":0}'])
def test_a_note_that_is_not_the_gates_is_put_right(lie):
    said = ("Unknown", "AwaitingGroup", text(look()))
    made = look(node(said=said, annotations={NAMES.awaits: lie}))
    assert does(made, Stamp) == [Stamp(stamps=AWAITS)]


@pytest.mark.parametrize(
    "waiting",
    [
        (),
        (waits(HERE, 9e9),),
        (waits(OTHER, 9e9), waits(place("c"), 9e9)),
        (waits(HERE, 299), waits(OTHER, 10)),
        (waits(OTHER, 400), waits(HERE, 301)),
        (waits(place("c"), 301), waits(OTHER, 302), waits(HERE, 300)),
    ],
    ids=["nobody", "itself", "itself not", "too early", "another's turn", "two others' turn"],
)
def test_nothing_begins_that_is_not_this_nodes_to_begin(waiting):
    made = look(seen=alone(waiting=waiting))
    assert not does(made, Measure)
    assert says(made) == ("Unknown", "AwaitingGroup")


def test_a_node_without_the_label_that_makes_groups_says_that_it_waits_for_it():
    made = look(group_label="rack")
    assert says(made) == ("Unknown", "AwaitingGroup")
    assert "label rack" in text(made)
    made = look(node(labels={"rack": "r7"}), group_label="rack")
    assert "r7" in text(made)


# --- it begins ------------------------------------------------------------------------------


def test_the_first_of_a_row_starts_one_job_for_all_of_them():
    made = look(seen=alone(waiting=READY))
    assert does(made, Measure) == [Measure(members=BETWEEN, attempt=1, devices=2)]
    assert (made.phase, says(made)) == (Phase.TESTING, ("Unknown", "Testing"))
    assert [type(a) for a in made.actions] == [Measure, Say], "what can't be started is not said"
    assert "attempt 1 of 3 is Job npg-" in text(made)
    assert "with 1 others" in text(made)


def test_it_says_the_same_once_the_job_is_there():
    made = look(seen=alone(waiting=READY))
    name = text(made).partition(" is Job ")[2].partition(",")[0]
    started = group(name=name, over=False)
    after = look(node(said=(*says(made), text(made))), alone(started))
    assert after.actions == ()


def test_no_more_groups_are_measured_at_once_than_the_site_allows():
    made = look(seen=alone(waiting=READY, room=0))
    assert not does(made, Measure)
    assert says(made) == ("Unknown", "AwaitingGroup")
    assert "1 groups are, at once" in text(made)


def test_who_is_not_ready_any_more_begins_nothing():
    made = look(node(ready="False"), alone(waiting=READY))
    assert not does(made, Measure)
    assert says(made) == ("Unknown", "NotReady")


# --- it is measured -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pods",
    [(), (pod(phase="Pending", exit_code=None),), (pod(phase="Running", exit_code=None),)],
)
def test_while_it_is_measured_nothing_is_done(pods):
    made = look(seen=alone(group(over=False, pods=pods), waiting=READY))
    assert [type(a) for a in made.actions] == [Say]
    assert (made.phase, says(made)) == (Phase.TESTING, ("Unknown", "Testing"))
    assert "npg-1-1" in text(made)
    assert made.wake_s is not None


def test_what_its_pod_waits_for_is_said():
    waiting = pod(phase="Pending", exit_code=None, waiting="ImagePullBackOff: no such image")
    assert "ImagePullBackOff" in text(look(seen=alone(group(over=False, pods=(waiting,)))))


@pytest.mark.parametrize("others", [{}, {"ended": None, "complete": False}], ids=["over", "go on"])
def test_its_own_pod_is_read_once_it_is_over_whatever_the_others_do(others):
    made = look(seen=alone(group(**others)))
    assert made.actions == (Read(job="npg-1-1", pod="npg-1-1-0-x", group=True),)
    assert made.phase is Phase.TESTING


@pytest.mark.parametrize(
    ("differs", "reason"),
    [
        ({"deleting": True}, "TestPodLost"),
        ({"ended": NOW - 1, "complete": True}, "TestPodLost"),
        ({"ended": NOW - 1, "failure": "FailedIndexes"}, "TestPodLost"),
        ({"ended": NOW - 1, "failure": "DeadlineExceeded"}, "TestTimedOut"),
        ({"created": NOW - WALL_S - 1}, "TestTimedOut"),
        (
            {"created": NOW - WALL_S - 1, "pods": (pod(phase="Running", exit_code=None),)},
            "TestTimedOut",
        ),
    ],
)
def test_a_group_that_leaves_nothing_on_the_node_is_undecided(differs, reason):
    gone = group(over=False, **differs)
    made = look(seen=alone(gone), backoff_s=9e9)
    assert (made.phase, says(made)) == (Phase.UNDECIDED, ("Unknown", reason))
    assert not does(made, Lift, Measure, Quarantine, Started)
    assert not does(look(seen=alone(gone, waiting=READY), backoff_s=9e9), Measure)
    ready = (waits(HERE, 301 - WALL_S), waits(OTHER, 10 - WALL_S))
    later = look(seen=alone(gone, waiting=ready), backoff_s=0.0, now=NOW + WALL_S)
    assert does(later, Measure)


def test_a_group_whose_job_is_gone_was_none():
    made = look(seen=alone(waiting=READY))
    assert does(made, Measure)
    assert says(look()) == ("Unknown", "AwaitingGroup")


# --- what it came to ------------------------------------------------------------------------


def test_an_accept_is_said_first_and_lifted_in_the_next_look_with_both_proofs():
    seen = alone(group(), judged=[TOGETHER])
    made = look(node(annotations=AWAITS), seen)
    assert [type(a) for a in made.actions] == [Say]
    assert (says(made), text(made)) == (FULL[:2], FULL[2])
    made = look(node(said=FULL, annotations={**AWAITS, NAMES.held_for: "x"}), seen)
    assert [type(a) for a in made.actions] == [Record, Lift, Tell]
    [lift] = does(made, Lift)
    verdict = json.loads(lift.stamps[NAMES.verdict])
    assert (verdict["verdict"], verdict["job"], verdict["group"]) == (
        "accept",
        "np-new-1",
        "npg-1-1",
    )
    assert lift.stamps[NAMES.accepted_devices] == GPUS
    assert (lift.stamps[NAMES.awaits], lift.stamps[NAMES.held_for]) == ("", "")
    assert made.phase is Phase.ACCEPTED


@pytest.mark.parametrize("said", [s for s in SAID if s != FULL])
def test_no_lift_while_the_condition_says_anything_else(said):
    assert not does(look(node(said=said), alone(group(), judged=[TOGETHER])), Lift)


def test_a_reject_is_quarantined_and_counted_for_the_check_that_failed():
    seen = alone(group(), judged=[BAD])
    made = look(seen=seen)
    assert [type(a) for a in made.actions] == [Record, Tell, Quarantine, Say]
    assert says(made) == ("False", "HardwareCondemned")
    [record] = does(made, Record)
    assert (record.ruled.accepted, record.ruled.reason) == (False, "fabric.member.pairs")
    again = node(
        taints=[PENDING, QUARANTINED],
        said=(*says(made), text(made)),
        annotations=does(made, Quarantine)[0].stamps,
    )
    for later in (seen, alone(group()), alone(), alone(group(), judged=[TOGETHER]), Known()):
        assert not does(look(again, later), Lift, Measure, Started)
        assert look(again, later).phase is Phase.QUARANTINED


def test_an_open_breaker_keeps_the_quarantine_away():
    made = look(seen=alone(group(), judged=[BAD], breaker="three in a row"))
    assert not does(made, Quarantine, Lift)
    assert says(made) == ("Unknown", "BreakerOpen")


def test_an_undecided_group_is_followed_by_another_after_a_while():
    seen = alone(group(), judged=[OPEN], waiting=READY)
    made = look(seen=seen)
    assert (made.phase, says(made)) == (Phase.UNDECIDED, ("Unknown", "Undecided"))
    assert made.wake_s == pytest.approx(50)
    assert "attempt 1 of 3 with others" in text(made)
    assert not does(made, Measure)
    [measure] = does(look(seen=seen, now=NOW + 51), Measure)
    assert measure.attempt == 2
    made = look(seen=alone(group(), judged=[OPEN]), now=NOW + 51)
    assert says(made) == ("Unknown", "AwaitingGroup"), "or it waits for others again"


def spent(times=3):
    return [
        group(name=f"npg-{n}-1", created=NOW - 5000 + n, ended=NOW - 1000 + n) for n in range(times)
    ]


def test_the_pause_doubles():
    made = look(seen=alone(*spent(2), judged=[OPEN, OPEN]), now=NOW - 999)
    assert made.wake_s == pytest.approx(120)


def test_undecided_too_often_is_held_until_somebody_asks():
    seen = alone(*spent(), judged=[OPEN] * 3, waiting=READY)
    made = look(seen=seen)
    assert says(made) == ("Unknown", "UndecidedTooOften")
    assert [a.reason for a in does(made, Tell)] == ["UndecidedTooOften"]
    assert "undecided 3 times" in text(made)
    assert not does(made, Quarantine, Measure, Lift)
    [stamp] = does(made, Stamp)
    held = node(said=(*says(made), text(made)), annotations={**AWAITS, **stamp.stamps})
    for later in (seen, alone(waiting=READY), alone(group(), judged=[TOGETHER]), Known()):
        assert look(held, later, now=NOW + 200).actions == ()
    asked = {**AWAITS, **stamp.stamps, NAMES.requalify: "w2"}
    [test] = does(look(node(said=held_by(made), annotations=asked), seen), Started)
    assert test.trigger == "requalify-w2"


def held_by(made):
    return (*says(made), text(made))


def test_a_site_may_have_it_quarantined():
    seen = alone(*spent(), judged=[OPEN] * 3)
    made = look(seen=seen, quarantine_undecided=True)
    assert does(made, Quarantine)
    assert does(made, Record)[0].ruled.reason == "UndecidedTooOften"


# --- several groups of one node -------------------------------------------------------------


def test_the_last_group_is_the_one_that_was_made_last_whatever_its_number():
    """A group is numbered by the node that begins it: one with fewer behind it counts less."""
    first = group(name="npg-1-2", attempt=2, created=NOW - 4000, ended=NOW - 3000)
    last = group(name="npg-2-1", attempt=1, created=NOW - 2000, ended=NOW - 1000)
    assert says(look(seen=alone(first, last, judged=[OPEN, BAD]))) == ("False", "HardwareCondemned")
    assert says(look(seen=alone(last, first, judged=[TOGETHER, OPEN])))[0] == "True"
    assert does(look(seen=alone(first, last, judged=[OPEN])), Read)[0].job == "npg-2-1"


def test_a_group_that_begins_has_a_number_that_none_of_its_first_members_had():
    """Or the same members would begin a Job whose name is taken, and wait for it for ever."""
    before = group(attempt=7)
    made = look(seen=alone(before, judged=[OPEN], waiting=READY), now=NOW + 100)
    [measure] = does(made, Measure)
    assert measure.attempt == 8
    assert "attempt 2 of 3 is Job" in text(made)


@pytest.mark.parametrize(
    "differs",
    [
        {"boot_id": "boot-0"},
        {"proof": "np-new-2"},
        {"proof": "np-other-1"},
        {"node": "gpu-z"},
    ],
    ids=str,
)
@pytest.mark.parametrize("judged", [TOGETHER, BAD, OPEN, None])
def test_a_group_of_another_boot_proof_or_name_says_nothing_of_the_node(differs, judged):
    old = group(dataclasses.replace(HERE, **differs), OTHER)
    made = look(node(said=FULL), alone(old, judged=[judged]))
    assert says(made) == ("Unknown", "AwaitingGroup")
    assert not does(made, Lift, Quarantine, Read, Measure)


def test_a_ruling_by_other_gpus_than_pass_alone_by_now_is_none():
    stale = dataclasses.replace(TOGETHER, devices=OTHER_GPUS)
    made = look(node(said=FULL), alone(group(), judged=[stale]))
    assert says(made) == ("Unknown", "ResultForeign")
    assert not does(made, Lift)


# --- what moves under it --------------------------------------------------------------------

WAITING = ("Unknown", "AwaitingGroup", f"boot {BOOT}; waits for others")
MEASURED = (
    "Unknown",
    "Testing",
    f"boot {BOOT}; attempt 1 of 3 is Job npg-1-1, measured with 1 others",
)


@pytest.mark.parametrize("said", [WAITING, MEASURED, FULL])
def test_a_reboot_takes_everything(said):
    after = node(boot="boot-2", said=said, annotations=AWAITS)
    seen = alone(group(), judged=[TOGETHER], waiting=READY)
    [test] = does(look(after, seen), Started)
    assert (test.trigger, test.attempt) == ("new", 1)
    assert not does(look(after, seen), Lift, Measure)


def test_after_a_reboot_the_old_group_proves_nothing_to_a_new_proof():
    new = over(boot_id="boot-2")
    after = node(boot="boot-2", said=("True", FULL[1], f"boot boot-2; {FULL_TEXT}"))
    made = look(after, alone(group(), judged=[TOGETHER], jobs=(new,)))
    assert says(made) == ("Unknown", "AwaitingGroup")


@pytest.mark.parametrize("said", [WAITING, MEASURED, FULL])
def test_a_request_takes_everything_too(said):
    asked = node(said=said, annotations={**AWAITS, NAMES.requalify: "w2"})
    made = look(asked, alone(group(), judged=[TOGETHER], waiting=READY))
    [test] = does(made, Started)
    assert test.trigger == "requalify-w2"
    assert not does(made, Lift, Measure, Remove)


@pytest.mark.parametrize(
    "of",
    [
        node(boot="boot-2", said=MEASURED),
        node(said=MEASURED, annotations={NAMES.requalify: "w2"}),
    ],
    ids=["a reboot", "a request"],
)
def test_a_test_alone_waits_for_the_group_that_holds_the_gpus(of):
    """Its own deadline would run out while it waits, three times over."""
    goes_on = group(over=False, pods=(pod(phase="Running", exit_code=None),))
    made = look(of, alone(goes_on))
    assert not does(made, Started, Remove)
    assert says(made) == ("Unknown", "Queued")
    assert "npg-1-1" in text(made)
    for over_here in (group(ended=None), group(), group(over=False, created=NOW - WALL_S - 1)):
        assert does(look(of, alone(over_here)), Started)


@pytest.mark.parametrize("said", [WAITING, MEASURED, FULL])
@pytest.mark.parametrize("judged", [None, TOGETHER, BAD])
def test_a_node_whose_own_proof_is_gone_is_tested_again(said, judged):
    seen = alone(group(), judged=[judged], waiting=READY, jobs=(), judged_alone={})
    made = look(node(said=said, annotations=AWAITS), seen)
    [test] = does(made, Started)
    assert test.attempt == 1
    assert not does(made, Lift, Measure, Quarantine)


def test_a_proof_that_a_restart_forgot_is_read_again_before_the_groups_count():
    seen = alone(group(), judged=[TOGETHER], waiting=READY, judged_alone={})
    made = look(node(said=FULL, annotations=AWAITS), seen)
    assert made.actions == (Read(job="np-new-1", pod="np-new-1-x"),)


@pytest.mark.parametrize("decision", [REJECT, UNDECIDED])
def test_a_node_that_did_not_pass_alone_is_in_no_group_whatever_one_says(decision):
    proof = over()
    seen = alone(
        group(), judged=[TOGETHER], waiting=READY, judged_alone={proof.name: ruled(decision)}
    )
    made = look(node(said=FULL, annotations=AWAITS), seen)
    assert not does(made, Lift, Measure)
    assert says(made)[1] in {"HardwareCondemned", "Undecided"}


def test_other_gpus_in_the_node_by_now_take_the_proof():
    seen = alone(group(), judged=[TOGETHER], waiting=READY, devices=OTHER_GPUS)
    made = look(node(said=FULL), seen)
    assert says(made) == ("Unknown", "ResultForeign")
    assert not does(made, Lift, Measure)


def test_a_test_that_was_started_for_something_else_goes_while_the_node_waits():
    stray = job(name="np-old-1", trigger="boot")
    seen = alone(jobs=(over(), stray))
    assert does(look(seen=seen), Remove) == [Remove(job="np-old-1")]


def test_the_same_two_proofs_release_once():
    seen = alone(group(), judged=[TOGETHER])
    [lift] = does(look(node(said=FULL, annotations=AWAITS), seen), Lift)
    notes = {NAMES.accepted_boot: BOOT, **lift.stamps}
    free = node(taints=[GPU], said=FULL, annotations=notes)
    assert (look(free, seen).phase, look(free, seen).actions) == (Phase.ACCEPTED, ())
    again = look(node(said=FULL, annotations=notes), seen)  # somebody put the taint back
    assert not does(again, Lift, Measure)
    [test] = does(again, Started)
    assert test.trigger.startswith("new@")


# --- without the setting ----------------------------------------------------------------------


@pytest.mark.parametrize("kinds", [[], ["p4d.24xlarge"]])
def test_of_a_kind_that_is_not_grouped_nothing_changes(kinds):
    said = ("True", "AllChecksPassed", f"boot {BOOT}; {PASSED}")
    made = look(node(said=said), alone(group(), judged=[BAD], waiting=READY), grouped=kinds)
    [lift] = does(made, Lift)
    assert lift.stamps == {
        NAMES.accepted_devices: GPUS,
        NAMES.verdict: '{"verdict":"accept","job":"np-new-1","profile":"gate","attempt":1}',
    }


# --- whatever is there ------------------------------------------------------------------------

PLACES = [
    HERE,
    dataclasses.replace(HERE, boot_id="boot-0"),
    dataclasses.replace(HERE, proof="np-new-2"),
    dataclasses.replace(HERE, node="gpu-z"),
]
RULINGS = st.sampled_from([None, TOGETHER, BAD, OPEN, ruled(UNDECIDED, Ruling.FOREIGN)])
GROUPS = st.lists(
    st.tuples(
        st.sampled_from(PLACES),
        st.sampled_from([True, False]),
        st.sampled_from([{}, {"deleting": True}, {"ended": None}, {"created": NOW - WALL_S - 1}]),
        RULINGS,
    ),
    max_size=4,
)


@examples(max_examples=400, deadline=None)
@given(
    rows=GROUPS,
    said=st.sampled_from(SAID),
    mine=st.sampled_from([None, ruled(ACCEPT), ruled(REJECT), ruled(UNDECIDED)]),
    later=st.sampled_from([0.0, 60.0, 9e4]),
    devices=st.sampled_from(["", GPUS, OTHER_GPUS]),
    notes=st.sampled_from([{}, AWAITS, {NAMES.requalify: "w2"}, {NAMES.accepted_boot: BOOT}]),
)
def test_nothing_but_both_proofs_lifts_and_nothing_leaves_a_node_unexplained(
    rows, said, mine, later, devices, notes
):
    groups = [
        group(where, OTHER, name=f"npg-{n}-1", over=done, **{"created": NOW - 100 + n, **differs})
        for n, (where, done, differs, _) in enumerate(rows)
    ]
    proof = over()
    seen = alone(
        *groups,
        judged=[r for *_, r in rows],
        waiting=READY,
        devices=devices,
        judged_alone={proof.name: mine} if mine else {},
    )
    made = look(node(said=said, annotations=notes), seen, now=NOW + later)
    ours = [(g, r) for g, (where, *_, r) in zip(groups, rows, strict=True) if where == HERE]
    if does(made, Lift):
        proved, ruling = max(ours, key=lambda row: (row[0].job.created, row[0].job.name))
        assert mine is not None
        assert mine.decision is ACCEPT
        assert ruling is TOGETHER
        assert proved.job.pods
        assert said == FULL
        assert devices != OTHER_GPUS
        assert NAMES.requalify not in notes
    if not does(made, Say):
        assert said is not None or does(made, Read)
    last = max(ours, key=lambda row: (row[0].job.created, row[0].job.name), default=None)
    if last and last[0].job.pods and last[1] is BAD:
        assert not does(made, Measure)
