"""Each way to check a product, against the errors that others are fooled by."""

import dataclasses
import tempfile

import numpy as np
import pytest
import torch
from hypothesis import configuration, given, settings
from hypothesis import strategies as st

from nodeproof.kernels.bits import raw
from nodeproof.kernels.checksum import Comparison, Freivalds, Seen, Skinny, checks
from nodeproof.kernels.formats import Family, Unprovable
from nodeproof.kernels.operands import make
from nodeproof.kernels.product import product, settle
from nodeproof.kernels.residual import decode, integer_operands, inverses, odd_weights
from nodeproof.kernels.stored import load

# A folder of its own in the checkout would be collected as tests.
configuration.set_hypothesis_home_dir(tempfile.mkdtemp(prefix="hypothesis-"))
CPU = torch.device("cpu")
SIZE = 256
ROWS = {
    "float32 wide": ("float32", Family.WIDE, "float32"),
    "float32 cancel": ("float32", Family.CANCEL_LIFT, "float32"),
    "float64 cancel": ("float64", Family.CANCEL_LIFT, "float64"),
    "bfloat16 cancel": ("bfloat16", Family.CANCEL_LIFT, "bfloat16"),
    "int8 wide": ("int8", Family.WIDE, "int32"),
}
WITH_SKINNY = set(ROWS) - {"float32 wide"}


@pytest.fixture(scope="module")
def ranges():
    settle(1)
    made = {}
    for name, (dtype, family, output) in ROWS.items():
        size = SIZE if dtype.startswith("float") else SIZE // 2
        operands = make(dtype, family, size=size, seed=5)
        loaded = load(operands, size=size, output=output, device=CPU)
        made[name] = (loaded, checks(loaded, seed=5), product(loaded))
    return made


@pytest.fixture(params=[*ROWS])
def ranged(request, ranges):
    loaded, every, output = ranges[request.param]
    return loaded, every, output.clone()


@pytest.fixture(params=["comparison", "freivalds", "skinny"])
def method(request, ranges):
    """A method for float32 products of every size of answer that it takes, and such a product."""
    loaded, every, output = ranges["float32 cancel"]
    return every[request.param], loaded, output.clone()


def test_a_right_product_passes_every_method(ranges):
    for name, (_, every, output) in ranges.items():
        assert set(every) - {"skinny"} == {"comparison", "freivalds"}
        assert ("skinny" in every) == (name in WITH_SKINNY)
        for check in every.values():
            assert check.check(output) == Seen(wrong=0)


def test_each_bit_of_one_element_is_found_and_located(ranged):
    loaded, every, output = ranged
    bits = raw(output)
    for bit in range(loaded.width):
        row, column = 3 + bit, 100 - bit
        mask = 1 << bit if bit < loaded.width - 1 else -(1 << bit)
        bits[row, column] ^= mask
        for check in every.values():
            seen = check.check(output)
            assert seen.wrong == 1
            assert seen.first is not None
            assert (seen.first.row, seen.first.column) == (row, column)
            assert seen.first.xor == 1 << bit
        bits[row, column] ^= mask


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), float("-inf"), -0.0, 0.5, 1e-45, 3.0000002, 1e30, -1e30, 2.0**24],
)
def test_what_is_no_integer_of_the_answer_never_passes(method, value):
    check, _, output = method
    output[17, 200] = value
    seen = check.check(output)
    assert seen.wrong == 1
    assert (seen.first.row, seen.first.column) == (17, 200)
    output[:] = value
    assert check.check(output).wrong > 0


def test_a_negative_zero_where_a_zero_belongs_never_passes(ranges):
    """Numerically the two are equal: only the sign tells."""
    loaded = ranges["float32 cancel"][0]
    a, answer = loaded.operands.a.copy(), loaded.operands.answer.copy()
    a[9], answer[9] = 0.0, 0
    operands = dataclasses.replace(loaded.operands, a=a, answer=answer)
    zeroed = load(operands, size=SIZE, output="float32", device=CPU)
    output = product(zeroed)
    output[9] = 0.0
    for check in (Comparison(zeroed), Freivalds(zeroed, seed=1), Skinny(zeroed, seed=1)):
        assert check.check(output).wrong == 0
        output[9, 4] = -0.0
        assert check.check(output).wrong == 1
        output[9, 4] = 0.0


@pytest.mark.parametrize("delta", [1.0, 2.0, 64.0])
@pytest.mark.parametrize("columns", [(3, 4), (0, 255), (16, 144)])
def test_pairs_that_cancel_in_rows_and_columns_are_found(method, delta, columns):
    check, _, output = method
    right = output.clone()
    for row, sign in ((20, 1), (61, -1)):
        output[row, columns[0]] += sign * delta
        output[row, columns[1]] -= sign * delta
    for side in (0, 1):  # what plain sums of rows and columns can't see
        assert torch.equal(output.sum(side), right.sum(side))
    assert check.check(output).wrong >= 2


