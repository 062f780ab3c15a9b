"""The JSON file that NVIDIA's all_reduce_perf writes with -J, read strictly.

Read from NVIDIA/nccl-tests at a0b82b2 (v2.19.6), src/util.cu. What has to be known of it: truth is
written as the texts "true" and "false" and no number as "nan"; the devices listed are the first of
each process, not all; `env` holds the whole environment of the run, passwords too, so nothing of
it is kept or quoted; a run that failed is closed as whole JSON, but has no `end_time`. Versions
1 (v2.17.6 on) to 3 differ in what they add by iteration, and in the spelling of the average.

Pure: the standard library only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

from nodeproof.parsers.reading import Grade, Reading

VERSIONS = (1, 2, 3)
_PLACEMENTS = ("out_of_place", "in_place")
_MOST_DEEP = 1 << 24  # bytes of a file; one row takes some 400, and times by iteration a few KiB
_CLOSE = 0.01  # of bus bandwidth by the definition; figures have six decimals
_LAST_DECIMAL = 2e-6


class _NoResultError(ValueError):
    """The file is not one from which anything follows."""


def sizes(least: int, most: int, factor: int, *, item_bytes: int = 4) -> list[int]:
    """The size column of all_reduce_perf -b `least` -e `most` -f `factor`.

    Raises `ValueError` for what would be no sweep.
    """
    if not (0 < item_bytes <= least <= most and factor > 1):
        raise ValueError(f"no sweep: from {least} to {most} bytes by a factor of {factor}")
    found = [least]
    while found[-1] * factor <= most:
        found.append(found[-1] * factor)
    return [size // item_bytes * item_bytes for size in found]


def read(data: bytes, *, sizes: Sequence[int], ranks: int, hosts: Collection[str] = ()) -> Reading:
    """Read one file, which has to hold exactly these `sizes`, `ranks` and `hosts` (if any given).

    The fields are those of `nccl_tests_text` but for `transport`, and besides `rows` (`size`, and
    by placement `seconds`, `algbw`, `busbw` in GB/s and `wrong`), `hosts`, `nccl` ("2.29.2"),
    `schema` and `errors`. Wrong data are a fail; whatever is missing, not as asked or not to be
    understood is an error.
    """
    try:
        document = _document(data)
        ranked, found = _ranks(document["config"])
        rows = [_row(row, ranked) for row in document["results"]]
        fields = {
            "complete": "end_time" in document,
            "wrong": sum(row[place]["wrong"] for row in rows for place in _PLACEMENTS),
            "avg_busbw_gbs": _average(document)[0],
            "max_size_bytes": max((row["size"] for row in rows), default=None),
            "validated": document["config"]["validation"] == 1,
            "ranks": ranked,
            "rows": rows,
            "hosts": sorted(found),
            "nccl": _nccl(_whole(document["nccl_version"])),
            "schema": document["version"],
            "errors": [text for text in document.get("errors", []) if text],
        }
        grade, why = _judge(document, fields, sizes, ranks, hosts)
    except _NoResultError as error:
        return Reading(grade=Grade.ERROR, why=str(error), fields={})
    except KeyError as error:
        return Reading(grade=Grade.ERROR, why=f"the file has no {error}: did the run end early?")
    # A value of another kind than it should be; its text is left out, it may be of `env`.
    except (TypeError, AttributeError, ValueError) as error:
        return Reading(grade=Grade.ERROR, why=f"the file can't be read ({type(error).__name__})")
    return Reading(grade=grade, why=why, fields=fields)


def _judge(
    document: Mapping[str, Any],
    fields: Mapping[str, Any],
    sizes: Sequence[int],
    ranks: int,
    hosts: Collection[str],
) -> tuple[Grade, str]:
    """Faults that are shown first, then what was not measured as it was asked for."""
    out = document.get("out_of_bounds")
    if bad := [row["size"] for row in fields["rows"] if any(row[p]["wrong"] for p in _PLACEMENTS)]:
        return Grade.FAIL, f"wrong data at {bad[0]} bytes"
    if out is not None and (out["okay"] != "true" or out["count"] != 0):
        return Grade.FAIL, f"wrong data: {_whole(out['count'])} values out of bounds"
    if not fields["complete"] or out is None:
        return Grade.ERROR, "the run did not finish: the file has no end"
    if why := _not_as_asked(fields, sizes, ranks, hosts):
        return Grade.ERROR, why
    if _average(document)[1] == "false":
        return Grade.FAIL, "the average is below the floor that the run was given"
    if fields["errors"]:
        return Grade.WARN, f"NCCL's last word: {str(fields['errors'][0])[:200]}"
    return Grade.PASS, f"every size up to {sizes[-1]} bytes was right in both placements"


def _not_as_asked(
    fields: Mapping[str, Any], sizes: Sequence[int], ranks: int, hosts: Collection[str]
) -> str:
    """What sets the run apart from the one that was asked for, "" if nothing does."""
    took, shown = fields["ranks"], [row["size"] for row in fields["rows"]]
    if took != ranks:
        return f"{took} ranks took part where {ranks} are expected: built without MPI?"
    if ranks < 2:
        return "one rank alone took part, so no communication was measured"
    wanted = {_short(host) for host in hosts}
    if wanted and set(fields["hosts"]) != wanted:
        ran, asked = (", ".join(sorted(names)) for names in (fields["hosts"], wanted))
        return f"ranks ran on {ran} where {asked} are expected"
    if not fields["validated"]:
        return "the data were not checked, or more than once: start it with -c 1"
    if not sizes or shown != list(sizes):
        left = sorted(set(sizes) - set(shown))
        missing = f"{left[0]} bytes were left out" if left else "others were"
        return f"the sizes tested are not those asked for: {missing} (no memory?)"
    return ""


def _document(data: bytes) -> Mapping[str, Any]:
    if len(data) > _MOST_DEEP:
        raise _NoResultError(f"the file has {len(data)} bytes, which is no result")
    try:
        whole = json.loads(data.decode(), parse_constant=_no_number, object_pairs_hook=_once)
    # Without the reason: it would quote the text, and that may be of `env`.
    except (ValueError, RecursionError):
        raise _NoResultError("the file is no whole JSON: did the run end in its midst?") from None
    if not isinstance(whole, dict):
        raise _NoResultError("the file is no object of JSON")
    version = whole.get("version")
    if type(version) is not int or version not in VERSIONS:
        raise _NoResultError(f"version {str(version)[:40]} of the file is not one that is known")
    return {key: value for key, value in whole.items() if key not in {"env", "args"}}


def _ranks(config: Mapping[str, Any]) -> tuple[int, set[str]]:
    """How many ranks took part, and on which hosts."""
    by_process = _whole(config["nthreads"]) * _whole(config["ngpus"])
    devices = config["devices"]
    firsts = [_whole(device["rank"]) for device in devices]
    if (
        not by_process
        or not firsts
        or firsts != list(range(0, len(firsts) * by_process, by_process))
    ):
        raise _NoResultError(f"the ranks listed are not whole: {firsts[:40]}")
    if len({device["group"] for device in devices}) > 1:
        raise _NoResultError("the ranks were split into groups, of which one alone is shown")
    places = {(device["hostname"], device["device_hex"]) for device in devices}
    if len(places) != len(devices):
        raise _NoResultError("two processes used one device")
    hosts = {_short(device["hostname"]) for device in devices}
    if not all(hosts):
        raise _NoResultError("a rank has no host")
    return len(firsts) * by_process, hosts


def _row(row: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    size = _whole(row["size"])
    found: dict[str, Any] = {"size": size}
    for place in _PLACEMENTS:
        half = row[place]
        if not isinstance(half, dict):
            raise _NoResultError(f"{size} bytes were not tested {place.replace('_', ' ')}")
        if "time" not in half:
            raise _NoResultError("times are those of the CPU: start it without -C")
        if half["nwrong"] is None:
            raise _NoResultError(f"the data of {size} bytes were not checked: start it with -c 1")
        time, alg, bus = (_figure(half[name], size) for name in ("time", "alg_bw", "bus_bw"))
        if not time:
            raise _NoResultError(f"{size} bytes took no time")
        wrong = half["nwrong"]
        if type(wrong) not in (int, float) or wrong < 0 or wrong != int(wrong):
            raise _NoResultError(f"{size} bytes: the number of wrong values is none")
        due = alg * 2 * (ranks - 1) / ranks
        if abs(bus - due) > _CLOSE * due + _LAST_DECIMAL:
            raise _NoResultError(
                f"{size} bytes: {bus:g} GB/s of bus bandwidth are not those of {ranks} ranks at "
                f"{alg:g} GB/s"
            )
        found[place] = {"seconds": time / 1e6, "algbw": alg, "busbw": bus, "wrong": int(wrong)}
    return found


def _average(document: Mapping[str, Any]) -> tuple[float | None, str]:
    """The mean over all sizes in GB/s, which says little, and how it stands to the run's floor."""
    for spelt in ("bandwidth", "bandwidith"):
        if (found := document.get(f"average_bus_{spelt}")) is not None:
            value = found[spelt]
            number = float(value) if type(value) in (int, float) else None
            return number, str(found["okay"])
    return None, ""


def _figure(value: object, size: int) -> float:
    if type(value) not in (int, float) or not math.isfinite(float(str(value))):
        raise _NoResultError(f"{size} bytes: a figure is no number")
    number = float(str(value))
    if number < 0:
        raise _NoResultError(f"{size} bytes: a figure is below zero")
    return number


def _whole(value: object) -> int:
    if type(value) is not int or value < 0:
        raise _NoResultError(f"a number is none: {str(value)[:40]!r}")
    return value


def _nccl(code: int) -> str:
    """NCCL_VERSION_CODE as its makers write it (nccl.h.in)."""
    base = 1000 if code < 10_000 else 10_000
    return f"{code // base}.{code % base // 100}.{code % 100}"


def _short(host: str) -> str:
    return host.partition(".")[0].lower()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _no_number(_: str) -> NoReturn:
    raise ValueError("no number")
