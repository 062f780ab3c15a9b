"""A failing text of which less is left, or to which a healthy one is added, does not turn into a pass.

Where it may: a log that ends before its fault is the log of a healthy hour, and so is the output of
one test that ended well before another began. What holds is claimed here for each kind.
"""

from __future__ import annotations

import re

import pytest
from parser_texts import KINDS, texts

from nodeproof.parsers.reading import Grade, reader

# Tables and documents, which say themselves where they end.
CLOSED = ("dcgm_json", "dcgm_text", "dcgm_health_text", "nccl_tests_text")
# Those whose end says that all is there. A health report has the outcome in its first line.
ENDED = ("dcgm_json", "dcgm_text", "nccl_tests_text")
# What a line says that tells of a fault, or of what belongs to it; a message may be bytes.
TELLS = re.compile(
    rb"(?i)fail|error|fatal|xid|warn|abort|skip|link|[1-9]\d* (?:ok|failed)|-5\b|\[78, 86"
)
EFA = {"efa_expected": True, "efa_nics_expected": 2}


def grade(kind, data, context=None):
    return reader(kind)(data, context or {}).grade


def failing(kind):
    found = [text for text in texts(kind) if grade(kind, text) is Grade.FAIL]
    assert found or kind == "fi_info"
    return found


def footers(text):
    return text.count(b"Avg bus bandwidth")


@pytest.mark.parametrize("kind", CLOSED)
def test_cut_anywhere_a_failing_table_or_document_is_no_pass(kind):
    for text in failing(kind):
        if footers(text) > 1:
            continue
        for end in range(len(text)):
            assert grade(kind, text[:end]) is not Grade.PASS, text[:end]


@pytest.mark.parametrize("kind", ENDED)
def test_cut_before_its_last_line_a_sound_one_is_no_pass_either(kind):
    for text in texts(kind):
        if grade(kind, text) is not Grade.PASS or footers(text) > 1:
            continue
        last = len(text.rstrip())
        if kind == "dcgm_text":
            last = text.rstrip().rfind(b"\n") + 1
        elif kind == "nccl_tests_text":  # the average is the last that counts, and may be cut short
            last = text.index(b"Avg bus bandwidth") + len(b"Avg bus bandwidth")
        for end in range(last):
            assert grade(kind, text[:end]) is not Grade.PASS, text[:end]


@pytest.mark.parametrize("kind", KINDS)
def test_what_follows_the_fault_does_not_take_it_back(kind):
    for text in failing(kind):
        failed = False
        for end in [n for n, byte in enumerate(text, 1) if byte == 10] + [len(text)]:
            now = grade(kind, text[:end])
            assert not failed or now is not Grade.PASS, text[:end]
            failed |= now is Grade.FAIL
        assert failed


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_line_that_tells_of_no_fault_it_is_no_pass(kind):
    for text in failing(kind):
        lines = text.splitlines(keepends=True)
        for n, line in enumerate(lines):
            if not TELLS.search(line):
                less = b"".join(lines[:n] + lines[n + 1 :])
                assert grade(kind, less) is not Grade.PASS, (line, less)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "fi_info"])
def test_beside_a_healthy_text_it_is_no_pass(kind):
    for bad in failing(kind):
        for good in texts(kind):
            if grade(kind, good) is Grade.PASS:
                for both in (bad + b"\n" + good, good + b"\n" + bad):
                    assert grade(kind, both) is not Grade.PASS, both


def test_of_less_text_there_are_no_other_devices():
    for text in texts("fi_info"):
        whole = set(reader("fi_info")(text, EFA).fields["facts"]["efa_devices"])
        for end in range(len(text)):
            got = reader("fi_info")(text[:end], EFA)
            assert set(got.fields["facts"]["efa_devices"]) <= whole, text[:end]
            assert len(whole) == 2 or got.grade is not Grade.PASS


# What stands in a sound text for "all is well", and what may stand there instead.
WORDS = {
    "dcgm_json": (rb'(?<="status": ")Pass', b"Fail Warn Skip Error Pas".split()),
    "dcgm_text": (rb"\bPass\b", [b"Fail", b"Warn", b"Skip", b"Not Run", b"Error", b"Pas"]),
    "dcgm_health_text": (rb"\bHealthy\b", b"Failure Warning Healthful".split()),
    "journal_json": (rb'usb 1-1: new[^"]+"(?!, "_PID)', [b'NVRM: Xid (PCI:0000:3b:00): 79, x"']),
    "fabricmanager_log": (rb"\[INFO\](?= \[tid)", [b"[ERROR]", b"[CRITICAL]"]),
    "nccl_tests_text": (rb"(?m)(?<=  )0$|\b0(?= OK)", b"1 nan 4e+00".split()),
    "nccl_log": (rb"NCCL INFO (?=Connected|Using|Channel)", [b"NCCL WARN "]),
}


@pytest.mark.parametrize("kind", WORDS)
def test_one_word_that_says_otherwise_is_no_pass(kind):
    pattern, others = WORDS[kind]
    tried = 0
    for text in texts(kind):
        if grade(kind, text) is not Grade.PASS:
            continue
        for found in re.finditer(pattern, text):
            for other in others:
                tried += 1
                changed = text[: found.start()] + other + text[found.end() :]
                assert grade(kind, changed) is not Grade.PASS, changed
    assert tried
