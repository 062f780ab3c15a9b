"""Whether what one rank answered can be believed: its parts have to say the same.

A rank's answer crosses a network and a file, and a group is judged by nothing else. So each number
is of the type that `inside.exchange` gives it, and what is said twice is said alike both times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nodeproof.nccl_tests import bandwidth
from nodeproof.nccl_tests.bandwidth import Collective

_BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
_EXACT = 1e-6  # relative: what is left of rounding where two work out the same
_FIGURES = ("seconds", "own_seconds", "algbw_gbs", "busbw_gbs")


class UnbelievableError(ValueError):
    """An answer whose parts contradict each other, or what was asked. Says which do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What all ranks of one exchange were asked to do."""

    device: str  # "cpu" or "cuda"
    ranks: int
    collectives: tuple[Collective, ...]
    least_bytes: int  # that the largest size must have
    planted: bool


def believe(answer: Mapping[str, Any], asked: Asked) -> None:
    """Return if this is an answer of one rank. Raises `UnbelievableError` otherwise."""
    try:
        _verified(answer, asked)
        _timed(answer, asked)
        _met(answer, asked)
    except KeyError as error:
        raise UnbelievableError(f"it does not say {error}") from None


def same_bandwidth(collective: Collective, answers: Mapping[str, Mapping[str, Any]]) -> None:
    """Return if each rank's bandwidth is what the times of all ranks, by name, come to.

    For answers that are believed each on its own. Raises `UnbelievableError` otherwise.
    """
    name = collective.value
    try:
        seconds = bandwidth.slowest([answer["own_times"][name] for answer in answers.values()])
    except ValueError as error:
        raise UnbelievableError(f"{name}: {error}") from None
    for rank, answer in answers.items():
        size, ranks = answer["largest_bytes"][name], answer["size"]
        for figure, own in (
            ("algbw_gbs", bandwidth.algbw_gbs(size, seconds)),
            ("busbw_gbs", bandwidth.busbw_gbs(collective, size, seconds, ranks)),
        ):
            told = answer[figure][name]
            if not math.isclose(told, own, rel_tol=_EXACT):
                raise UnbelievableError(
                    f"{rank} says {told:.6g} GB/s ({figure}) of {name}, and the times of all "
                    f"{len(answers)} ranks come to {own:.6g}"
                )


def _verified(answer: Mapping[str, Any], asked: Asked) -> None:
    """What arrived: the sum, the rows it is a sum of, and the elements that are shown."""
    rows = _rows(answer)
    wrong, found, planted = (
        _count(answer, "wrong"),
        _list(answer, "found"),
        _list(answer, "planted"),
    )
    by_rows = sum(row["wrong"] for row in rows)
    if wrong != by_rows:
        raise UnbelievableError(f"wrong is {wrong}, and its rows have {by_rows}")
    if bool(found) != (wrong > 0) or len(found) > wrong:
        raise UnbelievableError(f"wrong is {wrong}, and it shows {len(found)} of them")
    if asked.planted and not planted:
        raise UnbelievableError("nothing was planted in a planted run")
    if planted and not asked.planted:
        raise UnbelievableError(f"{len(planted)} faults were planted in no planted run")
    checked = _by_collective(answer, "checked", asked, _count)
    largest = _by_collective(answer, "largest_bytes", asked, _count)
    for name, elements in checked.items():
        own = [row for row in rows if row["collective"] == name]
        by_rows = sum(row["elements"] for row in own)
        if elements != by_rows:
            raise UnbelievableError(f"checked of {name} is {elements}, and its rows have {by_rows}")
        if largest[name] < asked.least_bytes:
            raise UnbelievableError(
                f"largest_bytes of {name} is {largest[name]}, and {asked.least_bytes} were asked for"
            )
        if not any(r["timed"] and r["elements"] and r["bytes"] == largest[name] for r in own):
            raise UnbelievableError(f"{name} has no timed row of its {largest[name]} bytes")
    if strange := {row["collective"] for row in rows} - set(checked):
        raise UnbelievableError(f"it has rows of {min(strange)}, which was not asked for")


def _timed(answer: Mapping[str, Any], asked: Asked) -> None:
    repeats = _by_collective(answer, "repeats", asked, _count)
    times = _by_collective(answer, "own_times", asked, _list)
    for name, own in times.items():
        if len(own) != repeats[name] or not own:
            raise UnbelievableError(
                f"repeats of {name} is {repeats[name]}, and it timed {len(own)}"
            )
        for seconds in own:
            if not _finite(seconds) or not seconds > 0:
                raise UnbelievableError(
                    f"own_times of {name} has {seconds!r:.40}, which is no time"
                )
    for figure in _FIGURES:
        _by_collective(answer, figure, asked, _figure)


def _met(answer: Mapping[str, Any], asked: Asked) -> None:
    size = _count(answer, "size")
    if size != asked.ranks:
        raise UnbelievableError(f"it met a group of {size}, and {asked.ranks} ranks were asked")
    transport = _table(answer, "transport")
    for name in ("backend", "nccl", "torch"):
        if not isinstance(transport[name], str):
            raise UnbelievableError(f"{name} is {transport[name]!r:.40}, no text")
    backend, wanted = transport["backend"], _BACKENDS[asked.device]
    if backend != wanted:
        raise UnbelievableError(
            f"its backend is {backend!r:.40}, and that of {asked.device} {wanted}"
        )


def _rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows, met = _list(answer, "rows"), set[tuple[str, str, int]]()
    for row in rows:
        if not isinstance(row, dict):
            raise UnbelievableError(f"a row is {row!r:.40}, no object")
        if not isinstance(row["collective"], str) or not isinstance(row["dtype"], str):
            raise UnbelievableError(f"a row of {row['collective']!r:.40} of {row['dtype']!r:.40}")
        key = (row["collective"], row["dtype"], _count(row, "bytes"))
        what = f"{key[0]} of {key[2]} bytes of {key[1]}"
        if key in met:
            raise UnbelievableError(f"it has two rows of {what}")
        met.add(key)
        if _count(row, "wrong") > _count(row, "elements"):
            raise UnbelievableError(f"more of {what} are wrong than there are")
        if not isinstance(row["timed"], bool):
            raise UnbelievableError(f"timed is {row['timed']!r:.40}, neither true nor false")
    return rows


def _by_collective(
    answer: Mapping[str, Any],
    name: str,
    asked: Asked,
    read: Callable[[Mapping[str, Any], str], Any],
) -> dict[str, Any]:
    """Return what it says of each collective that was asked for, and of no other."""
    table = _table(answer, name)
    wanted = [collective.value for collective in asked.collectives]
    if set(table) != set(wanted):
        raise UnbelievableError(
            f"{name} is of {_named(table)}, and {_named(wanted)} were asked for"
        )
    try:
        return {each: read(table, each) for each in wanted}
    except UnbelievableError as error:
        raise UnbelievableError(f"{name} of {error}") from None


def _named(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))[:120] or "nothing"


def _table(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if not isinstance(data[name], dict):
        raise UnbelievableError(f"{name} is {data[name]!r:.40}, no object")
    table: Mapping[str, Any] = data[name]
    return table


def _list(data: Mapping[str, Any], name: str) -> list[Any]:
    if not isinstance(data[name], list):
        raise UnbelievableError(f"{name} is {data[name]!r:.40}, no list")
    return list(data[name])


def _count(data: Mapping[str, Any], name: str) -> int:
    value = data[name]
    # A bool is an int to Python, and a negative count would make up for another's wrong elements.
    if type(value) is not int or value < 0:
        raise UnbelievableError(f"{name} is {value!r:.40}, no count")
    return value


def _figure(data: Mapping[str, Any], name: str) -> float:
    value = data[name]
    if not _finite(value) or value < 0:
        raise UnbelievableError(f"{name} is {value!r:.40}, no number of 0 or more")
    return float(value)


def _finite(value: Any) -> bool:
    # Of a whole number that is too large for a float, isfinite raises.
    return type(value) in {int, float} and abs(value) < 1e15 and math.isfinite(value)
