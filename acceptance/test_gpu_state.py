"""What the driver says of each GPU before any load: modes, heat, clocks, its link to the host."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from nodeproof.acceptance import link
from nodeproof.acceptance.recovery import recovery
from nodeproof.checks import (
    CannotMeasure,
    Cause,
    DeviceKind,
    Measure,
    Remedy,
    Result,
    Work,
    altered,
    check,
)

_MODES = Work(call="nodeproof.probes.gpu_state:modes", deadline_s=15)
_HEAT = Work(call="nodeproof.probes.gpu_state:heat", deadline_s=15)
_PCIE = Work(call="nodeproof.probes.gpu_state:pcie", deadline_s=15)

# What is planted is below zero where zero is a limit that a spec may set.


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryLimits:
    """Whether the driver has to say what is to be done with the GPU. Drivers before 570 can't."""

    told: bool = True


@check(
    "gpu.recovery.action",
    kinds=(DeviceKind.GPU,),
    remedy=Remedy.RESET_GPU,
    limits=RecoveryLimits,
    work=_MODES,
    plant=(
        altered("recovery action told", recovery_told=-1),
        altered("recovery action", recovery_action=1),
    ),
)
def test_recovery_action(result: Result, measure: Measure, limits: RecoveryLimits) -> None:
    """A GPU that its own driver wants reset or rebooted is not fit for a job.

    The driver sets this after an Xid that it could not recover from, and it stays until it is done.
    Do what it says, then test again. Drivers before 570 do not tell: update the driver, or let the
    spec do without it.
    """
    measure(
        "recovery action told",
        result["recovery_told"],
        at_least=int(limits.told),
        cause=Cause.ENVIRONMENT,
        detail="this driver does not say what is to be done with the GPU: update it to 570 or later, or set told = false in the spec",
    )
    action = result["recovery_action"]
    if action is not None:
        asks, cause, remedy = recovery(action)
        measure("recovery action", action, at_most=0, cause=cause, remedy=remedy, detail=asks)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeLimits:
    """How GPUs are to be set: "default", "exclusive-process" or "prohibited"."""

    compute: str = "default"
    persistence: bool | None = None


_COMPUTE = {0: "default", 1: "exclusive-thread", 2: "prohibited", 3: "exclusive-process"}


