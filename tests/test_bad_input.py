"""What a user may get wrong: each costs one sentence on standard error, and nothing is run."""

from __future__ import annotations

import json
import os
import shlex
import subprocess

import pytest
from nodeproof_command import nodeproof
from rehearsal import FIVE, NODEPROOF

from conftest import need

WAIVER = """
[[waiver]]
check = "host.cpu.cores"
device = "node-7"
reason = "two are broken, and it does not matter"
expires = 2030-01-01
"""
FILES = {
    "binary": b"\xff\xfe\x00\x01",
    "broken.toml": b"a = = 1\n",
    "empty.toml": b"",
    "check.toml": b'["host.cpu.corse"]\nonline = 1\n',
    "limit.toml": b'["host.cpu.cores"]\nonlin = 1\n',
    "text.toml": b'["host.cpu.cores"]\nonline = "four"\n',
    "true.toml": b'["host.cpu.cores"]\nonline = true\n',
    "half.toml": b'["host.cpu.cores"]\nonline = 0.5\n',
    "inf.toml": b'["host.cpu.cores"]\nusable = inf\n',
    "nan.toml": b'["host.cpu.cores"]\nusable = nan\n',
    "head.toml": b'name = "x"\nhost = 3\n',
    "w-good": WAIVER.encode(),
    "w-short": WAIVER.replace("reason", "#").encode(),
    "w-blank": WAIVER.replace("two are broken, and it does not matter", " ").encode(),
    "w-text": WAIVER.replace("2030-01-01", '"2030-01-01"').encode(),
    "w-time": WAIVER.replace("2030-01-01", "2030-01-01T00:00:00").encode(),
    "w-more": WAIVER.replace("reason", 'forever = "yes"\nreason').encode(),
    "w-check": WAIVER.replace("cores", "corse").encode(),
    "w-top": b"waiver = 7\n",
}
REHEARSE = ["--device=cpu", "--output=out"]
TABLE = [
    (["--spec=absent.toml"], ["absent.toml", "No such file"]),
    (["--spec=absent"], ["no spec 'absent'", "nodeproof list --specs"]),
    (["--spec=cpu-rehersal"], ["cpu-rehearsal"]),
    (["--spec=."], ["Is a directory"]),
    (["--spec=./binary"], ["binary", "not UTF-8"]),
    (["--spec=broken.toml"], ["broken.toml", "line 1"]),
    (["--spec=check.toml"], ["host.cpu.corse", "did you mean host.cpu.cores"]),
    (["--spec=limit.toml"], ["no limit 'onlin'", "online"]),
    (["--spec=text.toml"], ["online = 'four'", "whole number"]),
    (["--spec=true.toml"], ["online = True", "whole number"]),
    (["--spec=half.toml"], ["online = 0.5", "whole number"]),
    (["--spec=inf.toml"], ["usable = inf", "finite"]),
    (["--spec=nan.toml"], ["usable = nan", "finite"]),
    (["--spec=head.toml"], ["line 2", "'host'"]),
    (["--waivers=absent"], ["absent", "No such file"]),
    (["--waivers=."], ["directory"]),
    (["--waivers=binary"], ["binary"]),
    (["--waivers=broken.toml"], ["broken.toml", "line 1"]),
    (["--waivers=empty.toml"], ["[[waiver]]"]),
    (["--waivers=w-top"], ["[[waiver]]"]),
    (["--waivers=w-short"], ["waiver 1", "reason"]),
    (["--waivers=w-blank"], ["waiver 1", "reason"]),
    (["--waivers=w-text"], ["expires is a date"]),
    (["--waivers=w-time"], ["expires is a date"]),
    (["--waivers=w-more"], ["waiver 1"]),
    (["--waivers=w-check"], ["host.cpu.corse", "did you mean host.cpu.cores"]),
    (["--output=binary"], ["can't be written to binary", "give another --output"]),
    (["--output=binary/out"], ["can't be written to binary/out", "give another --output"]),
    (["--output=", "--deadline=5"], ["--output"]),
    (["--cpu-devices=0"], ["--cpu-devices 0", "more than 0"]),
    (["--cpu-devices=-1"], ["--cpu-devices -1", "more than 0"]),
    (["--expect-gpus=2"], ["--expect-gpus", "--device cpu"]),
    (["--expect-gpus=0", "--device=auto"], ["--expect-gpus 0", "more than 0"]),
    (["--deadline=0"], ["--deadline 0", "more than 0"]),
    (["--deadline=-3"], ["--deadline -3", "more than 0"]),
    (["--deadline=nan"], ["--deadline nan"]),
    (["--deadline=inf"], ["--deadline inf"]),
    (["--host-root=absent"], ["--host-root absent", "no such directory"]),
    (["--host-root=binary"], ["--host-root binary"]),
]


