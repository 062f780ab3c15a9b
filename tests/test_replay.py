"""A recorded node replays through the same suites, and never releases anything."""

from __future__ import annotations

import contextlib
import copy
import io
import json

import pytest
from nodeproof_command import nodeproof
from pytest_run import QUICK, SHIPPED, records_of, run_pytest

from nodeproof.cli import main
from nodeproof.plugin.recording import load
from nodeproof.redaction import redacted
from tests.standin.build import GPUS, build, put_gpu

# Written by any Python that is started as a worker.
WITNESS = """
import pathlib, sys
if "nodeproof.worker" in sys.orig_argv:
    pathlib.Path(__file__).with_name("worker-was-started").touch()
"""


def findings(records):
    """By check and label, or for the machine itself by its kind: a recording has no name."""
    found = {}
    for record in records:
        if record["type"] == "finding":
            device = record["device"]
            known = device["kind"] if device["kind"] in {"node", "host"} else device["label"]
            found[record["check"], known] = record
    return found


def judged(records):
    """What each check came to."""
    return {
        key: (f["outcome"], f["cause"], f["remedy"], f["summary"])
        for key, f in findings(records).items()
    }


class Replay:
    """One `nodeproof run --replay`, where a worker or a driver that is touched would show."""

    def __init__(self, folder, document, *words, **environment):
        folder.mkdir(exist_ok=True)
        (folder / "node.json").write_text(json.dumps(document))
        (folder / "sitecustomize.py").write_text(WITNESS)
        self.done = nodeproof(
            *("run", "--replay=node.json", "--output=out", *words),
            cwd=folder,
            PYTHONPATH=str(folder),
            **environment,
        )
        self.text = self.done.stdout + self.done.stderr
        self.records = records_of(folder / "out/results.jsonl")
        verdict = folder / "out/verdict.json"
        self.told = json.loads(verdict.read_text()) if verdict.exists() else {}
        self.worker_was_started = (folder / "worker-was-started").exists()


def selected(folder, document, *words):
    """Some checks of a recording, under pytest itself."""
    (folder / "node.json").write_text(json.dumps(document))
    options = ("--nodeproof-output=out", f"--nodeproof-replay={folder}/node.json")
    return run_pytest(folder, "-p", "no:cacheprovider", *SHIPPED, *options, *words)


# --- a node with GPUs and a fault -----------------------------------------------------------


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """A run on two GPUs of which a counter says that a remap is pending, and its recording."""
    folder = tmp_path_factory.mktemp("faulty")
    for source, library in (
        ("nvml.c", "libnvidia-ml.so.1"),
        ("cuda.c", "libcuda.so.1"),
        ("klogctl.c", "klogctl.so"),
    ):
        build(source, folder / library)
    for address in ("0000:3b:00.0", "0000:3c:00.0"):
        put_gpu(folder / "root", address)
    (folder / "root/proc").symlink_to("/proc")
    (folder / "counters").mkdir()
    (folder / "counters/remap_pending").write_text("1")
    (folder / "log").write_text("<3>[  100.0] NVRM: Xid (PCI:0000:3c:00): 79, fallen off the bus\n")
    return run_pytest(
        folder,
        *("-p", "no:cacheprovider", *SHIPPED, "--nodeproof-device=cuda", "--nodeproof-output=out"),
        *(f"--nodeproof-host-root={folder}/root", f"--nodeproof-record={folder}/node.json"),
        LD_LIBRARY_PATH=str(folder),
        LD_PRELOAD=str(folder / "klogctl.so"),
        STANDIN_NVML=" ".join(GPUS),
        STANDIN_CUDA=" ".join(GPUS),
        STANDIN_COUNTERS=str(folder / "counters"),
        STANDIN_LOG=str(folder / "log"),
    )


@pytest.fixture(scope="module")
def recorded(faulty):
    return json.loads((faulty.folder / "node.json").read_text())


@pytest.fixture(scope="module")
def replayed(faulty, recorded, tmp_path_factory):
    """The same node, where there is a driver that hangs whoever asks it."""
    return Replay(
        tmp_path_factory.mktemp("replayed"),
        recorded,
        LD_LIBRARY_PATH=str(faulty.folder),
        STANDIN_NVML=" ".join(GPUS),
        STANDIN_HANG="nvmlInitWithFlags",
    )


