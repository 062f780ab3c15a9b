"""What has to come out of a collective, held against plain Python and the arithmetic of torch."""

import itertools
import random

import pytest
import torch

from nodeproof.nccl_tests.bandwidth import Collective
from nodeproof.nccl_tests.exactness import SUMS, Case, compare, fill, sized

SUM_TYPES = ["float32", "bfloat16", "int32", "int64"]


def case_of(collective, dtype="int32", ranks=3, elements=96, **more):
    size = elements * {"bfloat16": 2, "int64": 8}.get(dtype, 4)
    return Case(
        collective=collective, dtype=dtype, size_bytes=size, ranks=ranks, **{"seed": 5, **more}
    )


def inputs(case):
    """What each rank puts in, in the type of the collective."""
    buffers = [torch.empty(case.count_in, dtype=case.view) for _ in range(case.ranks)]
    for rank, buffer in enumerate(buffers):
        fill(case, rank, buffer)
    return [buffer.view(case.type) for buffer in buffers]


def done_by_hand(case, rank):
    """What the collective means, spelled out on whole tensors."""
    given = inputs(case)
    mine = slice(rank * case.share, (rank + 1) * case.share)
    match case.collective:
        case Collective.ALL_REDUCE:
            return sum(given[1:], start=given[0])
        case Collective.REDUCE_SCATTER:
            return sum(given[1:], start=given[0])[mine]
        case Collective.ALL_GATHER:
            return torch.cat(given)
        case Collective.ALL_TO_ALL:
            return torch.cat([buffer[mine] for buffer in given])
        case Collective.BROADCAST:
            return given[case.root]
        case Collective.SENDRECV:
            return given[rank - 1]


KINDS = [(c, dtype) for c in Collective for dtype in (SUM_TYPES if c in SUMS else ["int32"])]


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize(("collective", "dtype"), KINDS)
def test_every_rank_expects_what_the_collective_means(collective, dtype, ranks):
    case = case_of(collective, dtype, ranks, elements=48 * ranks, repeat=4)
    for rank in range(ranks):
        output = done_by_hand(case, rank).view(case.view)
        assert compare(case, rank, output, most=1) == (0, [])


@pytest.mark.parametrize("dtype", SUM_TYPES)
def test_sums_are_the_same_bits_in_every_order_and_tree(dtype):
    case = case_of(Collective.ALL_REDUCE, dtype, ranks=7, elements=7 * 400)
    given = inputs(case)
    choice = random.Random(3)
    sums = set()
    for _ in range(40):
        terms = choice.sample(given, len(given))
        while len(terms) > 1:  # add any two, until one is left
            left, right = (terms.pop(choice.randrange(len(terms))) for _ in range(2))
            terms.append(left + right)
        sums.add(terms[0].view(case.view).numpy().tobytes())
    assert len(sums) == 1


@pytest.mark.parametrize("dtype", SUM_TYPES)
def test_sums_of_all_the_ranks_a_type_has_room_for_are_still_exact(dtype):
    case = case_of(Collective.ALL_REDUCE, dtype, ranks=256, elements=256)
    given = inputs(case)
    forward = sum(given[1:], start=given[0])
    backward = sum(given[-2::-1], start=given[-1])
    assert compare(case, 0, forward.view(case.view), most=1) == (0, [])
    assert compare(case, 255, backward.view(case.view), most=1) == (0, [])


def test_integer_sums_wrap_and_use_all_their_bits():
    case = case_of(Collective.ALL_REDUCE, "int64", ranks=4, elements=4096)
    terms = [buffer.tolist() for buffer in inputs(case)]
    exact = [sum(column) for column in zip(*terms, strict=True)]
    wrapped = [(x + 2**63) % 2**64 - 2**63 for x in exact]
    assert wrapped != exact
    assert case.wanted(0, 0, 4096, "cpu").tolist() == wrapped
    ones = sum((torch.tensor(terms[0]) >> bit & 1).double().mean().item() for bit in range(64))
    assert 31 < ones < 33