@pytest.fixture
def folder(tmp_path):
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def one_sentence(text):
    return text.startswith("nodeproof: ") and len(text.splitlines()) == 1


@pytest.mark.parametrize(("words", "says"), TABLE, ids=" ".join)
def test_a_wrong_word_is_answered_with_one_sentence_and_2(folder, words, says):
    before = sorted(folder.iterdir())
    done = nodeproof("run", *REHEARSE, *words, cwd=folder)
    assert (done.returncode, done.stdout) == (2, ""), done.stdout + done.stderr
    assert one_sentence(done.stderr), done.stderr
    for part in says:
        assert part in done.stderr
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    "word",
    ["--seed=text", "--seed=1.5", "--cpu-devices=two", "--expect-gpus=2.0", "--deadline=soon"],
)
def test_a_word_where_a_number_belongs_is_named_with_its_option(folder, word):
    done = nodeproof("run", *REHEARSE, word, cwd=folder)
    option, _, given = word.partition("=")
    assert (done.returncode, done.stdout) == (2, "")
    last = done.stderr.splitlines()[-1]
    assert option in last
    assert repr(given) in last
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["verdict", "."], ".: Is a directory"),
        (["verdict", "absent"], "absent: No such file"),
        (["report", ".", "--format=json"], ".: Is a directory"),
        (["report", "absent", "--format=html"], "absent: No such file"),
        (["report", "empty.toml", "--format=json", "-o", "binary/x"], "binary/x: Not a directory"),
        (["report", "empty.toml", "--format=json", "-o", "."], ".: Is a directory"),
        (["record", "--device=cpu", "-o", "binary/x"], "binary/x: Not a directory"),
        (["record", "--device=cpu", "--cpu-devices=0", "-o", "x"], "more than 0"),
        (["selftest", "--device=cpu", "--cpu-devices=0"], "--cpu-devices 0"),
        (["selftest", "--device=cpu", "--host-root=absent"], "--host-root absent"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_other_commands_answer_in_one_sentence_too(folder, words, says):
    before = sorted(folder.iterdir())
    done = nodeproof(*words, cwd=folder)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert one_sentence(done.stderr), done.stderr
    assert says in done.stderr
    assert sorted(folder.iterdir()) == before


def test_a_format_that_is_none_is_answered_with_those_that_are(folder):
    done = nodeproof("report", "empty.toml", "--format=pdf", cwd=folder)
    assert done.returncode == 2
    assert all(f in done.stderr for f in ("junit", "html", "json", "prometheus", "pdf"))


def mounted(folder, options, *words):
    """Run with a file system of our own at `disk`, seen by this run alone."""
    disk = folder / "disk"
    disk.mkdir()
    need(there=os.geteuid() == 0, what="root, to mount a file system")
    command = shlex.join([*NODEPROOF, "run", "--device=cpu", *words])
    script = f"mount -t tmpfs -o {options} none {disk} && exec {command}"
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_results_that_can_never_be_written_are_a_wrong_word(folder):
    done = mounted(folder, "ro", "--output=disk/out")
    assert (done.returncode, done.stdout) == (2, "")
    assert one_sentence(done.stderr), done.stderr
    assert "disk/out: Read-only file system; give another --output" in done.stderr


def test_a_full_disk_leaves_the_node_undecided_since_the_word_was_right(folder):
    done = mounted(folder, "size=64k", "--output=disk/out")
    assert (done.returncode, done.stdout) == (11, "")
    assert one_sentence(done.stderr), done.stderr
    assert "undecided" in done.stderr
    assert "No space left on device: make room" in done.stderr


def test_a_waiver_that_has_expired_does_nothing_and_the_run_goes_on(folder):
    """The check fails on purpose, so that there is something to waive."""
    (folder / "spec.toml").write_text('["host.cpu.cores"]\nonline = 100000\n')
    done = {}
    for year in ("2020", "2999"):
        (folder / "waivers").write_text(WAIVER.replace("2030", year))
        words = ["--device=auto", "--node-name=node-7", "--spec=spec.toml", "--waivers=waivers"]
        ran = nodeproof("run", *words, "--output", year, cwd=folder)
        assert ran.returncode == 11, ran.stdout + ran.stderr
        assert all((folder / year / name).exists() for name in FIVE)
        told = json.loads((folder / year / "verdict.json").read_text())
        short = [r for r in told["undecided"] if r["check"] == "host.cpu.cores"]
        done[year] = (len(short), [w["expires"] for w in told["waivers"]])
    assert done == {"2020": (1, []), "2999": (0, ["2999-01-01"])}
