"""Which node, or which link, makes pairs of nodes fail: from what pairs measured, and nothing else.

A pair that passes exonerates both of its ends of every fault that lasts. A pair that fails accuses
one end, the other end, or the way between them. So all nodes are paired once, and whoever has not
passed is paired with nodes that have: `next_round` chooses, `judge` says what came out of it.
Both are functions of their arguments alone, and take time in proportion to nodes and pairs.

A fault that half of the nodes or more have alike looks like the fabric's own speed: only
`floor_gbs`, what such pairs are known to reach, tells it. A fault that comes and goes is missed
by whoever happens to pass: `whole_round` lets all nodes be asked again, for a soak.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from nodeproof.nccl_tests.next_pairs import MOST_ROUNDS, next_round, whole_round
from nodeproof.nccl_tests.pair_tests import LEAST, RATIO, Group, Pair, passes, renumbered

__all__ = [
    "MOST_ROUNDS",
    "RATIO",
    "Localised",
    "Pair",
    "Place",
    "Told",
    "judge",
    "next_round",
    "renumbered",
    "whole_round",
]

_PARTS = 20  # one node in so many that fails for good with several: the group is in parts
_SHOWN = 4  # partners that a sentence names


class Place(StrEnum):
    """Where a node stands. Only `GOOD` is fit to be admitted."""

    GOOD = "good"
    BAD = "bad"
    LINK = "link"  # it is good, but not with `partner`
    FLAKY = "flaky"  # passes and fails by turns
    UNRESOLVED = "unresolved"  # nothing said for or against it that could be relied on


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What is said of one node."""

    place: Place
    why: str
    partner: str = ""  # the other end of a bad link


@dataclass(frozen=True, slots=True, kw_only=True)
class Localised:
    """What is said of all: every node has its place."""

    nodes: Mapping[str, Told]
    links: tuple[tuple[str, str, str], ...]  # both ends, and why
    common: str  # a cause that no single node is likely to have, "" for none
    reference_gbs: float  # what a pair can do; a pair passes at `ratio` of it


def judge(
    nodes: Sequence[str], pairs: Sequence[Pair], *, floor_gbs: float = 0.0, ratio: float = RATIO
) -> Localised:
    """Say of every node where it stands.

    Raises `ValueError` for what cannot be judged: a node named twice, a pair of unknown nodes or
    of a node with itself, one that stands twice in a round, and rates, counts or limits that are
    none.
    """
    return _Verdict(Group.of(nodes, pairs, floor_gbs, ratio)).localised()


