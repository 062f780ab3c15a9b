"""Checks of a site, each with one thing in it that goes well or badly. Copied, and run from there."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from nodeproof.checks import (
    CannotMeasure,
    Cause,
    Device,
    DeviceKind,
    Load,
    Measure,
    Plant,
    Remedy,
    Result,
    Results,
    Work,
    check,
)

CPU = (DeviceKind.CPU,)
ECHO = Work(call="standin_work:echo", args={"value": 7})
LOW = Plant(alter=lambda result: {**result, "value": -1})


def of(name, **more):
    """Declare a check of this site."""
    given = {"kinds": CPU, "remedy": Remedy.RESET_GPU, "work": ECHO, "plant": LOW, **more}
    return check(f"site.case.{name}", **given)


@of("sound")
def test_sound(result: Result, measure: Measure) -> None:
    """Sound."""
    measure("value", result["value"], at_least=0)


@of("gathered", plant=Plant(alter=lambda results: results[:1]), kinds=(DeviceKind.NODE,))
def test_gathered(results: Results, measure: Measure) -> None:
    """Judged over all devices."""
    measure("devices", len({r["label"] for _, r in results}), at_least=2)


@of(
    "compared",
    plant=(
        Plant(args={"planted": ["here"], "found": ["here"], "value": -3}, breaks=("value",)),
        Plant(alter=lambda result: {**result, "value": 8}, breaks=("peers agree",)),
    ),
)
def test_compared(device: Device, result: Result, peers: Results, measure: Measure) -> None:
    """Held against what the same work came to on the others: planted there too, where it is here."""
    measure("value", result["value"], at_least=0)
    agreeing = [d for d, r in peers if d.id != device.id and r["value"] == result["value"]]
    measure("peers agree", len(agreeing), at_least=1)
    measure("peers planted", sum("planted" in r for _, r in peers))


@of("widowed", work=Work(call="standin_work:leave_cpu1"))
def test_widowed(peers: Results, result: Result, measure: Measure) -> None:
    """A peer that did not answer is no peer."""
    measure("peers", len(peers), at_most=0)


@of("asked", capability=(99, 9))
def test_asked(result: Result, measure: Measure) -> None:
    """A device that does not say what it is capable of is asked."""
    measure("value", result["value"], at_least=0)


@of(
    "boasting",
    work=Work(call="standin_work:boast", load=Load(quick=9, gate=9, deep=9, soak=9)),
    plant=LOW,
)
def test_boasting(result: Result, measure: Measure) -> None:
    """Claims a load that was never there."""
    measure("value", result["value"], at_least=0)


@of("short")
def test_short(result: Result, measure: Measure) -> None:
    """Short of a limit."""
    measure("value", result["value"], unit="lanes", at_least=9, detail="look at the riser")


@of("unready", cause=Cause.ENVIRONMENT)
def test_unready(result: Result, measure: Measure) -> None:
    """Short of a limit for want of something else."""
    measure("value", result["value"], at_least=9)


@of("asserted")
def test_asserted(result: Result, measure: Measure) -> None:
    """Asserted."""
    measure("value", result["value"], at_least=0)
    assert result["value"] == 8, "seven is no eight"


@of("failed")
def test_failed(result: Result, measure: Measure) -> None:
    """Ended by pytest.fail."""
    measure("value", result["value"], at_least=0)
    pytest.fail("by hand")


@of("bug")
def test_bug(result: Result, measure: Measure) -> None:
    """Has a bug."""
    measure("value", result["value"], at_least=0)
    raise TypeError("my own mistake")


@of("key")
def test_key(result: Result, measure: Measure) -> None:
    """Asks for what the answer does not hold."""
    measure("value", result["valve"], at_least=0)


@of("said")
def test_said(result: Result, measure: Measure) -> None:
    """Says that nothing can be measured."""
    raise CannotMeasure("no ruler at hand: bring one", cause=Cause.CONFIG)


@of("nothing")
def test_nothing(result: Result, measure: Measure) -> None:
    """Measures nothing."""


@of("unbounded")
def test_unbounded(result: Result, measure: Measure) -> None:
    """Holds nothing against a limit."""
    measure("value", result["value"])


@of("nan")
def test_nan(result: Result, measure: Measure) -> None:
    """Measures no number."""
    measure("value", float("nan"), at_least=0)


@of("infinite")
def test_infinite(result: Result, measure: Measure) -> None:
    """Measures more than there can be."""
    measure("value", float("inf"), at_least=0)


@of("boolean")
def test_boolean(result: Result, measure: Measure) -> None:
    """Takes a yes for a number."""
    measure("value", True, at_least=0)


@of("text")
def test_text(result: Result, measure: Measure) -> None:
    """Takes text for a number."""
    measure("value", "7", at_least=0)


@of("nowhere")
def test_nowhere(result: Result, measure: Measure) -> None:
    """Has a bound that is none."""
    measure("value", result["value"], at_most=float("nan"))


@of("skipped")
def test_skipped(result: Result, measure: Measure) -> None:
    """Skips itself, after measuring well."""
    measure("value", result["value"], at_least=0)
    pytest.skip("not today")


@pytest.mark.skip(reason="not this week")
@of("marked")
def test_marked(result: Result, measure: Measure) -> None:
    """Marked to be skipped."""
    measure("value", result["value"], at_least=0)


@pytest.mark.xfail(reason="known")
@of("excused")
def test_excused(result: Result, measure: Measure) -> None:
    """Marked to be expected to fail."""
    measure("value", result["value"], at_least=9)


@pytest.mark.xfail(reason="known", run=False)
@of("unrun")
def test_unrun(result: Result, measure: Measure) -> None:
    """Marked to be not even run."""
    measure("value", result["value"], at_least=0)


@of("trial", trial=True)
def test_trial(result: Result, measure: Measure) -> None:
    """On trial, and short."""
    measure("value", result["value"], at_least=9)


@of("idle", plant=Plant(alter=dict))
def test_idle(result: Result, measure: Measure) -> None:
    """Has a plant that plants nothing."""
    measure("value", result["value"], at_least=0)


@of("blind")
def test_blind(result: Result, measure: Measure) -> None:
    """Sees no difference."""
    measure("value", abs(result["value"]), at_least=0)


@of("vague", plant=Plant(alter=lambda result: {**result, "value": None}))
def test_vague(result: Result, measure: Measure) -> None:
    """Ends in an error on its plant, which is not a fail."""
    measure("value", result["value"], at_least=0)


@of("condemning", plant=Plant(alter=dict))
def test_condemning(result: Result, measure: Measure) -> None:
    """Fails, and was never proved."""
    measure("value", result["value"], at_least=9)


@of("elsewhere", plant=Plant(args={"planted": [{"row": 3}], "found": [{"row": 4}]}))
def test_elsewhere(result: Result, measure: Measure) -> None:
    """Finds a planted fault where it is not."""
    measure("found", len(result.get("found", ())), at_most=0)
    measure("value", result["value"], at_least=0)


@of("exact", plant=Plant(args={"planted": [{"row": 3}], "found": [{"row": 3}]}))
def test_exact(result: Result, measure: Measure) -> None:
    """Finds a planted fault where it is."""
    measure("found", len(result.get("found", ())), at_most=0)


@of("plantless", plant=Plant(args={"planted": [], "found": []}))
def test_plantless(result: Result, measure: Measure) -> None:
    """Is told to plant, and plants nothing."""
    measure("lists", int("found" in result), at_most=0)


@of("half")
def test_half(result: Result, measure: Measure) -> None:
    """Has a limit that no planted fault ever breaks."""
    measure("value", result["value"], at_least=0)
    measure("label", len(result["label"]), at_most=99)


@of(
    "several",
    plant=(LOW, Plant(alter=lambda result: {**result, "label": "x" * 100}, breaks=("label",))),
)
def test_several(result: Result, measure: Measure) -> None:
    """Has a plant for each of its limits."""
    measure("value", result["value"], at_least=0)
    measure("label", len(result["label"]), at_most=99)


@of("raising", work=Work(call="standin_work:fail"))
def test_raising(result: Result, measure: Measure) -> None:
    """Its work raises."""
    measure("value", 1, at_least=0)


@of("dying", work=Work(call="standin_work:exit_with", args={"status": 3}))
def test_dying(result: Result, measure: Measure) -> None:
    """Its work takes the worker along."""
    measure("value", 1, at_least=0)


@of("hanging", work=Work(call="standin_work:wait", deadline_s=0.5))
def test_hanging(result: Result, measure: Measure) -> None:
    """Its work never ends."""
    measure("value", 1, at_least=0)


@of("shapeless", work=Work(call="standin_work:no_mapping"))
def test_shapeless(result: Result, measure: Measure) -> None:
    """Its work answers with something else."""
    measure("value", 1, at_least=0)


@of("unfindable", work=Work(call="standin_work:nowhere"))
def test_unfindable(result: Result, measure: Measure) -> None:
    """Its work does not exist."""
    measure("value", 1, at_least=0)


@of("absent", kinds=(DeviceKind.GPU,))
def test_absent(result: Result, measure: Measure) -> None:
    """About a kind of device that is not here."""
    measure("value", result["value"], at_least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What the site may change."""

    lowest: int = 9


