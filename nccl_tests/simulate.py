"""How ways to find bad nodes do on fleets whose faults are known: ours, and two that are common.

    python -m nodeproof fabric simulate --nodes 1024 --bad 10

Each asks a fleet of `fleets` and says who is bad; `score` holds that against what was drawn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from nodeproof.nccl_tests.fleets import FULL_GBS, Fleet
from nodeproof.nccl_tests.localise import (
    MOST_ROUNDS,
    RATIO,
    Pair,
    Place,
    judge,
    next_round,
    whole_round,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What a way to ask came to."""

    bad: set[str]
    flaky: set[str] = field(default_factory=set)
    unresolved: set[str] = field(default_factory=set)
    links: set[frozenset[str]] = field(default_factory=set)
    common: str = ""
    rounds: int
    seconds: float  # of the processor, spent on choosing and judging, and not on what stands for measuring


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How right that was."""

    method: str
    nodes: int
    bad: int  # as asked for
    links: int
    intermittent: int  # nodes whose fault comes and goes
    seed: int
    rounds: int
    tests_per_node: float
    missed: int  # broken for good and not called bad, or broken by turns and let in
    intermittent_missed: int  # the latter of these
    wrongly_blamed: int  # sound, and called bad
    flaky: int
    wrongly_flaky: int  # sound, and called flaky
    unresolved: int
    links_named: int  # bad links that were named
    links_wrong: int  # between others
    common: str
    seconds: float

    def json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return asdict(self)


def score(method: str, fleet: Fleet, named: Named, *, seed: int) -> Score:
    """Hold what was said of a fleet against what is true of it."""
    bad, turns = set(fleet.bad), set(fleet.intermittent)
    sound = set(fleet.names) - bad - turns
    at_link = {name for way in named.links for name in way}
    refused = named.bad | named.flaky | named.unresolved | at_link
    return Score(
        method=method,
        nodes=len(fleet.names),
        bad=fleet.asked,
        links=len(fleet.links),
        intermittent=len(turns),
        seed=seed,
        rounds=named.rounds,
        tests_per_node=round(fleet.tests / len(fleet.names), 3),
        missed=len(bad - named.bad) + len(turns - refused),
        intermittent_missed=len(turns - refused),
        wrongly_blamed=len(sound & named.bad),
        flaky=len(named.flaky),
        wrongly_flaky=len(sound & named.flaky),
        unresolved=len(named.unresolved),
        links_named=len(named.links & fleet.links.keys()),
        links_wrong=len(named.links - fleet.links.keys()),
        common=named.common,
        seconds=round(named.seconds, 4),
    )


def adaptive(fleet: Fleet, *, seed: int, most_rounds: int = MOST_ROUNDS, soak: int = 0) -> Named:
    """Ask as `localise` chooses, at first in `soak` rounds of the whole fleet, if any are wanted.

    A soak finds faults that come and go: who fails with several that are sound is not let in,
    however often it passes.
    """
    pairs, spent, rounds = list[Pair](), 0.0, 0
    while True:
        begun = time.process_time()
        if rounds < soak:
            chosen = whole_round(fleet.names, rounds + 1, seed=seed)
        else:
            chosen = next_round(fleet.names, pairs, seed=seed, most_rounds=soak + most_rounds)
        spent += time.process_time() - begun
        if not chosen:
            break
        rounds += 1
        pairs += [Pair(round=rounds, a=a, b=b, gbs=fleet.pair(a, b)) for a, b in chosen]
    begun = time.process_time()
    told = judge(fleet.names, pairs)
    spent += time.process_time() - begun
    by_place = {
        place: {name for name, each in told.nodes.items() if each.place is place} for place in Place
    }
    return Named(
        bad=by_place[Place.BAD],
        flaky=by_place[Place.FLAKY],
        unresolved=by_place[Place.UNRESOLVED],
        links={frozenset((a, b)) for a, b, _ in told.links},
        common=told.common,
        rounds=rounds,
        seconds=spent,
    )


def two_pass(fleet: Fleet, *, seed: int) -> Named:
    """Pair all once, then those that failed with those that passed: who fails twice is bad.

    As fleet validators do that pair nodes at random. It is told the true rate. One node of an odd
    number is put to the second pass.
    """
    begun, waited = time.process_time(), 0.0
    passed, failed = list[str](), list[str]()
    first = whole_round(fleet.names, 1, seed=seed)
    for a, b in first:
        asked = time.process_time()
        sound = fleet.pair(a, b) >= RATIO * FULL_GBS
        waited += time.process_time() - asked
        (passed if sound else failed).extend((a, b))
    met = {name for pair in first for name in pair}
    failed += [name for name in fleet.names if name not in met]
    bad, rounds = set(failed), 1
    if failed and passed:
        rounds += -(-len(failed) // len(passed))  # nobody can be in two pairs at once
        for number, name in enumerate(failed):
            asked = time.process_time()
            if fleet.pair(name, passed[number % len(passed)]) >= RATIO * FULL_GBS:
                bad.discard(name)
            waited += time.process_time() - asked
    return Named(bad=bad, rounds=rounds, seconds=time.process_time() - begun - waited)


def bisect(fleet: Fleet, *, seed: int) -> Named:
    """Halve whatever is slow until single nodes are left, each then paired with a sound one.

    It is told the true rate. `seed` changes nothing: halves are those of the list.
    """
    del seed
    begun, waited = time.process_time(), 0.0

    def slow(some: list[str]) -> bool:
        nonlocal waited
        asked = time.process_time()
        rate = fleet.together(some)
        waited += time.process_time() - asked
        return rate < RATIO * FULL_GBS

    open_, cleared, alone, rounds = [fleet.names], list[str](), list[str](), 0
    while open_:
        rounds += 1
        halves = list[list[str]]()
        for group in open_:
            if len(group) == 1:
                alone += group
            elif slow(group):
                halves += [group[: len(group) // 2], group[len(group) // 2 :]]
            else:
                cleared += group
        open_ = halves
    bad = {name for name in alone if not cleared}
    if cleared:
        for number, name in enumerate(alone):
            if slow([name, cleared[number % len(cleared)]]):
                bad.add(name)
        rounds += -(-len(alone) // len(cleared)) if alone else 0
    return Named(bad=bad, rounds=rounds, seconds=time.process_time() - begun - waited)


METHODS: dict[str, Callable[..., Named]] = {
    "adaptive": adaptive,
    "two_pass": two_pass,
    "bisection": bisect,
}
