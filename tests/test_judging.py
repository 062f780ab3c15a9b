"""What a check measured becomes an outcome; what a planted fault did becomes a self-test."""

from __future__ import annotations

import dataclasses
import math
from argparse import Namespace
from fractions import Fraction
from pathlib import Path

import pytest

from nodeproof.checks import CannotMeasure, Plant, Work, check, spec_of
from nodeproof.manifest import shipped
from nodeproof.model import (
    COMPUTE,
    Cause,
    Device,
    DeviceKind,
    Measurement,
    Outcome,
    Profile,
    Remedy,
)
from nodeproof.plugin import options
from nodeproof.plugin.judging import Measurements, judge
from nodeproof.plugin.selftesting import (
    Trial,
    concluded,
    planted_in_answer,
    planted_in_worker,
    withheld,
)
from nodeproof.results import assemble
from tests.shipped_run import NODE, RUN, failed, records_of, without

GPU = Device(kind=DeviceKind.GPU, id="GPU-1", label="gpu0")


def declared(cause=Cause.HARDWARE, plant=None, *, gathers=False):
    """One check, declared as a suite does."""
    declare = check(
        "device.sample.bits",
        kinds=COMPUTE,
        remedy=Remedy.REPLACE,
        cause=cause,
        work=Work(call="nodeproof.kernels.gemm:exact"),
        plant=plant or Plant(args={"plant": "flip"}),
    )
    if gathers:
        return spec_of(declare(_of_all))
    return spec_of(declare(_of_one))


def _of_one(result, measure):
    """Bits."""
    measure("wrong", result["wrong"], at_most=0)


def _of_all(results, measure):
    """Bits."""
    measure("wrong", sum(r["wrong"] for _, r in results), at_most=0)


HELD = Measurement(name="wrong", value=0, at_most=0)
SEEN = Measurement(name="seen", value=5.0)
BROKEN = Measurement(name="wrong", value=3, unit="words", at_most=0)
BUSY = dataclasses.replace(BROKEN, name="others", cause=Cause.ENVIRONMENT)
WRONG_SPEC = dataclasses.replace(BROKEN, name="spec", cause=Cause.CONFIG)
NOT_A_NUMBER = Measurement(name="rate", value=math.nan, at_least=1)
FAIL, ERROR, PASS = Outcome.FAIL, Outcome.ERROR, Outcome.PASS
HARDWARE, ENVIRONMENT, CONFIG = Cause


class Foreign(Exception):  # noqa: N818  named as libraries do
    """An exception of a library that uses our words for its own things."""

    cause: object = ["a list of its own"]
    remedy: object = "try again"


TABLE = {
    # measured, raised, and what it comes to
    "held": ([HELD], None, PASS, None),
    "held, and one that decides nothing": ([HELD, SEEN], None, PASS, None),
    "nothing measured": ([], None, ERROR, CONFIG),
    "nothing held against a limit": ([SEEN], None, ERROR, CONFIG),
    "broken": ([BROKEN], None, FAIL, HARDWARE),
    "held and broken": ([HELD, BROKEN], None, FAIL, HARDWARE),
    "not a number": ([NOT_A_NUMBER], None, FAIL, HARDWARE),
    "broken for want of quiet": ([BUSY], None, FAIL, ENVIRONMENT),
    "broken for a wrong spec": ([WRONG_SPEC], None, FAIL, CONFIG),
    "broken for quiet and for hardware": ([BUSY, WRONG_SPEC, BROKEN], None, FAIL, HARDWARE),
    "broken for quiet and for the spec": ([WRONG_SPEC, BUSY], None, FAIL, ENVIRONMENT),
    "an assertion": ([HELD], AssertionError("3 words differ"), FAIL, HARDWARE),
    "an assertion without words": ([], AssertionError(), FAIL, HARDWARE),
    "cannot measure": ([], CannotMeasure("no sensor"), ERROR, ENVIRONMENT),
    "cannot measure after a broken limit": ([BROKEN], CannotMeasure("no"), ERROR, ENVIRONMENT),
    "cannot measure for the spec": ([], CannotMeasure("no", cause=CONFIG), ERROR, CONFIG),
    "a missing key": ([HELD], KeyError("wrong"), ERROR, ENVIRONMENT),
    "an exception of ours": ([HELD], ZeroDivisionError(), ERROR, ENVIRONMENT),
    "an exception with other ideas": ([HELD], Foreign("x"), ERROR, ENVIRONMENT),
}


