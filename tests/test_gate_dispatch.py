"""How results leave a pod whole, or not at all."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from results_samples import MANIFEST, SAMPLES

from nodeproof.gate.dispatch import LIMIT, digest, message, packed, read, unpacked
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
