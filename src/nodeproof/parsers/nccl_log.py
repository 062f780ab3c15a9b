"""Log lines of NCCL (NCCL_DEBUG=INFO or WARN) and of its libfabric plugin."""

from __future__ import annotations

from nodeproof.parsers import nccl_expected, nccl_tests_text
from nodeproof.parsers.nccl_lines import Lines, lines_of
from nodeproof.parsers.nccl_table import table_of
from nodeproof.parsers.reading import Context, Grade, Reading, text_of


def read(data: bytes, context: Context) -> Reading:
    """Read a log. The fields are those of `nccl_tests_text`; most are null without a test."""
    text = text_of(data)
    table = table_of(text)
    lines = lines_of(text, idle=context.get("idle") is not False)
    if table.seen:
        grade, why = nccl_tests_text.judge(table, lines, context)
    else:
        grade, why = _judge(lines, context)
    return Reading(grade=grade, why=why, fields={**table.fields(), "transport": lines.transport})


def _judge(lines: Lines, context: Context) -> tuple[Grade, str]:
    """Only a log that shows how the run went may pass: its start is no proof of anything."""
    if not lines.ours and lines.transport == "unknown":
        return Grade.ERROR, "there is no line of NCCL in it"
    if lines.faults:
        return Grade.FAIL, f"a device or port is in a bad state: {lines.faults[0]}"
    wrong = nccl_expected.network(lines, context)
    if wrong and wrong[0] is Grade.FAIL:
        return wrong
    if lines.stops:
        return Grade.ERROR, f"NCCL stopped and blames nobody: {lines.stops[0]}"
    if ended := nccl_expected.ended(context):
        return ended
    if wrong and (wrong[0] is Grade.ERROR or not lines.works):
        return Grade.ERROR, wrong[1]
    if wrong:
        return wrong
    if lines.notes:
        return Grade.WARN, f"NCCL warns: {lines.notes[0]}"
    if lines.transport == "unknown" and not (lines.works or lines.channels):
        return Grade.ERROR, "the log shows neither a network in use nor a communicator at work"
    return Grade.PASS, f"{_used(lines)} is in use, and no warning is shown"


def _used(lines: Lines) -> str:
    if lines.transport == "unknown":
        return "a communicator"
    if lines.nics and lines.transport == "efa":
        return f"EFA with {min(lines.nics)} cards"
    return lines.transport
