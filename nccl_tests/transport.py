"""What carried the bytes between nodes, and why we believe it.

A job whose fast network is not there runs to its end over TCP, and no error shows. So what was
used is proved twice: by NCCL's own log, and by what each device's counters grew by, held against
the fewest bytes that had to leave the node. Speed is no witness: it says how fast, not by what.

Pure: no torch, no clock, no files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nodeproof.nccl_tests.bandwidth import Collective
from nodeproof.nccl_tests.logs import Said, said

LEAST_SHARE = 0.9  # of the bytes that had to move; headers only add to them
UNEVEN = 0.2  # of a device's even share, up and down
TOO_MUCH_TCP = 0.1  # of the bytes that had to leave, sent beside the fast network
TELLING_BYTES = 1 << 20  # by device; fewer are not spread over all of them
RDMA = ("efa", "infiniband", "roce")
PROVIDERS = (*RDMA, "tcp")
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "int32": 4, "int64": 8}
_RESENT = "retrans_bytes"  # of EFA, from driver r2.17 and Nitro v4 on
_KINDS = {"tcp": "ethernet"}  # of devices, where it is called otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Least:
    """The fewest bytes that have to leave a node, and to come into it, whatever the algorithm."""

    out: int = 0
    into: int = 0

    def __add__(self, other: Least) -> Least:
        return Least(out=self.out + other.out, into=self.into + other.into)

    def times(self, count: int) -> Least:
        """The same, `count` times."""
        return Least(out=self.out * count, into=self.into * count)


def least(collective: Collective, size_bytes: int, *, nodes: int, ranks_per_node: int) -> Least:
    """What one node has to send and receive for one collective of `size_bytes` (see `Collective`).

    Lower bounds, by what the ranks on one side of the node's edge know and those on the other need:
    a switch that adds up or copies on the way may reach them, a ring moves more. Of n ranks on m
    nodes, with S bytes:

    - all_reduce: S each way, the node's sum out and the total in (a ring 2 (n-1)/n S, which among
      two nodes is nearly twice that);
    - all_gather: S/m out, what its ranks have; (m-1)/m S in, what they lack;
    - reduce_scatter: the reverse;
    - all_to_all: each of n/m ranks sends S/n to every rank elsewhere, which no algorithm can spare;
    - sendrecv: S each way: a round through all ranks leaves each node at least once;
    - broadcast: nothing, since where its root stands is not known here.

    0 among fewer than two nodes. Raises `ValueError` for numbers that are none.
    """
    if nodes < 1 or ranks_per_node < 1 or size_bytes < 0:
        raise ValueError(f"{size_bytes} bytes among {nodes} nodes of {ranks_per_node} ranks")
    if nodes == 1:
        return Least()
    part, rest = size_bytes // nodes, size_bytes * (nodes - 1) // nodes
    match collective:
        case Collective.ALL_REDUCE | Collective.SENDRECV:
            return Least(out=size_bytes, into=size_bytes)
        case Collective.ALL_GATHER:
            return Least(out=part, into=rest)
        case Collective.REDUCE_SCATTER:
            return Least(out=rest, into=part)
        case Collective.ALL_TO_ALL:
            return Least(out=ranks_per_node * rest, into=ranks_per_node * rest)
        case Collective.BROADCAST:
            return Least()


def least_of(rows: Sequence[Mapping[str, Any]], *, nodes: int, ranks_per_node: int) -> Least:
    """The same for all that one rank's `rows` of `inside:exchange` list, repeats included.

    Raises `ValueError` for a row that is none.
    """
    total = Least()
    for row in rows:
        collective, size = Collective(row["collective"]), row["bytes"]
        if row["dtype"] not in _ITEM_BYTES or size <= 0:
            raise ValueError(f"no row of an exchange: {dict(row)}")
        shared = nodes * ranks_per_node if collective is Collective.REDUCE_SCATTER else 1
        done = row["elements"] * _ITEM_BYTES[row["dtype"]] * shared // size
        total += least(collective, size, nodes=nodes, ranks_per_node=ranks_per_node).times(done)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What carried one node's bytes.

    `provider` is efa, infiniband, roce, tcp, loopback, or unknown. `problems` are what speaks
    against the node, and where something was expected also each of `unproved`: what keeps the
    provider from being known. Only without either is it proved.
    """

    provider: str
    gdr: bool | None  # GPUDirect on every channel; `None`: no log shows it
    shares: Mapping[str, float]  # of the bytes sent, by device
    bytes: int  # sent by the devices of this provider
    expected_bytes: int  # that had to leave at the least
    retransmitted: float | None  # of those bytes, as a share; `None`: not every device counts it
    fallback: str  # a sentence, "" where nothing fell back
    unproved: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def proved(self) -> bool:
        """Whether log and counters both say so, and nothing speaks against it."""
        return not self.unproved and not self.problems and self.provider != "unknown"


