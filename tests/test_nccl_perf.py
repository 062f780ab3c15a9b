"""all_reduce_perf on the PATH on its bad days, and its JSON file: nothing half is a pass."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

from nodeproof.nccl_tests import perf, perf_json
from nodeproof.nccl_tests.perf import Asked, MissingError
from nodeproof.parsers.reading import Grade

SIZES = [1024, 2048, 4096]
ASKED = Asked(least_bytes=1024, most_bytes=4096, ranks=4, hosts=("node-a", "node-b.example"))


def half(wrong=0.0, alg=10.0, ranks=4, **more):
    return {
        "time": 25.5,
        "alg_bw": alg,
        "bus_bw": alg * 2 * (ranks - 1) / ranks,
        "nwrong": wrong,
    } | more


def device(rank, host="node-a", **more):
    return {
        "rank": rank,
        "group": 0,
        "pid": 100 + rank,
        "hostname": host,
        "device": rank % 2,
        "device_hex": f"0000:{rank % 2:02x}:00",
        "device_info": "NVIDIA H100 80GB HBM3",
    } | more


def document(**changes):
    """What v2.19.6 writes for four ranks on two hosts; `None` takes a key away."""
    rows = [
        {
            "size": size,
            "count": size // 4,
            "type": "float",
            "redop": "sum",
            "root": "    -1",
            "out_of_place": half(),
            "in_place": half(),
            "actual_iterations": 20,
            "experiment_name": "",
        }
        for size in SIZES
    ]
    whole = {
        "version": 3,
        "start_time": "2026-11-01 10:00:00",
        "args": ["all_reduce_perf", "-b", "1024"],
        "env": ["PATH=/usr/bin", "AWS_SECRET_ACCESS_KEY=hunter2hunter2"],
        "nccl_version": 22902,
        "config": {
            "nthreads": 1,
            "ngpus": 1,
            "minimum_bytes": 1024,
            "maximum_bytes": 4096,
            "step_factor": 2,
            "validation": 1,
            "parallel_init": "false",
            "devices": [device(r, "node-a" if r < 2 else "node-b") for r in range(4)],
        },
        "results": rows,
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 15.0, "okay": "unchecked"},
        "errors": [""],
        "end_time": "2026-11-01 10:00:09",
    }
    return {key: value for key, value in (whole | changes).items() if value is not None}


def config(**changes):
    return document()["config"] | changes


def rows(place="in_place", row=0, **changes):
    """The rows with one of them changed."""
    made = document()["results"]
    made[row] = made[row] | {place: half(**changes)}
    return made


def judged(given, *, sizes=SIZES, ranks=4, hosts=("node-a", "node-b.example")):
    data = given if isinstance(given, bytes) else json.dumps(given).encode()
    return perf_json.read(data, sizes=sizes, ranks=ranks, hosts=hosts)


WHOLE = json.dumps(document()).encode()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (b"", "no whole JSON"),
        (WHOLE[: len(WHOLE) // 2], "no whole JSON"),
        (WHOLE.replace(b'"time": 25.5', b'"time": inf', 1), "no whole JSON"),
        (WHOLE.replace(b'"time": 25.5', b'"time": Infinity', 1), "no whole JSON"),
        (WHOLE.replace(b'"version": 3', b'"version": 3, "version": 3'), "no whole JSON"),
        (b"[1]", "no object"),
        (b"[" * 100_000, "no whole JSON"),
        (document(version=4), "version 4"),
        (document(version="3"), "version 3"),
        (document(version=True), "version True"),
        (document(version=None), "version None"),
        (document(end_time=None), "did not finish"),
        (document(out_of_bounds=None), "did not finish"),
        (document(results=None), "end early"),
        (document(config=None), "end early"),
        (document(results=[]), "1024 bytes were left out"),
        (document(results=document()["results"][:2]), "4096 bytes were left out"),
        (document(results=document()["results"][::-1]), "not those asked for"),
        (document(results=rows(wrong=None)), "not checked"),
        (document(results=rows(wrong="nan")), "wrong values is none"),
        (document(results=rows(wrong=0.5)), "wrong values is none"),
        (document(results=rows(wrong=-1.0)), "wrong values is none"),
        (document(results=rows(time="nan")), "no number"),
        (document(results=rows(time=True)), "no number"),
        (document(results=rows(time=0.0)), "no time"),
        (document(results=rows(alg=-1.0)), "below zero"),
        (document(results=rows(ranks=1)), "not those of 4 ranks"),
        (document(results=[document()["results"][0] | {"in_place": None}]), "not tested in place"),
        (document(results="none"), "can't be read"),
        (document(config=config(validation=0)), "not checked"),
        (document(config=config(devices=[device(0)])), "bus bandwidth"),
        (document(config=config(devices=[])), "not whole: []"),
        (document(config=config(devices=[device(0), device(2)])), "not whole"),
        (document(config=config(devices=[device(0), device(0)])), "not whole"),
        (document(config=config(devices=[device(r, group=r % 2) for r in range(4)])), "groups"),
        (document(config=config(devices=[device(r) for r in range(4)])), "one device"),
        (
            document(config=config(devices=[device(r, device_hex=str(r)) for r in range(4)])),
            "ran on node-a where node-a, node-b",
        ),
    ],
)
def test_a_file_that_is_not_whole_or_not_as_asked_is_an_error(given, why):
    reading = judged(given)
    assert reading.grade is Grade.ERROR
    assert why in reading.why


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (document(results=rows(wrong=3.0)), "1024 bytes"),
        (document(results=rows(place="out_of_place", row=2, wrong=1.0)), "4096 bytes"),
        (document(results=rows(wrong=3.0), end_time=None), "1024 bytes"),
        (document(out_of_bounds={"count": 0, "okay": "false"}), "out of bounds"),
        (document(out_of_bounds={"count": 2, "okay": "true"}), "2 values"),
        (document(average_bus_bandwidth={"bandwidth": 1.0, "okay": "false"}), "below the floor"),
    ],
)
def test_wrong_data_and_a_missed_floor_are_fails(given, why):
    reading = judged(given)
    assert reading.grade is Grade.FAIL
    assert why in reading.why


@pytest.mark.parametrize("given", [document(), document(env="x"), WHOLE[:900], document(version=9)])
def test_nothing_of_the_environment_is_kept_or_quoted(given):
    reading = judged(given)
    assert "hunter2" not in json.dumps({"why": reading.why, **reading.fields})
    assert "env" not in reading.fields


def test_a_whole_file_passes_and_says_what_was_measured():
    reading = judged(document())
    assert reading.grade is Grade.PASS, reading.why
    assert reading.fields["hosts"] == ["node-a", "node-b"]
    assert reading.fields["nccl"] == "2.29.2"
    assert (reading.fields["ranks"], reading.fields["max_size_bytes"]) == (4, 4096)
    assert reading.fields["rows"][2]["in_place"] == {
        "seconds": pytest.approx(25.5e-6),
        "algbw": 10.0,
        "busbw": 15.0,
        "wrong": 0,
    }


def test_older_versions_and_processes_of_several_gpus_are_read():
    given = document(version=1, average_bus_bandwidth=None)
    given["average_bus_bandwidith"] = {"bandwidith": 15.0, "okay": "unchecked"}
    given["config"] |= {"ngpus": 2, "devices": [device(0), device(2, "node-b")]}
    reading = judged(given)
    assert (reading.grade, reading.fields["ranks"]) == (Grade.PASS, 4), reading.why
    assert reading.fields["avg_busbw_gbs"] == 15.0


def test_what_nccl_said_last_is_not_lost():
    reading = judged(document(errors=["socketProgress: Connection closed"]))
    assert reading.grade is Grade.WARN
    assert "Connection closed" in reading.why


@pytest.mark.parametrize("sweep", [(0, 8, 2), (8, 4, 2), (8, 64, 1), (2, 64, 2)])
def test_no_sweep_is_refused(sweep):
    with pytest.raises(ValueError, match="no sweep"):
        perf_json.sizes(*sweep)


def test_sizes_are_those_of_the_size_column():
    assert perf_json.sizes(8, 1024, 4) == [8, 32, 128, 512]
    assert perf_json.sizes(10, 50, 2) == [8, 20, 40]


# --- the program ------------------------------------------------------------------------------

USAGE = """\
USAGE: all_reduce_perf
    [-b,--minbytes <min size in bytes>]
    [-a,--average <0/1/2/3> report average iteration time]
    [-T,--timeout <time in seconds>]
    [-J,--output_file <file write output to filepath, if accessible.>]
