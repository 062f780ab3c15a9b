"""Where the numbers of a spec come from: each with its unit, source, date and number of nodes.

[provenance."node.collective.bandwidth"]
all_reduce_gbs = { unit = "GB/s", source = "...", date = 2026-11-30, n = 1, derived = true }

`n` is how many known-good nodes were measured; 0 says that the maker states the number and nobody
measured. `derived` marks a floor that was worked out of the source's number, which `source` says.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

_NEEDED: Mapping[str, type] = {"unit": str, "source": str, "date": dt.date, "n": int}
_KNOWN = frozenset({*_NEEDED, "derived"})

Limits = Mapping[str, Mapping[str, Any]]


def gaps(limits: Limits, provenance: Mapping[str, Any]) -> list[str]:
    """Numbers in `limits` that lack a unit, a source, a date or an n, one sentence each."""
    found = []
    for check, given in limits.items():
        entries = provenance.get(check, {})
        for limit, value in given.items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if number and not (isinstance(entries, Mapping) and limit in entries):
                found.append(f"{check}: {limit} = {value} has no provenance")
    return found


def faults(provenance: Mapping[str, Any]) -> list[str]:
    """What is wrong with the provenance that is there, one sentence each."""
    found = []
    for check, entries in provenance.items():
        if not isinstance(entries, Mapping):
            found.append(f"provenance of {check} is no table of limits")
            continue
        for limit, entry in entries.items():
            found += [f"provenance of {check}: {limit}: {why}" for why in _faults(entry)]
    return found


def _faults(entry: Any) -> list[str]:
    if not isinstance(entry, Mapping):
        return ["it is no table"]
    wrong = [f"there is no {name!r} in it" for name in sorted(set(entry) - _KNOWN)]
    for name, kind in _NEEDED.items():
        value = entry.get(name)
        if value is None or value == "":
            wrong.append(f"{name} is missing")
        elif not isinstance(value, kind) or isinstance(value, bool):
            wrong.append(f"{name} = {value!r} is of the wrong kind")
    if isinstance(entry.get("n"), int) and entry["n"] < 0:
        wrong.append(f"n = {entry['n']} is below 0")
    if not isinstance(entry.get("derived", False), bool):
        wrong.append(f"derived = {entry['derived']!r} is neither true nor false")
    return wrong
