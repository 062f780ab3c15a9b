"""What finding no error says of how rare errors are."""

from __future__ import annotations

from nodeproof.checks import Measure, Result


def bound(measure: Measure, result: Result, checked: float, *, per: str = "operation") -> None:
    """Note the rate that errors are below: with none in N, 3/N at 95 % confidence.

    Nothing is noted where something was wrong or nothing was checked.
    """
    if checked and not result["wrong"]:
        measure("error rate below", 3 / checked, unit=f"per {per}", detail="with 95 % confidence")
