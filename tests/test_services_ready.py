"""The wait for what is not up yet: it ends when all is there, or names what is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from bus_tree import GPU, hgx, put

from nodeproof.acceptance import test_services as suite
from nodeproof.checks import spec_of
from nodeproof.child import Call, Raised
from nodeproof.model import Cause, Outcome
from nodeproof.probes import readiness
from nodeproof.worker import Context
from tests.standin.build import judged

LONG_S = 60.0  # nothing here waits so long: what is waited for comes at the first event


@pytest.fixture
def node(tmp_path):
    return hgx(tmp_path)


@pytest.fixture
def wait(context):
    """Wait on a machine; `then` is done when the wait first says that it is blocked."""

    def run(root, *, then=None, **args):
        said = []

        def hear(kind, what):
            said.append((kind, dict(what)))
            if kind == "event" and then is not None:
                then()

        given = Context(**{**context(), "host_root": Path(root), "send": hear})
        return readiness.wait(given, poll_s=0.001, **args), said

    return run


def driver(root, address, name):
    (root / "sys/bus/pci/devices" / address / "driver").symlink_to(f"../../../bus/drivers/{name}")


def verbs(root, name, driven_by):
    device = root / "sys/class/infiniband" / name / "device"
    device.mkdir(parents=True)
    (device / "driver").symlink_to(f"../../../bus/pci/drivers/{driven_by}")


def runs(root, name):
    put(root, "proc/70/stat", f"70 ({name}) S 1 1 1\n")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"services": "nvidia-fabricmanager nv-hostengine"}, "nv-hostengine"),
        ({"gpus": 1}, "0 of 1 GPUs"),
        ({"efa": 32}, "0 of 32 EFA devices"),
        ({"adapters": 8}, "0 of 8 RDMA devices"),
    ],
)
def test_what_never_comes_is_named_when_the_wait_is_over(wait, node, asked, says):
    result, said = wait(node, wait_s=0.01, **asked)
    assert says in result["blockers"][0]
    assert result["waited_s"] >= 0.01
    assert [kind for kind, _ in said].count("event") == 1  # each change once
    told, broken = judged(suite.test_ready, result)
    assert (told.outcome, told.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert says in broken["blockers"].detail


def test_nothing_asked_for_is_nothing_waited_for(wait, node):
    result, said = wait(node, wait_s=LONG_S)
    assert (result["blockers"], said) == ([], [])
    assert judged(suite.test_ready, result)[0].outcome is Outcome.PASS
    (plant,) = spec_of(suite.test_ready).plants
    assert judged(suite.test_ready, plant.alter(result))[0].outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("asked", "come"),
    [
        ({"services": "nvidia-fabricmanager"}, lambda root: runs(root, "nv-fabricmanage")),
        ({"gpus": 1}, lambda root: driver(root, GPU, "nvidia")),
        ({"efa": 1}, lambda root: verbs(root, "rdmap16s27", "efa")),
        ({"adapters": 1}, lambda root: verbs(root, "mlx5_0", "mlx5_core")),
    ],
    ids=["service", "driver", "EFA", "adapter"],
)
def test_what_comes_late_is_waited_for(wait, node, asked, come):
    result, said = wait(node, wait_s=LONG_S, then=lambda: come(node), **asked)
    assert result["blockers"] == []
    assert len(result["first"]) == 1
    assert result["waited_s"] < LONG_S
    (event,) = [what for kind, what in said if kind == "event"]
    assert event["text"] == result["first"][0]
    assert any(what["step"].startswith("waiting for") for kind, what in said if kind == "progress")


def test_a_gpu_in_the_hands_of_another_driver_is_not_ready_and_named(wait, node):
    driver(node, GPU, "vfio-pci")
    result, _ = wait(node, gpus=1)
    assert GPU in result["blockers"][0]


def test_other_adapters_are_no_efa(wait, node):
    verbs(node, "mlx5_0", "mlx5_core")
    assert "0 of 1 EFA" in wait(node, efa=1)[0]["blockers"][0]
    assert wait(node, adapters=1)[0]["blockers"] == []


def test_what_can_not_be_read_is_not_there(wait, tmp_path):
    result, _ = wait(tmp_path, gpus=1, services="kubelet")
    assert len(result["blockers"]) == 2
    assert all("can't be seen" in blocker for blocker in result["blockers"])


@pytest.mark.parametrize(
    "args",
    [{"services": "fabricmanager"}, {"wait_s": 1e9}, {"wait_s": -1.0}],
)
def test_what_nobody_can_wait_for_is_refused_at_once(pool, context, args):
    pool.add("w")
    call = Call(call="nodeproof.probes.readiness:wait", args=args, context=context())
    reply = pool.run({"w": call}, deadline_s=30)["w"]
    assert isinstance(reply, Raised)
    assert reply.type == "ValueError"
