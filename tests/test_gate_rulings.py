"""What becomes of a node by what its tests came to, and who may have it tested again."""

from __future__ import annotations

import dataclasses

import pytest
from gate_cluster import GPU, NAMES, PENDING, SETTINGS
from gate_nodes import (
    BOOT,
    GPUS,
    NOW,
    PASSED,
    QUARANTINED,
    accepted,
    job,
    node,
    over,
    ruled,
)

from nodeproof.gate.actions import (
    Hold,
    Lift,
    Phase,
    Quarantine,
    Read,
    Record,
    Say,
    Stamp,
    Tell,
)
from nodeproof.gate.actions import (
    Test as Started,
)
from nodeproof.gate.patches import short
from nodeproof.gate.plan import Known, plan
from nodeproof.gate.proof import Ruling
from nodeproof.verdict import Decision

ACCEPT, REJECT, UNDECIDED = Decision.ACCEPT, Decision.REJECT, Decision.UNDECIDED
TOO_OFTEN = ("Unknown", "UndecidedTooOften", f"boot {BOOT}; undecided 3 times")
CONDEMNED = ("False", "HardwareCondemned", f"boot {BOOT}; 4 wrong words")


def does(made, kind):
    return [a for a in made.actions if isinstance(a, kind)]


def says(made):
    [say] = does(made, Say)
    return say.status, say.reason


def known(*jobs, judged=None, **more):
    return Known(jobs=jobs, judged={j.name: judged for j in jobs if judged}, **more)


def look(of, seen=None, now=NOW, **settings):
    return plan(of, seen or Known(), dataclasses.replace(SETTINGS, **settings), now=now)


# --- what it came to ------------------------------------------------------------------------


def test_an_accept_is_said_first_and_lifted_in_the_next_look():
    seen = known(over(), judged=ruled(ACCEPT))
    made = look(node(), seen)
    assert [type(a) for a in made.actions] == [Say]
    assert says(made) == ("True", "AllChecksPassed")
    made = look(node(said=("True", "AllChecksPassed", does(made, Say)[0].message)), seen)
    assert [type(a) for a in made.actions] == [Record, Lift, Tell]
    [lift] = does(made, Lift)
    assert lift.stamps[NAMES.accepted_devices] == GPUS
    assert made.phase is Phase.ACCEPTED


@pytest.mark.parametrize(
    "said",
    [
        ("True", "AllChecksPassed", f"boot boot-0; {PASSED}"),
        ("True", "SomethingElse", f"boot {BOOT}; {PASSED}"),
        ("Unknown", "AllChecksPassed", f"boot {BOOT}; {PASSED}"),
        ("False", "AllChecksPassed", f"boot {BOOT}; {PASSED}"),
        None,
    ],
)
def test_no_lift_while_the_condition_says_anything_else(said):
    made = look(node(said=said), known(over(), judged=ruled(ACCEPT)))
    assert not does(made, Lift)


def test_a_condition_that_says_accepted_is_no_proof():
    said = ("True", "AllChecksPassed", f"boot {BOOT}; {PASSED}")
    made = look(node(said=said, annotations={NAMES.accepted_boot: BOOT}))
    assert not does(made, Lift)
    assert does(made, Started)


def test_a_node_that_lost_its_registration_is_not_lifted_yet():
    taints = [PENDING, {"key": "karpenter.sh/unregistered", "effect": "NoExecute"}]
    said = ("True", "AllChecksPassed", f"boot {BOOT}; {PASSED}")
    made = look(node(taints=taints, said=said), known(over(), judged=ruled(ACCEPT)))
    assert not does(made, Lift)
    assert says(made) == ("Unknown", "NotReady")


def test_a_reject_is_remembered_told_and_quarantined_in_an_order_that_no_crash_harms():
    made = look(node(), known(over(), judged=ruled(REJECT)))
    assert [type(a) for a in made.actions] == [Record, Tell, Quarantine, Say]
    assert says(made) == ("False", "HardwareCondemned")
    again = node(
        taints=[PENDING, QUARANTINED],
        said=("False", "HardwareCondemned", does(made, Say)[0].message),
        annotations=does(made, Quarantine)[0].stamps,
    )
    assert look(again, known(over(), judged=ruled(REJECT))).actions == ()


