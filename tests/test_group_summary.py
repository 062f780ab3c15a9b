"""What a group's verdict says on the terminal: each cause once, and nothing without a word."""

import dataclasses
from pathlib import Path

import pytest

from nodeproof import results
from nodeproof.case import Reason, Why
from nodeproof.fabric import standing
from nodeproof.fabric.member import Part
from nodeproof.manifest import shipped
from nodeproof.model import Cause, Remedy
from nodeproof.reports import summary
from nodeproof.verdict import Decision, Verdict, decide_any
from tests.test_fabric_verdict import RUN

PRESENCE, PAIRS, COMMON = "fabric.member.presence", "fabric.member.pairs", "fabric.group.common"
NEVER = "rank 2 never came within 25 s; on a node that is to be rank 2, see whether its pod runs"
AWAY = "n1 went away: closed the connection"
PAIR = "round 1 n0 and n1: UnfinishedError: the barrier failed"


def reason(check, device, text, why=Why.SHORT, **more):
    return Reason(why=why, text=text, check=check, device=device, label=device, **more)


def unmeasured(check, device, text):
    return reason(check, device, f"not measured: {text}", Why.ERRORED)


def lost(device, text, what="stayed"):
    return reason(PRESENCE, device, f"{what} 0 (wants at least 1): {text}")


def of_rank_2(*devices):
    """What a rank that never came leaves behind."""
    return [
        lost("rank 2", NEVER, "came"),
        *(unmeasured(f"fabric.member.{c}", "rank 2", NEVER) for c in ("data", "transport")),
        unmeasured("fabric.group.bandwidth", "group", f"rank 2 took no part: {NEVER}"),
        reason(
            "fabric.group.grade",
            "group",
            "grade 0 (wants at least 2): 2 of 3 members of group worked together, without rank 2",
        ),
        *(
            unmeasured("fabric.member.punctual", d, f"rank 2 took no part: {NEVER}")
            for d in devices
        ),
    ]


def verdict_of(*undecided, failed=(), decision=Decision.UNDECIDED, plan=RUN.plan):
    return Verdict(
        decision=decision,
        rehearsal=False,
        failed=tuple(failed),
        undecided=undecided,
        waived=(),
        notes=(),
        remedy=Remedy.RETEST,
        counts=dict.fromkeys(("pass", "fail", "error", "skip", "trials", "selftests"), 1),
        plan=plan,
        ended="",
        loaded_s=0.0,
    )


def lines(*undecided, **more):
    """The lines between the first, which counts, and what to do."""
    head, *rest = summary.lines(verdict_of(*undecided, **more))
    assert "group of 4 nodes" in head
    return [line.strip() for line in rest if not line.startswith("to do")]


def test_a_rank_that_never_came_is_one_line_with_what_to_look_at():
    assert lines(*of_rank_2("n0", "n1")) == [
        NEVER.replace("rank 2 never", "rank 2: never", 1),
        "and 6 more findings, which follow from the above: see the files",
    ]


def test_a_node_that_went_away_is_told_with_where_to_look():
    first, more = lines(lost("n1", AWAY), unmeasured("fabric.member.data", "n1", AWAY))
    assert first.startswith(
        "n1: went away: closed the connection; see its own log and its kernel's"
    )
    assert more == "and 1 more finding, which follows from the above: see the files"


@pytest.mark.parametrize(
    "other",
    [
        reason("fabric.member.data", "n0", "wrong 3 elements (wants at most 0)"),
        reason("fabric.member.transport", "n1", "tcp 1 (wants at most 0): of n1"),
        unmeasured("fabric.member.data", "n0", "n0 cpu0 took no part: it was never asked to"),
        reason("fabric.group.grade", "group", "grade 0 (wants at least 2): without n1, n0"),
        Reason(why=Why.RUN, text="the boot id changed from a to b"),
    ],
    ids=str,
)
def test_what_does_not_follow_from_a_lost_node_has_a_line_of_its_own(other):
    told = lines(lost("n1", AWAY), other)
    assert len(told) == 2
    assert other.text in told[1]


