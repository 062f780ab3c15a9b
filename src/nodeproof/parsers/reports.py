"""What readers of single lines hand on: reports, which `incidents` makes events of."""

from __future__ import annotations

from dataclasses import dataclass

from nodeproof.parsers.log_lines import Line


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One report of something by the kernel, not yet graded.

    `kind` is the name under which the catalogue grades it; for an Xid or SXid, whose code grades,
    it says what overrules the code ("asks_reset", "word_fatal") or is empty. `weight` is how many
    errors it stands for. A `vague` one names no device, and is dropped where another tells of it.
    """

    source: str
    line: Line
    kind: str = ""
    code: int | None = None
    device: str | None = None
    unit: str | None = None
    weight: int = 1
    vague: bool = False