@pytest.mark.parametrize("stride", [2, 4, 8, 16, 32])
@pytest.mark.parametrize("sign", [1, -1])
def test_equal_errors_a_stride_apart_are_found(method, stride, sign):
    """With weights of +1 and -1 an even number of them cancels half of the time or more."""
    check, _, output = method
    for offset in range(0, stride, max(stride // 4, 1)):
        for delta in (1.0, 32.0):
            wrong = output.clone()
            hit = wrong[40, offset::stride]
            hit += delta
            hit[1::2] += (sign - 1) * delta  # all up, or up and down in turn
            assert check.check(wrong).wrong > 0


def test_two_rows_or_columns_or_signs_that_change_places_are_found(method):
    check, _, output = method
    for wrong in (output.roll(1, 0), output.roll(1, 1), -output, output.t().contiguous()):
        assert check.check(wrong).wrong > 0
    one = output.clone()
    one[5, 6] = -one[5, 6]
    assert check.check(one).first.column == 6


def test_another_shape_type_or_layout_is_an_error_and_no_pass(method):
    check, _, output = method
    for wrong in (output[:-1], output.double(), output.t(), output.view(torch.int32)):
        with pytest.raises(RuntimeError, match="no pass"):
            check.check(wrong)


def test_every_wrong_element_is_counted_by_the_comparison(ranges):
    loaded, every, output = ranges["float32 wide"]
    wrong = output.clone()
    raw(wrong)[10:20, 30:50] ^= 1
    assert every["comparison"].check(wrong).wrong == 200
    assert every["freivalds"].check(wrong).wrong == 10
    assert loaded.size == SIZE


def test_a_narrow_product_whose_sums_would_round_is_refused():
    operands = make("float32", Family.WIDE, size=SIZE, seed=1)
    loaded = load(operands, size=SIZE, output="float32", device=CPU)
    with pytest.raises(Unprovable, match="adds exactly to"):
        Skinny(loaded, seed=1)


def test_an_answer_that_is_not_of_its_operands_is_refused(ranges):
    loaded = ranges["float32 cancel"][0]
    answer = loaded.operands.answer.copy()
    answer[1, 2] += 1
    false = dataclasses.replace(
        loaded, operands=dataclasses.replace(loaded.operands, answer=answer)
    )
    with pytest.raises(Unprovable, match="not that of its operands"):
        Freivalds(false, seed=1)


def test_the_powers_of_two_of_the_operands_are_moved_and_nothing_is_lost(ranges):
    for loaded, _, _ in ranges.values():
        a, b = integer_operands(loaded.operands)
        assert np.array_equal(a @ b, loaded.operands.answer)
    broken = dataclasses.replace(loaded.operands, b=loaded.operands.b + 0.25)
    with pytest.raises(Unprovable, match="no integer"):
        integer_operands(broken)


@given(st.integers(0, 2**32), st.integers(0, 255), st.integers(-(2**25), 2**25))
@settings(max_examples=200, deadline=None)
def test_any_one_error_of_a_row_is_decoded(seed, column, error):
    odd = odd_weights(seed, SIZE)
    residual = error * int(odd[column])
    wanted = (column, error) if error else None
    assert decode(residual, inverses(odd), 2**25) == wanted
    signed = (residual + 2**63) % 2**64 - 2**63  # as torch gives it
    assert decode(signed, inverses(odd), 2**25) == wanted


@given(st.integers(0, 2**32), st.integers(0, 2**64 - 1))
@settings(max_examples=200, deadline=None)
def test_what_is_decoded_explains_the_residual(seed, residual):
    odd = odd_weights(seed, SIZE)
    found = decode(residual, inverses(odd), 2**40)
    if found:
        assert 0 < abs(found[1]) <= 2**40
        assert (found[1] * int(odd[found[0]]) - residual) % 2**64 == 0


@given(st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_every_weight_is_odd_and_has_an_inverse(seed):
    odd = odd_weights(seed, 64)
    assert (odd % 2 == 1).all()
    assert (odd * inverses(odd) == 1).all()


def test_two_columns_that_explain_a_residual_leave_it_undecoded():
    odd = odd_weights(1, SIZE)
    odd[7] = odd[90]
    residual = 5 * int(odd[7])
    assert decode(residual, inverses(odd), 2**25) is None
    assert decode(residual, inverses(odd_weights(2, SIZE)), 2**25) is None


@given(
    st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(-254, 254)), min_size=1, max_size=6)
)
@settings(max_examples=60, deadline=None)
def test_any_few_errors_of_one_row_are_found(errors):
    """Not certain, but cancelling takes a chance of less than one in 2**30."""
    settle(1)
    _, every, output = _cancelling()
    wrong = output.clone()
    for column, error in errors:
        wrong[33, column] += error
    for check in every.values():
        assert (check.check(wrong).wrong == 0) == torch.equal(wrong, output)


_KEPT = []


def _cancelling():
    if not _KEPT:
        operands = make("float32", Family.CANCEL_LIFT, size=SIZE, seed=9)
        loaded = load(operands, size=SIZE, output="float32", device=CPU)
        _KEPT.append((loaded, checks(loaded, seed=9), product(loaded)))
    return _KEPT[0]
