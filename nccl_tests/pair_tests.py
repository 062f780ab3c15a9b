"""How tests of two nodes came out: which passed, held against what pairs of this group can do."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

RATIO = 0.85  # of the reference, from which a pair passes
LEAST = 3  # nodes that pass with others and fail with this one, before it is called bad
# That many more in a large group, that among all of its nodes a good one is called bad by chance
# in less than one run of a thousand, where one test in fifty is slow for no lasting reason.
_RUNS, _TESTS_A_DIP = 1000, 50
_IN_DOUBT = 2  # more tests of each suspect
_FAST = 20  # one pair in so many, far above the rest, shows what the fabric can do
_FEW = 6  # pairs of which the fastest counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One test of two nodes: it failed if `said` says why, or `gbs` is None or `wrong` is not 0."""

    round: int  # from 1
    a: str
    b: str
    gbs: float | None  # of the pair, by one definition in all pairs
    wrong: int = 0  # bytes or elements that arrived wrong
    said: str = ""  # why it did not finish


@dataclass(slots=True)
class Seen:
    """What was seen of one node, by the number of the other: of each how often."""

    passed: dict[int, int] = field(default_factory=dict)
    failed: dict[int, int] = field(default_factory=dict)
    wrong: set[int] = field(default_factory=set)  # who got or sent wrong data
    tests: list[Pair] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All nodes, and how their pairs came out."""

    names: Sequence[str]
    pairs: Sequence[Pair]
    seen: list[Seen]
    floor: float  # GB/s that were asked for, 0 for none
    reference: float
    limit: float  # GB/s from which a pair passes
    opened: list[Pair]  # in the opening
    opened_failed: list[Pair]

    @classmethod
    def of(
        cls, names: Sequence[str], pairs: Sequence[Pair], floor_gbs: float, ratio: float
    ) -> Group:
        """Sort the tests by node. Raises `ValueError` for what `localise.judge` refuses."""
        numbers = {name: number for number, name in enumerate(names)}
        if len(numbers) != len(names):
            raise ValueError("a node is named twice in the group")
        if not 0 < ratio <= 1:
            raise ValueError(f"a ratio of {ratio}: above 0 and at most 1")
        if not (math.isfinite(floor_gbs) and floor_gbs >= 0):
            raise ValueError(f"a floor of {floor_gbs} GB/s: 0 or more")
        _refuse(numbers, pairs)
        reference = max(floor_gbs, _reference(len(names), pairs, ratio))
        limit = reference * ratio
        seen = [Seen() for _ in names]
        for pair in pairs:
            came_well, a, b = passes(pair, limit), numbers[pair.a], numbers[pair.b]
            for one, other in ((seen[a], b), (seen[b], a)):
                counts = one.passed if came_well else one.failed
                counts[other] = counts.get(other, 0) + 1
                one.tests.append(pair)
                if pair.wrong:
                    one.wrong.add(other)
        opened = [pair for pair in pairs if pair.round <= opening_rounds(len(names))]
        return cls(
            names=names,
            pairs=pairs,
            seen=seen,
            floor=floor_gbs,
            reference=reference,
            limit=limit,
            opened=opened,
            opened_failed=[pair for pair in opened if not passes(pair, limit)],
        )

    @property
    def size(self) -> int:
        """Nodes."""
        return len(self.names)

    @property
    def wanted(self) -> int:
        """Accusers that are sought of a node that never passes."""
        enough = math.ceil(math.log(max(1, self.size) * _RUNS) / math.log(_TESTS_A_DIP))
        return max(LEAST, enough)

    @property
    def in_doubt(self) -> bool:
        """Whether half of the opening failed, and no single node was in all that did."""
        failed = self.opened_failed
        if not self.opened or 2 * len(failed) < len(self.opened):
            return False
        shared = set[str].intersection(*({pair.a, pair.b} for pair in failed))
        return len(failed) == len(self.opened) or not shared

    @property
    def asked(self) -> int:
        """Failures with accusers after which a node need not be asked again.

        More where much fails: in a group of two parts, half of all others fail with a sound node.
        """
        return self.wanted + (_IN_DOUBT if self.in_doubt else 0)

    @property
    def needed(self) -> int:
        """Accusers without whom no node is bad: fewer where there are not that many others."""
        return min(self.wanted, max(2, self.size - 2))

    @property
    def repeats(self) -> int:
        """Times that two nodes fail with each other before the way between them is bad."""
        return self.wanted - 1

    def accusers(self, node: int) -> list[int]:
        """Return who failed with this node, passes with others and never with it."""
        mine = self.seen[node]
        return [o for o in mine.failed if o not in mine.passed and self.seen[o].passed]

    def accusations(self, node: int) -> int:
        """Return how often this node failed with its accusers."""
        return sum(self.seen[node].failed[other] for other in self.accusers(node))

    def short(self, node: int) -> bool:
        """Whether this node has fewer accusers than blame takes."""
        return len(self.accusers(node)) < self.needed

    def dead(self) -> list[tuple[int, int]]:
        """Return the pairs that never passed, of two nodes that both pass with others."""
        return [
            (node, other)
            for node, mine in enumerate(self.seen)
            if mine.passed and mine.failed
            for other in self.accusers(node)
            if node < other
        ]

    def settled(self, node: int, dead: int, *, least: int = 1) -> bool:
        """Whether so many pass with this node that failing with `dead` ones is not its own doing."""
        return len(self.seen[node].passed) >= max(dead, min(least, self.size - 2))


def passes(pair: Pair, limit: float) -> bool:
    """Whether a test was finished, brought all data right, and was fast enough, in GB/s."""
    finished = not pair.said and not pair.wrong
    return finished and pair.gbs is not None and pair.gbs > 0 and pair.gbs >= limit


def _refuse(numbers: Mapping[str, int], pairs: Iterable[Pair]) -> None:
    met = set[tuple[int, int, int]]()
    for pair in pairs:
        what = f"round {pair.round}, {pair.a} with {pair.b}"
        if pair.a not in numbers or pair.b not in numbers:
            raise ValueError(f"{what}: not both are nodes of the group")
        low, high = sorted((numbers[pair.a], numbers[pair.b]))
        if low == high:
            raise ValueError(f"{what}: a pair wants two nodes")
        if pair.round < 1 or pair.wrong < 0:
            raise ValueError(f"{what}: rounds count from 1, and {pair.wrong} is no count")
        if pair.gbs is not None and not (math.isfinite(pair.gbs) and pair.gbs >= 0):
            raise ValueError(f"{what}: {pair.gbs} GB/s is no bandwidth")
        if (pair.round, low, high) in met:
            raise ValueError(f"{what}: twice in that round")
        met.add((pair.round, low, high))


def _reference(size: int, pairs: Sequence[Pair], ratio: float) -> float:
    """GB/s in the middle of the opening's upper half: few of these pairs are those of bad nodes.

    Of few pairs it is the fastest, since one that is slow by chance would tell otherwise. Where some pairs are far above even that, most of the group is slow, and these pairs show what
    the fabric can do.
    """
    opening = opening_rounds(size)
    rates = sorted(
        (
            pair.gbs
            for pair in pairs
            if pair.round <= opening and pair.gbs and not pair.said and not pair.wrong
        ),
        reverse=True,
    )
    if not rates:
        return 0.0
    half = 1 if len(rates) <= _FEW else len(rates) // 2
    upper = float(statistics.median_high(rates[:half]))
    above = [rate for rate in rates if rate * ratio > upper]
    some = len(above) >= max(2, len(rates) / _FAST)
    return float(statistics.median(above)) if some else upper


def renumbered(pairs: Sequence[Pair]) -> list[Pair]:
    """Number the rounds from 1 again, for pairs of which some were left out with their nodes."""
    places = {number: place for place, number in enumerate(sorted({p.round for p in pairs}), 1)}
    return [dataclasses.replace(pair, round=places[pair.round]) for pair in pairs]


def opening_rounds(size: int) -> int:
    """Rounds of the whole group that come first, and that give the reference.

    One round of few nodes has few pairs, and each could be a bad node's, or slow by chance. Of
    three nodes no two can be told apart before all three pairs were measured.
    """
    return {3: 6, 4: 2, 5: 2}.get(size, 1)
