"""A group of nodes that exists in numbers only: what its pairs measure, with noise and faults.

The figures are assumptions, chosen to be unkind: a rate varies by 4 % (one standard deviation),
one test in fifty is slow for no lasting reason, and a bad node has 50 to 75 % of its speed left.
Pure, and the same for the same seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

NOISE = 0.04  # standard deviation of the logarithm of a rate
DIPS = 0.02  # of all tests
DIP = (0.5, 0.8)  # what is left of the rate in one
WEAK = (0.5, 0.75)  # what is left of a bad node's, or a bad link's, rate
TURNS = 0.5  # how often a node whose fault comes and goes does a test at full rate
FULL_GBS = 50.0  # of a pair; nothing depends on it


@dataclass(slots=True, kw_only=True)
class Fleet:
    """Nodes, which of them are broken, and how often they were asked."""

    names: list[str]
    bad: Mapping[str, float]  # share of the rate that is left
    intermittent: Mapping[str, float]  # the same, in the tests in which it is broken
    turns: float  # how often these pass all the same
    links: Mapping[frozenset[str], float]
    asked: int  # bad nodes that were asked for
    noise: float
    dips: float
    chance: random.Random
    tests: int = field(default=0)  # counted by node

    @classmethod
    def drawn(
        cls,
        *,
        nodes: int,
        bad: int,
        links: int,
        intermittent: float,
        seed: int,
        noise: float = NOISE,
        dips: float = DIPS,
    ) -> Fleet:
        """Draw who is broken, and how badly. Links are drawn between sound nodes.

        `intermittent` below 1 is how often the bad nodes pass all the same; a whole number from 1
        is so many further nodes, which pass half of the time. Raises `ValueError` for counts that
        are none, or more than there can be.
        """
        if nodes < 1 or min(bad, links) < 0 or not 0 <= intermittent <= nodes:
            raise ValueError(f"no fleet: {nodes} nodes, {bad} bad, {links} links, {intermittent}")
        if intermittent >= 1 and intermittent != int(intermittent):
            raise ValueError(f"{intermittent} is neither a share below 1 nor a number of nodes")
        lasting = 0 if 0 < intermittent < 1 else bad
        by_turns = bad if 0 < intermittent < 1 else int(intermittent)
        sound = nodes - lasting - by_turns
        if sound < 0:
            raise ValueError(f"{lasting + by_turns} broken of {nodes} nodes")
        if links > sound * (sound - 1) // 2:
            raise ValueError(f"{links} bad links between {sound} sound nodes")
        chance = random.Random(seed)
        names = [f"node{number}" for number in range(nodes)]
        drawn = chance.sample(names, lasting + by_turns)
        broken = set(drawn)
        others = [name for name in names if name not in broken]
        ways = dict[frozenset[str], float]()
        while len(ways) < links:
            ways[frozenset(chance.sample(others, 2))] = chance.uniform(*WEAK)
        return cls(
            names=names,
            bad={name: chance.uniform(*WEAK) for name in drawn[:lasting]},
            intermittent={name: chance.uniform(*WEAK) for name in drawn[lasting:]},
            turns=intermittent if 0 < intermittent < 1 else TURNS,
            links=ways,
            asked=bad,
            noise=noise,
            dips=dips,
            chance=chance,
        )

    def pair(self, a: str, b: str) -> float:
        """Measure two nodes, in GB/s."""
        self.tests += 2
        left = min(self._left(a), self._left(b), self.links.get(frozenset((a, b)), 1.0))
        return self._measured(left, self.dips)

    def together(self, some: Iterable[str]) -> float:
        """Measure some nodes in one group, which goes at the pace of its slowest, in GB/s.

        Links do not show: the ring takes few of them. Every two nodes bring a pair's risk of a dip.
        """
        these = list(some)
        self.tests += len(these)
        dips = 1 - (1 - self.dips) ** (len(these) / 2)
        return self._measured(min(self._left(name) for name in these), dips)

    def _left(self, name: str) -> float:
        if name in self.intermittent and self.chance.random() >= self.turns:
            return self.intermittent[name]
        return self.bad.get(name, 1.0)

    def _measured(self, left: float, dips: float) -> float:
        rate = FULL_GBS * left * math.exp(self.chance.gauss(0, self.noise))
        return rate * self.chance.uniform(*DIP) if self.chance.random() < dips else rate
