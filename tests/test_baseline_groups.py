"""`nodeproof baseline` of groups of nodes: what they did together, judged and learnt of for real."""

from __future__ import annotations

import json
import re
import tomllib

import fabric_records as samples
import pytest
from baseline_runs import write
from nodeproof_command import nodeproof

from nodeproof import spec
from nodeproof.cli import main
from nodeproof.nccl_tests.bandwidth import Collective

NODES = 4


def judged(folder, *, pace=1.0, seed=0, nodes=NODES, words=()):
    """Have a group of this pace judged; return its results file and the exit status."""
    document = samples.record(nodes)
    document["group"]["seed"] = seed
    for collective in Collective:
        samples.timed(document, collective, samples.SECONDS / pace)
    folder.mkdir()
    path = samples.written(folder, document)
    done = nodeproof("fabric", "judge", path, "--output", folder / "out", *words, cwd=folder)
    return folder / "out/results.jsonl", done


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three runs of groups of the same four nodes."""
    folder = tmp_path_factory.mktemp("groups")
    found = []
    for seed, pace in enumerate((0.99, 1.0, 1.01)):
        path, done = judged(folder / str(seed), pace=pace, seed=seed)
        assert done.returncode == 0, done.stdout + done.stderr
        found.append(path)
    return found


@pytest.fixture
def made(capsys):
    def make(*words):
        status = main(["baseline", *map(str, words)])
        said = capsys.readouterr()
        return status, said.out, said.err

    return make


def test_a_group_a_fifth_slower_than_the_samples_is_short_of_what_is_learnt(made, runs, tmp_path):
    status, text, said = made(*runs)
    assert status == 0, said
    path = tmp_path / "made.toml"
    path.write_text(text)
    told = spec.load(str(path))
    assert set(told.limits) == {"fabric.group.bandwidth"}
    assert set(told.limits["fabric.group.bandwidth"]) == {f"{c.value}_gbs" for c in Collective}
    entry = tomllib.loads(text)["provenance"]["fabric.group.bandwidth"]["all_reduce_gbs"]
    assert entry["n"] == NODES
    assert f"of 3 runs, {samples.SIZE} bytes over gloo, less 10% of it" in entry["source"]
    for pace, status in ((0.95, 0), (0.8, 11)):
        _, done = judged(tmp_path / str(pace), pace=pace, words=("--spec", path))
        assert done.returncode == status, done.stdout + done.stderr
    assert set(re.findall(r"fabric.group.bandwidth on group: (\w+)", done.stdout)) == {"all_reduce"}


def test_the_file_of_another_node_of_the_same_run_is_no_second_run(made, runs, tmp_path):
    own = tmp_path / "own.jsonl"
    lines = [json.loads(line) for line in runs[0].read_text().splitlines()]
    lines[0] |= {"run_id": "another"}
    own.write_text("".join(json.dumps(line) + "\n" for line in lines))
    status, text, said = made(*runs, own)
    assert (status, text) == (2, "")
    assert re.search("record sha256:[0-9a-f]{64} is given twice", said)


def test_two_runs_of_groups_are_too_few(made, runs):
    status, text, said = made(*runs[:2])
    assert (status, text) == (2, "")
    assert "2 runs of groups: 3 are the least" in said


def test_four_nodes_in_three_runs_are_four_nodes(made, runs):
    status, text, said = made("--least", 5, *runs)
    assert (status, text) == (2, "")
    assert "3 runs of 4 different nodes: 5 nodes are the least" in said


@pytest.mark.long  # three more groups are judged
def test_groups_of_three_nodes_are_of_too_few(made, tmp_path):
    files = [judged(tmp_path / str(seed), seed=seed, nodes=3)[0] for seed in range(3)]
    status, text, said = made(*files)
    assert (status, text) == (2, "")
    assert "3 runs of 3 different nodes: 4 nodes are the least" in said
    assert made("--least", 3, *files)[0] == 0


def test_groups_of_other_sizes_and_single_nodes_are_not_mixed(made, runs, tmp_path):
    larger, _ = judged(tmp_path / "five", nodes=5, seed=9)
    status, text, said = made(*runs, larger)
    assert (status, text) == (2, "")
    assert "differ in the devices of each member" in said
    status, text, said = made(*runs, write(tmp_path, 1))
    assert (status, text) == (2, "")
    assert "differ in what was tested" in said


def test_figures_of_other_sizes_of_message_are_not_mixed(made, runs, tmp_path):
    other = tmp_path / "other.jsonl"
    text = runs[2].read_text().replace(f"{samples.SIZE} bytes over", "8 bytes over")
    other.write_text(text)
    status, printed, said = made(*runs[:2], other)
    assert (status, printed) == (2, "")
    assert "all_reduce was measured in several ways" in said
