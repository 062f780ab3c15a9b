"""What a link to the host gives, held against what its ends could give, or the spec."""

from __future__ import annotations

from nodeproof.checks import Cause, Measure

_MACHINE = {
    False: "this is bare metal",
    True: "this is a virtual machine, which may make that up",
    None: "nothing tells whether this is a virtual machine, which may make that up",
}


def hold(
    measure: Measure,
    name: str,
    now: float,
    *,
    able: float | None,
    wanted: int | None,
    virtual: bool | None,
    unit: str = "",
    shown_only: bool = False,
) -> None:
    """Measure `now`: at least what the spec wants, else what GPU and slot are `able` to.

    It is the hardware's only where that shows that more was there to be had, on bare metal: a slot
    that is able to less than the spec wants is no fault of what is in it.
    """
    lost = able is not None and now < able and virtual is False
    measure(
        name,
        now,
        unit=unit,
        at_least=None if shown_only else max(1, wanted or able or 0),
        cause=Cause.HARDWARE if lost else Cause.CONFIG,
        detail=(
            f"GPU and slot are able to {able}; {_MACHINE[virtual]}: if this kind of machine gives no "
            f"more by design, give its {name} in the spec"
        ),
    )
