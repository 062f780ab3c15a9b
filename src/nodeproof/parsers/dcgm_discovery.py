"""`dcgmi discovery -l`: which GPU DCGM means by a number, since its numbers are its own.

The layout: DCGM, dcgmi/Query.cpp of 4.6.0; the labels are the same in 2 and 3.
"""

from __future__ import annotations

import re

_ROW = re.compile(r"\s*+\|([^|]*)\|([^|]*)\|?\s*")
_SAID = re.compile(r"(PCI Bus ID|Device UUID): *(\S+)")
_NAMES = {"PCI Bus ID": "pci", "Device UUID": "uuid"}


def gpus_of(text: str) -> dict[int, dict[str, str]]:
    """Map DCGM's number of each GPU to its `uuid` and `pci`, as far as the table has them."""
    found: dict[int, dict[str, str]] = {}
    number: int | None = None
    gpus = False
    for line in text.splitlines():
        row = _ROW.fullmatch(line)
        if row is None:
            continue
        label, value = row[1].strip(), row[2].strip()
        if label:  # the tables of switches and processors number theirs from 0 too
            gpus = label == "GPU ID" if not label.isdecimal() else gpus
            number = (
                int(label) if gpus and label.isdecimal() and len(label) <= len("65535") else None
            )
        if number is not None and (said := _SAID.match(value)):
            found.setdefault(number, {})[_NAMES[said[1]]] = said[2]
    return found
