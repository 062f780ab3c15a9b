"""Chains of floats: references that are right, and no wrong bit that passes."""

import ctypes
import ctypes.util
import dataclasses
import shutil
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from alu_runs import interpreted, outcomes, suite
from test_detectors import caught, run_with

import nodeproof
from nodeproof.acceptance import test_alu as alu
from nodeproof.kernels.chase import Shape
from nodeproof.kernels.float_chain import Logistic, exact, fma, make, rounded
from nodeproof.kernels.lanes import HostError, Ledger, load, walk
from nodeproof.model import Measurement
from nodeproof.worker import Context

SMALL = Shape(lanes=96, segments=3, steps=8)
BOTH = pytest.mark.parametrize("width", [32, 64])
CPU = torch.device("cpu")


def here(**more):
    base = {
        "device_kind": "cpu",
        "device_id": "cpu0",
        "device_label": "cpu0",
        "torch_device": "cpu",
        "threads": 1,
        "peers": 1,
        "profile": "quick",
        "seed": 7,
        "host_root": Path("/"),
    }
    return Context(**{**base, **more})


def test_a_sound_device_has_every_bit_right():
    result = exact(here(), seconds=0.05)
    assert (result["wrong"], result["found"], result["planted"]) == (0, [], [])
    assert result["loaded_s"] >= 0.05
    assert result["operations"] >= 2 * 3 * 512 * 128
    assert (result["path"], result["units"], result["units_covered"]) == ("torch", 1, 1)


def judged(result, chains):
    """What breaks its limit, and what is said of wrong lanes."""
    seen = []

    def measure(name, value, **bounds):
        seen.append(Measurement(name=name, value=float(value), **bounds))

    alu._judge(result, measure, chains)
    return [m.name for m in seen if not m.held], seen[0].detail


def test_every_chain_is_compared_in_every_round_or_the_check_does_not_pass():
    result = exact(here(), seconds=0.05)
    assert result["chains"] == ["float32", "float64"]
    assert result["proven"] == 4
    assert judged(result, alu._FLOATS)[0] == []
    assert judged({**result, "chains": ["float32"]}, alu._FLOATS)[0] == ["chains"]
    # By Triton there are fused ones besides.
    assert "chains" in judged({**result, "path": "triton"}, alu._FLOATS)[0]


def test_a_count_of_what_nobody_can_locate_is_a_fail_with_a_sentence():
    broken, said = judged({**exact(here()), "wrong": 3}, alu._FLOATS)
    assert (broken, said) == (["wrong lanes"], "counted, none could be located")


@pytest.mark.parametrize("seed", range(4))
def test_what_is_planted_is_what_is_found(seed):
    result = exact(here(seed=seed), plant="flip")
    assert result["found"] == result["planted"]
    assert result["wrong"] == len(result["planted"]) == 6
    assert {fault["chain"] for fault in result["planted"]} == {"float32", "float64"}


def test_faults_are_planted_elsewhere_on_each_device():
    one, other = (exact(here(device_id=name), plant="flip")["planted"] for name in ("a", "b"))
    assert [f["lane"] for f in one] != [f["lane"] for f in other]


@pytest.mark.parametrize(
    ("args", "word"), [({"plant": "fire"}, "flip"), ({"path": "magic"}, "triton"), ({"path": "triton"}, "INTERPRET")]
)  # fmt: skip
def test_an_unknown_plant_or_path_is_refused(monkeypatch, args, word):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=word):
        exact(here(), **args)


def libm(width):
    library = ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6")
    function, kind = (
        (library.fmaf, ctypes.c_float) if width == 32 else (library.fma, ctypes.c_double)
    )
    function.restype, function.argtypes = kind, [kind] * 3
    return function


