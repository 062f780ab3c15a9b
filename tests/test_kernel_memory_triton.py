"""The kernel that verifies and inverts memory in one pass, under Triton's interpreter."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton comes with torch's CUDA builds")

PRELUDE = """
import json, torch
from nodeproof.kernels.cells import Pattern, Sweep
from nodeproof.kernels.memory_triton import TILE, Verifier

def swept(blocks, pieces=1, fused=True):
    pattern = Pattern(seed=3, block=2 * TILE, device=torch.device("cpu"), windowed=False)
    cells = torch.empty(blocks * 2 * TILE, dtype=torch.int64)
    sweep = Sweep(
        pattern=pattern,
        pieces=list(cells.chunk(pieces)),
        block=2 * TILE,
        fused=Verifier(pattern, blocks) if fused else None,
    )
    for _ in sweep.fill():
        pass
    return sweep

def passed(sweep, phase="", **how):
    for _ in sweep.verify(phase, **{"inverted": False, **how}):
        pass
"""


BITS = """
out = {}
for fused in (True, False):
    sweep, planted = swept(6, pieces=2, fused=fused), []
    for number, bit in enumerate((0, 31, 32, 63)):
        odd = number % 2 == 1
        offset = (number * 6137 + 11) * 8
        planted.append(sweep.flip(offset, bit, "pass", inverted=odd))
        passed(sweep, "pass", inverted=odd, backwards=odd)
    cells = torch.cat([piece.cells for piece in sweep.pieces])
    found = [{k: v for k, v in f.items() if k != "address"} for f in sweep.found]
    out[str(fused)] = [sweep.wrong, sweep.path, sweep.found == planted, found, cells.sum().item()]
print(json.dumps(out))
"""
WORDS = """
sweep = swept(3)
cells = sweep.pieces[0].cells
cells ^= 1 << 17
passed(sweep)
first = sweep.wrong, len(sweep.found), sweep.found[0]["bits"]
passed(sweep, inverted=True, invert=False)
print(json.dumps([cells.numel(), *first, sweep.wrong]))
"""
GLITCH = """
from nodeproof.kernels.bits import signed
sweep = swept(2)
real = sweep._fused
class Glitch:
    group = real.group
    def __call__(self, blocks, **how):
        return real(blocks, **how) + 2
sweep._fused = Glitch()
planted = sweep.flip(80, 3, "pass", inverted=False)
passed(sweep, "pass")
print(json.dumps([sweep.wrong, sweep.found[0] == planted, sweep.found[1]]))
"""


@pytest.fixture(scope="module")
def told():
    """What each program prints, read as JSON: one process for all, since starting one is dear."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", PRELUDE + BITS + WORDS + GLITCH],
        env={**os.environ, "TRITON_INTERPRET": "1", "TRITON_DEFAULT_FP_FUSION": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()[-3:]]


def test_it_sees_each_bit_and_leaves_what_the_other_path_leaves(told):
    one, other = told[0]["True"], told[0]["False"]
    assert (one[0], one[1], one[2]) == (4, "fused", True)
    assert (other[0], other[1], other[2]) == (4, "torch", True)
    assert one[3:] == other[3:]


def test_every_word_of_every_block_is_compared_and_all_are_counted(told):
    words, wrong, described, bits, after = told[1]
    assert wrong == words
    assert (described, bits) == (16, [17])
    assert after == wrong  # what was wrong was put right


def test_what_was_wrong_only_when_the_kernel_read_it_counts_all_the_same(told):
    assert told[2][:2] == [3, True]
    assert "2 words at or after this place" in told[2][2]["got"]


def test_alone_and_without_triton_it_says_that_nothing_was_tested(tmp_path):
    (tmp_path / "triton.py").write_text("raise ImportError('none here')")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "nodeproof.kernels.memory_triton"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "not tested: Triton can't be imported (none here)" in done.stderr


@pytest.mark.long
def test_it_compiles_for_a_hopper_gpu_that_is_not_here():
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-c"),
            "from nodeproof.kernels.memory_triton import compiled; print(compiled(90))",
        ],
        env={**os.environ, "TRITON_DEFAULT_FP_FUSION": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Sixteen bytes at once, read and written; and each word is read once.
    assert done.stdout.count("evict_first.L2::cache_hint.v2.b64 {") == 8
    assert done.stdout.count("st.global") == 8
