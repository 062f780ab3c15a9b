from __future__ import annotations

import dataclasses
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nodeproof.manifest import shipped
from nodeproof.model import Device, DeviceKind, Measurement, Outcome
from nodeproof.reports import prometheus
from nodeproof.results import assemble
from nodeproof.verdict import decide_any
from tests.results_samples import HOSTILE, SAMPLES, accept, device, judged, reject, undecided
from tests.shipped_run import records_of

GPU1 = {"device": device(1).id, "label": "gpu1"}


def samples(data: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every series that the official parser reads; a series that comes twice is an error."""
    read = {}
    for family in text_string_to_metric_families(prometheus.render(*judged(data))):
        for sample in family.samples:
            assert sample.timestamp is None
            series = (sample.name, frozenset(sample.labels.items()))
            assert series not in read
            read[series] = sample.value
    return read


def value(read, name, **labels):
    return read["nodeproof_" + name, frozenset(labels.items())]


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_official_parser_reads_the_report_of_any_results_file(sample):
    data = SAMPLES[sample]()
    _, verdict = judged(data)
    read = samples(data)
    hot = [dict(labels) for (n, labels), v in read.items() if n == "nodeproof_verdict" and v == 1]
    assert hot == [{"verdict": verdict.decision.value}]
    assert sum(n == "nodeproof_verdict" for n, _ in read) == 3
    assert value(read, "rehearsal") == verdict.rehearsal


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_line_is_a_comment_or_a_sample_and_each_name_is_described_once(sample):
    written = prometheus.render(*judged(SAMPLES[sample]()))
    assert written.endswith("\n")
    assert not written.endswith("\n\n")
    lines = written[:-1].split("\n")
    shape = re.compile(
        r'nodeproof_[a-z_]+(\{[a-z_]+="(?:[^"\\]|\\[\\"n])*"(,[a-z_]+="(?:[^"\\]|\\[\\"n])*")*\})? \S+'
    )
    assert [line for line in lines if line[0] != "#" and not shape.fullmatch(line)] == []
    for word in ("HELP", "TYPE"):
        named = [line.split()[2] for line in lines if line.startswith(f"# {word} ")]
        assert len(named) == len(set(named))
        assert {line.partition("{")[0].split()[0] for line in lines if line[0] != "#"} == set(named)


def test_a_fail_shows_its_outcome_its_value_and_its_limit():
    read = samples(reject().data())
    check = {"check": "device.memory.pattern", **GPU1}
    assert value(read, "finding_outcome", **check, outcome="fail") == 1
    assert value(read, "measurement_value", **check, measurement="wrong", unit="words") == 4
    limit = {"measurement": "wrong", "unit": "words", "bound": "at_most"}
    assert value(read, "measurement_limit", **check, **limit) == 0
    assert value(read, "selftest_caught", **check) == 1


def test_a_missing_finding_is_a_series_of_its_own():
    read = samples(undecided().data())
    check = {"check": "device.memory.pattern", **GPU1}
    assert value(read, "finding_outcome", **check, outcome="missing") == 1


def test_a_self_test_that_missed_or_did_not_come_back_is_zero():
    read = samples(undecided().data())
    gpu0 = {"device": device(0).id, "label": "gpu0"}
    node = {"device": "node-a17", "label": "node-a17"}
    assert value(read, "selftest_caught", check="device.memory.pattern", **gpu0) == 0
    assert value(read, "selftest_caught", check="nodeproof.verdict.withheld", **node) == 0


@pytest.mark.parametrize("caught_on_host", [True, False])
def test_where_node_and_host_share_a_name_the_self_test_that_missed_is_kept(caught_on_host):
    run = accept()
    (on_node,) = [t for t in run.selftests if t.check == "node.devices.count"]
    host = next(t.device for t in run.selftests if t.check == "host.time.sync")
    both = (
        dataclasses.replace(on_node, caught=not caught_on_host),
        dataclasses.replace(on_node, caught=caught_on_host, device=host),
    )
    rest = tuple(t for t in run.selftests if t is not on_node)
    read = samples(run.but(selftests=(*rest, *both)).data())
    node = {"device": "node-a17", "label": "node-a17"}
    assert value(read, "selftest_caught", check="node.devices.count", **node) == 0


def test_of_two_readings_of_one_name_the_worse_is_kept():
    good = Measurement(name="wrong", value=0, at_most=0)
    bad = Measurement(name="wrong", value=9, at_most=0)
    for both in ((good, bad), (bad, good)):
        run = accept().refind("device.memory.pattern", "gpu1", measurements=both)
        check = {"check": "device.memory.pattern", **GPU1, "measurement": "wrong", "unit": ""}
        assert value(samples(run.data()), "measurement_value", **check) == 9


def test_when_it_ran_and_what_ran_are_values():
    read = samples(accept().data())
    assert value(read, "run_started_timestamp_seconds") == 1772334720.125
    assert value(read, "run_ended_timestamp_seconds") == 1772335122.5
    assert value(read, "loaded_seconds") == pytest.approx(41.6)
    (info,) = [dict(labels) for name, labels in read if name == "nodeproof_info"]
    run = accept()
    assert run.plan is not None
    assert info == {
        "run_id": run.plan.run_id,
        "profile": "gate",
        "spec": "h100-sxm",
        "suite_digest": run.plan.suite_digest,
        "version": "0.1.0",
        "boot_id": run.plan.node["boot_id"],
    }


def test_a_hostile_label_can_neither_end_its_line_nor_hide():
    run = accept().refind("device.memory.pattern", "gpu1", outcome=Outcome.ERROR)
    evil = dataclasses.replace(run.findings[1].device, label=HOSTILE)
    findings = (run.findings[0], dataclasses.replace(run.findings[1], device=evil))
    read = samples(run.but(findings=findings).data())
    assert not any("evil" in name for name, _ in read)
    labels = [dict(ls).get("label", "") for name, ls in read if name == "nodeproof_finding_outcome"]
    (shown,) = [label for label in labels if "red" in label]
    assert shown.startswith(r"\x1b[31mred")
    assert '"' in shown


def of_a_group(run):
    """The same run, of a plan that undertook the proof of a group of two."""
    members = [Device(kind=DeviceKind.MEMBER, id=n, label=n) for n in ("xh0", "xh1")]
    group = Device(kind=DeviceKind.GROUP, id="group", label="group")
    return run.replan(devices=(group, *members), node={**run.plan.node, "group": 2})


def test_no_series_of_a_group_has_a_name_of_a_nodes():
    results = assemble(records_of(of_a_group(accept())))
    text = prometheus.render(results, decide_any(results, shipped()))
    found = list(text_string_to_metric_families(text))
    of_a_node = {name for name, _ in samples(accept().data())}
    assert {f.name for f in found} == {
        *(name.replace("nodeproof_", "nodeproof_group_") for name in of_a_node),
        "nodeproof_group_member_verdict",
    }
    (members,) = [f for f in found if f.name == "nodeproof_group_member_verdict"]
    hot = [s.labels for s in members.samples if s.value == 1]
    assert hot == [{"member": n, "verdict": "undecided"} for n in ("xh0", "xh1")]
    assert "of the node," not in text


def test_a_plan_that_only_half_says_that_it_is_a_groups_is_no_nodes():
    run = accept()
    half = run.replan(node={**run.plan.node, "group": None})
    assert all(name.startswith("nodeproof_group_") for name, _ in samples(half.data()))


def test_labels_too_long_to_show_stay_different():
    run = accept()
    long = [dataclasses.replace(f.device, label="x" * 5000 + f.device.id) for f in run.findings[:2]]
    findings = [dataclasses.replace(f, device=d) for f, d in zip(run.findings, long, strict=False)]
    read = samples(run.but(findings=tuple(findings)).data())
    labels = {dict(ls)["label"] for n, ls in read if n == "nodeproof_measurement_value"}
    assert len(labels) == 2
    assert all(len(label) <= 200 for label in labels)
