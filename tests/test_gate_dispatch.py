"""How results leave a pod whole, or not at all."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from results_samples import MANIFEST, SAMPLES

from nodeproof.gate.dispatch import LIMIT, digest, message, packed, read, thinned, unpacked
from nodeproof.results import parse
from nodeproof.verdict import decide


@settings(max_examples=50, deadline=None)
@given(
    results=st.binary(max_size=20_000), before=st.text(max_size=200), after=st.text(max_size=200)
)
def test_what_is_packed_comes_out_whatever_stands_around_it(results, before, after):
    log = "\n".join([before, *packed(results), after])
    assert unpacked(log, digest(results)) == results
    assert unpacked(log, digest(results + b"x")) is None


def test_lines_are_shorter_than_those_that_runtimes_split():
    noise = bytes(n * n * 2654435761 >> 13 & 255 for n in range(200_000))
    lines = list(packed(noise))
    assert len(lines) > 50
    assert max(map(len, lines)) <= 4000
    assert unpacked("\r\n".join(lines), digest(noise)) == noise, "some runtimes end lines so"


def test_of_two_results_in_a_log_the_one_that_is_named_comes_out():
    log = "\n".join([*packed(b"one"), "between", *packed(b"two")])
    assert unpacked(log, digest(b"two")) == b"two"


def test_results_of_more_lines_than_any_run_has_are_not_unpacked():
    short = b"1\n" * 600_000  # four kilobytes in a log, and a minute to judge
    assert unpacked("\n".join(packed(short)), digest(short)) is None


@pytest.mark.parametrize("sample", sorted(SAMPLES))
def test_every_verdict_has_a_message_that_fits_and_is_read_again(sample):
    data = SAMPLES[sample]()
    verdict = decide(parse(data), MANIFEST)
    text = message(verdict.document(), data)
    assert len(text.encode()) <= LIMIT
    said = read(text)
    assert said is not None
    assert (said["verdict"], said["results"]) == (verdict.decision, digest(data))


@pytest.mark.parametrize("key", ["verdict", "nonce", "node_uid", "boot_id", "results", "rehearsal"])
@pytest.mark.parametrize("value", [None, 7, [], {}, "absent"])
def test_a_message_without_what_binds_is_none(key, value):
    data = SAMPLES["accept"]()
    said = json.loads(message(decide(parse(data), MANIFEST).document(), data))
    if value == "absent":
        del said[key]
    else:
        said[key] = value
    assert read(json.dumps(said)) is None


def sampled(samples):
    """Results of a run that left this many samples of each of three devices."""
    lines = SAMPLES["accept"]().splitlines()
    rows = [
        {"type": "telemetry", "seq": 0, "device": f"GPU-{d}", "power_w": n, "note": "x" * 300}
        for n in range(samples)
        for d in range(3)
    ]
    texts = [json.dumps(r, separators=(",", ":")).encode() for r in rows]
    whole = [lines[0], *texts, *lines[1:]]
    return b"".join(
        re.sub(rb'"seq":\d+', b'"seq":%d' % n, line, count=1) + b"\n"
        for n, line in enumerate(whole)
    )


def test_results_that_are_too_large_are_sent_with_fewer_samples_and_decide_the_same():
    data = sampled(30_000)
    assert len(data) > 24 << 20
    sent = thinned(data)
    assert unpacked("\n".join(packed(sent)), digest(sent)) == sent
    before, after = parse(data), parse(sent)
    assert before.problems == after.problems == ()
    assert decide(after, MANIFEST).document() == decide(before, MANIFEST).document()
    left = Counter(row["device"] for row in after.telemetry if "note" in row)
    assert len(left) == 3
    assert len(set(left.values())) == 1
    assert 5_000 < left["GPU-0"] < 15_000


def test_results_that_fit_are_sent_as_they_are():
    data = sampled(10)
    assert thinned(data) is data


@pytest.mark.parametrize("fault", ["a line is gone", "cut", "no JSON"])
def test_thinning_heals_no_file(fault):
    data = sampled(30_000)
    if fault == "a line is gone":
        lines = data.splitlines(keepends=True)
        data = b"".join([*lines[:500], *lines[501:]])
    elif fault == "cut":
        data = data[:-1]
    else:
        data = data.replace(b'{"type":"telemetry","seq":7,', b"{7,")
    assert thinned(data) == data


FLOODS = {
    "empty values": lambda: b'{"type":"telemetry","seq":0,"a":[' + b",".join([b"[]"] * 400_000),
    "nested": lambda: b"".join(b'{"a":{"a":{}}}\n' for _ in range(90_000)) * 8,
    "one long line": lambda: b"x" * (3 << 20),
    "too large": lambda: (b"x" * 1000 + b"\n") * (17 << 10),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_results_that_would_cost_too_much_to_read_are_not_unpacked(flood):
    body = FLOODS[flood]()
    data = body * 6 if flood == "empty values" else body
    assert unpacked("\n".join(packed(data)), digest(data)) is None
