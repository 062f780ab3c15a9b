"""Xids: the NVIDIA driver's numbered errors of a GPU (`NVRM: Xid (PCI:dddd:bb:dd): N, text`).

Drivers differ in what stands between the address and the text: no `PCI:`, MIG instances behind the
address, a pid without a name, placeholders for both. The text holds other numbers, so only what
stands right behind the address is the code.
"""

from __future__ import annotations

import re

from nodeproof.parsers.events import Remedy, Severity
from nodeproof.parsers.log_catalog import Catalog, Grade
from nodeproof.parsers.log_lines import Line, address_of
from nodeproof.parsers.reports import Report

HEAD = re.compile(r"(?:NVRM: *)+Xid\b")
_XID = re.compile(
    r"(?:NVRM: *)+Xid:? *\((?P<where>[^()]{0,120})\): *(?P<code>\d{1,6})\b *(?P<rest>,?.*)$",
    re.DOTALL,
)
_ASKS_RESET = re.compile(r"\bRST: *Yes\b", re.IGNORECASE)  # at once, or after draining
_NEW_ACTION = re.compile(r"\bto +(?:0x(?P<number>[0-9a-fA-F]+))? *\(?(?P<name>[A-Za-z0-9 ]*)")
_NVLINK5 = range(144, 151)
# The name of a process may hold either word, so the word is the one behind a unit.
_UNIT = re.compile(r", *(?P<unit>[A-Z][A-Z0-9_]*(?:/[A-Z0-9_]+)?)\s")
_WORD = re.compile(
    r", *[A-Z][A-Z0-9_]*(?:/[A-Z0-9_]+)?\s+(?P<word>Non-?fatal|Fatal)\b(?P<place>\s+XC\d)?",
    re.IGNORECASE,
)
_STATUS = re.compile(r"\( *0x[0-9a-fA-F]+[ ,]+0x(?P<status>[0-9a-fA-F]{1,16})\b")

# NVML's recovery actions (nvmlDeviceGpuRecoveryAction_t), by number and by the driver's words.
_ACTIONS = {0: "none", 1: "reset", 2: "reboot", 3: "reset", 4: "reset"}

_GRADES = {
    "fatal": Grade(severity=Severity.FATAL, remedy=Remedy.RESET_GPU),
    "reset": Grade(severity=Severity.FATAL, remedy=Remedy.RESET_GPU),
    "reboot": Grade(severity=Severity.FATAL, remedy=Remedy.REBOOT),
    "nonfatal": Grade(severity=Severity.WARNING, remedy=Remedy.NONE),
    "none": Grade(severity=Severity.INFO, remedy=Remedy.NONE),
}


def read(line: Line) -> Report | None:
    """Read an Xid, if the line is one. A line that is cut before the code has none."""
    if not HEAD.match(line.text):
        return None
    found = _XID.match(line.text)
    if found is None:
        if "(" not in line.text:  # a sentence about Xids
            return None
        return Report(source="xid", kind="xid.cut", line=line, device=address_of(line.text))
    code, rest = int(found["code"]), found["rest"]
    device = address_of(found["where"])
    if not rest and len(found["code"]) == 1:  # a longer number may have been cut
        return Report(source="xid", kind="xid.cut", line=line, device=device)
    if not rest and not line.ended:
        return Report(source="xid", kind="end", code=code, device=device, line=line)
    return Report(source="xid", kind=_words(code, rest), code=code, device=device, line=line)


def _words(code: int, rest: str) -> str:
    """Return what the text says that overrules the code's own grade."""
    if code in _NVLINK5:
        word = _word(rest)
        return ("fatal" if word == "fatal" else "nonfatal") if word else _decoded(rest)
    if code == 154:
        return _action(rest)
    return "reset" if code == 94 and _ASKS_RESET.search(rest) else ""


def _action(rest: str) -> str:
    """Return the action that is asked for now: what stands behind "to", and not the old one."""
    # The name of a process in front may hold any words.
    _, changed, said = rest.rpartition("changed from")
    new = None if not changed and "name=" in rest else _NEW_ACTION.search(said)
    if new is None:
        return "reset"
    name = new["name"].lower()
    if "reboot" in name:
        return "reboot"
    if "reset" in name or "drain" in name:
        return "reset"
    if name.strip() == "none":
        return "none"
    number = int(new["number"], 16) if new["number"] else -1
    return _ACTIONS.get(number, "reset")


def _word(rest: str) -> str:
    """Return the word behind the unit, and not one in the name of a process in front of it."""
    words = list(_WORD.finditer(rest))
    placed = [word for word in words if word["place"]]
    if not placed and "name=" in rest:
        return ""
    return next((word["word"].lower() for word in reversed(placed or words)), "")


def _decoded(rest: str) -> str:
    unit, status = next(reversed(list(_UNIT.finditer(rest))), None), _STATUS.search(rest)
    return f"unit {unit['unit']} {int(status['status'], 16)}" if unit and status else ""


def grade(catalog: Catalog, report: Report) -> Grade:
    """How grave an Xid is, by its words where they say it, else by the catalogue."""
    if report.code is None:
        return catalog.kind["xid.cut"]
    base = catalog.of_xid(report.code)
    if report.kind == "end" and base.severity is Severity.INFO:
        return catalog.kind["xid.cut"]  # 14 may be any of 140 to 149
    if report.kind in _GRADES:
        return _GRADES[report.kind]
    if report.kind.startswith("unit "):
        _, units, status = report.kind.split(" ")
        for unit in units.split("/"):
            severity = catalog.nvlink5.get((report.code, unit, int(status)))
            if severity is not None:
                return base if severity is Severity.FATAL else _GRADES["nonfatal"]
    return base
