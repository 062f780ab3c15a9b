"""The pace of a load: from samples of telemetry and windows to who is blamed for what."""

from __future__ import annotations

import inspect
import math

import pytest

from nodeproof.acceptance import test_burnin_pace as pace
from nodeproof.checks import CannotMeasure, Device, DeviceKind, spec_of
from nodeproof.kernels.burn import drift
from nodeproof.model import Cause, Outcome
from nodeproof.plugin.judging import Measurements, judge
from nodeproof.plugin.selftesting import concluded, planted_in_answer
from nodeproof.plugin.watched import watched

CAP, SLOWDOWN, WARM, HOT, BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80
SECONDS = 20
HARDWARE, ENVIRONMENT = Cause.HARDWARE, Cause.ENVIRONMENT


def gpu(number, kind=DeviceKind.GPU):
    return Device(kind=kind, id=f"GPU-{number}", label=f"gpu{number}")


def telemetry(throttle=(), *, every=CAP, beat=1.0, before=(), silence=0.5, until=SECONDS):
    """What is made of one sample a `beat` in a load of 20 s, the first of them with `throttle`."""
    count = int(until / beat)
    masks = [*throttle, *[every] * (count - len(throttle))]
    samples = [{"at": 100 - len(before) + n, "throttle": mask} for n, mask in enumerate(before)]
    samples += [
        {"at": 100.5 + n * beat, "throttle": mask, "temperature_c": 70, "sm_mhz": 1700}
        for n, mask in enumerate(masks)
    ]
    load = (100.0, 100.0 + SECONDS)
    return watched(samples, since={}, seconds=60.0, silence_s=silence, load=load)


SOUND = telemetry()


def burnt(median=500.0, evenness=0.98, seen=SOUND, **more):
    """The answer of a load."""
    return {
        "median_tflops": median,
        "p5_tflops": median * evenness,
        "p5_of_median": evenness,
        "windows": [median],
        "window_s": 0.25,
        "slow": [],
        "drift": 0.0,
        "telemetry": seen,
        **more,
    }


def peers(*seen):
    return [(gpu(n), burnt(seen=each)) for n, each in enumerate(seen, 1)]


def judged(check, *, limits=None, device=None, **given):
    """What a check makes of an answer: outcome, cause and the names of what is short."""
    spec, measure, raised = spec_of(check), Measurements(), None
    limits = limits or spec.limits()
    given = {"peers": [], "device": device or gpu(0), "limits": limits, "measure": measure, **given}
    try:
        check(**{n: given[n] for n in inspect.signature(check).parameters})
    except CannotMeasure as error:
        raised = error
    return judge(spec, measure.taken, raised)


def throttled(seen, *others):
    judgement = judged(pace.test_throttling, result=burnt(seen=seen), peers=peers(*others))
    return judgement.cause, sorted(judgement.broken)


HELD, BRAKED = "held down by heat", "held down by a power brake"
WARMED, UNNAMED = "held down by the driver for heat", "held down without a reason, in a row"


@pytest.mark.parametrize(
    ("mask", "others", "expected"),
    [
        ([SLOWDOWN | CAP], [SOUND], (None, [])),
        ([SLOWDOWN | CAP, CAP, SLOWDOWN | CAP], [SOUND], (None, [])),
        ([SLOWDOWN, None, SLOWDOWN], [SOUND], (ENVIRONMENT, [UNNAMED])),
        ([SLOWDOWN] * 2, [SOUND], (ENVIRONMENT, [UNNAMED])),
        ([SLOWDOWN] * 9, [SOUND], (ENVIRONMENT, [UNNAMED])),
        ([SLOWDOWN] * 10, [SOUND, SOUND], (HARDWARE, [UNNAMED])),
        ([SLOWDOWN] * 20, [], (ENVIRONMENT, [UNNAMED])),
        ([SLOWDOWN] * 20, [telemetry([SLOWDOWN] * 20)], (ENVIRONMENT, [UNNAMED])),
        ([SLOWDOWN | WARM] * 2, [SOUND], (ENVIRONMENT, [WARMED])),
        ([WARM], [SOUND], (ENVIRONMENT, [WARMED])),
        ([WARM] * 20, [SOUND], (ENVIRONMENT, [WARMED])),
        ([HOT | SLOWDOWN], [SOUND], (ENVIRONMENT, [HELD])),
        ([HOT | SLOWDOWN] * 2, [SOUND, SOUND], (HARDWARE, [HELD])),
        ([HOT | SLOWDOWN, CAP, HOT | SLOWDOWN], [SOUND], (HARDWARE, [HELD])),
        ([HOT] * 20, [], (ENVIRONMENT, [HELD])),
        ([HOT] * 20, [SOUND, telemetry([WARM])], (ENVIRONMENT, [HELD])),
        ([HOT] * 20, [SOUND, telemetry([HOT])], (ENVIRONMENT, [HELD])),
        ([HOT] * 20, [telemetry(every=None)], (ENVIRONMENT, [HELD])),
        ([BRAKE | SLOWDOWN], [SOUND] * 7, (ENVIRONMENT, [BRAKED])),
        ([BRAKE | SLOWDOWN] * 2, [SOUND] * 7, (HARDWARE, [BRAKED])),
        ([BRAKE] * 2, [SOUND, telemetry([WARM])], (HARDWARE, [BRAKED])),
        ([BRAKE] * 20, [SOUND, telemetry([BRAKE])], (ENVIRONMENT, [BRAKED])),
        ([BRAKE] * 20, [], (ENVIRONMENT, [BRAKED])),
        ([CAP | 0x1 | 0x2 | 0x10 | 0x100] * 20, [SOUND], (None, [])),
    ],
)
def test_who_is_blamed_for_what_held_a_device_down(mask, others, expected):
    assert throttled(telemetry(mask), *others) == expected


