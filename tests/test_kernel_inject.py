"""Faults of every class, put into products that the code of the checks multiplies and compares."""

import math
from collections import Counter

import pytest
import torch

from nodeproof.kernels.formats import Family
from nodeproof.kernels.inject import WARP, Fault, Target, What, Where, apply, draw, target
from nodeproof.kernels.operands import make
from nodeproof.kernels.product import Prover, product, settle
from nodeproof.kernels.stored import load
from nodeproof.kernels.strike import strike, struck

CPU = torch.device("cpu")
SIZE = 128
AIM = Target(rows=SIZE, columns=SIZE, depth=96, a="float32", b="float32", output="float32")
FAST = [
    ("float32", Family.WIDE, "float32"),
    ("float32", Family.CANCEL_LIFT, "float32"),
    ("float64", Family.CANCEL_LIFT, "float64"),
]
SLOW = [("bfloat16", Family.CANCEL_LIFT, "bfloat16"), ("int8", Family.WIDE, "int32")]


def loaded(dtype, family, output, seed=1):
    settle(1)
    return load(make(dtype, family, size=SIZE, seed=seed), size=SIZE, output=output, device=CPU)


def pair(row):
    own, other = (loaded(*row, seed=seed) for seed in (1, 2))
    return own, other.reference


def many(count, aim=AIM, seed=3):
    key = (aim, seed)
    drawn = _DRAWN.setdefault(key, [])
    drawn += [draw(seed, number, aim) for number in range(len(drawn), count)]
    return drawn[:count]


_DRAWN = {}


def changed(fault):
    bits = torch.arange(SIZE * SIZE, dtype=torch.int32).view(SIZE, SIZE)
    right, before = bits.clone(), torch.full_like(bits, -5)
    apply(fault, bits, before=before)
    return right, bits, (bits != right).nonzero().tolist()


def test_a_fault_is_a_pure_function_of_seed_and_number():
    assert many(300) == [draw(3, number, AIM) for number in range(300)]
    assert many(300) != many(300, seed=4)
    assert draw(3, 7, AIM, attempt=1) != draw(3, 7, AIM)


def test_the_mix_is_the_one_that_was_observed():
    bitwise = [f for f in many(6000) if f.what is not What.FOREIGN]
    shares = Counter(f.what for f in bitwise)
    assert shares[What.SINGLE] / len(bitwise) == pytest.approx(0.40, abs=0.03)
    assert shares[What.CLUSTER] / len(bitwise) == pytest.approx(0.59, abs=0.03)
    assert 0 < shares[What.NOT_FINITE] / len(bitwise) < 0.02
    assert {f.where for f in many(6000)} == set(Where)
    assert {f.stride for f in many(600) if f.where is Where.PERIODIC} == {2, 4, 8, 16, 32}


@pytest.mark.parametrize("where", [w for w in Where if w.value[:3] != "ope"])
def test_a_fault_changes_what_it_says_and_nothing_else(where):
    faults = [f for f in many(3000) if f.where is where]
    assert len(faults) > 20
    for fault in faults[:40]:
        right, bits, places = changed(fault)
        rows, columns = ({p[side] for p in places} for side in (0, 1))
        inside = (
            range(fault.row, fault.row + fault.tile),
            range(fault.column, fault.column + fault.tile),
        )
        if where is Where.ELEMENT:
            assert places == [[fault.row, fault.column]]
        elif where is Where.PERIODIC:
            assert rows == {fault.row}
            assert 2 <= len(columns) <= WARP
            assert {c - fault.column for c in columns} == {
                n * fault.stride for n in range(len(columns))
            }
        elif where is Where.ROW:
            assert (rows, len(columns)) == ({fault.row}, SIZE)
        elif where is Where.STALE:
            assert (bits == -5).all()
        else:
            assert rows <= set(inside[0])
            assert columns <= set(inside[1])
            tile = bits[inside[0].start : inside[0].stop, inside[1].start : inside[1].stop]
            if where is Where.DROPPED:
                assert (tile == -5).all()
            elif where is Where.DUPLICATED:
                row, column = fault.source
                source = right[row : row + fault.tile, column : column + fault.tile]
                assert torch.equal(tile, source)
                assert bool(places) == (fault.source != (fault.row, fault.column))
            else:
                assert len(places) == fault.tile**2


