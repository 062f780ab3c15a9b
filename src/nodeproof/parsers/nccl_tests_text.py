"""Output of all_reduce_perf and its siblings (NVIDIA/nccl-tests), with or without a log between."""

from __future__ import annotations

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
    if wrong := sum(table.footers):
        return Grade.FAIL, f"wrong data: {wrong} out of bounds"
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
    if context.get("exit_status") not in {None, 0}:
        return Grade.ERROR, f"the command ended with status {context['exit_status']}"
    ranks, wanted = fields["ranks"], context.get("ranks_expected") or context.get("gpus_expected")
    if ranks is not None and wanted and ranks < wanted:
        return Grade.ERROR, f"{ranks} of {wanted} ranks took part: built or started without MPI?"
    if ranks is not None and context.get("ranks_expected") and ranks > wanted:
        return Grade.ERROR, f"{ranks} ranks took part where {wanted} are expected"
    if ranks == 1 or _nothing_moved(table):
        return Grade.ERROR, "one rank alone took part, so no communication was measured"
    if table.reduced:
        return Grade.ERROR, "the largest sizes were left out for want of memory: free it"
    if None in table.averages:
        return Grade.ERROR, "the average is no number"
    network = nccl_expected.network(lines, context)
    return network if network and network[0] is Grade.ERROR else None


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