def test_what_blames_hardware_is_never_taken_for_what_follows():
    bad = reason(PAIRS, "n3", f"sound 0: bad: {AWAY}", Why.FAILED, cause=Cause.HARDWARE)
    told = lines(lost("n1", AWAY), failed=[bad], decision=Decision.REJECT)
    assert told[0] == f"{PAIRS} on n3: {bad.text}"
    assert told[1].startswith("n1: went away")


def test_a_common_cause_is_told_once_and_not_of_every_node():
    said = "common causes 1 (wants at most 0): 4 of the first 4 pairs failed: look for a cause"
    unresolved = [reason(PAIRS, n, f"sound 0: unresolved: {PAIR}") for n in ("n0", "n1", "n2")]
    told = lines(*unresolved, reason(COMMON, "group", said))
    assert told == [
        f"{COMMON} on group: {said}",
        "and 3 more findings, which follow from the above: see the files",
    ]


def test_wrong_bits_are_told_though_there_is_a_common_cause():
    wrong = reason(PAIRS, "n0", "wrong 3 elements (wants at most 0)")
    told = lines(wrong, reason(COMMON, "group", "common causes 1 (wants at most 0): 2 pairs"))
    assert f"{PAIRS} on n0: {wrong.text}" in told


def test_a_common_cause_that_was_not_measured_explains_nothing():
    told = lines(
        reason(PAIRS, "n0", "sound 0: unresolved"), unmeasured(COMMON, "group", "no pairs at all")
    )
    assert len(told) == 2


def test_a_run_that_was_stopped_says_so_once():
    stop = "stopped by SIGTERM"
    told = lines(
        Reason(why=Why.RUN, text=f"the run was interrupted: {stop}"),
        *(unmeasured("fabric.member.data", n, f"{n} cpu0 took no part: {stop}") for n in "ab"),
    )
    assert told == [
        f"the run was interrupted: {stop}",
        "and 2 more findings, which follow from the above: see the files",
    ]


def test_many_that_say_the_same_are_one_line():
    said = "n9 said nothing of cpu0"
    told = lines(*(unmeasured("fabric.member.punctual", f"n{n}", said) for n in range(5)))
    assert told == [f"fabric.member.punctual on n0, n1, n2 and 2 more: not measured: {said}"]


def test_what_is_long_is_cut_and_says_where_the_rest_is():
    (told,) = lines(reason(PAIRS, "n0", "slow with " + "everybody " * 200))
    assert len(told) < 400
    assert told.endswith("... (whole in the files)")


def test_nothing_is_left_out_without_a_word():
    """As many findings as there are reasons: in a line, or among those that follow."""
    reasons = of_rank_2("n0", "n1", "n3")
    told = lines(*reasons)
    assert told[-1].startswith(f"and {len(reasons) - 1} more findings")


def test_a_member_that_heard_nothing_from_its_head_says_why_and_no_more(tmp_path):
    """All that a verdict makes of a plan without checks follows from that."""
    part = Part(
        rank=1,
        nodes=3,
        name="n1",
        head=("a", 1),
        device="cpu",
        cpu_devices=1,
        host_root=Path("/"),
        join_s=1.0,
        token="",
    )
    why = "rank 1 (n1): the head a:1 was not reached within 1 s: nobody listens there"
    standing.write(tmp_path / "results.jsonl", part, why, nonce="")
    verdict = decide_any(results.read(tmp_path / "results.jsonl"), shipped())
    assert verdict.decision is Decision.UNDECIDED
    head, line, to_do, *_ = summary.lines(verdict)
    assert head.startswith("UNDECIDED group of 3 nodes: 0 passed")
    assert line == f"  no results of the group: {why}"
    assert to_do.startswith("to do: ")


def test_a_group_of_one_is_one_node():
    plan = dataclasses.replace(RUN.plan, node={**RUN.plan.node, "group": 1})
    assert summary.lines(verdict_of(plan=plan))[0].startswith("UNDECIDED group of 1 node: ")
