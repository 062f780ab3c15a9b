"""Each two GPUs reach each other as the product should: what the driver allows, before any load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nodeproof.checks import (
    Cause,
    Device,
    DeviceKind,
    Measure,
    Plant,
    Remedy,
    Result,
    Results,
    Work,
    check,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PathLimits:
    """What each two GPUs have to allow. Without a word, what their own NVLinks lead to expect."""

    reads: bool = False  # peer-to-peer reads and writes between all, by whatever way
    nvlink: bool | None = None  # the same over NVLink
    told: bool = True  # some virtual machines hide it


_ROW = {
    "uuid": "GPU-planted",
    "pci": "0000:ff:1f.0",
    "read": "planted",
    "write": "planted",
    "nvlink": "planted",
    "atomics": None,
    "pcie": None,
    "ancestor": None,
    "direct": 1,
}


def _wrong(result: Result) -> Result:
    """Nothing as it should be: what is held against a limit depends on spec, links and peers."""
    rows = [{**row, "read": "planted", "write": "planted"} for row in result["paths"]]
    return {**result, "told": -1, "silent": 99, "paths": [*rows, _ROW]}


@check(
    "gpu.peers.paths",
    kinds=(DeviceKind.GPU,),
    remedy=Remedy.RESET_GPU,
    cause=Cause.ENVIRONMENT,
    limits=PathLimits,
    work=Work(call="nodeproof.probes.peers:paths", deadline_s=30),
    plant=Plant(alter=_wrong, breaks=("paths told", "GPUs that do not say who they are")),
)
def test_paths(
    device: Device, result: Result, peers: Results, measure: Measure, limits: PathLimits
) -> None:
    """GPUs that can't reach each other send everything through the host, many times slower.

    Libraries fall back without a word. Two GPUs with NVLinks to the same switches, or to each other,
    have to reach each other over them; what a product without NVLink allows over PCIe differs, so
    only a spec asks for it. Both ends have to say the same. A path has two ends and a driver, so
    nobody is blamed: look at the fabric manager and its partitions, at gpu.nvlink.links, at ACS and
    the IOMMU (node.gpudirect.ready), and at registry keys of the driver. With MIG on, there is
    no such access at all. A reset of all GPUs lets the driver take stock anew.
    """
    rows: list[dict[str, Any]] = result["paths"]
    measure("peers", len(rows))
    measure(
        "paths told",
        result["told"],
        at_least=int(limits.told),
        detail="the driver does not tell of all whether they can be read and written: set told = false in the spec if this machine hides it",
    )
    switched = {other.id: answer["switched"] > 0 for other, answer in peers}
    by_nvlink = [row for row in rows if _by_nvlink(row, result, switched, limits)]
    to_reach = rows if limits.reads else by_nvlink
    if limits.reads or limits.nvlink is not False:
        _measure_short(measure, "peers out of reach", to_reach, ("read", "write"), limits)
    if limits.nvlink is not False:
        _measure_short(measure, "peers not over NVLink", by_nvlink, ("nvlink",), limits)
    listed = {row["uuid"] for row in rows}
    witnessed = any(other.id in listed for other, _ in peers)
    differ = [f"{row['uuid']} ({said})" for row in rows if (said := _contrary(device, row, peers))]
    measure(
        "paths told otherwise by the other end",
        len(differ),
        at_most=0 if witnessed else None,
        detail=f"{'; '.join(differ)}: the driver's picture is not settled; reset all GPUs together",
    )
    measure(
        "GPUs that do not say who they are",
        result["silent"],
        at_most=0,
        detail="paths to them are not known: see node.devices.count",
    )
    measure(
        "ends of NVLinks at GPUs that are not listed",
        len(result["elsewhere"]),
        detail=", ".join(result["elsewhere"]),
    )


def _by_nvlink(
    row: dict[str, Any], result: Result, switched: dict[str, bool], limits: PathLimits
) -> bool:
    """Whether this GPU has to reach another over NVLink."""
    if limits.nvlink is not None:
        return limits.nvlink
    # A peer that did not answer is taken to be like this GPU: its own finding says what it is.
    both = result["switched"] > 0 and switched.get(row["uuid"], True)
    return both or row["direct"] > 0


def _measure_short(
    measure: Measure,
    name: str,
    rows: list[dict[str, Any]],
    ways: tuple[str, ...],
    limits: PathLimits,
) -> None:
    hidden = {"ok"} if limits.told else {"ok", None}
    short = [
        f"{row['uuid']} at {row['pci']} ({way}: {row[way] or 'not told'}; in common: {row['ancestor']})"
        for row in rows
        for way in ways
        if row[way] not in hidden
    ]
    measure(name, len(short), unit="ways", at_most=0, detail="; ".join(short))


def _contrary(device: Device, row: dict[str, Any], peers: Results) -> str:
    """What the other end says of the same path, where it says something else."""
    for other, answer in peers:
        if other.id == row["uuid"]:
            back = next((r for r in answer["paths"] if r["uuid"] == device.id), None)
            if back is None:
                return "it does not list this GPU"
            said = [
                f"{way}: {row[way]} there, {back[way]} back"
                for way in ("read", "write", "nvlink", "ancestor")
                if row[way] != back[way]
            ]
            return ", ".join(said)
    return ""
