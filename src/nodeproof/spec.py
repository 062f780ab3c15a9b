"""What a kind of node must show: limits by check id, from a TOML file.

name = "h100-sxm5"
source = "where the numbers come from"
date = 2026-11-29
n = 12                       # known-good nodes behind them

products = ["NVIDIA H100 80GB HBM3"]     # if given, floors are held against what these can do

["device.burnin.throughput"]
median_tflops = 600          # overrides the limit of that name; the check gives the unit

[provenance."device.burnin.throughput"]  # of each number; a shipped spec is not loaded without
median_tflops = { unit = "TFLOP/s", source = "...", date = 2026-11-29, n = 12 }

Shipped specs may be families of sizes: [instance."p5.48xlarge"] holds the limits of one, which is
loaded by that name.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import sys
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from nodeproof import physics, provenance
from nodeproof.manifest import digest_of

_HEAD = frozenset({"name", "source", "date", "n", "description", "products", "machines"})
_INSTANCE, _PROVENANCE = "instance", "provenance"  # tables that are no checks
_SIZE = re.compile(rf'^\[{_INSTANCE}\."([^"]+)"\]', re.MULTILINE)
REHEARSAL = "cpu-rehearsal"
_NEAR = 3  # names that are offered where there is none of the name that was given


class SpecError(ValueError):
    """A spec that can't be used. Says which file, which key, and what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A spec as read. `limits` maps a check id to the limits it overrides."""

    name: str
    digest: str
    source: str
    origin: str = ""  # the file, for what is said of it
    text: str = field(default="", repr=False)
    limits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    products: tuple[str, ...] = ()  # GPUs of this kind of node, by NVML's names
    machines: tuple[str, ...] = ()  # what the firmware calls it, where that says less than its type
    instances: tuple[str, ...] = ()  # sizes that the file has limits for

    def with_limit(self, check: str, limit: str, value: float) -> Spec:
        """Return the same spec with one limit set, as an option on the command line does."""
        more = {**self.limits, check: {**self.limits.get(check, {}), limit: value}}
        return dataclasses.replace(self, limits=more)

    def over(self, base: Spec) -> Spec:
        """Return this spec with the limits of `base` where it has none of its own."""
        if not self.digest or self is NO_SPEC:
            return base
        checks = {**base.limits, **self.limits}
        limits = {c: {**base.limits.get(c, {}), **self.limits.get(c, {})} for c in checks}
        return dataclasses.replace(
            self,
            name=f"{self.name} over {base.name}",
            digest=digest_of(f"{base.digest}\n{self.digest}".encode()),
            limits=limits,
        )

    def summary(self) -> dict[str, str]:
        """What the plan says of the spec."""
        return {"name": self.name, "digest": self.digest, "source": self.source}


NO_SPEC = Spec(name="", digest=digest_of(b""), source="")


def load(name_or_path: str) -> Spec:
    """Read a spec by the name of a shipped one, or of a size of a family, or by the path of a file.

    Raises `SpecError` for what can't be read or isn't TOML of this shape, for a floor that is no
    floor by the physics of its products, and for a shipped number without provenance. Check ids and
    limits are held against the checks later, by `limits_for` and `known`.
    """
    origin, data, shipped = _bytes(name_or_path)
    table = _table(origin, data)
    for word in ("products", "machines"):
        texts = table.get(word, [])
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            msg = f"{origin}: line {_line(data, word)}: {word} is not a list of texts"
            raise SpecError(msg)
    instances = _tables(origin, table.pop(_INSTANCE, {}), _INSTANCE, deep=3)
    sources = _tables(origin, table.pop(_PROVENANCE, {}), _PROVENANCE, deep=2)
    limits = _limits(origin, data, table)
    name = str(table.get("name", Path(origin).stem))
    spec = Spec(
        name=name,
        origin=origin,
        text=data.decode(),
        digest=digest_of(data),
        source=f"{origin}: {table.get('source', 'no source given')}",
        limits=limits,
        products=tuple(table.get("products", ())),
        machines=tuple(table.get("machines", ())),
        instances=tuple(instances),
    )
    if instances and not shipped:
        msg = f"{origin}: a file is one kind of node; give each instance type a file of its own"
        raise SpecError(msg)
    sizes = {size: _sized(spec, size, own) for size, own in instances.items()}
    for each in (spec, *sizes.values()):
        _sound(each, sources, shipped=shipped)
    return sizes.get(name_or_path, spec)