def judge(
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
    *,
    backend: str,
    least: Least,
    expected: str = "",
    texts: Sequence[str] = (),
    devices: int = 0,
    names: Sequence[str] = (),
    gdr_expected: bool = False,
    idle: bool = True,
) -> Carried:
    """Say what carried the bytes of one node, from what was read `before` and `after`.

    `before` and `after` are answers of the work that reads traffic, `None` where there was none;
    `texts` the node's NCCL logs; `backend` that of torch.distributed ("nccl", "gloo"). `expected`
    is a provider, "" where the spec expects none; `devices` how many have to share the load (0: as
    many as there are) and `names` which of them, where others stand beside them.

    Raises `ValueError` for an unknown provider, and for readings that are none.
    """
    if expected not in ("", *PROVIDERS):
        raise ValueError(f"unknown provider {expected!r}: one of {', '.join(PROVIDERS)}")
    case = _Case(least=least, expected=expected, devices=devices, names=tuple(names))
    case.moved = _moved(before, after, case)
    told = said(texts, idle=idle) if backend == "nccl" else None
    case.judge(_by_word(told, backend, case))
    if told is not None:
        case.hear(told, gdr_expected=gdr_expected)
    return case.carried(told)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moved:
    """What one device did between the readings; `None`: its counter is missing, or went back."""

    where: str
    name: str
    kind: str
    address: str | None
    physical: bool
    tx: int | None
    rx: int | None
    resent: int | None
    faults: Mapping[str, int]  # that grew, and by how much
    doubts: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class _Case:
    """One node's case, as it is put together."""

    least: Least
    expected: str
    devices: int
    names: tuple[str, ...]
    moved: list[_Moved] = field(default_factory=list)
    own: bool | None = None
    provider: str = "unknown"
    fallback: str = ""
    problems: list[str] = field(default_factory=list)
    unproved: list[str] = field(default_factory=list)

    def of(self, provider: str) -> list[_Moved]:
        """The devices by which a provider sends: for TCP the physical ones, if there are any."""
        kind = _KINDS.get(provider, provider)
        found = [each for each in self.moved if each.kind == kind]
        # The names are those of the network that is expected; others can't be left out by them.
        if self.names and (provider == self.expected or (not self.expected and provider in RDMA)):
            return [each for each in found if each.name in self.names]
        if provider != "tcp":
            return found
        fast = {each.address for each in self.moved if each.kind in RDMA} - {None}
        found = [each for each in found if each.address not in fast]
        # What a bridge or a pair's end sends goes out by a physical one, and counts there.
        return [each for each in found if each.physical] or found

    def carries(self, provider: str) -> bool:
        """Whether the devices of a provider moved what had to move, both ways."""
        sent, received = self.total(provider, "tx"), self.total(provider, "rx")
        enough = sent >= LEAST_SHARE * self.least.out and received >= LEAST_SHARE * self.least.into
        return enough and sent + received > 0

    def total(self, provider: str, way: str) -> int:
        """Bytes that the devices of a provider are known to have moved."""
        return sum(getattr(each, way) or 0 for each in self.of(provider))

    def judge(self, word: str) -> None:
        """Hold the `word` of log and backend against the counters, and both against what is due."""
        if not (self.least.out or self.least.into):
            self.unproved.append("nothing had to leave the node, so nothing shows what would carry")
        by_counters = next((p for p in (*PROVIDERS, "loopback") if self.carries(p)), "")
        if word == "infiniband" and not self.of("infiniband") and self.of("roce"):
            word = "roce"  # the log of an older NCCL calls both IB
        if word and self.carries(word):
            self.provider = word
        elif word == "tcp" and by_counters == "loopback":
            self.provider = by_counters
        elif word:
            self._moved_too_little(word)
            if word in RDMA and by_counters == "tcp":
                self.provider = by_counters
        elif by_counters:
            self.provider = by_counters
        else:
            self.unproved.append("no device moved the bytes that had to leave the node")
        if self.provider in {"tcp", "loopback"} and self.own is not True:
            self.unproved.append(
                "it is not known that /sys shows the interfaces of this network namespace: mount "
                "it there"
            )
        self._expect(word)
        self._check_devices()

    def hear(self, told: Said, *, gdr_expected: bool) -> None:
        """Take in what else NCCL's logs say."""
        self.problems += [f"NCCL says: {fault}" for fault in told.faults]
        if gdr_expected and told.gdr is not True:
            how = "is not shown for any channel" if told.gdr is None else "is missing on a channel"
            self.problems.append(f"GPUDirect RDMA {how}: the data may go through host memory")
        efa = "efa" in told.networks or self.expected == "efa"
        if efa and told.nics is not None and told.nics < self.devices:
            self.problems.append(f"libfabric found {told.nics} of {self.devices} EFA devices")

    def carried(self, told: Said | None) -> Carried:
        """The case, closed."""
        shown = self.expected if self.provider == "unknown" else self.provider
        sent = self.total(shown, "tx")
        doubts = [f"not proved: {why}" for why in self.unproved] if self.expected else []
        return Carried(
            provider=self.provider,
            gdr=None if told is None else told.gdr,
            shares={each.where: each.tx / sent for each in self.of(shown) if each.tx is not None}
            if sent
            else {},
            bytes=sent,
            expected_bytes=self.least.out,
            retransmitted=_share(sent, [each.resent for each in self.of(shown)]),
            fallback=self.fallback,
            unproved=tuple(self.unproved),
            problems=tuple(dict.fromkeys([*self.problems, *doubts])),
        )

    def _moved_too_little(self, word: str) -> None:
        if any(None in (each.tx, each.rx) for each in self.of(word)):
            self.unproved.append(f"the bytes of {word} are not known in full")
            return
        self.problems.append(
            f"{word} is said to be used, and its devices sent {self.total(word, 'tx')} and "
            f"received {self.total(word, 'rx')} bytes where at least {self.least.out} and "
            f"{self.least.into} had to move"
        )

    def _expect(self, word: str) -> None:
        if not self.expected:
            return
        slow = {word, self.provider} & {"tcp", "loopback"}
        if self.expected in RDMA and slow:
            self.fallback = f"the data went by TCP and not by {self.expected}, at whatever speed"
            self.problems.append(self.fallback)
        elif self.provider not in {self.expected, "unknown"} or word not in {self.expected, ""}:
            used = self.provider if self.provider != "unknown" else word
            self.problems.append(f"{used} was used where {self.expected} is expected")
        if self.expected in RDMA and not self.fallback:
            beside = self.total("tcp", "tx")
            if self.least.out and beside > TOO_MUCH_TCP * self.least.out:
                self.problems.append(
                    f"{beside} bytes were sent by Ethernet beside {self.expected}, which had "
                    f"{self.least.out} to send: a part of it may have gone by TCP"
                )

    def _check_devices(self) -> None:
        which = self.expected or (self.provider if self.provider != "unknown" else "")
        mine = self.of(which) if which else []
        for each in mine:
            self.unproved += each.doubts
        watched = [e for e in self.moved if e.kind in RDMA and (not self.names or e in mine)]
        watched += [each for each in mine if each not in watched]
        for each in watched:
            self.problems += [f"{each.where}: {n} grew by {by}" for n, by in each.faults.items()]
        missing = sorted(set(self.names) - {each.name for each in mine})
        if missing and which in PROVIDERS:
            self.problems.append(f"no {which} device is called {', '.join(missing)}")
        if self.devices and which in PROVIDERS and len(mine) != self.devices:
            self.problems.append(f"{len(mine)} {which} devices where {self.devices} are expected")
        if which in RDMA and (self.devices or self.expected):
            self._check_shares(mine, self.devices or len(mine))

    def _check_shares(self, mine: Sequence[_Moved], count: int) -> None:
        sent = sum(each.tx or 0 for each in mine)
        still = [each for each in mine if each.tx == 0 and each.rx == 0]
        self.problems += [f"{each.where} moved nothing" for each in still]
        if count < 2:
            return
        if sent < count * TELLING_BYTES:
            self.unproved.append(f"{sent} bytes are too few to be spread over {count} devices")
            return
        for each in mine:
            share = (each.tx or 0) / sent
            known = each.tx is not None and each not in still
            if known and abs(share * count - 1) > UNEVEN:
                self.problems.append(
                    f"{each.where} sent {share:.1%} of the node's bytes, which is not near "
                    f"{1 / count:.1%}"
                )


