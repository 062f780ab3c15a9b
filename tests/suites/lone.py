"""Checks of a site whose device adds faults of its own to every planted one."""

from __future__ import annotations

from nodeproof.checks import DeviceKind, Measure, Plant, Remedy, Result, Work, check


def of(name, **args):
    """Declare a check whose work answers as `standin_work.broken_for_good` is told."""
    return check(
        f"site.lone.{name}",
        kinds=(DeviceKind.CPU,),
        remedy=Remedy.REPLACE,
        work=Work(call="standin_work:broken_for_good", args=args),
        plant=Plant(args={"plant": "flip"}, breaks=("wrong",)),
    )


@of("witnessed", host="right")
def test_witnessed(result: Result, measure: Measure) -> None:
    """The host computed the known answer."""
    measure("wrong", result["wrong"], at_most=0)


@of("silent")
def test_silent(result: Result, measure: Measure) -> None:
    """Nobody was asked."""
    measure("wrong", result["wrong"], at_most=0)


@of("itself", host="itself")
def test_itself(result: Result, measure: Measure) -> None:
    """The device is the host."""
    measure("wrong", result["wrong"], at_most=0)


@of("confused", host="right", got="0x1")
def test_confused(result: Result, measure: Measure) -> None:
    """The comparison calls wrong what is as expected."""
    measure("wrong", result["wrong"], at_most=0)


@of("blind", host="right", sees=False)
def test_blind(result: Result, measure: Measure) -> None:
    """The planted fault is not among what was found."""
    measure("wrong", result["wrong"], at_most=0)
