"""A monitor's condition has a node tested again; it proves nothing, and empties no fleet."""

from __future__ import annotations

import dataclasses

import pytest
from gate_cluster import GPU, NAMES, PENDING, SETTINGS, condition
from gate_life import NODE, living
from gate_nodes import BOOT, NOW, PASSED, QUARANTINED, accepted, job, over, ruled
from gate_nodes import node as pending
from gate_world import World
from test_gate_plan import ACCEPT, does, known, look, says

from nodeproof.gate.actions import Hold, Lift, Phase, Say, Stamp, Tell
from nodeproof.gate.actions import Test as Started
from nodeproof.gate.fleet import Fleet
from nodeproof.gate.node import Condition
from nodeproof.gate.plan import Known
from nodeproof.gate.settings import SettingsError, parse
from nodeproof.gate.writes import stamp
from nodeproof.verdict import Decision

SINCE = NOW - 60
WORD = f"NodeproofSuspect=True since {stamp(SINCE)}"
IMAGE = f'image = "x@sha256:{"1" * 64}"\n'


def says_so(
    status="True", *, kind="NodeproofSuspect", since=SINCE, message="GPU 0000:0f:00.0: xid 79"
):
    return {
        kind: Condition(
            status=status, reason="GpuFaultSeen", message=message, heartbeat=NOW, transition=since
        )
    }


def suspected(of, **how):
    return dataclasses.replace(of, others=says_so(**how))


def noted(of, stamps):
    return dataclasses.replace(of, annotations={**of.annotations, **stamps})


def stamps(made):
    return {k: v for action in does(made, Stamp) for k, v in action.stamps.items()}


# --- a node that serves ---------------------------------------------------------------------


def test_a_node_that_serves_and_is_suspected_is_asked_to_prove_itself_as_a_person_would_ask():
    of = suspected(accepted())
    made = look(of)
    assert stamps(made) == {
        NAMES.requalify: f"suspect: {WORD}",
        NAMES.suspected: WORD,
    }
    [tell] = does(made, Tell)
    assert tell.warning
    assert "GPU 0000:0f:00.0: xid 79" in tell.message
    held = look(noted(of, stamps(made)))
    assert does(held, Hold)
    assert says(held) == ("Unknown", "Suspected")
    assert WORD in does(held, Say)[0].message


@pytest.mark.parametrize("status", ["False", "Unknown", "", "true"])
def test_any_other_status_asks_for_nothing_and_proves_nothing(status):
    assert look(suspected(accepted(), status=status)).actions == ()
    assert not does(look(suspected(pending(), status=status)), Lift)


def test_a_condition_that_the_site_did_not_name_asks_for_nothing():
    of = suspected(accepted(), kind="KernelDeadlock")
    assert look(of).actions == ()
    assert stamps(look(of, suspect_conditions=["KernelDeadlock=True"]))


def test_a_condition_may_be_bad_when_it_is_false():
    of = suspected(accepted(), kind="AcceleratedHardwareReady", status="False")
    word = stamps(look(of, suspect_conditions=["AcceleratedHardwareReady=False"]))[NAMES.suspected]
    assert word.startswith("AcceleratedHardwareReady=False since ")


def test_a_suspicion_that_was_tested_for_is_not_tested_for_again_and_a_later_one_is():
    tested = noted(suspected(accepted()), {NAMES.suspected: WORD})
    assert look(tested).actions == ()
    later = noted(suspected(accepted(), since=NOW), {NAMES.suspected: WORD})
    assert stamps(look(later))[NAMES.suspected] == f"NodeproofSuspect=True since {stamp(NOW)}"


def test_one_of_two_suspicions_that_is_over_makes_no_new_one_of_the_other():
    both = {**says_so(), **says_so(kind="Other", since=NOW)}
    settings = {"suspect_conditions": ["NodeproofSuspect=True", "Other=True"]}
    of = dataclasses.replace(accepted(), others=both)
    answered = stamps(look(of, **settings))
    assert "; " in answered[NAMES.suspected]
    for left, told in both.items():
        of = dataclasses.replace(accepted(), others={left: told})
        assert (
            look(noted(of, {NAMES.suspected: answered[NAMES.suspected]}), **settings).actions == ()
        )


def test_without_a_time_the_words_tell_one_suspicion_from_the_next():
    first = stamps(look(suspected(accepted(), since=None)))[NAMES.suspected]
    assert look(noted(suspected(accepted(), since=None), {NAMES.suspected: first})).actions == ()
    other = suspected(accepted(), since=None, message="GPU 0000:1f:00.0: xid 48")
    assert stamps(look(noted(other, {NAMES.suspected: first})))


