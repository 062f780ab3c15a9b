"""What a site may tell the gate, and what it is refused."""

from __future__ import annotations

import pytest
from gate_cluster import IMAGE

from nodeproof.gate.settings import LEAST_S, Draining, Served, SettingsError, parse
from nodeproof.model import Profile
from nodeproof.plugin.options import DEADLINE_S


def settings(more=""):
    return parse(f'image = "{IMAGE}"\n{more}')


def test_an_image_by_digest_is_all_that_a_site_has_to_say():
    made = settings()
    assert (made.image, made.profile, made.served) == (IMAGE, Profile.GATE, Served.GRANDFATHER)
    assert not made.quarantine_undecided


def test_what_is_said_is_taken():
    made = settings(
        'served = "requalify"\ndraining = "evict"\nattempts = 5\nbackoff_s = 30\n'
        '[names]\ndomain = "gate.example.com"\n[expected]\n"p5.48xlarge" = 8\n'
    )
    assert (made.served, made.draining) == (Served.REQUALIFY, Draining.EVICT)
    assert (made.attempts, made.backoff_s, made.expected) == (5, 30.0, {"p5.48xlarge": 8})
    assert made.names.pending == "gate.example.com/pending"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("attempts = 0", "attempts"),
        ("attempts = -1", "attempts"),
        ("attempts = true", "attempts"),
        ("attempts = 1.5", "attempts"),
        ('attempts = "3"', "attempts"),
        ("backoff_s = -1", "backoff_s"),
        ("backoff_s = nan", "backoff_s"),
        ("backoff_s = inf", "backoff_s"),
        ("backoff_s = true", "backoff_s"),
        ("quarantine_undecided = 1", "quarantine_undecided"),
        ('quarantine_undecided = "no"', "quarantine_undecided"),
        ('served = "never"', "grandfather"),
        ("served = []", "grandfather"),
        ('profile = "quick"', "quick"),
        ('profile = "none"', "profile"),
        ('expected = { p5 = "8" }', "expected"),
        ("expected = { p5 = 0 }", "expected"),
        ("expected = { p5 = true }", "expected"),
        ("expected = 8", "expected"),
        ("selector = { a = 1 }", "selector"),
        ("names = 7", "names"),
        ('names = { domain = "" }', "names"),
        ('names = { other = "x" }', "other"),
        ("colour = 1", "colour"),
        ("run_deadline_s = 0", "run_deadline_s = 0: profile gate takes up to 480 s"),
        ('profile = "soak"\nrun_deadline_s = 480', "profile soak takes up to 18000 s"),
        ("heartbeat_s = 0", "heartbeat_s"),
        ('image_ids = ["latest"]', "image_ids: 'latest' is no digest"),
        ('image_ids = "sha256:x"', "image_ids"),
        ("image_ids = [7]", "image_ids"),
        ("[[", "Invalid"),
    ],
)
def test_what_is_unknown_of_another_type_or_unsafe_is_refused_and_named(text, words):
    with pytest.raises(SettingsError, match=words):
        settings(text)


@pytest.mark.parametrize(
    "image",
    [
        "",
        "registry.example.com/x:1",
        "registry.example.com/x@sha256:1234",
        f"{IMAGE}0",
        "x@md5:" + "0" * 64,
    ],
)
def test_an_image_that_is_not_named_by_its_digest_is_refused(image):
    with pytest.raises(SettingsError, match="digest"):
        parse(f'image = "{image}"')


def test_no_image_is_refused():
    with pytest.raises(SettingsError, match="image"):
        parse("attempts = 3")


def test_a_deadline_that_is_not_said_is_what_the_profile_takes():
    assert LEAST_S == DEADLINE_S
    assert settings('profile = "deep"').run_deadline_s == 4500.0
    assert settings('profile = "deep"\nrun_deadline_s = 9000').run_deadline_s == 9000.0


def test_other_digests_of_the_image_are_taken():
    other = "sha256:" + "ab" * 32
    assert list(settings(f'image_ids = ["{other}"]').image_ids) == [other]