def test_what_held_it_down_before_the_load_is_none_of_the_load():
    cold = telemetry(before=[SLOWDOWN, SLOWDOWN | HOT, WARM, BRAKE])
    assert throttled(cold, SOUND) == (None, [])


@pytest.mark.parametrize(
    ("seen", "broken"),
    [
        (SOUND, []),
        (telemetry(beat=1.9), []),
        (telemetry(beat=4.0), ["readings"]),
        (telemetry(every=None), ["longest gap", "readings"]),
        (telemetry([CAP], every=None), ["longest gap", "readings"]),
        (telemetry(until=SECONDS / 2), ["longest gap"]),
        (telemetry([CAP] * 5 + [None] * 6), ["longest gap"]),
        (telemetry(before=[CAP] * 20, until=0), ["longest gap", "readings"]),
    ],
    ids=[
        "sound",
        "slow but steady",
        "too seldom",
        "never read",
        "read once",
        "died half-way",
        "silent in the midst",
        "died before the load",
    ],
)
def test_a_load_that_was_not_watched_throughout_is_no_pass_and_blames_nobody(seen, broken):
    assert throttled(seen, SOUND) == (ENVIRONMENT if broken else None, broken)


def test_a_load_without_a_beginning_and_an_end_was_not_watched():
    samples = [{"at": float(n), "throttle": 0} for n in range(20)]
    seen = watched(samples, since={}, seconds=20.0, silence_s=0.0)
    judgement = judged(pace.test_throttling, result=burnt(seen=seen), peers=peers(SOUND))
    assert (judgement.outcome, judgement.cause) == (Outcome.ERROR, ENVIRONMENT)


UNEVEN, DRIFT = "slowest twentieth of the median", "drift"


@pytest.mark.parametrize(
    ("answer", "others", "expected"),
    [
        ({}, [SOUND], (None, [])),
        ({"evenness": 0.8}, [SOUND], (ENVIRONMENT, [UNEVEN])),
        ({"drift": 0.06}, [SOUND], (ENVIRONMENT, ["drift"])),
        ({"drift": 0.06, "seen": telemetry([WARM] * 20)}, [SOUND], (ENVIRONMENT, ["drift"])),
        ({"drift": 0.3, "seen": telemetry([HOT] * 20)}, [], (ENVIRONMENT, ["drift"])),
        ({"drift": 0.3, "seen": telemetry([HOT] * 20)}, [SOUND], (HARDWARE, ["drift"])),
        ({"evenness": 0.6, "seen": telemetry([BRAKE] * 5)}, [SOUND], (HARDWARE, [UNEVEN])),
        ({"evenness": 0.6, "seen": telemetry([BRAKE] * 5)}, [telemetry([BRAKE])], (ENVIRONMENT, [UNEVEN])),
        ({"evenness": 0.6, "seen": telemetry([SLOWDOWN] * 20)}, [SOUND], (HARDWARE, [UNEVEN])),
        ({"evenness": 0.6, "seen": telemetry([BRAKE] * 5, silence=3.0)}, [SOUND], (ENVIRONMENT, [UNEVEN])),
        ({"seen": telemetry(beat=4.0)}, [SOUND], (ENVIRONMENT, ["telemetry"])),
        ({"seen": telemetry(every=None)}, [SOUND], (None, [])),
    ],
)  # fmt: skip
def test_an_uneven_device_is_blamed_only_with_a_witness(answer, others, expected):
    judgement = judged(pace.test_throughput, result=burnt(**answer), peers=peers(*others))
    assert (judgement.cause, sorted(judgement.broken)) == expected


@pytest.mark.parametrize(
    ("seen", "others", "cause"),
    [
        (SOUND, [SOUND], HARDWARE),
        (SOUND, [], HARDWARE),
        (telemetry([WARM] * 9), [SOUND], HARDWARE),
        (telemetry([WARM] * 10), [SOUND], ENVIRONMENT),
        (telemetry([HOT] * 20), [], ENVIRONMENT),
        (telemetry([HOT] * 20), [SOUND], HARDWARE),
        (telemetry([BRAKE] * 20), [telemetry([BRAKE] * 20)], ENVIRONMENT),
        (telemetry(silence=3.0), [SOUND], ENVIRONMENT),
        (telemetry(every=None), [SOUND], HARDWARE),
    ],
)
def test_a_figure_that_a_spec_measured_condemns_unless_something_else_explains_it(
    seen, others, cause
):
    result, asked = burnt(seen=seen), pace.Throughput(median_tflops=600.0)
    judgement = judged(pace.test_throughput, result=result, limits=asked, peers=peers(*others))
    assert (judgement.cause, judgement.broken) == (cause, {"median"})
    unasked = judged(pace.test_throughput, result=result, peers=peers(*others))
    assert unasked.outcome is Outcome.PASS
    assert math.isfinite(result["p5_tflops"])