"""
OLD = USAGE[: USAGE.index("    [-J")]


def printed(ranks=4, sizes=SIZES, hosts=("node-a", "node-b"), wrong=0, end=True):
    lines = [
        "# nThread 1 nGpus 1 minBytes 1024 maxBytes 4096 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0",
        "# Using devices",
    ]
    lines += [
        f"#  Rank  {r} Group  0 Pid   51{r} on     {hosts[r * len(hosts) // ranks]} device  {r % 2} "
        f"[0000:{r:02x}:00] NVIDIA H100 80GB HBM3"
        for r in range(ranks)
    ]
    lines.append(
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
        "     time   algbw   busbw  #wrong"
    )
    numbers = f"    25.50   10.00   15.00       {wrong}"
    lines += [f"  {size}  {size // 4}  float  sum  -1{numbers}{numbers}" for size in sizes]
    if end:
        state = "FAILED" if wrong else "OK"
        lines += [f"# Out of bounds values : {wrong} {state}", "# Avg bus bandwidth    : 15.0"]
    return "\n".join(lines) + "\n"


@pytest.fixture
def program(tmp_path):
    """Make an all_reduce_perf that shows this usage and then does what its script says."""

    def make(*, usage=USAGE, text="", file=None, then=""):
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / "usage").write_text(usage)
        (folder / "text").write_text(text)
        (folder / "json").write_text(file or "")
        (folder / "then.py").write_text(f"import os, signal, subprocess, sys, time\n{dedent(then)}")
        write = 'for last; do :; done; cp "$0.json" "$last"' if file is not None else ":"
        script = f"""\
            #!/bin/sh
            if [ "$1" = -h ]; then cat {folder}/usage; exit; fi
            cat {folder}/text
            case "$*" in *-J*) {write.replace("$0.", f"{folder}/")};; esac
            {f'exec {sys.executable} {folder}/then.py "$@"' if then else ":"}
            """
        made = folder / "all_reduce_perf"
        made.write_text(dedent(script))
        made.chmod(0o755)
        return str(made)

    return make


def measured(program, asked=ASKED, *, deadline_s=30.0, **how):
    return perf.measure(asked, program=program, deadline_s=deadline_s, **how)


GOOD = json.dumps(document())


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"usage": ""}, "usage"),
        ({"usage": OLD}, "no output of a test"),
        ({"text": printed()}, "left no JSON file"),
        ({"text": printed(), "file": GOOD[:700]}, "no whole JSON"),
        ({"text": printed(end=False), "file": GOOD}, "did not finish"),
        ({"text": printed(), "file": GOOD, "then": "sys.exit(3)"}, "status 3"),
        ({"text": printed(), "file": GOOD, "then": "os.kill(os.getpid(), 9)"}, "status -9"),
        ({"text": printed(sizes=SIZES[:2]), "file": GOOD}, "2 sizes"),
        ({"usage": OLD, "text": printed(sizes=SIZES[:2])}, "2 sizes"),
        ({"usage": OLD, "text": printed(ranks=1, hosts=("node-a",))}, "1 of 4 ranks"),
        ({"usage": OLD, "text": printed(hosts=("node-a",))}, "ran on node-a"),
        ({"usage": OLD, "text": printed(ranks=1, hosts=("node-a",)) * 4}, "1 of 4 ranks"),
        (
            {
                "text": printed(),
                "file": GOOD,
                "then": "open(sys.argv[sys.argv.index('-J') + 1] + '.0', 'x').close()",
            },
            "built without MPI",
        ),
    ],
)
def test_a_program_that_says_less_than_was_asked_is_an_error(program, how, why):
    reading = measured(program(**how))
    assert reading.grade is Grade.ERROR
    assert why in reading.why


def test_a_program_that_is_none_is_an_error(tmp_path):
    text = tmp_path / "all_reduce_perf"
    text.write_text("not a program")
    text.chmod(0o755)
    reading = measured(str(text))
    assert reading.grade is Grade.ERROR
    assert "could not be started" in reading.why


def test_wrong_data_in_either_witness_is_a_fail(program):
    reading = measured(program(text=printed(wrong=2), file=GOOD, then="sys.exit(1)"))
    assert reading.grade is Grade.FAIL


def test_a_program_that_hangs_is_ended_with_all_that_it_started(program, tmp_path, monkeypatch):
    """Also what stands in a group of its own and does not heed SIGTERM."""
    monkeypatch.setattr(perf, "_GRACE_S", 0.3)
    left = tmp_path / "left"
    hang = f"""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "300"], process_group=0)
        with open({str(left)!r}, "w") as file:
            file.write(f"{{os.getpid()}} {{child.pid}}")
        time.sleep(300)
        """
    made = program(text=printed(), file=GOOD, then=hang)
    started = time.monotonic()
    reading = measured(made, deadline_s=5.0)
    assert time.monotonic() - started < 20
    assert reading.grade is Grade.ERROR
    assert "did not end" in reading.why
    assert reading.fields["status"] is None
    numbers = left.read_text().split()
    ends = time.monotonic() + 10
    while (there := [n for n in numbers if _lives(n)]) and time.monotonic() < ends:
        time.sleep(0.02)  # what was killed is not gone at once
    assert there == []


def _lives(number: str) -> bool:
    try:
        return Path("/proc", number, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_usage_that_hangs_is_an_error_within_the_deadline(tmp_path):
    made = tmp_path / "all_reduce_perf"
    made.write_text("#!/bin/sh\nsleep 300\n")
    made.chmod(0o755)
    started = time.monotonic()
    assert measured(str(made), deadline_s=1.0).grade is Grade.ERROR
    assert time.monotonic() - started < 15


@pytest.mark.parametrize(
    ("how", "source"),
    [({"text": printed(), "file": GOOD}, "json"), ({"text": printed(), "usage": OLD}, "text")],
)
def test_a_sound_run_passes_by_its_file_or_by_its_text(program, how, source):
    reading = measured(program(**how))
    assert reading.grade is Grade.PASS, reading.why
    assert reading.fields["source"] == source
    assert [row["size"] for row in reading.fields["rows"]] == SIZES
    assert reading.fields["hosts"] == ["node-a", "node-b"]
    assert not [name for name, value in reading.fields.items() if "hunter2" in str(value)]


def test_a_build_too_old_for_the_slowest_time_is_a_warning(program):
    reading = measured(program(text=printed(), usage="--minbytes"))
    assert reading.grade is Grade.WARN


def test_it_is_started_behind_its_launcher_with_what_was_asked(program):
    then = "print('environment', os.environ.get('WANTED'))"
    made = program(text=printed(), file=GOOD, then=then)
    reading = measured(
        made, launcher=["env", "WANTED=yes"], environment={"PATH": os.environ["PATH"]}
    )
    assert reading.grade is Grade.PASS, reading.why
    assert "environment yes" in reading.fields["said"]
    command = " ".join(reading.fields["command"])
    assert command.startswith(f"env WANTED=yes {made} -b 1024 -e 4096 -f 2 -g 1 -n 20 -w 5 -c 1")
    assert "-a 3 -T 60 -J " in command


def test_it_is_found_on_the_path_or_where_it_is_said_to_be(program, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(MissingError, match="not on PATH"):
        perf.find("all_reduce_perf_of_nobody")
    with pytest.raises(MissingError, match="is no program"):
        perf.find(str(tmp_path / "not-here"))
    made = program()
    assert perf.find(made) == made
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert perf.find() == made
