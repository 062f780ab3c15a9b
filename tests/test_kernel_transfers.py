"""Copies in real worker processes, sound and with a faulty library underneath."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from rehearsal import SMALL
from test_detectors import caught, run_with

from nodeproof import manifest, results
from nodeproof.acceptance import test_transfers as suite
from nodeproof.checks import Device, DeviceKind, spec_of
from nodeproof.child import Answer, Call, Pool, Raised
from nodeproof.kernels import cargo
from nodeproof.kernels.cargo import DeviceData, HostData, Piece
from nodeproof.model import Measurement
from nodeproof.verdict import Why, decide

ARENA = 1 << 19
DIRECTIONS = ("h2d", "d2h", "d2d")
KINDS = ("odd", "shifted", "aligned", "together")


class Workers:
    """One worker, or several with a sabotaged library in some."""

    def __init__(self, folder):
        self.pool = Pool(ends=time.monotonic() + 300, logs=folder, listen=lambda *_: None)

    def run(self, name="cpu0", *, seed=7, **args):
        context = {
            "device_kind": "cpu",
            "device_id": name,
            "device_label": name,
            "torch_device": "cpu",
            "threads": 1,
            "peers": 1,
            "profile": "quick",
            "seed": seed,
            "host_root": "/",
            "group": None,
        }
        call = Call(call="nodeproof.kernels.transfers:copies", args=args, context=context)
        return self.pool.run({name: call}, deadline_s=60)[name]

    def result(self, name="cpu0", **how):
        reply = self.run(name, **how)
        assert isinstance(reply, Answer), reply
        return reply.result


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    workers = Workers(tmp_path_factory.mktemp("transfers"))
    workers.pool.add("cpu0")
    yield workers
    workers.pool.close()


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A worker in which each test says what the library does wrong."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "sitecustomize.py").write_text(LIBRARY)
    workers = Workers(folder)
    workers.pool.add("cpu0", {"PYTHONPATH": str(folder)})
    yield folder / "fault.py", workers
    workers.pool.close(grace_s=1.0)


@pytest.fixture
def faulty(library):
    fault, workers = library

    def start(code):
        fault.write_text(textwrap.dedent(code))
        return workers

    return start


# Only what the kernel copies under test is told not to block.
LIBRARY = """
import time
from pathlib import Path

import torch

sound, clock, whole = torch.Tensor.copy_, time.perf_counter, torch.arange
names = {}

def now(name):
    text = Path(__file__).with_name("fault.py").read_text()
    if names.get("text") != text:
        names.clear()
        names.update(text=text, sound=sound, torch=torch)
        exec(text, names)
    return names.get(name)

def copy_(self, source, non_blocking=False):
    if non_blocking and now("fault"):
        return names["fault"](self, source)
    return sound(self, source)

def arange(*args, **more):
    made = whole(*args, **more)
    if now("miscounts") and len(made) > 10_000:
        made[4321] ^= 1
    return made

torch.Tensor.copy_, torch.arange = copy_, arange
time.perf_counter = lambda: 0.0 if now("stands_still") else clock()
"""

FLIP = """
def fault(self, source):
    sound(self, source)
    if self.numel() == 1025:
        self[77] ^= 4
    return self