def shipped_names() -> list[str]:
    """Names of the specs that come with the package, without the sizes inside them."""
    names = (entry.name for entry in _folder().iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def _table(origin: str, data: bytes) -> dict[str, Any]:
    try:
        table = tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        msg = f"{origin}: not UTF-8 text: {error}"
        raise SpecError(msg) from None
    except (ValueError, RecursionError) as error:
        msg = f"{origin}: {error}"
        raise SpecError(msg) from None
    if not table:
        msg = f"{origin}: it is empty; a spec says at least its name and source"
        raise SpecError(msg)
    if not isinstance(table.get("name", ""), str):
        msg = f"{origin}: line {_line(data, 'name')}: name = {table['name']!r} is not text"
        raise SpecError(msg)
    return table


def _limits(origin: str, data: bytes, table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    limits: dict[str, dict[str, Any]] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            limits[key] = value
        elif "." in key:
            msg = f'{origin}: line {_line(data, key)}: {key!r} is a check, and its limits stand in a table: ["{key}"]'
            raise SpecError(msg)
        elif key not in _HEAD:
            msg = f"{origin}: line {_line(data, key)}: {key!r} is neither a check nor one of {', '.join(sorted(_HEAD))}"
            raise SpecError(msg)
    return limits


def _tables(origin: str, given: Any, word: str, *, deep: int) -> dict[str, Any]:
    """Return what stands under `instance` or `provenance`: tables in tables, so many levels deep."""
    level = [given]
    for _ in range(deep):
        if not all(isinstance(table, dict) for table in level):
            msg = f'{origin}: {word!r} holds tables: [{word}."NAME"]'
            raise SpecError(msg)
        level = [value for table in level for value in table.values()]
    return dict(given)


def _sized(spec: Spec, size: str, own: Mapping[str, Mapping[str, Any]]) -> Spec:
    """Return the spec of one size of a family."""
    checks = {**spec.limits, **own}
    return dataclasses.replace(
        spec,
        name=size,
        digest=digest_of(f"{spec.digest}\n{size}".encode()),
        limits={c: {**spec.limits.get(c, {}), **own.get(c, {})} for c in checks},
    )


def _sound(spec: Spec, sources: Mapping[str, Any], *, shipped: bool) -> None:
    """Raise `SpecError` for what no device can do, and for numbers that come from nowhere."""
    unknown = [name for name in spec.products if name not in physics.by_name()]
    if unknown:
        near = difflib.get_close_matches(unknown[0], physics.by_name(), n=2)
        msg = f"{spec.origin}: there is no product {unknown[0]!r}; near are {', '.join(near) or 'none'}"
        raise SpecError(msg)
    wrong = physics.slips(spec.limits, spec.products) + provenance.faults(sources)
    if shipped:
        wrong += provenance.gaps(spec.limits, sources)
    if wrong:
        msg = f"{spec.origin}: {wrong[0]}"
        raise SpecError(msg)


def known(spec: Spec, checks: Iterable[str]) -> None:
    """Raise `SpecError` for an override of a check that is not among `checks`."""
    ids = sorted(checks)
    for check in spec.limits:
        if check not in ids:
            near = difflib.get_close_matches(check, ids, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            if spread := _spread(check, spec.limits[check], ids):
                hint = f'; quote the name of a check: ["{spread}"]'
            msg = f"{_place(spec, check)}: there is no check {check!r}{hint}"
            raise SpecError(msg)


def _spread(check: str, table: Mapping[str, Any], ids: list[str]) -> str:
    """Return the check that TOML has taken apart at its dots, for want of quotes."""
    name: str = check
    value: Any = table
    while name not in ids and isinstance(value, dict) and value:
        step, value = next(iter(value.items()))
        name = f"{name}.{step}"
    return name if name in ids else ""


def limits_for(spec: Spec, check: str, limits: type[Any]) -> Any:
    """The limits of one check: its own defaults under what the spec overrides.

    Raises `SpecError` for an unknown limit, a value of the wrong type, or one that is not finite.
    """
    given = spec.limits.get(check, {})
    hints = typing.get_type_hints(limits)
    names = [f.name for f in dataclasses.fields(limits)]
    for name, value in given.items():
        if name not in names:
            near = difflib.get_close_matches(name, names, n=2) or names
            msg = f"{_place(spec, check, name)}: {check} has no limit {name!r}; it has {', '.join(near) or 'none'}"
            raise SpecError(msg)
        if not _fits(value, hints[name]):
            msg = f"{_place(spec, check, name)}: {check}: {name} = {value!r} is not {_words(hints[name])}"
            raise SpecError(msg)
    return limits(**given)


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, types.UnionType):
        return any(_fits(value, k) for k in kind.__args__ if k is not type(None))
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if kind is float:
        return isinstance(value, int | float) and abs(value) <= sys.float_info.max
    return isinstance(value, kind)


def _words(kind: Any) -> str:
    if isinstance(kind, types.UnionType):
        kind = next(k for k in kind.__args__ if k is not type(None))
    words = {float: "a finite number", int: "a whole number", str: "text", bool: "true or false"}
    return words.get(kind, str(kind))


def _bytes(name_or_path: str) -> tuple[str, bytes, bool]:
    """Return where a spec stands, its bytes, and whether it comes with the package."""
    if "/" not in name_or_path and not name_or_path.endswith(".toml"):
        names = {name: name for name in shipped_names()}
        if name_or_path not in names:
            names |= _families()
        if name := names.get(name_or_path):
            return f"{name}.toml", _folder().joinpath(f"{name}.toml").read_bytes(), True
        if not name_or_path or not Path(name_or_path).exists():
            near = difflib.get_close_matches(name_or_path, names, n=_NEAR)
            few = difflib.get_close_matches(name_or_path, names, n=_NEAR, cutoff=0.0)
            some = (
                f"did you mean {' or '.join(near)}?"
                if near
                else f"shipped are {', '.join(few)} and {len(names) - len(few)} more"
            )
            msg = (
                f"there is no spec {name_or_path!r}; {some}; `nodeproof list --specs` names all; a "
                "file is given by its path"
            )
            raise SpecError(msg)
    try:
        return name_or_path, Path(name_or_path).read_bytes(), False
    except OSError as error:
        msg = f"spec {name_or_path}: {error.strerror}"
        raise SpecError(msg) from None


def _families() -> dict[str, str]:
    """Shipped specs by the sizes that they have limits for."""
    texts = {n: _folder().joinpath(f"{n}.toml").read_text("utf-8") for n in shipped_names()}
    return {size: name for name, text in texts.items() for size in _SIZE.findall(text)}


def _folder() -> Traversable:
    return resources.files("nodeproof").joinpath("specs")


def _place(spec: Spec, check: str, limit: str = "") -> str:
    """Return where in its file a spec speaks of a check, or of one limit of it."""
    lines = spec.text.splitlines()
    for number, line in enumerate(lines, 1):
        if line.strip().lstrip("[").startswith((check, f'"{check}"', f"'{check}'")):
            for further, inner in enumerate(lines[number:], number + 1):
                if limit and inner.strip().startswith((limit, f'"{limit}"')):
                    return f"spec {spec.origin}: line {further}"
            return f"spec {spec.origin}: line {number}"
    return f"spec {spec.origin or spec.name or 'given by option'}"


def _line(data: bytes, key: str) -> int:
    for number, line in enumerate(data.decode().splitlines(), 1):
        if line.strip().lstrip("[").startswith((key, f'"{key}"', f"'{key}'")):
            return number
    return 0
