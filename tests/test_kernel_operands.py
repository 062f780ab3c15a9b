from fractions import Fraction

import numpy as np
import pytest

from nodeproof.kernels.draws import integers, words
from nodeproof.kernels.formats import FORMATS, RECIPES, TILE, Family, Unprovable
from nodeproof.kernels.operands import agree, certify, make, representable


@pytest.mark.parametrize(
    ("dtype", "family"), [each for each in RECIPES if each[1] is not Family.ROUNDED]
)
def test_known_answers_are_the_sums_that_exact_fractions_give(dtype, family):
    operands = make(dtype, family, size=256, seed=3)
    for row, column in ((0, 0), (200, 3), (255, 255), (127, 128)):
        terms = zip(operands.a[row].tolist(), operands.b[:, column].tolist(), strict=True)
        assert sum(Fraction(x) * Fraction(y) for x, y in terms) == operands.answer[row, column]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("dtype", "depth"),
    [("float32", 512), ("bfloat16", 1024), ("float8_e4m3fn", 224), ("float8_e5m2", 512)],
)
def test_the_tightest_recipes_hold_at_their_full_depth_whatever_the_seed(dtype, depth, seed):
    assert RECIPES[dtype, Family.WIDE].depth == depth
    operands = make(dtype, Family.WIDE, size=-(-depth // TILE) * TILE, seed=seed)
    assert operands.depth == depth
    assert operands.budget * 0.7 < operands.bound <= operands.budget


def test_the_bound_covers_every_order_of_additions():
    a, b = integers(1, "a", 64, 200, 255), integers(1, "b", 200, 64, 255)
    terms = a[:, :, None] * b[None, :, :]
    worst = max(
        np.where(terms > 0, terms, 0).sum(1).max(), -np.where(terms < 0, terms, 0).sum(1).min()
    )
    bound, _ = certify(a, b, a @ b, bits=24)
    assert worst <= bound


@pytest.mark.parametrize(
    ("value", "depth", "bits", "holds"),
    [(255, 256, 24, True), (255, 259, 24, False), (7, 41, 11, True), (7, 42, 11, False)],
)
def test_the_certificate_refuses_operands_beyond_the_accumulator(value, depth, bits, holds):
    a, b = np.full((4, depth), value), np.full((depth, 4), value)
    if holds:
        assert certify(a, b, a @ b, bits=bits)[1] == 2**bits - 1
    else:
        with pytest.raises(Unprovable, match="may reach"):
            certify(a, b, a @ b, bits=bits)


@pytest.mark.parametrize("place", [(0, 0), (300, 400), (511, 511)])
def test_an_answer_with_one_wrong_element_is_refused(place):
    a, b = integers(5, "a", 512, 64, 127), integers(5, "b", 64, 512, 127)
    answer = a @ b
    agree(a, b, answer, seed=5)
    answer[place] += 1
    with pytest.raises(Unprovable, match="host itself"):
        agree(a, b, answer, seed=5)


@pytest.mark.parametrize(
    ("dtype", "value", "holds"),
    [
        ("bfloat16", 255.0, True),
        ("bfloat16", 257.0, False),
        ("float16", 2.0**-14, True),
        ("float16", 2.0**-15, False),  # subnormal: its exponent misleads a tensor core
        ("float16", 2047 * 2.0**5, True),
        ("float16", 2047 * 2.0**6, False),
        ("float32", 2.0**-126, True),
        ("float32", 2.0**-127, False),
        ("tfloat32", 2047.0, True),
        ("tfloat32", 2049.0, False),
        ("float8_e4m3fn", 240.0, True),
        ("float8_e4m3fn", 480.0, False),  # its code is a NaN
        ("float8_e5m2", 9.0, False),
        ("float4_e2m1", 6.0, True),
        ("float4_e2m1", 5.0, False),
        ("float4_e2m1", 0.5, False),  # subnormal, too
        ("int8", 127.0, True),
        ("int8", 128.0, False),
    ],
)
def test_only_normal_numbers_that_a_format_holds_exactly_are_operands(dtype, value, holds):
    assert representable(np.array([[1.0, value]]), FORMATS[dtype]) is holds


def test_an_element_depends_on_seed_tag_and_place_alone():
    whole = words(1, "a", 40, 30)
    assert np.array_equal(words(1, "a", 7, 9), whole[:7, :9])
    others = [words(2, "a", 40, 30), words(1, "b", 40, 30), whole[::-1], whole[:, ::-1]]
    assert all(np.mean(other == whole) < 0.001 for other in others)


def test_no_operand_is_zero_and_all_bits_toggle():
    drawn = integers(9, "a", 300, 300, 127)
    assert drawn.min() == -127
    assert drawn.max() == 127
    assert drawn.all()
    assert abs(drawn.mean()) < 1


@pytest.mark.parametrize("size", [0, 64, 200, 1152])
def test_a_size_without_whole_tiles_is_refused(size):
    with pytest.raises(Unprovable, match="multiple"):
        make("float32", Family.WIDE, size=size, seed=1)


def test_a_dtype_without_a_recipe_is_refused_and_told_what_there_is():
    with pytest.raises(Unprovable, match=r"float8.*bfloat16"):
        make("float8", Family.WIDE, size=128, seed=1)
