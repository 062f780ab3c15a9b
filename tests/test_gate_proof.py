"""What proves a node: one valid attempt, and everything that may be wrong with one thing in it."""

from __future__ import annotations

import copy
import dataclasses
import json
import zlib
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest
from gate_attempt import BOOT, OTHER, UID, Attempt
from gate_cluster import MANIFEST
from hypothesis import given, settings
from hypothesis import strategies as st
from results_samples import SAMPLES, accept, rehearsal, reject, undecided

from nodeproof.gate import dispatch
from nodeproof.gate.proof import Ruling
from nodeproof.manifest import Manifest
from nodeproof.model import Profile, Waiver
from nodeproof.results import parse
from nodeproof.verdict import Decision, decide


def test_a_valid_attempt_accepts_its_node():
    judged = Attempt().judged()
    assert (judged.decision, judged.ruling) == (Decision.ACCEPT, Ruling.ACCEPTED)
    assert judged.ruling == "AllChecksPassed"
    assert judged.devices.startswith("sha256:")


def test_a_valid_attempt_condemns_its_node():
    judged = Attempt("reject").judged()
    assert (judged.decision, judged.ruling) == (Decision.REJECT, Ruling.CONDEMNED)
    assert "device.memory.pattern" in judged.text


@pytest.mark.parametrize(("kind", "code"), [("accept", 137), ("accept", 10), ("reject", 0)])
def test_the_exit_status_decides_nothing(kind, code):
    attempt = Attempt(kind)
    attempt.ending["exitCode"] = code
    assert attempt.judged().decision == kind


def _image(a: Attempt, image: str) -> None:
    assert a.pod is not None
    a.pod["status"]["containerStatuses"][0]["imageID"] = image


def _forged(a: Attempt, **changes: Any) -> None:
    a.say(json.dumps({**json.loads(a.message), **changes}))


def _waived(a: Attempt) -> None:
    waiver = Waiver(check="host.time.sync", device="gpu-a", reason="known", expires="2027-12-31")
    a.run(accept(samples=0).replan(waivers=(waiver,)))


def _line(a: Attempt, how: Callable[[list[str]], list[str]]) -> None:
    a.log = "\n".join(how((a.log or "").split("\n")))


def _packed(a: Attempt, body: bytes, digest: str) -> None:
    """A log whose body is what it is, under a digest that the message names."""
    text = b64encode(body).decode()
    a.log = f"nodeproof-results begin {digest}\n{text}\nnodeproof-results end"
    _forged(a, results=digest)


def _bomb(a: Attempt) -> None:
    bomb = zlib.compressobj(9)
    body = b"".join(bomb.compress(bytes(1 << 20)) for _ in range(80)) + bomb.flush()
    _packed(a, body, "sha256:" + "ab" * 32)


def _exchanged(a: Attempt) -> None:
    """Other results, in a body that says it is the one that the message names."""
    data = a.results()
    _packed(a, zlib.compress(data.replace(b"held", b"HELD")), dispatch.digest(data))


def _trailing(a: Attempt) -> None:
    """A second thing hides behind the results in one body."""
    data = a.results()
    _packed(a, zlib.compress(data) + zlib.compress(b"more"), dispatch.digest(data))


def _now(a: Attempt, **changes: Any) -> None:
    a.settings = dataclasses.replace(a.settings, **changes)


