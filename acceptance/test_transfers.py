"""Copies: between the host and a device, inside a device, and between all pairs of devices."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nodeproof.acceptance.culprit import COMMON, culprit, told, whole
from nodeproof.checks import (
    COMPUTE,
    CannotMeasure,
    Cause,
    Device,
    DeviceKind,
    Load,
    Measure,
    Plant,
    Remedy,
    Result,
    Results,
    Work,
    altered,
    check,
)

_DIRECTIONS = {"h2d": "host to device", "d2h": "device to host", "d2d": "device to device"}
_SHOWN = 4  # places with wrong bytes that a summary names; the results file has more
_UNDESCRIBED = "none of them could be described: the comparison counts what it cannot find again"
_COPIES = {"odd": 31, "shifted": 1, "aligned": 1, "together": 4}  # of each way in a round
_ODD_BYTES = 98_679  # of all odd copies together
_LARGE = 0.9  # of the arena, the least that the large copies of a round cover
_ARENA_GPU, _ARENA_CPU = 64 << 20, 1 << 19  # bytes
_PAUSE_S = 2.0  # a worker beats twice a second; one that was silent for longer did not run


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """GB/s (decimal) of one large aligned copy from or to pinned memory; 0: none is asked.

    No figure holds for every kind of device: a PCIe 4.0 x16 slot gives about 25 each way, 5.0
    about 50, and a link that trained at half its width half of that. A spec sets them.
    """

    h2d_gbs: float = 0.0
    d2h_gbs: float = 0.0
    d2d_gbs: float = 0.0


@check(
    "device.transfers.host",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    limits=Rates,
    work=Work(
        call="nodeproof.kernels.transfers:copies",
        load=Load(quick=1, gate=5, deep=30, soak=300),
        deadline_s=120,
    ),
    plant=(
        Plant(args={"plant": "flip"}, breaks=("wrong bytes", "damaged expectation")),
        Plant(args={"plant": "stale"}, breaks=("wrong bytes", "damaged expectation")),
        altered("kinds of copies", "copied in each kind", flown={}),
        altered("arena", arena=0),
        # Rates are held against a limit only where a spec gives one.
        altered(
            "checked", checked=dict.fromkeys(_DIRECTIONS, 0), gbs=dict.fromkeys(_DIRECTIONS, -1.0)
        ),
    ),
)
def test_copies(device: Device, result: Result, measure: Measure, limits: Rates) -> None:
    """A copy that arrives wrong turns good data into bad before anything is computed with it.

    Host to device, device to host and inside the device, from pinned and pageable memory, in odd
    sizes at every alignment and in large blocks, each way alone and all at once. Every byte is a
    hash of its place, its way and the number of the copy, so that a flipped, shifted, swapped or
    stale byte shows, and one written beside the copy too. PCIe repeats what arrives with a bad
    checksum; what is wrong here was wrong before or after the wire: copy engine, bridge, memory of
    the host. Wrong bytes in one direction of one device: replace the device. Wrong on several
    devices of one board or socket at once: the bridge or the host's memory. A reset may hide it and
    does not mend it.

    It cannot see what the wire lost and repeated (that is in the counters of the link, and in the
    rate), and on a processor "device" is other memory of the same process. No wrong byte in N bytes
    checked: fewer than 3/N of the bytes are wrong at 95 % confidence, in this way of copying.
    """
    found = [entry for entry in result["found"] if entry["region"] != "base"]
    detail = "; ".join(_place(entry) for entry in found[:_SHOWN])
    if result["wrong"] and not found:
        detail = _UNDESCRIBED
    measure("wrong bytes", result["wrong"], at_most=0, detail=detail)
    measure(
        "damaged expectation",
        result["reference_wrong"],
        at_most=0,
        detail="the device makes other data than the host of the same hash, or has lost it",
    )
    gpu = device.kind is DeviceKind.GPU
    arena, rounds = result["arena"], max(result["rounds"], 1)
    measure(
        "arena",
        arena,
        unit="bytes",
        at_least=_ARENA_GPU if gpu else _ARENA_CPU,
        cause=Cause.ENVIRONMENT,
    )
    shares = {
        f"{way}, {kind}": [
            done / (due * rounds)
            for done, due in zip(
                result["flown"].get(way, {}).get(kind, (0, 0)),
                (copies, _ODD_BYTES if kind == "odd" else _LARGE * arena),
                strict=True,
            )
        ]
        for way, kind, copies in _due(gpu=gpu)
        if arena
    } or {"every way": [0.0, 0.0]}
    for name, which in (("kinds of copies", 0), ("copied in each kind", 1)):
        least = min(shares, key=lambda each: shares[each][which])
        measure(
            name,
            shares[least][which],
            at_least=1,
            detail=f"share of what is due in each round, the least of all: {least}",
            cause=Cause.ENVIRONMENT,
        )
    checked = [result["checked"][direction] for direction in _DIRECTIONS]
    measure(
        "checked",
        min(checked),
        unit="bytes",
        at_least=max(len(_COPIES) * arena * rounds, 1),
        detail="the least of the three directions",
    )
    for direction, name in _DIRECTIONS.items():
        floor: float = getattr(limits, f"{direction}_gbs")
        measure(name, result["gbs"][direction], unit="GB/s", at_least=floor or None)


def _due(*, gpu: bool) -> list[tuple[str, str, int]]:
    """Way, kind and number of the copies that every round has."""
    memories = ("pinned", "pageable") if gpu else ("pageable",)
    ends = {"h2d": memories, "d2h": memories, "d2d": ("device",)}
    return [
        (f"{direction} {memory}", kind, copies)
        for direction, ways in ends.items()
        for memory in ways
        for kind, copies in _COPIES.items()
        # All at once go those of the first memory only.
        if kind != "together" or memory == ways[0]
    ]


def _place(entry: Mapping[str, Any]) -> str:
    where = "beside the copy" if entry["region"] == "fence" else "in the copy"
    return (
        f"{_DIRECTIONS[entry['direction']]}, {entry['memory']} memory, round {entry['round']}, "
        f"{entry['kind']}: {entry['bytes']} of {entry['size']} bytes {where} at {entry['start']}, "
        f"first at {entry['offset']}: {entry['got']} instead of {entry['expected']} "
        f"(xor {entry['xor']})"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """How fast a pair of devices has to be."""

    pair_gbs: float = 0.0  # 0: no figure is known for this kind of node, so none is asked
    below_median: float = 0.5  # of the median over all ordered pairs
    # The cores of a rehearsal are shared: only a pair that all but stands still is short.
    cpu_below_median: float = 0.998


def _each(change: Callable[[Result], dict[str, Any]]) -> Callable[[Results], Results]:
    return lambda results: [(device, {**result, **change(result)}) for device, result in results]


def _of_several(alter: Callable[[Results], Results]) -> Callable[[Results], Results | None]:
    """Not to be had with one device, which has no pairs."""
    return lambda results: None if len(results) == 1 else alter(results)


def _without_a_pair(result: Result) -> dict[str, Any]:
    return {"gbs": [[0.0] * result["size"], *result["gbs"][1:]]}


def _with_a_slow_pair(result: Result) -> dict[str, Any]:
    first, *rest = result["gbs"]
    return {"gbs": [[gbs / 1e6 for gbs in first], *rest]}


@check(
    "node.transfers.pairs",
    kinds=(DeviceKind.NODE,),
    remedy=Remedy.RESET_GPU,
    cause=Cause.ENVIRONMENT,
    limits=Pairs,
    work=Work(
        call="nodeproof.nccl_tests.pairs:pairs",
        # GPU: a thirtieth of a second over the slowest PCIe, a millisecond over NVLink.
        args={"bytes_cpu": 64 * 1024, "bytes_gpu": 256 * 1024**2},
        load=Load(quick=1, gate=3, deep=30, soak=300),
        deadline_s=180,
        group=True,
    ),
    plant=(
        Plant(args={"plant": "flip"}, breaks=("wrong bytes",)),
        Plant(alter=_each(lambda result: {"size": result["size"] - 1}), breaks=("ranks",)),
        Plant(alter=_each(lambda _: {"received": {}}), breaks=("checked",)),
        Plant(alter=_of_several(_each(_without_a_pair)), breaks=("ordered pairs",)),
        # Below any floor too, where a spec gives one.
        Plant(alter=_of_several(_each(_with_a_slow_pair)), breaks=("shortfall of the slowest",)),
    ),
)
def test_pairs(device: Device, results: Results, measure: Measure, limits: Pairs) -> None:
    """One bad link between two GPUs spoils or slows the whole job, and a collective can't name it.

    Every device sends to every other, first two by two in rounds that share no device, then all to
    all at once, in odd sizes and large ones. Every byte is a hash of its place, of the pair, the
    direction and the round. Wrong bytes in pairs of one device of four or more, with two others
    or more: that device or its links, and it is named. In one pair only: the link or switch port
    between the two; in pairs that share no device: a common cause, as the IOMMU with peer-to-peer
    copies over PCI Express. Neither names a GPU; each condemns the node. Look at NVLink error
    counters, reset the GPUs and test again; then reseat or replace.

    A pair is short against the median of all pairs, and against a floor where a spec gives one.
    Usual causes: NVLink down on one side, peer access off (ACS, the container), a PCIe link that
    trained narrow, variables that change the way (NCCL_P2P_DISABLE and the like: inherited, and
    named here). If every pair of a device is short, that device is named, otherwise the pair. The
    hardware is blamed only where all that one device of four or more sends or receives is below the
    floor of a spec, no other pair is, and no such variable is set.
    On nodes whose pairs differ by design (two NVLink islands, cards with bridges in twos) the
    median says little: raise `below_median` in the spec and give a floor.

    It cannot see whether NVLink or PCIe was taken, only how fast it was, nor what a link lost and
    repeated. A node with one device has no pairs: then a copy of the device to itself is verified,
    and that it took part. No wrong byte in N checked: fewer than 3/N are wrong at 95 % confidence.
    """
    if not results:
        raise CannotMeasure(f"no device of {device} took part in the exchange: see its findings")
    size = min(result["size"] for _, result in results)
    measure("ranks", size, at_least=len(results), detail="ranks that took part together")
    by_rank = {result["rank"]: one for one, result in results}
    found = [entry for _, result in results for entry in result["found"]]
    settings = {k: v for _, result in results for k, v in result.get("settings", {}).items()}
    blames, said = _blamed(found, by_rank)
    measure(
        "wrong bytes",
        sum(result["wrong"] for _, result in results),
        at_most=0,
        cause=blames,
        detail="; ".join([*(_message(entry, by_rank) for entry in found[:_SHOWN]), *said])
        or (_UNDESCRIBED if any(result["wrong"] for _, result in results) else ""),
    )
    measure(
        "checked",
        min(_checked(result, len(results)) for _, result in results),
        unit="bytes",
        at_least=1,
        detail="the least that any device received of any other",
    )
    if len(results) == 1:
        # A group of one and a node of one look alike here; how many there should be is another's.
        measure("ordered pairs", 0, detail="pairs 0 of 0; one device")
        measure("copy to itself", results[0][1]["loopback_gbs"], unit="GB/s")
        return
    matrix = results[0][1]["gbs"]
    if any(result["gbs"] != matrix for _, result in results):
        raise CannotMeasure(
            f"the devices of {device} report different bandwidths of the same pairs: their meeting "
            "is not to be trusted; run again"
        )
    rates = {
        (sender, receiver): gbs
        for sender, row in enumerate(matrix)
        for receiver, gbs in enumerate(row)
        if sender != receiver and gbs > 0
    }
    due = len(results) * (len(results) - 1)
    measure("ordered pairs", len(rates), at_least=due, detail=f"pairs {len(rates)} of {due}")
    if not rates:
        return
    middle, slowest = statistics.median(rates.values()), min(rates.values())
    cpu = any(each.kind is DeviceKind.CPU for each, _ in results)
    most = limits.cpu_below_median if cpu else limits.below_median
    held_up = max(result["telemetry"]["silence_s"] for _, result in results) > _PAUSE_S
    below = {pair for pair, gbs in rates.items() if gbs < limits.pair_gbs}
    sure = whole(below, len(results)) is not None and not settings and not held_up
    named = _short(rates, max(limits.pair_gbs, (1 - most) * middle), by_rank)
    named += f"; {text}" if (text := told(settings)) else ""
    measure("median of the pairs", middle, unit="GB/s")
    measure(
        "least into one device from all at once", min(results[0][1]["together_gbs"]), unit="GB/s"
    )
    measure(
        "slowest pair",
        slowest,
        unit="GB/s",
        at_least=limits.pair_gbs or None,
        cause=Cause.HARDWARE if sure else Cause.ENVIRONMENT,
        detail=named,
    )
    measure(
        "shortfall of the slowest",
        (middle - slowest) / middle,
        at_most=most,
        cause=Cause.ENVIRONMENT,  # boards whose pairs differ by design look the same
        detail=named,
    )


def _checked(result: Result, devices: int) -> int:
    """The least that a device compared of any other's, 0 if it heard nothing of one."""
    senders = set(range(devices)) - ({result["rank"]} if devices > 1 else set())
    received: Mapping[str, int] = result["received"]
    return min(received[key] if (key := str(s)) in received else 0 for s in senders)


