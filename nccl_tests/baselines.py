"""What a collective should give on nodes of a kind, and what its own peers give.

A figure holds for its own key: kind of node, network devices, GPUs, number of nodes, collective and
size. Two nodes tell nothing of four, where p5.48xlarge falls from 478 to 357 GB/s, and 128 MiB
nothing of 8 GiB. Where no figure is known, 0.70 of the line rate stands in, marked as derived; and
where that has been seen to reject sound nodes, nothing does: then a site has to measure.

A floor is loose, and peers that are all alike slow look sound to each other: both have to hold.
Bus bandwidths by the definitions of nccl-tests, GB/s (decimal). Pure: no torch, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from nodeproof.nccl_tests.bandwidth import Collective
from nodeproof.nccl_tests.published import Row, System, shipped
from nodeproof.physics import LEAST, Quantity

DERIVED = 0.70  # of the line rate
DERIVED_BYTES = 8 << 30  # below it latency decides, and no line rate tells
_ELEMENT = 8  # bytes of the largest type, to whole ones of which sizes are rounded up on each rank


class Origin(StrEnum):
    """Who says how fast it should be."""

    PUBLISHED = "published"
    DERIVED = "derived"
    UNKNOWN = "unknown"


_SHARE = {Origin.PUBLISHED: 0.85, Origin.DERIVED: DERIVED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """GB/s of bus bandwidth that the wires allow: to a ring, and the very most."""

    gbs: float
    most_gbs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What to expect, and by whose word. A figure is absent exactly where nobody knows one."""

    origin: Origin
    gbs: float | None  # the figure; of a derived one the line rate that it is derived from
    why: str  # a sentence: whose figure, or what to do where there is none
    line: Line | None = None  # `None`: not known
    source: str = ""
    date: str = ""
    n: int = 0

    @property
    def derived(self) -> bool:
        """Whether nobody measured it."""
        return self.origin is Origin.DERIVED


def find(
    *,
    instance_type: str,
    nics: int,
    gpus: int,
    nodes: int,
    collective: Collective,
    size_bytes: int,
    nccl: str = "",
) -> Baseline:
    """Return what `nodes` nodes with `gpus` GPUs and `nics` attached network devices should give.

    A figure that states its NCCL holds for the same major and minor version only, since upgrades
    shift it by a tenth to a third; sizes are equal but for the rounding up to whole elements of every
    rank. Where there is none, a floor is derived for an all-reduce of 8 GiB or more over two or more
    nodes, if all line rates are known and have not been seen to mislead. Else the origin is
    `UNKNOWN`, and `why` says what to do. What a site measured of its own stands in its spec, and is
    asked for instead of this.

    Raises `ValueError` for counts or sizes that are none.
    """
    if min(nodes, gpus, size_bytes) < 1 or nics < 0:
        raise ValueError(
            f"{size_bytes} bytes over {nodes} nodes of {gpus} GPUs and {nics} network devices: one "
            "or more of each, and none at least of the last"
        )
    what = f"{collective.value} of {size_bytes} bytes over {nodes} x {instance_type or 'unknown'}"
    system = shipped().systems.get(instance_type)
    if system and (missing := _incomplete(system, nics=nics, gpus=gpus, nodes=nodes)):
        return _unknown(what, [missing], None)
    line = limits(system, nodes, collective) if system else None
    useless = list[str]()
    for row in shipped().rows:
        if (row.system, row.collective, row.nodes) != (instance_type, collective, nodes):
            continue
        if row.bytes is None or not 0 <= size_bytes - row.bytes < nodes * gpus * _ELEMENT:
            continue
        if why := _useless(row, nccl):
            useless.append(why)
            continue
        return _measured(row, what, line)
    if system is None:
        return _unknown(what, useless, None)
    if why := _not_derived(system, nodes, collective, size_bytes):
        return _unknown(what, [*useless, why], line)
    inside, outside = _inside(system), system.nics_gbs
    assert inside is not None
    assert outside is not None
    return Baseline(
        origin=Origin.DERIVED,
        gbs=min(inside, outside),
        why=f"{what}: nobody's figure is known, so {DERIVED:g} of the line rate is asked, the "
        f"lesser of {inside:g} GB/s inside a node and {outside:g} GB/s out of it",
        line=line,
        source=system.source,
    )


def floor(baseline: Baseline) -> float:
    """GB/s that a sound group reaches: 0.85 of a published figure, or what was derived.

    Raises `ValueError` where nothing is known, and for a floor that physics refuses.
    """
    if baseline.gbs is None:
        raise ValueError(baseline.why)
    value = _SHARE[baseline.origin] * baseline.gbs
    if baseline.line and (why := refusal(value, baseline.line)):
        raise ValueError(f"{why}. It came of {baseline.why}")
    return value


