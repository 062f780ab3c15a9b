"""`nodeproof parse KIND FILE`: what the checks make of a text that somebody sent."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nodeproof.parsers.reading import CONTEXT, KINDS, Grade, reader

_STATUS = {Grade.PASS: 0, Grade.WARN: 0, Grade.FAIL: 10, Grade.ERROR: 11}


def main(args: argparse.Namespace) -> int:
    """Print one JSON object: `kind`, `outcome`, `why`, and the fields of that kind."""
    try:
        read = reader(args.kind)
    except KeyError:
        return _refuse(f"there is no kind {args.kind!r}; {_nearest(args.kind, KINDS)}")
    context = _context(args.context)
    if context is None:
        return _refuse(f"--context is no JSON object: {args.context[:80]!r}")
    if wrong := _misfit(context):
        return _refuse(wrong)
    try:
        data = sys.stdin.buffer.read() if str(args.file) == "-" else Path(args.file).read_bytes()
    except OSError as error:
        return _refuse(f"{args.file}: {error.strerror or error}")
    reading = read(data, context)
    told = {"kind": args.kind, "outcome": reading.grade, "why": reading.why, **reading.fields}
    print(json.dumps(told, indent=2, ensure_ascii=False, allow_nan=False))
    return _STATUS[reading.grade]


def _context(text: str) -> dict[str, Any] | None:
    try:
        context = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return context if isinstance(context, dict) else None


def _misfit(context: dict[str, Any]) -> str:
    """What no reader would take notice of, so that somebody would believe it was judged by."""
    for key, value in context.items():
        known = CONTEXT.get(key)
        if known is None:
            return f"--context has {key[:80]!r}, which nothing reads; {_nearest(key, CONTEXT)}"
        if not known.takes(value):
            return f"--context says {json.dumps(value)[:80]} for {key}, which has to be {known}"
    return ""


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word[:80], known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known)}"


def _refuse(why: str) -> int:
    print(f"nodeproof: {why}", file=sys.stderr)
    return 2