F, I, M = Ruling.FOREIGN, Ruling.INVALID, Ruling.MISSING  # noqa: E741  columns of a table
ONE_THING: dict[str, tuple[Callable[[Attempt], object], Ruling, str]] = {
    "nonce of the Job": (lambda a: a.told(nonce="another"), F, "nonce"),
    "no nonce": (lambda a: a.replaced('"nonce":"n0nce-of-this-attempt"', '"nonce":""'), F, "nonce"),
    "uid of the Job": (lambda a: a.told(node_uid="another"), F, "uid"),
    "uid in the results": (lambda a: a.replaced(UID, "another"), F, "node uid"),
    "uid of the node now": (lambda a: a.node["metadata"].update(uid="b"), F, "uid of the node now"),
    "name of the node": (lambda a: a.node["metadata"].update(name="gpu-b"), F, "node name"),
    "node of the pod": (lambda a: a.pod["spec"].update(nodeName="gpu-b"), F, "node of the pod"),
    "pod on no node": (lambda a: a.pod["spec"].update(nodeName=None), F, "node of the pod"),
    "boot at the start": (lambda a: a.replaced(BOOT, OTHER, 1), F, "boot id"),
    "boot of the whole run": (lambda a: a.replaced(BOOT, OTHER), F, "boot id"),
    "boot of the Job": (lambda a: a.told(boot_id=OTHER), F, "boot id"),
    "boot of the node now": (
        lambda a: a.node["status"]["nodeInfo"].update(bootID=OTHER),
        F,
        "boot id of the node now",
    ),
    "no boot of the node now": (lambda a: a.node["status"].update(nodeInfo=None), F, "not told"),
    "profile of the Job": (lambda a: a.told(profile="deep"), F, "profile"),
    "profile of the run": (
        lambda a: a.replaced('"profile":"gate"', '"profile":"quick"'),
        F,
        "profile",
    ),
    "spec": (lambda a: a.told(spec_digest="sha256:" + "0" * 64), F, "spec digest"),
    "suites": (
        lambda a: a.replaced('"suite_digest":"sha256:', '"suite_digest":"sha256:0'),
        F,
        "suite digest",
    ),
    "manifest": (lambda a: setattr(a, "manifest", _other_manifest()), F, "the message says accept"),
    "manifest, and a message that admits it": (
        lambda a: a.replaced(MANIFEST.digest, "sha256:" + "0" * 64),
        Ruling.UNDECIDED,
        "other suites",
    ),
    "image": (lambda a: _image(a, "mirror.example.com/x@sha256:" + "2e" * 32), F, "image"),
    "no image": (lambda a: _image(a, ""), F, "image"),
    "image by a tag": (lambda a: a.told(image="registry.example.com/nodeproof:1"), F, "image"),
    "no image in the Job": (lambda a: a.told(image=""), F, "image"),
    "rehearsal": (lambda a: a.run(rehearsal()), F, "rehearsal"),
    "waivers": (_waived, F, "1 waivers that this gate did not give"),
    "a GPU less": (lambda a: a.run(accept(1, samples=0)), F, "1 GPUs were tested, 2 expected"),
    "a GPU more": (lambda a: a.run(accept(3, samples=0)), F, "3 GPUs were tested, 2 expected"),
    "fewer GPUs expected": (lambda a: a.told(devices="1"), F, "2 GPUs were tested, 1 expected"),
    "no GPU, and none expected": (
        lambda a: (a.told(devices="0"), a.run(accept(0))),
        F,
        "GPUs expected of the Job: none, of the settings now: 2",
    ),
    "boot at the end": (
        lambda a: a.replaced(f'"boot_id":"{BOOT}","ended"', f'"boot_id":"{OTHER}","ended"'),
        Ruling.UNDECIDED,
        "boot id changed",
    ),
    "verdict of the message": (
        lambda a: _forged(a, verdict="reject"),
        F,
        "the message says reject",
    ),
    "accept said of a reject": (
        lambda a: (a.run(reject()), _forged(a, verdict="accept")),
        F,
        "reject",
    ),
    "accept said of an undecided": (
        lambda a: (a.run(undecided()), _forged(a, verdict="accept")),
        F,
        "undecided",
    ),
    "settings that name another image by now": (
        lambda a: _now(a, image="registry.example.com/nodeproof@sha256:" + "3d" * 32),
        F,
        "image of the Job",
    ),
    "settings that ask for more by now": (
        lambda a: _now(a, profile=Profile.DEEP),
        F,
        "profile of the Job: gate, of the settings now: deep",
    ),
    "settings that expect more GPUs by now": (
        lambda a: _now(a, expected={"p5.48xlarge": 8}),
        F,
        "GPUs expected of the Job: 2, of the settings now: 8",
    ),
    "settings that expect nothing": (lambda a: _now(a, expected={}), F, "settings now: none"),
    "another spec by now": (
        lambda a: setattr(a, "spec", dataclasses.replace(a.spec, digest="sha256:" + "0" * 64)),
        F,
        "spec digest of the Job",
    ),
    "a quick run, in a Job that says so": (
        lambda a: (a.told(profile="quick"), a.replaced('"profile":"gate"', '"profile":"quick"')),
        F,
        "profile of the Job: quick",
    ),
    "digest of the message": (lambda a: _forged(a, results="sha256:" + "0" * 64), I, "log of pod"),
    "no digest": (lambda a: _forged(a, results=""), I, "log of pod"),
    "message cut": (lambda a: a.say(a.message[:-1]), I, "none of ours"),
    "message of 4,096 bytes cut": (
        lambda a: a.say((a.message[:-1] + " " * 5000)[:4096]),
        I,
        "none of ours",
    ),
    "no message": (lambda a: a.say(""), M, "ended with status 0 and left no message"),
    "message without a digest": (lambda a: _forged(a, results=None), I, "none of ours"),
    "message with a number for a nonce": (lambda a: _forged(a, nonce=7), I, "none of ours"),
    "message that is a word": (lambda a: a.say("accept"), I, "none of ours"),
    "message that is a list": (lambda a: a.say("[true]"), I, "none of ours"),
    "message that is no number": (lambda a: a.say("NaN"), I, "none of ours"),
    "message that is null": (lambda a: a.say("null"), I, "none of ours"),
    "message of many digits": (lambda a: a.say("9" * 100_000), I, "none of ours"),
    "message nested deep": (lambda a: a.say("[" * 100_000), I, "none of ours"),
    "message nested deep in an object": (
        lambda a: a.say('{"verdict":' * 100_000),
        I,
        "none of ours",
    ),
    "log absent": (lambda a: setattr(a, "log", None), M, "could not be read"),
    "log empty": (lambda a: setattr(a, "log", ""), I, "does not hold"),
    "log of another run": (lambda a: setattr(a, "log", Attempt("reject").log), I, "does not hold"),
    "log cut at its end": (lambda a: _line(a, lambda rows: rows[:-1]), I, "does not hold"),
    "log cut at its start": (lambda a: _line(a, lambda rows: rows[1:]), I, "does not hold"),
    "a line of the log gone": (
        lambda a: _line(a, lambda rows: [rows[0], *rows[2:]]),
        I,
        "does not hold",
    ),
    "a line of the log twice": (
        lambda a: _line(a, lambda rows: [*rows[:2], *rows[1:]]),
        I,
        "does not hold",
    ),
    "a letter of the log": (
        lambda a: _line(a, lambda rows: [rows[0], "A" * 12 + rows[1][12:], *rows[2:]]),
        I,
        "does not hold",
    ),
    "a word within the log": (
        lambda a: _line(a, lambda rows: [rows[0], "warning: disk", *rows[1:]]),
        I,
        "does not hold",
    ),
    "a log that unpacks without end": (_bomb, I, "does not hold"),
    "other results under the digest that is named": (_exchanged, I, "does not hold"),
    "something behind the results": (_trailing, I, "does not hold"),
    "no pod": (lambda a: setattr(a, "pod", None), Ruling.LOST, "its pod is gone"),
    "pod of another Job": (
        lambda a: a.pod["metadata"]["ownerReferences"][0].update(uid="another"),
        Ruling.LOST,
        "its pod is gone",
    ),
    "container that has not ended": (
        lambda a: a.ending.pop("exitCode"),
        Ruling.LOST,
        "without a word",
    ),
    "another container": (
        lambda a: a.pod["status"]["containerStatuses"][0].update(name="sidecar"),
        Ruling.LOST,
        "without a word",
    ),
}


