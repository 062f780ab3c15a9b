"""What the runs were held against. A spec of their kind has to keep that, or it would ask for less."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodeproof import spec
from nodeproof.baseline.evidence import BaselineError, Evidence
from nodeproof.manifest import shipped
from nodeproof.spec import NO_SPEC, REHEARSAL, Spec, SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The limits behind the runs, which the new spec has to say again, and whence they come."""

    kept: Spec
    provenance: Mapping[str, Mapping[str, Any]]

    def asked(self, check: str, limit: str) -> tuple[Any, str]:
        """Return what a limit was before, and by whose word.

        What the shipped spec of rehearsals lets off counts for nothing: the new one may be given
        to a run on GPUs.
        """
        if limit in (given := self.kept.limits.get(check, {})):
            return given[limit], f"of the spec {self.kept.name}"
        return shipped().entries[check].limits[limit], "of the check itself"


def held(evidence: Evidence, given: Spec | None = None) -> Held:
    """Find the spec of the runs: `given`, or a shipped one. Raises `BaselineError` without it.

    What goes by its digest alone: a name can be given to any file.
    """
    told = evidence.first.plan.spec
    digest, name = str(told.get("digest")), str(told.get("name"))
    under = spec.load(REHEARSAL) if evidence.rehearsal else None
    for candidate in (given,) if given else (NO_SPEC, _shipped(name)):
        if candidate is not None:
            whole = candidate.over(under) if under else candidate
            if whole.digest == digest:
                return _kept(candidate)
    what = f"the spec {name!r} ({digest})" if name else f"no spec ({digest})"
    if given:
        raise BaselineError(f"the runs were held against {what}, not {given.origin}")
    raise BaselineError(
        f"the runs were held against {what}, which is not shipped: give it with --spec, so that what "
        "it asks for is kept"
    )


def _kept(kept: Spec) -> Held:
    known = shipped().entries
    for check, limits in kept.limits.items():
        for limit, value in limits.items():
            if check not in known or limit not in known[check].limits:
                raise BaselineError(f"{kept.origin}: there is no {limit!r} of {check!r} to keep")
            if not isinstance(value, bool | int | float | str):
                raise BaselineError(f"{kept.origin}: {check}: {limit} = {value!r} is no limit")
    return Held(kept=kept, provenance=tomllib.loads(kept.text).get("provenance", {}))


def _shipped(name: str) -> Spec | None:
    """Return the shipped spec of this name; never a file, since the name is what a run says."""
    if "/" in name or name.endswith(".toml"):
        return None
    try:
        return spec.load(name)
    except SpecError:
        return None
