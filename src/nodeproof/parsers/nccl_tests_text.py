"""Output of all_reduce_perf and its siblings (NVIDIA/nccl-tests), with or without a log between."""

from __future__ import annotations

from collections.abc import Iterator

from nodeproof.parsers import nccl_expected
from nodeproof.parsers.nccl_lines import Lines, bad_state, lines_of
from nodeproof.parsers.nccl_table import Table, table_of
from nodeproof.parsers.reading import Context, Grade, Reading, text_of

Judged = tuple[Grade, str]


def read(data: bytes, context: Context) -> Reading:
    """Read the output of one run or of several in one text.

    Fields: `complete`, `wrong`, `avg_busbw_gbs`, `max_size_bytes`, `transport`, `validated`,
    `ranks`; null is "not in the text". The average says little: it mixes all sizes.
    """
    text = text_of(data)
    table = table_of(text)
    lines = lines_of(text, idle=context.get("idle") is not False)
    grade, why = judge(table, lines, context)
    return Reading(grade=grade, why=why, fields={**table.fields(), "transport": lines.transport})


def judge(table: Table, lines: Lines, context: Context) -> Judged:
    """Faults that are shown first, then what was not measured, then what was measured too weakly."""
    if not table.seen:
        return Grade.ERROR, "there is no output of a test in it"
    return (
        _fault(table, lines, context)
        or _unmeasured(table, lines, context)
        or _weak(table, lines, context)
        or (Grade.PASS, f"every test finished and no value was wrong up to {_largest(table)} bytes")
    )


def _fault(table: Table, lines: Lines, context: Context) -> Judged | None:
    if table.failed:
        return (
            Grade.FAIL,
            f"wrong data: {sum(table.footers)} out of bounds, says a footer, and FAILED",
        )
    if bad := [row.size for row in table.rows if row.wrong]:
        return Grade.FAIL, f"wrong data at {bad[0]} bytes"
    idle = context.get("idle") is not False
    for source, says in table.failures:
        if source and bad_state(says, idle=idle):
            return Grade.FAIL, f"a GPU is in a bad state ({says}): reset it or reboot the node"
    if lines.faults:
        return Grade.FAIL, f"a device or port is in a bad state: {lines.faults[0]}"
    if _absent(table, context):
        return Grade.FAIL, f"GPUs are missing: {table.too_few or 'CUDA finds none'}"
    network = nccl_expected.network(lines, context)
    if network and network[0] is Grade.FAIL:
        return network
    if table.below_floor:
        return Grade.FAIL, "the average is below the floor that the run was given"
    return None


def _absent(table: Table, context: Context) -> bool:
    none = any("no CUDA-capable device" in says for _, says in table.failures)
    return bool(context.get("gpus_expected")) and (none or bool(table.too_few))


def _unmeasured(table: Table, lines: Lines, context: Context) -> Judged | None:
    """Whatever keeps the text from proving anything; it blames no GPU."""
    fields = table.fields()
    if table.failures:
        return Grade.ERROR, f"the run stopped: {table.failures[0][1] or 'Test failure'}"
    if table.too_few:
        return Grade.ERROR, f"the run stopped: {table.too_few}"
    if not fields["complete"]:
        last = lines.stops[0] if lines.stops else "its end is not in the text"
        return Grade.ERROR, f"a test did not finish: {last}"
    if ended := nccl_expected.ended(context):
        return ended
    if odd := _ranks(table, fields["ranks"], lines, context):
        return odd
    if fields["ranks"] == 1 or _nothing_moved(table):
        return Grade.ERROR, "one rank alone took part, so no communication was measured"
    if table.reduced:
        return Grade.ERROR, "the largest sizes were left out for want of memory: free it"
    if None in table.averages:
        return Grade.ERROR, "the average is no number"
    if any(figure < 0 for figure in _figures(table)):
        return Grade.ERROR, "a bandwidth is below zero, so none of them was measured"
    network = nccl_expected.network(lines, context)
    return network if network and network[0] is Grade.ERROR else None


def _ranks(table: Table, ranks: int | None, lines: Lines, context: Context) -> Judged | None:
    if ranks and context.get("multi_node") is True and _on_one(lines):
        return Grade.ERROR, "several nodes are said to have taken part, and all ranks were on one"
    exact = nccl_expected.count(context, "ranks_expected")
    wanted = exact or nccl_expected.count(context, "gpus_expected")
    if ranks is None and table.headers and 0 in table.ranks:
        ranks = len(table.ranks)  # the list has its head and its end, and is short all the same
    if ranks is not None and wanted and ranks < wanted:
        return Grade.ERROR, f"{ranks} of {wanted} ranks took part: built or started without MPI?"
    if ranks is not None and exact and ranks > exact:
        return Grade.ERROR, f"{ranks} ranks took part where {exact} are expected"
    return None


def _on_one(lines: Lines) -> bool:
    """Whether the list of devices has one host. Several may have one name, and NCCL counts them."""
    return len(lines.listed) == 1 and lines.counted < 2


def _figures(table: Table) -> Iterator[float]:
    yield from (average for average in table.averages if average is not None)
    for row in table.rows:
        yield from row.algbw
        yield from row.busbw


def _nothing_moved(table: Table) -> bool:
    """Bus bandwidth 0 everywhere: the factor of a single rank."""
    rows = [row for row in table.rows if row.size]
    if rows:
        return all(not any(bus > 0 for bus in row.busbw) for row in rows)
    return all(not average for average in table.averages)


def _weak(table: Table, lines: Lines, context: Context) -> Judged | None:
    if table.fields()["validated"] is False:
        return Grade.WARN, "the data were not checked, so nothing is proved about their correctness"
    network = nccl_expected.network(lines, context)
    if network:
        return network
    if not any(row.size for row in table.rows):
        return Grade.WARN, "the text has a footer and no row: which sizes were tested is not shown"
    if table.cut_rows:
        return Grade.WARN, f"{table.cut_rows} rows are not whole"
    if len(table.arguments) == 1 and _short(table):
        asked = table.arguments[0]["max"]
        return Grade.WARN, f"{asked} bytes were asked for, and the rows end at {_largest(table)}"
    if lines.stops or lines.notes:
        return Grade.WARN, f"NCCL warns: {(lines.stops or lines.notes)[0]}"
    return None


def _short(table: Table) -> bool:
    given = table.arguments[0]
    following = _largest(table) * given["factor"] + given["step"]
    return following < given["max"] * 0.9  # collectives round a size down to their ranks


def _largest(table: Table) -> int:
    return max((row.size for row in table.rows), default=0)