def test_an_open_breaker_keeps_the_quarantine_away_and_says_so():
    made = look(node(), known(over(), judged=ruled(REJECT), breaker="three in a row"))
    assert not does(made, Quarantine)
    assert {a.reason for a in does(made, Tell)} == {"BreakerOpen", "Rejected"}
    assert "three in a row" in does(made, Say)[0].message
    assert says(made) == ("Unknown", "BreakerOpen"), "what repairs the condemned lets it alone"
    assert does(made, Stamp) == [Stamp(stamps={NAMES.held_for: "BreakerOpen"})]


def test_who_was_rejected_under_an_open_breaker_waits_for_it_or_for_somebody_to_ask():
    open_ = known(over(), judged=ruled(REJECT), breaker="three in a row")
    made = look(node(), open_)
    said = ("Unknown", "BreakerOpen", does(made, Say)[0].message)
    [notes] = [a.stamps for a in does(made, Stamp)]
    told = node(said=said, annotations=notes)
    assert look(told, open_).actions == (), "said once"
    assert look(told, known(breaker="three in a row")).actions == (), "nor when its Job is gone"
    for seen in (known(), known(over(), judged=ruled(REJECT)), known(over(), judged=ruled(ACCEPT))):
        closed = look(told, seen)
        assert says(closed) == ("False", "HardwareCondemned")
        assert does(closed, Quarantine) == [
            Quarantine(stamps={NAMES.held_for: "HardwareCondemned"})
        ]
        assert "breaker" not in does(closed, Say)[0].message
        assert not does(closed, Record)
    rebooted = node(said=said, annotations=notes, boot="boot-2")
    assert not does(look(rebooted, known(breaker="three in a row")), Started)
    assert says(look(rebooted, known(breaker="three in a row"))) == ("Unknown", "BreakerOpen")
    asked_for = node(said=said, annotations={**notes, NAMES.requalify: "w2"})
    assert does(look(asked_for, open_), Started)


@pytest.mark.parametrize(
    "ruling", [r for r in Ruling if r not in {Ruling.ACCEPTED, Ruling.CONDEMNED}]
)
def test_an_undecided_attempt_is_followed_by_another_after_a_while(ruling):
    seen = known(over(), judged=ruled(UNDECIDED, ruling))
    made = look(node(), seen)
    assert (made.phase, says(made)) == (Phase.UNDECIDED, ("Unknown", ruling.value))
    assert made.wake_s == pytest.approx(50)
    [test] = does(look(node(), seen, now=NOW + 51), Started)
    assert test.attempt == 2


def test_the_pause_doubles():
    seen = known(over(attempt=2), judged=ruled(UNDECIDED))
    assert look(node(), seen).wake_s == pytest.approx(110)
    [test] = does(look(node(), seen, now=NOW + 111), Started)
    assert test.attempt == 3


def test_undecided_too_often_stays_held_and_is_told_once():
    seen = known(over(attempt=3), judged=ruled(UNDECIDED))
    made = look(node(), seen)
    assert says(made) == ("Unknown", "UndecidedTooOften")
    assert [a.reason for a in does(made, Tell)] == ["UndecidedTooOften"]
    assert not does(made, Quarantine)
    assert NAMES.requalify in does(made, Say)[0].message
    again = node(said=("Unknown", "UndecidedTooOften", does(made, Say)[0].message))
    assert look(again, seen, now=NOW + 100).actions == ()
    assert look(node(said=TOO_OFTEN), now=NOW + 100).actions == (), "nor when its Jobs are gone"


def test_a_site_may_have_it_quarantined_unless_the_breaker_is_open():
    seen = known(over(attempt=3), judged=ruled(UNDECIDED))
    assert does(look(node(), seen, quarantine_undecided=True), Quarantine)
    shut = dataclasses.replace(seen, breaker="three in a row")
    assert not does(look(node(), shut, quarantine_undecided=True), Quarantine)


def test_then_the_breaker_counts_it():
    seen = known(over(attempt=3), judged=ruled(UNDECIDED))
    [record] = does(look(node(), seen, quarantine_undecided=True), Record)
    assert (record.ruled.accepted, record.ruled.reason) == (False, "UndecidedTooOften")
    assert not does(look(node(), seen), Record)


