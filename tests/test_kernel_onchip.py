"""The kernels for registers, shared memory and atomics, in Triton's interpreter and as compiled code.

No GPU is needed for either: the interpreter runs them with numpy, and the compiler needs no device.
"""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from test_detectors import PACKAGE

from nodeproof.acceptance import test_onchip as onchip
from nodeproof.checks import Device, DeviceKind, spec_of
from nodeproof.kernels.onchip_answers import LEAST, Contention, jump, scrambled, turned
from nodeproof.model import Measurement
from nodeproof.plugin import selftesting
from nodeproof.plugin.judging import judge

SPEC = spec_of(onchip.test_onchip_cells)
GPU = Device(kind=DeviceKind.GPU, id="GPU-1", label="gpu0")

HEAD = """
import dataclasses, json, sys
from pathlib import Path
from nodeproof.kernels import onchip, onchip_bench
from nodeproof.worker import Context

def context(**more):
    told = dict(device_kind="gpu", device_id="GPU-1", device_label="gpu0", torch_device="cpu",
                threads=1, peers=1, profile="quick", seed=7, host_root=Path("/"))
    return Context(**{**told, **more})

def say(**what):
    print(json.dumps(what, allow_nan=False))
"""
SCENES = """
from nodeproof.kernels import onchip_triton as kernels

class Spoiled:
    "A kernel whose device does something to what it wrote."
    def __init__(self, kernel, spoil):
        self.kernel, self.spoil = kernel, spoil
    def warmup(self, *args, **more):
        return self.kernel.warmup(*args, **more)
    def __getitem__(self, grid):
        def launch(orders, out, **more):
            self.kernel[grid](orders, out, **more)
            self.spoil(out)
        return launch

def with_spoiled(name, spoil, **args):
    sound = getattr(kernels, name)
    setattr(kernels, name, Spoiled(sound, spoil))
    result = onchip.cells(context(), **args)
    setattr(kernels, name, sound)
    return result

def row(number, *values):
    def spoil(log):
        for at, value in enumerate(values):
            log[number, at] = value
    return spoil

def everywhere(log):  # whoever runs on the third SM has 5 wrong words
    for each in [each for each in log if int(each[3]) == 2]:
        if int(each[0]) == 0:
            each[1], each[2] = 3, 1
        each[0] += 5
        each[5] = ~each[0]

def unused(log):
    log[log[:, 3] == 3, 3] = 0

def bit(tables):
    tables[1, 2] ^= 1 << 9

say(clean=onchip.cells(context()),
    planted=[onchip.cells(context(seed=seed), plant="flip") for seed in (0, 1)],
    other=onchip.cells(context(seed=0, device_id="GPU-2"), plant="flip"),
    unwritten=with_spoiled("hold", row(1, 0, 0, 0, 0, 0, 0)),
    absurd=with_spoiled("stage", row(1, 3, 1 << 20, 0, 0, 0, ~3)),
    wrong=with_spoiled("stage", row(2, 2, 9, 1 << 30, 2, 0, ~2)),
    own=with_spoiled("stage", everywhere, plant="flip"),
    unused=with_spoiled("hold", unused),
    total=with_spoiled("contend", bit))
"""
LARGE = """
onchip_bench._INTERPRETED = dataclasses.replace(
    onchip_bench._GPU, launches=1, blocks=1, turns=4, spins=3, long=3, contending=1)
say(**onchip.cells(context(), plant="flip"))
"""
PTX = """
import json, sys
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from nodeproof.kernels import onchip_triton as kernels
from nodeproof.kernels.onchip_bench import _GPU
pointers = {"orders": "*i32", "log": "*i32", "SIZE": "constexpr", "ON_GPU": "constexpr"}
tables = {"orders": "*i32", "tables": "*i32", "WIDTH": "constexpr", "SIZE": "constexpr"}
held = {"SIZE": _GPU.size, "ON_GPU": True}
given = {"hold": (pointers, held), "stage": (pointers, held),
         "contend": (tables, {"WIDTH": _GPU.width, "SIZE": _GPU.updates})}
made = {}
for name, (signature, constants) in given.items():
    source = ASTSource(fn=getattr(kernels, name), signature=signature, constexprs=constants)
    done = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    made[name] = {"ptx": done.asm["ptx"], "shared": done.metadata.shared}
print(json.dumps({"size": _GPU.size, **made}))
"""


