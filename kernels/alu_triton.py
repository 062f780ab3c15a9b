"""Chains of arithmetic in the registers of a GPU: the part that runs on the multiprocessors.

Imported only where Triton is. `chase.py` has the host side; what the steps do, and what has to come
of them, is said in `float_chain.py` and `integer_chain.py`.

Compile with `enable_fp_fusion=False`: a multiplication and an addition that are fused on their own
accord round once instead of twice, and give other bits than the reference.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no types
def _where_am_i(program: tl.tensor, EMULATED: tl.constexpr) -> tl.tensor:
    # Asked anew for each pass: a program that was preempted may go on elsewhere.
    if EMULATED > 0:
        sm = program % EMULATED
    else:
        sm = tl.inline_asm_elementwise(
            "mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )
    return sm


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no types
def _logistic(word: tl.tensor, digest: tl.tensor, rate: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """One step of x -> rate x (1 - x) on the bits of floats, first folded into a digest."""
    x = word.to(rate.dtype, bitcast=True)
    if KIND == "float32" or KIND == "float32 fma":  # noqa: PLR1714  no `in` in this language
        digest = digest * 0x2545F491 + word
    else:
        digest = digest * 0x2545F4914F6CDD1D + word
    scaled = rate * x
    if KIND == "float32 fma" or KIND == "float64 fma":  # noqa: PLR1714  no `in` in this language
        x = tl.fma(-scaled, x, scaled)
    else:
        x = scaled * (1.0 - x)
    return x.to(word.dtype, bitcast=True), digest


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no types
def _integer(word: tl.tensor, own: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    if KIND == "lcg32":
        word = word * 1664525 + 1013904223
    elif KIND == "lcg64":
        word = word * 6364136223846793005 + 1442695040888963407
    elif KIND == "xorshift32":
        word = word ^ (word << 13)
        word = word ^ (word >> 17)
        word = word ^ (word << 5)
    elif KIND == "xorshift64":
        word = word ^ (word << 13)
        word = word ^ (word >> 7)
        word = word ^ (word << 17)
    elif KIND == "xoroshiro64":
        low = word.to(tl.uint32)
        high = (word >> 32).to(tl.uint32) ^ low
        low = ((low << 26) | (low >> 6)) ^ high ^ (high << 9)
        high = (high << 13) | (high >> 19)
        word = (high.to(tl.uint64) << 32) | low.to(tl.uint64)
    elif KIND == "mwc64":
        word = (word & 0xFFFFFFFF) * 698769069 + (word >> 32)
    else:
        tl.static_assert(KIND == "power31")
        word = word * word
        word = (word & 0x7FFFFFFF) + (word >> 31)
        word = (word & 0x7FFFFFFF) + (word >> 31)
        word = word * own.to(tl.uint64, bitcast=True)
        word = (word & 0x7FFFFFFF) + (word >> 31)
        word = (word & 0x7FFFFFFF) + (word >> 31)
    return word


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no types
def _step(
    word: tl.tensor, digest: tl.tensor, own: tl.tensor, KIND: tl.constexpr, WORDS: tl.constexpr
) -> tl.tensor:
    if WORDS == 2:
        word, digest = _logistic(word, digest, own, KIND)
    else:
        word = _integer(word, own, KIND)
    return word, digest


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no types
def chase(
    marks: tl.tensor,
    parameter: tl.tensor,
    orders: tl.tensor,
    passes_by_sm: tl.tensor,
    wrong_by_sm: tl.tensor,
    logged: tl.tensor,
    log: tl.tensor,
    KIND: tl.constexpr,
    WORDS: tl.constexpr,
    LANES: tl.constexpr,
    SEGMENTS: tl.constexpr,
    STEPS: tl.constexpr,
    KEEP: tl.constexpr,
    FIELDS: tl.constexpr,
    EMULATED: tl.constexpr,
) -> None:
    """Run all lanes of a chain through all segments, in each program, and compare in registers.

    `marks` is (SEGMENTS + 1, WORDS, LANES), signed; `parameter` (LANES,). `orders` are 64-bit words:
    passes, and of the planted fault the cut, pass, program, segment, lane, word and mask; they
    are read from memory so that what is planted is found by the very kernel that is trusted.
    `passes_by_sm` and `wrong_by_sm` have a counter for each multiprocessor. `logged` counts wrong
    lanes; `log` is (KEEP + 1, FIELDS): pass, program, multiprocessor, segment, lane and the words
    that were found; the last row is kept for the planted fault, which no other may crowd out.
    """
    program = tl.program_id(0)
    lane = tl.arange(0, LANES)
    own = tl.load(parameter + lane)
    passes = tl.load(orders).to(tl.int32)
    cut = tl.load(orders + 1).to(tl.int32)
    plant_pass = tl.load(orders + 2).to(tl.int32)
    plant_program = tl.load(orders + 3).to(tl.int32)
    plant_segment = tl.load(orders + 4).to(tl.int32)
    plant_lane = tl.load(orders + 5).to(tl.int32)
    plant_word = tl.load(orders + 6).to(tl.int32)
    plant_mask = tl.load(orders + 7)
    for number in range(passes):
        sm = _where_am_i(program, EMULATED)
        first = tl.load(marks + lane)
        if first.dtype == tl.int32:
            word = first.to(tl.uint32, bitcast=True)
        else:
            word = first.to(tl.uint64, bitcast=True)
        digest = word ^ word
        for segment in range(SEGMENTS):
            for _ in range(cut):
                word, digest = _step(word, digest, own, KIND, WORDS)
            hit = (
                (lane == plant_lane)
                & (program == plant_program)
                & (segment == plant_segment)
                & (number == plant_pass)
            )
            mask = tl.where(hit, plant_mask, 0).to(word.dtype)
            word = tl.where(plant_word == 0, word ^ mask, word)
            digest = tl.where(plant_word == 1, digest ^ mask, digest)
            for _ in range(STEPS - cut):
                word, digest = _step(word, digest, own, KIND, WORDS)
            here = marks + (segment + 1) * WORDS * LANES + lane
            want = tl.load(here).to(word.dtype, bitcast=True)
            wrong = word != want
            if WORDS == 2:
                want_digest = tl.load(here + LANES).to(word.dtype, bitcast=True)
                wrong = wrong | (digest != want_digest)
            count = tl.sum(wrong.to(tl.int64), 0)
            if count > 0:
                tl.atomic_add(wrong_by_sm + sm, count)
                slot = tl.atomic_add(logged + lane * 0, (lane * 0 + 1).to(tl.int64), mask=wrong)
                slot = tl.where(hit, KEEP, slot)
                keep = tl.where(wrong, slot, KEEP + 1) <= tl.where(hit, KEEP, KEEP - 1)
                row = log + slot * FIELDS
                tl.store(row + 0, (lane * 0 + number).to(tl.int64), mask=keep)
                tl.store(row + 1, (lane * 0 + program).to(tl.int64), mask=keep)
                tl.store(row + 2, (lane * 0 + sm).to(tl.int64), mask=keep)
                tl.store(row + 3, (lane * 0 + segment).to(tl.int64), mask=keep)
                tl.store(row + 4, lane.to(tl.int64), mask=keep)
                tl.store(row + 5, word.to(tl.int64), mask=keep)
                tl.store(row + 6, digest.to(tl.int64), mask=keep)
            word = want
            if WORDS == 2:
                digest = want_digest
        tl.atomic_add(passes_by_sm + sm, (sm * 0 + 1).to(tl.int64))
