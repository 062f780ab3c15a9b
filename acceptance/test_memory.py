"""Device memory: it has to hold what was written to it."""

from __future__ import annotations

from dataclasses import dataclass

from nodeproof.checks import (
    COMPUTE,
    LONGER,
    Cause,
    Device,
    DeviceKind,
    Load,
    Measure,
    Plant,
    Profile,
    Remedy,
    Result,
    Work,
    altered,
    check,
)

_FLIP = Plant(args={"plant": "flip"}, breaks=("wrong words",))
_FLIPS = Plant(args={"plant": "flip"}, breaks=("wrong words", "damaged pattern words"))
_TURNS = 40  # of a round with neighbours: each of twenty words is kept in two states
_MARCHES = 11  # of a round: one for each of five digits, and six backgrounds
_ELEMENTS = 5  # of a march: how often it reads each word
_NOTHING = altered(
    "tested", "tested of what was asked", "words compared", bytes=0, compared=0, free_of_total=0.0
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """How much of the memory is tested."""

    gpu_share: float = 0.97  # of what is free when the test begins, and not a byte less
    cpu_share: float = 0.25  # of what is available, over all devices of a rehearsal together
    gpu_free_of_total: float = 0.85  # a GPU with less than this free is in use by somebody


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of the memory is tested."""

    gpu_share: float = 0.97  # of what is free when the test begins, and not a byte less
    cpu_mib: float = 2.0  # of the host's memory, for each device of a rehearsal


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """How much of the memory is left alone."""

    gpu_share: float = 0.97  # of what is free when the test begins, and not a byte less
    cpu_mib: float = 32.0  # of the host's memory, for each device of a rehearsal


@check(
    "device.memory.pattern",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    limits=Pattern,
    work=Work(
        call="nodeproof.kernels.memory:pattern",
        from_limits=("cpu_share", "gpu_share"),
        load=Load(quick=8, gate=20, deep=300, soak=1800),
        deadline_s=600,
    ),
    plant=(_FLIPS, altered("passes", passes=2), _NOTHING),
)
def test_pattern(device: Device, result: Result, measure: Measure, limits: Pattern) -> None:
    """Memory that loses a bit turns weights and data into other weights and data.

    Every word holds a function of its address; it is verified and inverted forwards, then
    backwards, until the time is over. A mismatch is a bit that ECC did not correct, a cell that
    does not hold, or an address that reaches another's cell: strides between mismatches that are
    powers of two hint at the last. Row remapping may take a reset to act and does not excuse a
    wrong word that reached a program. Replace the device (for a processor: its memory module).

    On a GPU that does not give the whole share, all that it gives is tested and this is no pass.
    What ECC corrects is not seen here, nor memory that others hold. No wrong word among N
    compared: fewer than 3 in N are read wrong under this load, at 95 %.
    """
    _judge(device, result, measure, passes=result["passes"])
    _damage(result, measure)
    measure(
        "passes", result["passes"], at_least=3, cause=Cause.ENVIRONMENT
    )  # forwards, backwards, and what that left
    if device.kind is DeviceKind.GPU:
        measure(
            "free at the start",
            result["free_of_total"],
            at_least=limits.gpu_free_of_total,
            cause=Cause.ENVIRONMENT,
            detail="something else holds memory of this GPU: end it and test again",
        )
    measure("rate", result["gb_per_s"], unit="GB/s")


@check(
    "device.memory.neighbours",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    limits=Size,
    work=Work(
        call="nodeproof.kernels.neighbours:neighbours",
        from_limits=("cpu_mib", "gpu_share"),
        load=Load(quick=1, gate=5, deep=60, soak=600),
        deadline_s=600,
    ),
    plant=(
        _FLIP,
        altered("rounds", rounds=0),
        altered("words kept", "words disturbed", kept=0, disturbed=0),
        _NOTHING,
    ),
    profiles=LONGER,
)
def test_neighbours(device: Device, result: Result, measure: Measure) -> None:
    """Memory that changes when its neighbours are written corrupts data nobody has touched.

    Every twentieth word is kept while all others are overwritten twice with the opposite bits;
    then every word is compared, for each of the twenty in turn, as it is and with all bits opposite.
    Twenty fits no row, bank or channel. A mismatch here and none in device.memory.pattern means
    cells that disturb each other, often only when hot. No driver counter has to move. A reset or
    cooler air hides it for a while; replace the device (for a processor: its memory module).

    What ECC corrects is not seen here, nor what takes many more than two writes. On a processor a
    few MiB are tested, mostly in its caches. No wrong word among N compared: fewer than 3 in N are
    read wrong under this load, at 95 %.
    """
    rounds = result["rounds"]
    _judge(device, result, measure, passes=_TURNS * rounds)
    measure("rounds", result["rounds"], at_least=1)
    measure(
        "words kept",
        result["kept"],
        at_least=_TURNS,
        cause=Cause.ENVIRONMENT,
        detail="of twenty, each in two states",
    )
    others = result["bytes"] // 8 * 19 // 20  # of twenty words one is kept
    measure(
        "words disturbed",
        result["disturbed"],
        at_least=max(1, 2 * others * _TURNS * rounds),
        cause=Cause.ENVIRONMENT,
    )
    measure("rate", result["gb_per_s"], unit="GB/s")


@check(
    "device.memory.march",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    limits=Size,
    work=Work(
        call="nodeproof.kernels.march:march",
        from_limits=("cpu_mib", "gpu_share"),
        load=Load(quick=1, gate=5, deep=60, soak=600),
        deadline_s=600,
    ),
    plant=(
        _FLIP,
        altered("rounds", rounds=0),
        altered(
            "marches", "marches that differ", "passes downwards", marches=0, programme=0, turned=0
        ),
        _NOTHING,
    ),
    profiles=LONGER,
)
def test_march(device: Device, result: Result, measure: Measure) -> None:
    """Memory with a stuck, slow or coupled cell, or two addresses for one, mixes up its contents.

    A march (March C-) reads and rewrites block after block, upwards and downwards, so that a bit
    that is stuck, that fails to change one way, that follows another or that answers to two
    addresses is found for certain, wherever it is: the march is repeated for each digit of the
    address, and with six backgrounds for bits of one word. A mismatch is a fault of the device,
    repeatable or not; the phase says which element saw it. Reset and update do not help: replace
    the device (for a processor: its memory module).

    Not for certain: cells that depend on several neighbours at once (device.memory.neighbours) or
    lose their charge (device.memory.hold), and what ECC corrects. On a processor a few MiB are
    tested, mostly in its caches. No wrong word among N compared: fewer than 3 in N are read wrong
    under this load, at 95 %.
    """
    rounds = result["rounds"]
    _judge(device, result, measure, passes=_ELEMENTS * _MARCHES * rounds)
    measure("rounds", result["rounds"], at_least=1)
    measure(
        "marches", result["marches"], at_least=max(1, _MARCHES * rounds), cause=Cause.ENVIRONMENT
    )
    measure("marches that differ", result["programme"], at_least=_MARCHES, cause=Cause.ENVIRONMENT)
    measure(
        "passes downwards",
        result["turned"],
        at_least=max(1, 2 * _MARCHES * rounds),
        cause=Cause.ENVIRONMENT,
    )
    measure("rate", result["gb_per_s"], unit="GB/s")


@check(
    "device.memory.hold",
    kinds=COMPUTE,
    remedy=Remedy.REPLACE,
    limits=Hold,
    work=Work(
        call="nodeproof.kernels.retention:hold",
        from_limits=("cpu_mib", "gpu_share"),
        load=Load(quick=1, gate=5, deep=60, soak=600),
        deadline_s=600,
    ),
    plant=(
        _FLIPS,
        altered("states held", "held", held=1, held_s=0.0),
        _NOTHING,
    ),
    profiles=frozenset({Profile.DEEP, Profile.SOAK}),
)
def test_hold(device: Device, result: Result, measure: Measure) -> None:
    """Memory that fades when left alone loses weights that wait for their turn.

    Memory is filled and not touched for half of the time, verified, inverted, left alone and
    verified again: each bit has to stay, as one and as zero. Tests that go over memory all the time
    refresh it by reading and cannot see a refresh that fails. Heat makes cells lose their charge
    sooner: cooling helps for a while and cures nothing. Replace the device (for a processor: its
    memory module).

    Only the time of this hold is covered; what fades later, or at a heat that this run did not
    reach, is not seen, nor what ECC corrects. No wrong word among N compared: fewer than 3 in N
    fade in that time, at 95 %.
    """
    _judge(device, result, measure, passes=2)
    _damage(result, measure)
    measure("states held", result["held"], at_least=2)  # as ones and as zeros
    measure("held", result["held_s"], unit="s", at_least=0.01)


def _judge(device: Device, result: Result, measure: Measure, *, passes: int) -> None:
    """Hold words, and how often each was looked at, against their bounds."""
    detail = ""
    first = next((fault for fault in result["found"] if "offset" in fault), None)
    if result["wrong"]:
        detail = "counted by the device, none of them could be located: it contradicts itself"
    if result["wrong"] and first:
        detail = (
            f"first at offset {first['offset']} (address {first['address']}), pass "
            f"{first['phase']}: {first['got']} instead of {first['expected']}, bits "
            f"{first['bits']}; strides {result['strides']}"
        )
    measure("wrong words", result["wrong"], at_most=0, detail=detail)
    words = max(1, result["bytes"] // 8 * passes)
    measure("words compared", result["compared"], unit="words", at_least=words)
    measure("tested", result["bytes"], unit="bytes", at_least=1)
    # What follows must hold for a planted fault too, which is looked for in a small region only:
    # the self-test is to fail because of the wrong words and of nothing else.
    # Asked was the share that the limits name; on a GPU blocks are taken until that is reached, on a
    # processor as many as fit into it.
    measure(
        "tested of what was asked",
        result["bytes"] / result["asked"],
        at_least=1.0 if device.kind is DeviceKind.GPU else 0.95,
        cause=Cause.ENVIRONMENT,
        detail=(
            f"{result['share']:.2%} of what was free at the start: the rest could not be had, or was "
            "needed to test; end what else uses this memory and test again"
        ),
    )
    measure("share of available", result["share"])
    measure("share of all memory", result["share_of_total"])


def _damage(result: Result, measure: Measure) -> None:
    """Hold the pattern itself against what it was made as."""
    measure(
        "damaged pattern words",
        result["reference_wrong"],
        at_most=0,
        detail="the memory that holds the pattern itself changed",
    )