def test_only_what_reads_the_node_is_done_for_a_recording(faulty, recorded):
    calls = {answer["call"] for answer in recorded["answers"]}
    assert {c.rpartition(".")[0] for c in calls} == {"nodeproof.probes"}
    assert "nodeproof.probes.counters:read" in calls
    assert not [check for check, _ in faulty.findings() if "arithmetic" in check]


def test_every_check_of_the_recorded_run_comes_to_the_same(faulty, replayed):
    before, after = judged(faulty.records), judged(replayed.records)
    assert len(before) > 20
    assert {key: after[key] for key in before} == before


def test_the_fault_is_found_from_the_recording_by_the_id_of_its_gpu(replayed):
    assert replayed.done.returncode == 10, replayed.text
    assert replayed.told["verdict"] == "reject"
    failed = {(r["check"], r["device"]) for r in replayed.told["failed"]}
    assert {("device.burnin.errors", uuid) for uuid in GPUS} <= failed
    assert "remaps pending 1" in replayed.text


def test_each_planted_fault_that_the_probes_report_is_caught_again(faulty, replayed):
    def caught(records):
        return {
            (r["check"], r["device"]["label"])
            for r in records
            if r["type"] == "selftest" and r["caught"] and r["device"]["kind"] == "gpu"
        }

    assert caught(faulty.records) == caught(replayed.records)
    assert ("device.burnin.xid", "gpu0") in caught(replayed.records)


def test_what_computes_is_not_measured_and_said_to_be_in_no_recording(replayed):
    new = [f for f in findings(replayed.records).values() if f["check"].startswith("device.alu")]
    assert new
    for finding in new:
        assert finding["outcome"] == "error"
        assert "only what is read of a node is recorded" in finding["summary"]
        assert "holds no answer to nodeproof.kernels." in finding["summary"]


def test_a_replay_starts_no_worker_and_asks_no_driver(replayed):
    assert not replayed.worker_was_started
    assert "asking NVML" not in replayed.text


def test_a_replay_is_a_rehearsal_that_names_its_recording(replayed, recorded):
    plan = replayed.records[0]
    assert plan["rehearsal"] is True
    assert replayed.told["rehearsal"] is True
    assert plan["node"]["replayed"].startswith("sha256:")
    assert plan["node"]["name"] == "replayed"
    assert {n: plan["node"][n] for n in recorded["machine"]} == recorded["machine"]
    assert replayed.records[-1]["boot_id"] == recorded["machine"]["boot_id"]
    assert replayed.text.startswith("REPLAY of node.json")
    assert "can never release a node" in replayed.text


def test_a_recording_says_neither_environment_nor_name(faulty, recorded):
    text = json.dumps(recorded)
    assert str(faulty.folder / "klogctl.so") not in text
    assert all(
        answer["reply"]["result"]["hostname"] is None
        for answer in recorded["answers"]
        if answer["call"] == "nodeproof.probes.host:host"
    )
    assert {a["device"]["id"] for a in recorded["answers"]} == {"", *GPUS}


def test_a_gpu_node_comes_to_the_same_without_what_identifies_it(faulty, recorded, tmp_path):
    ran = selected(tmp_path, redacted(recorded))
    before, after = findings(faulty.records), findings(ran.records)
    assert {k: after[k]["outcome"] for k in before} == {k: f["outcome"] for k, f in before.items()}
    assert before["device.burnin.errors", "gpu0"]["outcome"] == "fail"
    text = (tmp_path / "node.json").read_text() + json.dumps(ran.records)
    for uuid in GPUS:
        assert uuid not in text
    assert "165400" not in text  # the serial of the first
    assert "0000:3b:00.0" in text


def test_a_limit_that_the_work_is_given_makes_another_question_of_it(recorded, tmp_path):
    spec = tmp_path / "more.toml"
    spec.write_text('name = "more"\n["node.efa.devices"]\nexpected = 16\n')
    ran = selected(tmp_path, recorded, "-k", "test_efa_devices", f"--nodeproof-spec={spec}")
    finding = findings(ran.records)["node.efa.devices", "node"]
    assert finding["outcome"] == "error"
    assert "record the node again" in finding["summary"]


