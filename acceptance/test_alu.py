"""Arithmetic outside of matrix products: scalar floats, integers, special functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from nodeproof.acceptance.bound import bound
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

_LOAD = Load(quick=1, gate=5, deep=60, soak=600)
_PLANTS = (
    Plant(args={"plant": "flip"}, breaks=("wrong lanes",)),
    altered("operations", operations=0),
    altered("units without an answer", units_covered=0),
    altered("chains", chains=[]),
    altered("answers known in two ways", proven=0),
)
_FLOATS = {"torch": 2, "triton": 4}  # by path: torch has no fused steps
_INTEGERS = {"torch": 7, "triton": 7}
_FUNCTIONS = 13
_UNLOCATED = "counted, none could be located"
Digests = Mapping[str, Mapping[str, str]]  # by function, by rounds of the sweep


def _work(module: str, deadline_s: float = 180) -> Work:
    return Work(call=f"nodeproof.kernels.{module}:exact", load=_LOAD, deadline_s=deadline_s)


def _judge(result: Result, measure: Measure, chains: Mapping[str, int]) -> None:
    detail = _UNLOCATED if result["wrong"] else ""
    if first := next(iter(result["found"]), None):
        detail = (
            f"first in chain {first['chain']}, pass {first['pass']}, copy {first['copy']}, lane "
            f"{first['lane']}, between steps {first['steps'][0]} and {first['steps'][1]}: "
            f"{first['got']} instead of {first['expected']}, differing in {first['xor']}"
        )
    if result["wrong_by_unit"]:
        detail += f"; wrong lanes by multiprocessor: {result['wrong_by_unit']}"
    measure("wrong lanes", result["wrong"], at_most=0, detail=detail)
    measure("operations", result["operations"], at_least=1)
    measure(
        "chains",
        len(result["chains"]),
        at_least=chains[result["path"]],
        cause=Cause.ENVIRONMENT,
        detail=f"compared in every round: {', '.join(result['chains']) or 'none'}",
    )
    measure(
        "answers known in two ways",
        result["proven"],
        at_least=2 * chains[result["path"]],
        cause=Cause.ENVIRONMENT,
    )
    measure(
        "units without an answer",
        result["units"] - result["units_covered"],
        at_most=0,
        cause=Cause.ENVIRONMENT,
        detail=f"{result['units_covered']} of {result['units']} multiprocessors computed: "
        "something keeps programs from the others (a partition, a limit on threads, other work)",
    )
    bound(measure, result, result["operations"])
    measure("rate", result["gops"], unit="Gop/s")


@check(
    "device.alu.float_chain",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    work=_work("float_chain"),
    plant=_PLANTS,
)
def test_float_chain(result: Result, measure: Measure) -> None:
    """A device whose scalar float units err spoils optimisers, norms and losses in silence.

    Tensor cores do the large products; everything between them runs on the scalar units, which
    products do not test. At least a thousand chains of chaotic steps (x to r x (1 - x)) run in
    float32 and float64. Addition, multiplication and (with Triton) fused multiply-add are rounded
    in one way only, so every bit of every lane is known; a digest of all states keeps what a later
    rounding would hide. One differing bit is a fault of this device, repeatable or not; with
    Triton, on a GPU, every multiprocessor has to answer, and the faulty one is named. Resetting or
    updating does not help; return the device.

    It sees the values of these chains only (normal numbers between 0 and 4), not overflow or
    subnormal numbers, and no fault that shows at another clock or temperature than the run had. No
    error in N operations: the rate is below 3/N at 95 % ("error rate below").
    """
    _judge(result, measure, _FLOATS)


@check(
    "device.alu.integer_chain",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    work=_work("integer_chain"),
    plant=_PLANTS,
)
def test_integer_chain(result: Result, measure: Measure) -> None:
    """A device whose integer units err reads and writes the wrong elements, and crashes at random.

    Every address a kernel uses is integer arithmetic. Seven recurrences of multiplication, wide
    multiplication with carry, shifts, rotations and exclusive or, in 32 and 64 bits, run on many
    lanes; none forgets an error, and their ends are known in closed form. One differing bit is a
    fault of this device, repeatable or not; with Triton, on a GPU, every multiprocessor has to
    answer, and the faulty one is named. Resetting or updating does not help; return the device.

    It does not test population count, byte permutation or integer division, which torch lacks or
    compiles into these, and no fault that shows at another clock or temperature than the run had.
    No error in N operations: the rate is below 3/N at 95 % ("error rate below").
    """
    _judge(result, measure, _INTEGERS)


def _unlike(result: Any, others: int) -> Any:
    """Every digest another than the device's, and other devices that have what it had."""
    inverted = {
        name: {rounds: f"{int(digest, 16) ^ 1:#018x}" for rounds, digest in of.items()}
        for name, of in result["digests"].items()
    }
    again = {name: of["1"] for name, of in inverted.items()}
    # Of no peer's model, so that nobody but these has a voice, whatever devices there are.
    versions = {**result["versions"], "model": "planted"}
    others_ = [result["digests"]] * others
    return {
        **result,
        "digests": inverted,
        "again": again,
        "versions": versions,
        "others": others_,
    }