def test_clusters_have_two_to_eight_bits_close_together_over_the_whole_width():
    masks = [f.mask for f in many(4000) if f.what is What.CLUSTER]
    assert {m.bit_count() for m in masks} == set(range(2, 9))
    for mask in masks:
        extent = mask.bit_length() - (mask & -mask).bit_length() + 1
        assert extent <= 2 * mask.bit_count()
    singles = {f.mask for f in many(4000) if f.what is What.SINGLE}
    assert singles == {1 << bit for bit in range(32)}
    assert max(masks).bit_length() == 32
    assert any(mask & 1 for mask in masks)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_what_is_said_to_be_no_number_is_none_in_that_format(dtype):
    ints = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    aim = Target(rows=SIZE, columns=SIZE, depth=SIZE, a=dtype, b=dtype, output=dtype)
    kinds = set()
    for fault in many(6000, aim):
        if fault.what is What.NOT_FINITE:
            bits = torch.zeros(SIZE, SIZE, dtype=ints[getattr(torch, dtype).itemsize])
            apply(fault, bits)
            values = bits.view(getattr(torch, dtype))
            hit = float(values[fault.row, fault.column])
            assert not math.isfinite(hit)
            kinds.add(str(hit))
    assert kinds == {"nan", "inf", "-inf"}


def test_an_integer_is_never_said_to_be_no_number():
    aim = Target(rows=SIZE, columns=SIZE, depth=SIZE, a="int8", b="int8", output="int32")
    assert all(f.value is None and f.what is not What.NOT_FINITE for f in many(3000, aim))
    operands = [f for f in many(3000, aim) if f.where in {Where.OPERAND_A, Where.OPERAND_B}]
    assert max(f.mask for f in operands) < 256


def test_a_product_too_small_for_two_tiles_or_no_older_output_is_refused():
    with pytest.raises(ValueError, match="need"):
        draw(1, 1, Target(rows=32, columns=32, depth=32, a="int8", b="int8", output="int32"))
    stale = next(f for f in many(500) if f.where is Where.STALE)
    with pytest.raises(ValueError, match="hold before"):
        apply(stale, torch.zeros(SIZE, SIZE, dtype=torch.int32))


def test_a_struck_operand_is_put_right_again_and_later_products_are_sound():
    own = loaded(*FAST[0])
    right = product(own).view(torch.int32).clone()
    a, b = own.a.clone(), own.b.clone()
    for where in (Where.OPERAND_A, Where.OPERAND_B):
        fault = next(f for f in many(2000, target(own)) if f.where is where and f.mask > 1 << 23)
        with struck(fault) as outcome:
            wrong = product(own)
            later = product(own)
        assert outcome.products == 2
        assert outcome.changed == int(torch.count_nonzero(wrong.view(torch.int32) != right)) > 0
        assert torch.equal(later.view(torch.int32), right)
        assert torch.equal(own.a, a)
        assert torch.equal(own.b, b)
    assert torch.equal(product(own).view(torch.int32), right)


def test_faults_that_change_nothing_are_drawn_again_and_told():
    own, _ = pair(FAST[0])
    prover = Prover(seed=1, device_id="cpu0")
    masked = []
    for number in range(200):
        # What was there before is what belongs there: no stale output can be told from a fresh one.
        fault, outcome, unseen = strike(prover, own, seed=5, number=number, before=own.reference)
        assert fault.where not in {Where.STALE, Where.DROPPED}
        assert outcome.changed
        masked += unseen
    assert {Where.STALE, Where.DROPPED} <= {f.where for f in masked}


def test_a_fault_that_no_product_took_is_an_error_and_no_detection():
    class Idle(Prover):
        def prove(self, loaded, **_):
            pass

    with pytest.raises(RuntimeError, match="no matrix product"):
        strike(Idle(seed=1, device_id="cpu0"), loaded(*FAST[0]), seed=1, number=1, before=None)


def test_none_of_ten_thousand_faults_of_all_classes_is_missed():
    targets = [pair(row) for row in (*FAST, *SLOW)]
    prover = Prover(seed=1, device_id="cpu0")
    seen = Counter()
    for number in range(10_000):
        slow = number % 50 == 0
        own, before = targets[3 + number // 50 % 2 if slow else number % 3]
        wrong = prover.wrong
        fault, outcome, _ = strike(prover, own, seed=11, number=number, before=before)
        assert prover.wrong - wrong == outcome.changed, fault
        seen[fault.name] += 1
    assert sum(seen.values()) == 10_000
    wheres = {name.split(",")[0] for name in seen}
    assert wheres == {str(w) for w in Where}


@pytest.mark.parametrize("row", [*FAST, *SLOW], ids=lambda row: f"{row[0]} {row[1]}")
def test_the_first_wrong_element_and_its_bits_are_located_exactly(row):
    own, before = pair(row)
    prover = Prover(seed=1, device_id="cpu0")
    for number in range(100):
        prover.found.clear()
        fault, outcome, _ = strike(prover, own, seed=13, number=number, before=before)
        first = prover.found[0]
        assert (first["row"], first["column"], int(first["xor"], 16)) == outcome.first, fault


def test_the_described_fault_has_a_name_for_its_class():
    assert isinstance(many(1)[0], Fault)
    assert all(f.name.startswith(str(f.where)) for f in many(200))