def _blamed(
    found: list[Mapping[str, Any]], by_rank: Mapping[int, Device]
) -> tuple[Cause, list[str]]:
    """Whom wrong bytes blame, and what to say of it."""
    if len(by_rank) == 1:
        return Cause.HARDWARE, []  # nobody else had a part in it
    one = culprit([(entry["sender"], entry["receiver"]) for entry in found], len(by_rank))
    if one is not None:
        return Cause.HARDWARE, [f"all of it was sent or received by {by_rank[one]}"]
    return Cause.HARDWARE, [f"no device is named by that: {COMMON}"] if found else []


def _message(entry: Mapping[str, Any], by_rank: Mapping[int, Device]) -> str:
    return (
        f"{by_rank[entry['sender']]} to {by_rank[entry['receiver']]}, {entry['phase']}, round "
        f"{entry['round']}: {entry['bytes']} of {entry['size']} bytes, first at {entry['index']}: "
        f"{entry['got']} instead of {entry['expected']} (xor {entry['xor']})"
    )


def _short(
    rates: Mapping[tuple[int, int], float], floor: float, by_rank: Mapping[int, Device]
) -> str:
    """Name what is below `floor`: devices of which everything is, and pairs for the rest."""
    short = {pair for pair, gbs in rates.items() if gbs < floor}
    if not short:
        low, high = min(rates, key=lambda pair: rates[pair])
        return f"{by_rank[low]} to {by_rank[high]}"
    if len(short) == len(rates):
        return "every pair is short: the cause is common to all"
    said, explained = list[str](), set[tuple[int, int]]()
    for rank, one in by_rank.items():
        sent = {pair for pair in rates if pair[0] == rank}
        got = {pair for pair in rates if pair[1] == rank}
        if len(by_rank) < 3 or not (sent <= short or got <= short):
            continue  # of two devices neither is to blame alone
        what = [("sends", sent), ("receives", got)]
        said.append(f"all that {one} {' and '.join(w for w, pairs in what if pairs <= short)}")
        explained |= set().union(*(pairs for _, pairs in what if pairs <= short))
    rest = sorted(short - explained, key=lambda pair: rates[pair])
    said += [f"{by_rank[a]} to {by_rank[b]} at {rates[a, b]:.4g} GB/s" for a, b in rest[:_SHOWN]]
    if len(rest) > _SHOWN:
        said.append(f"{len(rest) - _SHOWN} more pairs")
    return "; ".join(said)
