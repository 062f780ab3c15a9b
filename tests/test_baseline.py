"""`nodeproof baseline`: from runs of known-good nodes to a spec that a run can be held against."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import json
import subprocess
import sys
import tomllib

import pytest
from baseline_runs import (
    BY_ID,
    COLLECTIVES,
    NO_SPEC,
    OF_A_NODE,
    data_of,
    measured,
    node,
    own,
    short,
    write,
)
from nodeproof_command import nodeproof

from nodeproof import spec
from nodeproof.acceptance import test_fabric
from nodeproof.baseline.learnt import LEARNT
from nodeproof.checks import spec_of
from nodeproof.cli import main
from nodeproof.cli.options import suites
from nodeproof.manifest import digest_of, shipped
from nodeproof.model import DeviceKind, Measurement, Outcome, Profile, Waiver
from nodeproof.verdict import WITHHELD
from tests.results_samples import HOSTILE
from tests.shipped_run import BAD, BURNIN, MEMORY, accepted

DAY = dt.date(2026, 3, 1)  # on which the runs ended


@pytest.fixture
def made(tmp_path, capsys):
    """Have the command read files; return its status, what it printed and what it said beside."""

    def make(*words):
        status = main(["baseline", *map(str, words)])
        said = capsys.readouterr()
        return status, said.out, said.err

    return make


@pytest.fixture
def loaded(made, tmp_path):
    """The spec that the command prints, as a run loads it."""

    def load(*words):
        status, text, said = made(*words)
        assert status == 0, said
        path = tmp_path / "made.toml"
        path.write_text(text)
        told = spec.load(str(path))
        declared = suites()
        spec.known(told, declared)
        for check in told.limits:
            spec.limits_for(told, check, declared[check].limits)
        return told

    return load


@pytest.fixture
def three(tmp_path):
    """Runs of three nodes, a little apart in pace."""
    return [write(tmp_path, n, node(n, pace)) for n, pace in enumerate((0.99, 1.0, 1.01))]


# --- what is never taken ---------------------------------------------------------------------------


def failed():
    return node(2).refind(MEMORY, "gpu1", **BAD)


def missing():
    run = node(2)
    return run.but(findings=run.findings[1:])


def skipped():
    return node(2).refind(MEMORY, "gpu1", outcome=Outcome.SKIP, measurements=())


def waived():
    waiver = Waiver(check=MEMORY, device="GPU-00000001-2222-3333-4444-555555555555",
                    reason="known", expires="2027-01-01")  # fmt: skip
    return failed().replan(waivers=(waiver,))


def rehearsed():
    return accepted(kind=DeviceKind.CPU).replan(spec=NO_SPEC)


def of_products(product):
    run = node(2)
    devices = [
        dataclasses.replace(d, facts={**d.facts, "product": product}) if "product" in d.facts else d
        for d in run.plan.devices
    ]
    return run.replan(devices=tuple(devices))


def of_another_profile():
    run = node(2, profile=Profile.QUICK)
    quick = [c for c, entry in shipped().entries.items() if Profile.QUICK in entry.profiles]
    keys = [key for key in run.plan.selftests if key.check in [*quick, WITHHELD]]
    return run.replan(
        checks=tuple(p for p in run.plan.checks if p.key.check in quick), selftests=tuple(keys)
    ).but(
        findings=tuple(f for f in run.findings if f.check in quick),
        selftests=tuple(t for t in run.selftests if t.key in keys),
    )


# The third file beside two good ones, and what is said of it.
REFUSED = {
    "a node that failed": (failed, "not an accept but reject"),
    "a finding that is missing": (missing, "not an accept but undecided"),
    "a check that was skipped": (skipped, "not an accept but undecided"),
    "a fail that was waived": (waived, "accepted by a waiver"),
    "a rehearsal": (rehearsed, "differ in being a rehearsal: false in"),
    "another GPU": (lambda: of_products("NVIDIA H200"), "differ in their devices"),
    "a GPU that does not say what it is": (lambda: of_products(None), "differ in their devices"),
    "another number of GPUs": (
        lambda: accepted(3).replan(spec=NO_SPEC),
        "differ in their devices",
    ),
    "another instance type": (
        lambda: node(2, node={**node(2).plan.node, "instance_type": "p5.48xlarge"}),
        "differ in their instance type",
    ),
    "other suites": (
        lambda: node(2, suite_digest="sha256:ee"),
        "differ in the digest of the suites",
    ),
    "a manifest of another version": (
        lambda: node(2, manifest_digest="sha256:ee"),
        "written by other suites",
    ),
    "another spec": (
        lambda: node(2).replan(spec={**NO_SPEC, "digest": "sha256:ee"}),
        "differ in the spec",
    ),
    "another profile": (of_another_profile, "differ in their profile"),
    "a run that was cut off": (lambda: node(2).but(end=None), "not a whole results file"),
    "a run without a plan": (lambda: node(2).but(plan=None), "not a whole results file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_whole_accepted_run_of_the_kind_is_named_and_nothing_is_printed(
    made, tmp_path, name
):
    run, says = REFUSED[name]
    files = [write(tmp_path, n) for n in range(2)] + [write(tmp_path, 2, run())]
    for order in (files, files[::-1]):
        status, text, said = made(*order)
        assert (status, text) == (2, "")
        assert says in said
        assert "node-2.jsonl" in said
        assert all(line.startswith("nodeproof: ") for line in said.splitlines())


# What may have become of a good file.
SPOILT = {
    "empty": lambda _: b"",
    "no JSON": lambda _: b"\0\xff nonsense",
    "cut in its last line": lambda data: data[:-9],
    "cut between lines": lambda data: b"".join(data.splitlines(keepends=True)[:-1]),
    "a line lost": lambda data: b"".join(
        line for n, line in enumerate(data.splitlines(keepends=True)) if n != 9
    ),
    "a line twice": lambda data: data + data.splitlines(keepends=True)[-1],
    "a figure that is text": lambda data: data.replace(b'"value": 600.0', b'"value": "600.0"', 1),
    "a figure that is NaN": lambda data: data.replace(b'"value": 600.0', b'"value": NaN', 1),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_file_that_is_cut_or_malformed_is_named_and_nothing_is_printed(made, three, name):
    was = (three[1]).read_bytes()
    three[1].write_bytes(SPOILT[name](was))
    assert three[1].read_bytes() != was
    status, text, said = made(*three)
    assert (status, text) == (2, "")
    assert "node-1.jsonl: not a whole results file" in said


def test_every_file_that_is_none_is_named_at_once(made, tmp_path):
    files = [write(tmp_path, n) for n in range(4)]
    for n in (1, 3):
        files[n].write_bytes(b"")
    _, _, said = made(*files)
    assert [line.split(": ")[1] for line in said.splitlines()] == [str(files[1]), str(files[3])]


@pytest.mark.parametrize("name", ["absent.jsonl", "."])
def test_a_file_that_cannot_be_read_is_named(made, three, tmp_path, name):
    status, text, said = made(*three, tmp_path / name)
    assert (status, text) == (2, "")
    assert said.startswith(f"nodeproof: {tmp_path / name}: ")


def test_a_run_given_twice_is_refused_whatever_its_file_is_called(made, three, tmp_path):
    (tmp_path / "copy.jsonl").write_bytes(three[0].read_bytes())
    for again in (three[0], tmp_path / "copy.jsonl"):
        status, text, said = made(*three, again)
        assert (status, text) == (2, "")
        assert "run run-0 is given twice" in said


# --- what counts is nodes --------------------------------------------------------------------------


def test_fewer_than_three_nodes_are_refused(made, tmp_path):
    status, text, said = made(*(write(tmp_path, n) for n in range(2)))
    assert (status, text) == (2, "")
    assert "2 runs of 2 different nodes: 3 nodes are the least" in said


def test_five_runs_of_two_nodes_are_two_nodes(made, tmp_path):
    files = [write(tmp_path, n, machine=n % 2) for n in range(5)]
    status, _, said = made(*files)
    assert status == 2
    assert "5 runs of 2 different nodes" in said


# Each alone shows that it is the same machine, whatever else has changed.
MARKS = {
    "its GPUs, after a reboot under another uid": lambda data: own(7, data).replace(
        b"GPU-0007-", b"GPU-0000-"
    ),
    "one of its GPUs": lambda data: own(7, data).replace(
        b"GPU-0007-00000000", b"GPU-0000-00000000"
    ),
    "its boot": lambda data: own(7, data).replace(b'"00000007-', b'"00000000-'),
    "its uid": lambda data: own(7, data).replace(b"uid-7", b"uid-0"),
}


@pytest.mark.parametrize("mark", MARKS)
def test_a_node_that_comes_back_is_the_same_node(made, tmp_path, mark):
    files = [write(tmp_path, n) for n in range(2)]
    back = tmp_path / "back.jsonl"
    back.write_bytes(MARKS[mark](data_of(node(9))))
    status, _, said = made(*files, back)
    assert status == 2
    assert "3 runs of 2 different nodes" in said
    back.write_bytes(own(7, data_of(node(9))))
    assert made(*files, back)[0] == 0


def test_another_least_number_is_taken_and_stands_beside_each_figure(loaded, tmp_path):
    told = loaded("--least", 1, write(tmp_path, 0))
    sources = tomllib.loads(told.text)["provenance"]
    assert {entry["n"] for limits in sources.values() for entry in limits.values()} == {1}


@pytest.mark.parametrize("word", ["0", "-1", "two", "1.5", ""])
def test_a_least_number_that_is_none_is_refused(three, word):
    done = nodeproof("baseline", *three, f"--least={word}")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is no number of nodes" in done.stderr


# --- what comes out --------------------------------------------------------------------------------


# Where nobody knows what a group gives, its all-reduce is not judged without a word of the site.
KNOWN = {"fabric.group.bandwidth": test_fabric.BandwidthLimits(all_reduce_gbs=100.0)}


def test_every_limit_that_is_learnt_is_held_against_the_measurement_it_was_learnt_of():
    for of in LEARNT:
        declared = spec_of(BY_ID[of.check])
        more = {"all_reduce_gbs": 7.25} if of.check in KNOWN else {}
        limits = declared.limits(**more | {of.limit: 7.25})
        bound = {
            m.name: m.at_most if of.ceiling else m.at_least for m in measured(of.check, 1.0, limits)
        }
        assert bound[of.measurement] == 7.25, of
        assert {
            m.unit for m in measured(of.check, 1.0, KNOWN.get(of.check)) if m.name == of.measurement
        } == {of.unit}


EXPECTED = {
    BURNIN: {"median_tflops": 540.0},
    "device.transfers.host": {"h2d_gbs": 45.0, "d2h_gbs": 43.2, "d2d_gbs": 1170.0},
    "node.transfers.pairs": {"pair_gbs": 315.0},
    "node.collective.bandwidth": {f"{c}_gbs": 0.9 * gbs for c, gbs in COLLECTIVES.items()},
    "gpu.thermal.limits": {"hottest_c": 55.0, "memory_hottest_c": 60.0},
}


def test_a_floor_is_a_tenth_below_the_median_and_a_ceiling_twenty_degrees_above(loaded, three):
    told = loaded(*three)
    assert told.limits == {check: pytest.approx(limits) for check, limits in EXPECTED.items()}
    assert (told.name, told.products) == (
        "NVIDIA H100 80GB HBM3-baseline",
        ("NVIDIA H100 80GB HBM3",),
    )


@pytest.mark.parametrize("check", OF_A_NODE)
def test_a_node_a_fifth_slower_than_the_samples_fails_and_the_samples_do_not(loaded, three, check):
    told = loaded(*three)
    assert all(short(told, check, pace) == [] for pace in (0.95, 0.99, 1.0, 1.01))
    assert short(told, check, 0.8) == [of.measurement for of in LEARNT if of.check == check]


def test_each_number_has_unit_source_date_and_n(loaded, three):
    told = loaded(*three)
    sources = tomllib.loads(told.text)["provenance"]
    files = "".join(f"{digest_of(path.read_bytes())}\n" for path in three)
    for check, limits in told.limits.items():
        for limit in limits:
            entry = sources[check][limit]
            assert (entry["date"], entry["n"], entry["derived"]) == (DAY, 3, True)
            assert digest_of(files.encode()) in entry["source"]
            assert entry["unit"] in {"GB/s", "TFLOP/s", "C"}
    said = sources[BURNIN]["median_tflops"]["source"]
    assert said.startswith("median 600 (594 to 606) of 6 devices, less 10% of it; known-good runs")
    assert "of 3 nodes" in sources["node.transfers.pairs"]["pair_gbs"]["source"]
    for number, path in enumerate(three):
        assert f'# run "run-{number}" file {digest_of(path.read_bytes())}' in told.text


def test_the_same_runs_give_the_same_bytes_in_any_order(made, three):
    assert len({made(*order)[1] for order in itertools.permutations(three)}) == 1


def test_runs_of_one_node_count_once_for_its_pace(loaded, tmp_path):
    """Four slow runs of one node do not make the kind slow."""
    files = [write(tmp_path, n, node(n, pace), machine=machine)
             for n, (machine, pace) in enumerate([(0, 0.93), (0, 0.93), (0, 0.93), (0, 0.93), (1, 1.0), (2, 1.0)])]  # fmt: skip
    assert loaded(*files).limits[BURNIN]["median_tflops"] == 540.0


def test_samples_that_vary_more_have_a_floor_three_deviations_below(loaded, tmp_path):
    paces = [0.96, 0.97, 1.0, 1.03, 1.04]
    told = loaded(*(write(tmp_path, n, node(n, pace)) for n, pace in enumerate(paces)))
    assert told.limits[BURNIN]["median_tflops"] == pytest.approx(
        600 * (1 - 3 * 1.4826 * 0.03), abs=1
    )
    assert "3 robust deviations of" in told.text


def test_figures_too_far_apart_set_no_floor_and_that_is_said(made, tmp_path):
    files = []
    for n, tflops in enumerate((450.0, 530.0, 600.0, 670.0, 750.0)):
        run, same = node(n), measured(BURNIN)
        changed = tuple(
            dataclasses.replace(m, value=tflops) if m.name == "median" else m for m in same
        )
        for gpu in ("gpu0", "gpu1"):
            run = run.refind(BURNIN, gpu, measurements=changed)
        files.append(write(tmp_path, n, run))
    status, text, said = made(*files)
    assert status == 0
    assert "too far apart (450 to 750 TFLOP/s" in said
    assert "median_tflops" not in tomllib.loads(text).get(BURNIN, {})
    assert '# "device.burnin.throughput: median_tflops is not learnt' in text


def test_one_slow_device_among_known_good_ones_is_named_and_nothing_is_printed(made, tmp_path):
    files = [write(tmp_path, n) for n in range(4)] + [write(tmp_path, 4, node(4, 0.8))]
    status, text, said = made(*files)
    assert (status, text) == (2, "")
    assert f"{files[4]}: {BURNIN} on GPU-0004-00000000" in said
    assert "median 480" in said
    assert "node-3.jsonl" not in said


def with_measurements(run, check, change):
    found = [
        dataclasses.replace(f, measurements=tuple(change(m) for m in f.measurements if change(m)))
        if f.check == check
        else f
        for f in run.findings
    ]
    return run.but(findings=tuple(found))


def test_a_measurement_that_some_do_not_have_sets_no_limit_and_that_is_said(made, tmp_path):
    files = [write(tmp_path, n) for n in range(2)]
    mute = with_measurements(
        node(2), "gpu.thermal.limits", lambda m: m if m.name != "memory temperature" else None
    )
    status, text, said = made(*files, write(tmp_path, 2, mute))
    assert status == 0
    assert "memory_hottest_c is not learnt: 2 of 6 findings have no 'memory temperature'" in said
    assert tomllib.loads(text)["gpu.thermal.limits"] == {"hottest_c": 55.0}


def test_a_figure_in_another_unit_is_refused(made, tmp_path):
    files = [write(tmp_path, n) for n in range(2)]
    odd = with_measurements(
        node(2),
        BURNIN,
        lambda m: dataclasses.replace(m, unit="GFLOP/s") if m.unit == "TFLOP/s" else m,
    )
    status, text, said = made(*files, write(tmp_path, 2, odd))
    assert (status, text) == (2, "")
    assert "is in TFLOP/s and not in 'GFLOP/s'" in said


@pytest.mark.parametrize("pace", [0.0, -1.0, 2.0])
def test_figures_that_no_device_can_have_are_refused(made, tmp_path, pace):
    files = []
    for n in range(3):
        changed = tuple(
            dataclasses.replace(m, value=m.value * pace, at_least=None) if m.name == "median" else m
            for m in measured(BURNIN)
        )
        run = node(n)
        for gpu in ("gpu0", "gpu1"):
            run = run.refind(BURNIN, gpu, measurements=changed)
        files.append(write(tmp_path, n, run))
    status, text, said = made(*files)
    assert (status, text) == (2, "")
    assert ("is more than NVIDIA H100" if pace > 1 else "is no speed") in said


def test_figures_that_are_next_to_nothing_of_the_product_set_no_floor(made, tmp_path):
    quarter = lambda m: dataclasses.replace(m, value=m.value / 4) if m.name == "median" else m  # noqa: E731
    files = [write(tmp_path, n, with_measurements(node(n), BURNIN, quarter)) for n in range(3)]
    status, text, said = made(*files)
    assert status == 0
    assert "median_tflops is not learnt: 135 is next to nothing of what NVIDIA H100" in said
    assert BURNIN not in tomllib.loads(text)


def test_a_product_that_no_catalogue_knows_is_not_named_as_one_that_it_does(loaded, tmp_path):
    files = []
    for n in range(3):
        run = of_products("NVIDIA Z900")
        files.append(write(tmp_path, n, run.replan(run_id=f"z{n}")))
    told = loaded(*files)
    assert told.products == ()
    assert "NVIDIA Z900" in told.name


@pytest.mark.parametrize(
    "change",
    [{"kernel": "6.9.0"}, {"driver": {"driver": "590.1"}}, {"software": {"nccl": "2.29.1"}}],
    ids=str,
)
def test_other_versions_are_noted_and_taken(made, tmp_path, change):
    base = {"driver": {"driver": "580.65"}, "software": {"nccl": "2.27.3"}}
    files = [write(tmp_path, n, node(n, node={**node(n).plan.node, **base})) for n in range(2)]
    last = node(2, node={**node(2).plan.node, **base, **change})
    status, text, said = made(*files, write(tmp_path, 2, last))
    assert status == 0
    assert "nodeproof: note: the runs differ in" in said
    assert '# "the runs differ in' in text


def test_what_a_run_says_of_itself_can_write_nothing_into_the_spec(loaded, tmp_path):
    evil = {"instance_type": f'x"\nname = "evil"\n{HOSTILE}', "kernel": HOSTILE}
    files = []
    for n in range(3):
        run = node(n, node={**node(n).plan.node, **evil}).replan(run_id=f"{n}\n[evil]\n{HOSTILE}")
        files.append(write(tmp_path, n, run))
    told = loaded(*files)
    assert told.name.startswith('x"\nname = "evil"')
    assert told.text.isascii()
    assert set(told.limits) == set(EXPECTED)


# --- what was asked before -------------------------------------------------------------------------

SITE = """
name = "site"
machines = ["HGX"]
["device.burnin.throughput"]
median_tflops = {tflops}
["gpu.nvlink.links"]
active = 18
["gpu.bus.link"]
width = 16
["host.clock.source"]
refused = "hpet \\"x\\""
[provenance."gpu.nvlink.links"]
active = {{ unit = "links", source = "the maker", date = 2026-11-30, n = 0 }}
"""


def held_against(tmp_path, text):
    """Three runs that were held against a spec of the site."""
    path = tmp_path / "site.toml"
    path.write_text(text)
    told = spec.load(str(path)).summary()
    return path, [write(tmp_path, n, node(n).replan(spec=told)) for n in range(3)]


def test_what_the_runs_were_held_against_is_kept_with_its_sources(loaded, tmp_path):
    path, files = held_against(tmp_path, SITE.format(tflops=400))
    told = loaded("--spec", path, *files)
    assert told.limits["gpu.nvlink.links"] == {"active": 18}
    assert told.limits["host.clock.source"] == {"refused": 'hpet "x"'}
    assert told.limits[BURNIN] == {"median_tflops": 540.0}
    assert told.machines == ("HGX",)
    assert (
        tomllib.loads(told.text)["provenance"]["gpu.nvlink.links"]["active"]["source"]
        == "the maker"
    )
    assert "gpu.bus.link: width = 16 is kept, and came without a source" in told.text
    assert told.text.count("came without a source") == 1


def test_a_shipped_spec_of_the_runs_is_found_and_kept(loaded, tmp_path):
    shipped_one = spec.load("p5.48xlarge")
    files = [write(tmp_path, n, node(n).replan(spec=shipped_one.summary())) for n in range(3)]
    told = loaded(*files)
    assert told.limits["node.efa.devices"] == {"expected": 32}
    assert told.limits["node.collective.bandwidth"]["all_reduce_gbs"] == 396.0
    assert "over p5.48xlarge" in told.text


def test_runs_held_against_a_spec_that_is_not_given_are_refused(made, tmp_path):
    _, files = held_against(tmp_path, SITE.format(tflops=400))
    status, text, said = made(*files)
    assert (status, text) == (2, "")
    assert "give it with --spec" in said


def test_a_spec_that_is_not_that_of_the_runs_is_refused(made, tmp_path):
    path, files = held_against(tmp_path, SITE.format(tflops=400))
    path.write_text(SITE.format(tflops=401))
    assert made("--spec", path, *files)[:2] == (2, "")
    assert made("--spec", "p5.48xlarge", *files)[:2] == (2, "")
    assert made("--spec", tmp_path / "absent.toml", *files)[:2] == (2, "")


def test_a_name_in_a_run_that_is_a_path_is_not_opened(made, tmp_path, monkeypatch):
    path, _ = held_against(tmp_path, SITE.format(tflops=400))
    told = {**spec.load(str(path)).summary(), "name": str(path)}
    files = [write(tmp_path, n, node(n).replan(spec=told)) for n in range(3)]
    assert made(*files)[:2] == (2, "")


@pytest.mark.parametrize(("words", "floor"), [([], 580), (["--loosen"], 540.0)])
def test_figures_loosen_a_limit_only_when_that_is_asked(made, tmp_path, words, floor):
    path, files = held_against(tmp_path, SITE.format(tflops=580))
    status, text, said = made("--spec", path, *files, *words)
    assert status == 0
    assert tomllib.loads(text)[BURNIN]["median_tflops"] == floor
    assert ("stays at 580 of the spec site: the figures alone would give 540" in said) != bool(
        words
    )


def test_a_limit_is_never_laxer_than_the_checks_own(made, tmp_path):
    """4 GB/s is asked of an all-reduce everywhere; 4.2 less a tenth is less."""
    change = lambda m: dataclasses.replace(m, value=4.2) if m.name == "all_reduce" else m  # noqa: E731
    files = [
        write(
            tmp_path,
            n,
            with_measurements(
                of_products("NVIDIA Z900"), "node.collective.bandwidth", change
            ).replan(run_id=f"z{n}"),
        )
        for n in range(3)
    ]
    status, text, said = made(*files)
    assert status == 0
    assert "all_reduce_gbs" not in tomllib.loads(text)["node.collective.bandwidth"]
    assert (
        "all_reduce_gbs stays at 4 of the check itself: the figures alone would give 3.78" in said
    )


def test_one_device_alone_teaches_nothing_of_exchange(made, tmp_path):
    files = []
    for n in range(3):
        run = accepted(1).replan(spec=NO_SPEC, run_id=f"one{n}")
        for check in OF_A_NODE:
            own_figures = [
                dataclasses.replace(m, at_least=None) if m.name in COLLECTIVES else m
                for m in measured(check)
                if m.name != "slowest pair"
            ]
            run = run.but(
                findings=tuple(
                    dataclasses.replace(
                        f,
                        measurements=(*own_figures, Measurement(name="ranks", value=1, at_least=1)),
                    )
                    if f.check == check
                    else f
                    for f in run.findings
                )
            )
        files.append(write(tmp_path, n, run))
    status, text, said = made(*files)
    assert status == 0
    assert "all_reduce_gbs is not learnt: one device alone exchanges nothing" in said
    assert "pair_gbs is not learnt: no run measured 'slowest pair'" in said
    assert not {"node.collective.bandwidth", "node.transfers.pairs"} & set(tomllib.loads(text))


def test_a_name_is_taken(loaded, three):
    assert loaded("--name", 'our "h100"', *three).name == 'our "h100"'


def test_the_base_install_is_enough(three, tmp_path):
    code = (
        "import json, sys\nfrom nodeproof.cli import main\nstatus = main(sys.argv[1:])\n"
        "bad = {m.partition('.')[0] for m in sys.modules}\n"
        "bad &= {'torch', 'pytest', '_pytest', 'numpy', 'pynvml', 'rich', 'jinja2'}\n"
        "print(json.dumps([status, sorted(bad)]), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "baseline", *map(str, three)],
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300,
    )  # fmt: skip
    assert json.loads(done.stderr.splitlines()[-1]) == [0, []]
