"""Whatever is made of a text, its reader comes to an outcome, in time, and to no pass without proof.

`FUZZ_INPUTS` sets how many changed texts of each kind the long test reads. A thousand take between
0.1 s (`fi_info`) and 0.6 s (`dcgm_json`) of one core, so that the usual number takes a minute at most.
"""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import contextmanager

import pytest
from parser_changes import changed
from parser_texts import KINDS

from nodeproof.parsers.reading import Grade, reader

INPUTS = int(os.environ.get("FUZZ_INPUTS", "100000"))
MOST_CPU_S = 5.0  # of one text, a few kilobytes long: a thousand times what it takes


@contextmanager
def no_text_that_hangs():
    """Yield a function to call before each text; what computes on and on raises `TimeoutError`."""

    def over(signum, frame):
        raise TimeoutError(f"a text took more than {MOST_CPU_S} seconds of the processor's time")

    before = signal.signal(signal.SIGVTALRM, over)
    try:
        yield lambda: signal.setitimer(signal.ITIMER_VIRTUAL, MOST_CPU_S)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


# --- what a pass rests on ---------------------------------------------------------------------


def dcgm_proof(fields):
    return (
        fields["tests"]
        and {t["status"] for t in fields["tests"]} == {"pass"}
        and not fields["failed"]
        and not fields["warnings"]
    )


def log_proof(fields):
    return not [e for e in fields["events"] if e["severity"] in ("fatal", "warning")]


def table_proof(fields):
    return fields["complete"] and fields["wrong"] == 0 and fields["validated"]


PROOFS = {
    "dcgm_json": lambda f: dcgm_proof(f) and f["facts"]["complete"],
    "dcgm_text": lambda f: dcgm_proof(f) or f["facts"]["links"],
    "dcgm_health_text": lambda f: (
        not f["facts"]["systems_failed"] and set(f["facts"]["gpus"].values()) <= {"healthy"}
    ),
    "fi_info": lambda f: f["facts"]["entries"] or f["facts"]["errno"],
    "journal_json": lambda f: log_proof(f) and f["facts"]["unreadable_records"] == 0,
    "fabricmanager_log": log_proof,
    "nccl_tests_text": table_proof,
    "nccl_log": lambda f: f["complete"] is None or table_proof(f),
}
# What an eye sees that knows nothing of layouts: with one of these in a text, it is no pass.
SEEN = {
    "dcgm_json": rb'(?i)"status"\s*:\s*"(?:fail|warn|skip|not run)"\s*[,}]',
    "dcgm_text": (
        rb"(?im)^[ \t]*\|(?! *(?:Info|Warning|Error)\b)(?=[^|\n\r]*[A-Za-z])[^|\n\r]*+\| *(?:Fail|Warn|Skip)"
        rb"(?: - All)? *\|? *\r?$"
    ),
    "dcgm_health_text": (
        rb"(?im)^[ \t]*\|(?=[^|\n\r]*[A-Za-z0-9])[^|\n\r]*+\| *(?:Failure|Warning) *\|? *\r?$"
    ),
    "fabricmanager_log": rb"(?m)^\[Jan 14 2026 03:12:45\] \[ERROR\] \[tid \d+\] detected .*error \d",
    "nccl_tests_text": rb"(?m)^# Out of bounds values : (?:[1-9]\d* (?:OK|FAILED)|0 FAILED)\b",
    "nccl_log": rb"(?m)^gpu-node.* NCCL WARN (?:Got async event : port error|Cuda failure 'uncorr)",
}


def shows_a_lost_gpu(data):
    """Whether a line is a record of the kernel whose message is an Xid 79, and no more."""
    for line in data.split(b"\n"):
        if b"Xid" not in line:
            continue
        try:
            record = json.loads(line.strip(b" \t\r"))
        except ValueError:
            continue
        if not isinstance(record, dict) or record.get("_TRANSPORT") != "kernel":
            continue
        said = record.get("MESSAGE")
        own = record.get("SYSLOG_FACILITY", "0") == "0"
        if own and isinstance(said, str) and said.startswith("NVRM: Xid (PCI:0000:3b:00): 79,"):
            return True
    return False


def seen(kind, data):
    if kind == "journal_json":
        return shows_a_lost_gpu(data)
    return kind in SEEN and re.search(SEEN[kind], data) is not None


def read_through(kind, data, context):
    """Read, print as `nodeproof parse` does, and look for the proof of a pass."""
    got = reader(kind)(data, context)
    assert got.why
    json.dumps(dict(got.fields), allow_nan=False, ensure_ascii=False).encode()
    if got.grade is Grade.PASS:
        assert PROOFS[kind](got.fields), dict(got.fields)
        assert not seen(kind, data)
        if kind == "fi_info" and (wanted := context.get("efa_nics_expected")):
            assert len(got.fields["facts"]["efa_devices"]) == wanted
    return got.grade


def read_all(kind, numbers):
    with no_text_that_hangs() as starts:
        for number in numbers:
            data, context = changed(kind, number)
            starts()
            try:
                read_through(kind, data, context)
            except BaseException as error:  # whatever it was, the text goes with it
                error.add_note(f"changed({kind!r}, {number}) is {data[:2000]!r} with {context}")
                raise


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_text_comes_to_an_outcome_and_to_no_pass_without_proof(kind):
    read_all(kind, range(1000))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_so_do_very_many_changed_texts(kind):
    read_all(kind, range(1000, 1000 + INPUTS))