def _other_manifest() -> Manifest:
    return dataclasses.replace(MANIFEST, digest="sha256:" + "0" * 64)


@pytest.mark.parametrize("what", ONE_THING)
def test_one_thing_that_is_wrong_never_accepts_and_is_named(what):
    change, ruling, words = ONE_THING[what]
    attempt = Attempt()
    change(attempt)
    judged = attempt.judged()
    assert judged.decision is Decision.UNDECIDED
    assert judged.ruling is ruling
    assert words in judged.text
    assert len(judged.text) > 10


@pytest.mark.parametrize(
    ("reason", "more", "ruling"),
    [
        ("OOMKilled", {}, Ruling.CRASHED),
        ("Evicted", {}, Ruling.EVICTED),
        ("Preempting", {}, Ruling.EVICTED),
        ("NodeShutdown", {}, Ruling.EVICTED),
        ("DeadlineExceeded", {}, Ruling.TIMEOUT),
        ("", {"deletionTimestamp": "2026-03-01T00:00:00Z"}, Ruling.EVICTED),
    ],
)
def test_silence_is_explained_by_what_the_kubelet_says(reason, more, ruling):
    attempt = Attempt()
    assert attempt.pod is not None
    attempt.pod["status"] = {"phase": "Failed", "reason": reason}
    attempt.pod["metadata"].update(more)
    judged = attempt.judged()
    assert (judged.decision, judged.ruling) == (Decision.UNDECIDED, ruling)
    assert "np-1-x" in judged.text


