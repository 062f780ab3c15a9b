"""Memory in a real worker process, with faults that somebody outside puts into it."""

import json
import resource
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from nodeproof.acceptance import test_memory as memory
from nodeproof.checks import Device, DeviceKind, spec_of
from nodeproof.child import Answer, Call, Pool, Raised
from nodeproof.kernels.cells import Pattern, Sweep, same
from nodeproof.kernels.headroom import available
from nodeproof.kernels.memory import pattern
from nodeproof.kernels.mismatches import Block
from nodeproof.model import Measurement
from nodeproof.worker import Context

MIB = 1 << 20
CPU = Device(kind=DeviceKind.CPU, id="cpu0", label="cpu0")


class Worker:
    def __init__(self, folder):
        self.pool = Pool(ends=time.monotonic() + 600, logs=folder, listen=self._heard)
        self.pool.add("cpu0")
        self.on_event = None
        self.events = []

    def _heard(self, _worker, kind, content):
        if kind == "event":
            self.events.append(content)
            if self.on_event:
                self.on_event(content)

    def run(self, seed=7, peers=1, **args):
        context = {
            "device_kind": "cpu",
            "device_id": "cpu0",
            "device_label": "cpu0",
            "torch_device": "cpu",
            "threads": 1,
            "peers": peers,
            "profile": "quick",
            "seed": seed,
            "host_root": "/",
            "group": None,
        }
        args = {"cpu_share": 0.01, "gpu_share": 0.9, **args}
        call = Call(call="nodeproof.kernels.memory:pattern", args=args, context=context)
        return self.pool.run({"cpu0": call}, deadline_s=120)["cpu0"]

    def result(self, **args):
        reply = self.run(**args)
        assert isinstance(reply, Answer), reply
        return reply.result


@pytest.fixture(scope="module")
def pooled(tmp_path_factory):
    worker = Worker(tmp_path_factory.mktemp("memory"))
    yield worker
    worker.pool.close()


@pytest.fixture
def worker(pooled):
    pooled.on_event = None
    pooled.events.clear()
    return pooled


def judged(result):
    seen = []

    def measure(name, value, **bounds):
        seen.append(Measurement(name=name, value=float(value), **bounds))

    limits = spec_of(memory.test_pattern).limits()
    memory.test_pattern(device=CPU, result=result, measure=measure, limits=limits)
    return [m.name for m in seen if not m.held]


def test_sound_memory_holds_what_was_written(worker):
    result = worker.result(seconds=0.5)
    assert (result["wrong"], result["found"], result["planted"]) == (0, [], [])
    assert result["reference_wrong"] == 0
    assert result["loaded_s"] >= 0.5
    assert result["passes"] >= 3
    assert judged(result) == []


@pytest.mark.parametrize("seed", range(6))
def test_what_is_planted_before_each_pass_is_what_is_found(worker, seed):
    result = worker.result(seed=seed, plant="flip")
    assert [fault["phase"] for fault in result["planted"][:3]] == ["forwards", "backwards", "last"]
    assert result["planted"][3:] == [{"pattern": "as made"}, {"pattern": "inverted"}]
    assert result["found"] == result["planted"]
    assert (result["wrong"], result["reference_wrong"]) == (3, 2)
    assert judged(result) == ["wrong words", "damaged pattern words"]


def test_a_share_is_taken_of_what_all_devices_have_together(worker):
    alone, shared = worker.result(peers=1), worker.result(peers=2)
    assert shared["bytes"] == pytest.approx(alone["bytes"] / 2, rel=0.1)
    assert shared["share"] == pytest.approx(0.01, rel=0.05)


