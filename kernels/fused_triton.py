"""The multiplication that compares its own answer: the part that runs on the multiprocessors.

Imported only where Triton is. `fused.py` has the host side, and says what is proven how.

Whether additions and multiplications are fused (`enable_fp_fusion`) is of no consequence here: with
exact operands either way gives the same bits, and tensor cores do not ask. What matters is
`input_precision`, which must not let float32 operands be rounded, and that no configuration is
searched for: every run compiles the same kernel.
"""

# mypy: disable-error-code="no-untyped-call, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def where_am_i(program: tl.tensor, EMULATED: tl.constexpr) -> tl.tensor:  # noqa: D103  see the docstring below
    # Asked anew for each tile, hence not `tl.extra.cuda.smid`, which counts as constant: a program
    # that was preempted may go on elsewhere.
    if EMULATED > 0:
        sm = program % EMULATED
    else:
        sm = tl.inline_asm_elementwise(
            "mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )
    return sm


# What changes between launches must not be specialised on: 0, 1 and multiples of 16 would each be
# another kernel, and what is planted would not be found by the kernel that is trusted.
@triton.jit(
    do_not_specialize=[
        "start",
        "items",
        "plant_item",
        "plant_sm",
        "plant_row",
        "plant_column",
        "plant_mask",
    ]
)
def multiply_and_compare(  # noqa: PLR0915  nothing may leave the kernel
    a: tl.tensor_descriptor,
    b: tl.tensor_descriptor,
    reference: tl.tensor,
    tiles_by_sm: tl.tensor,
    wrong_by_sm: tl.tensor,
    logged: tl.tensor,
    log: tl.tensor,
    pictures: tl.tensor,
    tiles_down: tl.tensor,
    tiles_across: tl.tensor,
    depth: tl.tensor,
    span: tl.tensor,
    start: tl.tensor,
    items: tl.tensor,
    plant_item: tl.tensor,
    plant_sm: tl.tensor,
    plant_row: tl.tensor,
    plant_column: tl.tensor,
    plant_mask: tl.tensor,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    TABLE: tl.constexpr,
    KEEP: tl.constexpr,
    FIELDS: tl.constexpr,
    CLOSED: tl.constexpr,
    DESCRIBED: tl.constexpr,
    INTEGER: tl.constexpr,
    PRECISION: tl.constexpr,
    EMULATED: tl.constexpr,
) -> None:
    """Multiply tiles, compare each in registers, write down what is wrong and where it was made.

    `a` (rows, depth) and `b` (columns, depth) are descriptors of blocks (BM, BK) and (BN, BK).
    `reference` repeats with period `span`: (span, span), or where `CLOSED`, span terms of rows and
    then span terms of columns, whose sums are the answer. `items` tiles are done, sweep after sweep
    from number `start` on, each sweep moved on by one program. `tiles_by_sm` and `wrong_by_sm` have
    TABLE places, the last for an SM with a higher number. `log` has KEEP + 1 rows of FIELDS, the
    last for the tile in which something is planted: into item `plant_item`, and into every tile of
    SM `plant_sm` (-1: none), at `plant_place` = row * BN + column of the tile.
    """
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    tiles = tiles_down * tiles_across
    row = tl.arange(0, BM)
    column = tl.arange(0, BN)
    for item in range(program, items, programs):
        sm = where_am_i(program, EMULATED)
        sm = tl.where((sm >= 0) & (sm < TABLE - 1), sm, TABLE - 1)
        sweep = start + item // tiles
        tile = (item + sweep) % tiles
        # Tiles that run at the same time share rows and columns, so that these stay in the cache.
        group = tile // (GROUP * tiles_across)
        down = min(tiles_down - group * GROUP, GROUP)
        within = tile % (GROUP * tiles_across)
        first_row = (group * GROUP + within % down) * BM
        first_column = (within // down) * BN

        accumulator = tl.zeros((BM, BN), dtype=tl.int32 if INTEGER else tl.float32)
        for k in range(0, depth, BK):
            if DESCRIBED:
                left = a.load([first_row, k])
                right = b.load([first_column, k])
            else:
                inner = k + tl.arange(0, BK)
                there = (inner < depth)[None, :]
                left = tl.load(
                    a + (first_row + row)[:, None] * depth + inner[None, :], mask=there, other=0.0
                )
                right = tl.load(
                    b + (first_column + column)[:, None] * depth + inner[None, :],
                    mask=there,
                    other=0.0,
                )
            accumulator = tl.dot(left, right.T, accumulator, input_precision=PRECISION)

        bits = accumulator.to(tl.int32, bitcast=True)
        top = first_row % span
        left_edge = first_column % span
        if (item == plant_item) | (sm == plant_sm):
            # From the known answer, not from the product: a device that is wrong there by itself
            # would undo the planted fault or change it.
            if CLOSED:
                right_bits = tl.load(reference + top + plant_row) + tl.load(
                    reference + span + left_edge + plant_column
                )
            else:
                right_bits = tl.load(
                    reference + (top + plant_row) * span + left_edge + plant_column
                )
            planted = right_bits.to(tl.int32, bitcast=True) ^ plant_mask
            here = (row == plant_row)[:, None] & (column == plant_column)[None, :]
            bits = tl.where(here, planted, bits)
        if CLOSED:
            of_rows = tl.load(reference + top + row)
            of_columns = tl.load(reference + span + left_edge + column)
            expected = of_rows[:, None] + of_columns[None, :]
        else:
            expected = tl.load(
                reference + (top + row)[:, None] * span + (left_edge + column)[None, :]
            )
        answer = expected.to(tl.int32, bitcast=True)
        differs = bits ^ answer
        wrong = tl.sum((differs != 0).to(tl.int32))
        tl.atomic_add(tiles_by_sm + sm, 1, sem="relaxed")
        if wrong > 0:
            tl.atomic_add(wrong_by_sm + sm, wrong, sem="relaxed")
            slot = KEEP
            if item != plant_item:
                slot = tl.atomic_add(logged, 1, sem="relaxed")
            if (slot < KEEP) | (item == plant_item):
                entry = log + slot * FIELDS
                tl.store(entry, sm)
                tl.store(entry + 1, tile)
                tl.store(entry + 2, sweep)
                tl.store(entry + 3, first_row)
                tl.store(entry + 4, first_column)
                tl.store(entry + 5, wrong)
                picture = pictures + slot * (BM * BN)
                tl.store(picture + row[:, None] * BN + column[None, :], differs)


VERSION = str(triton.__version__)
COMPILED = isinstance(multiply_and_compare, triton.JITFunction)  # and not interpreted