@pytest.mark.parametrize("sample", sorted(set(SAMPLES) - {"accept", "reject", "hostile", "waived"}))
def test_no_other_results_file_accepts(sample):
    attempt = Attempt()
    attempt.signed(SAMPLES[sample]())
    assert attempt.judged().decision is Decision.UNDECIDED


@pytest.mark.parametrize("sample", ["accept", "reject", "hostile", "waived"])
def test_results_that_another_run_left_neither_accept_nor_condemn(sample):
    attempt = Attempt()
    attempt.signed(SAMPLES[sample]())
    judged = attempt.judged()
    assert (judged.decision, judged.ruling) == (Decision.UNDECIDED, Ruling.FOREIGN)


def test_the_same_results_twice_in_a_log_are_the_same_evidence():
    attempt = Attempt()
    attempt.log = f"starting\n{attempt.log}\n{attempt.log}\ndone"
    assert attempt.judged().decision is Decision.ACCEPT


def test_a_log_of_beginnings_is_given_up_at_once():
    attempt = Attempt()
    begin = (attempt.log or "").split("\n")[0]
    attempt.log = "\n".join([begin] * 100_000)  # quadratic, this would take an hour
    assert attempt.judged().ruling is Ruling.INVALID


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_line_of_the_results_can_go_come_or_move(data):
    attempt = Attempt()
    lines = attempt.results().splitlines(keepends=True)
    place = data.draw(st.integers(0, len(lines) - 1))
    match data.draw(st.sampled_from(["drop", "double", "swap", "foreign"])):
        case "drop":
            del lines[place]
        case "double":
            lines.insert(place, lines[place])
        case "swap":
            other = (place + 1) % len(lines)
            lines[place], lines[other] = lines[other], lines[place]
        case "foreign":
            lines.insert(place, b'{"type":"surprise","seq":%d}\n' % place)
    attempt.signed(b"".join(lines))
    assert attempt.judged().decision is not Decision.ACCEPT


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=400), message=st.text(max_size=60))
def test_whatever_a_pod_says_the_judge_answers(data, message):
    attempt = Attempt()
    attempt.signed(data)
    assert attempt.judged().decision is Decision.UNDECIDED
    attempt.say(message)
    assert attempt.judged().decision is Decision.UNDECIDED


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_an_accept_needs_the_digest_whatever_else_the_message_says(data):
    attempt = Attempt()
    said = json.loads(attempt.message)
    name = data.draw(st.sampled_from(sorted(said)))
    values = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=20), st.just([]))
    _forged(attempt, **{name: data.draw(values)})
    if attempt.judged().decision is Decision.ACCEPT:
        assert json.loads(attempt.message)["results"] == said["results"]
        assert name not in {"verdict", "results"}


ROW = st.fixed_dictionaries(
    {
        name: st.text(st.characters(exclude_categories=()), max_size=400)
        for name in ("check", "label", "device", "text")
    }
)


@settings(max_examples=60, deadline=None)
@given(failed=st.lists(ROW, max_size=12), open_=st.lists(ROW, max_size=12))
def test_a_message_fits_and_never_loses_what_binds(failed, open_):
    base = decide(parse(Attempt("reject").results()), MANIFEST).document()
    document = {**base, "failed": failed * 20, "undecided": open_ * 20}
    text = dispatch.message(document, b"results")
    assert len(text.encode()) <= dispatch.LIMIT
    said = dispatch.read(text)
    assert said is not None
    assert (said["verdict"], said["nonce"]) == ("reject", base["nonce"])
    assert said["results"] == dispatch.digest(b"results")
    assert len(said["short"]) + said["more"] == 20 * (len(failed) + len(open_))


def test_an_attempt_is_judged_without_being_changed():
    attempt = Attempt()
    kept = copy.deepcopy((attempt.node, attempt.job, attempt.pod))
    attempt.judged()
    assert kept == (attempt.node, attempt.job, attempt.pod)
