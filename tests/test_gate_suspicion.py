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

from nodeproof.gate.actions import Hold, Lift, Phase, Quarantine, Say, Stamp, Tell
from nodeproof.gate.actions import Test as Started
from nodeproof.gate.fleet import Fleet
from nodeproof.gate.node import Condition
from nodeproof.gate.plan import Known
from nodeproof.gate.settings import Served, SettingsError, parse
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
    assert not does(made, Lift)
    assert stamps(made)[NAMES.requalify] == f"suspect: {WORD}"
    again = look(noted(of, stamps(made)), passed)
    [test] = does(again, Started)
    assert test.trigger.startswith(f"requalify-suspect: {WORD}@")
    assert not does(again, Lift)


def test_a_reject_is_not_put_off_by_a_monitor_that_speaks():
    made = look(suspected(pending()), known(over(), judged=ruled(Decision.REJECT)))
    assert does(made, Quarantine)


def test_a_monitor_that_goes_back_and_forth_fills_no_annotation():
    of = pending()
    for number in range(50):
        of = noted(of, stamps(look(suspected(of, since=SINCE + number), known(job()))))
    assert of.annotations[NAMES.suspected] == f"?NodeproofSuspect=True since {stamp(SINCE + 49)}"


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


def test_an_undecided_test_that_a_suspicion_came_into_is_answered_by_another():
    of = noted(suspected(pending()), {NAMES.suspected: f"?{WORD}"})
    tried = known(over(ended=NOW - 600), judged=ruled(Decision.UNDECIDED))
    made = look(of, tried)
    assert stamps(made) == {NAMES.suspected: WORD}
    [test] = does(look(noted(of, stamps(made)), tried), Started)
    assert test.trigger.startswith("new@")


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


def test_nobody_who_sets_an_older_request_again_releases_the_node_by_what_it_had_proved_then():
    world = World()
    world.annotate({NAMES.requalify: "A"})
    world.look()
    world.look()
    world.start()
    world.suspect("True")
    world.look()
    world.finish("accept")
    for _ in range(4):
        world.look()
    world.annotate({NAMES.requalify: "A"})
    for _ in range(6):
        world.look()
    assert world.lifts == 0
    world.start()
    world.finish("accept")
    world.settle()
    assert world.lifts == 1


def test_what_somebody_wrote_since_is_not_overwritten_by_an_older_view():
    world = World()
    world.look()
    world.start()
    world.suspect("True")
    seen = world.view()
    world.views.append(seen)
    world.annotate({NAMES.suspected: "?other"})
    world.look(stale=1)
    assert world.raw()["metadata"]["annotations"][NAMES.suspected] == "?other"


def test_a_monitor_lifts_no_quarantine_that_a_person_laid():
    of = suspected(accepted(taints=[GPU, QUARANTINED]))
    made = look(of)
    assert made.phase is Phase.SUSPECT
    assert not does(made, Stamp)
    assert not does(made, Hold)
    assert "somebody quarantined it" in does(made, Say)[0].message


def passed(of):
    """The node with the Job that its own look starts, which has ended in an accept."""
    [test] = does(look(of), Started)
    return look(of, known(over(trigger=test.trigger), judged=ruled(ACCEPT)))


def test_nor_one_that_was_laid_while_the_node_was_tested():
    asked = noted(
        suspected(pending(taints=[GPU, PENDING, QUARANTINED])),
        {NAMES.requalify: f"suspect: {WORD}", NAMES.suspected: WORD},
    )
    made = passed(asked)
    assert not does(made, Lift)
    assert stamps(made) == {NAMES.requalified: f"suspect: {WORD}"}
    made = look(noted(asked, stamps(made)))
    assert not does(made, Started)
    assert says(made) == ("Unknown", "Quarantined")
    assert "to test again" in does(made, Say)[0].message
    by_hand = noted(asked, {NAMES.requalify: "ticket-7"})
    assert says(passed(by_hand)) == ("True", "AllChecksPassed")


def test_a_node_whose_turn_has_not_come_is_tested_when_somebody_suspects_it():
    how = {"installed_at": NOW - 1000, "served": Served.REQUALIFY}
    of = pending(taints=[GPU], created=NOW - 1e6)
    waits = Known(served_held=1)
    assert says(look(of, waits, **how)) == ("Unknown", "ServedLater")
    assert stamps(look(suspected(of), waits, **how))[NAMES.requalify] == f"suspect: {WORD}"
    made = look(suspected(of), Known(served_held=1, crowded=CROWDED), **how)
    assert made.phase is Phase.SUSPECT
    assert CROWDED in does(made, Say)[0].message
    assert does(made, Tell)


def test_a_node_whose_condition_was_lost_is_not_said_to_be_suspected_still():
    answered = {NAMES.requalify: f"suspect: {WORD}", NAMES.requalified: f"suspect: {WORD}"}
    made = look(pending(taints=[GPU], annotations=answered))
    assert does(made, Hold)
    assert says(made) == ("Unknown", "Requalifying")


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
    other = dataclasses.replace(again, others=says_so(message="another text of the same"))
    assert crowded(other).actions == ()
    assert crowded(again).actions == ()
    assert stamps(look(again)), "held as soon as fewer are"
    over_ = look(dataclasses.replace(again, others={}))
    assert [a.message for a in does(over_, Say)] == [f"boot {BOOT}; {PASSED}"]


def test_a_message_that_has_no_room_left_still_says_that_it_is_suspected():
    of = suspected(accepted())
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


def raw(uid, notes, *, kind="x", ours="true", spec=None, **more):
    labels = {"node.kubernetes.io/instance-type": kind, "nvidia.com/gpu.present": ours}
    told = {"name": uid, "uid": uid, "annotations": notes, "labels": labels, **more}
    return {"metadata": told, "spec": spec or {}}


@pytest.mark.parametrize(
    ("suspects", "others", "full"),
    [(0, 1, False), (2, 0, False), (3, 0, True), (3, 12, False), (4, 12, True), (200, 800, False)],
)
def test_the_share_of_a_kind_that_may_be_held_is_that_of_the_breaker(suspects, others, full):
    made = fleet(raw, suspects=suspects, others=others)
    assert bool(made.crowded("x")) == full
    assert made.crowded("y") == ""


ANSWERED = {NAMES.requalify: f"suspect: {WORD}", NAMES.requalified: f"suspect: {WORD}"}
ASKED = {NAMES.requalify: f"suspect: {WORD}"}


@pytest.mark.parametrize(
    ("now", "counts"),
    [
        (raw("uid-0", ASKED), True),
        (raw("uid-0", ASKED, spec={"taints": [PENDING]}), True),
        (raw("uid-0", ANSWERED, spec={"taints": [PENDING]}), True),  # undecided, and held
        (raw("uid-0", ANSWERED), False),
        (raw("uid-0", {}), False),
        (raw("uid-0", {NAMES.requalify: "by hand"}, spec={"taints": [PENDING]}), False),
        (raw("uid-0", ASKED, kind="y"), False),
        (raw("uid-0", ASKED, ours="false"), False),
        (raw("uid-0", ASKED, deletionTimestamp="2026-12-01T00:00:00Z"), False),
        (None, False),
    ],
)
def test_who_stays_held_keeps_its_place_and_who_is_free_or_gone_does_not(now, counts):
    made = fleet(raw, suspects=3, others=0)
    made.take("uid-0", now)
    assert bool(made.crowded("x")) == counts


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
