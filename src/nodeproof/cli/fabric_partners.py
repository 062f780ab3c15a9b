"""`nodeproof fabric partners FILE`: with whom a new node is to prove its network."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping
from typing import Any

from nodeproof.nccl_tests.partners import Choice, Grade, Newcomer, Proved, choose

_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
}
_ASKED = frozenset({"node", "pending", "known", "devices", "seed"})


def main(args: argparse.Namespace) -> int:
    """Print the choice as JSON. Exit status: 0 the site accepts its grade, 11 it does not, 2 usage."""
    try:
        asked = json.loads(args.file.read_text())
        choice = _chosen(asked, least=Grade(args.least))
    except OSError as error:
        print(f"nodeproof: {args.file}: {error.strerror}", file=sys.stderr)
        return 2
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        print(f"nodeproof: {args.file}: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(json.dumps({**dataclasses.asdict(choice), "grade": int(choice.grade)}))
    return 0 if choice.accepted else 11


def _chosen(asked: Any, *, least: Grade) -> Choice:
    if not isinstance(asked, Mapping) or set(asked) - _ASKED or "node" not in asked:
        raise ValueError(f"wants an object with node, and {', '.join(sorted(_ASKED - {'node'}))}")
    return choose(
        _read(Newcomer, asked["node"]),
        pending=[_read(Newcomer, row) for row in asked.get("pending", [])],
        known=[_read(Proved, row) for row in asked.get("known", [])],
        devices=[str(device) for device in asked.get("devices", [])],
        seed=int(asked.get("seed", 0)),
        least=least,
    )


def _read(kind: type[Any], row: Any) -> Any:
    """Read one node: every field there, of its type, and no other."""
    fields = {field.name: field.type for field in dataclasses.fields(kind)}
    if not isinstance(row, Mapping) or set(row) != set(fields):
        raise ValueError(f"{row!r:.80} wants just {', '.join(fields)}")
    for name, value in row.items():
        if type(value) not in _TYPES[str(fields[name])]:
            raise ValueError(f"{name} = {value!r:.80} is no {fields[name]}")
    return kind(**row)