def told(script, **environment):
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env={**os.environ, **environment},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def scenes():
    pytest.importorskip("triton")
    (seen,) = told(HEAD + SCENES, TRITON_INTERPRET="1")
    return seen


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    pytest.importorskip("triton")
    cache = tmp_path_factory.mktemp("triton")
    (made,) = told(PTX, TRITON_CACHE_DIR=str(cache), TRITON_INTERPRET="0")
    return made


def judged(result, peers=()):
    taken = []

    def measure(name, value, **bounds):
        taken.append(Measurement(name=name, value=float(value), **bounds))

    onchip.test_onchip_cells(result=result, peers=list(peers), measure=measure)
    return judge(SPEC, taken, None)


def test_sound_sms_hold_what_they_are_given(scenes):
    clean = scenes["clean"]
    assert (clean["wrong"], clean["found"], clean["planted"]) == (0, [], [])
    assert (clean["covered"], clean["sms"], clean["unreported"]) == (4, 4, 0)
    assert min(clean["checked"].values()) > 0
    assert judged(clean).outcome == "pass"


def test_what_is_planted_in_each_part_is_what_is_found(scenes):
    for result in scenes["planted"]:
        assert {fault["part"] for fault in result["planted"]} == {"registers", "shared", "atomics"}
        operations = {f["operation"] for f in result["planted"] if f["part"] == "atomics"}
        assert operations == {"add", "xor", "max", "cas"}
        assert result["found"] == result["planted"]
        assert result["wrong"] == len(result["planted"])
        assert judged(result).broken == {"wrong words"}
        least = [f["bits"] for f in result["planted"] if f["round"] == 0 and "element" in f]
        assert least == [[0], [0]]


@pytest.mark.long
def test_the_sizes_of_a_gpu_are_right_as_well():
    pytest.importorskip("triton")
    (large,) = told(HEAD + LARGE, TRITON_INTERPRET="1")
    assert large["found"] == large["planted"] != []
    assert large["wrong"] == len(large["planted"])


def test_every_planted_fault_turns_the_check_to_fail(scenes):
    def attempt(answer):
        return judged(answer)

    trials = []
    for plant in SPEC.plants:
        if plant.args:
            assert dict(plant.args) == {"plant": "flip"}
            answer = scenes["planted"][0]
            trials.append(selftesting.planted_in_worker(SPEC, plant, answer, attempt))
        else:
            trials.append(selftesting.planted_in_answer(SPEC, plant, scenes["clean"], attempt))
    bounded = judged(scenes["clean"]).bounded
    assert selftesting.concluded(SPEC, GPU, trials, bounded).caught


def test_faults_are_planted_elsewhere_on_each_device(scenes):
    places = [
        {(f["part"], f["block"], f["element"]) for f in result["planted"] if "block" in f}
        for result in (scenes["planted"][0], scenes["other"])
    ]
    assert not places[0] & places[1]


@pytest.mark.parametrize("scene", ["unwritten", "absurd"])
def test_a_block_without_a_report_is_no_pass(scenes, scene):
    result = scenes[scene]
    assert (result["unreported"], result["wrong"]) == (2, 0)
    # It was the only one on its SM, too.
    assert judged(result).broken == {"blocks without a report", "SMs covered"}
    assert judged(result).cause == "hardware"


def test_a_wrong_word_is_told_with_its_sm_its_place_and_its_bits(scenes):
    fault = scenes["wrong"]["found"][0]
    assert (fault["part"], fault["sm"], fault["block"]) == ("shared", 2, 2)
    assert (fault["element"], fault["bits"]) == (9, [30])
    assert scenes["wrong"]["wrong_on"] == {"2": 4}
    summary = judged(scenes["wrong"]).summary
    assert "in shared: SM 2, block 2, word 9" in summary


