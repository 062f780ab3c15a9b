"""Waivers: what the file may say, and what a waiver can do to a verdict."""

from __future__ import annotations

import dataclasses

import pytest

from nodeproof.model import Outcome, Waiver
from nodeproof.verdict import Decision, Why
from nodeproof.waivers import WaiverError, load
from tests.results_samples import device
from tests.shipped_run import BAD, BURNIN, GPU, MEMORY, RUN, decided, failed, retest, without

ACCEPT, REJECT, UNDECIDED = Decision.ACCEPT, Decision.REJECT, Decision.UNDECIDED
GOOD = """[[waiver]]
check = "device.memory.pattern"
device = "GPU-1"
reason = "on order"
expires = 2026-12-31
"""


def waiving(run, expires, check=MEMORY, on=GPU.id):
    waiver = Waiver(check=check, device=on, reason="known", expires=expires)
    return run.replan(waivers=(waiver,))


TABLE = {
    "waived": (waiving(failed(), "2026-12-31"), ACCEPT, None),
    "waived until today": (waiving(failed(), "2026-03-01"), ACCEPT, None),
    "waived until yesterday": (waiving(failed(), "2026-02-28"), REJECT, Why.FAILED),
    "waived on another device": (waiving(failed(), "2026-12-31", on=device(0).id), REJECT, Why.FAILED),
    "another check waived": (waiving(failed(), "2026-12-31", check=BURNIN), REJECT, Why.FAILED),
    "a missing finding waived": (waiving(without(RUN, MEMORY), "2026-12-31"), UNDECIDED, Why.MISSING),
    "an unproved pass waived": (
        waiving(RUN.refind(MEMORY, "gpu1", measurements=()), "2026-12-31"), UNDECIDED, Why.UNPROVED
    ),
    "a skip waived": (
        waiving(RUN.refind(MEMORY, "gpu1", outcome=Outcome.SKIP), "2026-12-31"), UNDECIDED, Why.SKIPPED
    ),
    "waived, and its detector missed": (
        waiving(retest(failed(), MEMORY, GPU, caught=False), "2026-12-31"), UNDECIDED, Why.SELFTEST
    ),
    "waived while another fails": (
        waiving(failed().refind(BURNIN, "gpu0", **BAD), "2026-12-31"), REJECT, Why.FAILED
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", TABLE)
def test_a_waiver_covers_one_fail_or_error_of_one_device_until_its_day_and_nothing_else(row):
    run, decision, why = TABLE[row]
    told = decided(run)
    assert told.decision is decision, [str(r) for r in told.undecided]
    assert why is None or why in {r.why for r in (*told.failed, *told.undecided)}
    assert len(told.waived) == (
        row in {"waived", "waived until today"} or row.startswith(("waived while", "waived, and"))
    )


@pytest.mark.parametrize("expires", ["never", "", "2026-13-45", "31.12.2026", "2026-12", "9"])
def test_a_waiver_without_a_date_does_nothing(expires):
    assert decided(waiving(failed(), expires)).decision is not ACCEPT


@pytest.mark.parametrize("ended", ["", "yesterday", "2026-03-01", "0001-01-01T00:00:00+00:00"])
def test_a_waiver_does_nothing_where_the_end_of_the_run_is_no_time_after_its_start(ended):
    run = waiving(failed(), "2026-02-28")
    assert decided(run.but(end=dataclasses.replace(run.end, ended=ended))).decision is not ACCEPT


def test_a_waiver_that_was_renewed_counts():
    old = Waiver(check=MEMORY, device=GPU.id, reason="old", expires="2026-02-01")
    told = decided(failed().replan(waivers=(old, dataclasses.replace(old, expires="2026-12-31"))))
    assert [w.expires for w in told.waived] == ["2026-12-31"]


def test_an_error_can_be_waived_and_the_verdict_lists_it():
    run = RUN.refind(MEMORY, "gpu1", outcome=Outcome.ERROR, measurements=())
    told = decided(waiving(run, "2026-12-31"))
    assert (told.decision, [w.reason for w in told.waived]) == (ACCEPT, ["known"])
    assert told.document()["waivers"][0]["device"] == GPU.id


def write(folder, content):
    path = folder / "my waivers.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_complete_waivers_are_read_in_order(tmp_path):
    other = GOOD.replace("GPU-1", "GPU-2")
    read = load(write(tmp_path, GOOD + other))
    assert [w.device for w in read] == ["GPU-1", "GPU-2"]
    assert read[0] == Waiver(
        check="device.memory.pattern", device="GPU-1", reason="on order", expires="2026-12-31"
    )


LINES = GOOD.splitlines(keepends=True)
BAD_FILES = {
    "empty": "",
    "comment": "# nothing\n",
    "no TOML": "waiver = \n",
    "binary": b"\xff\xfe\x00",
    "no check": GOOD.replace(LINES[1], ""),
    "no device": GOOD.replace(LINES[2], ""),
    "no reason": GOOD.replace(LINES[3], ""),
    "no expiry": GOOD.replace(LINES[4], ""),
    "blank check": GOOD.replace("device.memory.pattern", " "),
    "blank device": GOOD.replace("GPU-1", ""),
    "blank reason": GOOD.replace("on order", " "),
    "reason is a number": GOOD.replace('"on order"', "7"),
    "device is a list": GOOD.replace('"GPU-1"', '["GPU-1"]'),
    "date in quotes": GOOD.replace("2026-12-31", '"2026-12-31"'),
    "date and time": GOOD.replace("2026-12-31", "2026-12-31T00:00:00Z"),
    "time": GOOD.replace("2026-12-31", "12:00:00"),
    "no such day": GOOD.replace("2026-12-31", "2026-02-30"),
    "never": GOOD.replace("2026-12-31", "inf"),
    "number": GOOD.replace("2026-12-31", "20261231"),
    "a number of 5000 digits": GOOD.replace("2026-12-31", "1" * 5000),
    "nested too deep": "waiver = " + "[" * 3000,
    "one key more": GOOD + 'profile = "gate"\n',
    "one table more": GOOD + "[site]\n",
    "waivers, not waiver": GOOD.replace("[[waiver]]", "[[waivers]]"),
    "one bracket": GOOD.replace("[[waiver]]", "[waiver]"),
    "a list of numbers": "waiver = [1]\n",
    "the second is bad": GOOD + GOOD.replace(LINES[3], ""),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_one_waiver_that_is_not_whole_refuses_the_file(tmp_path, name):
    path = write(tmp_path, BAD_FILES[name])
    with pytest.raises(WaiverError, match=r"my waivers\.toml"):
        load(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    for path in (tmp_path / "absent.toml", tmp_path):
        with pytest.raises(WaiverError, match=str(path)):
            load(path)


def test_no_waiver_outlives_a_run_that_did_not_end():
    run = waiving(failed(), "2026-12-31").but(end=None)
    assert decided(run).waived == ()
