"""Chains of integers: ends in closed form, and no wrong bit that passes."""

import pytest
import torch
from alu_runs import interpreted, outcomes, suite
from test_detectors import caught, run_with
from test_kernel_float_chain import HERE, PROGRAM, here

from nodeproof.kernels.chase import Shape
from nodeproof.kernels.integer_chain import PRIME, RECURRENCES, exact, make
from nodeproof.kernels.lanes import Ledger, load, walk

SMALL = Shape(lanes=40, segments=3, steps=7)
EACH = pytest.mark.parametrize("name", RECURRENCES)
CPU = torch.device("cpu")


def test_a_sound_device_has_every_bit_right():
    result = exact(here(), seconds=0.05)
    assert (result["wrong"], result["found"], result["planted"]) == (0, [], [])
    assert result["chains"] == list(RECURRENCES)
    assert result["loaded_s"] >= 0.05


@pytest.mark.parametrize("seed", range(4))
def test_what_is_planted_is_what_is_found(seed):
    result = exact(here(seed=seed), plant="flip")
    assert result["found"] == result["planted"]
    assert result["wrong"] == len(result["planted"]) == 2 * len(RECURRENCES)
    assert {fault["chain"] for fault in result["planted"]} == set(RECURRENCES)


def test_an_unknown_plant_is_refused():
    with pytest.raises(ValueError, match="flip"):
        exact(here(), plant="fire")


@EACH
def test_every_lane_walked_step_by_step_comes_to_the_closed_form(name):
    chain = make(name, SMALL, 5)
    for segment in range(chain.segments):
        for lane in range(chain.lanes):
            end = chain.replay(lane, chain.at(segment, lane), chain.steps)
            assert end == chain.at(segment + 1, lane)


@EACH
def test_torch_walks_the_same_way_from_states_with_the_highest_bit_set(name):
    chain = make(name, SMALL, 5)
    # The modulus of the one with carry is below 2**62.
    highest = chain.marks[:, 0] >> (61 if name == "mwc64" else chain.bits - 1)
    assert 0 < int(highest.sum()) < highest.size
    ledger = Ledger()
    walk(load(chain, CPU), ledger, copies=3, number=0)
    assert ledger.wrong == 0
    assert ledger.operations == chain.operations * 3 * 7 * 40 * 3


@EACH
def test_no_bit_that_is_flipped_at_any_step_is_forgotten(name):
    chain = make(name, Shape(lanes=8, segments=2, steps=16), 5)
    for bit in range(chain.bits):
        for cut in (0, 5, 16):
            state = list(chain.replay(3, chain.at(1, 3), cut))
            state[0] ^= 1 << bit
            assert chain.replay(3, tuple(state), 16 - cut) != chain.at(2, 3)


def test_by_fermat_the_square_of_half_the_way_is_one():
    chain = make("power31", Shape(lanes=50, segments=1, steps=29), 5)
    ends = [int(end) for end in chain.marks[1, 0]]
    assert {end * end % PRIME for end in ends} == {1}
    assert set(ends) <= {1, PRIME - 1}


@pytest.mark.long
def test_the_kernel_of_the_registers_finds_what_is_planted_and_nothing_else(tmp_path):
    pytest.importorskip("triton", reason="the register kernel needs Triton")
    given = {"module": "integer_chain", "chains": list(RECURRENCES), "faults": 14}
    assert interpreted(PROGRAM.format(tests=HERE, **given), tmp_path) == "sound\n"


@pytest.mark.long
@pytest.mark.parametrize(("operation", "dtype"), [("bitwise_xor", "int32"), ("mul", "int64")])
def test_a_device_that_errs_for_good_is_condemned_alone(tmp_path, operation, dtype):
    fault = {"label": "cpu1", "operation": operation, "dtype": dtype, "bit": 3, "every": 1}
    found = suite(tmp_path, "integer_chain", fault=fault)
    assert outcomes(found) == {"cpu0": ("pass", None), "cpu1": ("fail", "hardware")}
    assert caught(found, "alu.integer_chain") == {True}


BREAKS = [
    ("kernels/lanes.py", "state[w] != want[w]", "state[w] > want[w]"),
    ("kernels/lanes.py", "        if wrong:\n            ledger.wrong", "        if False:\n            ledger.wrong"),
    ("kernels/lanes.py", "ledger.wrong += wrong", "pass"),
    ("acceptance/test_alu.py", 'result["wrong"], at_most=0, detail=detail', 'result["wrong"], detail=detail'),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "old", "new"),
    BREAKS,
)
def test_a_comparison_that_is_broken_is_a_self_test_that_is_missed(tmp_path, file, old, new):
    found = run_with(tmp_path, file, old, new, "integer_chain")
    assert False in caught(found, "alu.integer_chain")


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("integer_chain", "for name in RECURRENCES]", "for name in list(RECURRENCES)[:1]]"),
        ("integer_chain", "for name in RECURRENCES]", 'for name in ["lcg32"] * 7]'),
        (
            "chase",
            "for loaded in loads:\n        runner",
            "for loaded in loads[1:]:\n        runner",
        ),
    ],
)
def test_a_work_that_leaves_something_out_does_not_pass(tmp_path, file, old, new):
    found = run_with(tmp_path, f"kernels/{file}.py", old, new, "integer_chain")
    assert {f.outcome.value for f in found.findings} == {"fail"}