def test_a_gpu_with_an_sm_that_is_always_wrong_still_reports_the_planted_faults(scenes):
    own = scenes["own"]
    assert own["wrong"] > len(own["planted"])

    def place(fault):
        return {k: v for k, v in fault.items() if k not in {"got", "xor", "bits"}}

    seen = [place(fault) for fault in own["found"]]
    assert all(place(fault) in seen for fault in own["planted"])


def test_an_sm_that_was_never_used_is_no_pass_and_no_fault_of_hardware(scenes):
    told = judged(scenes["unused"])
    assert told.broken == {"SMs covered"}
    assert told.cause == "environment"


def test_a_wrong_total_of_an_atomic_is_told(scenes):
    found = scenes["total"]["found"]
    assert {(f["operation"], f["index"]) for f in found} == {("xor", 2)}
    assert all(f["bits"] == [9] for f in found)
    assert judged(scenes["total"]).broken == {"wrong words"}


def test_the_same_wrong_words_on_two_gpus_are_softwares_wherever_they_ran(scenes):
    result = scenes["wrong"]
    moved = {**result, "found": [{**f, "sm": 1} for f in result["found"]]}
    other = dataclasses.replace(GPU, id="GPU-2")
    assert judged(result, [(other, moved)]).cause == "config"
    assert judged(result, [(other, scenes["clean"])]).cause == "hardware"


def test_the_compiled_hold_keeps_its_words_in_registers_and_does_not_fold(compiled):
    ptx = compiled["hold"]["ptx"]
    body = ptx[: ptx.rindex("bar.sync")]
    loop = loops(ptx)
    # One inversion for each word that a thread holds, and the wait inside: a loop in the loop.
    each = compiled["size"] // 128
    inversions = max(len(re.findall(r"\bxor\.b32|\blop3\.b32", part)) for part in loop)
    assert inversions >= each
    assert len(loop) >= 2
    assert "bar.sync" in body
    assert compiled["hold"]["shared"] < 1024  # what is held does not go through shared memory
    assert not re.search(r"\b(ld|st)\.local", ptx)
    assert "%smid" in ptx


def test_the_compiled_stage_writes_and_reads_shared_memory_in_its_loop(compiled):
    loop = max(loops(compiled["stage"]["ptx"]), key=len)
    stored, loaded = words_of("st", loop), words_of("ld", loop)
    each = compiled["size"] // 128
    assert (stored, loaded) == (each, each)
    # Round and round: all wait, all write, all wait, all read.
    steps = re.findall(r"(st|ld)\.shared|(bar)\.sync", loop)
    order = [a or b for a, b in steps]
    order = [step for at, step in enumerate(order) if step != order[at - 1]]
    assert sorted(order) == ["bar", "bar", "ld", "st"]
    assert order[(order.index("st") + 1) % 4] == "bar"
    assert compiled["stage"]["shared"] >= 4 * compiled["size"]


def test_the_compiled_contention_uses_each_atomic_operation(compiled):
    ptx = compiled["contend"]["ptx"]
    for operation in ("add", "xor", "max", "cas"):
        assert re.search(rf"(atom|red)\.\S*{operation}\.", ptx), operation


def loops(ptx):
    """What stands between a label and a branch back to it."""
    lines = ptx.splitlines()
    labels = {m[1]: at for at, text in enumerate(lines) if (m := re.match(r"(\$\S+):", text))}
    found = []
    for at, text in enumerate(lines):
        m = re.search(r"\bbra(?:\.uni)?\s+(\$\w+);", text)
        if m and labels[m[1]] < at:
            found.append("\n".join(lines[labels[m[1]] : at]))
    return found


def words_of(what, text):
    """How many 32-bit words instructions on shared memory move."""
    widths = re.findall(rf"\b{what}\.shared(?:::cta)?(?:\.v([24]))?\.b32", text)
    return sum(int(width or 1) for width in widths)


REFUSED = """
def refused(**args):
    try:
        onchip.cells(context(), **args)
    except (RuntimeError, ValueError) as error:
        return {"cause": getattr(error, "cause", ""), "text": str(error)}

sys.modules["triton"] = None
absent = refused()
del sys.modules["triton"]
say(absent=absent, cpu=refused(), plant=refused(plant="fire"))
"""


