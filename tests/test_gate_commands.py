"""`nodeproof requalify`, and what `nodeproof run --dispatch` leaves for the gate."""

from __future__ import annotations

import json

import pytest
from gate_cluster import NAMES, PENDING, keys, put_node
from gate_process import kubeconfig
from nodeproof_command import nodeproof
from rehearsal import Rehearsal

from nodeproof.cli import dispatching
from nodeproof.gate import dispatch
from tests.apiserver.server import serving
from tests.apiserver.store import NODES, Store
from tests.shipped_run import RUN, failed, judged

AT = f"{NODES}/a"


@pytest.fixture
def server():
    with serving(Store()) as made:
        put_node(made.store, "a")
        yield made


@pytest.fixture
def requalify(server, tmp_path):
    config = kubeconfig(tmp_path / "config", server.client().configuration.host)
    return lambda *words: nodeproof("requalify", "a", *words, KUBECONFIG=str(config))


def told(node, status, reason):
    """Let the condition say something of this boot."""
    boot = node["status"]["nodeInfo"]["bootID"]
    row = {"type": NAMES.accepted, "status": status, "reason": reason}
    others = [c for c in node["status"]["conditions"] if c["type"] != NAMES.accepted]
    node["status"]["conditions"] = [*others, {**row, "message": f"boot {boot}; so it is"}]


def answered(node):
    annotations = node["metadata"]["annotations"]
    annotations[NAMES.requalified] = annotations[NAMES.requalify]
    annotations[NAMES.accepted_boot] = node["status"]["nodeInfo"]["bootID"]


def on_request(server, *changes):
    """Answer a request as the controller does, between it and the first look."""

    def interfere(verb, path, when):
        if (verb, path, when) == ("PATCH", AT, "after"):
            for change in changes:
                server.store.change(AT, change)

    server.interfere = interfere


def test_a_request_is_a_new_word_each_time(requalify, server):
    words = []
    for _ in range(2):
        done = requalify()
        assert done.returncode == 0
        words.append(server.store.get(AT)["metadata"]["annotations"][NAMES.requalify])
        assert words[-1] in done.stdout
    assert len(set(words)) == 2
    assert requalify("--word", "ticket-7").returncode == 0
    assert server.store.get(AT)["metadata"]["annotations"][NAMES.requalify] == "ticket-7"
    assert keys(server.store.get(AT)) == {"nvidia.com/gpu", PENDING["key"]}


def test_a_word_that_was_answered_asks_for_nothing_and_says_so(requalify, server):
    server.store.change(
        AT, lambda n: n["metadata"]["annotations"].update({NAMES.requalified: "ticket-6"})
    )
    done = requalify("--word", "ticket-6", "--wait", "30")
    assert done.returncode == 2
    assert "take another word" in done.stderr


def test_one_that_waits_ends_with_the_accept(requalify, server):
    on_request(
        server,
        lambda n: n["spec"]["taints"].remove(PENDING),
        lambda n: told(n, "True", "AllChecksPassed"),
        answered,
    )
    done = requalify("--wait", "30")
    assert done.returncode == 0, done.stderr
    assert "True AllChecksPassed" in done.stdout


def test_an_accept_of_before_is_no_answer(requalify, server):
    on_request(
        server,
        lambda n: n["spec"]["taints"].remove(PENDING),
        lambda n: told(n, "True", "AllChecksPassed"),
    )
    done = requalify("--wait", "1")
    assert done.returncode == 11
    assert "not decided within 1 s" in done.stderr


def test_a_request_that_a_suspicion_replaced_is_waited_for_as_that(requalify, server):
    on_request(
        server,
        lambda n: n["metadata"]["annotations"].update({NAMES.requalify: "suspect: X=True since y"}),
        lambda n: n["spec"]["taints"].remove(PENDING),
        lambda n: told(n, "True", "AllChecksPassed"),
        answered,
    )
    done = requalify("--wait", "30")
    assert done.returncode == 0, done.stderr
    assert "replaced: suspect: X=True since y" in done.stdout


def test_a_reject_is_10_though_its_condition_comes_after_its_taint(requalify, server):
    """The controller writes taint and annotation first: for a moment the condition is the old one."""

    def then(verb, path, when):
        if (verb, path, when) == ("PATCH", AT, "after"):
            server.store.change(AT, lambda n: told(n, "Unknown", "Testing"))
            server.store.change(AT, answered)

    server.interfere = then
    seen = server.store.get

    def get(path):
        found = seen(path)
        server.store.change(AT, lambda n: told(n, "False", "HardwareCondemned"))
        return found

    server.store.get = get
    done = requalify("--wait", "30")
    assert done.returncode == 10, done.stdout
    assert "Unknown Testing" in done.stdout
    assert "False HardwareCondemned" in done.stdout


def test_attempts_that_are_used_up_are_11(requalify, server):
    on_request(server, lambda n: told(n, "Unknown", "UndecidedTooOften"), answered)
    done = requalify("--wait", "30")
    assert done.returncode == 11
    assert "UndecidedTooOften" in done.stdout


def test_a_node_that_is_not_there_is_11(server, requalify):
    server.store.delete(AT)
    done = requalify("--wait", "30")
    assert done.returncode == 11
    assert "not found" in done.stderr


@pytest.mark.parametrize("run", [RUN, failed()], ids=["accept", "reject"])
def test_what_is_dispatched_is_what_the_gate_opens(tmp_path, run):
    run.write(tmp_path / "results.jsonl")
    data = (tmp_path / "results.jsonl").read_bytes()
    document = judged(data).document()
    (tmp_path / "verdict.json").write_text(json.dumps(document))
    log = ["whatever the run said"]
    assert dispatching.send(tmp_path, tmp_path / "message", log.append) == ""
    said = dispatch.read((tmp_path / "message").read_text())
    assert said["verdict"] == document["verdict"]
    assert dispatch.unpacked("\n".join(log), said["results"]) == data


def test_what_can_not_be_dispatched_is_said(tmp_path):
    RUN.write(tmp_path / "results.jsonl")
    (tmp_path / "verdict.json").write_text(
        json.dumps(judged((tmp_path / "results.jsonl").read_bytes()).document())
    )
    said = dispatching.send(tmp_path, tmp_path / "none/message", lambda _: None)
    assert "could not be sent" in said
    assert "could not be sent" in dispatching.send(
        tmp_path / "none", tmp_path / "m", lambda _: None
    )


@pytest.mark.long
def test_a_rehearsal_in_a_pod_dispatches_what_can_never_release_a_node(tmp_path):
    message = tmp_path / "termination-log"
    message.touch()
    run = Rehearsal(tmp_path, f"--dispatch={message}", "--nonce=n1", "--node-uid=u1")
    status, text = run.finish()
    assert status == 0, text
    data = message.read_bytes()
    assert len(data) <= dispatch.LIMIT
    said = dispatch.read(data.decode())
    assert (said["verdict"], said["rehearsal"], said["nonce"]) == ("accept", True, "n1")
    results = (run.output / "results.jsonl").read_bytes()
    assert dispatch.unpacked(text, said["results"]) == results
