"""Checks that a site writes itself: what each may come to, and what is refused before it runs."""

from __future__ import annotations

import pytest
from pytest_run import QUICK, run_pytest, site

SPEC = '["site.case.limited"]\nlowest = 5\n'
WAIVERS = """
[[waiver]]
check = "site.case.forgiven"
device = "cpu1"
reason = "a known riser"
expires = 2999-01-01
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Every check of the site, once, on two devices."""
    folder = site(tmp_path_factory.mktemp("site"), {"spec.toml": SPEC, "waivers.toml": WAIVERS})
    words = ["--nodeproof-spec=spec.toml", "--nodeproof-waivers=waivers.toml"]
    return run_pytest(folder, *QUICK, "-q", "--tb=no", *words)


def both(ran, check):
    """What a check found on both devices, which has to be the same but for the device."""
    pair = [ran.findings()[f"site.case.{check}", f"cpu{n}"] for n in (0, 1)]
    assert pair[0]["outcome"] == pair[1]["outcome"]
    return pair[0]


@pytest.mark.parametrize(
    "check", ["sound", "named", "limited", "exact", "several", "compared", "asked"]
)
def test_a_sound_check_passes_on_each_device_with_a_number_and_its_detector_proved(ran, check):
    found = both(ran, check)
    assert (found["outcome"], found["cause"], found["remedy"]) == ("pass", None, "none")
    assert found["measurements"]
    assert ran.doubts(f"site.case.{check}") == set()
    assert {ran.selftests()[f"site.case.{check}", f"cpu{n}"]["caught"] for n in (0, 1)} == {True}


def test_a_check_of_what_moved_knows_the_state_before_the_first_check(ran):
    for device in ("cpu0", "cpu1"):
        found = ran.findings()["site.case.moved", device]
        assert (found["outcome"], found["measurements"][0]["name"]) == ("pass", "same")


def test_a_check_over_all_devices_makes_one_finding(ran):
    found = [f for (check, _), f in ran.findings().items() if check == "site.case.gathered"]
    assert [(f["outcome"], f["device"]["kind"]) for f in found] == [("pass", "node")]
    assert found[0]["measurements"][0]["value"] == 2


def test_a_check_sees_its_peers_and_when_a_fault_is_planted_theirs_as_well(ran):
    found = both(ran, "compared")["measurements"]
    assert {m["name"]: m["value"] for m in found} == {
        "value": 7,
        "peers agree": 1,
        "peers planted": 0,
    }
    tests = [ran.selftests()["site.case.compared", f"cpu{n}"] for n in (0, 1)]
    assert [len(test["planted"]) for test in tests] == [2, 2]


def test_a_device_that_did_not_answer_is_nobodys_peer(ran):
    found = ran.findings()
    assert found["site.case.widowed", "cpu0"]["measurements"][0]["value"] == 0
    assert found["site.case.widowed", "cpu1"]["outcome"] == "error"


@pytest.mark.parametrize(
    ("check", "cause", "remedy", "says"),
    [
        ("short", "hardware", "reset-gpu", "value 7 lanes (wants at least 9): look at the riser"),
        ("unready", "environment", "retest", "value 7 (wants at least 9)"),
        ("asserted", "hardware", "reset-gpu", "seven is no eight"),
        ("failed", "hardware", "reset-gpu", "by hand"),
        ("graver", "hardware", "replace", "value 7 (wants at least 9); label 1 (wants at most 0)"),
        ("excused", "hardware", "reset-gpu", "value 7 (wants at least 9)"),
    ],
)
def test_a_broken_limit_or_assertion_is_a_fail_with_cause_and_remedy(
    ran, check, cause, remedy, says
):
    found = both(ran, check)
    assert (found["outcome"], found["cause"], found["remedy"]) == ("fail", cause, remedy)
    assert says in found["summary"]
    assert ran.doubts(f"site.case.{check}") == {"FAILED" if cause == "hardware" else "SHORT"}


