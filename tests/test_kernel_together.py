"""Products and memory at once, in a real worker process."""

from __future__ import annotations

import pytest
from pytest_run import QUICK, SHIPPED, run_pytest

from nodeproof.child import Answer, Call, Raised

TOGETHER = "nodeproof.kernels.together:together"


def asked(pool, context, **args):
    pool.add("cpu0")
    return pool.run({"cpu0": Call(call=TOGETHER, args=args, context=context())}, deadline_s=60)[
        "cpu0"
    ]


def test_a_bit_in_a_product_and_one_in_memory_are_both_reported_where_they_are(pool, context):
    reply = asked(pool, context, plant="flip")
    assert isinstance(reply, Answer), reply
    result = reply.result
    assert result["found"] == result["planted"]
    told = [
        next(name for name in ("row", "offset", "pattern") if name in f) for f in result["found"]
    ]
    assert told == ["row", "offset", "pattern", "pattern"]
    assert (result["wrong"], result["wrong_words"], result["reference_wrong"]) == (1, 1, 2)


def test_both_ran_at_the_same_time_and_both_were_verified(pool, context):
    reply = asked(pool, context, seconds=0.5)
    assert isinstance(reply, Answer), reply
    result = reply.result
    assert (result["wrong"], result["wrong_words"], result["reference_wrong"]) == (0, 0, 0)
    assert result["overlap_s"] == result["loaded_s"] > 0.25
    assert result["passes"] >= 2
    assert result["verified_bytes"] == result["passes"] * result["region_bytes"] > 0
    assert result["checked_elements"] == result["products"] * result["size"] ** 2 > 0


def test_a_fault_it_does_not_know_is_refused(pool, context):
    reply = asked(pool, context, plant="hum")
    assert isinstance(reply, Raised)
    assert "knows 'flip'" in reply.message


@pytest.mark.parametrize("half", ["multiply", "remember"])
def test_a_half_that_breaks_off_ends_the_whole_and_says_so(pool, context, half, tmp_path):
    """A thread's exception would else be a line in a log, and the other half's answer a pass."""
    (tmp_path / "sitecustomize.py").write_text(BREAKS[half])
    pool.add("cpu0", {"PYTHONPATH": str(tmp_path)})
    call = Call(call=TOGETHER, args={"seconds": 30.0}, context=context())
    reply = pool.run({"cpu0": call}, deadline_s=60)["cpu0"]
    assert isinstance(reply, Raised), reply
    assert "broke off" in reply.message


# An intruder that knows torch and nothing of our code: the third product, or the fifth inversion.
BREAKS = {
    "multiply": """
import torch
mm, count = torch.mm, 0
def broken(*args, **more):
    global count
    count += 1
    if count == 3:
        raise RuntimeError("broke off")
    return mm(*args, **more)
torch.mm = broken
""",
    "remember": """
import torch
bitwise_not, count = torch.bitwise_not, 0
def broken(*args, **more):
    global count
    count += 1
    if count == 5:
        raise RuntimeError("broke off")
    return bitwise_not(*args, **more)
torch.bitwise_not = broken
""",
}


@pytest.mark.long
def test_the_check_passes_on_sound_devices_and_its_detector_is_proved_on_each(tmp_path):
    ran = run_pytest(
        tmp_path, *SHIPPED, *QUICK, "-q", "--nodeproof-profile=gate", "-k", "test_together"
    )
    for n in (0, 1):
        key = ("device.burnin.together", f"cpu{n}")
        assert ran.findings()[key]["outcome"] == "pass", ran.findings()[key]
        assert ran.selftests()[key]["caught"], ran.selftests()[key]
