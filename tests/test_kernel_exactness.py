"""Known answers hold for any order of additions, and no longer than their certificate says."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest
import torch
from hypothesis import configuration, given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from nodeproof.kernels.bits import raw
from nodeproof.kernels.draws import integers, words
from nodeproof.kernels.formats import FP8, RECIPES, Family, Unprovable, accumulator
from nodeproof.kernels.gemm import DTYPES, outputs
from nodeproof.kernels.operands import certify, make
from nodeproof.kernels.product import Prover, product, settle
from nodeproof.kernels.stored import exact, intact, load, on_host, turned, turned_over

# Its caches do not belong into the checkout, where pytest would look for tests.
configuration.set_hypothesis_home_dir(tempfile.mkdtemp(prefix="hypothesis-"))
CPU = torch.device("cpu")
FLOATS = {11: np.float16, 24: np.float32, 53: np.float64}  # significand bits of what adds up
GPU_OUTPUTS = [
    (dtype, family, output)
    for dtype in DTYPES
    for family, output in outputs(dtype, torch.device("cuda")).items()
]


# --- any order of additions ---------------------------------------------------------------------


def summed(terms, order, splits, number):
    """Add up along the last axis in an order, in so many parts that are then added up backwards."""
    parts = []
    for part in np.array_split(terms[..., order].astype(number), splits, axis=-1):
        total = np.zeros(terms.shape[:-1], dtype=number)
        for k in range(part.shape[-1]):
            total = total + part[..., k]
        parts.append(total)
    total = parts.pop()
    while parts:
        total = total + parts.pop()
    return total


def halved(terms, number):
    """Add neighbours, then neighbours of the sums, like a tree."""
    terms = terms.astype(number)
    while terms.shape[-1] > 1:
        if terms.shape[-1] % 2:
            terms = np.concatenate([terms, np.zeros_like(terms[..., :1])], axis=-1)
        terms = terms[..., 0::2] + terms[..., 1::2]
    return terms[..., 0]


def made(seed, rows, depth, columns, a_max, b_max):
    return integers(seed, "a", rows, depth, a_max), integers(seed, "b", depth, columns, b_max)


@settings(max_examples=150, deadline=None, database=None)
@given(
    seed=st.integers(0, 2**32),
    significand=st.sampled_from(sorted(FLOATS)),
    shape=st.tuples(st.integers(1, 9), st.integers(1, 200), st.integers(1, 9)),
    share=st.tuples(st.floats(0.1, 0.9), st.floats(0.2, 1.4)),
    splits=st.integers(1, 7),
)
def test_operands_that_are_certified_have_one_product_in_every_order(
    seed, significand, shape, share, splits
):
    rows, depth, columns = shape
    # Ranges whose bound lies around the budget, so that many sets are just below it.
    largest = 2.0**significand * share[1] * 4 / depth
    a_max = max(1, min(int(largest ** share[0]), 2**25))
    b_max = max(1, min(int(largest / a_max), 2**25))
    a, b = made(seed, rows, depth, columns, a_max, b_max)
    answer = a @ b
    try:
        certify(a, b, answer, bits=significand)
    except Unprovable:
        return
    terms = a[:, None, :] * b.T[None, :, :]
    order = np.argsort(words(seed, "order", 1, depth)[0])
    number = FLOATS[significand]
    wanted = answer.astype(number)
    assert np.array_equal(wanted.astype(np.float64), answer.astype(np.float64))
    for total in (
        summed(terms, order, splits, number),
        summed(terms, order[::-1], 1, number),
        summed(terms, np.argsort(terms[0, 0]), splits, number),  # all of one sign first
        halved(terms, number),
    ):
        assert total.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("significand", FLOATS)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_bound_is_reached_exactly_and_not_passed(significand, sign):
    """All terms of one sign, up to the last integer that the accumulator holds exactly."""
    budget = 2**significand - 1
    a, b = np.ones((1, 3), dtype=np.int64), np.full((3, 1), sign * (budget // 3), dtype=np.int64)
    b[0] += sign * (budget - 3 * (budget // 3))
    number = FLOATS[significand]
    terms = a[:, None, :] * b.T[None]
    assert int(summed(terms, np.arange(3), 1, number)[0, 0]) == sign * budget
    # The certificate is for any operands of these norms, so it may not reach the bound itself.
    one = np.array([[1]]), np.array([[sign * budget]])
    assert certify(*one, one[0] @ one[1], bits=significand) == (budget, budget)
    beyond = np.array([[1]]), np.array([[sign * (budget + 2)]])
    with pytest.raises(Unprovable, match="may reach"):
        certify(*beyond, beyond[0] @ beyond[1], bits=significand)
    assert int(number(sign * (budget + 2))) != sign * (budget + 2)  # and rightly so


@pytest.mark.parametrize(("depth", "holds"), [(2046, True), (2049, False)])
def test_a_set_above_the_bound_is_wrong_where_it_is_refused(depth, holds):
    a, b = np.ones((2, depth), dtype=np.int64), np.ones((depth, 2), dtype=np.int64)
    total = summed(a[:, None, :] * b.T[None], np.arange(depth), 1, np.float16)
    assert (int(total[0, 0]) == depth) is holds
    if holds:
        certify(a, b, a @ b, bits=11)
    else:
        with pytest.raises(Unprovable):
            certify(a, b, a @ b, bits=11)


# --- tensor cores that keep fewer bits than float32 -----------------------------------------------


def tensor_core(a, b, *, lanes=32, fraction=13):
    """A product as Ada's and Hopper's FP8 units are published to add it up (arXiv:2511.10909).

    Each step takes `lanes` terms and what was added up so far, aligns all to the largest exponent
    (a term's is the sum of its operands' exponents), cuts each off below `fraction` bits, adds
    exactly, and cuts the sum off to one bit more than that.
    """
    total = np.zeros((a.shape[0], b.shape[1]))
    a_exponent, b_exponent = np.frexp(a)[1] - 1, np.frexp(b)[1] - 1
    for start in range(0, a.shape[1], lanes):
        step = slice(start, start + lanes)
        terms = a[:, None, step] * b.T[None, :, step]
        exponents = a_exponent[:, None, step] + b_exponent.T[None, :, step]
        exponents = np.where(terms == 0, -10_000, exponents)
        own = np.where(total == 0, -10_000, np.frexp(total)[1] - 1)
        largest = np.maximum(exponents.max(axis=2), own)
        place = fraction - largest
        cut = np.trunc(np.ldexp(terms, place[:, :, None])).sum(axis=2)
        cut += np.trunc(np.ldexp(total, place))
        total = np.ldexp(cut, -place)
        part, exponent = np.frexp(total)
        total = np.ldexp(np.trunc(np.ldexp(part, fraction + 1)), exponent - fraction - 1)
    return total


def fp8_sets(bits):
    return [
        make(dtype, family, size=1024, seed=11, accumulator=bits)
        for dtype, family in RECIPES
        if dtype in FP8
    ]


def test_operands_for_14_bits_are_exact_where_sums_keep_14_bits():
    for operands in fp8_sets(14):
        got = tensor_core(operands.a[:24], operands.b[:, :24])
        assert np.array_equal(got, operands.answer[:24, :24]), (operands.dtype, operands.family)


def test_operands_for_24_bits_are_not_and_are_refused_there():
    a, b = made(1, 24, 8192, 24, 15, 15)
    certify(a, b, a @ b, bits=24)
    with pytest.raises(Unprovable, match="14 bits"):
        certify(a, b, a @ b, bits=14)
    assert np.mean(tensor_core(a, b) != a @ b) > 0.01
    assert np.array_equal(tensor_core(a, b, fraction=25), a @ b)


@settings(max_examples=40, deadline=None, database=None)
@given(
    seed=st.integers(0, 2**32),
    depth=st.integers(1, 96),
    largest=st.sampled_from([(15, 15), (15, 7), (7, 7), (15, 1)]),
    lanes=st.sampled_from([4, 16, 32]),
)
def test_whatever_is_certified_for_14_bits_is_exact_there(seed, depth, largest, lanes):
    a, b = made(seed, 8, depth * 8, 8, *largest)
    try:
        certify(a, b, a @ b, bits=14)
    except Unprovable:
        return
    order = np.argsort(words(seed, "order", 1, depth * 8)[0])
    got = tensor_core(a[:, order].astype(float), b[order].astype(float), lanes=lanes)
    assert np.array_equal(got, a @ b)


@pytest.mark.parametrize(
    ("dtype", "capability", "keeps"),
    [
        ("float8_e4m3fn", (8, 9), 14),
        ("float8_e5m2", (9, 0), 14),
        ("float8_e4m3fn", (10, 0), 24),
        ("float8_e5m2", (10, 3), 24),
        ("float8_e4m3fn", (12, 0), 14),  # not known
        ("float8_e4m3fn", (99, 0), 14),
        ("float8_e4m3fn", (0, 0), 14),
        ("float8_e5m2", None, 24),
        ("bfloat16", (9, 0), 24),
        ("tfloat32", (8, 0), 24),
        ("int8", (9, 0), 31),
        ("float64", None, 53),
    ],
)
def test_what_an_accumulator_keeps_is_known_or_counts_as_the_least(dtype, capability, keeps):
    assert accumulator(dtype, capability) == keeps


# --- families -------------------------------------------------------------------------------------


def test_no_row_of_a_wide_operand_is_like_another_and_a_replica_repeats():
    wide = make("int8", Family.WIDE, size=512, seed=2)
    assert len(np.unique(np.abs(wide.a), axis=0)) == 512
    assert len(np.unique(np.abs(wide.b), axis=1).T) == 512
    replica = make("int8", Family.REPLICA, size=512, seed=2)
    assert np.array_equal(np.abs(replica.answer[:128, :128]), np.abs(replica.answer[256:384, 384:]))


@pytest.mark.parametrize(
    ("dtype", "significands"),
    [
        ("float16", range(1024, 2048)),
        ("tfloat32", range(1024, 2048)),
        ("bfloat16", range(128, 256)),
        ("float8_e4m3fn", range(8, 16)),
        ("float4_e2m1", (1, 2, 3, 4, 6)),
        ("int8", range(1, 128)),
    ],
)
def test_every_pair_of_significands_meets_and_every_lane_is_taken(dtype, significands):
    operands = make(dtype, Family.OUTER, size=1024, seed=4)
    assert (np.count_nonzero(operands.a, axis=1) == 1).all()
    rows, lanes = operands.a.nonzero()
    assert set(lanes) == set(range(operands.depth))
    low = RECIPES[dtype, Family.OUTER].gauge[0]
    # With the gauge taken back, the numbers are integers; it is the same for a lane of A and of B.
    whole = list(significands)
    assert np.array_equal(np.unique(np.outer(whole, whole)), np.unique(np.abs(operands.answer)))
    _, exponents = np.frexp(operands.a[rows, lanes])
    assert exponents.min() >= low
    for row in operands.b[:3]:  # a lane has one gauge, so that fractions tell significands apart
        wanted = whole if low == 0 else np.frexp(whole)[0]
        seen = np.abs(row) if low == 0 else np.frexp(np.abs(row))[0]
        assert np.array_equal(np.unique(seen), np.unique(wanted))


def tf32(values, *, cut):
    """Round float32 numbers to the 11 bits that TF32 keeps, or cut them off."""
    raw = np.asarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
    if not cut:
        raw = raw + np.uint64(0xFFF) + ((raw >> np.uint64(13)) & np.uint64(1))
    return (raw & np.uint64(0xFFFFE000)).astype(np.uint32).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("cut", [True, False])
def test_bits_that_tf32_drops_leave_the_known_answer_however_they_are_dropped(cut):
    operands = make("tfloat32", Family.ROUNDED, size=512, seed=5)
    a, b = tf32(operands.a, cut=cut), tf32(operands.b, cut=cut)
    assert np.array_equal(a @ b, operands.answer)
    assert not (operands.a.astype(np.float32) == a).any()
    assert np.mean(operands.a @ operands.b != operands.answer) > 0.9  # if float32 computes


# --- as a device stores and multiplies them -------------------------------------------------------


@pytest.mark.parametrize(("dtype", "family", "output"), GPU_OUTPUTS)
def test_what_a_gpu_is_asked_for_the_host_computes_to_the_same_bits(dtype, family, output):
    settle(1)
    operands = make(dtype, family, size=256, seed=6)
    loaded = load(operands, size=256, output=output, device=CPU)
    assert intact(loaded, operands) == (True, True)
    slab = on_host(loaded, operands, (200, 30))
    got = raw(product(slab))
    right = bool((got == loaded.expected[128:256, 0:128]).all())
    assert right is (family is not Family.ROUNDED)  # on purpose: TF32 has to have rounded


CPU_CAN = [row for row in GPU_OUTPUTS if row[0] in {"float64", "float32", "int8", "tfloat32", *FP8}]


@pytest.mark.parametrize(("dtype", "family", "output"), CPU_CAN)
def test_operands_may_repeat_be_turned_and_be_transposed(dtype, family, output):
    settle(1)
    prover = Prover(seed=1, device_id="cpu0")
    operands = make(dtype, family, size=128, seed=6)
    loaded = load(operands, size=256, output=output, device=CPU)
    for way in (loaded, turned(loaded, 5), turned_over(turned(loaded, 3), (255, 1))):
        assert raw(product(way)).shape == (way.size, way.size)
        if family is not Family.ROUNDED:
            prover.prove(way)
    assert prover.wrong == 0
    assert intact(turned(loaded, 7), operands) == (True, True)


@pytest.mark.parametrize(("side", "says"), [("a", (False, True)), ("b", (False, True))])
@pytest.mark.parametrize("dtype", ["float32", "int8", "float8_e5m2"])
def test_a_stored_operand_that_changed_is_noticed(dtype, side, says):
    operands = make(dtype, Family.WIDE, size=128, seed=8)
    output = "int32" if dtype == "int8" else "float32"
    loaded = turned(load(operands, size=256, output=output, device=CPU), 2)
    cells = raw(getattr(loaded, side))
    place = (200, 17) if side == "a" else (17, 200)
    cells[place] = cells[place] ^ 1
    assert intact(loaded, operands) == says


def test_tf32_is_allowed_for_its_own_products_and_no_longer():
    settle(1)
    given_by = {
        dtype: load(
            make(dtype, Family.WIDE, size=128, seed=9), size=128, output="float32", device=CPU
        )
        for dtype in ("tfloat32", "float32")
    }
    seen = []

    class Look(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is torch.mm:
                seen.append(torch.backends.cuda.matmul.allow_tf32)
            return func(*args, **(kwargs or {}))

    with Look():
        product(given_by["tfloat32"])
        product(given_by["float32"])
    assert seen == [True, False]
    assert torch.get_float32_matmul_precision() == "highest"


def test_where_float32_computes_instead_of_tf32_the_host_says_the_same():
    settle(1)
    operands = make("tfloat32", Family.ROUNDED, size=256, seed=3)
    loaded = load(operands, size=256, output="float32", device=CPU)
    prover = Prover(seed=3, device_id="cpu0")
    prover.prove(loaded, spoil=False)
    assert prover.wrong > 0.9 * 256 * 256
    here = raw(product(loaded))[:128, :128]
    assert torch.equal(here, raw(product(on_host(loaded, operands, (5, 6)))))


def test_four_bit_numbers_are_packed_in_pairs_and_nothing_else_is_taken():
    values = np.array([[1.0, -6.0, 0.0, 1.5], [-0.5, 4.0, 3.0, -2.0]])
    assert exact(values, "float4_e2m1").tolist() == [[0xF2, 0x30], [0x69, 0xC5]]
    for bad in (5.0, 0.25, 7.0, -8.0, float("nan")):
        with pytest.raises(Unprovable, match="float4"):
            exact(np.array([[1.0, bad]]), "float4_e2m1")