@pytest.mark.parametrize(
    ("check", "cause", "says"),
    [
        ("bug", "environment", "TypeError: my own mistake"),
        ("key", "environment", "KeyError: 'valve'"),
        ("said", "config", "no ruler at hand: bring one"),
        ("nothing", "config", "held nothing against a limit"),
        ("unbounded", "config", "held nothing against a limit"),
        ("nan", "environment", "nan is not finite"),
        ("infinite", "environment", "inf is not finite"),
        ("boolean", "environment", "True is no number"),
        ("text", "environment", "'7' is no number"),
        ("nowhere", "environment", "the bound nan is not finite"),
        ("raising", "environment", "ValueError: a sentence"),
        ("dying", "environment", "ended with status 3; its last words: my last words"),
        ("hanging", "environment", "ran past its deadline"),
        ("shapeless", "environment", "TypeError"),
        ("unstarted", "environment", "at the start of the run: a sentence"),
        ("unfindable", "environment", "has no attribute 'nowhere'"),
    ],
)
def test_what_was_not_measured_is_an_error_that_blames_no_device(ran, check, cause, says):
    found = both(ran, check)
    assert (found["outcome"], found["cause"], found["remedy"]) == ("error", cause, "retest")
    assert says in found["summary"]
    assert ran.doubts(f"site.case.{check}") >= {"ERRORED"}
    assert "FAILED" not in ran.doubts(f"site.case.{check}")


@pytest.mark.parametrize(
    ("check", "says"),
    [("skipped", "not today"), ("marked", "not this week"), ("unrun", "NOTRUN")],
)
def test_a_required_check_may_not_skip_however_it_does_it(ran, check, says):
    found = both(ran, check)
    assert found["outcome"] == "skip"
    assert says in found["summary"]
    assert ran.doubts(f"site.case.{check}") >= {"SKIPPED"}


def test_a_load_that_our_own_clock_does_not_bear_out_is_no_pass(ran):
    assert both(ran, "boasting")["outcome"] == "pass"
    assert "UNPROVED" in ran.doubts("site.case.boasting")


def test_a_check_on_trial_is_reported_and_never_counts(ran):
    assert both(ran, "trial")["outcome"] == "fail"
    assert ran.doubts("site.case.trial") == set()


@pytest.mark.parametrize(
    ("check", "why"),
    [
        ("idle", "the plant changed nothing"),
        ("blind", "pass"),
        ("vague", "error"),
        ("elsewhere", "did not report what was planted"),
        ("plantless", "planted nothing"),
        ("half", "breaks the limit of label"),
    ],
)
def test_a_detector_that_misses_its_planted_fault_is_believed_no_pass(ran, check, why):
    assert both(ran, check)["outcome"] == "pass"
    for label in ("cpu0", "cpu1"):
        test = ran.selftests()[f"site.case.{check}", label]
        assert not test["caught"]
        assert why in test["summary"]
    assert ran.doubts(f"site.case.{check}") == {"SELFTEST"}


def test_a_detector_that_was_never_proved_condemns_nobody(ran):
    assert both(ran, "condemning")["cause"] == "hardware"
    assert ran.doubts("site.case.condemning") == {"SELFTEST", "UNTRUSTED"}


def test_a_check_about_a_kind_that_is_not_here_makes_no_finding_and_no_skip(ran):
    assert not [c for c, _ in ran.findings() if c == "site.case.absent"]
    assert "site.case.absent" not in {c["key"]["check"] for c in ran.records[0]["checks"]}
    assert "1 deselected" in ran.text


def test_a_spec_of_the_site_sets_the_limits_of_its_own_checks(ran):
    assert both(ran, "limited")["measurements"][0]["at_least"] == 5
    assert ran.records[0]["spec"]["name"] == "spec over cpu-rehearsal"


def test_a_waiver_holds_for_the_device_it_names_and_no_other(ran):
    assert both(ran, "forgiven")["outcome"] == "fail"
    told = ran.verdict()
    assert [(w.check, w.device) for w in told.waived] == [("site.case.forgiven", "cpu1")]
    blamed = {r.device for r in told.failed if r.check == "site.case.forgiven"}
    assert blamed == {"cpu0"}


def test_a_plain_test_beside_the_checks_is_left_alone(ran):
    assert "test_of_no_device" not in ran.text
    assert not [c for c, _ in ran.findings() if "no_device" in c]


def test_a_run_with_all_of_this_is_complete_and_ends_with_1(ran):
    assert ran.status == 1, ran.text
    keys = {(c["key"]["check"], c["key"]["device"]) for c in ran.records[0]["checks"]}
    assert {(f["check"], f["device"]["id"]) for f in ran.findings().values()} == keys
    assert ran.records[-1]["type"] == "end"
    assert ran.verdict().decision == "reject"


HEAD = """
import pytest
from nodeproof.checks import DeviceKind, Plant, Remedy, Work, check

LOW = Plant(alter=lambda result: {**result, "value": -1})

def of(name="site.case.mine", **more):
    given = {
        "kinds": (DeviceKind.CPU,), "remedy": Remedy.RETEST, "plant": LOW,
        "work": Work(call="standin_work:echo", args={"value": 7}), **more,
    }
    return check(name, **{k: v for k, v in given.items() if v is not None})
"""
BODY = """
def test_mine(result, measure):
    '''Mine.'''
    measure("value", result["value"], at_least=0)
"""