@pytest.mark.parametrize("row", TABLE)
def test_what_was_measured_and_raised_is_judged(row):
    taken, raised, outcome, cause = TABLE[row]
    told = judge(declared(), taken, raised)
    assert (told.outcome, told.cause) == (outcome, cause)
    condemned = outcome is FAIL and cause is HARDWARE
    remedy = Remedy.NONE if outcome is PASS else Remedy.REPLACE if condemned else Remedy.RETEST
    assert told.remedy is remedy
    assert bool(told.summary) == (outcome is not PASS)


def test_a_check_of_the_environment_condemns_no_hardware():
    told = judge(declared(cause=ENVIRONMENT), [BROKEN], AssertionError("late"))
    assert (told.outcome, told.cause, told.remedy) == (FAIL, ENVIRONMENT, Remedy.RETEST)


def test_the_remedy_of_a_measurement_counts_where_it_blames_the_hardware():
    graver = Measurement(name="a", value=1, at_most=0, remedy=Remedy.REPLACE)
    milder = Measurement(name="b", value=1, at_most=0, remedy=Remedy.RESET_GPU)
    foreign = Measurement(name="c", value=1, at_most=0, cause=ENVIRONMENT, remedy=Remedy.REPLACE)
    of_reboot = dataclasses.replace(declared(), remedy=Remedy.REBOOT)
    plain = Measurement(name="d", value=1, at_most=0)
    assert judge(of_reboot, [milder], None).remedy is Remedy.RESET_GPU
    assert judge(of_reboot, [milder, plain], None).remedy is Remedy.REBOOT
    assert judge(of_reboot, [graver, milder, plain], None).remedy is Remedy.REPLACE
    assert judge(of_reboot, [milder, foreign], None).remedy is Remedy.RESET_GPU
    assert judge(of_reboot, [foreign], None).remedy is Remedy.RETEST


def test_a_summary_says_each_broken_limit_and_the_assertion_and_no_other():
    told = judge(declared(), [HELD, BROKEN, SEEN], AssertionError("3 words differ"))
    assert told.summary == "wrong 3 words (wants at most 0); 3 words differ"
    assert judge(declared(), [], KeyError("rate")).summary == "KeyError: 'rate'"


NO_NUMBER = [None, "5", b"5", True, False, math.nan, math.inf, -math.inf, [5], 5j, Fraction(1, 2)]


@pytest.mark.parametrize("value", NO_NUMBER)
@pytest.mark.parametrize("argument", ["value", "at_least", "at_most"])
def test_what_is_no_finite_number_is_not_taken(argument, value):
    if value is None and argument != "value":
        return  # no bound
    measure = Measurements()
    with pytest.raises(CannotMeasure, match="rate"):
        measure("rate", **{"value": 1.0, "at_most": 9.0, argument: value})
    assert measure.taken == []


def test_an_integer_past_all_floats_is_not_taken():
    measure = Measurements()
    with pytest.raises(CannotMeasure, match="rate"):
        measure("rate", 10**400, at_most=1)
    assert measure.taken == []


def test_what_is_measured_is_kept_in_order_with_all_that_was_said_of_it():
    measure = Measurements()
    measure("a", 1, unit="words", at_least=0, at_most=2, cause=CONFIG, detail="here")
    measure("b", 2.5)
    first = Measurement(
        name="a", value=1, unit="words", at_least=0, at_most=2, cause=CONFIG, detail="here"
    )
    assert measure.taken == [first, Measurement(name="b", value=2.5)]


