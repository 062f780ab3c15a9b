"""Waivers: an operator's word that one check on one device may fail until a day.

[[waiver]]
check = "device.burnin.throughput"
device = "GPU-11111111-2222-3333-4444-555555555555"
reason = "clock capped by the site until the new power supply"
expires = 2026-12-31
"""

from __future__ import annotations

import datetime as dt
import tomllib
from pathlib import Path

from nodeproof.model import Waiver

_KEYS = frozenset({"check", "device", "reason", "expires"})


class WaiverError(ValueError):
    """A file of waivers that can't be used as it stands. Nothing in it is applied."""


def load(path: Path) -> tuple[Waiver, ...]:
    """Read waivers. Raises `WaiverError` for anything but complete ones."""
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        msg = f"waivers {path}: {error}"
        raise WaiverError(msg) from None
    rows = table.pop("waiver", [])
    if table or not isinstance(rows, list) or not rows:
        msg = f"waivers {path}: it holds [[waiver]] tables and nothing else"
        raise WaiverError(msg)
    waivers = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or set(row) != _KEYS:
            msg = f"waivers {path}: waiver {number} has to give {', '.join(sorted(_KEYS))}"
            raise WaiverError(msg)
        expires = row["expires"]
        if isinstance(expires, dt.datetime) or not isinstance(expires, dt.date):
            msg = f"waivers {path}: waiver {number}: expires is a date, as 2026-12-31"
            raise WaiverError(msg)
        if not all(isinstance(row[k], str) and row[k].strip() for k in _KEYS - {"expires"}):
            msg = f"waivers {path}: waiver {number}: check, device and reason are text"
            raise WaiverError(msg)
        waivers.append(
            Waiver(
                check=row["check"],
                device=row["device"],
                reason=row["reason"],
                expires=expires.isoformat(),
            )
        )
    return tuple(waivers)
