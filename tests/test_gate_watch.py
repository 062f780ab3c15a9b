"""`nodeproof watch`: which GPUs a node has, on its own node; a change is tested for, and proves nothing."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from gate_cluster import NAMES, PENDING, SETTINGS, condition, keys, put_node
from gate_life import FIRST, NODE, living
from gate_nodes import BOOT, GPUS, NOW, PASSED, accepted, node, over, ruled
from gate_process import kubeconfig, until
from nodeproof_command import nodeproof
from rehearsal import NODEPROOF
from test_gate_plan import does

from nodeproof.gate import devices, dispatch
from nodeproof.gate.actions import Lift, Say
from nodeproof.gate.plan import Known, plan
from nodeproof.verdict import Decision
from tests.apiserver.server import serving
from tests.apiserver.store import NODES, Store

AT = f"{NODES}/a"
UUID = "GPU-{:08x}-b60b-a624-bf14-0a1819cfda3b"
TEXT = "Model: \t\t NVIDIA H100\nIRQ:   \t\t 10\nGPU UUID: \t {}\nBus Type: \t PCIe\nGPU Excluded:\t {}\n"
OTHER = "sha256:" + "8" * 64


@pytest.fixture
def server():
    with serving(Store()) as made:
        put_node(made.store, "a")
        yield made


class Machine:
    """A node's /proc, as far as it is read here."""

    def __init__(self, root):
        self.root = root
        boot = root / "proc/sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True)
        boot.write_text(f"{BOOT}\n")
        self.gpus = root / "proc/driver/nvidia/gpus"
        self.gpus.mkdir(parents=True)
        for number in range(2):
            self.put(number)

    def put(self, number, uuid=None, excluded="No"):
        place = self.gpus / f"0000:0{number}:00.0"
        place.mkdir(exist_ok=True)
        text = TEXT.format(uuid or UUID.format(number), excluded)
        # Whole or not at all, as the kernel writes it.
        (place / "new").write_text(text)
        (place / "new").rename(place / "information")


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path / "node")


@pytest.fixture
def look(server, machine, tmp_path):
    config = kubeconfig(tmp_path / "config", server.client().configuration.host)
    words = ("watch", "--node-name", "a", "--host-root", str(machine.root))

    def looked(*more):
        return nodeproof(*words, "--once", *more, KUBECONFIG=str(config))

    looked.words, looked.environment = words, {**os.environ, "KUBECONFIG": str(config)}
    return looked


def noted(server):
    return (server.store.get(AT)["metadata"].get("annotations") or {}).get(NAMES.devices)


def wrote(server):
    return [path for verb, path, _ in server.wrote if verb == "PATCH"]


def test_a_node_says_once_which_gpus_it_has_as_a_run_digests_them(look, server):
    done = look()
    assert done.returncode == 0, done.stderr
    digest = dispatch.digest_of_devices([UUID.format(1), UUID.format(0)])
    assert noted(server) == f"{BOOT} {digest}"
    assert digest in done.stdout
    assert look().returncode == 0
    assert wrote(server) == [AT]


def test_a_gpu_that_the_driver_gives_to_nobody_is_none_of_them(look, server, machine):
    machine.put(2, excluded="Yes")
    assert look().returncode == 0
    assert noted(server).endswith(dispatch.digest_of_devices([UUID.format(0), UUID.format(1)]))


def unknown(machine):
    machine.put(1, uuid="GPU-????????-????-????-????-????????????")


def without(machine):
    (machine.gpus / "0000:01:00.0/information").unlink()


def empty(machine):
    (machine.gpus / "0000:01:00.0/information").write_text("")


def no_gpu(machine):
    for number in range(2):
        machine.put(number, excluded="Yes")


def no_driver(machine):
    machine.gpus.rename(machine.root / "gone")


def no_boot(machine):
    (machine.root / "proc/sys/kernel/random/boot_id").unlink()


@pytest.mark.parametrize("how", [unknown, without, empty, no_gpu, no_driver, no_boot])
def test_what_can_not_be_told_is_not_written_and_said(look, server, machine, how):
    how(machine)
    done = look()
    assert done.returncode == 11
    assert done.stderr.startswith("nodeproof: a: ")
    assert noted(server) is None
    assert wrote(server) == []


def test_a_server_that_refuses_is_said(look, server):
    server.store.delete(AT)
    done = look()
    assert done.returncode == 11
    assert "a" in done.stderr


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "soon", "1e9"])
def test_an_interval_that_is_none_is_refused(look, interval):
    assert look("--interval", interval).returncode == 2


