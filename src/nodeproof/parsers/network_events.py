"""Network cards and their drivers: mlx5, EFA, and interfaces that stopped sending.

Texts: torvalds/linux drivers/net/ethernet/mellanox/mlx5/core (en_main.c, health.c, events.c, cmd.c),
net/sched/sch_generic.c, kernel/module; github.com/amzn/amzn-drivers issue 308.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from nodeproof.parsers.log_lines import Line, address_of
from nodeproof.parsers.reports import Report

_PCI = r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7]"
_MLX5 = re.compile(
    rf"(?:mlx5_core(?: (?P<device>{_PCI}))?(?: (?P<unit>[\w@.-]+))?|mlx5_\w+:\d+:\(pid \d+\)): "
)
_MLX5_KINDS = (
    (
        "mlx5.stuck",
        re.compile(r"TX timeout (?:detected|on queue)|wait_func\w*:.{0,200}?timeout\b.{0,80}?leak"),
    ),
    (
        "mlx5.health",
        re.compile(
            r"device's health compromised|Fatal error \d+ detected|firmware fatal error|unrecoverable"
            r"|Health issue observed, .*severity\(\d\) (?:EMERGENCY|ALERT|CRITICAL|ERROR)"
            r"|health recovery failed",
            re.IGNORECASE,
        ),
    ),
    (
        "mlx5.probe",
        re.compile(
            r"probe of \S+ failed with error -|probe with driver \S+ failed with error -"
            r"|\b(?:init_one|mlx5_init_one|mlx5_load_one|load_one)(?:\(\))? failed\b"
            r"|in (?:pre-)?initializing state, aborting"
        ),
    ),
    ("mlx5.warned", re.compile(r"Health issue observed, .*severity\(\d\) WARN")),
    ("mlx5.hot", re.compile(r"Port module event.*High Temperature|High temperature on sensors")),
    ("mlx5.module", re.compile(r"Port module event\[(?:error|warning)\]")),
    ("mlx5.unplugged", re.compile(r"Port module event: .*Cable unplugged")),
    ("mlx5.plugged", re.compile(r"Port module event: .*Cable plugged")),
    ("mlx5.power", re.compile(r"Detected insufficient power on the PCIe slot")),
    ("mlx5.register", re.compile(r"\bACCESS_REG\w*\(0x[0-9a-f]+\).*\bfailed|\bACCESS_REG failed")),
    ("mlx5.command", re.compile(r"mlx5_cmd_(?:out_err|check):.*\bfailed")),
)
_ONCE = {"mlx5.health", "mlx5.stuck", "mlx5.probe"}  # several lines tell of one incident
_EFA_MODULE = re.compile(
    r"efa: (?:disagrees about version of symbol|Unknown symbol|version magic) "
)
_EFA_DEVICE = re.compile(
    rf"(?:efa (?P<device>{_PCI}): |efa: probe of (?P<probed>{_PCI}) )(?P<text>.*)", re.DOTALL
)
# The card took a command and never answered, or no interrupt came of it (efa_com.c).
_EFA_STUCK = re.compile(
    r"infiniband (?P<unit>efa_\d+): The device "
    r"(?:didn't send any completion|sent a completion but the driver didn't receive)"
)
_EFA_FAULT = re.compile(r"failed with error -?\d")
_WATCHDOG = re.compile(
    rf"(?:(?P<driver>\w+) (?P<device>{_PCI}) (?P<unit>[\w@.-]+): )?NETDEV WATCHDOG: "
    r"(?:CPU: \d+: |(?P<older>[\w@.-]+) \((?P<older_driver>[\w-]*)\): )?transmit queue \d+ timed out"
)


@dataclass(slots=True)
class Network:
    """Reads line by line."""

    done: list[Report] = field(default_factory=list)
    watchdogs: list[tuple[Report, str]] = field(default_factory=list)  # with the driver
    once: set[tuple[str, str | None]] = field(default_factory=set)  # incidents that were told
    unplugged: dict[str, bool] = field(
        default_factory=dict
    )  # by device: the last word on its cable

    def read(self, line: Line) -> bool:
        """Take the line if it is a network driver's."""
        if found := _WATCHDOG.match(line.text):
            report = Report(
                source="netdev",
                kind="netdev.watchdog",
                device=address_of(found["device"] or ""),
                unit=found["unit"] or found["older"],
                line=line,
            )
            self.watchdogs.append((report, found["driver"] or found["older_driver"] or ""))
            return True
        if head := _MLX5.match(line.text):
            return self._mlx5(head, line)
        return self._efa(line)

    def _mlx5(self, head: re.Match[str], line: Line) -> bool:
        device = address_of(head["device"] or line.text)
        kind = next((k for k, p in _MLX5_KINDS if p.search(line.text, 0)), None)
        if kind in {"mlx5.unplugged", "mlx5.plugged"} and device:
            self.unplugged[device] = kind == "mlx5.unplugged"
        if kind is None or kind == "mlx5.plugged":
            return kind is not None
        if kind in _ONCE and "TX timeout detected" not in line.text:
            self._once(kind, device, line)
        else:
            self.once.add((kind, device))
            self.done.append(Report(source="mlx5", kind=kind, device=device, line=line))
        return True

    def _efa(self, line: Line) -> bool:
        if _EFA_MODULE.match(line.text):
            self._once("efa.module", None, line)
            return True
        if stuck := _EFA_STUCK.match(line.text):
            if ("efa.stuck", stuck["unit"]) not in self.once:
                self.once.add(("efa.stuck", stuck["unit"]))
                self.done.append(
                    Report(source="efa", kind="efa.stuck", unit=stuck["unit"], line=line)
                )
            return True
        found = _EFA_DEVICE.match(line.text)
        if found is None or not _EFA_FAULT.search(found["text"]):
            return False
        device = address_of(found["device"] or found["probed"] or "")
        self._once("efa.device", device, line)
        return True

    def _once(self, kind: str, device: str | None, line: Line) -> None:
        if (kind, device) not in self.once:
            self.once.add((kind, device))
            source = kind.partition(".")[0]
            self.done.append(Report(source=source, kind=kind, device=device, line=line))

    def reports(self) -> Iterator[Report]:
        """Every report. The watchdog's word about a card whose driver says it too adds nothing."""
        yield from self.done
        stuck = {r.device for r in self.done if r.kind == "mlx5.stuck"}
        for report, driver in self.watchdogs:
            told = report.device in stuck or (report.device is None and driver == "mlx5_core")
            if not (stuck and told):
                yield report
