"""Triton kernels that keep known words in registers, in shared memory, and under atomics.

Imports Triton, which a machine without a GPU need not have: `onchip` loads this file when it runs.
Every number that decides what a kernel does is read from memory (`orders`, int32), so that no
compiler can know it: nothing folds, and no launch compiles anew. A block reports one row of `log`:

    0  words that were wrong
    1  the first of them, -1 for none
    2  its bits that were wrong
    3  the SM that the block ran on
    4  wrong bits of the word that `orders` asks for, whatever stands in 1
    5  the same number as in 0, inverted: a row that was never written has no such pair
"""

# mypy: disable-error-code="no-untyped-call, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

ORDERS = (
    "salt",  # what the words of a launch are made from
    "state",  # of the generator at first
    "turns",  # how often words are inverted, or moved
    "spins",  # steps of the generator between turns
    "total",  # bits that all turns together invert
    "factor",  # of the permutation that all turns together are
    "shift",  # the same permutation's summand
    "block",  # in which a fault is planted
    "word",  # in which
    "bits",  # and these
    "watch",  # where it has to come out
    "zero",  # that only the memory knows
)
_SALT = tl.constexpr(0)
_STATE = tl.constexpr(1)
_TURNS = tl.constexpr(2)
_SPINS = tl.constexpr(3)
_TOTAL = tl.constexpr(4)
_FACTOR = tl.constexpr(5)
_SHIFT = tl.constexpr(6)
_BLOCK = tl.constexpr(7)
_WORD = tl.constexpr(8)
_BITS = tl.constexpr(9)
_WATCH = tl.constexpr(10)
_ZERO = tl.constexpr(11)
COLUMNS = 8  # of a row in the log; the last two are spare, so that rows are aligned
VERSION = str(triton.__version__)