# --- this machine, redacted -----------------------------------------------------------------


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    """A rehearsal of the checks that read, on this machine, and its recording."""
    folder = tmp_path_factory.mktemp("rehearsed")
    return run_pytest(folder, *SHIPPED, *QUICK, f"--nodeproof-record={folder}/node.json")


@pytest.fixture(scope="module")
def hidden(rehearsed, tmp_path_factory):
    """The recording, and the replay of what is left of it after redaction."""
    document = json.loads((rehearsed.folder / "node.json").read_text())
    name = rehearsed.records[0]["node"]["name"]
    replay = Replay(tmp_path_factory.mktemp("hidden"), redacted(document, names=[name]))
    return document, replay


def test_a_redacted_recording_comes_to_the_same(rehearsed, hidden):
    before, after = findings(rehearsed.records), findings(hidden[1].records)
    assert len(before) > 10
    for key, finding in before.items():
        told = after[key]
        assert (key, told["outcome"]) == (key, finding["outcome"]), told["summary"]
        assert (told["cause"], told["remedy"]) == (finding["cause"], finding["remedy"])
        numbers = [(m["name"], m["value"]) for m in finding["measurements"]]
        assert [(m["name"], m["value"]) for m in told["measurements"]] == numbers


def test_a_sound_node_is_not_accepted_by_its_recording(hidden):
    _, replay = hidden
    assert replay.done.returncode == 11, replay.text
    assert (replay.told["verdict"], replay.told["failed"]) == ("undecided", [])
    assert {r["why"] for r in replay.told["undecided"]} >= {"not measured"}


def test_the_boot_of_this_machine_is_not_in_what_was_redacted(rehearsed, hidden):
    boot = rehearsed.records[0]["node"]["boot_id"]
    document, replay = hidden
    assert document["machine"]["boot_id"] == boot
    told = replay.records[0]["node"]["boot_id"]
    assert told != boot
    assert len(told) == len(boot)


# --- recordings that are none ---------------------------------------------------------------

ANSWER = {
    "call": "nodeproof.probes.devices:enumerate_devices",
    "args": {"device": "@device", "cpu_devices": "@cpu_devices"},
    "before": "",
    "device": {"kind": "node", "id": ""},
    "reply": {"result": {"answered": True, "devices": []}, "silence_s": 0.1},
    "seconds": 0.2,
    "samples": [],
    "since": {},
}
DOCUMENT = {
    "schema": 2,
    "version": "0.1.0",
    "recorded": "2026-11-30T10:00:00.000+00:00",
    "interrupted": "",
    "options": {"device": "cpu", "cpu_devices": 2, "profile": "quick", "spec": {"name": ""}},
    "machine": {"boot_id": "", "instance_type": "", "kernel": ""},
    "answers": [ANSWER],
    "files": {},
}


def but(*path, value):
    """The document with one value replaced, or taken out."""
    document = copy.deepcopy(DOCUMENT)
    at = document
    for step in path[:-1]:
        at = at[step]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return document


def test_the_recording_that_the_next_tests_spoil_is_one(tmp_path):
    (tmp_path / "node.json").write_text(json.dumps(DOCUMENT))
    assert load(tmp_path / "node.json").cpu_devices == 2


