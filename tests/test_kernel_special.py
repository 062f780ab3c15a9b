"""Special functions: agreement within a device, over time, and between devices."""

import json

import numpy as np
import pytest
import torch
from alu_runs import outcomes, suite
from test_detectors import caught, run_with
from test_kernel_float_chain import here

from nodeproof.acceptance import test_alu as alu
from nodeproof.checks import Device, DeviceKind, spec_of
from nodeproof.kernels.special import Shape, Sweeper, sweep
from nodeproof.kernels.special_functions import FUNCTIONS, Function, patterns
from nodeproof.model import Cause, Measurement, Profile

CPU = torch.device("cpu")
SMALL = Shape(inputs=256, blocks=5)


def judged(result, *peers):
    """Names of the broken limits, and who is blamed for the disagreement of devices."""
    seen = []

    def measure(name, value, **bounds):
        seen.append(Measurement(name=name, value=float(value), **bounds))

    devices = [Device(kind=DeviceKind.CPU, id=f"p{i}", label=f"p{i}") for i in range(len(peers))]
    given = list(zip(devices, peers, strict=True))
    alu.test_special(result=result, peers=given, measure=measure)
    (between,) = [m for m in seen if m.name == "functions unlike other devices"]
    return [m.name for m in seen if not m.held], between.cause


@pytest.fixture(scope="module")
def sound():
    return sweep(here())


def other(result, name="exp", model=None):
    """A device that gives other bits for one function, alike in all blocks and at all times."""
    changed = json.loads(json.dumps(result))
    changed["digests"][name] = dict.fromkeys(changed["digests"][name], "0x00")
    changed["again"][name] = "0x00"
    if model:
        changed["versions"]["model"] = model
    return changed


def test_a_sound_device_agrees_with_itself_and_with_others(sound):
    assert (sound["wrong"], sound["unlike_ieee"], sound["far"], sound["found"]) == (0, 0, 0, [])
    assert judged(sound) == judged(sound, sound, sweep(here(device_id="cpu1")))
    assert judged(sound, sound) == ([], Cause.ENVIRONMENT)


def test_the_time_is_kept_and_more_rounds_compare_with_fewer(sound):
    longer = sweep(here(), seconds=0.3)
    assert longer["loaded_s"] >= 0.3
    assert longer["rounds"] > sound["rounds"]
    assert judged(longer, sound, sound)[0] == judged(sound, longer, longer)[0] == []


@pytest.mark.parametrize("seed", range(4))
def test_what_is_planted_is_what_is_found(seed):
    result = sweep(here(seed=seed), plant="flip")
    assert result["found"] == result["planted"]
    assert [f["function"] for f in result["planted"]] == ["exp2", "tanh", "sqrt64", "divide"]
    assert [f["block"] for f in result["planted"]][:2] == [2, 0]
    assert result["planted"][3]["block"] == -1
    assert result["planted"][0]["xor"] == "0x00000001"
    assert (result["wrong"], result["unlike_ieee"], result["far"]) == (3, 1, 1)
    assert judged(result)[0] == [
        "outputs unlike the majority",
        "outputs unlike IEEE 754",
        "outputs far from the function",
        "functions unlike before",
    ]


def test_what_is_planted_in_one_block_leaves_the_digests_alone_and_what_is_in_all_does_not(sound):
    digests = sweep(here(), plant="flip")["digests"]
    assert {n for n, of in digests.items() if of != sound["digests"][n]} == {"exp", "divide"}


def test_every_function_is_compared_in_every_round_or_the_check_does_not_pass(sound):
    assert sound["functions"] == [f.name for f in FUNCTIONS]
    assert judged({**sound, "functions": sound["functions"][1:]})[0] == ["functions"]


def test_a_device_of_many_faults_does_not_crowd_out_the_one_planted_in_all_blocks():
    divide = next(f for f in FUNCTIONS if f.name == "divide")
    sweeper = Sweeper(here(), CPU, SMALL)
    given = [sweeper._inputs(divide, 0, which) for which in range(2)]
    outputs = sweeper._blocks(divide, given) ^ 2
    at = sweeper._plant_common(outputs, divide, 0, given)
    sweeper._hold_to_ieee(outputs[0], divide, 0, given, at)
    assert sweeper.planted[0] in sweeper.found
    assert len(sweeper.found) <= 17


def test_a_count_of_what_nobody_can_locate_is_a_fail_with_a_sentence(sound):
    seen = {}
    alu.test_special(
        result={**sound, "wrong": 2},
        peers=[],
        measure=lambda name, *_, **of: seen.update({name: of}),
    )
    assert seen["outputs unlike the majority"]["detail"] == "counted, none could be located"


def test_an_unknown_plant_is_refused():
    with pytest.raises(ValueError, match="flip"):
        sweep(here(), plant="fire")


