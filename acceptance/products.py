"""How every check that multiplies judges its products."""

from __future__ import annotations

from nodeproof.acceptance.blame import common
from nodeproof.acceptance.bound import bound
from nodeproof.checks import Cause, Measure, Result, Results


def judge_products(result: Result, peers: Results, measure: Measure) -> None:
    """Hold what a kernel of `nodeproof.kernels.product` returned to no wrong element.

    A wrong element is the device's fault, repeatable or not, unless other devices or the host show
    the very same one: then every machine would, and it is software's.
    """
    detail, cause, first = "", None, None
    if result["wrong"]:
        elements = [fault for fault in result["found"] if "row" in fault]
        first = next(iter(elements), None)
        detail = "counted by the device, none of them could be located: it contradicts itself"
    if result["wrong"] and first:
        detail = (
            f"first in {first['dtype']} product {first['product']} ({first['family']}), row "
            f"{first['row']}, column {first['column']}: {first['got']} instead of "
            f"{first['expected']}, bits {first['bits']}; operands intact: "
            f"{result['operands_intact']}; by the host: {result['host']}; by another way on the "
            f"device: {result['other_algorithm']}; wrong again in "
            f"{result['replay']} of 3 repeats, which excuses nothing"
        )
        if software := common({**result, "found": elements}, peers):
            detail, cause = f"{software}; {detail}", Cause.CONFIG
    measure("wrong elements", result["wrong"], at_most=0, cause=cause, detail=detail)
    measure("checked elements", result["checked_elements"], at_least=1)
    # Where something was wrong, two parts of a product were multiplied besides, or refused to be.
    besides = 0 if result["replay"] is None else 2 * result["size"] ** 2
    whole = result["products"] * result["size"] ** 2
    measure(
        "elements unaccounted for",
        whole - result["checked_elements"],
        at_least=0,
        at_most=besides,
        cause=Cause.ENVIRONMENT,
        detail=f"{result['products']} products of {result['size']} rows and columns",
    )
    bound(measure, result, result["checked_operations"])