# --- self-tests -----------------------------------------------------------------------------


def attempting(spec):
    """The check's own function, judged as a run judges it."""

    def attempt(answer):
        measure = Measurements()
        (_of_all if spec.gathers else _of_one)(answer, measure)
        return judge(spec, measure.taken, None)

    return attempt


FLIPPED = Plant(args={"plant": "flip"})
FLIP = [{"row": 3, "bit": 7}]
PLANTED = {
    # what the worker planted, what its comparison found, how many words its check sees wrong
    "reported exactly": (FLIP, FLIP, 1, True),
    "nothing planted": ([], [], 1, False),
    "planted nothing": (None, None, 1, False),
    "nothing found": (FLIP, [], 1, False),
    "found elsewhere": (FLIP, [{"row": 4, "bit": 7}], 1, False),
    "found more": (FLIP, FLIP * 2, 1, False),
    "found in other words": (FLIP, [{"row": 3, "bit": 7, "also": 0}], 1, False),
    "found as another kind of number": (FLIP, [{"row": 3.0, "bit": 7}], 1, False),
    "found as a truth": ([{"row": 1}], [{"row": True}], 1, False),
    "found, and the check passes": (FLIP, FLIP, 0, False),
}


@pytest.mark.parametrize("row", PLANTED)
def test_a_detector_is_proved_only_by_reporting_just_what_was_planted_and_failing(row):
    planted, found, wrong, caught = PLANTED[row]
    spec = declared()
    answer = {"planted": planted, "found": found, "wrong": wrong}
    trial = planted_in_worker(spec, spec.plants[0], answer, attempting(spec))
    assert (not trial.problem) is caught
    told = concluded(spec, GPU, [trial], frozenset())
    assert told.caught is caught
    assert (told.check, told.device, told.planted, told.reported) == (spec.id, GPU, planted, found)


@pytest.mark.parametrize(
    ("answers", "caught"), [((FLIP, FLIP), True), ((FLIP, []), False), ((), False)]
)
def test_a_check_of_all_devices_is_proved_on_each_of_them(answers, caught):
    spec = declared(gathers=True)
    answer = [(GPU, {"planted": a, "found": a, "wrong": 1}) for a in answers]
    always = judge(spec, [BROKEN], None)
    assert (not planted_in_worker(spec, FLIPPED, answer, lambda _: always).problem) is caught


def test_a_fail_for_another_cause_than_the_checks_own_proves_nothing():
    spec = declared()
    answer = {"planted": FLIP, "found": FLIP, "wrong": 1}
    other = judge(spec, [BUSY], None)
    assert planted_in_worker(spec, FLIPPED, answer, lambda _: other).problem


@pytest.mark.parametrize(
    ("alter", "caught"),
    [
        (lambda r: {**r, "wrong": 1}, True),
        (lambda r: {**r, "more": 1}, False),
        (lambda r: r, False),
        (lambda r: r.update(wrong=1) or r, True),
    ],
)
def test_an_altered_answer_has_to_be_altered_and_to_fail(alter, caught):
    spec = declared(plant=Plant(alter=alter))
    answer = {"wrong": 0}
    trial = planted_in_answer(spec, spec.plants[0], answer, attempting(spec))
    assert (not trial.problem) is caught
    assert answer == {"wrong": 0}  # what was measured is never what is altered


def test_a_plant_that_cannot_be_had_here_is_none():
    spec = declared(plant=Plant(alter=lambda _: None))
    assert planted_in_answer(spec, spec.plants[0], {"wrong": 0}, attempting(spec)) is None


@pytest.mark.parametrize(
    ("breaks", "seen"),
    [((), True), (("wrong",), True), (("right",), False), (("wrong", "x"), False)],
)
def test_a_plant_has_to_break_just_the_limits_that_it_names(breaks, seen):
    spec = declared(plant=Plant(alter=lambda r: {**r, "wrong": 1}, breaks=breaks))
    trial = planted_in_answer(spec, spec.plants[0], {"wrong": 0}, attempting(spec))
    assert (not trial.problem) is seen


