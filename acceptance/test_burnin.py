"""Sustained load: is it still right when hot, when the load sets in, and with all at once?"""

from __future__ import annotations

from nodeproof.acceptance.products import judge_products
from nodeproof.checks import (
    COMPUTE,
    LONGER,
    Cause,
    Load,
    Measure,
    Plant,
    Remedy,
    Result,
    Results,
    Work,
    altered,
    check,
)

_NO_PRODUCTS = altered("products", "sets of operands", products=0, sets=1)


def _judge(result: Result, peers: Results, measure: Measure) -> None:
    """Hold the products of a full load, and that all that were asked for were compared."""
    judge_products(result, peers, measure)
    measure(
        "products", result["products"], at_least=max(1, result["asked"]), cause=Cause.ENVIRONMENT
    )
    # Their answers differ, so that one that was left over from the product before shows.
    measure("sets of operands", result["sets"], at_least=2, cause=Cause.ENVIRONMENT)


_BURN = Work(
    call="nodeproof.kernels.burn:burn",
    load=Load(quick=20, gate=60, deep=1800, soak=14400),
    deadline_s=120,
)


@check(
    "device.burnin.exact",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    work=_BURN,
    plant=(
        Plant(args={"plant": "flip"}, breaks=("wrong elements",)),
        _NO_PRODUCTS,
        altered("checked elements", "elements unaccounted for", checked_elements=0),
    ),
)
def test_exact(result: Result, peers: Results, measure: Measure) -> None:
    """A device that computes wrongly only when hot passes every short test and fails in the job.

    Products with known answers like those of the arithmetic checks, back to back at full power,
    each compared bit for bit. One differing bit is a fault of this device, repeatable or not. Better
    cooling may make it rarer and does not make the device sound: replace it. Without a wrong element, errors of
    this format under this load are rarer than "error rate below" with 95 % confidence; other
    formats are tested cooler.
    """
    _judge(result, peers, measure)


@check(
    "device.burnin.pulses",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    profiles=LONGER,
    work=Work(
        call="nodeproof.kernels.pulses:pulses",
        group=True,
        load=Load(quick=8, gate=8, deep=120, soak=1200),
        deadline_s=120,
    ),
    plant=(
        Plant(args={"plant": "flip"}, breaks=("wrong elements",)),
        altered(
            "bursts left out",
            "bursts",
            "checked elements",
            "elements unaccounted for",
            untried=1,
            bursts=0,
            checked_elements=0,
        ),
        _NO_PRODUCTS,
    ),
)
def test_pulses(result: Result, peers: Results, measure: Measure) -> None:
    """A device that computes wrongly when the load sets in corrupts each step of a training job.

    Training is bursts: compute, then wait for the others. Voltage and clock swing most at those
    edges, and a weak supply or regulator shows there and nowhere in a steady load. Bursts of 1 to
    300 ms with pauses as long, on all devices together and then in turn, every product compared bit
    for bit. One differing bit is a fault of this device, repeatable or not. If several devices of
    one node show it, have the supply looked at first; else replace the device. Zero wrong elements
    bound the rate for bursts such as these (below 3/N at 95 %), not for every rhythm.
    """
    _judge(result, peers, measure)
    measure("bursts left out", result["untried"], at_most=0, detail=f"{result['cells']}")
    measure("bursts", result["bursts"], at_least=1)
    measure("bursts that began late", result["late"] / max(1, result["bursts"]), unit="share")


@check(
    "device.burnin.together",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    profiles=LONGER,
    work=Work(
        call="nodeproof.kernels.together:together",
        load=Load(quick=5, gate=8, deep=120, soak=1200),
        deadline_s=120,
    ),
    plant=(
        Plant(
            args={"plant": "flip"},
            breaks=("wrong elements", "wrong words", "damaged pattern words"),
        ),
        _NO_PRODUCTS,
        altered(
            "passes",
            "memory verified",
            "checked elements",
            "elements unaccounted for",
            passes=0,
            verified_bytes=0,
            checked_elements=0,
        ),
    ),
)
def test_together(result: Result, peers: Results, measure: Measure) -> None:
    """A device that fails under products and memory traffic at once fails in every real model.

    Both draw from one supply and heat one package, so that each alone is the lighter load. Products
    are compared bit for bit and memory word for word meanwhile. A wrong word with right products
    speaks of the memory, the reverse of arithmetic. One differing bit is a fault of this device,
    repeatable or not: replace it. What else runs beside a model (copies, collectives) is not part.
    """
    _judge(result, peers, measure)
    words = [fault for fault in result["found"] if "offset" in fault]
    measure(
        "wrong words",
        result["wrong_words"],
        at_most=0,
        detail=f"first at offset {words[0]['offset']}, bits {words[0]['bits']}"
        if words
        else "none of them located",
    )
    measure("damaged pattern words", result["reference_wrong"], at_most=0)
    measure("passes", result["passes"], at_least=2, cause=Cause.ENVIRONMENT)  # one each way
    measure(
        "memory verified",
        result["verified_bytes"],
        unit="bytes",
        at_least=max(1, result["passes"] * result["region_bytes"]),
        cause=Cause.ENVIRONMENT,
    )
