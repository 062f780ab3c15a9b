"""Figures of collectives that somebody measured, and the line rates of the nodes they hold for.

`catalog/baselines.toml` is the shipped catalogue. What a site measures of its own stands in its spec,
as limits of `fabric.group.bandwidth`. Pure: no torch, no clock.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from nodeproof.nccl_tests.bandwidth import Collective
from nodeproof.physics import Product, by_name

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A kind of node and its line rates."""

    name: str
    gpus: int
    nics: int | None  # network devices; `None`: not known
    nics_gbs: float | None  # of all of them together, one direction
    product: Product | None
    site: str  # why no floor is derived from the line rates; "": one may be
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured figure."""

    system: str
    collective: Collective
    nodes: int
    bytes: int | None  # `None`: not published
    gbs: float  # bus bandwidth
    nccl: str  # "": not published
    n: int  # independent measurements, of which this is the least
    unfit: str  # why it is no floor for anybody; "": it is one
    source: str
    date: str  # "": not published


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """What is known of every kind of node."""

    systems: Mapping[str, System]
    rows: tuple[Row, ...]


@lru_cache(maxsize=1)
def shipped() -> Catalogue:
    """Read the catalogue that comes with the package."""
    return read(resources.files("nodeproof").joinpath("catalog/baselines.toml").read_text("utf-8"))


def read(text: str) -> Catalogue:
    """Read a catalogue from TOML. Raises `ValueError`, which says where, for what it lacks."""
    try:
        tables = tomllib.loads(text)
        if strange := sorted(tables.keys() - {"system", "published"}):
            raise ValueError(f"{strange} is unknown: there are system and published")
        systems = {name: _system(name, table) for name, table in tables.get("system", {}).items()}
        rows = tuple(row for table in tables.get("published", ()) for row in _rows(table))
        for row in rows:
            if row.system not in systems:
                raise ValueError(f"{row.system} is no system of {sorted(systems)}")
    except KeyError as error:
        raise ValueError(f"baselines: an entry without {error}") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"baselines: {error}") from None
    return Catalogue(systems=systems, rows=rows)


def _system(name: str, table: Mapping[str, Any]) -> System:
    product = table.get("product")
    if product is not None and product not in by_name():
        raise ValueError(f"system {name}: {product!r} is no product of the catalogue")
    if not table.get("source") or not table.get("date"):
        raise ValueError(f"system {name}: no source or no date")
    rate = table.get("nics_gbs")
    if table["gpus"] < 1 or (rate is not None and not rate > 0):
        raise ValueError(f"system {name}: no GPUs, or a line rate that is not above 0")
    return System(
        name=name,
        gpus=table["gpus"],
        nics=table.get("nics"),
        nics_gbs=None if rate is None else float(rate),
        product=by_name()[product] if product else None,
        site=table.get("site", ""),
        source=table["source"],
    )


def _rows(table: Mapping[str, Any]) -> Iterator[Row]:
    for given in table["rows"]:
        row = {**table, **given}
        size = row.get("mib")
        made = Row(
            system=row["system"],
            collective=Collective(row["collective"]),
            nodes=row["nodes"],
            bytes=None if size is None else size * _MIB,
            gbs=float(row["gbs"]),
            nccl=row.get("nccl", ""),
            n=row.get("n", 1),
            unfit=row.get("unfit", ""),
            source=row.get("source", ""),
            date=str(row.get("date", "")),
        )
        where = f"{made.system}, {made.collective.value} over {made.nodes} nodes"
        if not made.source or min(made.nodes, made.n, made.bytes or 1) < 1 or not made.gbs > 0:
            raise ValueError(f"{where}: no source, or a number that is not above 0")
        if made.bytes is None and not made.unfit:
            raise ValueError(
                f"{where}: a figure without its size is no floor, and has to say unfit"
            )
        yield made
