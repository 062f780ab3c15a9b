from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET

import pytest

from nodeproof.reports.telemetry_plots import POINTS, Trace, downsample, draw, traces


def sampled(values, key="power_w", **more) -> Trace:
    (trace,) = traces([{"device": "gpu", "t": n, key: v, **more} for n, v in enumerate(values)])
    return trace


def test_a_short_line_is_drawn_as_it_was_read():
    points = [(0.0, 1.0), (1.0, 3.0), (2.0, 2.0)]
    assert downsample(points) == points


@pytest.mark.parametrize("length", [POINTS + 1, 3600, 100_001])
@pytest.mark.parametrize("spike", [0, 1, 300, -1])
@pytest.mark.parametrize("height", [99.0, 101.0])
def test_one_sample_out_of_line_is_never_lost(length, spike, height):
    values = [100.0] * length
    values[spike] = height
    kept = downsample([(float(n), v) for n, v in enumerate(values)])
    assert len(kept) <= POINTS
    assert (float(range(length)[spike]), height) in kept
    assert [at for at, _ in kept] == sorted(at for at, _ in kept)


def test_a_stretch_without_readings_is_a_gap_and_not_a_line_across():
    points = [(float(n), None if 2000 <= n < 4000 else 1.0) for n in range(6000)]
    kept = downsample(points)
    assert any(value != value for _, value in kept)  # noqa: PLR0124  only NaN differs from itself
    assert not any(2000 <= at < 4000 for at, _ in kept)


@pytest.mark.parametrize("bad", [None, "640", True, [640], 1e300, 10**400, float("nan")])
def test_what_is_no_sane_number_is_no_reading(bad):
    (line,) = sampled([640.0, bad, 650.0]).lines
    assert line.readings == [640.0, 650.0]
    assert len(line.points) == 3


def test_a_quantity_that_was_never_read_has_no_line():
    assert sampled([None, None]).lines == ()


def test_samples_without_usable_times_are_placed_by_number():
    for times in ([0.0, None, 2.0], [5.0, 4.0, 3.0], ["a", "b", "c"]):
        (trace,) = traces([{"device": "gpu", "t": t, "power_w": 1} for t in times])
        assert not trace.timed
        assert [at for at, _ in trace.lines[0].points] == [0.0, 1.0, 2.0]


def test_throttle_bits_are_gathered_over_the_run():
    (trace,) = traces([{"device": "gpu", "t": n, "throttle": b} for n, b in enumerate([0, 4, 40])])
    assert (trace.throttle, trace.throttled) == (44, 2)


def test_two_plots_on_one_page_share_no_id():
    trace = sampled([1.0, 2.0, 1.0])
    ids = [set(re.findall(r'id="([^"]+)"', draw(trace, tag))) for tag in ("plot0", "plot1")]
    assert ids[0]
    assert ids[0] & ids[1] == set()


def test_a_plot_refers_to_itself_alone_and_is_whole_xml():
    svg = draw(sampled([1.0, 5.0, 2.0, None, 3.0]), "plot7")
    root = ET.fromstring(svg)  # noqa: S314  drawn by us just now
    there = {e.attrib["id"] for e in root.iter() if "id" in e.attrib}
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', svg))
    assert used
    assert used <= there
    assert "metadata" not in svg
    assert "DOCTYPE" not in svg


def test_the_same_samples_draw_the_same_plot():
    trace = sampled([1.0, 5.0, 2.0])
    assert draw(trace, "plot0") == draw(trace, "plot0")


def test_drawing_leaves_the_environment_as_it_was():
    before = dict(os.environ)
    draw(sampled([1.0, 2.0]), "plot0")
    assert dict(os.environ) == before
