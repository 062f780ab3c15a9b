from __future__ import annotations

import dataclasses
import itertools
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from nodeproof.model import Outcome
from nodeproof.reports import html
from tests.results_samples import (
    HOSTILE,
    MANIFEST_TEXT,
    SAMPLES,
    accept,
    device,
    judged,
    rehearsal,
    reject,
    undecided,
    waived,
)

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Tags, attributes and text of a page; fails for tags that do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        """All that a reader sees, in one line."""
        return " ".join(" ".join(self.words).split())


def page(data: bytes) -> Page:
    return Page(html.render(*judged(data)))


@pytest.mark.parametrize("sample", SAMPLES)
def test_any_results_file_makes_a_whole_page_that_says_the_verdict_first(sample):
    results, verdict = judged(SAMPLES[sample]())
    read = Page(html.render(results, verdict))
    (said,) = [read.text.find(f" {verdict.decision.value} ")]
    assert 0 <= said < read.text.index("Checks and devices")
    ids = [attrs["id"] for _, attrs in read.tags if "id" in attrs]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_page_fetches_nothing_and_runs_nothing(sample):
    written = html.render(*judged(SAMPLES[sample]()))
    read = Page(written)
    assert {"script", "link", "img", "iframe", "object", "base", "form"} & {
        tag for tag, _ in read.tags
    } == set()
    for tag, attrs in read.tags:
        for name, value in attrs.items():
            assert not name.startswith("on"), tag
            assert name not in {"src", "srcset", "action", "data"}, tag
            if name.endswith("href"):
                assert str(value).startswith("#")
    assert "@import" not in written
    assert re.findall(r"url\((?!#)", written) == []
    (policy,) = [a["content"] for t, a in read.tags if t == "meta" and "http-equiv" in a]
    assert str(policy).startswith("default-src 'none'")


def test_the_first_box_says_which_device_why_and_what_to_do():
    text = page(reject().data()).text
    box = text[text.index("What to do now") : text.index("Checks and devices")]
    assert device(1).id in box
    assert "pci 0000:19:00.0" in box
    assert "serial 1650123000001" in box
    assert "device.memory.pattern: wrong 4 words (wants at most 0)" in box
    assert "have the named part replaced" in box


def test_an_undecided_run_tells_what_was_not_measured_and_condemns_nothing():
    text = page(undecided().data()).text
    box = text[text.index("What to do now") : text.index("Checks and devices")]
    assert "the kernel ran out of memory" in box
    assert "condemns no hardware" in box


def test_an_accept_asks_for_nothing():
    text = page(accept().data()).text
    assert "What to do now" not in text
    assert "The node is fit for work." in text


def test_a_rehearsal_never_claims_that_the_node_is_fit():
    text = page(rehearsal().data()).text
    assert text.index("REHEARSAL") < text.index("✓ accept")
    assert text.startswith("accept (rehearsal): node-a17")
    assert "fit for work" not in text
    assert "REHEARSAL" not in page(accept().data()).text


def test_the_matrix_has_a_word_for_every_check_on_every_device():
    read = page(undecided().data())
    text = read.text
    matrix = text[text.index("As the verdict counts them") : text.index("What speaks against")]
    assert "device.memory.pattern ✓ pass ? missing not planned" in matrix
    assert "device.burnin.throughput ! error ✓ pass" in matrix
    assert "host.time.sync not planned not planned - skip" in matrix


def test_what_failed_is_told_in_full():
    text = page(reject().data()).text
    full = text[text.index("Everything that is no pass") : text.index("Measurements against")]
    assert "first at byte 0x7f3a00, bit 17" in full
    assert '"at": "0x7f3a00"' in full
    assert "spoils every result" in full
    assert "broken: p5 0.4 of median (wants at least 0.9)" in full


def test_a_measurement_stands_beside_its_limit_and_margin():
    text = page(reject().data()).text
    measured = text[text.index("Measurements against") : text.index("Self-tests: each")]
    assert "gpu1 p5 0.4 of median at least 0.9 -0.5 (-55.6%) broken" in measured
    assert "gpu0 score 0.9731 of median at least 0.9 +0.0731 (+8.1%) held" in measured
    assert "gpu0 median 612.5 TFLOP/s no limit" in measured


def test_a_self_test_that_did_not_come_back_has_its_row():
    text = page(undecided().data()).text
    tests = text[text.index("Self-tests: each") : text.index("Telemetry")]
    assert "nodeproof.verdict.withheld node-a17 ? missing" in tests
    assert "device.memory.pattern gpu0 ! error" in tests


def test_waivers_are_listed_and_those_without_effect_too():
    text = page(waived().data()).text
    assert f"Applied: device.memory.pattern on {device(1).id} until 2026-12-31" in text
    assert "fail, waived until 2026-12-31 (known, on order)" in text
    assert "Not applied: host.time.sync on node-a17 until 2026-02-01: long over" in text


def test_foreign_text_is_shown_and_does_nothing():
    run = accept().refind("device.memory.pattern", "gpu0", outcome=Outcome.ERROR, summary=HOSTILE)
    written = html.render(*judged(run.data()))
    assert "<script" not in written
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202e]", written)
    text = Page(written).text
    assert "</script><script>alert(1)</script>" in text
    assert r"\x1b[31mred\x1b[0m \x00" in text
    assert "{{ 7*7 }} {% raw %}" in text


def test_every_table_names_its_rows_and_columns_and_every_plot_says_what_it_is():
    read = page(reject().data())
    scopes = [attrs.get("scope") for tag, attrs in read.tags if tag == "th"]
    assert set(scopes) == {"row", "col"}
    assert ("html", {"lang": "en"}) in read.tags
    figures = [attrs for tag, attrs in read.tags if tag == "figure"]
    assert [str(f["aria-label"]) for f in figures] == [f"{device(n)} over time" for n in range(2)]


def test_each_device_has_a_plot_of_what_was_sampled():
    read = page(accept(samples=40).data())
    assert sum(tag == "svg" for tag, _ in read.tags) == 2
    telemetry = read.text[read.text.index("Telemetry") :]
    assert "throttled in 5 , bits seen 0x4" in telemetry
    assert "SM clock, MHz 1680 1980 1980 40" in telemetry
    assert "temperature, °C 57 62 65 39" in telemetry


def test_a_page_of_hours_on_sixteen_devices_stays_small():
    run = accept(devices=16, samples=0)
    some = list(itertools.islice(accept(devices=1, samples=7200).telemetry, 7200))
    many = [{**s, "device": device(n).id} for n in range(16) for s in some]
    results, verdict = judged(run.data())
    written = html.render(dataclasses.replace(results, telemetry=tuple(many)), verdict)
    assert written.count("<svg ") == 16
    assert len(written.encode()) < 2_000_000


def test_without_matplotlib_the_page_has_the_numbers_and_a_sentence():
    """In a process of its own, where matplotlib can't be imported, nor pytest and torch."""
    script = f"""
import sys
for name in ("matplotlib", "numpy", "torch", "pytest"):
    sys.modules[name] = None
from pathlib import Path
from nodeproof import manifest, results, verdict
from nodeproof.reports import html, json, junit, prometheus
found = results.parse({accept(samples=5).data()!r})
told = verdict.decide(found, manifest.parse({MANIFEST_TEXT!r}))
for report in (json, junit, prometheus):
    assert report.render(found, told)
page = html.render(found, told)
assert "<svg" not in page
assert "No plots: matplotlib" in page, page
assert "SM clock, MHz" in page
print(told.decision.value)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("accept\n", "")
