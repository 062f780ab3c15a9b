"""A test releases a node once: whatever brings the taint back, the old proof is spent."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from gate_cluster import NAMES, PENDING, SETTINGS
from gate_evidence import sound_devices
from gate_nodes import BOOT, GPUS, NOW, PASSED, accepted, node, over, ruled
from gate_world import World

from nodeproof.gate.actions import Hold, Lift, Phase, Say
from nodeproof.gate.actions import Test as Started
from nodeproof.gate.occasion import being_tested
from nodeproof.gate.plan import Known, plan
from nodeproof.verdict import Decision


def attempted(world: World, how: str) -> None:
    """One test from its start to what it comes to."""
    world.settle()
    world.start()
    world.finish(how)
    world.settle()


def held(world: World) -> bool:
    return any(t["key"] == NAMES.pending for t in world.raw()["spec"]["taints"] or [])


def word(world: World, text: str) -> None:
    world.annotate({NAMES.requalify: text})


def _asked_in_turn(world: World) -> None:
    word(world, "check")
    attempted(world, "accept")
    word(world, "suspect")
    attempted(world, "reject")
    word(world, "check")


def _withdrawn(world: World) -> None:
    word(world, "suspect")
    world.settle()
    world.start()
    world.withdraw()


def _devices_there_and_back(world: World) -> None:
    world.devices = "sha256:one-of-them"
    attempted(world, "undecided")
    world.devices = sound_devices()


def _pending_by_hand(world: World) -> None:
    world.tick(20 * 3600)
    world.taint(PENDING, 0)


@pytest.mark.parametrize(
    "suspicion", [_asked_in_turn, _withdrawn, _devices_there_and_back, _pending_by_hand]
)
def test_a_node_under_suspicion_is_not_released_by_what_released_it_before(
    suspicion: Callable[[World], None],
) -> None:
    world = World()
    world.devices = sound_devices()
    attempted(world, "accept")
    assert not held(world)
    suspicion(world)
    world.settle()
    world.restart()
    world.settle()
    assert held(world)
    before = world.lifts
    attempted(world, "accept")
    assert (world.lifts, held(world)) == (before + 1, False), "a new test releases it"


def test_a_verdict_is_part_of_what_the_next_job_is_for() -> None:
    seen = accepted(taints=[PENDING], annotations={NAMES.verdict: "{}"})
    old = over(trigger="new")
    known = Known(jobs=(old,), judged={old.name: ruled(Decision.ACCEPT)})
    [test] = [a for a in plan(seen, known, SETTINGS, now=NOW).actions if isinstance(a, Started)]
    assert test.trigger.startswith("new@")
    again = over(trigger=test.trigger)
    known = Known(jobs=(again,), judged={again.name: ruled(Decision.ACCEPT)})
    said = ("True", "AllChecksPassed", f"boot {BOOT}; {PASSED}")
    ready = dataclasses.replace(seen, condition=accepted(said=said).condition)
    made = plan(ready, known, SETTINGS, now=NOW)
    assert any(isinstance(a, Lift) for a in made.actions)


def test_a_lost_condition_is_said_again_and_takes_nothing_out_of_service() -> None:
    made = plan(accepted(said=None), Known(), SETTINGS, now=NOW)
    [say] = made.actions
    assert isinstance(say, Say)
    assert (made.phase, say.status, say.reason) == (Phase.ACCEPTED, "True", "AllChecksPassed")
    assert say.message.startswith(f"boot {BOOT};")
    healed = accepted(said=(say.status, say.reason, say.message))
    assert plan(healed, Known(), SETTINGS, now=NOW).actions == ()


@pytest.mark.parametrize(
    "differs",
    [
        {"boot": "boot-2"},
        {"annotations": {NAMES.accepted_boot: ""}},
        {"annotations": {NAMES.held_for: "UndecidedTooOften"}},
        {"annotations": {NAMES.requalify: "w"}},
        {"said": ("Unknown", "Testing", f"boot {BOOT}; attempt 1")},
        {"said": ("False", "HardwareCondemned", f"boot {BOOT}; 4 wrong words")},
    ],
)
def test_but_only_where_nothing_else_is_amiss(differs: dict[str, object]) -> None:
    made = plan(accepted(**{"said": None, **differs}), Known(devices=GPUS), SETTINGS, now=NOW)
    assert any(isinstance(a, Hold) for a in made.actions)
    assert not any(isinstance(a, Say) and a.status == "True" for a in made.actions)


def test_an_accept_wipes_what_the_node_was_held_for() -> None:
    said = ("True", "AllChecksPassed", f"boot {BOOT}; {PASSED}")
    notes = {NAMES.held_for: "HardwareCondemned", NAMES.requalify: "w2"}
    job = over(trigger="requalify-w2")
    known = Known(jobs=(job,), judged={job.name: ruled(Decision.ACCEPT)})
    made = plan(node(said=said, annotations=notes), known, SETTINGS, now=NOW)
    [lift] = [a for a in made.actions if isinstance(a, Lift)]
    assert lift.stamps[NAMES.held_for] == ""


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        (None, True),
        (("Unknown", "Testing", f"boot {BOOT}; attempt 1"), True),
        (("Unknown", "UndecidedTooOften", f"boot {BOOT}; undecided 3 times"), False),
        (("Unknown", "BreakerOpen", f"boot {BOOT}; 4 words"), False),
        (("Unknown", "UndecidedTooOften", "boot boot-0; undecided 3 times"), True),
    ],
)
def test_a_served_node_whose_attempts_are_used_up_keeps_no_other_waiting(
    said: tuple[str, str, str] | None, counts: bool
) -> None:
    site = dataclasses.replace(SETTINGS, installed_at=NOW)
    assert being_tested(node(said=said), site) is counts