"""


CPU = Device(kind=DeviceKind.CPU, id="cpu0", label="cpu0")


def judged(result, limits=None, device=CPU):
    taken = []

    def measure(name, value, **bounds):
        taken.append(Measurement(name=name, value=float(value), **bounds))

    suite.test_copies(device=device, result=result, measure=measure, limits=limits or suite.Rates())
    return [m.name for m in taken if not m.held]


def test_sound_copies_bring_every_byte_and_say_how_fast(sound):
    result = sound.result(seconds=0.2)
    assert (result["wrong"], result["found"], result["planted"]) == (0, [], [])
    assert result["reference_wrong"] == 0
    assert result["loaded_s"] >= 0.2
    assert set(result["checked"]) == set(result["gbs"]) == set(DIRECTIONS)
    assert set(result["ways"]) == {"h2d pageable", "d2h pageable", "d2d device"}
    for direction in DIRECTIONS:
        # Whole arenas: what lies between the copies is compared as well.
        assert result["checked"][direction] == result["rounds"] * len(KINDS) * result["arena"]
        assert result["gbs"][direction] > 0
    assert judged(result) == []


@pytest.mark.parametrize("seed", range(3))
def test_what_is_flipped_in_and_beside_each_kind_of_copy_is_what_is_found(sound, seed):
    result = sound.result(seed=seed, plant="flip")
    assert result["found"] == result["planted"]
    copied = [p for p in result["planted"] if p["region"] != "base"]
    assert result["wrong"] == len(copied)
    word, digest = result["planted"][len(copied) :]
    assert (int(word["word"]) < ARENA // 8, digest["word"]) == (True, "all")
    assert int(word["xor"], 16).bit_count() == 1
    assert result["reference_wrong"] == 2
    places = [(p["direction"], p["kind"], p["region"]) for p in copied]
    assert sorted(places) == sorted(
        [(d, k, "data") for d in DIRECTIONS for k in KINDS]
        + [(d, "aligned", "fence") for d in DIRECTIONS]
    )
    assert all(int(p["xor"], 16).bit_count() == 1 for p in copied)
    assert judged(result) == ["wrong bytes", "damaged expectation"]


@pytest.mark.parametrize("seed", range(3))
def test_a_copy_that_is_left_out_is_found_by_the_number_of_its_round(sound, seed):
    result = sound.result(seed=seed, plant="stale")
    assert result["found"] == result["planted"]
    copied = [p for p in result["planted"] if p["region"] != "base"]
    assert [p["word"] for p in result["planted"][len(copied) :]] == ["all"]
    assert [(p["direction"], p["kind"]) for p in copied] == [
        *itertools.product(DIRECTIONS, KINDS[:3]),
        *((d, "together") for d in DIRECTIONS),
    ]
    # Two random bytes are the same once in 256.
    assert all(p["bytes"] > 0.8 * p["size"] for p in copied)
    assert judged(result) == ["wrong bytes", "damaged expectation"]


def test_faults_are_planted_elsewhere_on_another_device_and_the_same_in_a_replay(sound):
    sound.pool.add("cpu1")
    first, again = (sound.result("cpu0", plant="flip")["planted"] for _ in range(2))
    assert first == again != sound.result("cpu1", plant="flip")["planted"]


def test_an_unknown_plant_is_refused(sound):
    reply = sound.run(plant="swap")
    assert isinstance(reply, Raised)
    assert (reply.type, "swap" in reply.message) == ("ValueError", True)


def test_a_byte_that_is_always_wrong_is_found_and_does_not_crowd_out_the_planted(faulty):
    worker = faulty(FLIP)
    result = worker.result()
    assert {(f["kind"], f["size"], f["offset"], f["bytes"], f["xor"]) for f in result["found"]} == {
        ("odd", 1025, 77, 1, "0x04")
    }
    assert [f["direction"] for f in result["found"]] == list(DIRECTIONS)
    assert result["wrong"] == 3
    assert judged(result) == ["wrong bytes"]
    for plant in ("flip", "stale"):
        planted = worker.result(plant=plant)
        own = [f for f in planted["found"] if f not in planted["planted"]]
        assert [f for f in planted["found"] if f not in own] == planted["planted"]
        assert {(f["size"], f["offset"]) for f in own} == {(1025, 77)}


@pytest.mark.parametrize(
    ("what", "code", "region"),
    [
        ("nothing is copied", "def fault(self, source):\n    return self", "data"),
        (
            "one byte late",
            "def fault(self, source):\n    return sound(self, source.roll(1))",
            "data",
        ),
        (
            "one byte too many",
            """
            def fault(self, source):
                sound(self, source)
                whole = self.as_strided((self.numel() + 1,), (1,))
                whole[-1] ^= 1
                return self
            """,
            "fence",
        ),
        (
            "the byte before",
            """
            def fault(self, source):
                sound(self, source)
                before = self.as_strided((1,), (1,), self.storage_offset() - 1)
                before ^= 128
                return self
            """,
            "fence",
        ),
    ],
)
def test_stale_shifted_and_overrun_copies_show_in_every_direction(faulty, what, code, region):
    result = faulty(code).result()
    assert {f["region"] for f in result["found"]} == {region}, what
    assert result["wrong"] >= 3 * 33
    assert len(result["found"]) == 16  # the first that are described; all are counted
    assert judged(result) == ["wrong bytes"]


def test_two_copies_that_arrive_in_each_others_place_show(faulty):
    result = faulty(
        """
        kept = {}
        def fault(self, source):
            sound(self, source)
            if self.numel() > 100_000 and self.numel() < 300_000:
                other = kept.setdefault("other", self)
                if other is not self:
                    kept.clear()
                    held = self.clone()
                    sound(self, other)
                    sound(other, held)
            return self
        """
    ).result()
    assert {f["kind"] for f in result["found"]} == {"together"}
    assert len(result["found"]) == 12  # four pieces of each direction


def test_a_device_that_makes_other_data_than_the_host_is_not_believed(faulty):
    result = faulty("miscounts = True").result()
    assert result["reference_wrong"] > 0
    assert "damaged expectation" in judged(result)


def test_a_clock_that_stands_still_is_no_rate(faulty):
    reply = faulty("stands_still = True").run()
    assert isinstance(reply, Raised)
    assert "bytes were copied in 0" in reply.message
    assert "clock" in reply.message


def test_host_and_device_make_the_same_bytes_by_different_means():
    host = HostData(seed=3, arena=ARENA)
    there = DeviceData(seed=3, arena=ARENA, device="cpu")
    assert cargo.damage(host, there) == []
    for number in (1, 2, 17):
        for pieces in (cargo.odd(number), cargo.shifted(number, ARENA), cargo.aligned(ARENA, 4)):
            wanted = host.expected("h2d", number, pieces)
            assert torch.equal(wanted, there.expected("h2d", number, pieces))
            assert host.byte("h2d", number, pieces[0].start) == int(wanted[pieces[0].start])
            assert host.byte("h2d", number - 1, 0) == int(wanted[0])
    there._base[1000] ^= 1
    assert [each["word"] for each in cargo.damage(host, there)] == ["all"]
    other = HostData(seed=4, arena=ARENA)
    assert len(cargo.damage(other, DeviceData(seed=3, arena=ARENA, device="cpu"))) > 60


@pytest.mark.parametrize("bit", [0, 31, 63])
def test_a_bit_of_what_all_bytes_come_from_is_seen_in_its_word_and_in_the_digest(bit):
    host = HostData(seed=3, arena=ARENA)
    for place in (cargo.sample(host)[5], ARENA // 8 - 1, 0):
        there = DeviceData(seed=3, arena=ARENA, device="cpu")
        planted = []
        cargo.strike(host, there, place, bit, into=planted)
        assert cargo.damage(host, there) == planted
        assert planted[-1]["word"] == "all"


def test_kinds_of_copies_that_are_left_out_are_no_pass(sound):
    result = sound.result()
    gpu = Device(kind=DeviceKind.GPU, id="cuda:0", label="gpu0")
    assert judged(result, device=gpu) == ["arena", "kinds of copies", "copied in each kind"]
    for way, kinds in result["flown"].items():
        for kind, (copies, size) in kinds.items():
            rest = {k: v for k, v in kinds.items() if k != kind}
            lacks = {**result, "flown": {**result["flown"], way: rest}}
            assert judged(lacks) == ["kinds of copies", "copied in each kind"]
            fewer = {**result["flown"], way: {**kinds, kind: (copies - 1, size)}}
            assert judged({**result, "flown": fewer}) == ["kinds of copies"]
            less = {**result["flown"], way: {**kinds, kind: (copies, size * 4 // 5)}}
            assert judged({**result, "flown": less}) == ["copied in each kind"]
    assert judged({**result, "rounds": result["rounds"] + 1}) == [
        *("kinds of copies", "copied in each kind", "checked")
    ]


def test_wrong_bytes_that_nothing_describes_fail_with_a_sentence(sound):
    taken = {}

    def measure(name, value, *, detail="", **bounds):
        taken[name] = detail

    result = {**sound.result(), "wrong": 3}
    suite.test_copies(device=CPU, result=result, measure=measure, limits=suite.Rates())
    assert judged(result) == ["wrong bytes"]
    assert "could be described" in taken["wrong bytes"]


@pytest.mark.parametrize("number", range(0, 300, 7))
def test_copies_lie_apart_inside_their_arenas_at_both_ends(number):
    layouts = (cargo.odd(number), cargo.shifted(number, ARENA), cargo.aligned(ARENA, 4))
    for pieces in layouts:
        starts = [(p.start, p.stop) for p in pieces]
        sources = [(p.source, p.source + p.size) for p in pieces]
        for ends in (starts, sources):
            assert ends[0][0] > 0
            assert ends[-1][1] < ARENA
            assert all(stop < start for (_, stop), (start, _) in itertools.pairwise(ends))


def test_every_alignment_of_both_ends_is_tried():
    tried = {(p.start % 16, p.source % 16) for n in range(256) for p in cargo.odd(n)}
    assert len(tried) == 256


def test_an_arena_of_another_shape_is_refused():
    whole = torch.zeros(64, dtype=torch.uint8)
    piece = (Piece(size=8, start=8, source=8),)
    for other in (whole[:32], whole.to(torch.float32)):
        with pytest.raises(ValueError, match="arena of bytes"):
            cargo.wrong(other, whole, piece)


def test_a_floor_of_a_spec_is_held_and_its_plant_breaks_it(sound):
    result = sound.result()
    high = suite.Rates(h2d_gbs=1e6, d2d_gbs=1e6)
    assert judged(result, high) == ["host to device", "device to device"]
    low = suite.Rates(h2d_gbs=1e-6, d2h_gbs=1e-6, d2d_gbs=1e-6)
    assert judged(result, low) == []
    altered = [p.alter(result) for p in spec_of(suite.test_copies).plants if p.alter]
    broken = {name for answer in altered for name in judged(answer, low)}
    assert broken == {
        *("checked", "kinds of copies", "copied in each kind", "arena"),
        *("host to device", "device to host", "device to device"),
    }


def test_a_direction_that_was_not_checked_or_not_timed_is_no_pass(sound):
    result = sound.result()
    assert judged({**result, "checked": {**result["checked"], "d2h": 0}}) == ["checked"]
    for name in ("checked", "gbs"):
        lacks = {k: v for k, v in result[name].items() if k != "d2h"}
        with pytest.raises(KeyError):
            judged({**result, name: lacks})


def test_a_fault_on_one_of_two_devices_condemns_that_one_through_pytest(tmp_path):
    """In the planted runs too its own fault is there, and may not make the detector look broken."""
    only = (
        "from pathlib import Path\nif Path('/proc/self/fd/1').resolve().name == 'worker-cpu1.log':"
    )
    (tmp_path / "sitecustomize.py").write_text(only + textwrap.indent(LIBRARY, "    "))
    (tmp_path / "fault.py").write_text(FLIP)
    spec = tmp_path / "small.toml"
    spec.write_text(SMALL)
    subprocess.run(
        [
            *(
                sys.executable,
                "-P",
                "-m",
                "pytest",
                "--pyargs",
                "nodeproof.acceptance.test_transfers",
            ),
            *("-p", "no:cacheprovider", "-q", "--nodeproof-device=cpu", "-k", "test_copies"),
            *(f"--nodeproof-spec={spec}", f"--nodeproof-output={tmp_path / 'out'}"),
        ],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        check=False,
        capture_output=True,
    )
    found = results.read(tmp_path / "out" / "results.jsonl")
    assert caught(found, "transfers.host") == {True}
    told = decide(found, manifest.shipped())
    about = [r for r in told.failed if r.check == "device.transfers.host"]
    outcomes = {f.device.label: f.outcome for f in found.findings}
    assert outcomes == {"cpu0": "pass", "cpu1": "fail"}
    text = next(f.summary for f in found.findings if f.outcome == "fail")
    assert "1 of 1025 bytes in the copy" in text
    assert "first at 77" in text
    assert {(r.device, r.why) for r in about} == {("cpu1", Why.FAILED)}


BROKEN = [
    ("kernels/cargo.py", "if torch.equal(got.view(torch.int64), expected.view(torch.int64)):", "if True:"),
    ("kernels/cargo.py", "differs = got[start:stop] != expected[start:stop]", "differs = got[start:stop] != got[start:stop]"),
    ("kernels/flights.py", "self.number - 1)", "self.number)"),  # what is stale is right
    ("kernels/cargo.py", "for start, stop in gaps(pieces, self.arena)", "for start, stop in ()"),
    ("acceptance/test_transfers.py", 'result["wrong"], at_most=0', 'result["wrong"]'),
    ("acceptance/test_transfers.py", "        at_least=max(len(_COPIES) * arena * rounds, 1),\n", ""),
    ("acceptance/test_transfers.py", '        at_most=0,\n        detail="the device makes', '        detail="the device makes'),
    ("kernels/transfers.py", "self._verify(flight, always=planted)", "self.checked[flight.way.direction] = 1"),
    ("kernels/cargo.py", "if wanted != seen]", "if False]"),
    ("kernels/cargo.py", 'pairs.append(("all", host.digest(), device.digest()))', "pass"),
    ("kernels/cargo.py", "for place in sample(host)]", "for place in ()]"),
    ("acceptance/test_transfers.py", "            at_least=1,\n            detail=f", "            detail=f"),
    ("acceptance/test_transfers.py", "        at_least=_ARENA_GPU if gpu else _ARENA_CPU,\n", ""),
]  # fmt: skip
LEFT_OUT = [
    ("kernels/transfers.py", '            self._fly([self._flight(way, "odd", cargo.odd(self.rounds))])\n', ""),
    ("kernels/transfers.py", "for d in DIRECTIONS])", "for d in DIRECTIONS[:1]])"),
    ("kernels/transfers.py", "_PARTS = 4", "_PARTS = 1"),
    ("kernels/transfers.py", '"cpu": _MIB // 2', '"cpu": _MIB // 4'),
    ("kernels/cargo.py", "511, 513, 1023,", "511, 513,"),
    ("kernels/cargo.py", "size = arena - 4", "size = arena // 2 - 4"),
    ("kernels/transfers.py", "self._verify(flight, always=planted)", "self._verify(flight, always=planted) if planted else None"),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "old", "new"),
    LEFT_OUT,
)
def test_copies_that_are_left_out_are_no_pass_of_a_whole_run(tmp_path, file, old, new):
    found = run_with(tmp_path, file, old, new, "copies")
    assert "pass" not in {
        f.outcome for f in found.findings if f.key.check.endswith("transfers.host")
    }


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "old", "new"),
    BROKEN,
)
def test_a_comparison_of_copies_that_is_broken_is_a_self_test_that_is_missed(
    tmp_path, file, old, new
):
    found = run_with(tmp_path, file, old, new, "copies")
    assert False in caught(found, "transfers.host")


@pytest.mark.long
def test_the_copies_run_alone():
    ran = subprocess.run(
        [sys.executable, "-m", "nodeproof.kernels.transfers"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout.count("caught") == 2
    assert "exact" in ran.stdout