def refusal(threshold_gbs: float, line: Line) -> str:
    """Why no threshold can be that: above what wires allow, or next to nothing of it; else `""`."""
    if LEAST * line.gbs <= threshold_gbs <= line.most_gbs:
        return ""
    word = "more than" if threshold_gbs > line.most_gbs else "next to nothing of"
    return (
        f"a threshold of {threshold_gbs:g} GB/s is {word} what the wires allow ({line.most_gbs:g} at "
        f"most, {line.gbs:g} to a ring, and a floor is at least {LEAST * line.gbs:g}): look at unit "
        "and digits"
    )


def limits(system: System, nodes: int, collective: Collective) -> Line | None:
    """Bus bandwidth that the wires of a system allow, `None` where nobody publishes what it takes.

    Within a node its NVLink, of which a switch that adds up needs half for an all-reduce. Across
    nodes all network devices of one (sjeaugey in NVIDIA/nccl-tests issue 119); an all-reduce over
    exactly two can have twice that by trees (issue 22).
    """
    if nodes == 1:
        wire = _inside(system)
        if wire is None or system.product is None:
            return None
        summed = system.product.peak(Quantity.REDUCTION)
        most = summed if collective is Collective.ALL_REDUCE and summed else wire
        return Line(gbs=wire, most_gbs=most)
    outside = system.nics_gbs
    if outside is None:
        return None
    match collective:
        case Collective.ALL_REDUCE:
            return Line(gbs=outside, most_gbs=outside * (2 if nodes == 2 else 1))
        case Collective.ALL_TO_ALL:
            # Of what a rank sends only the part for other nodes leaves, by its share of the devices.
            ranks = nodes * system.gpus
            gbs = outside / system.gpus * (ranks - 1) / (ranks - system.gpus)
            return Line(gbs=gbs, most_gbs=gbs)
        case Collective.SENDRECV:
            return None  # how many devices one rank's message takes is the network plugin's choice
        case Collective.ALL_GATHER | Collective.REDUCE_SCATTER | Collective.BROADCAST:
            return Line(gbs=outside, most_gbs=outside)


def _incomplete(system: System, *, nics: int, gpus: int, nodes: int) -> str:
    # What a node lacks is for other checks to say; here it would lower what is asked.
    if gpus == system.gpus and (nodes == 1 or system.nics in {None, nics}):
        return ""
    wanted = "" if system.nics is None else f" and {system.nics} network devices"
    return (
        f"what is known holds for {system.gpus} GPUs{wanted} in each node and not for {gpus} and "
        f"{nics}"
    )


def _useless(row: Row, nccl: str) -> str:
    where = f"{row.gbs:g} GB/s by {row.source}"
    if row.unfit:
        return f"{where} is no floor: {row.unfit}"
    if row.nccl and row.nccl.split(".")[:2] != nccl.split(".")[:2]:
        return f"{where} is of NCCL {row.nccl} and not of {nccl or 'one that is not known'}"
    return ""


def _measured(row: Row, what: str, line: Line | None) -> Baseline:
    by = f"published by {row.source}" + (f", {row.date}" if row.date else "")
    return Baseline(
        origin=Origin.PUBLISHED,
        gbs=row.gbs,
        why=f"{what}: {row.gbs:g} GB/s, {by}; NCCL {row.nccl or 'not stated'}",
        line=line,
        source=row.source,
        date=row.date,
        n=row.n,
    )


def _unknown(what: str, useless: Sequence[str], line: Line | None) -> Baseline:
    known = f" ({'; '.join(useless)})" if useless else ""
    return Baseline(
        origin=Origin.UNKNOWN,
        gbs=None,
        why=f"{what}: no figure is known{known}. Measure 3 or more runs on 4 or more nodes known to be "
        "good, against a low figure in the spec of the site, and let `nodeproof baseline` raise it",
        line=line,
    )


def _not_derived(system: System, nodes: int, collective: Collective, size_bytes: int) -> str:
    if collective is not Collective.ALL_REDUCE or nodes < 2 or size_bytes < DERIVED_BYTES:
        return "line rates give a floor only to an all-reduce of 8 GiB or more over 2 or more nodes"
    if system.site:
        return f"line rates give no floor here: {system.site}"
    return "" if _inside(system) and system.nics_gbs else "not all line rates are known"


def _inside(system: System) -> float | None:
    return system.product.peak(Quantity.NVLINK) if system.product else None