def _outvoted(result: Any) -> Any:
    return _unlike(result, 2)


def _differing(result: Any) -> Any:
    return _unlike(result, 1)


def _changed(result: Result) -> list[str]:
    """Functions whose first digest did not come again."""
    again = result["again"]
    return [n for n, of in result["digests"].items() if n not in again or again[n] != of["1"]]


def _sound(result: Result) -> bool:
    """Whether a device has a voice: one that convicts itself has none."""
    return not (result["wrong"] or result["unlike_ieee"] or result["far"] or _changed(result))


def _compare(own: Digests, others: list[Digests]) -> tuple[list[str], list[str]]:
    """Functions in which this device is outvoted, and those in which nobody can say who errs."""
    outvoted, undecided = [], []
    for name, of in own.items():
        everybody = [of, *(other[name] for other in others)]
        common = max((k for k in of if all(k in each for each in everybody)), key=int)
        votes = Counter(each[common] for each in everybody)
        digest, count = votes.most_common(1)[0]
        if 2 * count <= len(everybody):
            undecided.append(name)
        elif digest != of[common]:
            outvoted.append(name)
    return outvoted, undecided


@check(
    "device.alu.special",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    profiles=LONGER,
    work=Work(call="nodeproof.kernels.special:sweep", load=_LOAD, deadline_s=180),
    plant=(
        Plant(
            args={"plant": "flip"},
            breaks=(
                "outputs unlike the majority",
                "outputs unlike IEEE 754",
                "outputs far from the function",
                "functions unlike before",
            ),
        ),
        altered("functions unlike before", again={}),
        altered("functions", functions=[]),
        altered("blocks", blocks=1),
        altered("operations", operations=0),
        Plant(alter=_outvoted, breaks=("functions unlike other devices",)),
        Plant(alter=_differing, breaks=("functions unlike other devices",)),
    ),
)
def test_special(result: Result, peers: Results, measure: Measure) -> None:
    """A device whose special functions err gives wrong softmaxes, activations and positions.

    Exponentials, logarithms, roots, sine, cosine and tanh are sums of table look-ups that differ
    between models, so no exact answer exists: many blocks of the device get the same inputs and
    have to agree bit for bit, the first inputs are computed again at the end, and devices of the
    same model have to agree on everything both did. What differs from a majority is a fault; return
    the device. One that convicts itself has no voice. Where two differ and no third decides, nobody
    can say which errs: test each beside others. Quotients, and on a GPU of NVIDIA roots and
    reciprocals, are also held to their one IEEE answer.

    It cannot see an error that all blocks of a device make alike unless there are other devices of
    its model to compare with, nor one that all of these make. torch does not say which multiprocessor
    did what, so that none is named or proven to have taken part; the hardware's fast sine, cosine and
    tanh, which torch does not use, are not reached. No error in N operations: the rate of errors
    that blocks do not share is below 3/N at 95 % ("error rate below").
    """
    measure(
        "outputs unlike the majority", result["wrong"], at_most=0, detail=_first(result, "wrong")
    )
    measure(
        "outputs unlike IEEE 754",
        result["unlike_ieee"],
        at_most=0,
        detail=_first(result, "unlike_ieee"),
    )
    measure("outputs far from the function", result["far"], at_most=0)
    changed = _changed(result)
    measure("functions unlike before", len(changed), at_most=0, detail=", ".join(changed))
    model = result["versions"]["model"]
    same = [r for _, r in peers if r["versions"]["model"] == model and _sound(r)]
    others = [*(r["digests"] for r in same), *result["others"]]
    outvoted, undecided = _compare(result["digests"], others)
    said = []
    if outvoted:
        said.append(f"this device is outvoted in {', '.join(outvoted)}")
    if undecided:
        said.append(
            f"the devices differ in {', '.join(undecided)} and nobody can say which errs: test each "
            "of them beside other devices of its model"
        )
    measure(
        "functions unlike other devices",
        len(outvoted) + len(undecided),
        at_most=0,
        cause=Cause.HARDWARE if outvoted else Cause.ENVIRONMENT,
        detail="; ".join(said),
    )
    measure("devices compared with", len(same))
    measure("blocks", result["blocks"], at_least=3)
    measure(
        "functions",
        len(result["functions"]),
        at_least=_FUNCTIONS,
        cause=Cause.ENVIRONMENT,
        detail=f"compared in every round: {', '.join(result['functions']) or 'none'}",
    )
    measure("operations", result["operations"], at_least=1)
    measure("share of all inputs", result["share_of_inputs"])
    bound(measure, result, result["operations"])
    measure("rate", result["gops"], unit="Gop/s")


def _first(result: Result, count: str) -> str:
    """Describe the first output that a block got wrong, or that all did, where `count` says so."""
    ieee = count == "unlike_ieee"
    for fault in result["found"]:
        if (fault["block"] < 0) == ieee:
            where = "all blocks" if ieee else f"block {fault['block']}"
            return (
                f"first {fault['function']} of {fault['input']} in {where}, round "
                f"{fault['round']}: {fault['got']} instead of {fault['expected']}, differing in "
                f"{fault['xor']}"
            )
    return _UNLOCATED if result[count] else ""
