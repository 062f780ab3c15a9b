"""The commands beside a whole run: what they print, where, and their exit statuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from nodeproof_command import nodeproof
from rehearsal import FIVE, NODEPROOF

from nodeproof import __version__
from nodeproof.manifest import shipped
from nodeproof.model import Profile
from nodeproof.plugin.recording import load
from nodeproof.probes.boot import boot_id
from tests.shipped_run import RUN, failed, without

TARGET = ["--device", "--cpu-devices", "--host-root"]
# Who automates nodeproof types these. One more is a decision, one less breaks somebody's scripts.
OPTIONS = {
    "run": [
        *TARGET,
        *("--profile", "--spec", "--expect-gpus", "--output", "--nonce", "--node-name"),
        *("--node-uid", "--deadline", "--waivers", "--seed", "--replay", "--dispatch"),
    ],
    "selftest": TARGET,
    "list": ["--specs"],
    "explain": [],
    "verdict": ["--json"],
    "report": ["--format", "-o", "--output"],
    "parse": ["--context"],
    "record": [*TARGET, "--spec", "--redact", "-o", "--output"],
    "baseline": ["--name", "--spec", "--least", "--loosen"],
    "fabric": [],
    "fabric run": [
        *TARGET,
        *("--launcher", "--nodes", "--node-rank", "--head", "--names", "--known", "--node-name"),
        *("--max-bytes", "--rounds", "--join-timeout", "--timeout", "--deadline", "--output"),
        *("--dispatch", "--seed", "--spec", "--waivers", "--nonce"),
    ],
    "fabric judge": ["--output", "--spec", "--waivers", "--nonce"],
    "fabric localise": ["--ratio", "--floor-gbs", "--json"],
    "fabric simulate": ["--nodes", "--bad", "--links", "--intermittent", "--seed", "--json"],
    "fabric partners": ["--least"],
    "fabric perf": [
        *("--ranks", "--program", "--gpus", "--least-bytes", "--most-bytes", "--iterations"),
        *("--hosts", "--deadline"),
    ],
    "controller": ["--settings", "--port", "--dry-run"],
    "preflight": ["--settings"],
    "requalify": ["--word", "--wait", "--domain"],
    "gate": ["--node-name", "--domain"],
    "watch": ["--node-name", "--host-root", "--interval", "--once", "--domain"],
    "npd": ["--host-root", "--deadline"],
}
NO_GPU = {"LD_LIBRARY_PATH": ""}


@pytest.fixture
def files(tmp_path):
    """Results that are accepted, rejected and undecided, in a folder."""
    RUN.write(tmp_path / "accept.jsonl")
    failed().write(tmp_path / "reject.jsonl")
    without(RUN, "device.memory.pattern").write(tmp_path / "undecided.jsonl")
    return tmp_path


def test_help_names_every_command_and_no_other():
    done = nodeproof("--help")
    assert done.returncode == 0
    assert set(re.findall(r"^    (\w+)(?: |$)", done.stdout, re.MULTILINE)) == {
        command.partition(" ")[0] for command in OPTIONS
    }


@pytest.mark.parametrize("command", OPTIONS)
def test_the_options_of_a_command_are_these(command):
    done = nodeproof(*command.split(), "--help")
    assert done.returncode == 0
    listed = re.findall(r"^  (-.*?)(?:  |$)", done.stdout, re.MULTILINE)
    named = {word for row in listed for word in re.findall(r"(?<!\S)-{1,2}[a-z][\w-]*", row)}
    assert named - {"-h", "--help"} == set(OPTIONS[command])


def test_the_version_is_that_of_the_package():
    assert nodeproof("--version").stdout == f"nodeproof {__version__}\n"


@pytest.mark.parametrize("words", [[], ["ran"], ["run", "now"], ["verdict"], ["explain"]])
def test_a_command_line_that_is_none_ends_with_2_and_one_sentence(words):
    done = nodeproof(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("nodeproof: ")


def test_list_has_a_line_for_every_check_that_is_shipped():
    done = nodeproof("list")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(shipped().entries)
    assert all(len(line.split()) > 4 for line in done.stdout.splitlines())


@pytest.mark.parametrize("check", shipped().entries)
def test_explain_says_why_a_check_exists_and_what_to_do(check, capsys):
    """In this process, since a process for each check would take long."""
    from nodeproof.cli import main

    assert main(["explain", check]) == 0
    said = capsys.readouterr().out
    entry = shipped().entries[check]
    assert said.startswith(f"{check}\n\n{entry.about.title}\n")
    assert f"remedy {entry.about.remedy}" in said
    assert all(name in said for name in entry.limits)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["explain", "device.memory.patern"], "did you mean device.memory.pattern"),
        (["explain", "device.arithmetic.int9"], "device.arithmetic.int8"),
        (["explain", "xyzzy"], "see `nodeproof list`"),
        (["run", "--device=cup"], "did you mean cpu?"),
        (["run", "--device=cdua"], "did you mean cuda?"),
        (["run", "--device=gpu"], "did you mean cuda?"),
        (["run", "--profile=depe"], "did you mean deep?"),
        (["run", "--profile=fast"], "there are quick, gate, deep, soak"),
        (["selftest", "--device=cup"], "did you mean cpu?"),
        (["record", "--device=cup", "-o", "node.json"], "cup"),
    ],
)
def test_a_word_that_is_nearly_right_is_answered_with_the_right_one(tmp_path, words, says):
    done = nodeproof(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.startswith("nodeproof: ")
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("names", "status"),
    [
        (["accept"], 0),
        (["undecided"], 11),
        (["reject"], 10),
        (["accept", "accept"], 0),
        (["undecided", "accept"], 11),
        (["accept", "undecided"], 11),
        (["reject", "undecided", "accept"], 10),
        (["accept", "undecided", "reject"], 10),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_the_worst_of_several_verdicts_is_the_exit_status(files, names, status):
    done = nodeproof("verdict", *(f"{n}.jsonl" for n in names), cwd=files)
    assert done.returncode == status
    told = re.findall(r"^(ACCEPT|REJECT|UNDECIDED) ", done.stdout, re.MULTILINE)
    assert told == [n.upper() for n in names]


def test_verdicts_as_json_are_one_document_a_file(files):
    done = nodeproof("verdict", "--json", "accept.jsonl", "reject.jsonl", cwd=files)
    decoder, rest, told = json.JSONDecoder(), done.stdout, []
    while rest.strip():
        document, end = decoder.raw_decode(rest.lstrip())
        told.append(document["verdict"])
        rest = rest.lstrip()[end:]
    assert told == ["accept", "reject"]


@pytest.mark.parametrize("content", ["", "nonsense\n", "{}\n", "\0\xff" * 100])
def test_a_file_that_holds_no_results_is_undecided(tmp_path, content):
    (tmp_path / "results.jsonl").write_text(content, encoding="latin-1")
    done = nodeproof("verdict", "results.jsonl", cwd=tmp_path)
    assert done.returncode == 11
    assert done.stdout.startswith("UNDECIDED")
    assert "Traceback" not in done.stderr


def test_a_record_is_the_node_without_its_names_and_replays(tmp_path):
    (tmp_path / "node.json").write_text("an earlier recording")
    done = nodeproof("record", "--device=cpu", "--redact", "-o", "node.json", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [path.name for path in tmp_path.iterdir()] == ["node.json"]
    text = (tmp_path / "node.json").read_text()
    assert boot_id(Path("/")) not in text
    assert json.loads(text)["interrupted"] == ""
    assert "proc/meminfo" in json.loads(text)["files"]
    recording = load(tmp_path / "node.json")
    assert (recording.device, recording.cpu_devices) == ("cpu", 2)
    assert {kind for _, _, _, (kind, _) in recording.answers} == {"node", "cpu"}


@pytest.mark.long
def test_selftest_says_of_every_planted_fault_that_it_was_caught(tmp_path):
    done = nodeproof("selftest", "--device=cpu", "--cpu-devices=1", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    *caught, last = done.stdout.splitlines()
    assert {line.split()[0] for line in caught} == {"caught"}
    about_cpu = [
        e
        for e in shipped().entries.values()
        if set(e.kinds) & {"cpu", "node", "host"} and Profile.QUICK in e.profiles
    ]
    assert sorted(line.split()[1] for line in caught) == sorted(e.id for e in about_cpu)
    assert last == f"{len(about_cpu)} of {len(about_cpu)} planted faults caught"
    assert list(tmp_path.iterdir()) == []


def test_selftest_without_a_device_proves_no_detector(tmp_path):
    done = nodeproof("selftest", cwd=tmp_path, **NO_GPU)
    assert done.returncode == 11
    assert "MISSED  node.devices.count" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_machine_without_a_gpu_is_undecided_and_told_to_rehearse(tmp_path, device):
    (tmp_path / "root/sys/bus/pci/devices").mkdir(parents=True)
    (tmp_path / "root/proc").symlink_to("/proc")
    words = [f"--device={device}", "--output=out", "--host-root=root"]
    done = nodeproof("run", *words, cwd=tmp_path, **NO_GPU)
    assert done.returncode == 11, done.stdout
    assert all((tmp_path / "out" / name).stat().st_size > 0 for name in FIVE)
    assert "no device was under test" in done.stdout
    assert "no GPU: no NVIDIA controller on the PCI bus" in done.stdout
    assert "to rehearse on CPU devices give --device cpu" in done.stdout
    told = json.loads((tmp_path / "out/verdict.json").read_text())
    assert told["verdict"] == "undecided"
    assert told["failed"] == []
    assert "cpu" not in {d["kind"] for d in told["devices"]}


@pytest.mark.parametrize(
    "words", [["list"], ["explain", "host.cpu.cores"], ["verdict", "accept.jsonl"], ["--help"]]
)
def test_a_reader_that_goes_away_gets_no_traceback(files, words):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*NODEPROOF, *words],
        cwd=files,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert done.stderr == ""
    assert done.returncode in {0, 1}
