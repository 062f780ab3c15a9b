"""What the fabric commands say to who types them wrong, or asks for little."""

import pytest

from nodeproof.cli import lenient
from nodeproof.spec import REHEARSAL
from tests.nodeproof_command import nodeproof

HEAD = 'name = "ours"\nsource = "us"\ndate = 2026-11-30\nn = 3\n'


def test_without_a_command_the_commands_are_listed():
    done = nodeproof("fabric")
    assert (done.returncode, done.stdout) == (2, "")
    for command in ("run", "judge", "localise", "perf", "partners", "simulate"):
        assert any(line.split()[:1] == [command] for line in done.stderr.splitlines()), command


@pytest.mark.parametrize("option", [["--node-rank", "0"], ["--node-name", "n0"]])
@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_what_is_for_one_node_is_refused_beside_a_launcher_of_all(tmp_path, option, launcher):
    done = nodeproof(
        *("fabric", "run", "--launcher", launcher, "--nodes", "2", *option),
        *("--output", str(tmp_path / "out")),
    )
    assert done.returncode == 2
    assert f"{option[0]} is for one node, and --launcher {launcher} starts all" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_spec_that_is_not_there_is_answered_with_the_nearest_and_not_with_all():
    done = nodeproof("fabric", "run", "--spec", "nope", "--nodes", "1", "--node-rank", "0")
    assert done.returncode == 2
    assert "`nodeproof list --specs` names all" in done.stderr
    assert len(done.stderr) < 300


def test_every_spec_that_can_be_named_is_listed_in_a_line_and_loads():
    done = nodeproof("list", "--specs")
    assert (done.returncode, done.stderr) == (0, "")
    listed = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert {REHEARSAL, "hgx-h100", "p5.48xlarge", "azure-nd-h100-v5"} <= set(listed)
    assert listed["p5.48xlarge"].startswith("8 x NVIDIA H100")
    assert "7783" not in done.stdout


def spec(tmp_path, text):
    path = tmp_path / "ours.toml"
    path.write_text(HEAD + text)
    return str(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('["fabric.group.grade"]\ngrade = 0\n', "fabric.group.grade grade = 0, shipped 2"),
        ('["fabric.member.pairs"]\nratio = 0.5\n', "fabric.member.pairs ratio = 0.5, shipped 0.85"),
        (
            '["fabric.member.punctual"]\nlate_ms = 50\n',
            "fabric.member.punctual late_ms = 50, shipped 5",
        ),
        (
            '["fabric.group.bandwidth"]\nall_reduce_gbs = 0.1\n',
            "fabric.group.bandwidth all_reduce_gbs = 0.1, in place of the floor of the catalogue",
        ),
    ],
)
def test_each_limit_that_asks_for_less_is_said_by_name_and_number(tmp_path, text, says):
    (line,) = lenient.lines(spec(tmp_path, text), rehearsal=False)
    assert line.startswith(f"note: laxer than shipped: {says}, by spec ")


@pytest.mark.parametrize(
    ("text", "rehearsal"),
    [
        ('["fabric.group.grade"]\ngrade = 3\n', False),
        ('["fabric.member.pairs"]\nratio = 0.9\nfloor_gbs = 40\n', False),
        ('["fabric.member.punctual"]\nlate_ms = 1\n', False),
        ('["fabric.member.pairs"]\nratio = 0.5\n', True),  # a rehearsal's own is 0.4
        ('["fabric.member.transport"]\nprovider = "efa"\n', False),
    ],
)
def test_what_asks_for_as_much_or_more_is_not_spoken_of(tmp_path, text, rehearsal):
    assert lenient.lines(spec(tmp_path, text), rehearsal=rehearsal) == []


@pytest.mark.parametrize("name", ["", REHEARSAL])
def test_no_spec_and_a_shipped_one_are_what_is_shipped(name):
    assert lenient.lines(name, rehearsal=True) == []
