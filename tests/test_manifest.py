"""The shipped manifest: current, whole, and what it demands is what the suites declare."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from nodeproof.cli.options import suites
from nodeproof.manifest import digest_of, parse, shipped
from nodeproof.model import Device, DeviceKind, Profile

ROOT = Path(__file__).parent.parent
TEXT = resources.files("nodeproof").joinpath("catalog", "manifest.json").read_text()
SUITES = suites()


def a(kind, **facts):
    return Device(kind=kind, id="x", label="x", facts=facts)


def test_the_shipped_manifest_and_the_page_of_checks_are_current():
    done = subprocess.run(
        [sys.executable, ROOT / "docs/generate.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_check_of_every_suite_has_an_entry_and_no_entry_is_without_one():
    assert set(shipped().entries) == set(SUITES)
    for check, entry in shipped().entries.items():
        declared = SUITES[check]
        assert (entry.kinds, entry.profiles) == (declared.kinds, declared.profiles)
        assert (entry.trial, entry.cause) == (declared.trial, declared.cause)
        assert entry.capability == declared.capability
        assert (entry.about.title, entry.about.why) == (declared.title, declared.why)
        assert entry.about.remedy is declared.remedy


@pytest.mark.parametrize("kind", DeviceKind)
@pytest.mark.parametrize("profile", Profile)
def test_what_a_profile_demands_of_a_kind_is_what_the_suites_declare(profile, kind):
    wanted = {
        check: declared.work.load.seconds(profile) if declared.work.load else 0.0
        for check, declared in SUITES.items()
        if kind in declared.kinds and profile in declared.profiles and not declared.trial
    }
    assert shipped().required(profile, a(kind)) == wanted
    tested = set(DeviceKind) - {DeviceKind.NIC}
    assert bool(wanted) == (kind in tested)  # a kind that nothing is demanded of proves nothing


def test_a_longer_profile_demands_every_check_of_a_shorter_one_and_at_least_its_load():
    for kind in DeviceKind:
        demands = [shipped().required(profile, a(kind)) for profile in Profile]
        for shorter, longer in itertools.pairwise(demands):
            assert all(longer[check] >= load for check, load in shorter.items())


def _without(check):
    data = json.loads(TEXT)
    del data["checks"][check]
    return json.dumps(data)


TAMPERED = {
    "a check removed": _without("device.memory.pattern"),
    "a check made a trial": TEXT.replace('"trial": false', '"trial": true', 1),
    "a load made short": TEXT.replace('"gate": 60', '"gate": 1', 1),
    "another cause": TEXT.replace('"cause": "hardware"', '"cause": "config"', 1),
    "a profile dropped": TEXT.replace('"gate",', "", 1),
    "other blanks": TEXT.replace("\n", "\n ", 1),
    "cut": TEXT[: len(TEXT) // 2],
    "empty": "",
    "no object": "[]",
    "no checks": '{"schema": 1, "checks": {}}',
    "checks are a list": '{"schema": 1, "checks": []}',
    "no schema": TEXT.replace('"schema"', '"scheme"'),
    "another schema": TEXT.replace('"schema": 1', '"schema": 2'),
    "a kind nobody knows": TEXT.replace('"gpu"', '"tpu"', 1),
    "a profile nobody knows": TEXT.replace('"gate"', '"gait"', 1),
    "a field missing": TEXT.replace('"trial": false', '"tryal": false', 1),
    "a load that is no number": TEXT.replace('"gate": 60', '"gate": "long"', 1),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_manifest_that_was_tampered_with_is_refused_or_has_another_digest(name):
    text = TAMPERED[name]
    assert text != TEXT
    try:
        read = parse(text)
    except (ValueError, KeyError, TypeError):
        return
    assert read.digest != shipped().digest


REFUSED = ("cut", "empty", "no object", "no checks", "checks are a list", "no schema",
    "another schema", "a kind nobody knows", "a profile nobody knows", "a field missing",
    "a load that is no number")  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_manifest_that_is_not_whole_is_refused(name):
    with pytest.raises((ValueError, KeyError, TypeError)):
        parse(TAMPERED[name])


LAX = {
    "a trial in words": TEXT.replace('"trial": false', '"trial": "false"', 1),
    "a load of NaN": TEXT.replace('"gate": 60', '"gate": NaN', 1),
    "a load below nothing": TEXT.replace('"gate": 60', '"gate": -1', 1),
    "a capability in words": TEXT.replace('"capability": null', '"capability": "9.0"', 1),
    "a capability that was left out": TEXT.replace('"capability": null,', "", 1),
    "a profile without its load": TEXT.replace('"gate": 60,', "", 1),
    "a check of no kind": json.dumps({**(d := json.loads(TEXT)), "checks": {
        **d["checks"], "host.cpu.cores": {**d["checks"]["host.cpu.cores"], "kinds": []}}}),
    "a check said twice": TEXT.replace('"host.cpu.cores": {', '"host.cpu.cores": {}, "host.cpu.cores": {', 1),
}  # fmt: skip


@pytest.mark.parametrize("name", LAX)
def test_a_manifest_that_would_demand_less_by_a_slip_is_refused(name):
    with pytest.raises((ValueError, KeyError, TypeError)):
        parse(LAX[name])


SINCE = json.dumps({**(d := json.loads(TEXT)), "checks": {
        **d["checks"], "host.cpu.cores": {**d["checks"]["host.cpu.cores"], "capability": [8, 9]}}})  # fmt: skip


@pytest.mark.parametrize(
    "said",
    [
        [9, 0],
        (10, 0),
        [8, 9],
        None,
        "8.0",
        [8],
        [8.0, 0.0],
        ["8", "0"],
        {},
        [0, 0],
        [-1, 0],
        [True, False],
        [7, -1],
        [8, 0, 0],
    ],
)
def test_only_a_device_that_says_it_is_older_is_let_off_a_check(said):
    required = parse(SINCE).required(Profile.QUICK, a(DeviceKind.HOST, capability=said))
    assert "host.cpu.cores" in required


@pytest.mark.parametrize("said", [[8, 6], (8, 0), [7, 10]])
def test_a_device_without_what_is_tested_is_let_off(said):
    required = parse(SINCE).required(Profile.QUICK, a(DeviceKind.HOST, capability=said))
    assert "host.cpu.cores" not in required
    assert "host.cpu.cores" in parse(SINCE).required(Profile.QUICK, a(DeviceKind.HOST))


def test_the_digest_is_that_of_the_file():
    assert shipped().digest == digest_of(TEXT.encode())