@check(
    "gpu.mode.compute",
    kinds=(DeviceKind.GPU,),
    remedy=Remedy.RETEST,
    cause=Cause.ENVIRONMENT,
    limits=ModeLimits,
    work=_MODES,
    plant=altered("compute mode other than expected", compute_mode=99, persistence=None),
)
def test_compute_mode(result: Result, measure: Measure, limits: ModeLimits) -> None:
    """A GPU in another compute mode refuses the second process, or every one.

    Usual cause: a setting that somebody left behind. Set it back with nvidia-smi -c. Persistence
    mode keeps the driver's state between jobs; it is judged only where the spec names it.
    """
    number = result["compute_mode"]
    if number is None:
        raise CannotMeasure("the driver does not tell the compute mode: update it")
    mode = _COMPUTE.get(number, f"number {number}")
    measure(
        "compute mode other than expected",
        int(mode != limits.compute),
        at_most=0,
        detail=f"it is {mode} and should be {limits.compute}: nvidia-smi -c",
    )
    measure(
        "persistence mode other than expected",
        int(result["persistence"] is not limits.persistence),
        at_most=None if limits.persistence is None else 0,
        detail="set it with nvidia-smi -pm, or start nvidia-persistenced",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MigLimits:
    """Whether the GPU is to be cut into slices, and into which: "1g.10gb 1g.10gb 3g.40gb"."""

    on: bool = False
    slices: str = ""


@check(
    "gpu.mode.mig",
    kinds=(DeviceKind.GPU,),
    remedy=Remedy.RETEST,
    cause=Cause.ENVIRONMENT,
    limits=MigLimits,
    work=_MODES,
    plant=altered(
        "MIG",
        "MIG change waits for a reset",
        mig=2,
        mig_next=False,
        slices=[{"uuid": "MIG-planted", "profile": "planted"}],
    ),
)
def test_mig(result: Result, measure: Measure, limits: MigLimits) -> None:
    """A GPU that is cut into slices can't be judged as a whole: a process sees one slice of it.

    Whole GPUs are accepted first and partitioned after. Turn MIG off (nvidia-smi -mig 0) and reset
    the GPU, or let the spec say which slices there have to be: then they are held against it, and
    gpu.mig.slices tests them, but no node with MIG on is accepted. A GPU without MIG has it off.
    """
    have = Counter(part["profile"] for part in result["slices"])
    measure(
        "MIG",
        int(result["mig"] or 0),
        at_least=int(limits.on),
        at_most=int(limits.on),
        cause=Cause.CONFIG if limits.on else None,
        detail=f"{sum(have.values())} slices: {_slices(have)}",
    )
    measure(
        "MIG change waits for a reset",
        int(result["mig"] is not result["mig_next"]),
        at_most=0,
        detail="reset the GPU",
    )
    want = Counter(limits.slices.split())
    for name, differ in (("slices missing", want - have), ("slices too many", have - want)):
        measure(
            name,
            sum(differ.values()),
            at_most=0 if want else None,
            cause=Cause.CONFIG,
            detail=f"{_slices(differ)}; there are {_slices(have)}",
        )


def _slices(counts: Counter[str]) -> str:
    return ", ".join(f"{n} of {profile}" for profile, n in sorted(counts.items())) or "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatLimits:
    """How warm a GPU may be without load. The GPU's own thresholds count where they are lower."""

    below_threshold_c: float = 5.0
    hottest_c: float = 85.0
    memory_hottest_c: float = 95.0


@check(
    "gpu.thermal.limits",
    kinds=(DeviceKind.GPU,),
    remedy=Remedy.RETEST,
    cause=Cause.ENVIRONMENT,
    limits=HeatLimits,
    work=_HEAT,
    plant=altered(
        "temperature",
        "degrees left",
        "memory temperature",
        temperature_c=1000,
        margin_c=-1000,
        memory_c=1000,
    ),
)
def test_heat(result: Result, measure: Measure, limits: HeatLimits) -> None:
    """A GPU that is hot before it works slows down as soon as it does.

    Usual causes: the job before has only just ended; fans, coolant or air are missing. Let it cool
    and test again; if it stays hot without load, look at the cooling of this node. A reset does
    not cool anything.
    """
    at = result["thresholds_c"]
    temperature = result["temperature_c"]
    if temperature is None:
        raise CannotMeasure("the driver does not tell the GPU's temperature: update it")
    # A threshold of zero is one that is not told.
    own = [at[name] for name in ("operation", "slowdown") if at[name]]
    measure(
        "temperature",
        temperature,
        unit="C",
        at_most=min([limits.hottest_c, *(t - limits.below_threshold_c for t in own)]),
        detail=f"its own thresholds: {at}",
    )
    if result["margin_c"] is not None:
        measure("degrees left", result["margin_c"], unit="C", at_least=limits.below_threshold_c)
    if result["memory_c"] is not None:
        own = [at["memory"]] if at["memory"] else []
        measure(
            "memory temperature",
            result["memory_c"],
            unit="C",
            at_most=min([limits.memory_hottest_c, *(t - limits.below_threshold_c for t in own)]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockLimits:
    """What the GPU may reach. A spec states what the product does."""

    power_limit_w: float | None = None
    sm_mhz_max: float | None = None


# nvml.h, clock event reasons. The power cap is normal under load, and so are the settings.
_HELD_DOWN = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


@check(
    "gpu.clock.throttle",
    kinds=(DeviceKind.GPU,),
    remedy=Remedy.RESET_GPU,
    limits=ClockLimits,
    work=_HEAT,
    # What a spec may leave open is broken beside what is always held.
    plant=altered(
        "reasons that hold the clocks down", throttle=0x84, power_limit_w=-1.0, sm_mhz_max=-1
    ),
)
def test_throttle(result: Result, measure: Measure, limits: ClockLimits) -> None:
    """A GPU that is held down while it idles has nothing to give when work comes.

    Read several times; only what holds in every reading counts, bit by bit. A power brake is pulled
    from outside the GPU: look at the supplies and the node's own controller. A reset clears a state
    that stuck. For how long heat and power held it down since the driver was loaded is shown.
    """
    bits = result["throttle"]
    if bits is None:
        raise CannotMeasure("the driver does not say what holds the clocks down: update it")
    held = [name for bit, name in _HELD_DOWN.items() if bits & bit]
    measure(
        "reasons that hold the clocks down",
        len(held),
        at_most=0,
        detail=f"{', '.join(held)} in every reading; {result['temperature_c']} C, {result['power_w']} W",
    )
    for name, seconds in result["held_s"].items():
        if seconds is not None:
            measure(f"held down by {name}", seconds, unit="s")
    for name, value, unit, least in (
        ("power limit", result["power_limit_w"], "W", limits.power_limit_w),
        ("greatest SM clock", result["sm_mhz_max"], "MHz", limits.sm_mhz_max),
    ):
        if least is not None or value is not None:
            measure(
                name,
                value,
                unit=unit,
                at_least=least,
                cause=Cause.ENVIRONMENT,
                detail="somebody lowered it (nvidia-smi -pl, -lgc), or it is another product: correct the spec",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLimits:
    """The link to the host. A width in the spec stands for what GPU and slot are able to together."""

    width: int | None = None  # lanes
    told: bool = True  # some virtual machines hide the link


@check(
    "gpu.pcie.link",
    kinds=(DeviceKind.GPU,),
    remedy=Remedy.REPLACE,
    limits=LinkLimits,
    work=_PCIE,
    plant=(altered("link told", told=-1), altered("width", width=-1, generation=None)),
)
def test_pcie_link(result: Result, measure: Measure, limits: LinkLimits) -> None:
    """A link to the host that trained narrow starves the GPU of data, and only jobs notice.

    Usual causes: a board that is not seated well, a worn riser or cable. A reset seldom helps. An
    idle link lowers its generation to save power, and may give up lanes with it: what is read in
    that state is shown here and judged under load (gpu.pcie.generation). What a slot can't do, the
    GPU does not miss: only a spec knows how wide it should be. It is a fault of the hardware on bare
    metal only. In a virtual machine, or where nobody says what the machine is, the width that the
    link could have may be the hypervisor's invention: say in the spec what this kind of machine gives.
    """
    measure(
        "link told",
        min(result["told"], int(not (result["width_max"] is None and limits.width is None))),
        at_least=int(limits.told),
        cause=Cause.ENVIRONMENT,
        detail=(
            "the driver does not tell the width of the link to the host, or not which it could have: "
            "give the width in the spec, or set told = false if this machine hides it"
        ),
    )
    if result["width"] is not None:
        link.hold(
            measure,
            "width",
            result["width"],
            able=result["width_max"],
            wanted=limits.width,
            virtual=result["virtual"],
            unit="lanes",
            shown_only=_spares_lanes(result),
        )
    for name in ("generation", "generation_max", "generation_gpu", "replays"):
        if result[name] is not None:
            measure(name.replace("_", " "), result[name])


def _spares_lanes(result: Result) -> bool:
    """Whether it has fewer lanes in the state of an idle link, as nvidia-smi(1) says it may."""
    width, generation = result["width_max"], result["generation_max"]
    if None in (width, generation, result["generation"]):
        return False
    return bool(result["width"] < width and result["generation"] < generation)
