"""What a group of nodes is asked to do, in order, and what came of it.

First a planted fault in a small exchange, then the whole group in every collective and size; then
pairs of nodes, in rounds that have no node in common, as long as `localise` has something to ask;
then, of nodes that are condemned, each device with its counterpart on a trusted node. Whatever
fails is written down with its reason, and what comes after is done all the same.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nodeproof.fabric.crew import FOLDER, NODE
from nodeproof.fabric.head import Ask, Head, Member, Replies
from nodeproof.fabric.patience import Patience
from nodeproof.nccl_tests import bandwidth, localise, rank_answers
from nodeproof.nccl_tests.bandwidth import Collective
from nodeproof.nccl_tests.localise import Pair, Place
from nodeproof.nccl_tests.rank_answers import Asked
from nodeproof.reports.counted import counted

_EXCHANGE = "nodeproof.nccl_tests.inside:exchange"
_TRAFFIC = "nodeproof.probes.traffic:read"
_LOGS = "nodeproof.nccl_tests.logs:read"
_ALL_REDUCE = "all_reduce"
# So small that nothing but waiting takes time, often enough to tell a habit from an accident.
_SMALL: dict[str, Any] = {
    "max_bytes_cpu": 1024,
    "max_bytes_gpu": 1024,
    "only": [_ALL_REDUCE],
    "sweep": False,
    "repeats": 20,
}
_START_S = 45.0  # of a worker that is new: loading torch, connecting NCCL
_MOST_LOGS = 256
_READ_S = 30.0  # for what the node itself says


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is measured, and for how long each thing may take.

    A thing done together ends after `timeout_s`; a worker after its call's deadline, which is
    longer; what the head waits for a member is longer still.
    """

    max_bytes: int
    timeout_s: float
    sweep_s: float  # for the whole group's sweep
    most_rounds: int
    seed: int
    floor_gbs: float  # of two nodes in all-reduce, by the spec; 0 without one
    ratio: float


@dataclass(slots=True, kw_only=True)
class Measured:
    """What the group did, as it goes into the record."""

    planted: list[dict[str, Any]] = field(default_factory=list)
    whole: list[dict[str, Any]] = field(default_factory=list)
    small: list[dict[str, Any]] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    rails: list[dict[str, Any]] = field(default_factory=list)
    traffic: dict[str, dict[str, Any]] = field(default_factory=dict)
    nccl: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Rank:
    """One device of a meeting."""

    member: Member
    device: str