@of("limited", limits=Floor)
def test_limited(result: Result, measure: Measure, limits: Floor) -> None:
    """Holds what the spec says."""
    measure("value", result["value"], at_least=limits.lowest)


@of(
    "moved",
    work=Work(call="standin_work:echo", before="standin_work:echo"),
    plant=Plant(alter=lambda result: {**result, "before": result}),
)
def test_moved(result: Result, measure: Measure) -> None:
    """Knows what there was before the first check: a worker that another check has ended since."""
    measure("same", int(result["before"]["pid"] == result["pid"]), at_most=0)


@of("unstarted", work=Work(call="standin_work:echo", before="standin_work:fail"))
def test_unstarted(result: Result, measure: Measure) -> None:
    """Can't know what there was before the first check."""
    measure("value", 1, at_least=0)


@of("graver")
def test_graver(result: Result, measure: Measure) -> None:
    """Short of one limit that asks for more than the check does, and of one that blames nothing."""
    measure("value", result["value"], at_least=9, remedy=Remedy.REPLACE)
    measure("label", 1, at_most=0, remedy=Remedy.KILL_WORKLOAD)
    measure("room", 0, at_least=1, cause=Cause.ENVIRONMENT, remedy=Remedy.REPLACE)


@of("forgiven")
def test_forgiven(result: Result, measure: Measure) -> None:
    """Short, and waived on one device."""
    measure("value", result["value"], at_least=9)


@of(
    "named",
    work=Work(call="standin_work:echo", args={"value": 8}),
    plant=Plant(alter=lambda result: {**result, "value": -1, "label": "another"}),
)
def test_named(device, result: Result, measure: Measure) -> None:
    """Knows its device."""
    measure("other", int(device.label != result["label"]), at_most=0)
    measure("value", result["value"], at_least=0)


def test_of_no_device():
    """No check: left alone."""