class _Verdict:
    """The places of all nodes: bad ones first, since what they explain accuses nobody else."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._told = dict[int, Told]()
        self._dead = dict[int, list[int]]()
        for i, j in group.dead():
            self._dead.setdefault(i, []).append(j)
            self._dead.setdefault(j, []).append(i)
        # A way that is broken costs one node one partner. Where many nodes fail for good with
        # several that pass elsewhere, the group is in parts.
        torn = [node for node, others in self._dead.items() if len(others) > 1]
        self._torn = torn if len(torn) >= max(LEAST, group.size / _PARTS) else []
        self._links = list[tuple[int, int]]()
        self._unexplained = dict[int, dict[int, int]]()  # of who passes: fails by other node

    def localised(self) -> Localised:
        self._without_a_pass()
        if not self._torn:
            self._bad_links()
        self._unexplained = {
            node: {o: times for o, times in mine.failed.items() if self._accuses(node, o)}
            for node, mine in enumerate(self._group.seen)
            if mine.passed and mine.failed
        }
        if not self._torn:
            self._by_turns()
        self._what_is_left()
        names = self._group.names
        links = [(names[i], names[j], self._failures(i, [j])) for i, j in sorted(self._links)]
        return Localised(
            nodes={name: self._told[node] for node, name in enumerate(names)},
            links=tuple(links),
            common=self._common(),
            reference_gbs=self._group.reference,
        )

    def _without_a_pass(self) -> None:
        group = self._group
        for node, mine in enumerate(group.seen):
            if mine.passed:
                continue
            accusers = group.accusers(node)
            if not mine.tests:
                why = "was in no pair, so nothing is known of it"
                self._tell(node, Place.UNRESOLVED, why)
            elif len(accusers) >= group.needed and not self._torn:
                why = f"failed with all {len(mine.failed)} it met; {len(accusers)} of them pass with others"
                self._tell(node, Place.BAD, f"{why}: {self._failures(node, accusers)}")
            else:
                why = f"never passed, and only {len(accusers)} of the {group.needed} nodes that blame takes pass with others"
                if self._torn:
                    why = "never passed, but the group is in parts, so that this is no proof"
                self._tell(node, Place.UNRESOLVED, f"{why}: {self._failures(node)}")

    def _bad_links(self) -> None:
        group, seen = self._group, self._group.seen
        for node, others in self._dead.items():
            for other in others:
                ends = (node, other)
                often = node < other and seen[node].failed[other] >= group.repeats
                if often and all(group.settled(end, len(self._dead[end])) for end in ends):
                    self._links.append(ends)
        for i, j in self._links:
            for node, other in ((i, j), (j, i)):
                passed = len(seen[node].passed)
                why = f"passes with {passed} other nodes, but never with {self._failures(node, [other])}"
                self._tell(node, Place.LINK, why, self._group.names[other])

    def _by_turns(self) -> None:
        """Find who fails with several that are sound; worst first, since it explains theirs."""
        group, seen = self._group, self._group.seen
        order = sorted(self._unexplained, key=lambda i: (-sum(self._unexplained[i].values()), i))
        for node in order:
            against = self._unexplained[node]
            failed, passed = sum(against.values()), sum(seen[node].passed.values())
            corrupt = [o for o in against if o in seen[node].wrong]
            often = failed >= max(passed, 2) or failed >= group.wanted or len(corrupt) > 1
            if len(against) > 1 and often:
                why = f"passed {passed} and failed {failed} of its tests with sound nodes"
                self._tell(node, Place.FLAKY, f"{why}: {self._failures(node, against)}")
                for other in against:
                    self._unexplained[other].pop(node, None)

    def _what_is_left(self) -> None:
        seen = self._group.seen
        for node, mine in enumerate(seen):
            if node in self._told:
                continue
            against = self._unexplained.get(node, {})
            corrupt = [o for o in against if o in mine.wrong]
            never = [o for o in against if o not in mine.passed]
            if corrupt:
                why = "one of two handed on wrong data, and which is not known"
                self._tell(node, Place.UNRESOLVED, f"{why}: {self._failures(node, corrupt)}")
            elif never:
                why = "passes with others, but never passed with some that do too"
                self._tell(node, Place.UNRESOLVED, f"{why}: {self._failures(node, never)}")
            else:
                self._tell(node, Place.GOOD, self._praise(node))

    def _accuses(self, node: int, other: int) -> bool:
        """Whether a failure with `other` says anything of a node that passes elsewhere."""
        if not self._group.seen[other].passed:
            return False
        return (min(node, other), max(node, other)) not in self._links

    def _praise(self, node: int) -> str:
        mine = self._group.seen[node]
        best = max(pair.gbs or 0.0 for pair in mine.tests if passes(pair, self._group.limit))
        why = f"passed {sum(mine.passed.values())} of {len(mine.tests)} tests, best {best:.4g} GB/s"
        if self._group.size == 2 and not self._group.floor:
            why += ", held against nothing but this very pair, since no floor is known"
        return f"{why}; failed with {self._failures(node)}" if mine.failed else why

    def _failures(self, node: int, others: Iterable[int] | None = None) -> str:
        """Say how a node's tests with these failed, of which the last with each stands for all."""
        group, mine = self._group, self._group.seen[node]
        chosen = list(mine.failed if others is None else others)
        last = dict[str, Pair]()
        for pair in mine.tests:
            if not passes(pair, group.limit):
                last[pair.b if pair.a == group.names[node] else pair.a] = pair
        words = []
        for other in chosen[:_SHOWN]:
            name, times = group.names[other], mine.failed[other]
            often = f" {times} times" if times > 1 else ""
            known = self._told.get(other)
            place = (
                f", which is {known.place}"
                if known and known.place in {Place.BAD, Place.FLAKY}
                else ""
            )
            words.append(f"{name}{place}{often} ({self._how(last[name])})")
        more = len(chosen) - len(words)
        return ", ".join(words) + (f" and {more} more" if more else "")

    def _how(self, pair: Pair) -> str:
        reference = self._group.reference
        if pair.said:
            return pair.said
        if pair.wrong:
            return f"{pair.wrong} wrong in what arrived"
        if pair.gbs is None:
            return "no figure"
        share = f", {100 * pair.gbs / reference:.0f} % of {reference:.4g}" if reference else ""
        return f"{pair.gbs:.4g} GB/s{share}"

    def _common(self) -> str:
        group, said = self._group, list[str]()
        failed, opened = len(group.opened_failed), len(group.opened)
        if group.in_doubt:
            pairs = "pair" if opened == 1 else "pairs"
            said.append(
                f"{failed} of the first {opened} {pairs} failed: look for a cause that all have in "
                "common (security group, route, switch, provider, image)"
            )
        if self._torn:
            said.append(
                f"{len(self._torn)} nodes pass with some and fail for good with others: the group "
                "is in parts; look at switches, routes and security groups between "
                f"{', '.join(group.names[i] for i in sorted(self._torn)[:_SHOWN])} and the others"
            )
        return "; ".join(said)

    def _tell(self, node: int, place: Place, why: str, partner: str = "") -> None:
        self._told[node] = Told(place=place, why=why, partner=partner)
