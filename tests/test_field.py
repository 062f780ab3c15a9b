"""Texts like those that operators meet, each with its right reading (tests/field/expected.json).

The comparison: outcomes are equal, or one of the alternatives that can be defended; every fatal or
warning event is there in order, and no other; tests and facts are equal where the expectation has
them. Then the same again with other names, addresses and times.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from nodeproof_command import nodeproof

from nodeproof.parsers.reading import KINDS, reader

FIELD = Path(__file__).parent / "field"
EXPECTED = json.loads((FIELD / "expected.json").read_text("utf-8"))
KERNEL = {"kernel_log", "journal_json", "fabricmanager_log"}
DCGM = {"dcgm_json", "dcgm_text"}
NCCL = {
    "nccl_tests_text": (
        *("complete", "wrong", "avg_busbw_gbs", "max_size_bytes"),
        *("transport", "validated", "ranks"),
    )
}
NCCL["nccl_log"] = NCCL["nccl_tests_text"]
GRADED = ("fatal", "warning")


def named(expectation):
    return expectation["file"]


def told(kind, data, context):
    """What the reader says, through JSON as `nodeproof parse` prints it."""
    reading = reader(kind)(data, context)
    assert reading.why
    return {
        "outcome": str(reading.grade),
        **json.loads(json.dumps(dict(reading.fields), allow_nan=False)),
    }


def same_event(wanted, got):
    if wanted["source"] != got["source"] or wanted.get("unit") != got.get("unit"):
        return False
    if wanted["code"] != got["code"]:
        return False
    argued = wanted.get("judgement", False)
    harsher = argued and wanted["severity"] == "warning" and got["severity"] == "fatal"
    if wanted["severity"] != got["severity"] and not harsher:
        return False
    nowhere = argued and got["device"] is None
    if wanted["device"] != got["device"] and not nowhere:
        return False
    return argued or wanted.get("count", 1) == got.get("count", 1)


def surplus(wanted, got, tolerated):
    """Events that nobody expects, after the expected ones were found in their order."""
    rest = iter(got)
    left = []
    for event in wanted:
        for candidate in rest:
            if same_event(event, candidate):
                break
            left.append(candidate)
        else:
            pytest.fail(f"{event} is not among {json.dumps(got, indent=1)}")
    left += list(rest)
    return [e for e in left if not any(same_event(t, e) for t in tolerated)]


def agree(expectation, got):
    assert got["outcome"] in {expectation["outcome"], *expectation.get("alternatives", [])}
    kind = expectation["kind"]
    if kind in KERNEL:
        events = [e for e in got["events"] if e["severity"] in GRADED]
        wanted = [e for e in expectation["events"] if e["severity"] in GRADED]
        assert surplus(wanted, events, expectation.get("tolerated", [])) == []
    if kind in DCGM:
        assert got["tests"] == expectation["tests"]
        if "version" in expectation:
            assert got["version"] == expectation["version"]
    for name in NCCL.get(kind, ()):
        if name in expectation:
            assert got[name] == expectation[name], name
    for name, value in expectation.get("facts", {}).items():
        assert got["facts"][name] == value, name


@pytest.mark.parametrize("expectation", EXPECTED, ids=named)
def test_a_text_is_read_as_it_has_to_be(expectation):
    data = (FIELD / expectation["file"]).read_bytes()
    got = told(expectation["kind"], data, expectation.get("context", {}))
    agree(expectation, got)
    assert got["outcome"] == expectation["outcome"]


_ADDRESS = re.compile(r"\b([0-9a-fA-F]{4}(?:[0-9a-fA-F]{4})?):([0-9a-fA-F]{2}):([01][0-9a-fA-F])\b")
_UPTIME = re.compile(r"\[( *)(\d{1,7})\.(\d{6})")


def elsewhere(text, buses):
    """The same text from another machine, another day, and with these buses in other slots."""

    def moved(found):
        if found[2].lower() not in buses:
            return found[0]
        bus = f"{(int(found[2], 16) * 5 + 3) % 256:02x}"
        return f"{found[1]}:{bus.upper() if found[2].isupper() else bus}:{found[3]}"

    def later(found):
        seconds = str(int(found[2]) + 7000)
        width = len(found[1]) + len(found[2])
        return f"[{seconds.rjust(width)}.{found[3]}"

    text = _ADDRESS.sub(moved, text)
    text = re.sub(r"\bgpu-node-(\d+)\b", r"worker\1.rack-b", text)
    return _UPTIME.sub(later, text).replace("2026", "2027")


@pytest.mark.parametrize("expectation", EXPECTED, ids=named)
def test_names_addresses_and_times_decide_nothing(expectation):
    data = (FIELD / expectation["file"]).read_bytes().decode("utf-8", "surrogateescape")
    # What is written as numbers of bytes is not seen here, and stays where it is.
    buses = {found[2].lower() for found in _ADDRESS.finditer(data)}
    other = json.loads(elsewhere(json.dumps(expectation, ensure_ascii=False), buses))
    moved = elsewhere(data, buses).encode("utf-8", "surrogateescape")
    agree(other, told(expectation["kind"], moved, other.get("context", {})))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xff\xfe\x00", b"no such format\n", b"{}", b"[]"])
def test_nothing_to_read_is_no_pass_of_a_tool(kind, data):
    """A log without a word of a fault is a log; a tool that printed nothing has judged nothing."""
    got = told(kind, data, {})
    if kind in {"kernel_log", "fabricmanager_log"} and data not in {b"", b"\n\n"}:
        return
    assert got["outcome"] in {"error", "warn"}


def test_the_command_prints_one_object_and_its_status(tmp_path):
    log = tmp_path / "log"
    log.write_text("[  100.000001] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")
    done = nodeproof("parse", "kernel_log", str(log))
    got = json.loads(done.stdout)
    assert (done.returncode, got["outcome"], got["kind"]) == (10, "fail", "kernel_log")
    assert got["events"][0]["device"] == "0000:3b:00.0"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("kernel_lgo", "-"), "did you mean kernel_log"),
        (("kernel_log", "/nowhere/at/all"), "No such file"),
        (("kernel_log", "-", "--context", "[]"), "no JSON object"),
        (("kernel_log", "-", "--context", "{"), "no JSON object"),
    ],
)
def test_what_can_not_be_read_is_a_usage_error(words, says):
    done = nodeproof("parse", *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