def mine(folder, declaration, body=BODY, **files):
    """Run one check of somebody who is new to this."""
    (folder / "test_mine.py").write_text(f"{HEAD}\n{declaration}{body}")
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return run_pytest(folder, *QUICK, "-q", "--tb=short", "--nodeproof-cpu-devices=1")


@pytest.mark.parametrize(
    ("declaration", "body", "says"),
    [
        ("@of()", BODY.replace("'''Mine.'''", ""), "says in its docstring why it exists"),
        ("@of('Site.Case.Mine')", BODY, "is called component.part.property, in lower case"),
        ("@of('site.mine')", BODY, "is called component.part.property"),
        ("@of()", BODY.replace("measure)", "measure, tmp_path)"), "nothing provides tmp_path"),
        ("@of()", BODY.replace("(result,", "(device,"), "`result` or `results`"),
        ("@of()", BODY.replace(", measure)", ", limits)"), "takes `measure`"),
        ("@of(kinds=())", BODY, "about at least one kind of device"),
        ("@of(plant=None)", BODY, "'plant'"),
        ("@of(plant=Plant())", BODY, "either args for the worker or an alteration"),
        ("@of(plant=Plant(args={'a': 1}, alter=dict))", BODY, "either args for the worker or"),
    ],
    ids=[
        *("undocumented", "capitals", "two words", "a fixture", "no result", "no measure"),
        *("no kind", "no plant", "empty plant", "two plants"),
    ],
)
def test_what_a_check_may_not_be_is_refused_when_it_is_read(tmp_path, declaration, body, says):
    ran = mine(tmp_path, declaration, body)
    assert ran.status == 2, ran.text
    assert says in ran.text
    assert not ran.findings()


def test_a_check_declared_twice_proves_nothing(tmp_path):
    ran = mine(tmp_path, "@of()", f"{BODY}\n@of(){BODY.replace('test_mine', 'test_again')}")
    assert ran.status == 1, ran.text
    assert "site.case.mine on cpu0: found more than once" in ran.text


AUTOUSE = """
import pathlib, pytest

@pytest.fixture(autouse=True)
def lamp():
    pathlib.Path("lamp").write_text("on")
    yield
    pathlib.Path("lamp").write_text("off")
"""


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("autouse", {"conftest": AUTOUSE}),
        ("named", {"conftest": AUTOUSE.replace("autouse=True", "")}),
        ("module", {}),
    ],
)
def test_fixtures_of_the_site_work_around_a_check(tmp_path, name, more):
    marks = {"named": "@pytest.mark.usefixtures('lamp')\n"}
    around = 'def setup_module():\n    open("lamp", "w").write("off")\n\n'
    declaration = (around if name == "module" else "") + marks.get(name, "") + "@of()"
    ran = mine(tmp_path, declaration, **more)
    assert ran.status == 0, ran.text
    assert ran.findings()["site.case.mine", "cpu0"]["outcome"] == "pass"
    assert (tmp_path / "lamp").read_text() == "off"


def test_a_fixture_of_the_site_that_breaks_leaves_the_device_unjudged(tmp_path):
    breaking = AUTOUSE.replace('pathlib.Path("lamp").write_text("on")', "raise OSError('no lamp')")
    ran = mine(tmp_path, "@of()", conftest=breaking)
    assert ran.status == 1, ran.text
    found = ran.findings()["site.case.mine", "cpu0"]
    assert (found["outcome"], "no lamp" in found["summary"]) == ("error", True)


def test_a_plugin_that_skips_a_check_from_outside_makes_no_pass(tmp_path):
    hook = "import pytest\ndef pytest_runtest_call(item):\n    pytest.skip('from outside')\n"
    ran = mine(tmp_path, "@of()", conftest=hook)
    assert ran.status == 1, ran.text
    found = ran.findings()["site.case.mine", "cpu0"]
    assert (found["outcome"], "from outside" in found["summary"]) == ("skip", True)


def test_a_teardown_that_breaks_after_a_pass_makes_no_pass(tmp_path):
    hook = "def pytest_runtest_teardown(item):\n    raise OSError('stuck')\n"
    ran = mine(tmp_path, "@of()", conftest=hook)
    assert ran.status == 1, ran.text
    found = ran.findings()["site.case.mine", "cpu0"]
    assert (found["outcome"], "stuck" in found["summary"]) == ("error", True)
