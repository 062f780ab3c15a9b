"""The network that a run of NCCL had to use, held against the one that its text names."""

from __future__ import annotations

from nodeproof.parsers.nccl_lines import Lines
from nodeproof.parsers.reading import Context, Grade

Judged = tuple[Grade, str] | None  # a grade and its reason; `None`: nothing to say


def network(lines: Lines, context: Context) -> Judged:
    """Judge what was used by what the node type has; `None` where it is right or nothing is known.

    A network that is only not named is a warning: the run may have used it or not. On one node none
    is crossed, so that it does not matter which one was chosen, unless the text shows otherwise.
    """
    used = lines.transport
    if context.get("nvlink_expected") is True and "SHM" in lines.channels:
        return Grade.FAIL, "GPUs of one node talk over shared memory and not over NVLink"
    several = context.get("multi_node")
    if several is False and not lines.crossed:
        return _nics(lines, context) if used == "efa" and lines.nics else None
    wrong = _chosen(lines, context)
    if wrong and wrong[0] is Grade.FAIL:
        return wrong
    if several is False:
        return (
            Grade.ERROR,
            "one node is said to have taken part, and the text shows a network in use",
        )
    if several is True and lines.counted == 1:
        return Grade.ERROR, "several nodes are said to have taken part, and the text shows one"
    return wrong


def _chosen(lines: Lines, context: Context) -> Judged:
    used = lines.transport
    for wanted, key in (("efa", "efa_expected"), ("ib", "ib_expected")):
        if context.get(key) is not True:
            continue
        others = [name for name in lines.providers if not name.startswith("efa")]
        if wanted == "efa" and others and used != "efa":
            return Grade.FAIL, f"libfabric chose {others[0]} and not EFA, which this node type has"
        if used == wanted:
            return _nics(lines, context) if wanted == "efa" else None
        if used not in {"unknown", "nvlink"}:
            return Grade.FAIL, f"{used} was used and not {wanted}, which this node type has"
        if lines.no_efa and wanted == "efa":
            return Grade.ERROR, "libfabric found no EFA device, and what was used then is not shown"
        return Grade.WARN, f"the text does not say that {wanted} was used"
    return None


def ended(context: Context) -> Judged:
    """Say that the command failed, where its status is known and is not 0."""
    status = context.get("exit_status")
    if status is None or status == 0:
        return None
    return Grade.ERROR, f"the command ended with status {str(status)[:40]}"


def count(context: Context, key: str) -> int | None:
    """Return a whole number above zero, `None` for anything else."""
    value = context.get(key)
    return value if type(value) is int and value > 0 else None


def _nics(lines: Lines, context: Context) -> Judged:
    wanted = count(context, "efa_nics_expected")
    if wanted is None:
        return None
    if not lines.nics:
        return Grade.WARN, f"EFA is used, and how many of {wanted} cards is not shown"
    if (least := min(lines.nics)) < wanted:
        return Grade.FAIL, f"EFA is used with {least} of {wanted} cards"
    if (most := max(lines.nics)) > wanted:
        return Grade.ERROR, f"{most} EFA cards where {wanted} are expected: correct the expectation"
    return None
