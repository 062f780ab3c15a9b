"""Walks through everything that may happen to a node: nothing that was not proved is released."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from gate_cluster import NAMES
from gate_evidence import FORGED, SILENT, sound_devices
from gate_world import Broken, World
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from nodeproof.gate.plan import Tenant

TENANT = Tenant(namespace="team", name="job-0", uid="u0", leaving=False)
TAINTS = [
    {"key": "dedicated", "value": "ml", "effect": "NoSchedule"},
    {"key": "net.example.com/agent-not-ready", "effect": "NoExecute"},
    {"key": NAMES.pending, "value": "true", "effect": "NoSchedule"},
    {"key": NAMES.pending, "value": "run1", "effect": "NoExecute"},
    {"key": NAMES.pending, "effect": "PreferNoSchedule"},
    {"key": NAMES.quarantined, "value": "true", "effect": "NoSchedule"},
    {"key": NAMES.quarantined, "effect": "NoExecute"},
    {"key": "karpenter.sh/unregistered", "effect": "NoExecute"},
    {
        "key": "node.cloudprovider.kubernetes.io/uninitialized",
        "value": "true",
        "effect": "NoSchedule",
    },
]
SAYINGS = [
    ("True", "AllChecksPassed", "boot @boot@; 9 checks passed"),
    ("True", "AllChecksPassed", "fine"),
    ("False", "HardwareCondemned", "boot @boot@; says somebody else"),
    ("Unknown", "", ""),
]
HOWS = ["accept", "reject", "undecided", *SILENT, *FORGED]

Move = Callable[[World, random.Random], object]


def _tested(w: World, r: random.Random) -> None:
    """What mostly happens: a look, a pod, an end, two looks."""
    if r.random() < 0.5:
        w.calm()
    w.look()
    w.look()
    w.start()
    w.finish(r.choice([*["accept"] * 18, "reject", "reject", "reject", "undecided", *HOWS]))
    w.look()
    w.look()


def _between(w: World, r: random.Random) -> None:
    """A plan is made, something else happens, and only then is it carried out."""
    w.look()
    r.choice(OTHERS)(w, r)
    w.look(stale=1)


LOOKS: list[Move] = [
    lambda w, _: w.look(),
    lambda w, _: w.look(),
    lambda w, r: w.look(crash=r.randrange(4)),
    lambda w, r: w.look(stale=r.randrange(1, 4)),
    lambda w, _: w.settle(),
    lambda w, _: w.start(),
    lambda w, r: w.finish(r.choice(HOWS)),
    lambda w, _: w.finish("accept"),
    _between,
    _tested,
    _tested,
    _tested,
]
OTHERS: list[Move] = [
    lambda w, _: w.heartbeat(),
    lambda w, _: w.reboot(),
    lambda w, _: w.boot_unknown(),
    lambda w, r: w.replaced(tainted=r.random() < 0.7, labelled=r.random() < 0.7),
    lambda w, _: w.labelled(),
    lambda w, r: w.karpenter(registered=r.random() < 0.6),
    lambda w, r: w.ready(r.choice(["True", "True", "False", "Unknown"])),
    lambda w, _: w.lose_pod(),
    lambda w, _: w.lose_job(),
    lambda w, _: w.time_to_live(),
    lambda w, _: w.lose_logs(),
    lambda w, r: w.taint(r.choice(TAINTS), r.randrange(5)),
    lambda w, r: w.taint(r.choice(TAINTS), r.randrange(5)),
    lambda w, r: w.untaint(*_one(r.choice(TAINTS))),
    lambda w, r: w.untaint(*_one(r.choice(TAINTS))),
    lambda w, r: w.overwrite(*r.choice(SAYINGS)),
    lambda w, _: w.drop_condition(),
    lambda w, r: w.ask(again=r.random() < 0.2),
    lambda w, _: w.ask(),
    lambda w, _: w.withdraw(),
    lambda w, r: w.suspect(r.choice(["True", "True", "False", "Unknown"])),
    lambda w, _: w.strip(),
    lambda w, _: w.restart(),
    lambda w, r: w.tick(r.choice([30, 90, 300, 900, 100_000, -600])),
    lambda w, r: w.tick(r.choice([90, 300])),
    lambda w, r: setattr(w, "tenants", r.choice([(), (), (TENANT,)])),
    lambda w, r: setattr(w, "breaker", r.choice(["", "", "three in a row"])),
    lambda w, r: setattr(w, "devices", r.choice(["", sound_devices(), "sha256:other"])),
]


def _one(taint: dict[str, str]) -> tuple[str, str]:
    return taint["key"], taint["effect"]


def walk(seed: int, steps: int = 30) -> World:
    """One walk. Raises `Broken` with the seed, at the step that broke something."""
    r = random.Random(seed)
    world = World()
    for step in range(steps):
        move = r.choice(LOOKS if r.random() < 0.6 else OTHERS)
        try:
            move(world, r)
        except Broken as error:
            raise Broken(f"walk {seed}, step {step}: {error}") from None
    try:
        world.settle()
    except Broken as error:
        raise Broken(f"walk {seed}, at its end: {error}") from None
    return world


def test_three_hundred_walks_release_nothing_unproved():
    lifts = sum(walk(seed).lifts for seed in range(300))
    assert lifts > 100, "walks that release nothing prove nothing"


@pytest.mark.long
def test_ten_thousand_walks_release_nothing_unproved():
    lifts = sum(walk(seed).lifts for seed in range(1000, 11_000))
    assert lifts > 4000


class Machine(RuleBasedStateMachine):
    """The same moves, chosen and shortened by hypothesis."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(move=st.sampled_from(range(len(LOOKS))), seed=st.integers(0, 7))
    def gate(self, move: int, seed: int) -> None:
        LOOKS[move](self.world, random.Random(seed))

    @rule(move=st.sampled_from(range(len(OTHERS))), seed=st.integers(0, 7))
    def others(self, move: int, seed: int) -> None:
        OTHERS[move](self.world, random.Random(seed))

    @precondition(lambda self: self.world.running() is not None)
    @rule(how=st.sampled_from(HOWS))
    def end(self, how: str) -> None:
        self.world.finish(how)

    def teardown(self) -> None:
        self.world.settle()


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=30,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,  # a landing meets the same walks twice; `make test-all` draws further ones
    suppress_health_check=list(HealthCheck),
)
