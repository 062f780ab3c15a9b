"""How the collective checks judge what the ranks return."""

import pytest

from nodeproof.acceptance import test_collectives as suite
from nodeproof.checks import CannotMeasure, Device, DeviceKind, spec_of
from nodeproof.model import Measurement
from nodeproof.nccl_tests.settings import inside_the_node

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


def data(answer, *others):
    peers = [
        (Device(kind=DeviceKind.GPU, id=f"GPU-{n}", label=f"gpu{n}"), other)
        for n, other in enumerate(others, 1)
    ]
    return judge(suite.test_collective_data, device=GPU, result=answer, peers=peers)


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
    assert taken["wrong"].detail.startswith(
        "all_reduce of 128 bytes of bfloat16, repeat 3: element 17 is 0x4108, not 0x4100 (bits 3)"
    )


def gathered(*elements, collective="all_gather", repeats=(0,)):
    """Wrong elements of 4 ranks with 8 elements each."""
    return [
        {**FLIP, "collective": collective, "bytes": 128, "element": e, "repeat": r}
        for e in elements
        for r in repeats
    ]


SOUND4 = result(size=4)
TWO_SENDERS = gathered(1, 9)


@pytest.mark.parametrize(
    ("found", "peers", "named"),
    [
        pytest.param(TWO_SENDERS, [SOUND4] * 3, True, id="of two senders, here alone"),
        pytest.param(gathered(1, 9, collective="all_to_all"), [SOUND4] * 3, True, id="two pieces"),
        pytest.param(
            gathered(1, collective="broadcast", repeats=(1, 2)),
            [SOUND4] * 3,
            True,
            id="two roots",
        ),
        pytest.param(gathered(1, 7), [SOUND4] * 3, False, id="of one sender"),
        pytest.param([FLIP], [SOUND4] * 3, False, id="a sum, which has many senders"),
        pytest.param(
            TWO_SENDERS,
            [SOUND4, SOUND4, result(size=4, wrong=1, found=[FLIP])],
            False,
            id="on two devices",
        ),
        pytest.param(
            TWO_SENDERS,
            [result(size=4, wrong=9, found=TWO_SENDERS)] * 3,
            False,
            id="on every device",
        ),
        pytest.param(TWO_SENDERS, [SOUND4] * 2, False, id="one device did not answer"),
        pytest.param([], [SOUND4] * 3, False, id="nothing described"),
    ],
)
def test_wrong_data_is_hardware_and_names_a_device_only_where_one_is_told(found, peers, named):
    """No retry takes wrong bits back, whoever sent them."""
    taken = data(result(size=4, wrong=2, found=found), *peers)
    assert broken(taken) == {"wrong"}
    assert taken["wrong"].cause == "hardware"
    assert ("only this device got it wrong" in taken["wrong"].detail) is named
    assert ("IOMMU" in taken["wrong"].detail) is not named


@pytest.mark.parametrize("ranks", [2, 3])
def test_wrong_data_of_few_devices_names_none(ranks):
    taken = data(
        result(size=ranks, wrong=2, found=TWO_SENDERS), *[result(size=ranks)] * (ranks - 1)
    )
    assert (broken(taken), taken["wrong"].cause) == ({"wrong"}, "hardware")


def test_what_one_device_alone_got_wrong_of_itself_is_its_own():
    taken = data(result(size=1, wrong=1, found=[FLIP]))
    assert (broken(taken), taken["wrong"].cause) == ({"wrong"}, "hardware")


def test_slow_collectives_blame_nobody_and_say_what_was_set():
    declared = spec_of(suite.test_collective_bandwidth)
    slow = result(gbs=0.1, settings={"NCCL_P2P_DISABLE": "1"})
    taken = bandwidth(slow, slow)
    assert broken(taken) == set(NAMES)
    assert {m.cause or declared.cause for m in taken.values()} == {"environment"}
    assert "NCCL_P2P_DISABLE=1: test again without" in taken["all_reduce"].detail
    assert "test again without" not in bandwidth(result(), result())["all_reduce"].detail


def test_only_what_changes_the_way_inside_a_node_is_told():
    environment = {
        "NCCL_P2P_DISABLE": "1",
        "NCCL_ALGO": "Ring" * 40,
        "CUDA_LAUNCH_BLOCKING": "1",
        "NCCL_SOCKET_IFNAME": "eth0",
        "NCCL_IB_HCA": "mlx5",
        "NCCL_DEBUG": "INFO",
        "NCCL_VERSION": "2.28.3",
        "CUDA_VISIBLE_DEVICES": "0",
        "SECRET": "s",
    }
    told = inside_the_node(environment)
    assert set(told) == {"NCCL_P2P_DISABLE", "NCCL_ALGO", "CUDA_LAUNCH_BLOCKING"}
    assert len(told["NCCL_ALGO"]) == 40


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