@dataclass(slots=True, kw_only=True)
class Campaign:
    """One run over the members that a head has gathered."""

    head: Head
    terms: Terms
    say: Callable[[str], None]
    progress: Callable[[str], None] = field(default=lambda _text: None)  # of what takes long
    measured: Measured = field(default_factory=Measured)
    _meetings: int = 0

    def run(self) -> None:
        """Measure. Raises `Interrupted`; what was measured until then stays in `measured`."""
        everybody = self._everybody()
        nodes = len(self.head.members)
        verb = "is" if nodes == 1 else "are"
        self.say(f"{len(everybody)} of {counted(nodes, 'node')} {verb} ready")
        self._read_traffic("before")
        ranks = [_Rank(m, label) for m in everybody for label in m.labels]
        if len(everybody) > 1 or len(ranks) > 1:
            self.measured.planted = self._together(ranks, "planted faults", plant="flip")
            self.measured.whole = self._together(ranks, "the whole group")
            self._read_traffic("after")
            if not any(member.trouble for member in everybody):  # else nobody would come in time
                self.measured.small = self._together(ranks, "who comes late", **_SMALL)
        self._pairs()
        self._rails()
        self._read_logs()

    # --- the whole group -------------------------------------------------------------------

    def _together(self, ranks: Sequence[_Rank], what: str, **more: Any) -> list[Any]:
        begun = time.monotonic()
        args = self._args() | more
        replies = self._meet({"all": ranks}, args, what=what, budget_s=self.terms.sweep_s)["all"]
        rows = [
            {
                "rank": number,
                "member": rank.member.name,
                "device": rank.device,
                "answer": reply.get("answer"),
                "said": str(reply.get("said", "")),
            }
            for number, (rank, reply) in enumerate(zip(ranks, replies, strict=True))
        ]
        failed = [row["said"] for row in rows if row["answer"] is None]
        took = time.monotonic() - begun
        self.say(
            f"{what}: {len(rows) - len(failed)} of {counted(len(rows), 'rank')} in {took:.1f} s"
        )
        return rows

    # --- pairs -----------------------------------------------------------------------------

    def _pairs(self) -> None:
        number = 0
        while number < self.terms.most_rounds:
            nodes, pairs = self._comparable()
            chosen = localise.next_round(
                nodes,
                pairs,
                seed=self.terms.seed,
                floor_gbs=self.terms.floor_gbs,
                ratio=self.terms.ratio,
                most_rounds=self.terms.most_rounds,
            )
            if not chosen:
                return
            number += 1
            begun = time.monotonic()
            found = self._round(number, chosen)
            self.measured.pairs += found
            speeds = [p.gbs for p in found if p.gbs is not None]
            self.say(
                f"round {number}: {counted(len(found), 'pair')} in {time.monotonic() - begun:.1f} s, "
                f"{len(found) - len(speeds)} unfinished"
                + (f", the slowest {min(speeds):.4g} GB/s" if speeds else "")
            )

    def _round(self, number: int, chosen: Sequence[tuple[str, str]]) -> list[Pair]:
        meetings = {
            f"{a} with {b}": [
                _Rank(member, label)
                for name in (a, b)
                for member in (self._member(name),)
                for label in member.labels
            ]
            for a, b in chosen
        }
        args = self._args() | {"only": [_ALL_REDUCE], "sweep": False}
        what = f"round {number}"
        replies = self._meet(meetings, args, what=what, budget_s=self.terms.timeout_s)
        return [
            _pair(number, a, b, replies[which], self._asked(len(replies[which])))
            for (a, b), which in zip(chosen, meetings, strict=True)
        ]

    # --- inside what is condemned -----------------------------------------------------------

    def _rails(self) -> None:
        """Each device of a bad node with the same device of a sound one, nothing else at work."""
        nodes, pairs = self._comparable()
        if len(nodes) < 2:
            return
        told = localise.judge(
            nodes, pairs, floor_gbs=self.terms.floor_gbs, ratio=self.terms.ratio
        ).nodes
        bad = [name for name in nodes if told[name].place is Place.BAD]
        sound = [name for name in nodes if told[name].place is Place.GOOD]
        ends = list(zip(bad, sound, strict=False))
        rails = max((len(self._member(name).labels) for name in bad), default=0)
        for rail in range(rails if rails > 1 else 0):  # a single one was tested by the pair
            meetings = {
                f"{a} with {b}, rail {rail}": [
                    _Rank(self._member(name), self._member(name).labels[rail]) for name in (a, b)
                ]
                for a, b in ends
                if min(len(self._member(name).labels) for name in (a, b)) > rail
            }
            args = self._args() | {"only": [_ALL_REDUCE], "sweep": False}
            step = f"rail {rail}"
            replies = self._meet(meetings, args, what=step, budget_s=self.terms.timeout_s)
            for what, ranks in meetings.items():
                a, b = (rank.member.name for rank in ranks)
                found = _pair(rail, a, b, replies[what], self._asked(2))
                row = {"a": a, "b": b, "rail": rail}
                row |= {"gbs": found.gbs, "wrong": found.wrong, "said": found.said}
                self.measured.rails.append(row)
            self.say(f"rail {rail} of {', '.join(bad)}")

    # --- what the nodes say ------------------------------------------------------------------

    def _read_traffic(self, when: str) -> None:
        replies = self._of_each_node(_TRAFFIC, {})
        for name, reply in replies.items():
            row = self.measured.traffic.setdefault(
                name, {"before": None, "after": None, "said": ""}
            )
            row[when] = reply.get("answer")
            row["said"] = str(reply.get("said", row["said"]))

    def _read_logs(self) -> None:
        for name, reply in self._of_each_node(_LOGS, {"folder": FOLDER}).items():
            texts = reply.get("answer", {}).get("texts", [])
            said = str(reply.get("said", ""))
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                texts, said = [], f"{name} said of its logs what is no text"
            self.measured.nccl[name] = {"texts": texts[:_MOST_LOGS], "said": said}

    def _of_each_node(self, call: str, args: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        asks = {m.rank: Ask(calls={NODE: {"call": call, "args": args}}) for m in self._everybody()}
        replies = self.head.ask(asks, seed=self.terms.seed, deadline_s=_READ_S)
        return {self.head.members[rank].name: row[NODE] for rank, row in replies.items()}

    # --- asking ----------------------------------------------------------------------------

    def _meet(
        self,
        meetings: Mapping[str, Sequence[_Rank]],
        args: Mapping[str, Any],
        *,
        what: str,
        budget_s: float,
    ) -> dict[str, list[dict[str, Any]]]:
        """Have ranks meet, all meetings at once; return each meeting's replies by rank."""
        calls = dict[int, dict[str, dict[str, Any]]]()
        for ranks in meetings.values():
            self._meetings += 1
            meeting = f"meeting-{self._meetings}-{secrets.token_hex(12)}"
            labels = [f"{rank.member.name} {rank.device}" for rank in ranks]
            for number, rank in enumerate(ranks):
                group = {
                    "rank": number,
                    "size": len(ranks),
                    "labels": labels,
                    # A name that nobody else knows: the store keeps no one out of another's meeting.
                    "store": meeting,
                    "port": self.head.store_port,
                }
                calls.setdefault(rank.member.rank, {})[rank.device] = {
                    "call": _EXCHANGE,
                    "args": dict(args),
                    "group": group,
                }
        deadline_s = _START_S + 2 * self.terms.timeout_s + budget_s
        replies: Replies = self.head.ask(
            {rank: Ask(calls=own) for rank, own in calls.items()},
            seed=self.terms.seed + self._meetings,
            deadline_s=deadline_s,
            waiting=Patience(self.progress, what, limit_s=deadline_s),
        )
        return {
            which: [replies[rank.member.rank].get(rank.device) or _silent(rank) for rank in ranks]
            for which, ranks in meetings.items()
        }

    def _args(self) -> dict[str, Any]:
        size = self.terms.max_bytes
        return {
            "max_bytes_cpu": size,
            "max_bytes_gpu": size,
            "timeout_s": self.terms.timeout_s,
        }

    def _asked(self, ranks: int) -> Asked:
        """What ranks of a pair have to have done."""
        kinds = {row["kind"] for member in self._everybody() for row in member.devices}
        return Asked(
            device="cpu" if "cpu" in kinds else "cuda",
            ranks=ranks,
            collectives=(Collective.ALL_REDUCE,),
            least_bytes=self.terms.max_bytes,
            planted=False,
        )

    def _comparable(self) -> tuple[list[str], list[Pair]]:
        """Nodes that nothing but pairs can speak against, and the pairs among them.

        One that went away, or lost a worker, is undecided by that; what failed with it says nothing
        of the other end.
        """
        nodes = [member.name for member in self._everybody() if not member.trouble]
        pairs = [p for p in self.measured.pairs if p.a in nodes and p.b in nodes]
        return nodes, localise.renumbered(pairs)

    def _everybody(self) -> list[Member]:
        return [member for member in self.head.members if member.there]

    def _member(self, name: str) -> Member:
        return next(member for member in self.head.members if member.name == name)


def _silent(rank: _Rank) -> dict[str, Any]:
    return {"said": f"{rank.member.name} said nothing of {rank.device}"}


def _pair(number: int, a: str, b: str, replies: Sequence[Mapping[str, Any]], asked: Asked) -> Pair:
    """Of two nodes the ranks of both: a pair has been measured where every rank has an answer."""
    answers = [reply.get("answer") for reply in replies]
    if not answers or not all(answers):
        why = [str(reply.get("said")) for reply in replies if not reply.get("answer")]
        return Pair(round=number, a=a, b=b, gbs=None, said="; ".join(dict.fromkeys(why)) or "?")
    try:
        gbs, wrong = _rate([answer for answer in answers if answer is not None], asked)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        said = f"what came of it is no measurement: {type(error).__name__}: {error}"
        return Pair(round=number, a=a, b=b, gbs=None, said=said)
    return Pair(round=number, a=a, b=b, gbs=gbs, wrong=wrong)


def _rate(answers: Sequence[Mapping[str, Any]], asked: Asked) -> tuple[float, int]:
    """GB/s and wrong elements of two nodes, by what each rank says of itself.

    What ranks told each other through the store is not used: others can write there. Raises
    `ValueError`, `TypeError` or `KeyError` for what is no measurement.
    """
    for answer in answers:
        rank_answers.believe(answer, asked)
    (size,) = {answer["largest_bytes"][_ALL_REDUCE] for answer in answers}
    seconds = bandwidth.slowest([answer["own_times"][_ALL_REDUCE] for answer in answers])
    gbs = bandwidth.busbw_gbs(Collective.ALL_REDUCE, size, seconds, len(answers))
    return gbs, sum(answer["wrong"] for answer in answers)