def node(*answers, kind=DeviceKind.GPU):
    return [(gpu(n, kind), answer) for n, answer in enumerate(answers)]


@pytest.mark.parametrize(
    ("results", "cause"),
    [
        (node(*map(burnt, [700.0, 705.0, 698.0, 702.0])), None),
        (node(*map(burnt, [700.0, 705.0, 651.0, 702.0])), None),
        (node(*map(burnt, [700.0, 705.0, 600.0, 702.0])), ENVIRONMENT),
        (node(burnt(700.0), burnt(500.0)), ENVIRONMENT),
        (node(burnt(700.0), burnt(500.0, seen=telemetry([BRAKE] * 20))), HARDWARE),
        (node(burnt(700.0), burnt(500.0, seen=telemetry([HOT] * 20))), HARDWARE),
        (node(burnt(700.0), burnt(500.0, seen=telemetry([SLOWDOWN] * 20))), HARDWARE),
        (node(burnt(700.0), burnt(500.0, seen=telemetry([WARM] * 20))), ENVIRONMENT),
        (node(burnt(700.0, seen=telemetry([HOT] * 20)), burnt(500.0)), ENVIRONMENT),
        (
            node(*(burnt(x, seen=telemetry([BRAKE] * 20)) for x in (700.0, 500.0))),
            ENVIRONMENT,
        ),
        (
            node(burnt(700.0, seen=telemetry(silence=3.0)), burnt(5.0, seen=telemetry([HOT] * 20))),
            ENVIRONMENT,
        ),
        (node(burnt(700.0)), None),
        (node(burnt(700.0, evenness=0.7)), ENVIRONMENT),
        (node(burnt(700.0, evenness=0.7, seen=telemetry([HOT] * 20))), ENVIRONMENT),
    ],
    ids=[
        "alike",
        "a lottery",
        "one lags",
        "one of two lags",
        "braked alone",
        "hot alone",
        "slowed alone",
        "too warm",
        "another is hot",
        "all are braked",
        "somebody was held up",
        "alone",
        "alone and uneven",
        "alone, uneven and hot",
    ],
)
def test_a_laggard_leaves_its_node_undecided_and_condemns_it_with_a_witness(results, cause):
    judgement = judged(pace.test_spread, results=results)
    assert judgement.cause is cause
    assert judgement.broken == ({"largest shortfall"} if cause else set())


def test_a_device_without_a_median_leaves_the_node_unjudged():
    short = {name: value for name, value in burnt().items() if name != "median_tflops"}
    with pytest.raises(KeyError):
        judged(pace.test_spread, results=node(burnt(), short))


@pytest.mark.parametrize("kind", [DeviceKind.GPU, DeviceKind.CPU])
@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("seen", [SOUND, telemetry(every=None), telemetry([HOT] * 20)])
def test_every_limit_of_the_spread_is_broken_by_a_planted_laggard(kind, count, seen):
    spec, results = spec_of(pace.test_spread), node(*[burnt(seen=seen)] * count, kind=kind)

    def attempt(answer):
        return judged(pace.test_spread, results=answer)

    trials = [planted_in_answer(spec, plant, results, attempt) for plant in spec.plants]
    test = concluded(spec, None, [t for t in trials if t], attempt(results).bounded)
    assert test.caught, test.summary
    assert (trials[1] is None) is (count == 1 or kind is DeviceKind.CPU)


@pytest.mark.parametrize("others", [[], [SOUND], [telemetry([HOT] * 20)]])
@pytest.mark.parametrize("seen", [SOUND, telemetry([SLOWDOWN] * 20), telemetry([HOT] * 20)])
@pytest.mark.parametrize("check", [pace.test_throttling, pace.test_throughput])
def test_every_limit_of_one_device_is_broken_by_a_planted_fault(check, seen, others):
    spec, answer = spec_of(check), burnt(seen=seen)

    def attempt(result):
        return judged(check, result=result, peers=peers(*others))

    trials = [planted_in_answer(spec, p, answer, attempt) for p in spec.plants if p.alter]
    bounded = attempt(answer).bounded - {UNEVEN}  # which the worker breaks
    test = concluded(spec, None, [t for t in trials if t], bounded)
    assert test.caught, test.summary


def test_the_drift_leaves_out_the_time_in_which_a_device_warms_up():
    warming = [1.2] * 10 + [1.0] * 30
    assert drift(warming) == 0.0
    assert drift([1.2] * 10 + [1.0] * 20 + [0.9] * 10) == pytest.approx(0.1)
    assert drift([1.0] * 30 + [1.1] * 10) == pytest.approx(-0.1)
    assert [drift([1.0] * n) for n in range(1, 9)] == [0.0] * 8