@pytest.mark.parametrize(("collective", "dtype"), KINDS)
def test_no_piece_of_the_data_looks_like_another(collective, dtype):
    """Else a stale, swapped or dropped piece could pass for the right one."""
    variants = [
        case_of(collective, dtype, ranks=2, elements=256, **more)
        for more in ({}, {"repeat": 1}, {"seed": 6})
    ]
    pieces = [
        half
        for case in variants
        for rank in range(2)
        for half in case.given(rank, 0, case.count_in, "cpu").split(64)
    ]
    for one, other in itertools.combinations(pieces, 2):
        assert (one == other).double().mean() < 0.1


def test_any_cut_of_the_data_is_the_same_as_the_whole():
    for collective, dtype in KINDS:
        case = case_of(collective, dtype, ranks=3, elements=96)
        whole = case.wanted(1, 0, case.count_out, "cpu")
        for start, stop in [(0, 1), (5, 32), (5, case.count_out), (31, 32)]:
            assert torch.equal(case.wanted(1, start, stop, "cpu"), whole[start:stop])


def test_more_than_one_chunk_is_compared_to_its_last_element():
    case = case_of(Collective.ALL_REDUCE, "int32", ranks=2, elements=200_000)
    output = done_by_hand(case, 0)
    output[0] ^= 1
    output[199_999] ^= -(2**31)
    wrong, found = compare(case, 0, output, most=16)
    assert wrong == 2
    assert [(f["element"], f["xor"], f["bits"]) for f in found] == [
        (0, "0x00000001", [0]),
        (199_999, "0x80000000", [31]),
    ]


def test_a_wrong_element_is_described_in_bits_and_only_so_many_are():
    case = case_of(Collective.ALL_REDUCE, "bfloat16", ranks=2, elements=8)
    output = done_by_hand(case, 0).view(torch.int16)
    before = int(output[3])
    output[3] ^= 0b101
    wrong, (found,) = compare(case, 0, output, most=1)
    assert wrong == 1
    assert found == {
        "collective": "all_reduce",
        "bytes": 16,
        "dtype": "bfloat16",
        "repeat": 0,
        "element": 3,
        "expected": f"0x{before & 0xFFFF:04x}",
        "got": f"0x{(before ^ 5) & 0xFFFF:04x}",
        "xor": "0x0005",
        "bits": [0, 2],
    }
    output.fill_(-1)
    assert [compare(case, 0, output, most=3)[0], len(compare(case, 0, output, most=3)[1])] == [8, 3]


def test_a_sum_that_lost_the_sign_of_zero_is_wrong():
    case = case_of(Collective.ALL_REDUCE, "bfloat16", ranks=8, elements=8 * 512)
    output = done_by_hand(case, 0)
    zero = int((output == 0).nonzero()[0, 0])
    output[zero] = -0.0
    assert compare(case, 0, output.view(torch.int16), most=1)[0] == 1


@pytest.mark.parametrize(
    "output",
    [torch.zeros(95, dtype=torch.int32), torch.zeros(96), torch.zeros(2, 48, dtype=torch.int32)],
)
def test_an_output_of_another_type_or_length_is_refused(output):
    with pytest.raises(ValueError, match="all_reduce gave"):
        compare(case_of(Collective.ALL_REDUCE), 0, output, most=1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dtype": "float64"}, "is none of"),
        ({"size_bytes": 8}, "do not divide"),
        ({"size_bytes": 0}, "do not divide"),
        ({"size_bytes": 16}, "do not divide"),
        ({"ranks": 0}, "at least one"),
        ({"dtype": "bfloat16", "ranks": 257, "size_bytes": 514}, "not exact"),
        ({"collective": Collective.BROADCAST, "dtype": "float32"}, "copies raw bits"),
    ],
)
def test_a_case_without_exact_data_is_refused(change, says):
    sound = {"collective": Collective.ALL_REDUCE, "dtype": "int32", "size_bytes": 12, "ranks": 3}
    with pytest.raises(ValueError, match=says):
        Case(**{**sound, "seed": 1, **change})


def test_sizes_are_rounded_up_to_whole_elements_for_every_rank():
    assert [sized(8, "int64", 8), sized(8, "bfloat16", 3), sized(4096, "int32", 8)] == [
        64,
        12,
        4096,
    ]


def test_every_rank_is_the_root_of_some_broadcast():
    roots = {case_of(Collective.BROADCAST, ranks=3, repeat=r).root for r in range(1, 8)}
    assert roots == {0, 1, 2}
