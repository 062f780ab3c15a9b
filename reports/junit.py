"""The run as JUnit XML, for whatever shows test results.

Consumers differ in what they refuse, so this keeps to what all of them take: one root, flat
suites, no properties inside a case, one outcome a case, a classname, a name and a type everywhere,
no pair of classname and name twice, times with three decimals, counts that add up. A run that is
no accept has a case that is no pass, whatever its findings look like.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from typing import Any

from junit_xml import TestCase, TestSuite

from nodeproof.model import Finding
from nodeproof.reports.ledger import Proof, Row, Standing, proofs, rows
from nodeproof.reports.legible import document, facts, headline, legible, moment, name
from nodeproof.results import Results
from nodeproof.verdict import Decision, Verdict

_OUTPUT = 60_000  # characters of what one case prints
_SUITE = ("name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname")


def render(results: Results, verdict: Verdict) -> str:
    """Return an XML 1.0 document, to be written as UTF-8."""
    taken: set[tuple[str, str]] = set()
    findings = [_verdict_case(verdict, taken)]
    findings += [_finding_case(row, taken) for row in rows(results, verdict)]
    selftests = [_proof_case(proof, taken) for proof in proofs(results, verdict)]
    root = ET.Element("testsuites", {"name": "nodeproof"})
    root.append(_suite("nodeproof", findings, results, verdict))
    root.append(_suite("nodeproof.selftest", selftests, results, verdict))
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(suite.attrib[count]) for suite in root)))
    root.set("time", f"{sum(float(suite.attrib['time']) for suite in root):.3f}")
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _suite(title: str, cases: Sequence[TestCase], results: Results, verdict: Verdict) -> ET.Element:
    plan = results.plan
    began = moment(plan.started) if plan else None
    element: ET.Element = TestSuite(
        title,
        cases,
        hostname=name(plan.node.get("name") or "") if plan else None,
        timestamp=began.replace(tzinfo=None).isoformat(timespec="seconds") if began else None,
        properties=_identity(results, verdict),
    ).build_xml_doc()
    # The package knows attributes that strict schemas do not, and writes times as floats.
    for attribute in set(element.attrib) - set(_SUITE):
        del element.attrib[attribute]
    element.set("time", f"{sum(case.elapsed_sec for case in cases):.3f}")
    for case, source in zip(element.iter("testcase"), cases, strict=True):
        case.set("time", f"{source.elapsed_sec:.3f}")
    return element


def _identity(results: Results, verdict: Verdict) -> dict[str, str]:
    plan = results.plan
    properties: dict[str, object] = {
        "nodeproof.verdict": verdict.decision.value,
        "nodeproof.rehearsal": str(verdict.rehearsal).lower(),
        "nodeproof.remedy": verdict.remedy.value,
    }
    if plan is not None:
        properties |= {
            "nodeproof.run_id": plan.run_id,
            "nodeproof.profile": plan.profile.value,
            "nodeproof.version": plan.version,
            "nodeproof.suite_digest": plan.suite_digest,
            "nodeproof.manifest_digest": plan.manifest_digest,
            "nodeproof.started": plan.started,
            "nodeproof.ended": verdict.ended,
        }
        properties |= {f"nodeproof.spec.{k}": v for k, v in facts(plan.spec).items()}
        properties |= {f"nodeproof.node.{k}": v for k, v in facts(plan.node).items()}
        properties |= {
            f"nodeproof.device.{number}": f"{d.kind} {d.label} {d.id}"
            for number, d in enumerate(plan.devices)
        }
    return {name(key): headline(value) for key, value in properties.items()}


def _verdict_case(verdict: Verdict, taken: set[tuple[str, str]]) -> TestCase:
    case = _case("nodeproof.verdict", "nodeproof.verdict", ("node", ""), taken)
    case.stdout = _document(verdict.document())
    reasons = [*verdict.failed, *verdict.undecided]
    why = (
        f"{verdict.decision.value}: {len(reasons)} reasons, the first: {headline(reasons[0])}"
        if reasons
        else verdict.decision.value
    )
    text = _lines(str(reason) for reason in reasons)
    match verdict.decision:
        case Decision.REJECT:
            case.add_failure_info(why, text, verdict.decision.value)
        case Decision.UNDECIDED:
            case.add_error_info(why, text, verdict.decision.value)
        case Decision.ACCEPT:
            pass
    return case


def _finding_case(row: Row, taken: set[tuple[str, str]]) -> TestCase:
    case = _case(_classname("nodeproof", row.check), row.check, (row.label, row.device), taken)
    if row.finding is not None:
        case.elapsed_sec = max(0.0, float(row.finding.duration_s))
        case.stdout = _told(row.finding)
    cause = row.finding.cause if row.finding else None
    _settle(case, row.standing, row.says, cause.value if cause else row.standing.value)
    return case


def _proof_case(proof: Proof, taken: set[tuple[str, str]]) -> TestCase:
    kind = _classname("nodeproof.selftest", proof.check)
    case = _case(kind, proof.check, (proof.label, proof.device), taken)
    test = proof.selftest
    if test is not None:
        case.stdout = f"planted: {_document(test.planted)}\nreported: {_document(test.reported)}"
    _settle(case, proof.standing, proof.says, "selftest")
    return case


def _settle(case: TestCase, standing: Standing, says: str, kind: str) -> None:
    message = headline(says) or f"{standing.value}, without a word"
    text = legible(says) or message
    match standing:
        case Standing.PASS:
            pass
        case Standing.FAIL:
            case.add_failure_info(message, text, kind)
        case Standing.ERROR | Standing.MISSING | Standing.UNPROVED:
            case.add_error_info(message, text, kind)
        case Standing.SKIP | Standing.UNCOUNTED:
            case.add_skipped_info(message, text)


def _case(
    classname: str, check: str, device: tuple[str, str], taken: set[tuple[str, str]]
) -> TestCase:
    label, identity = device
    title = name(f"{check}[{label}]")
    if (classname, title) in taken:  # a consumer that keys by name would lose one of the two
        title = name(f"{check}[{label} {identity}]")
    number, wanted = 2, title
    while (classname, title) in taken:
        title, number = f"{wanted} {number}", number + 1
    taken.add((classname, title))
    return TestCase(title, classname, elapsed_sec=0.0)


def _classname(prefix: str, check: str) -> str:
    return name(".".join([prefix, *check.split(".")[:2]]))


def _told(finding: Finding) -> str:
    lines = [f"device: {finding.device}"]
    lines += [f"measured: {measurement}" for measurement in finding.measurements]
    if finding.loaded_s:
        lines.append(f"under load: {finding.loaded_s:.1f} s")
    lines += [f"attempt: {a.outcome.value}, {a.cause.value}: {a.summary}" for a in finding.attempts]
    if finding.evidence:
        lines.append(f"evidence: {_document(finding.evidence)}")
    lines.append(f"remedy: {finding.remedy.value}")
    return _lines(lines)


def _lines(lines: Iterable[str]) -> str:
    return legible("\n".join(legible(line) for line in lines), _OUTPUT)


def _document(value: Any) -> str:
    return legible(document(value), _OUTPUT)