def operands(width, count):
    """Random ones; sums that nearly cancel; ties, and what is just off a tie."""
    kind = np.dtype(f"f{width // 8}")
    draw = np.random.default_rng(5)
    a, b = (draw.uniform(-4, 4, count).astype(kind) for _ in range(2))
    yield a, b, draw.uniform(-4, 4, count).astype(kind)
    yield a, b, -(a * b)
    yield a, b, np.nextafter(-(a * b), kind.type(9))
    scale = 2.0 ** draw.integers(-70, 70, count)
    yield a, b, (draw.uniform(-4, 4, count) * scale).astype(kind)
    half = 1 + 2.0 ** -(12 if width == 32 else 27)  # its square ends half an ulp or less below
    tie = np.full(count, half, kind)
    tiny = (draw.choice([-1.0, 1.0], count) * 2.0 ** draw.integers(-120, -50, count)).astype(kind)
    yield tie, tie, tiny
    yield tie, -tie, tiny


@BOTH
def test_the_fused_reference_rounds_once_like_libm_and_like_exact_fractions(width):
    mine, word = libm(width), np.dtype(f"u{width // 8}")
    for a, b, c in operands(width, 3000):
        rows = list(zip(a.tolist(), b.tolist(), c.tolist(), strict=True))
        want = np.array([mine(*row) for row in rows], a.dtype)
        assert np.array_equal(fma(a, b, c).view(word), want.view(word))
        slow = [rounded(Fraction(x) * Fraction(y) + Fraction(z), width) for x, y, z in rows[:200]]
        assert np.array_equal(np.array(slow, a.dtype), want[:200])


def test_two_roundings_would_have_shown():
    differ = sum(
        int(((a.astype(np.float64) * b + c).astype(np.float32) != fma(a, b, c)).sum())
        for a, b, c in operands(32, 500)
    )
    assert differ > 0


@BOTH
@pytest.mark.parametrize("fused", [False, True])
def test_a_flip_of_any_bit_at_any_step_leaves_a_trace(width, fused):
    chain = make(width, SMALL, 3, fused=fused)
    chain.prove(3)
    fault = chain.faults(3, "cpu0", 1, 0)[0]
    for bit in range(chain.bits):
        for word in (0, 1):
            for cut in (1 + bit % 7, 8):
                moved = dataclasses.replace(fault, bit=bit, cut=cut, word=word)
                assert chain.flipped(moved) != chain.at(moved.segment + 1, moved.lane)


@BOTH
def test_states_keep_their_full_significands_and_stay_in_range(width):
    chain = make(width, Shape(lanes=64, segments=4, steps=300), 11, fused=False)
    states = chain.marks[:, 0].view(np.dtype(f"f{width // 8}"))
    assert ((states > 0.009) & (states < 1)).all()
    low = chain.marks[1:, 0] & 15
    assert len(np.unique(low)) == 16


class Broken(Logistic):
    """What a device may do to a chain."""

    how = "nan"

    def advance(self, state, parameter, steps):
        bits, digest = super().advance(state, parameter, steps)
        if self.how == "nan":
            bits = bits.view(torch.float32).mul(float("nan")).view(torch.int32)
        elif self.how == "shape":
            bits = bits[:, :-1]
        elif self.how == "type":
            bits = bits.to(torch.int64)
        elif self.how == "digest":
            digest = digest ^ 1
        elif self.how == "lanes":
            bits = bits ^ (1 << 5)
        return bits, digest


def broken(how):
    sound = make(32, SMALL, 3, fused=False)
    chain = Broken(**{f.name: getattr(sound, f.name) for f in dataclasses.fields(sound)})
    chain.__class__ = type("How", (Broken,), {"how": how})
    return chain


@pytest.mark.parametrize("how", ["nan", "digest", "lanes"])
def test_lanes_that_are_wrong_all_over_are_all_counted(how):
    ledger = Ledger()
    walk(load(broken(how), CPU), ledger, copies=2, number=0)
    assert ledger.wrong == 2 * SMALL.lanes * SMALL.segments
    assert len(ledger.found) == 16


@pytest.mark.parametrize("how", ["shape", "type"])
def test_a_state_of_another_form_is_an_error(how):
    with pytest.raises(RuntimeError, match="torch build"):
        walk(load(broken(how), CPU), Ledger(), copies=2, number=0)


