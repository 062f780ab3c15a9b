"""The catalogue: what a code or a message means on a new, idle node. Data, with source and date.

The shipped files are `catalog/{xid,sxid,nvlink5,kernel}.toml`. A site overrides single entries by
one text that has their tables by name: `[xid]`, `[sxid]`, `[kind]`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from nodeproof.parsers.events import Remedy, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """How grave, what to do, and whether software alone may have done it."""

    severity: Severity
    remedy: Remedy
    software: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """Grades by code and by kind of message."""

    xid: Mapping[int, Grade]
    sxid: Mapping[int, Grade]
    kind: Mapping[str, Grade]
    unknown_xid: Grade
    unknown_sxid: Grade
    nvlink5: Mapping[tuple[int, str, int], Severity]  # Xid, unit, error status

    def of_xid(self, code: int) -> Grade:
        """Grade of an Xid; of one that nobody knows, what fails closed."""
        return self.xid.get(code, self.unknown_xid)

    def of_sxid(self, code: int) -> Grade:
        """Grade of an SXid whose line does not say it."""
        return self.sxid.get(code, self.unknown_sxid)


def of_site(text: str | None) -> Catalog:
    """Return the shipped catalogue with a site's entries in place of its own.

    Raises `ValueError`, which says where, for text that is no TOML or names what does not exist.
    """
    return _overridden(shipped(), text) if text else shipped()


@cache
def shipped() -> Catalog:
    """Return the catalogue that came with this version."""
    xid, sxid, nvlink5, kernel = (_file(n) for n in ("xid", "sxid", "nvlink5", "kernel"))
    return Catalog(
        xid={int(code): _grade(f"xid {code}", entry) for code, entry in xid["code"].items()},
        sxid={int(code): _grade(f"sxid {code}", entry) for code, entry in sxid["code"].items()},
        kind={name: _grade(name, entry) for name, entry in kernel["kind"].items()},
        unknown_xid=_grade("unknown xid", xid["unknown"]),
        unknown_sxid=_grade("unknown sxid", sxid["unknown"]),
        nvlink5={
            (rule["xid"], unit, status): Severity(rule["severity"])
            for rule in nvlink5["rules"]
            for unit in rule["unit"].split("/")
            for status in rule["status"]
        },
    )


def _overridden(base: Catalog, text: str) -> Catalog:
    try:
        site = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"the site's catalogue is no TOML: {error}") from None
    known = {"xid", "sxid", "kind", "source", "date"}
    if strange := sorted(site.keys() - known):
        raise ValueError(f"the site's catalogue has {strange}; known are {sorted(known)}")
    tables = {name: site.get(name, {}) for name in ("xid", "sxid", "kind")}
    for name, table in tables.items():
        if not isinstance(table, dict):
            problem = f"the site's catalogue has {name} = {table!r}, which is no table"
            raise ValueError(problem)  # noqa: TRY004  the text is wrong, not an argument's type
    if strange := sorted(tables["kind"].keys() - base.kind.keys()):
        raise ValueError(f"the site's catalogue grades {strange}, which no reader reports")
    return replace(
        base,
        xid={**base.xid, **_codes("xid", tables["xid"])},
        sxid={**base.sxid, **_codes("sxid", tables["sxid"])},
        kind={**base.kind, **{name: _grade(name, e) for name, e in tables["kind"].items()}},
    )


def _codes(name: str, table: Mapping[str, Any]) -> dict[int, Grade]:
    if wrong := sorted(code for code in table if not (code.isascii() and code.isdigit())):
        raise ValueError(f"the site's catalogue has {name} codes {wrong}, which are no numbers")
    return {int(code): _grade(f"{name} {code}", entry) for code, entry in table.items()}


def _grade(name: str, entry: Any) -> Grade:
    try:
        software = entry.get("software", False)
        if software not in {True, False}:
            raise ValueError(software)
        return Grade(
            severity=Severity(entry["severity"]),
            remedy=Remedy(entry["remedy"]),
            software=software,
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"catalogue, {name}: {entry!r} needs a severity of {[str(s) for s in Severity]} and a "
            f"remedy of {[str(r) for r in Remedy]}"
        ) from error


def _file(name: str) -> dict[str, Any]:
    text = resources.files("nodeproof").joinpath("catalog", f"{name}.toml").read_text("utf-8")
    return tomllib.loads(text)
