"""How the collective checks judge what the ranks return."""

import pytest

from nodeproof.acceptance import test_collectives as suite
from nodeproof.checks import CannotMeasure, Device, DeviceKind, spec_of
from nodeproof.model import Measurement

NAMES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "sendrecv")
GPU = Device(kind=DeviceKind.GPU, id="GPU-a", label="gpu0")
NODE = Device(kind=DeviceKind.NODE, id="node-1", label="node-1")
LIMITS = suite.Limits()
FLIP = {
    "collective": "all_reduce",
    "bytes": 128,
    "dtype": "bfloat16",
    "repeat": 3,
    "element": 17,
    "expected": "0x4100",
    "got": "0x4108",
    "xor": "0x0008",
    "bits": [3],
}


def result(*, size=2, gbs=100.0, **change):
    per = dict.fromkeys(NAMES, 0.001)
    return {
        "wrong": 0,
        "found": [],
        "checked": dict.fromkeys(NAMES, 1000),
        "own_seconds": per,
        "busbw_gbs": dict.fromkeys(NAMES, gbs),
        "largest_bytes": dict.fromkeys(NAMES, 2**30),
        "size": size,
        "transport": {"backend": "nccl"},
    } | change


def judge(check, **given):
    """The measurements that a check takes, by name."""
    taken = {}

    def measure(name, value, **bounds):
        taken[name] = Measurement(name=name, value=value, **bounds)

    check(measure=measure, **given)
    return taken


def data(answer):
    return judge(suite.test_collective_data, device=GPU, result=answer)


def bandwidth(*answers, limits=LIMITS):
    results = [
        (Device(kind=DeviceKind.GPU, id=f"GPU-{n}", label=f"gpu{n}"), answer)
        for n, answer in enumerate(answers)
    ]
    return judge(suite.test_collective_bandwidth, device=NODE, results=results, limits=limits)


def broken(taken):
    return {name for name, m in taken.items() if not m.held}


def test_sound_data_is_judged_by_what_was_verified_and_what_was_wrong():
    taken = data(result())
    assert set(taken) == {"verified", "wrong"}
    assert all(m.bounded for m in taken.values())
    assert broken(taken) == set()


def test_one_wrong_element_fails_and_is_named():
    taken = data(result(wrong=1, found=[FLIP]))
    assert broken(taken) == {"wrong"}
    assert taken["wrong"].detail == (
        "all_reduce of 128 bytes of bfloat16, repeat 3: element 17 is 0x4108, not 0x4100 (bits 3)"
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_collective_that_was_not_verified_is_no_pass(name):
    checked = dict.fromkeys(NAMES, 1000)
    assert broken(data(result(checked={**checked, name: 0}))) == {"verified"}
    del checked[name]
    with pytest.raises(KeyError):
        data(result(checked=checked))


@pytest.mark.parametrize("name", NAMES)
def test_each_collective_has_to_reach_its_own_floor(name):
    fast = result()
    slow = fast | {"busbw_gbs": {**fast["busbw_gbs"], name: 1.9}}
    assert broken(bandwidth(slow, slow)) == {name}
    assert broken(bandwidth(fast, fast)) == set()


def test_a_spec_can_raise_a_floor():
    taken = bandwidth(result(), result(), limits=suite.Limits(all_reduce_gbs=400.0))
    assert broken(taken) == {"all_reduce"}
    assert "gpu1 GPU-1 1.000 ms" in taken["all_reduce"].detail


def test_one_gpu_is_held_to_nothing_it_cannot_do_but_must_have_taken_part():
    taken = bandwidth(result(size=1, gbs=0.0))
    assert {name for name, m in taken.items() if m.bounded} == {"ranks"}
    assert broken(taken) == set()


def test_ranks_that_ran_apart_instead_of_together_are_no_pass():
    apart = result(size=1)
    assert "ranks" in broken(bandwidth(apart, apart))


def test_ranks_that_disagree_about_the_bandwidth_are_not_believed():
    with pytest.raises(CannotMeasure, match="report different bandwidths"):
        bandwidth(result(), result(gbs=101.0))


def test_no_ranks_are_no_bandwidth():
    with pytest.raises(CannotMeasure, match="no device of node-1"):
        bandwidth()


@pytest.mark.parametrize("size", [1, 2])
def test_each_plant_breaks_exactly_what_it_names(size):
    sound = [(GPU, result(size=size, gbs=900.0)) for _ in range(size)]
    for plant in spec_of(suite.test_collective_bandwidth).plants:
        altered = plant.alter(sound)
        if altered is None:
            assert size == 1
            continue
        assert broken(bandwidth(*(answer for _, answer in altered))) == set(plant.breaks)


def test_both_checks_share_one_exchange():
    declared = [spec_of(f) for f in (suite.test_collective_data, suite.test_collective_bandwidth)]
    assert declared[0].work == declared[1].work
    assert declared[0].work.group
