from __future__ import annotations

import dataclasses
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from lxml import etree

from nodeproof.model import Outcome
from nodeproof.reports import junit
from tests.results_samples import (
    HOSTILE,
    SAMPLES,
    accept,
    device,
    judged,
    reject,
    undecided,
    waived,
)

SCHEMA = etree.XMLSchema(etree.parse(Path(__file__).with_name("junit.xsd")))


def report(data: bytes) -> ET.Element:
    return ET.fromstring(junit.render(*judged(data)))  # noqa: S314  written by us just now


def outcomes(data: bytes) -> dict[tuple[str, str], str]:
    """What a consumer that keys by classname and name shows."""
    shown = {}
    for case in report(data).iter("testcase"):
        tags = [child.tag for child in case if child.tag != "system-out"]
        shown[case.attrib["classname"], case.attrib["name"]] = tags[0] if tags else "pass"
    return shown


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_strict_schema_takes_the_report_of_any_results_file(sample):
    written = junit.render(*judged(SAMPLES[sample]())).encode()
    strict = etree.XMLParser(resolve_entities=False, huge_tree=False)
    SCHEMA.assertValid(etree.fromstring(written, strict))


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_counts_add_up(sample):
    root = report(SAMPLES[sample]())
    total = dict.fromkeys(("tests", "failures", "errors"), 0)
    for suite in root:
        cases = list(suite.iter("testcase"))
        counted = {
            "tests": len(cases),
            "failures": sum(c.find("failure") is not None for c in cases),
            "errors": sum(c.find("error") is not None for c in cases),
            "skipped": sum(c.find("skipped") is not None for c in cases),
        }
        assert {k: int(suite.attrib[k]) for k in counted} == counted
        spent = sum(round(float(c.attrib["time"]) * 1000) for c in cases)
        assert float(suite.attrib["time"]) * 1000 == pytest.approx(spent, abs=len(cases))
        total = {k: v + counted[k] for k, v in total.items()}
    assert {k: int(root.attrib[k]) for k in total} == total


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_run_is_all_green_if_and_only_if_it_is_an_accept(sample):
    data = SAMPLES[sample]()
    _, verdict = judged(data)
    red = {"failure", "error"} & set(outcomes(data).values())
    assert bool(red) == (verdict.decision.value != "accept")


@pytest.mark.parametrize(
    ("sample", "tag"), [("accept", None), ("reject", "failure"), ("undecided", "error")]
)
def test_the_verdict_is_a_case_with_every_reason_in_it(sample, tag):
    data = SAMPLES[sample]()
    _, verdict = judged(data)
    case = next(report(data).iter("testcase"))
    assert case.attrib["name"] == "nodeproof.verdict[node]"
    told = [child for child in case if child.tag != "system-out"]
    assert [child.tag for child in told] == ([tag] if tag else [])
    for reason in (*verdict.failed, *verdict.undecided):
        assert str(reason) in (told[0].text or "")
    assert json.loads(case.findtext("system-out", ""))["verdict"] == verdict.decision.value


def test_a_finding_is_one_case_named_by_check_and_device():
    shown = outcomes(reject().data())
    assert shown["nodeproof.device.memory", "device.memory.pattern[gpu0]"] == "pass"
    assert shown["nodeproof.device.memory", "device.memory.pattern[gpu1]"] == "failure"
    assert shown["nodeproof.selftest.device.memory", "device.memory.pattern[gpu1]"] == "pass"


def test_error_missing_and_skip_each_have_their_case():
    shown = outcomes(undecided().data())
    assert shown["nodeproof.device.burnin", "device.burnin.throughput[gpu0]"] == "error"
    assert shown["nodeproof.device.memory", "device.memory.pattern[gpu1]"] == "error"
    assert shown["nodeproof.host.time", "host.time.sync[node-a17]"] == "skipped"
    assert shown["nodeproof.selftest.device.memory", "device.memory.pattern[gpu0]"] == "error"
    withheld = ("nodeproof.selftest.nodeproof.verdict", "nodeproof.verdict.withheld[node-a17]")
    assert shown[withheld] == "error"


def test_a_planned_check_without_a_finding_says_so():
    run = accept()
    root = report(run.but(findings=run.findings[1:]).data())
    case = root.find(".//testcase[@name='device.memory.pattern[gpu0]']")
    assert case is not None
    error = case.find("error")
    assert error is not None
    assert error.attrib["message"] == "planned, but no finding came back"


def test_a_required_check_that_was_not_planned_is_an_error_case():
    run = accept()
    assert run.plan is not None
    shown = outcomes(run.replan(checks=run.plan.checks[1:]).but(findings=run.findings[1:]).data())
    assert shown["nodeproof.device.memory", "device.memory.pattern[gpu0]"] == "error"