def _by_word(told: Said | None, backend: str, case: _Case) -> str:
    """The provider by NCCL's log, and for Gloo by its nature; "" where neither says."""
    if backend == "gloo":
        return "tcp"
    if told is None:
        case.unproved.append(f"what the backend {backend!r} sends by is not known")
        return ""
    if len(told.networks) > 1:
        case.problems.append(
            f"the ranks took different networks: {', '.join(sorted(told.networks))}"
        )
        # The worst of them decides: whoever took it has fallen back.
        return "tcp" if "tcp" in told.networks else ""
    if told.silent or not told.logs:
        case.unproved.append(f"{told.silent} of {told.logs} NCCL logs do not name the network used")
    word = next(iter(told.networks), "")
    if word and word not in PROVIDERS:
        case.problems.append(f"libfabric chose {word!r}, which is no network that is known here")
        return ""
    return word


def _moved(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, case: _Case
) -> list[_Moved]:
    if before is None or after is None:
        which = "before" if before is None else "after"
        case.unproved.append(f"the counters were not read {which} the run")
        return []
    case.own = True if before.get("own") is True and after.get("own") is True else None
    old, new = (_by_place(reading) for reading in (before, after))
    # One that is gone keeps its place, so that its absence is seen.
    return [_between(old.get(where), new.get(where)) for where in dict.fromkeys((*old, *new))]


