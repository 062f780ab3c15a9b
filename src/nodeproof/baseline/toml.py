"""Write a spec as TOML: the same text for the same runs, in whatever order they were given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from itertools import groupby
from typing import Any

from nodeproof import physics
from nodeproof.baseline.evidence import Evidence
from nodeproof.baseline.held import Held
from nodeproof.baseline.learnt import Number

_KEPT = ("machines", "products")


def render(
    evidence: Evidence, held: Held, numbers: Sequence[Number], notes: Sequence[str], *, name: str
) -> str:
    """Return the spec as text that `nodeproof.spec.load` reads."""
    return "\n".join(_lines(evidence, held, numbers, notes, name)) + "\n"


def _lines(
    evidence: Evidence, held: Held, numbers: Sequence[Number], notes: Sequence[str], name: str
) -> Iterator[str]:
    group = evidence.first.group
    yield f"# Made by `nodeproof baseline` of known-good {'groups' if group else 'nodes'}:"
    yield from (f"# run {text(run.plan.run_id)} file {run.digest}" for run in evidence.runs)
    if group:
        yield "# Figures of groups hold for groups of this many nodes, and for no other number."
    yield from (f"# {text(note)}" for note in notes)
    yield f"name = {text(name)}"
    yield f"description = {text(evidence.kind)}"
    runs, nodes = len(evidence.runs), evidence.nodes
    kept = f"; over {held.kept.name} ({held.kept.digest})" if held.kept.limits else ""
    yield f"source = {text(f'known-good runs: {runs}, nodes: {nodes}; {evidence.digest}{kept}')}"
    yield f"date = {evidence.ended.isoformat()}"
    yield f"n = {nodes}"
    known = [each for each in evidence.products if each in physics.by_name()]
    for word, given in zip(_KEPT, (held.kept.machines, known or held.kept.products), strict=True):
        if given:
            yield f"{word} = [{', '.join(text(each) for each in given)}]"
    for check, own in groupby(numbers, key=lambda number: number.check):
        yield f"\n[{text(check)}]"
        yield from (f"{number.limit} = {_value(number.value)}" for number in own)
    sourced = [number for number in numbers if number.source]
    for check, own in groupby(sourced, key=lambda number: number.check):
        yield f"\n[provenance.{text(check)}]"
        for number in own:
            said = ", ".join(f"{word} = {_value(value)}" for word, value in number.source.items())
            yield f"{number.limit} = {{ {said} }}"


def _value(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case date():
            return value.isoformat()
        case str():
            return text(value)
    return repr(value)


def text(value: str) -> str:
    """Return a TOML string, in one line and all of it to be seen, whatever a file or node said."""
    return f'"{"".join(_character(c) for c in value)}"'


def _character(c: str) -> str:
    code = ord(c)
    if 0xD800 <= code < 0xE000:  # halves of surrogate pairs are nothing that TOML can hold
        return "\\uFFFD"
    if c in '"\\':
        return f"\\{c}"
    if c.isascii() and c.isprintable():  # in whatever encoding it is printed
        return c
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"