def test_a_pass_that_the_verdict_does_not_believe_is_an_error_case():
    shown = outcomes(accept().refind("device.memory.pattern", "gpu0", measurements=()).data())
    assert shown["nodeproof.device.memory", "device.memory.pattern[gpu0]"] == "error"


def test_a_finding_that_comes_twice_is_two_cases_and_neither_passes():
    run = accept()
    shown = outcomes(run.but(findings=(*run.findings, run.findings[0])).data())
    twice = [
        tag
        for (kind, name), tag in shown.items()
        if kind == "nodeproof.device.memory" and "[gpu0" in name
    ]
    assert twice == ["error", "error"]


def test_a_self_test_that_comes_twice_proves_nothing():
    run = accept()
    shown = outcomes(run.but(selftests=(*run.selftests, run.selftests[0])).data())
    of_selftests = [
        t for (kind, _), t in shown.items() if kind == "nodeproof.selftest.device.memory"
    ]
    assert sorted(of_selftests) == ["error", "error", "pass"]


def test_what_is_waived_or_on_trial_is_skipped_with_its_reason():
    root = report(waived().data())
    said = {
        c.attrib["name"]: s.text or "" for c in root.iter("testcase") for s in c.iter("skipped")
    }
    assert said["device.memory.pattern[gpu1]"].startswith(
        "fail, waived until 2026-12-31 (known, on order): wrong 4 words"
    )
    assert said["device.noise.level[gpu0]"].startswith("fail, a trial check does not count")


def test_two_devices_with_one_label_keep_their_own_cases():
    run = accept()
    twins = tuple(
        dataclasses.replace(f, device=dataclasses.replace(f.device, label="gpu"))
        for f in run.findings
    )
    names = [c.attrib["name"] for c in report(run.but(findings=twins).data()).iter("testcase")]
    assert "device.memory.pattern[gpu]" in names
    assert f"device.memory.pattern[gpu {device(1).id}]" in names


def test_measurements_attempts_and_evidence_are_printed_by_the_case():
    case = report(reject().data()).find(".//testcase[@name='device.memory.pattern[gpu1]']")
    assert case is not None
    printed = case.findtext("system-out", "")
    assert "wrong 4 words (wants at most 0): first at byte 0x7f3a00, bit 17" in printed
    assert '"at": "0x7f3a00"' in printed
    assert "remedy: replace" in printed
    case = report(undecided().data()).find(".//testcase[@name='device.burnin.throughput[gpu0]']")
    assert case is not None
    assert "attempt: error, environment: the same" in case.findtext("system-out", "")


def test_each_suite_says_which_node_boot_devices_and_code_it_is_about():
    run = reject()
    assert run.plan is not None
    for suite in report(run.data()):
        told = {p.attrib["name"]: p.attrib["value"] for p in suite.iter("property")}
        assert told["nodeproof.run_id"] == run.plan.run_id
        assert told["nodeproof.node.boot_id"] == run.plan.node["boot_id"]
        assert told["nodeproof.suite_digest"] == run.plan.suite_digest
        assert told["nodeproof.spec.name"] == "h100-sxm"
        assert told["nodeproof.rehearsal"] == "false"
        assert told["nodeproof.node.software.torch"] == "2.8.0"
        assert device(1).id in told["nodeproof.device.1"]


def test_a_time_too_small_or_too_large_is_still_a_plain_decimal():
    run = accept()
    run = run.refind("device.memory.pattern", "gpu0", duration_s=1e-7)
    run = run.refind("device.memory.pattern", "gpu1", duration_s=123456.789)
    times = {c.attrib["time"] for c in report(run.data()).iter("testcase")}
    assert {"0.000", "123456.789"} <= times


def test_characters_that_xml_refuses_stay_visible():
    run = accept().refind("device.memory.pattern", "gpu0", outcome=Outcome.ERROR, summary=HOSTILE)
    written = junit.render(*judged(run.data()))
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", written)
    assert not re.search(r"&#(x0*1b|0*27|0+|x0+);", written, re.IGNORECASE)
    assert r"\x1b[31mred" in written
    assert r"\x00" in written
    assert r"\ud800" in written


def test_a_megabyte_of_summary_is_cut_and_the_cut_is_told():
    run = accept().refind(
        "device.memory.pattern", "gpu0", outcome=Outcome.ERROR, summary="long " * 200_000
    )
    written = junit.render(*judged(run.data()))
    assert len(written) < 400_000
    assert "more characters in the results file" in written
