"""What a group proves of one of its members, and everything that may be wrong with one thing in it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import pytest
from gate_groups import FOUR, MEMBERS, NONCE, ONE, THREE, TWO, UUIDS, Measured, member, place, run
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeproof.gate import dispatch
from nodeproof.gate.proof import Ruling
from nodeproof.manifest import shipped
from nodeproof.model import Cause, Device, DeviceKind, Profile, Waiver
from nodeproof.verdict import Decision
from tests import shipped_run
from tests.test_fabric_verdict import BANDWIDTH, DATA, GROUP, PAIRS, errored, short

BAD = "sha256:" + "0" * 64
ROWS = tuple(map(member, MEMBERS))


def bad(of, on, check=PAIRS):
    """The same run in which this member failed."""
    return short(of, check, member(on), Cause.HARDWARE)


def instead(number: int, **facts):
    """The members, one of them with other facts."""
    return tuple(member(m, **facts) if n == number else member(m) for n, m in enumerate(MEMBERS))


# --- sound ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mine", MEMBERS, ids=lambda m: m.node)
def test_a_sound_group_accepts_each_of_its_members_head_or_not(mine):
    judged = Measured(mine).judged()
    assert (judged.decision, judged.ruling) == (Decision.ACCEPT, Ruling.ACCEPTED)
    assert judged.devices == dispatch.digest_of_devices(UUIDS[mine.node])
    assert "measured with 3 others" in judged.text


@pytest.mark.parametrize("mine", MEMBERS, ids=lambda m: m.node)
def test_a_bad_member_is_condemned_and_the_others_are_not_held_for_it(mine):
    """The file says reject, and so does its message; what counts for a node is what is its own."""
    measured = Measured(mine)
    measured.leaves(bad(run(), THREE))
    assert measured.message["verdict"] == "reject"
    assert measured.ending["exitCode"] == 10
    judged = measured.judged()
    if mine is THREE:
        assert (judged.decision, judged.ruling) == (Decision.REJECT, Ruling.CONDEMNED)
        assert judged.check == PAIRS
        assert PAIRS in judged.text
    else:
        assert (judged.decision, judged.ruling) == (Decision.ACCEPT, Ruling.ACCEPTED)


def test_of_two_bad_members_each_is_told_what_it_failed_itself():
    for mine, check in ((TWO, DATA), (THREE, PAIRS)):
        measured = Measured(mine)
        measured.leaves(bad(bad(run(), THREE), TWO, DATA))
        judged = measured.judged()
        assert (judged.decision, judged.check) == (Decision.REJECT, check)
        assert mine.node in judged.text


@pytest.mark.parametrize("code", [0, 1, 10, 137])
def test_the_exit_status_decides_nothing(code):
    measured = Measured()
    measured.ending["exitCode"] = code
    assert measured.judged().decision is Decision.ACCEPT


def test_it_is_judged_without_being_changed():
    measured = Measured()
    kept = copy.deepcopy((measured.node, measured.job, measured.pods))
    measured.judged()
    assert kept == (measured.node, measured.job, measured.pods)


# --- open -----------------------------------------------------------------------------------

ANOTHER = "boot-of-nobody"
WAIVER = Waiver(check=PAIRS, device=TWO.node, reason="known", expires="2027-12-31")
GPUS = UUIDS[TWO.node]


def _found_less(m: Measured) -> None:
    whole = run()
    left = [f for f in whole.findings if (f.check, f.device.id) != (DATA, TWO.node)]
    m.leaves(whole.but(findings=tuple(left)))


def _ended(m: Measured, **changes: str) -> None:
    whole = run()
    m.leaves(whole.but(end=dataclasses.replace(whole.end, **changes)))


def _of_one_node(m: Measured) -> None:
    """A run that proves this node alone, under the nonce of the group."""
    alone = shipped_run.accepted()
    told = run().plan
    about = {"name": TWO.node, "uid": TWO.uid, "boot_id": TWO.boot_id}
    plan = {"nonce": NONCE, "profile": Profile.QUICK, "spec": told.spec, "node": about}
    m.leaves(alone.replan(suite_digest=told.suite_digest, **plan))


def _doubled(m: Measured) -> None:
    """A member stands twice among the devices of the plan, its last boot first."""
    again = member(TWO, boot_id=ANOTHER)
    m.leaves(run().replan(devices=(GROUP, again, *ROWS)))


def _never_came(m: Measured) -> None:
    """The head knows of one that never came its rank and no more."""
    nobody = Device(
        kind=DeviceKind.MEMBER,
        id="rank 3",
        label="rank 3",
        facts={"rank": 3, "boot_id": "", "devices": []},
    )
    m.leaves(errored(run(*ROWS[:3], nobody), "fabric.member.presence", nobody))


def _many(m: Measured) -> None:
    more = tuple(Device(kind=DeviceKind.LINK, id=f"l{n}", label="l") for n in range(200))
    m.leaves(run().replan(devices=(GROUP, *ROWS, *more)))


F, I, M, U = Ruling.FOREIGN, Ruling.INVALID, Ruling.MISSING, Ruling.UNDECIDED  # noqa: E741
ONE_THING: dict[str, tuple[Callable[[Measured], object], Ruling, str]] = {
    # what binds the run
    "nonce of another group": (lambda m: m.leaves(run().replan(nonce="another")), F, "nonce"),
    "no nonce": (lambda m: m.leaves(run().replan(nonce="")), F, "nonce is not told"),
    "nonce of the Job": (lambda m: m.told(nonce="another"), F, "nonce"),
    "no nonce at all": (
        lambda m: (m.told(nonce=""), m.leaves(run().replan(nonce=""))),
        F,
        "not known",
    ),
    "rehearsal": (lambda m: m.leaves(run().replan(rehearsal=True)), F, "rehearsal"),
    "waivers": (lambda m: m.leaves(run().replan(waivers=(WAIVER,))), F, "1 waivers"),
    "spec of the Job": (lambda m: m.told(spec_digest=BAD), F, "spec digest"),
    "spec of the run": (lambda m: m.leaves(run().replan(spec={"digest": BAD})), F, "spec digest"),
    "no spec": (lambda m: m.leaves(run().replan(spec={})), F, "spec digest is not told"),
    "spec by now": (
        lambda m: setattr(m, "spec", dataclasses.replace(m.spec, digest=BAD)),
        F,
        "spec digest of the Job",
    ),
    "suites": (lambda m: m.leaves(run().replan(suite_digest=BAD)), F, "suite digest"),
    "manifest by now": (
        lambda m: setattr(m, "manifest", dataclasses.replace(shipped(), digest=BAD)),
        F,
        "the message says accept",
    ),
    "manifest of the run": (
        lambda m: m.leaves(run().replan(manifest_digest=BAD)),
        U,
        "other suites",
    ),
    "profile of the run": (lambda m: m.leaves(run().replan(profile=Profile.GATE)), F, "profile"),
    "profile of the Job": (lambda m: m.told(profile="gate"), F, "profile"),
    # who took part
    "a member less in the results": (lambda m: m.leaves(run(*ROWS[:3])), F, "name members"),
    "a member less in the Job": (lambda m: m.of(*MEMBERS[:3]), F, "name members"),
    "a member more in the Job": (lambda m: m.of(*MEMBERS, place("v")), F, "name members"),
    "another member in the Job": (lambda m: m.of(*MEMBERS[:3], place("v")), F, "gpu-v"),
    "a pair, measured as four": (lambda m: m.of(TWO, THREE), F, "name members"),
    "alone": (
        lambda m: (m.of(TWO), m.leaves(run(member(TWO), boot_id=TWO.boot_id))),
        F,
        "nodes of the Job: 1, of the settings now: 2 to 8",
    ),
    "fewer than the settings ask for by now": (lambda m: m.now(group_least=5), F, "5 to 8"),
    "more than the settings allow by now": (lambda m: m.now(group_most=3), F, "2 to 3"),
    "another's boot": (lambda m: m.leaves(run(*instead(3, boot_id=ANOTHER))), F, ANOTHER),
    "my boot": (lambda m: m.leaves(run(*instead(1, boot_id=ANOTHER))), F, ANOTHER),
    "a boot that is not told": (lambda m: m.leaves(run(*instead(3, boot_id=""))), F, "no boot id"),
    "a boot that is null": (lambda m: m.leaves(run(*instead(3, boot_id=None))), F, "no boot id"),
    "a boot that is a list": (
        lambda m: m.leaves(run(*instead(3, boot_id=[FOUR.boot_id]))),
        F,
        "name members",
    ),
    "my boot in the Job": (
        lambda m: m.of(*(dataclasses.replace(p, boot_id=ANOTHER) if p is TWO else p for p in MEMBERS)),
        F,
        "boot id of the node now",
    ),
    "head in a boot of nobody": (lambda m: m.leaves(run(boot_id=ANOTHER)), F, "no member's"),
    "head in no boot": (lambda m: m.leaves(run(boot_id="")), U, "boot id could not be read"),
    "head restarted": (lambda m: _ended(m, boot_id=ANOTHER), U, "boot id changed"),
    "a member that never came": (_never_came, F, "rank 3 (no boot id)"),
    "a member twice": (_doubled, U, "names 5 members of a group of 4"),
    "a member twice, and a group of five": (
        lambda m: m.leaves(run(*ROWS, member(TWO))),
        U,
        "names member",
    ),
    "results of one node": (_of_one_node, F, "of no group"),
    "two groups": (
        lambda m: m.leaves(run().replan(devices=(GROUP, dataclasses.replace(GROUP, id="g2"), *ROWS))),
        U,
        "2 groups",
    ),
    # with which GPUs
    "other GPUs": (lambda m: m.leaves(run(*instead(1, devices=["GPU-1", "GPU-2"]))), F, "its GPUs"),
    "a GPU less": (lambda m: m.leaves(run(*instead(1, devices=GPUS[:1]))), F, "its GPUs"),
    "a GPU twice": (lambda m: m.leaves(run(*instead(1, devices=[*GPUS, GPUS[0]]))), F, "its GPUs"),
    "no GPUs": (lambda m: m.leaves(run(*instead(1, devices=[]))), F, "its GPUs"),
    "no word of GPUs": (lambda m: m.leaves(run(*instead(1, devices=None))), F, "its GPUs"),
    "a text of GPUs": (lambda m: m.leaves(run(*instead(1, devices=GPUS[0]))), F, "its GPUs"),
    "two GPUs in one text": (
        lambda m: m.leaves(run(*instead(1, devices=["\n".join(sorted(GPUS))]))),
        F,
        "its GPUs",
    ),
    "no GPUs, and none that passed alone": (
        lambda m: (
            m.leaves(run(*instead(1, devices=[]))),
            setattr(m, "tested", dispatch.digest_of_devices([])),
        ),
        F,
        "its GPUs",
    ),
    "a proof that is lost": (lambda m: setattr(m, "tested", ""), F, "its GPUs"),
    "GPUs of another": (
        lambda m: setattr(m, "tested", dispatch.digest_of_devices(UUIDS[ONE.node])),
        F,
        "its GPUs",
    ),
    "fewer GPUs in the Job": (lambda m: m.told(devices="1"), F, "GPUs expected of the Job"),
    "more GPUs expected by now": (
        lambda m: m.now(expected={"p5.48xlarge": 8}),
        F,
        "settings now: 8",
    ),
    "nothing expected by now": (lambda m: m.now(expected={}), F, "settings now: none"),
    # the node and its pod
    "uid of the node now": (
        lambda m: m.node["metadata"].update(uid=ONE.uid),
        F,
        "another name than the member",
    ),
    "boot of the node now": (
        lambda m: m.node["status"]["nodeInfo"].update(bootID=ANOTHER),
        F,
        "boot id of the node now",
    ),
    "no boot of the node now": (lambda m: m.node["status"].clear(), F, "not told"),
    "pod on another node": (
        lambda m: m.pod["spec"].update(nodeName=ONE.node),
        Ruling.LOST,
        "its pod is gone",
    ),
    "pod on no node": (
        lambda m: m.pod["spec"].update(nodeName=None),
        Ruling.LOST,
        "its pod is gone",
    ),
    "pod that waits for a node, and says that it has ended": (
        lambda m: (m.pod["spec"].update(nodeName=None), m.pod["status"].update(phase="Pending")),
        F,
        "node of the pod is not told",
    ),
    "pod of another Job": (
        lambda m: m.pod["metadata"]["ownerReferences"][0].update(uid="another"),
        Ruling.LOST,
        "its pod is gone",
    ),
    "no pod": (lambda m: m.pods.clear(), Ruling.LOST, "its pod is gone"),
    "node of another name": (
        lambda m: (
            m.node["metadata"].update(name="gpu-v"),
            m.pod["spec"].update(nodeName="gpu-v"),
        ),
        U,
        "do not say what became of this node",
    ),
    "node by the name of another member": (
        lambda m: (
            m.node["metadata"].update(name=ONE.node),
            m.pod["spec"].update(nodeName=ONE.node),
            setattr(m, "tested", dispatch.digest_of_devices(UUIDS[ONE.node])),
        ),
        F,
        "another name than the member",
    ),
    "image of the pod": (
        lambda m: m.container.update(imageID="mirror.example.com/x@sha256:" + "2e" * 32),
        F,
        "the pod ran image",
    ),
    "no image": (lambda m: m.container.update(imageID=""), F, "the pod ran image"),
    "image that was asked for": (
        lambda m: m.pod["spec"]["containers"][0].update(image="x@sha256:" + "2e" * 32),
        F,
        "the pod was made with image",
    ),
    "image of the Job": (lambda m: m.told(image=""), F, "image"),
    "image by now": (lambda m: m.now(image="x@sha256:" + "3d" * 32), F, "image of the Job"),
    "container that has not ended": (
        lambda m: m.ending.pop("exitCode"),
        Ruling.LOST,
        "without a word",
    ),
    # what it brought out
    "message of another verdict": (
        lambda m: m.says(verdict="reject"),
        F,
        "the message says reject",
    ),
    "accept said of an undecided": (
        lambda m: (m.leaves(errored(run(), DATA, member(FOUR))), m.says(verdict="accept")),
        F,
        "the message says accept",
    ),
    "accept said of a reject": (
        lambda m: (m.leaves(bad(run(), THREE)), m.says(verdict="accept")),
        F,
        "the message says accept",
    ),
    "message of other results": (lambda m: m.says(results=BAD), I, "log of pod"),
    "no message": (lambda m: m.ending.update(message=""), M, "left no message"),
    "a word for a message": (lambda m: m.ending.update(message="accept"), I, "none of ours"),
    "log lost": (lambda m: setattr(m, "log", None), M, "could not be read"),
    "log empty": (lambda m: setattr(m, "log", ""), I, "does not hold"),
    "log cut": (lambda m: setattr(m, "log", m.log[: len(m.log) // 2]), I, "does not hold"),
    "results without end": (_many, I, "205 devices: no run does"),
    "results without a plan": (
        lambda m: m.signed(m.results().partition(b"\n")[2]),
        F,
        "no plan",
    ),
    "results without an end": (
        lambda m: m.signed(m.results()[: m.results().index(b'{"type":"end"')]),
        U,
        "cut off",
    ),
    "interrupted": (lambda m: _ended(m, interrupted="stopped by SIGTERM"), U, "interrupted"),
    "no results": (lambda m: m.signed(b""), F, "no plan"),
    # what was found
    "a finding of mine is not there": (_found_less, U, DATA),
    "mine was not measured": (lambda m: m.leaves(errored(run(), DATA, member(TWO))), U, DATA),
    "the group was short, for nobody's fault": (
        lambda m: m.leaves(short(run(), BANDWIDTH, GROUP)),
        U,
        BANDWIDTH,
    ),
    "another was bad, and the group not measured": (
        lambda m: m.leaves(errored(bad(run(), THREE), BANDWIDTH, GROUP)),
        U,
        BANDWIDTH,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", ONE_THING)
def test_one_thing_that_is_wrong_never_accepts_and_is_named(what):
    change, ruling, words = ONE_THING[what]
    measured = Measured()
    change(measured)
    judged = measured.judged()
    assert judged.decision is Decision.UNDECIDED
    assert (judged.ruling, judged.devices, judged.check) == (ruling, "", "")
    assert words in judged.text
    assert len(judged.text) > 10


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r.replan(nonce="another"), "nonce"),
        (lambda r: r.replan(rehearsal=True), "rehearsal"),
        (lambda r: r.replan(suite_digest=BAD), "suite digest"),
        (lambda r: r.replan(devices=(GROUP, *instead(3, boot_id=ANOTHER))), ANOTHER),
        (lambda r: r.replan(devices=(GROUP, *instead(2, devices=["GPU-1"]))), "its GPUs"),
        (lambda r: r.replan(devices=(GROUP, *instead(2, devices=["\ud800"]))), "its GPUs"),
        (lambda r: r.replan(node={**r.plan.node, "boot_id": ANOTHER}), "no member's"),
        (lambda r: r.replan(node={**r.plan.node, "boot_id": [ANOTHER]}), "no member's"),
    ],
)
def test_nor_does_a_run_that_binds_to_something_else_condemn(change, words):
    measured = Measured(THREE)
    measured.leaves(change(bad(run(), THREE)))
    judged = measured.judged()
    assert (judged.decision, judged.ruling) == (Decision.UNDECIDED, F)
    assert words in judged.text


@pytest.mark.parametrize(
    "told",
    [
        "",
        "null",
        "7",
        "true",
        '"gpu-x"',
        "{}",
        "[]",
        "[null]",
        "[[]]",
        '["node"]',
        "[" * 100_000,
        "9" * 100_000,
        '[{"node": "gpu-x", "uid": "uid-x", "boot_id": "boot-of-x"}]',
        '[{"node": "gpu-x", "uid": "uid-x", "boot_id": "", "proof": "np-x-1"}]',
        '[{"node": "gpu-x", "uid": "uid-x", "boot_id": "boot-of-x", "proof": ""}]',
    ],
    ids=lambda told: repr(told[:60]),
)
def test_a_job_that_does_not_say_who_takes_part_is_no_group(told):
    measured = Measured()
    measured.told(members=told)
    assert measured.seen() is None


@pytest.mark.parametrize(
    "members",
    [
        (TWO, TWO),
        (*MEMBERS, TWO),
        (TWO, dataclasses.replace(ONE, node=TWO.node)),
        (TWO, dataclasses.replace(ONE, uid=TWO.uid)),
        (*MEMBERS[:3], dataclasses.replace(FOUR, boot_id="")),
    ],
)
def test_nor_is_one_that_names_a_node_twice_or_half(members):
    measured = Measured()
    measured.of(*members)
    assert measured.seen() is None


def test_nor_is_one_without_the_annotations_of_ours_or_that_names_others_alone():
    for name in ("nonce", "image", "profile", "spec-digest", "attempt", "devices", "members"):
        measured = Measured()
        del measured.job["metadata"]["annotations"][f"nodeproof.dev/{name}"]
        assert measured.seen() is None, name
    measured = Measured()
    measured.of(ONE, THREE)
    assert measured.seen() is None


def test_of_the_pods_a_member_has_its_own_alone():
    measured = Measured()
    theirs = copy.deepcopy(measured.pod)
    theirs["metadata"]["name"] = "npg-1-y"
    theirs["spec"]["nodeName"] = ONE.node
    measured.pods.insert(0, theirs)
    seen = measured.seen()
    assert seen is not None
    assert [p.name for p in seen.job.pods] == ["npg-1-x"]


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_no_line_of_the_results_can_go_come_or_move(data):
    measured = Measured()
    lines = measured.results().splitlines(keepends=True)
    at = data.draw(st.integers(0, len(lines) - 1))
    match data.draw(st.sampled_from(["drop", "double", "swap", "foreign"])):
        case "drop":
            del lines[at]
        case "double":
            lines.insert(at, lines[at])
        case "swap":
            other = (at + 1) % len(lines)
            lines[at], lines[other] = lines[other], lines[at]
        case "foreign":
            lines.insert(at, b'{"type":"surprise","seq":%d}\n' % at)
    measured.signed(b"".join(lines))
    assert measured.judged().decision is Decision.UNDECIDED


@settings(max_examples=30, deadline=None)
@given(data=st.binary(max_size=400), message=st.text(max_size=60))
def test_whatever_a_pod_says_the_judge_answers(data, message):
    measured = Measured()
    measured.signed(data)
    assert measured.judged().decision is Decision.UNDECIDED
    measured.ending["message"] = message
    assert measured.judged().decision is Decision.UNDECIDED