@triton.jit
def scrambled(x: tl.tensor) -> tl.tensor:
    """Scramble 32-bit words by a bijection (C. Wellons' `lowbias32`, in the public domain)."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def stepped(x: tl.tensor) -> tl.tensor:
    """Return the next state of a linear congruential generator (Numerical Recipes' constants)."""
    return x * 1664525 + 1013904223


@triton.jit
def processor(ON_GPU: tl.constexpr) -> tl.tensor:
    """Return the SM this block runs on; of the interpreter, one of four that it does not have."""
    if ON_GPU:
        # Not pure: where a block runs is read when it runs.
        return tl.inline_asm_elementwise(
            "mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )
    return tl.program_id(0) % 4


@triton.jit
def reported(
    log: tl.tensor,
    wrong: tl.tensor,
    element: tl.tensor,
    watch: tl.tensor,
    sm: tl.tensor,
    SIZE: tl.constexpr,
) -> tl.tensor:
    """Write what a block saw: `wrong` are the bits of each word that differ."""
    row = log + tl.program_id(0) * 8
    bad = (wrong != 0).to(tl.int32)
    count = tl.sum(bad, 0)
    first = tl.min(tl.where(wrong != 0, element.to(tl.int32), SIZE), 0)
    signed = wrong.to(tl.int32, bitcast=True)
    at_first = tl.sum(tl.where(element.to(tl.int32) == first, signed, 0), 0)
    at_watch = tl.sum(tl.where(element == watch, signed, 0), 0)
    tl.store(row, count)
    tl.store(row + 1, tl.where(count > 0, first, -1))
    tl.store(row + 2, at_first)
    tl.store(row + 3, sm)
    tl.store(row + 4, at_watch)
    tl.store(row + 5, ~count)


@triton.jit
def hold(orders: tl.tensor, log: tl.tensor, SIZE: tl.constexpr, ON_GPU: tl.constexpr) -> None:
    """Hold SIZE words of each block in registers, turn them over, and wait in between."""
    sm = processor(ON_GPU)
    given = orders.to(tl.pointer_type(tl.uint32), bitcast=True)
    block = tl.program_id(0).to(tl.uint32)
    salt = scrambled(tl.load(given + _SALT) ^ block)
    element = tl.arange(0, SIZE).to(tl.uint32)
    known = scrambled(element ^ salt)
    ours = block == tl.load(given + _BLOCK)
    fault = tl.where(
        ours & (element == tl.load(given + _WORD)), tl.load(given + _BITS), tl.load(given + _ZERO)
    )
    held = known ^ fault  # in sound blocks a zero that only the memory knows
    state = tl.load(given + _STATE)
    other = tl.load(given + _ZERO)
    turns = tl.load(orders + _TURNS)
    spins = tl.load(orders + _SPINS)
    for _ in range(turns):
        held = held ^ state ^ other
        other = ~other
        for _spin in range(spins):
            state = stepped(state)
        tl.debug_barrier()
    # The sum of what was turned over comes from the host; what was known at first is made again.
    wrong = held ^ tl.load(given + _TOTAL) ^ scrambled(element ^ salt)
    watch = tl.where(ours, tl.load(given + _WATCH), 0xFFFFFFFF)
    reported(log, wrong, element, watch, sm, SIZE)


@triton.jit
def stage(orders: tl.tensor, log: tl.tensor, SIZE: tl.constexpr, ON_GPU: tl.constexpr) -> None:
    """Write SIZE words of each block to shared memory and read them elsewhere, again and again."""
    sm = processor(ON_GPU)
    given = orders.to(tl.pointer_type(tl.uint32), bitcast=True)
    block = tl.program_id(0).to(tl.uint32)
    salt = scrambled(tl.load(given + _SALT) ^ block)
    element = tl.arange(0, SIZE).to(tl.uint32)
    ours = block == tl.load(given + _BLOCK)
    fault = tl.where(
        ours & (element == tl.load(given + _WORD)), tl.load(given + _BITS), tl.load(given + _ZERO)
    )
    held = scrambled(element ^ salt) ^ fault
    state = tl.load(given + _STATE)
    other = tl.load(given + _ZERO)
    turns = tl.load(orders + _TURNS)
    spins = tl.load(orders + _SPINS)
    for _ in range(turns):
        held = held ^ state ^ other
        other = ~other
        # A permutation: an odd factor modulo a power of two. Its parts are the state's halves.
        source = (element * ((state >> 16) | 1) + state) & (SIZE - 1)
        held = tl.gather(held, source.to(tl.int32), 0)
        for _spin in range(spins):
            state = stepped(state)
    origin = (element * tl.load(given + _FACTOR) + tl.load(given + _SHIFT)) & (SIZE - 1)
    wrong = held ^ tl.load(given + _TOTAL) ^ scrambled(origin ^ salt)
    watch = tl.where(ours, tl.load(given + _WATCH), 0xFFFFFFFF)
    reported(log, wrong, element, watch, sm, SIZE)


@triton.jit
def contend(orders: tl.tensor, tables: tl.tensor, WIDTH: tl.constexpr, SIZE: tl.constexpr) -> None:
    """Update the same addresses from all blocks at once; `orders`: salt, addresses, what to leave out.

    `tables` is (4, WIDTH): sums, exclusive ors, maxima, and sums by compare-and-swap.
    """
    given = orders.to(tl.pointer_type(tl.uint32), bitcast=True)
    block = tl.program_id(0).to(tl.uint32)
    salt = tl.load(given + 0)
    addresses = tl.load(given + 1)
    number = block * SIZE + tl.arange(0, SIZE).to(tl.uint32)
    draw = scrambled(number ^ salt)
    address = (draw % addresses).to(tl.int32)
    value = scrambled(draw ^ 0x9E3779B1).to(tl.int32, bitcast=True) | 1
    wanted = number != tl.load(given + 2)
    tl.atomic_add(tables + address, value, mask=wanted)
    tl.atomic_xor(tables + WIDTH + address, value, mask=wanted)
    tl.atomic_max(tables + 2 * WIDTH + address, value, mask=wanted)
    once = scrambled(block ^ ~salt)
    cell = tables + 3 * WIDTH + (once % addresses).to(tl.int32)
    more = scrambled(once ^ 0x9E3779B1).to(tl.int32, bitcast=True) | 1
    more = tl.where(block == tl.load(given + 3), 0, more)
    seen = tl.load(cell)
    before = ~seen
    while seen != before:  # until nobody came between
        before = seen
        seen = tl.atomic_cas(cell, before, before + more)


COMPILED = isinstance(hold, triton.JITFunction)  # and not given to Triton's interpreter
