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

from nodeproof.kernels.cells import Pattern, Sweep
from nodeproof.kernels.march import SOLID, STRIPES, March
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