def test_a_reboot_makes_no_reject_of_what_was_undecided():
    seen = known(over(attempt=3), judged=ruled(UNDECIDED))
    [shut] = does(look(node(), seen, quarantine_undecided=True), Quarantine)
    for said in (TOO_OFTEN, None):
        after = node(
            taints=[PENDING, QUARANTINED], boot="boot-2", said=said, annotations=shut.stamps
        )
        assert says(look(after)) == ("Unknown", "UndecidedTooOften")
        assert not does(look(after), Started)
    bare = node(taints=[PENDING, QUARANTINED])
    assert says(look(bare)) == ("Unknown", "Quarantined"), "nor of a taint that nobody explained"


# --- a condemned node stays condemned -------------------------------------------------------


@pytest.mark.parametrize("taints", [[PENDING], [PENDING, QUARANTINED]])
@pytest.mark.parametrize(
    "seen",
    [
        known(),
        known(over(), judged=ruled(ACCEPT)),
        known(over(), judged=ruled(UNDECIDED, Ruling.MISSING)),
        known(job(ended=NOW - 9999, complete=True)),
        known(job(deleting=True)),
    ],
    ids=["no Job", "an older accept", "its log is lost", "its pod is gone", "its Job goes"],
)
def test_whatever_becomes_of_its_evidence_a_condemned_node_stays(taints, seen):
    made = look(node(taints=taints, said=CONDEMNED), seen)
    assert made.phase is Phase.QUARANTINED
    assert not does(made, Started) + does(made, Lift)
    assert all(s.status == "False" for s in does(made, Say))
    assert bool(does(made, Quarantine)) == (QUARANTINED not in taints)


def test_a_restart_reads_the_evidence_again_and_leaves_the_condition():
    made = look(node(taints=[PENDING, QUARANTINED], said=CONDEMNED), known(over()))
    assert [type(a) for a in made.actions] == [Read]


def test_a_reboot_or_a_lost_condition_takes_no_quarantine_back():
    for said in (
        None,
        ("False", "HardwareCondemned", "boot boot-0; 4 words"),
        ("True", "AllChecksPassed", f"boot {BOOT}; fine"),
    ):
        notes = {NAMES.held_for: "HardwareCondemned"}
        made = look(node(taints=[PENDING, QUARANTINED], said=said, annotations=notes))
        assert says(made) == ("False", "HardwareCondemned")
        assert not does(made, Started)


def test_a_node_that_lost_both_taints_is_held_again_with_what_it_was_condemned_for():
    assert look(node(taints=[GPU], said=CONDEMNED)).actions == (Hold(),), "its condition stands"
    made = look(node(taints=[GPU], said=CONDEMNED, told_s=301))
    assert does(made, Hold)
    assert says(made) == ("False", "HardwareCondemned")
    assert "4 wrong words" in does(made, Say)[0].message


# --- on demand ------------------------------------------------------------------------------


def asked(word="w2", **more):
    return {NAMES.requalify: word, **more}


def test_a_new_word_holds_an_accepted_node_first():
    made = look(accepted(annotations=asked()))
    assert [type(a) for a in made.actions] == [Hold, Say]
    assert says(made) == ("Unknown", "Requalifying")


def test_then_tests_it_for_that_word():
    made = look(
        accepted(taints=[PENDING], annotations=asked()), known(over(), judged=ruled(ACCEPT))
    )
    [test] = does(made, Started)
    assert test.trigger == "requalify-w2"


@pytest.mark.parametrize(("word", "answered"), [("", ""), ("w2", "w2"), ("", "w2")])
def test_no_word_or_the_same_word_asks_for_nothing(word, answered):
    notes = asked(word, **{NAMES.requalified: answered})
    made = look(accepted(annotations=notes))
    assert (made.phase, made.actions) == (Phase.ACCEPTED, ())


def test_an_accept_answers_the_word_in_the_write_that_lifts():
    said = ("True", "AllChecksPassed", f"boot {BOOT}; {PASSED}")
    seen = known(over(trigger="requalify-w2"), judged=ruled(ACCEPT))
    [lift] = does(
        look(accepted(taints=[PENDING, QUARANTINED], said=said, annotations=asked()), seen), Lift
    )
    assert lift.stamps[NAMES.requalified] == "w2"


def test_a_reject_answers_it_in_the_write_that_quarantines():
    seen = known(over(trigger="requalify-w2"), judged=ruled(REJECT))
    made = look(accepted(taints=[PENDING], annotations=asked()), seen)
    answer = {NAMES.requalified: "w2", NAMES.held_for: "HardwareCondemned"}
    assert does(made, Quarantine) == [Quarantine(stamps=answer)]
    assert not does(made, Stamp)
    shut = dataclasses.replace(seen, breaker="three in a row")
    made = look(accepted(taints=[PENDING], annotations=asked()), shut)
    assert does(made, Stamp) == [Stamp(stamps={**answer, NAMES.held_for: "BreakerOpen"})]


