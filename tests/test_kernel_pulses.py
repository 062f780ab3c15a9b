"""Load in bursts, in real worker processes that keep one beat."""

from __future__ import annotations

import pytest
from pytest_run import QUICK, SHIPPED, run_pytest

from nodeproof.child import Answer, Call, Raised

PULSES = "nodeproof.kernels.pulses:pulses"


def group(rank, size):
    labels = [f"cpu{n}" for n in range(size)]
    return {"rank": rank, "size": size, "store": "/nowhere", "labels": labels}


@pytest.fixture
def both(pool, context):
    """Two workers that pulse at once, with a fault planted in each."""
    for name in ("cpu0", "cpu1"):
        pool.add(name)
    calls = {
        f"cpu{n}": Call(
            call=PULSES,
            args={"plant": "flip"},
            context=context(device_id=f"cpu{n}", group=group(n, 2)),
        )
        for n in (0, 1)
    }
    replies = pool.run(calls, deadline_s=60)
    assert all(isinstance(reply, Answer) for reply in replies.values()), replies
    return [replies[f"cpu{n}"].result for n in (0, 1)]


def test_planted_bits_in_two_bursts_are_reported_where_they_are_and_differ_by_device(both):
    for result in both:
        assert result["found"] == result["planted"]
        assert len(result["planted"]) == result["wrong"] == 2
        assert result["planted"][0]["product"] != result["planted"][1]["product"]
    assert both[0]["planted"] != both[1]["planted"]


def test_every_length_and_phase_had_its_burst_and_every_product_was_compared(both):
    for result in both:
        assert result["untried"] == 0
        assert set(result["cells"]) == {
            f"{n} ms {phase}" for n in (1, 3, 10) for phase in ("together", "in turn")
        }
        assert result["products"] >= result["bursts"] >= 6
        assert result["checked_elements"] >= result["bursts"] * result["size"] ** 2


def test_a_fault_it_does_not_know_is_refused(pool, context):
    pool.add("cpu0")
    call = Call(call=PULSES, args={"plant": "hum"}, context=context())
    reply = pool.run({"cpu0": call}, deadline_s=60)["cpu0"]
    assert isinstance(reply, Raised)
    assert "knows 'flip'" in reply.message


@pytest.mark.long
def test_the_check_passes_on_sound_devices_and_its_detector_is_proved_on_each(tmp_path):
    ran = run_pytest(
        tmp_path, *SHIPPED, *QUICK, "-q", "--nodeproof-profile=gate", "-k", "test_pulses"
    )
    check = "device.burnin.pulses"
    assert {ran.findings()[check, f"cpu{n}"]["outcome"] for n in (0, 1)} == {"pass"}
    for n in (0, 1):
        assert ran.selftests()[check, f"cpu{n}"]["caught"], ran.selftests()[check, f"cpu{n}"]
        cells = ran.findings()[check, f"cpu{n}"]["evidence"]["cells"]
        assert len(cells) == 12
        assert all(cells.values())
