"""A device that is broken for good and has no other beside it: who may condemn it?"""

from __future__ import annotations

import pytest
from pytest_run import QUICK, run_pytest, site

from nodeproof.verdict import Decision


@pytest.fixture(scope="module", params=[1, 2])
def ran(request, tmp_path_factory):
    folder = site(tmp_path_factory.mktemp("lone"), {}, suite="lone.py")
    devices = f"--nodeproof-cpu-devices={request.param}"
    return request.param, run_pytest(folder, *QUICK, "-q", "--tb=no", devices)


def test_the_host_is_the_witness_of_a_lone_device_and_of_no_other(ran):
    count, run = ran
    doubts = run.doubts("site.lone.witnessed")
    # Two devices that are both broken for good have each other, and no witness.
    assert doubts == ({"FAILED"} if count == 1 else {"UNTRUSTED", "SELFTEST"})


@pytest.mark.parametrize("check", ["silent", "itself", "confused", "blind"])
def test_without_a_witness_nobody_is_condemned_and_nothing_passes(ran, check):
    _, run = ran
    assert run.doubts(f"site.lone.{check}") == {"UNTRUSTED", "SELFTEST"}


def test_the_node_is_rejected_for_what_was_witnessed_alone(ran):
    count, run = ran
    told = run.verdict()
    assert told.decision is (Decision.REJECT if count == 1 else Decision.UNDECIDED)
    assert {r.check for r in told.failed} == ({"site.lone.witnessed"} if count == 1 else set())