def test_so_does_a_row_of_undecided_ones():
    seen = known(over(trigger="requalify-w2", attempt=3), judged=ruled(UNDECIDED))
    made = look(accepted(taints=[PENDING], annotations=asked()), seen)
    answer = {NAMES.requalified: "w2", NAMES.held_for: "UndecidedTooOften"}
    assert does(made, Stamp) == [Stamp(stamps=answer)]


@pytest.mark.parametrize("decision", [REJECT, UNDECIDED])
@pytest.mark.parametrize("kept", [True, False], ids=["word there", "word withdrawn"])
def test_what_proved_a_node_before_it_was_asked_proves_nothing_after(decision, kept):
    notes = asked("w2" if kept else "", **{NAMES.requalified: "w2"})
    old, new = over(), over(trigger="requalify-w2", attempt=3)
    seen = Known(jobs=(old, new), judged={old.name: ruled(ACCEPT), new.name: ruled(decision)})
    made = look(accepted(taints=[PENDING], said=None, annotations=notes), seen)
    assert not does(made, Lift)
    assert says(made)[0] != "True"


def test_a_word_has_a_condemned_node_tested_again():
    made = look(node(taints=[PENDING, QUARANTINED], said=CONDEMNED, annotations=asked()))
    [test] = does(made, Started)
    assert test.trigger == "requalify-w2"


# --- another boot, other devices ------------------------------------------------------------


def test_a_reboot_takes_the_acceptance():
    made = look(accepted(boot="boot-2"))
    assert does(made, Hold)
    assert says(made) == ("Unknown", "Rebooted")
    held = accepted(boot="boot-2", taints=[PENDING])
    [test] = does(look(held, known(over(), judged=ruled(ACCEPT))), Started)
    assert test.trigger == "boot"


def test_an_accepted_node_is_let_alone_but_for_its_heartbeat():
    assert look(accepted(), Known(devices=GPUS)).actions == ()
    [say] = look(accepted(told_s=301)).actions
    assert (say.status, say.message) == ("True", f"boot {BOOT}; {PASSED}")


@pytest.mark.parametrize("gone", [NAMES.accepted_boot])
def test_an_acceptance_without_its_boot_is_none(gone):
    bare = accepted(annotations={gone: ""})
    assert does(look(bare), Hold)


OTHER = "sha256:" + "8" * 64


def test_other_gpus_take_the_acceptance_and_are_an_occasion_of_their_own():
    made = look(accepted(), Known(devices=OTHER))
    assert does(made, Hold)
    assert says(made) == ("Unknown", "DevicesChanged")
    [test] = does(look(accepted(taints=[PENDING]), Known(devices=OTHER)), Started)
    assert test.trigger == f"devices-{short(OTHER)}"


def test_a_proof_of_other_gpus_than_those_in_the_node_accepts_nothing():
    seen = known(over(), judged=ruled(ACCEPT), devices=OTHER)
    made = look(node(), seen)
    assert says(made) == ("Unknown", "ResultForeign")
    assert not does(made, Lift)


# --- taints that only look like ours --------------------------------------------------------


@pytest.mark.parametrize("effect", ["NoExecute", "PreferNoSchedule", "", None])
def test_our_key_with_another_effect_neither_holds_nor_is_waited_for(effect):
    other = {"key": NAMES.pending, "effect": effect}
    assert does(look(node(taints=[other])), Hold)
    assert look(accepted(taints=[GPU, other])).phase is Phase.ACCEPTED


def test_a_taint_without_a_value_holds_as_well():
    made = look(node(taints=[{"key": NAMES.pending, "effect": "NoSchedule"}]))
    assert does(made, Started)
    assert not does(made, Hold)


def test_what_is_said_can_be_sent():
    text = "half a character \ud800 in a log" + "x" * 5000
    made = look(node(), known(over(), judged=ruled(REJECT, text=text)))
    [say] = does(made, Say)
    assert len(say.message.encode()) <= 1024 + 2
    assert say.message.startswith(f"boot {BOOT}; half a character ? in a log")
