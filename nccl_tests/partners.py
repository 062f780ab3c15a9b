"""With whom a new node proves its network, and what that is worth.

Other new nodes first, since they have to be proved anyhow; then a node that is known to be good;
then the node's own network devices, one to the other; then nothing, which is said. Each has a
grade, and a site says which it accepts. Nothing is accepted for want of a partner.

Pure: standard library only, and the same answer for the same question and seed.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

OLDEST_PROOF_S = 7 * 24 * 3600.0
_SHOWN = 4  # nodes that a sentence names


class Grade(IntEnum):
    """How a node's network was proved."""

    ALONE = 0  # not at all
    LOOPBACK = 1  # its own devices, without the network behind them
    PAIR = 2  # with one node that is known to be good
    GROUP = 3  # with other nodes that are proved at the same time


LEAST = Grade.PAIR


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomer:
    """A node to be proved."""

    name: str
    kind: str  # instance type or product: what has to be alike
    rails: int  # network devices for collectives that it should have


@dataclass(frozen=True, slots=True, kw_only=True)
class Proved:
    """A node that passed before, and what has become of it since."""

    name: str
    kind: str
    rails: int
    boot_id: str  # of now
    proved_boot_id: str  # under which it passed; "": it never did
    proof_age_s: float
    quarantined: bool
    busy: bool  # carries somebody's work, which a test would slow down


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Who is asked, what it is worth and whether the site accepts that."""

    grade: Grade
    partners: tuple[str, ...]  # names of nodes
    reference: str  # of a group of two, a third that is known to be good; "": none
    devices: tuple[str, ...]  # of a loopback
    accepted: bool
    why: str


def choose(
    node: Newcomer,
    *,
    pending: Sequence[Newcomer],
    known: Sequence[Proved],
    devices: Sequence[str],
    seed: int,
    least: Grade = LEAST,
    oldest_proof_s: float = OLDEST_PROOF_S,
) -> Choice:
    """Choose partners for `node`: `pending` nodes of its kind, one of `known`, or its `devices`.

    `devices` are its network devices that work; a loopback takes all `rails` of them or is none. A
    group of two can't tell which of them is bad, so it takes a known node as a third, if there is
    one. The known node is drawn by `seed`, so that not the same is asked for ever. Raises
    `ValueError` for a node without name or kind, a doubled name or device, counts below 0 and a
    grade that is none.
    """
    _refuse(node, pending, known, devices, oldest_proof_s)
    reasons, good = list[str](), list[str]()
    unproved = {node.name, *(each.name for each in pending)}
    for each in known:
        if each.name in unproved:
            continue  # what it was before is what is being asked
        if why := _unfit(each, node, oldest_proof_s):
            reasons.append(f"{each.name} {why}")
        else:
            good.append(each.name)
    elected = min(good, key=lambda name: (_draw(seed, node.name, name), name), default="")
    others = sorted(
        each.name
        for each in pending
        if each.name != node.name and (each.kind, each.rails) == (node.kind, node.rails)
    )
    left_out = f"; not asked: {_listed(sorted(reasons))}" if reasons else ""
    if others:
        grade, partners, used = Grade.GROUP, tuple(others), tuple[str, ...]()
        third = elected if len(others) == 1 else ""
        why = f"{node.name} is proved together with {_listed(others)}"
        if len(others) == 1:
            why += (
                f" and {third}, known to be good"
                if third
                else ": two nodes can't tell which of them is bad"
            )
    elif elected:
        grade, partners, used, third = Grade.PAIR, (elected,), (), ""
        why = f"{node.name} is proved with {elected}, one of {len(good)} known to be good{left_out}"
    elif node.rails and len(devices) == node.rails:
        grade, partners, used, third = Grade.LOOPBACK, (), tuple(devices), ""
        why = (
            f"{node.name} sends to itself over all of {len(devices)} network devices, which shows "
            f"neither cable nor switch: there is no node to prove it with{left_out}"
        )
    else:
        grade, partners, used, third = Grade.ALONE, (), (), ""
        have = f"{len(devices)} of {node.rails} network devices" if node.rails else "no rails"
        why = f"the network of {node.name} is not proved: no partner, and {have}{left_out}"
    least = Grade(least)
    accepted = grade >= least
    ruled = "accepts" if accepted else "doesn't accept"
    return Choice(
        grade=grade,
        partners=partners,
        reference=third,
        devices=used,
        accepted=accepted,
        why=f"{why}. Grade {grade:d} ({grade.name.lower()}); the site {ruled} it: {least:d} is the "
        "least",
    )


def _unfit(each: Proved, node: Newcomer, oldest_proof_s: float) -> str:
    """Why a node is no partner; `""` where it is one."""
    if each.quarantined:
        return "is quarantined"
    if each.kind != node.kind:
        return f"is a {each.kind or 'node of no known kind'}"
    if each.rails != node.rails:
        return f"has {each.rails} network devices and not {node.rails}"
    if not each.proved_boot_id:
        return "was never proved"
    if each.boot_id != each.proved_boot_id:
        return "was proved under another boot"
    if not 0 <= each.proof_age_s <= oldest_proof_s:  # of the future, or NaN, too
        return f"was proved {each.proof_age_s:g} s ago"
    return "is at work" if each.busy else ""


def _refuse(
    node: Newcomer,
    pending: Sequence[Newcomer],
    known: Sequence[Proved],
    devices: Sequence[str],
    oldest_proof_s: float,
) -> None:
    if not node.name or not node.kind:
        raise ValueError(f"{node}: a node without name or kind has no peers")
    if node.rails < 0 or not oldest_proof_s > 0:
        raise ValueError(f"{node.rails} rails, proofs of {oldest_proof_s} s: below 0, or no time")
    for what, names in (
        ("pending", [each.name for each in pending]),
        ("known", [each.name for each in known]),
        ("device", devices),
    ):
        if twice := sorted(name for name, count in Counter(names).items() if count > 1):
            raise ValueError(f"{what} {twice} stand there twice: one of them is another's")


def _draw(seed: int, node: str, name: str) -> bytes:
    return hashlib.blake2b(repr((seed, node, name)).encode(), digest_size=8).digest()


def _listed(names: Iterable[str]) -> str:
    shown = list(names)
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more