def test_what_is_lacking_is_refused_with_a_sentence():
    pytest.importorskip("triton")
    (said,) = told(HEAD + REFUSED, TRITON_INTERPRET="0")
    absent = said["absent"]
    assert absent["cause"] == "environment"
    assert "GPU-1: Triton can't be imported" in absent["text"]
    assert "install the triton package" in absent["text"]
    assert said["cpu"] == {
        "cause": "environment",
        "text": "GPU-1: registers and shared memory of an SM can be tested on a GPU only",
    }
    assert "flip" in said["plant"]["text"]


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 17, 65536])
def test_a_jump_is_so_many_steps(steps):
    factor, plus = jump(steps)
    state = 12345
    for _ in range(steps):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
    assert (12345 * factor + plus) & 0xFFFFFFFF == state


def test_many_turns_are_one_permutation_and_one_inversion():
    size, state, spins = 64, 0xDEADBEEF, 5
    words = np.arange(size, dtype=np.uint32)
    held, flip = words.copy(), 0
    step, plus = jump(spins)
    for _ in range(7):
        held = held ^ np.uint32(state) ^ np.uint32(flip)
        held = held[[(e * (state >> 16 | 1) + state) % size for e in range(size)]]
        flip ^= 0xFFFFFFFF
        state = (state * step + plus) & 0xFFFFFFFF
    total, factor, shift = turned(0xDEADBEEF, 7, spins, size)
    origin = [(factor * e + shift) % size for e in range(size)]
    assert sorted(origin) == list(range(size))
    assert (held == (words[origin] ^ np.uint32(total))).all()


@pytest.mark.parametrize("lost", [(-1, -1), (5, 2)])
def test_known_totals_are_those_of_one_update_after_the_other(lost):
    case = Contention(salt=99, addresses=7, blocks=4, updates=32, width=16)
    address, value = case.drawn()
    totals = [[0] * 16, [0] * 16, [LEAST] * 16, [0] * 16]
    for number, (at, more) in enumerate(zip(address.tolist(), value.tolist(), strict=True)):
        if number != lost[0]:
            totals[0][at] += more
            totals[1][at] ^= more
            totals[2][at] = max(totals[2][at], more)
    for block in range(4):
        once = int(scrambled([block ^ (~99 & 0xFFFFFFFF)])[0])
        more = int(scrambled([once ^ 0x9E3779B1]).view(np.int32)[0]) | 1
        totals[3][once % 7] += more if block != lost[1] else 0
    wrapped = [[(v + 2**31) % 2**32 - 2**31 for v in row] for row in totals]
    assert case.totals(*lost).tolist() == wrapped


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("kernels/onchip_triton.py", "bad = (wrong != 0)", "bad = (wrong > wrong)"),
        ("kernels/onchip_triton.py", "wrong = held ^ tl.load(given + _TOTAL) ^ scrambled(element ^ salt)", "wrong = held ^ held"),
        ("kernels/onchip_triton.py", "wrong = held ^ tl.load(given + _TOTAL) ^ scrambled(origin ^ salt)", "wrong = held ^ held"),
        ("kernels/onchip_bench.py", "np.argwhere(got != expected)", "np.argwhere(got != got)"),
        ("kernels/onchip_bench.py", "told & (counts > 0)", "told & (counts < 0)"),
        ("kernels/onchip_bench.py", "part.wrong += int(counts[told].sum())", "part.wrong += 0"),
    ],
)  # fmt: skip
def test_a_comparison_that_is_broken_is_noticed(tmp_path, file, old, new):
    pytest.importorskip("triton")
    copy = tmp_path / "nodeproof"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / file).read_text()
    assert old in text
    (copy / file).write_text(text.replace(old, new))
    script = HEAD + "say(result=onchip.cells(context(), plant='flip'))"
    (said,) = told(script, TRITON_INTERPRET="1", PYTHONPATH=str(tmp_path))
    result = said["result"]
    (plant,) = [p for p in SPEC.plants if p.args]
    assert result["found"] != result["planted"] or result["wrong"] != len(result["planted"])
    if result["wrong"] == 0:
        assert selftesting.planted_in_worker(SPEC, plant, result, judged).problem