SPOILED = {
    "nothing": ("", "not JSON"),
    "cut short": (json.dumps(DOCUMENT)[:-40], "not JSON, or cut short"),
    "not text": ("\udcff\udcfe", "not JSON"),
    "a list": ([], "its schema is None"),
    "deep": ("[" * 100_000, "not JSON"),
    "a key twice": ('{"schema": 2, "schema": 2}', "said twice"),
    "no number": (json.dumps(DOCUMENT).replace("0.2", "NaN"), "no number"),
    "the first schema": (but("schema", value=1), "its schema is 1, this version replays 2"),
    "a later schema": (but("schema", value=3), "its schema is 3"),
    "a schema that is true": (but("schema", value=True), "its schema is True"),
    "no schema": (but("schema", value=None), "its schema is None"),
    "no machine": (but("machine", value=None), "machine"),
    "no boot": (but("machine", "boot_id", value=None), "boot_id"),
    "no options": (but("options", value=None), "options"),
    "another device": (but("options", "device", value="tpu"), "there is no device 'tpu'"),
    "devices in words": (but("options", "cpu_devices", value="two"), "no whole number"),
    "no device": (but("options", "cpu_devices", value=0), "more than 0"),
    "no answers": (but("answers", value=[]), "holds no answer"),
    "an answer twice": (but("answers", value=[ANSWER, ANSWER]), "two answers"),
    "no reply": (but("answers", 0, "reply", value={}), "no reply"),
    "two replies": (
        but("answers", 0, "reply", "lost", value={"how": "died", "text": "", "stuck": False}),
        "says lost too",
    ),
    "an unknown loss": (
        but("answers", 0, "reply", value={"lost": {"how": "?", "text": "", "stuck": False}}),
        "is not a valid Loss",
    ),
    "a device of no kind": (but("answers", 0, "device", "kind", value="tpu"), "tpu"),
    "devices that are none": (
        but("answers", 0, "reply", "result", "devices", value=[{"kind": "gpu"}]),
        "id",
    ),
    "no time": (but("answers", 0, "seconds", value=-1), "no time in seconds"),
    "what was computed": (
        but("answers", 0, "call", value="nodeproof.kernels.gemm:exact"),
        "claims to hold what nodeproof.kernels.gemm:exact computed",
    ),
    "a call by another way": (
        but("answers", 0, "call", value="nodeproof.acceptance.x:y"),
        "claims to hold",
    ),
}


@pytest.mark.parametrize(("document", "says"), SPOILED.values(), ids=SPOILED)
def test_a_recording_that_is_none_is_refused_in_one_sentence(tmp_path, document, says):
    """By the same door as the command: the options of a run."""
    text = document if isinstance(document, str) else json.dumps(document)
    (tmp_path / "node.json").write_bytes(text.encode(errors="surrogateescape"))
    status, said = run_in_process("run", f"--replay={tmp_path}/node.json", at=tmp_path)
    assert status == 2
    assert says in said
    assert len(said.splitlines()) == 1
    assert said.startswith("nodeproof: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--replay=absent.json"], "no such file"),
        (["--replay=."], "no such file"),
        (["--replay=node.json", "--device=cuda"], "the recording is of --device cpu"),
        (["--replay=node.json", "--expect-gpus=8"], "a rehearsal has no GPU"),
        (["--replay=node.json", "--device=cup"], "did you mean cpu?"),
    ],
)
def test_a_replay_of_something_else_is_refused(tmp_path, monkeypatch, words, says):
    (tmp_path / "node.json").write_text(json.dumps(DOCUMENT))
    monkeypatch.chdir(tmp_path)
    status, said = run_in_process("run", *words, at=tmp_path)
    assert (status, len(said.splitlines())) == (2, 1)
    assert says in said


def run_in_process(*words, at):
    """Give a command line that ends before anything is started; a process each takes long."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        status = main([*words, f"--output={at}/out"])
    return status, said.getvalue()


def test_a_recording_without_devices_leaves_nothing_under_test(tmp_path):
    ran = selected(tmp_path, DOCUMENT, "-k", "count or cores")
    assert "no device was under test" in {r.text for r in ran.verdict().undecided}
    assert ran.verdict().rehearsal is True


def test_a_forged_recording_of_sound_gpus_is_a_rehearsal_too(tmp_path):
    gpu = {"kind": "gpu", "id": GPUS[0], "label": "gpu0", "facts": {}}
    document = but("answers", 0, "reply", "result", "devices", value=[gpu])
    document["options"]["device"] = "cuda"
    ran = selected(tmp_path, document, "--nodeproof-expect-gpus=1", "-k", "memory or arithmetic")
    assert len(ran.findings()) > 5
    assert {f["outcome"] for f in ran.findings().values()} == {"error"}
    assert ran.records[0]["rehearsal"] is True
    assert ran.verdict().decision == "undecided"