def test_bits_flipped_from_outside_are_found_where_they_are(worker):
    struck = {}

    def strike(event):
        assert event["name"] == "memory.filled"
        start = int(event["address"], 16)
        with Path(f"/proc/{event['pid']}/mem").open("r+b", buffering=0) as cells:
            for part, bit in ((0.25, 0), (0.5, 7), (0.75, 4)):
                offset = int(event["bytes"] * part)
                cells.seek(start + offset)
                byte = cells.read(1)[0] ^ (1 << bit)
                cells.seek(start + offset)
                cells.write(bytes([byte]))
                struck[offset // 8 * 8] = (start + offset // 8 * 8, [bit + offset % 8 * 8])

    worker.on_event = strike
    result = worker.result(seconds=2.0)
    found = {f["offset"]: (int(f["address"], 16), f["bits"]) for f in result["found"]}
    assert found == struck
    assert result["wrong"] == 3
    assert judged(result) == ["wrong words"]


def test_memory_that_cannot_be_had_is_refused_with_a_sentence(worker):
    worker.result(plant="flip")
    pid = worker.pool.pid("cpu0")
    (size,) = (
        int(line.split()[1]) * 1024
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmSize:")
    )
    before = resource.prlimit(pid, resource.RLIMIT_AS, (size + 64 * MIB, resource.RLIM_INFINITY))
    reply = worker.run(cpu_share=0.05)
    resource.prlimit(pid, resource.RLIMIT_AS, before)
    assert isinstance(reply, Raised)
    assert "cpu0" in reply.message
    assert "lower the share" in reply.message


def test_too_little_memory_for_a_block_is_refused(worker):
    reply = worker.run(cpu_share=1e-9)
    assert isinstance(reply, Raised)
    assert "MiB to test could not be had" in reply.message


@pytest.mark.parametrize("share", [0.0, -0.1, 0.96, 1e7])
def test_a_share_that_is_none_is_refused_before_anything_is_taken(worker, share):
    reply = worker.run(cpu_share=share)
    assert isinstance(reply, Raised)
    assert reply.type == "ValueError"
    assert worker.events == []


def test_an_unknown_plant_is_refused(worker):
    assert isinstance(worker.run(plant="fire"), Raised)


def swept(pieces, block=1024):
    held = Pattern(seed=3, block=block, device=torch.device("cpu"))
    sweep = Sweep(pattern=held, pieces=pieces, block=block)
    for _ in sweep.fill():
        pass
    return sweep


def passed(sweep, phase="forwards", **how):
    for _ in sweep.verify(phase, **{"inverted": False, **how}):
        pass


def test_an_address_that_reaches_another_cell_shows():
    cells = torch.empty(4096, dtype=torch.int64)
    sweep = swept([cells, torch.empty(2048, dtype=torch.int64), cells])  # the same cells twice
    passed(sweep)
    assert sweep.wrong >= 4096
    assert sweep.strides()[0] == {"bytes": 8, "count": 4095}


def test_a_cell_that_is_stuck_is_found_again_by_each_pass():
    sweep = swept([torch.empty(5000, dtype=torch.int64)])
    for phase, inverted in (("forwards", False), ("backwards", True)):
        cells = sweep.blocks[2].cells
        cells[9] = 0
        passed(sweep, phase, inverted=inverted, backwards=inverted)
    assert [(f["offset"], f["phase"]) for f in sweep.found] == [
        ((2 * 1024 + 9) * 8, "forwards"),
        ((2 * 1024 + 9) * 8, "backwards"),
    ]


@pytest.mark.parametrize("bit", [0, 31, 63])
def test_each_bit_of_each_word_is_compared(bit):
    sweep = swept([torch.empty(3000, dtype=torch.int64)])
    for offset in range(0, sweep.bytes, 8 * 97):
        planted = sweep.flip(offset, bit, "forwards", inverted=False)
        sweep.found.clear()
        passed(sweep, inverted=False, invert=False)
        assert sweep.found == [planted]


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("inverted", [False, True])
def test_the_pattern_is_what_python_reckons_from_the_seed(inverted, windowed):
    held = Pattern(seed=3, block=512, device=torch.device("cpu"), windowed=windowed)
    for number in (0, 1, 77):
        block = Block(number=number, offset=0, cells=torch.empty(512, dtype=torch.int64))
        words = held.expected(block, inverted=inverted).numpy().view(np.uint64).tolist()
        assert words == [held.word(number, i, inverted=inverted) for i in range(512)]
        assert len(set(words)) == 512


@pytest.mark.parametrize("turned", ["base", "_inverse"])
def test_damage_to_the_pattern_itself_is_told_apart(turned):
    sweep = swept([torch.empty(64 * 1024, dtype=torch.int64)])
    assert sweep.pattern.damage() == {"as made": 0, "inverted": 0}
    getattr(sweep.pattern, turned)[1024] ^= 1 << 40  # in every window of a processor's pattern
    if turned == "_inverse":
        passed(sweep)
    passed(sweep, inverted=turned == "_inverse")
    as_made = int(turned == "base")
    assert sweep.pattern.damage() == {"as made": as_made, "inverted": 1 - as_made}
    assert sweep.wrong == 64  # one word of each block
    assert {tuple(f["bits"]) for f in sweep.found} == {(40,)}


@pytest.mark.parametrize("seed", range(20))
def test_words_that_one_address_line_tells_apart_hold_different_words(seed):
    held = Pattern(seed=seed, block=64, device=torch.device("cpu"))
    cells = torch.empty(64 * 64, dtype=torch.int64)
    for _ in Sweep(pattern=held, pieces=[cells], block=64).fill():
        pass
    for line in range(12):
        assert not (cells[torch.arange(4096) ^ (1 << line)] == cells).any()


@pytest.mark.parametrize("size", [1, 7, 8, 1000])
def test_one_bit_is_the_difference_between_same_and_not(size):
    cells = torch.arange(size)
    assert same(cells, cells.clone())
    for word, bit in ((0, 0), (size - 1, 63), (size // 2, 31)):
        other = cells.clone()
        other[word] ^= torch.tensor(1).bitwise_left_shift(torch.tensor(bit))
        assert not same(cells, other)
        assert not same(cells.expand(2, size).T, other.expand(2, size).T)  # nothing side by side


def test_faults_are_planted_elsewhere_on_each_device(context):
    places = []
    for device in ("cpu0", "cpu1"):
        made = Context(**{**context(device_id=device), "host_root": Path("/")})
        answer = pattern(made, cpu_share=0.002, gpu_share=0.9, plant="flip")
        assert answer["found"] == answer["planted"]
        places.append([fault["offset"] for fault in answer["planted"] if "offset" in fault])
    assert not set(places[0]) & set(places[1])


def node(root, files):
    meminfo = "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  800 kB\n"
    for name, text in {"proc/meminfo": meminfo, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


GROUP = "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("files", "kib"),
    [
        ({}, (800, 1000)),
        ({"proc/self/cgroup": "0::/\n"}, (800, 1000)),
        (
            {
                "proc/self/cgroup": "0::/pods/one\n",
                f"{GROUP}/pods/one/memory.max": "max\n",
                f"{GROUP}/pods/memory.max": str(500 * 1024),
                f"{GROUP}/pods/memory.current": str(300 * 1024),
                f"{GROUP}/pods/memory.stat": f"anon 1\ninactive_file {100 * 1024}\n",
            },
            (300, 500),
        ),
        (
            # In a container the path is the one outside, and our own group is the mount's root.
            {
                "proc/self/cgroup": "4:cpu:/x\n3:memory:/kubepods/abc\n0::/\n",
                f"{GROUP}/memory/memory.limit_in_bytes": str(400 * 1024),
                f"{GROUP}/memory/memory.usage_in_bytes": str(150 * 1024),
                f"{GROUP}/memory/memory.stat": "total_inactive_file 0\n",
            },
            (250, 400),
        ),
        (
            {
                "proc/self/cgroup": "3:memory:/\n",
                f"{GROUP}/memory/memory.limit_in_bytes": "9223372036854771712",
            },
            (800, 1000),
        ),
        (
            {
                "proc/self/cgroup": "0::/\n",
                f"{GROUP}/memory.max": str(100 * 1024),
                f"{GROUP}/memory.current": str(120 * 1024),
                f"{GROUP}/memory.stat": "inactive_file 0\n",
            },
            (0, 100),
        ),
    ],
)
def test_the_least_that_machine_and_control_groups_leave_is_available(tmp_path, files, kib):
    assert available(node(tmp_path, files)) == (kib[0] * 1024, kib[1] * 1024)


@pytest.mark.parametrize(
    "meminfo", ["", "MemTotal: 5 kB\n", "MemAvailable: x kB\nMemTotal: 5 kB\n"]
)
def test_a_machine_that_does_not_say_what_is_available_is_refused(tmp_path, meminfo):
    with pytest.raises(RuntimeError, match="meminfo"):
        available(node(tmp_path, {"proc/meminfo": meminfo}))


def test_a_result_is_plain_json(worker):
    result = worker.result(plant="flip")
    assert json.loads(json.dumps(result)) == result