def test_a_node_from_before_the_installation_is_asked_too():
    of = suspected(pending(taints=[GPU], created=NOW - 1e6))
    assert stamps(look(of, installed_at=NOW - 1000))[NAMES.requalify] == f"suspect: {WORD}"


# --- a node that is held --------------------------------------------------------------------


def test_what_stands_against_a_node_when_its_test_starts_is_what_it_is_tested_for():
    of = suspected(pending())
    made = look(of)
    assert stamps(made) == {NAMES.suspected: WORD}
    assert not does(made, Started)
    assert does(look(noted(of, stamps(made))), Started)


def test_a_suspicion_that_comes_up_during_the_test_has_the_node_tested_again():
    passed = known(over(), judged=ruled(ACCEPT))
    told = ("True", "AllChecksPassed", f"boot {BOOT}; {PASSED}")
    assert does(look(pending(said=told), passed), Lift)
    of = suspected(pending(said=told))
    made = look(of, passed)
    assert stamps(made) == {NAMES.suspected: f"?{WORD}"}
    assert not does(made, Lift)
    of = noted(of, stamps(made))
    made = look(of, passed)
    assert not does(made, Lift)
    assert stamps(made)[NAMES.requalify] == f"suspect: {WORD}"
    again = look(noted(of, stamps(made)), passed)
    [test] = does(again, Started)
    assert test.trigger == f"requalify-suspect: {WORD}"
    assert not does(again, Lift)


def test_a_suspicion_that_comes_up_during_the_test_and_is_taken_back_is_not_forgotten():
    of = suspected(pending())
    made = look(of, known(job()))
    assert stamps(made) == {NAMES.suspected: f"?{WORD}"}
    of = noted(dataclasses.replace(of, others=says_so("False")), stamps(made))
    assert not does(look(of, known(job())), Stamp)
    made = look(of, known(over(), judged=ruled(ACCEPT)))
    assert not does(made, Lift)
    assert stamps(made) == {NAMES.requalify: f"suspect: {WORD}", NAMES.suspected: WORD}
    assert "takes it back" in does(made, Tell)[0].message


def test_an_undecided_test_that_a_suspicion_came_into_is_answered_by_the_next_attempt():
    of = noted(suspected(pending()), {NAMES.suspected: f"?{WORD}"})
    tried = known(over(ended=NOW - 600), judged=ruled(Decision.UNDECIDED))
    made = look(of, tried)
    assert stamps(made) == {NAMES.suspected: WORD}
    [test] = does(look(noted(of, stamps(made)), tried), Started)
    assert (test.trigger, test.attempt) == ("new", 2)


@pytest.mark.parametrize(
    ("taints", "said"),
    [
        ([PENDING, QUARANTINED], ("False", "HardwareCondemned", f"boot {BOOT}; 4 wrong words")),
        ([PENDING], ("Unknown", "UndecidedTooOften", f"boot {BOOT}; no driver")),
        ([PENDING], ("Unknown", "BreakerOpen", f"boot {BOOT}; 4 wrong words")),
        ([PENDING, QUARANTINED], None),
    ],
)
def test_what_is_held_for_people_is_not_tested_because_a_monitor_speaks(taints, said):
    made = look(suspected(pending(taints=taints, said=said)))
    assert not does(made, Started)
    assert NAMES.requalify not in stamps(made)


def test_a_node_that_is_rejected_for_a_suspicion_is_quarantined_and_has_its_answer():
    with living() as life:
        life.serve()
        life.suspect()
        life.settle()
        life.run("reject")
        life.settle()
        found, said = life.node(), condition(life.node())
    assert NAMES.quarantined in {t["key"] for t in found["spec"]["taints"]}
    assert said["reason"] == "HardwareCondemned"
    notes = found["metadata"]["annotations"]
    assert notes[NAMES.requalified] == notes[NAMES.requalify]


def test_the_same_words_of_a_monitor_after_the_accept_hold_nobody():
    with living() as life:
        life.serve()
        life.suspect()
        life.settle()
        assert NAMES.pending in {t["key"] for t in life.node()["spec"]["taints"]}
        life.run("accept")
        life.settle()
        life.store.change(
            NODE,
            lambda n: n["status"]["conditions"][-2].update(lastHeartbeatTime=life.store.stamp()),
        )
        life.settle()
        found = life.node()
    assert [t["key"] for t in found["spec"]["taints"]] == ["nvidia.com/gpu"]
    assert condition(found)["status"] == "True"