def test_it_goes_on_looking_and_ends_when_it_is_told_to(look, server, machine):
    with subprocess.Popen(
        [*NODEPROOF, *look.words, "--interval", "1"],
        env=look.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        before = until(lambda: noted(server))
        unknown(machine)
        line = process.stderr.readline()
        assert "names no GPU UUID" in line
        assert noted(server) == before
        machine.put(1, uuid=UUID.format(9))
        until(lambda: noted(server) != before)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == "", "said once, not at each look"
    assert wrote(server) == [AT, AT]


def test_a_driver_that_hangs_is_said_and_holds_nobody(look, server, machine):
    hung = machine.gpus / "0000:01:00.0/information"
    hung.unlink()
    os.mkfifo(hung)  # whoever opens it waits
    done = look()
    assert done.returncode == 11
    assert "does not answer" in done.stderr
    assert wrote(server) == []
    with subprocess.Popen(
        [*NODEPROOF, *look.words, "--interval", "1"],
        env=look.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert "does not answer" in process.stderr.readline()
        with hung.open("w") as answer:  # which it does at last; and from now on at once
            machine.put(1)
            answer.write(TEXT.format(UUID.format(1), "No"))
        until(lambda: noted(server))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


# --- what the gate makes of it ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("note", "published", "told"),
    [
        (None, "", ("", "")),
        (f"{BOOT} {GPUS}", "", (GPUS, "")),
        (f"{BOOT} {OTHER}", "", (OTHER, "")),
        (f"{BOOT} {OTHER}", GPUS, (OTHER, GPUS)),
        (f"{BOOT} {GPUS}", OTHER, (OTHER, GPUS)),
        (None, OTHER, (OTHER, "")),
        (f"another {OTHER}", "", ("", "")),
        (f"another {OTHER}", GPUS, (GPUS, "")),
        (OTHER, "", ("", "")),
        (f"{BOOT} sha256:8", "", ("", "")),
        (f"{BOOT} {OTHER}\n", "", ("", "")),
        ("", "", ("", "")),
    ],
)
def test_the_gpus_of_a_node_by_whoever_says_so(note, published, told):
    notes = {} if note is None else {NAMES.devices: note}
    assert devices.of(accepted(annotations=notes), published, NAMES) == told


@pytest.mark.parametrize("said", [(OTHER, ""), (GPUS, OTHER), (OTHER, GPUS)])
def test_no_node_is_released_while_any_source_says_that_it_has_other_gpus(said):
    told = ("True", "AllChecksPassed", f"boot {BOOT}; {PASSED}")
    passed = {"jobs": (over(),), "judged": {over().name: ruled(Decision.ACCEPT)}}
    agreed = Known(devices=GPUS, also=GPUS, **passed)
    assert does(plan(node(said=told), agreed, SETTINGS, now=NOW), Lift)
    devices_, also = said
    made = plan(node(said=told), Known(devices=devices_, also=also, **passed), SETTINGS, now=NOW)
    assert not does(made, Lift)
    [say] = does(made, Say)
    assert say.reason == "ResultForeign"
    assert NAMES.devices in say.message


def test_a_note_that_somebody_took_away_is_written_again_by_who_looks_afresh(look, server):
    assert look().returncode == 0
    server.store.change(AT, lambda n: n["metadata"]["annotations"].pop(NAMES.devices))
    assert look().returncode == 0
    assert noted(server)


def test_a_kubeconfig_that_is_none_is_said(look, tmp_path):
    (tmp_path / "config").write_text("{")
    done = look()
    assert done.returncode == 11
    assert "no cluster to talk to" in done.stderr
    assert "Traceback" not in done.stderr


def test_other_gpus_than_were_accepted_have_the_node_tested_again():
    with living() as life:
        life.arrive()
        life.settle()
        life.run("accept")
        life.settle()
        assert PENDING["key"] not in keys(life.node())
        mine = life.node()["metadata"]["annotations"][NAMES.accepted_devices]
        life.store.change(
            NODE, lambda n: n["metadata"]["annotations"].update({NAMES.devices: f"{FIRST} {mine}"})
        )
        life.settle()
        assert PENDING["key"] not in keys(life.node())
        life.store.change(
            NODE, lambda n: n["metadata"]["annotations"].update({NAMES.devices: f"{FIRST} {OTHER}"})
        )
        life.settle()
        assert PENDING["key"] in keys(life.node())
        life.run("accept")
        life.settle()
        found = life.node()
    assert PENDING["key"] in keys(found), "those that were tested are not those that are there"
    assert condition(found)["reason"] == "ResultForeign"
