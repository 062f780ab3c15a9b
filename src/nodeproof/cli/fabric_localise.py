"""`nodeproof fabric localise FILE`: which node or link the results of pairs blame."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nodeproof.nccl_tests import record
from nodeproof.nccl_tests.localise import RATIO, Localised, Pair, Place, judge, renumbered
from nodeproof.reports.legible import legible

_KEYS = {"round": int, "a": str, "b": str, "wrong": int, "said": str}
_OPTIONAL = {"wrong", "said"}  # as in `Pair`


def main(args: argparse.Namespace) -> int:
    """Print every node that is not good, the bad links and a common cause.

    Returns 0 when all nodes are good, 10 when one is bad by what was measured of it, 11 for
    anything else, such as one with which nothing finishes, and 2 for a file that can't be read or
    judged.
    """
    try:
        asked = _read(args.file)
        ratio = asked.ratio if args.ratio is None else args.ratio
        floor_gbs = asked.floor_gbs if args.floor_gbs is None else args.floor_gbs
        told = judge(asked.nodes, asked.pairs, floor_gbs=floor_gbs, ratio=ratio)
    except OSError as error:
        print(f"nodeproof: {args.file}: {error.strerror or error}", file=sys.stderr)
        return 2
    except (ValueError, RecursionError) as error:
        print(legible(f"nodeproof: {args.file}: {error}"), file=sys.stderr)
        return 2
    if args.json:
        document = {**_document(told), "ratio": ratio, "rehearsal": asked.rehearsal}
        print(json.dumps(document, allow_nan=False))
    else:
        print(_text(told, ratio=ratio))
        if asked.rehearsal:
            print("REHEARSAL: it condemns nothing")
    places = {each.place for each in told.nodes.values()}
    measured = [pair for pair in asked.pairs if pair.gbs is not None or pair.wrong]
    condemned = judge(asked.nodes, measured, floor_gbs=floor_gbs, ratio=ratio)
    if any(
        place.place is condemned.nodes[name].place is Place.BAD
        for name, place in told.nodes.items()
    ):
        return 10
    return 0 if places == {Place.GOOD} and not told.common else 11


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What a file holds."""

    nodes: list[str]
    pairs: list[Pair]
    ratio: float = RATIO
    floor_gbs: float = 0.0
    rehearsal: bool = False


def _read(path: Path) -> _Asked:
    """Return all nodes and pairs. Raises `OSError`, or `ValueError` for what holds no such."""
    data = path.read_bytes()
    document = json.loads(data)
    if isinstance(document, list):
        pairs = [_pair(row, number) for number, row in enumerate(document)]
        if not pairs:
            raise ValueError("it holds no pair")
        named = dict.fromkeys(name for pair in pairs for name in (pair.a, pair.b))
        return _Asked(nodes=list(named), pairs=pairs)
    found = record.parse(data)
    stayed = {member.id for member in found.members if member.stayed}
    pairs = [
        Pair(round=row.round, a=row.a, b=row.b, gbs=row.gbs, wrong=row.wrong, said=row.said)
        for row in found.pairs
        if {row.a, row.b} <= stayed
    ]
    # As the run is judged: who never came, or was lost, stands in no pair, and is told as that.
    return _Asked(
        nodes=[member.id for member in found.members],
        pairs=renumbered(pairs),
        ratio=found.group.ratio,
        floor_gbs=found.group.floor_gbs,
        rehearsal=found.group.device == "cpu",
    )


def _pair(row: Any, number: int) -> Pair:
    if not isinstance(row, dict) or (strange := row.keys() - _KEYS.keys() - {"gbs"}):
        what = "no object" if not isinstance(row, dict) else f"{min(strange)!r} in it"
        raise ValueError(f"pair {number}: {what}")
    for name, kind in _KEYS.items():
        if (name in row or name not in _OPTIONAL) and type(row.get(name)) is not kind:
            raise ValueError(f"pair {number}: {name} is {row.get(name)!r}, not {kind.__name__}")
    if "gbs" not in row or type(row["gbs"]) not in {int, float, type(None)}:
        raise ValueError(f"pair {number}: gbs is {row.get('gbs')!r}, neither a number nor null")
    return Pair(**row)


def _document(told: Localised) -> dict[str, Any]:
    return {
        "nodes": {name: asdict(each) for name, each in told.nodes.items()},
        "links": [{"a": a, "b": b, "why": why} for a, b, why in told.links],
        "common": told.common,
        "reference_gbs": told.reference_gbs,
    }


def _text(told: Localised, *, ratio: float) -> str:
    others = {name: each for name, each in told.nodes.items() if each.place is not Place.GOOD}
    lines = [f"{each.place:10} {name}: {each.why}" for name, each in others.items()]
    lines += _each("link", [f"{a} with {b}: {why}" for a, b, why in told.links])
    lines += _each("common", [told.common] if told.common else [])
    good = len(told.nodes) - len(others)
    lines.append(
        f"{good} of {len(told.nodes)} nodes are good; a pair has to reach {ratio:g} of "
        f"{told.reference_gbs:.4g} GB/s"
    )
    return "\n".join(legible(line).replace("\n", "\\n") for line in lines)


def _each(word: str, lines: Sequence[str]) -> list[str]:
    return [f"{word:10} {line}" for line in lines]
