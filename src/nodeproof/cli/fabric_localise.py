"""`nodeproof fabric localise FILE`: which node or link the results of pairs blame."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nodeproof.nccl_tests import record
from nodeproof.nccl_tests.localise import Localised, Pair, Place, judge
from nodeproof.reports.legible import legible

_KEYS = {"round": int, "a": str, "b": str, "wrong": int, "said": str}
_OPTIONAL = {"wrong", "said"}  # as in `Pair`


def main(args: argparse.Namespace) -> int:
    """Print every node that is not good, the bad links and a common cause.

    Returns 0 when all nodes are good, 10 when one is bad, 11 for anything else, and 2 for a file
    that can't be read or judged.
    """
    try:
        nodes, pairs = _read(args.file)
        told = judge(nodes, pairs, floor_gbs=args.floor_gbs, ratio=args.ratio)
    except OSError as error:
        print(f"nodeproof: {args.file}: {error.strerror or error}", file=sys.stderr)
        return 2
    except (ValueError, RecursionError) as error:
        print(legible(f"nodeproof: {args.file}: {error}"), file=sys.stderr)
        return 2
    print(json.dumps(_document(told), allow_nan=False) if args.json else _text(told))
    places = {each.place for each in told.nodes.values()}
    if Place.BAD in places:
        return 10
    return 0 if places == {Place.GOOD} and not told.common else 11


def _read(path: Path) -> tuple[list[str], list[Pair]]:
    """Return all nodes and pairs. Raises `OSError`, or `ValueError` for what holds no such."""
    data = path.read_bytes()
    document = json.loads(data)
    if isinstance(document, list):
        pairs = [_pair(row, number) for number, row in enumerate(document)]
        if not pairs:
            raise ValueError("it holds no pair")
        return list(dict.fromkeys(name for pair in pairs for name in (pair.a, pair.b))), pairs
    found = record.parse(data)
    # Members that never came stand in no pair, and are told as that.
    return [member.id for member in found.members], [
        Pair(round=row.round, a=row.a, b=row.b, gbs=row.gbs, wrong=row.wrong, said=row.said)
        for row in found.pairs
    ]


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


def _text(told: Localised) -> str:
    others = {name: each for name, each in told.nodes.items() if each.place is not Place.GOOD}
    lines = [f"{each.place:10} {name}: {each.why}" for name, each in others.items()]
    lines += _each("link", [f"{a} with {b}: {why}" for a, b, why in told.links])
    lines += _each("common", [told.common] if told.common else [])
    good = len(told.nodes) - len(others)
    lines.append(
        f"{good} of {len(told.nodes)} nodes are good, held against {told.reference_gbs:.4g} GB/s"
    )
    return "\n".join(legible(line).replace("\n", "\\n") for line in lines)


def _each(word: str, lines: Sequence[str]) -> list[str]:
    return [f"{word:10} {line}" for line in lines]