def test_of_three_devices_the_one_that_differs_is_at_fault_and_the_others_are_not(sound):
    wrong = other(sound)
    assert judged(wrong, sound, sound) == (["functions unlike other devices"], Cause.HARDWARE)
    assert judged(sound, wrong, sound)[0] == []


def test_of_two_devices_that_differ_nobody_is_blamed_and_nobody_passes(sound):
    wrong = other(sound)
    for mine, peer in ((sound, wrong), (wrong, sound)):
        assert judged(mine, peer) == (["functions unlike other devices"], Cause.ENVIRONMENT)
    # Nor where four stand two against two, or three each for itself.
    assert judged(sound, sound, wrong, wrong)[0] == ["functions unlike other devices"]
    third = json.loads(json.dumps(wrong).replace('"0x00"', '"0x01"'))
    assert judged(sound, wrong, third) == (["functions unlike other devices"], Cause.ENVIRONMENT)


def test_devices_of_another_model_have_no_say(sound):
    assert judged(sound, *[other(sound, model="another")] * 3)[0] == []


@pytest.mark.parametrize("key", ["wrong", "unlike_ieee", "far"])
def test_a_device_that_convicts_itself_has_no_voice(sound, key):
    assert judged(sound, {**other(sound), key: 1})[0] == []


def test_another_answer_at_the_end_than_at_the_beginning_is_a_fault(sound):
    name = next(iter(sound["again"]))
    again = {**sound["again"], name: "0x00"}
    assert judged({**sound, "again": again})[0] == ["functions unlike before"]
    del again[name]
    assert judged({**sound, "again": again})[0] == ["functions unlike before"]


def test_it_is_asked_of_every_profile_but_the_quickest():
    assert spec_of(alu.test_special).profiles == frozenset(Profile) - {Profile.QUICK}


def swept(outputs):
    """Put made outputs of one function to the vote."""
    sweeper = Sweeper(here(), CPU, Shape(inputs=outputs.shape[1], blocks=outputs.shape[0]))
    given = [np.ones(outputs.shape[1], np.float32)]
    agreed = sweeper._vote(outputs, FUNCTIONS[0], 0, given, None)
    return sweeper, agreed


@pytest.mark.parametrize("block", [0, 1, 4])
@pytest.mark.parametrize("bit", [0, 22, 31])
def test_the_block_that_differs_is_named_even_if_it_is_the_first(block, bit):
    outputs = torch.arange(64, dtype=torch.int32).repeat(5, 1)
    outputs[block, 9] ^= -(1 << 31) if bit == 31 else 1 << bit
    sweeper, agreed = swept(outputs)
    (fault,) = sweeper.found
    assert (fault["block"], fault["expected"], fault["xor"]) == (block, f"{9:#010x}", f"{1 << bit:#010x}")  # fmt: skip
    assert sweeper.wrong == 1
    assert agreed.tolist() == list(range(64))


def test_a_block_of_wrong_outputs_is_counted_whole_and_described_in_part():
    outputs = torch.zeros(3, 9000, dtype=torch.int32)
    outputs[1] = 1
    sweeper, _ = swept(outputs)
    assert sweeper.wrong == 9000
    assert len(sweeper.found) == 16


def test_a_whole_sweep_meets_every_pattern_once():
    seen = np.concatenate([patterns(3, n, 1 << 12, 16, "x") for n in range(16)])
    assert len(np.unique(seen)) == 1 << 16


def test_another_seed_begins_elsewhere_and_goes_on_otherwise():
    one, two = (patterns(seed, 0, 8, 32, "x") for seed in (1, 2))
    assert not set(one.tolist()) & set(two.tolist())
    assert len({(int(p[1]) - int(p[0])) % 2**32 for p in (one, two)}) == 2


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.name)
def test_each_function_is_near_what_numpy_says_over_many_patterns(function):
    sweeper = Sweeper(here(), CPU, Shape(inputs=1 << 14, blocks=1))
    given = [sweeper._inputs(function, 0, which) for which in range(function.inputs)]
    got = function.torch(*map(torch.from_numpy, given)).numpy()
    assert function.far(got, given) == 0
    if function.exact_on_cpu:
        assert not function.differs(got, given)[0].any()
        assert function.differs(np.nextafter(got, got.dtype.type(9)), given)[0].sum() > 1 << 13


@pytest.mark.parametrize("made", [torch.zeros_like, lambda x: x * float("nan"), lambda x: x + 1])
def test_agreement_on_what_is_not_the_function_at_all_does_not_pass(made):
    for real in FUNCTIONS[:8]:
        wrong = Function(name=real.name, width=32, torch=made, numpy=real.numpy)
        sweeper = Sweeper(here(), CPU, SMALL)
        given = [sweeper._inputs(wrong, 0, 0)]
        assert wrong.far(wrong.torch(torch.from_numpy(given[0])).numpy(), given) > 10


