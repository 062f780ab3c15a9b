"""Which faults of memory each pattern finds for certain, in memory that has them."""

from __future__ import annotations

import random
from itertools import product

import pytest
import torch
from faulty_memory import (
    Alias,
    Coupling,
    FaultyMemory,
    Neighbourhood,
    State,
    StuckAt,
    Transition,
)
from torch.utils._python_dispatch import TorchDispatchMode

from nodeproof.kernels import march
from nodeproof.kernels.cells import Pattern, Sweep
from nodeproof.kernels.march import ELEMENTS, SOLID, STRIPES, March
from nodeproof.kernels.mismatches import Block, Mismatches, differs
from nodeproof.kernels.neighbours import STEP, TURNS, Neighbours

WORDS = 8**3
DIGITS = 3
ROW = 64  # words to the neighbour in the next row


def marched(faults, words=WORDS, pieces=1):
    cells = torch.zeros(words, dtype=torch.int64)
    with FaultyMemory(cells, faults):
        over = March(list(cells.chunk(pieces)), values=8, digits=DIGITS)
        for digit in range(DIGITS):
            for _ in over.march(digit, SOLID):
                pass
        for stripe in STRIPES:
            for _ in over.march(0, stripe):
                pass
    return {offset // 8 for offset in over.offsets}


def patterned(faults, passes=4):
    cells = torch.zeros(WORDS, dtype=torch.int64)
    with FaultyMemory(cells, faults):
        pattern = Pattern(seed=5, block=64, device=torch.device("cpu"))
        sweep = Sweep(pattern=pattern, pieces=[cells], block=64)
        for _ in sweep.fill():
            pass
        for number in range(passes):
            odd = number % 2 == 1
            for _ in sweep.verify("pass", inverted=odd, backwards=odd):
                pass
    return {offset // 8 for offset in sweep.offsets}


def disturbed(faults):
    cells = torch.zeros(STEP * 25, dtype=torch.int64)
    with FaultyMemory(cells, faults):
        over = Neighbours([cells], seed=5, block=STEP * 5)
        for turn in range(TURNS):
            for _ in over.disturb(turn):
                pass
            for _ in over.verify(turn):
                pass
    return {offset // 8 for offset in over.offsets}


def drawn(make, count, words=WORDS, each=2):
    """As many faults, each with words of its own, so that none masks another."""
    places = random.Random(11).sample(range(words), count * each)
    return [make(*places[each * i : each * (i + 1)], i) for i in range(count)]


def bits(number):
    return number * 7 % 64, number * 29 % 64


BETWEEN = {
    "inversion": lambda v, a, i: Coupling(v, bits(i)[0], a, bits(i)[1], to=i % 2),
    "forced": lambda v, a, i: Coupling(v, bits(i)[0], a, bits(i)[1], to=i % 2, forced=i // 2 % 2),
    "state": lambda v, a, i: State(v, bits(i)[0], a, bits(i)[1], when=i % 2, forced=i // 2 % 2),
}
ALONE = {
    "stuck": lambda word, i: StuckAt(word, bits(i)[0], i % 2),
    "transition": lambda word, i: Transition(word, bits(i)[0], i % 2),
}


def test_sound_memory_is_sound():
    assert marched([]) == set()
    assert patterned([]) == set()
    assert disturbed([]) == set()


@pytest.mark.parametrize("kind", ALONE)
@pytest.mark.parametrize("finds", [marched, patterned, disturbed])
def test_a_cell_that_is_stuck_or_changes_one_way_only_is_found_for_certain(finds, kind):
    faults = drawn(ALONE[kind], 64, words=STEP * 25, each=1)
    assert finds(faults) == {fault.word for fault in faults}


@pytest.mark.parametrize("kind", BETWEEN)
def test_a_march_finds_every_coupling_of_two_words_and_names_the_victim(kind):
    faults = drawn(BETWEEN[kind], 64)
    assert marched(faults) == {fault.word for fault in faults}


@pytest.mark.parametrize("kind", BETWEEN)
def test_words_that_differ_in_one_digit_only_are_apart_in_its_march(kind):
    free, faults = set(range(WORDS)), []
    for distance, i, turned in product((448, 56, 7, 1, 8, 64), range(4), (False, True)):
        # The digit of the first is zero and that of the second is not, or the pair would carry.
        one = next(
            w for w in sorted(free) if w + distance in free and in_one_digit(w, w + distance)
        )
        free -= {one, one + distance}
        pair = (one + distance, one) if turned else (one, one + distance)
        faults.append(BETWEEN[kind](*pair, i))
    assert marched(faults) == {fault.word for fault in faults}


def in_one_digit(a, b):
    return sum((a // 8**k % 8) != (b // 8**k % 8) for k in range(DIGITS)) == 1


@pytest.mark.parametrize("kind", BETWEEN)
def test_a_march_finds_every_coupling_of_two_bits_of_one_word(kind):
    pairs = random.Random(3).sample([(a, b) for a, b in product(range(64), repeat=2) if a != b], 96)
    faults = []
    for word, ((victim, aggressor), i) in enumerate(zip(pairs, range(96), strict=True)):
        fault = BETWEEN[kind](word * 5, word * 5, i)
        fault.bit, fault.other_bit = victim, aggressor
        faults.append(fault)
    assert marched(faults) == {fault.word for fault in faults}


def test_every_two_bits_of_a_word_differ_in_one_background():
    for a, b in product(range(64), repeat=2):
        assert a == b or any((s >> a ^ s >> b) & 1 for s in STRIPES)


@pytest.mark.parametrize("finds", [marched, patterned])
def test_two_addresses_of_one_cell_are_found_wherever_they_are(finds):
    faults = drawn(lambda a, b, _: Alias(a, b), 64)
    found = finds(faults)
    for fault in faults:
        assert {fault.word, fault.other} & found


@pytest.mark.parametrize("distance", [1, 8, 64])
def test_a_march_tells_two_addresses_apart_even_in_different_pieces(distance):
    assert marched([Alias(0, distance)])
    assert marched([Alias(3, WORDS + 3)], words=2 * WORDS, pieces=2)


def test_only_the_test_of_neighbours_finds_for_certain_what_gives_way_to_its_neighbours():
    faults = []
    for i, word in enumerate(range(70, STEP * 25 - ROW, 37)):
        around = (word - ROW, word - 1, word + 1, word + ROW)
        faults.append(Neighbourhood(word, word % 64, i % 2, around))
    victims = {fault.word for fault in faults}
    assert disturbed(faults) == victims
    assert not victims <= marched(faults)
    assert not victims <= patterned(faults)


def test_the_pieces_of_memory_need_not_lie_side_by_side():
    cells = torch.empty(3 * WORDS, dtype=torch.int64)
    over = March([cells[:WORDS], cells[2 * WORDS :]], values=8, digits=DIGITS)
    planted = []

    def strike(element):
        if element.name == "up r1 w0":
            planted.append(over.plant((WORDS + 77) * 8, 9, "", (1 << 64) - 1))

    for _ in over.march(2, SOLID, strike):
        pass
    assert over.offsets == [(WORDS + 77) * 8]
    assert over.found == [{**planted[0], "phase": over.found[0]["phase"]}]
    assert int(over.found[0]["address"], 16) == cells.data_ptr() + (2 * WORDS + 77) * 8
    assert over.found[0]["bits"] == [9]


class Waits(TorchDispatchMode):
    """Counts how often a number is fetched from the device, for which it has to be waited."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def waited(steps):
    with Waits() as waits:
        for _ in steps:
            pass
    return waits.count


def test_a_march_waits_once_in_a_block_in_however_many_pieces_it_lies():
    over = March(list(torch.zeros(4 * WORDS, dtype=torch.int64).chunk(4)), values=8, digits=DIGITS)
    for digit, blocks in ((0, 4 * 8), (1, 8), (2, 8)):
        assert waited(over.march(digit, SOLID)) == len(ELEMENTS) * blocks
    assert over.read == DIGITS * len(ELEMENTS) * over.bytes


def test_neighbours_are_waited_for_once_in_a_turn():
    over = Neighbours([torch.zeros(STEP * 100, dtype=torch.int64)] * 3, seed=5, block=STEP * 5)
    assert waited(over.disturb(0)) == 0
    assert waited(over.verify(0)) == 1
    assert over.wrong == 0


@pytest.mark.parametrize("gib", [8, 16, 24, 80, 136, 270])
def test_a_round_of_marches_waits_some_ten_thousand_times_at_most(gib):
    """On memory of a GPU's size of which there is one word, since it is only counted."""
    values = march.values_of_digit("cuda", gib << 30)
    pieces = [torch.zeros(1, dtype=torch.int64).expand(1 << 27) for _ in range(gib)]
    over = March(pieces, values=values, digits=march.DIGITS)
    blocks = [sum(1 for _ in over.blocks(digit)) for digit in range(march.DIGITS)]
    rounds = len(ELEMENTS) * (sum(blocks) + len(STRIPES) * blocks[0])
    assert rounds <= 80_000
    parts = [part for block in over.blocks(1) for part in block]
    assert sum(part.cells.numel() for part in parts) == gib << 27


@pytest.mark.parametrize("spread", [False, True])
def test_every_word_of_a_block_that_is_wrong_throughout_is_counted_in_its_place(spread):
    """More of them than are looked through at once."""
    over = Mismatches([torch.zeros(1 << 20, dtype=torch.int64)])
    cells = over.pieces[0].cells.view(1 << 9, 1 << 10, 2).select(2, 1)
    block = Block(offset=8, cells=cells)
    expected = torch.ones(1 << 10, dtype=torch.int64) if spread else 1
    over.settle([(block, differs(block, expected))], expected, "x")
    assert over.wrong == 1 << 19
    assert over.offsets == [8 + 16 * word for word in range(4096)]
    assert over.found[0]["expected"] != over.found[0]["got"]
    last = over.plant(((1 << 20) - 1) * 8, 0, "x", 0)
    over.settle([(block, differs(block, 2))], 2, "x")
    assert over.wrong == 1 << 20
    assert over.found[-1]["offset"] == last["offset"] == ((1 << 20) - 1) * 8


def test_what_is_read_wrong_once_is_counted_though_it_is_right_when_it_is_read_again():
    over = Mismatches([torch.zeros(1000, dtype=torch.int64)])
    sound, odd = (
        Block(offset=0, cells=over.pieces[0].cells[:500]),
        Block(offset=4000, cells=over.pieces[0].cells[500:]),
    )
    said = [(sound, differs(sound, 0)), (odd, torch.tensor(True))]
    over.settle(said, 0, "once")
    assert over.wrong == 1
    assert [(f["offset"], f["phase"], f["bits"]) for f in over.found] == [(4000, "once", [])]