def test_a_device_of_many_faults_does_not_crowd_out_the_planted_one():
    chain, ledger = broken("lanes"), Ledger()
    for fault in chain.faults(3, "cpu0", 2, 0):
        ledger.plant(chain, fault)
        walk(load(chain, CPU), ledger, copies=2, number=fault.number, fault=fault)
    places = [(f["pass"], f["copy"], f["segment"], f["lane"]) for f in ledger.found]
    for planted in ledger.planted:
        assert tuple(planted[k] for k in ("pass", "copy", "segment", "lane")) in places


def test_a_host_that_contradicts_itself_does_not_judge():
    chain = make(64, SMALL, 3, fused=True)
    chain.marks[1:, 1] ^= np.uint64(1)
    with pytest.raises(HostError, match="the host itself"):
        chain.prove(3)


PROGRAM = """
import sys; sys.path.insert(0, {tests!r})
from nodeproof.kernels.{module} import exact
from test_kernel_float_chain import here
clean, planted = exact(here(), path="triton"), exact(here(), path="triton", plant="flip")
assert (clean["wrong"], clean["path"], clean["chains"]) == (0, "triton", {chains!r}), clean
assert clean["units"] == clean["units_covered"] == 2
assert planted["found"] == planted["planted"], planted
assert planted["wrong"] == len(planted["planted"]) == {faults}
assert sum(planted["wrong_by_unit"].values()) == {faults}
print("sound")
"""
CHAINS = ["float32", "float32 fma", "float64", "float64 fma"]
HERE = str(Path(__file__).parent)


def test_the_kernel_of_the_registers_finds_what_is_planted_and_nothing_else(tmp_path):
    pytest.importorskip("triton", reason="the register kernel needs Triton")
    if tuple(map(int, version("triton").split(".")[:2])) < (3, 9):
        pytest.skip("its interpreter rounds twice where a GPU rounds once: Triton 3.9 does not")
    program = PROGRAM.format(tests=HERE, module="float_chain", chains=CHAINS, faults=12)
    assert interpreted(program, tmp_path) == "sound\n"


def test_without_triton_the_registers_are_refused_with_a_sentence(tmp_path):
    program = f"""
import sys; sys.path.insert(0, {HERE!r}); sys.modules["triton"] = None
from nodeproof.kernels.float_chain import exact
from test_kernel_float_chain import here
try: exact(here(), path="triton")
except RuntimeError as error: print(error)
"""
    said = interpreted(program, tmp_path)
    assert "cpu0" in said
    assert "install" in said


COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from nodeproof.kernels.alu_triton import chase
kind, words, width, capability = sys.argv[1], *map(int, sys.argv[2:])
element = f"fp{width}" if words == 2 else f"i{width}"
given = {"marks": f"*i{width}", "parameter": f"*{element}", "orders": "*i64", "passes_by_sm": "*i64",
         "wrong_by_sm": "*i64", "logged": "*i64", "log": "*i64"}
fixed = {"KIND": kind, "WORDS": words, "LANES": 256, "SEGMENTS": 8, "STEPS": 256, "KEEP": 16, "FIELDS": 7, "EMULATED": 0}
source = ASTSource(fn=chase, signature={**given, **dict.fromkeys(fixed, "constexpr")}, constexprs=fixed)
print(triton.compile(source, target=GPUTarget("cuda", capability, 32),
                     options={"num_warps": 4, "enable_fp_fusion": False}).asm["ptx"])