def test_an_output_of_another_form_is_an_error():
    wide = Function(name="exp", width=32, torch=lambda x: torch.exp(x.double()), numpy=np.exp)
    sweeper = Sweeper(here(), CPU, SMALL)
    with pytest.raises(RuntimeError, match="torch build"):
        sweeper._blocks(wide, [sweeper._inputs(wide, 0, 0)])


GATE = "--nodeproof-profile=gate"


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "devices", "first", "second"),
    [
        ({"operation": "exp", "every": 2}, 2, ("pass", None), ("fail", "hardware")),
        ({"operation": "div", "every": 1}, 2, ("pass", None), ("fail", "hardware")),
        ({"operation": "rsqrt", "every": 1}, 3, ("pass", None), ("fail", "hardware")),
        ({"operation": "rsqrt", "every": 1}, 2, ("fail", "environment"), ("fail", "environment")),
    ],
)
def test_who_is_condemned_depends_on_who_can_tell(tmp_path, fault, devices, first, second):
    fault = {"label": "cpu1", "dtype": "float32", "bit": 0, **fault}
    options = (GATE, f"--nodeproof-cpu-devices={devices}")
    found = suite(tmp_path, "special", *options, fault=fault)
    told = outcomes(found)
    assert (told["cpu0"], told["cpu1"]) == (first, second)
    assert caught(found, "alu.special") == {True}


JUDGE = "acceptance/test_alu.py"
BREAKS = [
    ("kernels/special.py", "differs = (outputs != first).any(0)", "differs = (outputs != outputs).any(0)"),
    ("kernels/special.py", "if got == majority:", "if True:"),
    ("kernels/special.py", "self.wrong += 1", "pass"),
    (JUDGE, 'result["wrong"], at_most=0, detail=_first(', 'result["wrong"], detail=_first('),
    (JUDGE, 'result["unlike_ieee"],\n        at_most=0,', 'result["unlike_ieee"],'),
    (JUDGE, 'result["far"], at_most=0', 'result["far"]'),
    (JUDGE, "len(changed), at_most=0,", "len(changed),"),
    (JUDGE, "n not in again or again[n] != of", "n in again and again[n] != of"),
    (JUDGE, "elif digest != of[common]:", "elif False:"),
    (JUDGE, 'result["blocks"], at_least=3', 'result["blocks"]'),
    ("kernels/special.py", "self.unlike_ieee += int(np.count_nonzero(differs))", "pass"),
    ("kernels/special.py", "self.far += function.far(_values(agreed, given), given)", "pass"),
    ("kernels/special.py", "weighted = int((agreed.to(torch.int64) * self._weights).sum())", "weighted = 0"),
    ("kernels/special.py", "if function.exact_on_cpu or (function.exact and self._nvidia):", "if False:"),
    ("kernels/special.py", "differs = (outputs != first).any(0)", "differs = (outputs[:2] != first).any(0)"),
    ("kernels/special_functions.py", "_NEAR = 2.0**-18", "_NEAR = 2.0**-12"),
    (JUDGE, "again[n] != of[", "False and of["),
    (JUDGE, "if 2 * count <= len(everybody):", "if False:"),
    (JUDGE, "len(outvoted) + len(undecided),", "len(outvoted),"),
    (JUDGE, "at_least=_FUNCTIONS,", ""),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "old", "new"),
    BREAKS,
)
def test_a_comparison_that_is_broken_is_a_self_test_that_is_missed(
    tmp_path, monkeypatch, file, old, new
):
    monkeypatch.setenv("PYTEST_ADDOPTS", GATE)
    assert False in caught(run_with(tmp_path, file, old, new, "special"), "alu.special")


LEFT_OUT = [
    ("for function in FUNCTIONS:\n            given", "for function in FUNCTIONS[:9]:\n            given"),
    ("for function in FUNCTIONS:\n            given", "for function in FUNCTIONS[: 99 if number == 0 else 9]:\n            given"),
    ("            agreed = self._vote(", "            agreed = outputs[0] if spot is None else self._vote("),
    ("            elif number & (number - 1) == 0:", "            elif spot is not None:"),
    ("    sweeper.do(0, plant=False)\n", ""),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("old", "new"), LEFT_OUT)
def test_a_sweep_that_leaves_something_out_does_not_pass(tmp_path, monkeypatch, old, new):
    monkeypatch.setenv("PYTEST_ADDOPTS", GATE)
    found = run_with(tmp_path, "kernels/special.py", old, new, "special")
    assert {f.outcome.value for f in found.findings} == {"fail"}
