"""Which limits of a spec of one's own ask for less than the shipped ones: each by name and number.

A verdict holds a spec as a digest, which tells nobody that an accept was had by asking for little.
So it is said where the verdict is. Only limits of the fabric are known here, by which way each of
them is stricter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nodeproof import spec
from nodeproof.manifest import shipped
from nodeproof.spec import NO_SPEC, SpecError

_CATALOGUE = "fabric.group.bandwidth"  # whose floors come from a catalogue where no spec says them
_CEILINGS = frozenset({"spread", "late_ms"})  # all other limits of the fabric are floors
_FABRIC = "fabric."


def lines(name_or_path: str, *, rehearsal: bool) -> list[str]:
    """Return a sentence for each such limit; none for a shipped spec, or none at all."""
    if not name_or_path:
        return []
    try:
        own = spec.load(name_or_path)
        base = spec.load(spec.REHEARSAL) if rehearsal else NO_SPEC
    except SpecError:
        return []  # then nothing was judged by it, and the verdict says why
    if own.origin != name_or_path:  # it comes with the package
        return []
    return [
        f"note: laxer than shipped: {check} {said}, by spec {own.origin}"
        for check, limits in own.limits.items()
        if check.startswith(_FABRIC)
        for said in _laxer(check, limits, base.limits.get(check, {}))
    ]


def _laxer(check: str, own: Mapping[str, Any], base: Mapping[str, Any]) -> Iterator[str]:
    entry = shipped().entries.get(check)
    declared = {**(entry.limits if entry else {}), **base}
    for name, value in own.items():
        usual = declared.get(name)
        if not isinstance(value, int | float):
            continue
        if check == _CATALOGUE and usual is None:
            yield f"{name} = {value:g}, in place of the floor of the catalogue"
        elif not isinstance(usual, int | float):
            continue
        elif value > usual if name in _CEILINGS else value < usual:
            yield f"{name} = {value:g}, shipped {usual:g}"
