"""Which pairs of nodes to test next, by what is still open after those that were tested."""

from __future__ import annotations

import random
from collections.abc import Sequence

from nodeproof.nccl_tests.pair_tests import LEAST, RATIO, Group, Pair, opening_rounds

MOST_ROUNDS = 10
_MANY = 32  # one suspect in so many may be a part that was cut off
_BARREN = 4  # rounds of the whole group in which no pair passed: more would not help


def next_round(
    nodes: Sequence[str],
    pairs: Sequence[Pair],
    *,
    seed: int,
    floor_gbs: float = 0.0,
    ratio: float = RATIO,
    most_rounds: int = MOST_ROUNDS,
) -> list[tuple[str, str]]:
    """Return the pairs to test at once, after all that `pairs` hold; none when that is enough.

    No node stands in two of them. Raises `ValueError` as `judge` does.
    """
    group = Group.of(nodes, pairs, floor_gbs, ratio)
    done = max((pair.round for pair in pairs), default=0)
    if done >= most_rounds or len(nodes) < 2:
        return []
    if done < opening_rounds(len(nodes)):
        return whole_round(nodes, done + 1, seed=seed)
    if not any(seen.passed for seen in group.seen):
        barren = min(_BARREN, len(nodes) - 1 + len(nodes) % 2)
        return whole_round(nodes, done + 1, seed=seed) if done < barren else []
    order = list(range(len(nodes)))
    random.Random(f"{seed}/round {done}").shuffle(order)
    chosen = _Round(group, order).chosen()
    return [(nodes[i], nodes[j]) for i, j in chosen]


def whole_round(nodes: Sequence[str], number: int, *, seed: int) -> list[tuple[str, str]]:
    """Return round `number`, from 1, of a tournament in which every node meets every other once.

    By the circle method. One node of an odd number stays out of each round.
    """
    order: list[str | None] = list(nodes)
    random.Random(f"{seed}/circle").shuffle(order)
    if len(order) % 2:
        order.append(None)
    if len(order) < 2:
        return []
    turned = (number - 1) % (len(order) - 1)
    circle = [order[0], *order[1 + turned :], *order[1 : 1 + turned]]
    half = len(circle) // 2
    ends = zip(circle[:half], reversed(circle[half:]), strict=True)
    return [(a, b) for a, b in ends if a is not None and b is not None]


class _Round:
    """The choice of the next pairs, by what is still open."""

    def __init__(self, group: Group, order: list[int]) -> None:
        self._group, self._order = group, order
        self._busy, self._pairs = set[int](), list[tuple[int, int]]()

    def chosen(self) -> list[tuple[int, int]]:
        group, dead = self._group, self._group.dead()
        deaths = dict[int, int]()
        for pair in dead:
            for end in pair:
                deaths[end] = deaths.get(end, 0) + 1
        asked = list[int]()  # needs a partner that can be relied on
        for i, j in dead:
            if group.seen[i].failed[j] < group.repeats:
                self._take(i, j)  # most failed by chance, and pass now
                continue
            ends = [end for end in (i, j) if not group.settled(end, deaths[end], least=LEAST)]
            asked += [end for end in ends if self._may_be_asked(end)]
        asked += [node for node in self._order if self._disputed(node)]
        enough = group.asked
        accused = {i: group.accusations(i) for i in self._order if not group.seen[i].passed}
        open_ = {i: times < enough or group.short(i) for i, times in accused.items()}
        suspects = [i for i, yet in open_.items() if yet]
        self._among_each_other([i for i, yet in open_.items() if not yet])
        waiting = dict.fromkeys(i for i in suspects + asked if i not in self._busy)
        left = self._with_trusted(list(waiting), barred=waiting.keys() | deaths.keys())
        # More suspects than nodes to rely on: they may find that they pass with each other.
        self._folded([i for i in left if not group.seen[i].passed])
        return self._pairs

    def _may_be_asked(self, node: int) -> bool:
        return len(self._group.seen[node].tests) < 3 * self._group.wanted

    def _disputed(self, node: int) -> bool:
        mine = self._group.seen[node]
        if not mine.passed or not (mine.failed or mine.wrong):
            return False
        against = [o for o in mine.failed if self._group.seen[o].passed]
        failed, passed = sum(mine.failed[o] for o in against), sum(mine.passed.values())
        corrupt = any(o in mine.wrong for o in against)
        doubtful = (len(against) > 1 and failed >= passed) or (corrupt and passed < LEAST)
        return doubtful and self._may_be_asked(node)

    def _among_each_other(self, blamed: list[int]) -> None:
        """Let many that would be called bad meet: a part that was cut off passes inside."""
        if len(blamed) * _MANY < self._group.size:
            return
        these = set(blamed)
        self._folded([i for i in blamed if not these & self._group.seen[i].failed.keys()])

    def _folded(self, nodes: list[int]) -> None:
        half = len(nodes) // 2
        for i, j in zip(nodes[:half], reversed(nodes[len(nodes) - half :]), strict=True):
            if j not in self._group.seen[i].failed:
                self._take(i, j)

    def _with_trusted(self, nodes: list[int], *, barred: set[int]) -> list[int]:
        """Pair each with a node that passes, best one it has not met; return those left over."""
        seen = self._group.seen
        free = [i for i in self._order if seen[i].passed and i not in barred | self._busy]
        free.sort(key=lambda i: len(seen[i].failed))  # stable: else in the drawn order
        left, head = list[int](), 0
        for node in nodes:
            met = seen[node].failed.keys() | seen[node].passed.keys()
            while head < len(free) and free[head] in self._busy:
                head += 1
            rest = (free[at] for at in range(head, len(free)) if free[at] not in self._busy)
            partner = next((i for i in rest if i not in met), None)
            if partner is None:
                left.append(node)
            else:
                self._take(node, partner)
        # In a small group all have been met: once more, then, with whom it failed least often.
        again, left, enough = left, [], self._group.asked
        for node in again:
            if self._group.accusations(node) >= enough:
                continue
            failed = seen[node].failed
            rest = (i for i in free if i not in self._busy)
            partner = min(rest, key=lambda i: failed.get(i, 0), default=None)
            if partner is None:
                left.append(node)
            else:
                self._take(node, partner)
        return left

    def _take(self, i: int, j: int) -> bool:
        if i in self._busy or j in self._busy:
            return False
        self._busy |= {i, j}
        self._pairs.append((i, j))
        return True