"""


def ptx(folder, kind, words, width, capability):
    pytest.importorskip("triton", reason="the register kernel needs Triton")
    words_ = [kind, str(words), str(width), str(capability)]
    # Triton reads a kernel's source, so that the program has to be a file.
    file = folder / "compile.py"
    file.write_text(COMPILE)
    run = f"import sys, runpy; sys.argv = ['x', *{words_!r}]; runpy.run_path({str(file)!r})"
    return interpreted(run, folder, TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(folder / "cache"))


@pytest.mark.parametrize(
    ("fused", "width", "capability"),
    [
        (True, 64, 90),
        *(
            pytest.param(f, w, c, marks=pytest.mark.long)
            for f in (False, True)
            for w in (32, 64)
            for c in (80, 90)
            if (f, w, c) != (True, 64, 90)
        ),
    ],
)
def test_what_is_compiled_for_a_gpu_rounds_as_written(tmp_path, fused, width, capability):
    text = ptx(tmp_path, f"float{width}{' fma' if fused else ''}", 2, width, capability)
    assert "%smid" in text
    assert f"mul.rn.f{width}" in text
    assert (f"fma.rn.f{width}" in text) == fused
    if not fused:  # where it is, some Tritons subtract from zero to negate, which is exact
        assert f"sub.rn.f{width}" in text
    assert "ftz" not in text


def test_a_device_that_adds_wrongly_for_good_is_condemned_alone(tmp_path):
    fault = {"label": "cpu1", "operation": "sub", "dtype": "float64", "bit": 0, "every": 1}
    found = suite(tmp_path, "float_chain", fault=fault)
    assert outcomes(found) == {"cpu0": ("pass", None), "cpu1": ("fail", "hardware")}
    assert caught(found, "alu.float_chain") == {True}
    assert "lane 77" in next(f.summary for f in found.findings if f.device.id == "cpu1")


JUDGE = "acceptance/test_alu.py"
BREAKS = [
    ("kernels/lanes.py", "state[w] != want[w]", "state[w] != state[w]"),
    ("kernels/lanes.py", "for w in range(chain.words)", "for w in range(1)"),
    ("kernels/lanes.py", "for w in range(chain.words)", "for w in range(1, 2)"),
    ("kernels/lanes.py", "wrong = int(torch.count_nonzero(differs))", "wrong = 0"),
    (JUDGE, 'result["wrong"], at_most=0, detail=detail', 'result["wrong"], detail=detail'),
    (JUDGE, 'result["operations"], at_least=1', 'result["operations"]'),
    (JUDGE, 'result["units_covered"],\n        at_most=0,', 'result["units_covered"],'),
    (JUDGE, 'at_least=chains[result["path"]],', ""),
    (JUDGE, 'at_least=2 * chains[result["path"]],', ""),
    ("kernels/lanes.py", "if again != self.at(segment + 1, lane):", "if False:"),
]


@pytest.mark.long
@pytest.mark.parametrize(("file", "old", "new"), BREAKS)
def test_a_comparison_that_is_broken_is_a_self_test_that_is_missed(tmp_path, file, old, new):
    assert False in caught(run_with(tmp_path, file, old, new, "float_chain"), "alu.float_chain")


LEFT_OUT = [
    ("float_chain", "for width in (32, 64) for kind", "for width in (32,) for kind"),
    ("chase", "for loaded in loads:\n        runner", "for loaded in loads[:1]:\n        runner"),
    ("chase", "ledger.proven += chain.prove(seed)", "pass"),
]


@pytest.mark.long
@pytest.mark.parametrize(("module", "old", "new"), LEFT_OUT)
def test_a_work_that_leaves_something_out_does_not_pass(tmp_path, module, old, new):
    found = run_with(tmp_path, f"kernels/{module}.py", old, new, "float_chain")
    assert {f.outcome.value for f in found.findings} == {"fail"}


REGISTERS = [
    ("wrong = word != want", "wrong = word != word"),
    ("wrong = wrong | (digest != want_digest)", "wrong = wrong | (digest != digest)"),
    ("if count > 0:", "if count > 100000:"),
    ("x = scaled * (1.0 - x)", "x = tl.fma(-scaled, x, scaled)"),
    ("x = tl.fma(-scaled, x, scaled)", "x = scaled - scaled * x"),
]


@pytest.mark.long
@pytest.mark.parametrize(("old", "new"), REGISTERS)
def test_a_kernel_of_the_registers_that_is_broken_does_not_pass(tmp_path, old, new):
    pytest.importorskip("triton", reason="the register kernel needs Triton")
    shutil.copytree(Path(nodeproof.__file__).parent, tmp_path / "nodeproof")
    file = tmp_path / "nodeproof/kernels/alu_triton.py"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    program = PROGRAM.format(tests=HERE, module="float_chain", chains=CHAINS, faults=12)
    with pytest.raises(AssertionError, match="'path': 'triton'"):
        interpreted(program, tmp_path, PYTHONPATH=str(tmp_path))