@pytest.mark.parametrize(
    ("broken", "bounded", "caught"),
    [
        ([{"a"}], {"a"}, True),
        ([{"a"}], {"a", "b"}, False),
        ([{"a"}, {"b"}], {"a", "b"}, True),
        ([{"a", "c"}], {"a"}, True),
        ([], set(), False),
    ],
)
def test_each_limit_of_a_check_has_to_be_broken_by_one_of_its_plants(broken, bounded, caught):
    trials = [Trial(planted=1, reported=1, problem="", broken=frozenset(b)) for b in broken]
    assert concluded(declared(), GPU, trials, frozenset(bounded)).caught is caught


def test_one_plant_that_is_missed_is_not_outweighed_by_another():
    good = Trial(planted=1, reported=1, problem="")
    assert not concluded(
        declared(), GPU, [good, dataclasses.replace(good, problem="missed")], frozenset()
    ).caught


def test_the_verdict_misses_each_finding_that_is_withheld_from_it():
    for run in (RUN, failed()):
        told = withheld(NODE, assemble(records_of(run)), shipped())
        assert (told.caught, told.planted) == (True, len(run.findings))


def test_a_finding_that_nobody_would_miss_breaks_the_test_of_the_verdict():
    unplanned = RUN.replan(checks=RUN.plan.checks[1:])
    assert not withheld(NODE, assemble(records_of(unplanned)), shipped()).caught
    doubled = RUN.but(findings=(*RUN.findings, RUN.findings[0]))
    assert not withheld(NODE, assemble(records_of(doubled)), shipped()).caught
    assert not withheld(NODE, assemble(records_of(RUN.but(findings=()))), shipped()).caught
    assert withheld(NODE, assemble(records_of(without(RUN, "host.cpu.cores"))), shipped()).caught


# --- options --------------------------------------------------------------------------------

GIVEN = {
    "profile": "quick", "device": "cuda", "cpu_devices": 2, "spec": "", "expect_gpus": None,
    "host_root": Path("/"), "run_id": "", "nonce": "", "node_name": "", "node_uid": "", "deadline": None,
    "waivers": None, "seed": None, "selftest_only": False,
    "replay": None, "record": None, "group": None,
}  # fmt: skip


def read(**more):
    return options.read(Namespace(**{f"nodeproof_{k}": v for k, v in {**GIVEN, **more}.items()}))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"profile": "quik"}, "quick"),
        ({"profile": ""}, "gate"),
        ({"device": "gpu"}, "there is no device 'gpu'"),
        ({"device": "cdua"}, "cuda"),
        ({"cpu_devices": 0}, "--cpu-devices"),
        ({"expect_gpus": -1}, "--expect-gpus"),
        ({"expect_gpus": 8, "device": "cpu"}, "rehearsal"),
        ({"deadline": 0.0}, "--deadline"),
        ({"deadline": math.nan}, "--deadline"),
        ({"deadline": math.inf}, "--deadline"),
        ({"spec": "h1000"}, "h1000"),
        ({"waivers": Path("/absent.toml")}, "/absent.toml"),
    ],
)
def test_a_wrong_option_is_answered_in_one_sentence(more, says):
    with pytest.raises(ValueError, match=says) as caught:
        read(**more)
    assert "\n" not in str(caught.value)


def test_each_run_has_data_of_its_own_unless_a_seed_is_given_zero_included():
    assert read().seed != read().seed
    assert read(seed=0).seed == 0


@pytest.mark.parametrize("profile", Profile)
def test_the_deadline_is_that_of_the_profile_unless_one_is_given(profile):
    assert read(profile=profile.value).deadline_s == options.DEADLINE_S[profile]
    assert read(profile=profile.value, deadline=1.5).deadline_s == 1.5