# --- many at once ---------------------------------------------------------------------------

CROWDED = "as many nodes of kind x are held for such a suspicion as may be at once"


def crowded(of, **settings):
    return look(of, Known(crowded=CROWDED), **settings)


def test_where_too_many_are_held_it_serves_on_and_says_so_once():
    of = suspected(accepted())
    made = crowded(of)
    assert made.phase is Phase.SUSPECT
    assert not does(made, Hold)
    assert not does(made, Stamp)
    [say], [tell] = does(made, Say), does(made, Tell)
    assert (say.status, say.reason) == ("True", "AllChecksPassed")
    assert say.message.startswith(f"boot {BOOT}; {PASSED}; serves on, though suspected: {CROWDED}")
    assert tell.reason == "SuspectServes"
    now = dataclasses.replace(of.condition, message=say.message)
    again = dataclasses.replace(of, condition=now)
    assert crowded(again).actions == ()
    assert stamps(look(again)), "held as soon as fewer are"
    over_ = look(dataclasses.replace(again, others={}))
    assert [a.message for a in does(over_, Say)] == [f"boot {BOOT}; {PASSED}"]


def test_a_message_that_has_no_room_left_still_says_that_it_is_suspected():
    of = suspected(accepted(), message="x" * 5000)
    long = dataclasses.replace(of.condition, message=f"boot {BOOT}; {'y' * 1015}")
    made = crowded(dataclasses.replace(of, condition=long))
    [say] = does(made, Say)
    assert len(say.message) == 1024
    assert "serves on, though suspected" in say.message
    told = dataclasses.replace(long, message=say.message)
    assert crowded(dataclasses.replace(of, condition=told)).actions == ()


def fleet(of, *, suspects, others):
    made = Fleet(SETTINGS)
    for number in range(suspects + others):
        uid = f"uid-{number}"
        notes = {NAMES.requalify: f"suspect: {WORD}"} if number < suspects else {}
        made.take(uid, of(uid, notes))
    return made


def raw(uid, notes):
    labels = {"node.kubernetes.io/instance-type": "x"}
    return {"metadata": {"name": uid, "uid": uid, "annotations": notes, "labels": labels}}


@pytest.mark.parametrize(
    ("suspects", "others", "full"),
    [(0, 1, False), (2, 0, False), (3, 0, True), (3, 12, False), (4, 12, True), (200, 800, False)],
)
def test_the_share_of_a_kind_that_may_be_held_is_that_of_the_breaker(suspects, others, full):
    made = fleet(raw, suspects=suspects, others=others)
    assert bool(made.crowded("x")) == full
    assert made.crowded("y") == ""


def test_who_has_its_answer_or_is_gone_counts_no_more():
    made = fleet(raw, suspects=3, others=0)
    made.take("uid-0", raw("uid-0", {NAMES.requalify: f"suspect: {WORD}",
                                     NAMES.requalified: f"suspect: {WORD}"}))  # fmt: skip
    assert made.crowded("x") == ""
    made = fleet(raw, suspects=3, others=0)
    made.take("uid-1", None)
    assert made.crowded("x") == ""


# --- what a site may say --------------------------------------------------------------------


@pytest.mark.parametrize(
    "told", ["NodeproofSuspect", "=True", "X=Unknown", "X=true", "a b=True", "nodeproof.dev/Accepted=False", "X=True=True", "X; Y=True"]
)  # fmt: skip
def test_a_condition_that_could_never_be_met_or_always_is_refused(told):
    with pytest.raises(SettingsError, match="suspect_conditions"):
        parse(f'{IMAGE}suspect_conditions = ["{told}"]')


def test_a_site_may_have_none():
    assert parse(f"{IMAGE}suspect_conditions = []").suspect_conditions == []
    assert look(suspected(accepted()), suspect_conditions=[]).actions == ()


def test_the_shipped_monitor_says_what_is_listened_to():
    assert parse(IMAGE).suspect_conditions == ("NodeproofSuspect=True",)


def test_a_world_that_suspects_during_every_test_releases_nobody_by_an_old_one():
    world = World()
    world.look()
    for _ in range(4):
        world.look()
        world.start()
        world.suspect("True")
        world.finish("accept")
        for _ in range(4):
            world.look()
    assert world.lifts == 0
    world.start()
    world.finish("accept")
    world.settle()
    assert world.lifts == 1