def _by_place(reading: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    try:
        return {each["where"]: each for each in reading["devices"]}
    except (KeyError, TypeError) as error:
        raise ValueError(f"no reading of traffic: {error}") from None


def _between(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> _Moved:
    there = new or old
    assert there is not None
    where, doubts = str(there["where"]), list[str]()
    tx = rx = resent = None
    grown = dict[str, int]()
    if old is None or new is None:
        doubts.append(f"{where} {'came' if old is None else 'went away'} during the run")
    else:
        tx, rx = (_grown(old, new, f"{way}_bytes", doubts) for way in ("tx", "rx"))
        if _RESENT in old["shown"] and _RESENT in new["shown"]:
            resent = max(0, int(new["shown"][_RESENT] - old["shown"][_RESENT]))
        full = {*old["at_top"], *new["at_top"]}
        doubts += [f"{where}: {name} stands at its top" for name in sorted(full)]
        was, now = _faults(old), _faults(new)
        doubts += [
            f"{where}: {name} can't be read any more" for name in sorted(was.keys() - now.keys())
        ]
        for name in sorted(was.keys() & now.keys()):
            by = now[name] - was[name]
            if by < 0:
                doubts.append(f"{where}: {name} went back by {-by}")
            elif by > 0:
                grown[name] = by
        if there["kind"] in RDMA and not was:
            doubts.append(f"{where} has no counter of faults")
    return _Moved(
        where=where,
        name=str(there["name"]),
        kind=str(there["kind"]),
        address=there["address"],
        physical=bool(there["physical"]),
        tx=tx,
        rx=rx,
        resent=resent,
        faults=grown,
        doubts=tuple(doubts),
    )


def _share(sent: int, parts: Sequence[int | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) / sent if sent and len(known) == len(parts) else None


def _faults(device: Mapping[str, Any]) -> dict[str, int]:
    errors = ("tx_errors", "rx_errors") if device["kind"] == "ethernet" else ()
    return {**device["faults"], **{n: device["shown"][n] for n in errors if n in device["shown"]}}


def _grown(
    old: Mapping[str, Any], new: Mapping[str, Any], name: str, doubts: list[str]
) -> int | None:
    was, now = old[name], new[name]
    if was is None or now is None:
        doubts.append(f"{new['where']} does not count its {name}")
        return None
    if now < was:
        doubts.append(f"{new['where']}: {name} went back by {was - now}: it was reset meanwhile")
        return None
    return int(now - was)
