"""A node without a driver: what its bus shows, and the CPU devices of a rehearsal."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nodeproof.acceptance import test_inventory as inventory
from nodeproof.checks import spec_of
from nodeproof.child import Answer, Call
from nodeproof.model import Cause, Outcome
from tests.standin.build import judged, planted, put_gpu


@pytest.fixture
def read(pool, context):
    """Call a work function in a worker."""

    def run(call, *, root="/", environment=None, **args):
        pool.add("w", environment)
        work = Call(call=call, args=args, context=context(host_root=str(root)))
        reply = pool.run({"w": work}, deadline_s=30)["w"]
        assert isinstance(reply, Answer), reply
        return dict(reply.result)

    return run


def test_the_bus_is_read_with_links_that_do_not_say(read, tmp_path):
    put_gpu(tmp_path, "0000:3b:00.0", current_link_width="63", numa_node="-1")
    put_gpu(tmp_path, "0001:00:00.0", current_link_speed="Unknown", kind="0x030000")
    put_gpu(tmp_path, "0000:05:00.0", kind="0x068000")  # NVSwitch is no GPU
    first, second = read("nodeproof.probes.pci:controllers", root=tmp_path)["controllers"]
    assert first["address"] == "0000:3b:00.0"
    assert (first["width"], first["width_max"], first["numa_node"]) == (None, 16, None)
    assert first["speed_gts"] == 32.0
    assert (second["address"], second["speed_gts"], second["width"]) == ("0001:00:00.0", None, 16)
    assert first["present"] is second["present"] is True


def test_a_rehearsal_lists_as_many_cpu_devices_as_asked_and_misses_one_withheld(read):
    result = read("nodeproof.probes.devices:enumerate_devices", device="cpu", cpu_devices=3)
    assert [d["id"] for d in result["devices"]] == ["cpu0", "cpu1", "cpu2"]
    assert all(d["facts"]["threads"] >= 1 for d in result["devices"])
    check = inventory.test_device_count
    assert judged(check, result)[0].outcome is Outcome.PASS
    judgement, _ = judged(check, planted(check, result))
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, spec_of(check).cause)


def test_a_rehearsal_is_listed_without_torch_or_numpy():
    code = (
        "import sys, nodeproof.probes.devices; "
        "print([m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_library_that_gives_a_wrong_answer_is_one_that_does_not_answer(read, tmp_path):
    (tmp_path / "numpy.py").write_text(
        "class arange:\n    def __init__(self, n): pass\n    def sum(self): return 44\n"
        "__version__ = '9.9'\n"
    )
    environment = {"PYTHONPATH": str(tmp_path)}
    result = read("nodeproof.probes.software:versions", environment=environment, device="cpu")
    assert "does not get 45" in result["unreadable"]["numpy"]
    judgement, broken = judged(inventory.test_software_versions, result)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert "numpy" in broken["answering"].detail
