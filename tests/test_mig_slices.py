"""Slices of a GPU, tested for real: each in a process of its own, with the processor to compute."""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeproof.acceptance import test_mig as mig
from nodeproof.checks import spec_of
from nodeproof.child import Answer, Pool, Raised
from nodeproof.model import Cause, Device, DeviceKind, Outcome, Remedy
from nodeproof.plugin.selftesting import concluded, planted_in_answer
from tests.standin.build import Driver, build, judged
from tests.standin.node import SCENARIOS

SLICES = "nodeproof.probes.mig:slices"
GPU = "GPU-5a4f3c2b-1000-4e6f-8a9b-c0d1e2f3a4b5"
ONE, TWO = (f"MIG-11111111-2222-3333-4444-88888888000{n}" for n in range(2))
ONE_ONLY = "nvmlDeviceGetMaxMigDeviceCount@0=1"
TWO_ONLY = "nvmlDeviceGetMaxMigDeviceCount@0=2"
ARGS = {"gpu_share": 0.97, "hold_s": 0.2}

CONTEXT = {
    "device_kind": "gpu",
    "device_label": "gpu0",
    "threads": 1,
    "peers": 1,
    "profile": "quick",
    "seed": 7,
    "group": None,
}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    build("nvml.c", folder / "libnvidia-ml.so.1")
    build("cuda.c", folder / "libcuda.so.1")
    return folder


@contextmanager
def asking(libraries, folder, on_event):
    """Ask for the slices of the first GPU of a node that says what the scenarios and lines say."""

    def listen(_worker, kind, content):
        if kind == "event":
            on_event(content)

    pool = Pool(ends=time.monotonic() + 300, logs=folder, listen=listen)

    def ask(*scenarios, also="", torch_device="cpu", args=None, **plan):
        told = folder / "scenario.txt"
        texts = [(SCENARIOS / f"{name}.txt").read_text() for name in scenarios]
        told.write_text("\n".join([*texts, also]) + "\n")

        def of(**more):
            return {**CONTEXT, **more, "torch_device": torch_device}

        driver = Driver(libraries, folder, pool, of)
        words = {"device": GPU, "args": {**ARGS, **(args or {})}, "SCENARIO": str(told), **plan}
        return driver.run(SLICES, deadline_s=250, **words)

    try:
        yield ask
    finally:
        pool.close(grace_s=0.5)


@pytest.fixture
def reply(libraries, tmp_path):
    with asking(libraries, tmp_path, lambda _event: None) as ask:
        yield ask


def row(**changes):
    sound = {
        "uuid": ONE,
        "profile": "1g.10gb",
        "untested": "",
        "foreign": [],
        "wrong": 0,
        "compared": 1000,
        "found": [],
        "missed": [],
        "free_of_total": 0.99,
    }
    return {**sound, **changes}


def answer(*rows, on=True):
    return {"on": on, "slices": list(rows)}


def caught(result, peers=()):
    spec, device = spec_of(mig.test_slices), Device(kind=DeviceKind.GPU, id=GPU, label="gpu0")

    def attempt(given):
        return judged(mig.test_slices, given, None, peers)[0]

    trials = [planted_in_answer(spec, plant, result, attempt) for plant in spec.plants]
    test = concluded(spec, device, trials, attempt(result).bounded)
    assert test.caught, test.summary


# --- what is judged -------------------------------------------------------------------------


def test_a_slice_without_an_answer_is_no_pass():
    result = answer(row(), row(uuid=TWO, untested="memory: no CUDA"))
    judgement, broken = judged(mig.test_slices, result)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert list(broken) == ["slices tested"]
    assert TWO in broken["slices tested"].detail
    assert ONE not in broken["slices tested"].detail


def test_mig_that_is_on_without_a_slice_is_no_pass():
    judgement, broken = judged(mig.test_slices, answer())
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert "no slice" in broken["slices tested"].detail
    caught(answer())


def test_a_whole_gpu_has_no_slices_to_test_and_its_plants_are_caught():
    result = answer(on=False)
    assert judged(mig.test_slices, result)[0].outcome is Outcome.PASS
    caught(result)
    other = Device(kind=DeviceKind.GPU, id="GPU-other", label="gpu1")
    caught(result, peers=[(other, answer(on=False))])
    caught(answer(row(), row(uuid=TWO)))


@pytest.mark.parametrize(
    ("rows", "peers", "cause"),
    [
        ([row(wrong=3), row(uuid=TWO)], [], Cause.HARDWARE),
        ([row(wrong=3)], [row(uuid=TWO)], Cause.HARDWARE),
        ([row(wrong=3)], [], Cause.ENVIRONMENT),
        ([row(wrong=3), row(uuid=TWO, wrong=1)], [], Cause.ENVIRONMENT),
        ([row(wrong=3, missed=["memory"]), row(uuid=TWO)], [], Cause.ENVIRONMENT),
        ([row(wrong=3), row(uuid=TWO, missed=["float32"])], [], Cause.ENVIRONMENT),
        ([row(wrong=3), row(uuid=TWO, untested="lost")], [], Cause.ENVIRONMENT),
    ],
    ids=[
        "beside a sound one",
        "beside a sound one of another GPU",
        "no other",
        "all of them",
        "by a detector that misses its fault",
        "beside one whose detector misses its fault",
        "beside one that was not tested",
    ],
)
def test_a_slice_that_is_wrong_condemns_its_gpu_only_with_a_witness(rows, peers, cause):
    other = Device(kind=DeviceKind.GPU, id="GPU-other", label="gpu1")
    judgement, broken = judged(
        mig.test_slices, answer(*rows), peers=[(other, answer(*peers))] if peers else []
    )
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, cause)
    assert judgement.remedy is (Remedy.REPLACE if cause is Cause.HARDWARE else Remedy.RETEST)
    assert ONE in broken["wrong elements and words"].detail


@pytest.mark.parametrize(
    ("changes", "breaks"),
    [
        ({"foreign": ["GPU-other"]}, "devices of others"),
        ({"missed": ["float32"]}, "detectors that missed their fault"),
        ({"free_of_total": 0.5}, "least of a slice's memory free"),
    ],
)
def test_what_voids_the_test_of_a_slice_blames_nobody(changes, breaks):
    judgement, broken = judged(mig.test_slices, answer(row(**changes), row(uuid=TWO)))
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert list(broken) == [breaks]
    assert ONE in broken[breaks].detail or breaks.startswith("least")


# --- what is done ---------------------------------------------------------------------------


class Intruder:
    """Looks into the memory of each slice once all of it is filled, and flips a bit in that of one."""

    def __init__(self):
        self.heads = {}
        self._seen = set()

    def __call__(self, event):
        assert event["name"] == "memory.filled"
        name, start = event["slice"], int(event["address"], 16)
        if name not in self._seen:  # the small region in which faults are planted
            self._seen.add(name)
            return
        with Path(f"/proc/{event['pid']}/mem").open("r+b", buffering=0) as cells:
            cells.seek(start)
            self.heads[name] = cells.read(64)
            if name == TWO:
                cells.seek(start + event["bytes"] // 2)
                byte = cells.read(1)[0] ^ 1
                cells.seek(start + event["bytes"] // 2)
                cells.write(bytes([byte]))


@pytest.fixture(scope="module")
def struck(libraries, tmp_path_factory):
    intruder = Intruder()
    with asking(libraries, tmp_path_factory.mktemp("struck"), intruder) as ask:
        said = ask("hgx-h100", "mig", also=TWO_ONLY, args={"hold_s": 2.0})
    assert isinstance(said, Answer), said
    return said.result, intruder.heads


def test_every_slice_computes_and_holds_memory_in_a_process_of_its_own(struck):
    result, _ = struck
    assert result["on"]
    assert [one["uuid"] for one in result["slices"]] == [ONE, TWO]
    for one in result["slices"]:
        assert (one["profile"], one["untested"], one["foreign"]) == ("1g.10gb", "", [])
        assert one["missed"] == []
        assert one["compared"] > 1_000_000


def test_a_word_that_another_wrote_is_wrong_in_that_slice_alone(struck):
    result, _ = struck
    sound, hit = result["slices"]
    assert (sound["wrong"], sound["found"]) == (0, [])
    assert (hit["wrong"], hit["found"][0]["bits"]) == (1, [0])
    free = mig.SliceLimits(free_of_total=0.0)  # of this machine's memory others use some
    judgement, broken = judged(mig.test_slices, result, free)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.HARDWARE)
    assert list(broken) == ["wrong elements and words"]
    assert judged(mig.test_slices, answer(sound), free)[0].outcome is Outcome.PASS


def test_no_slice_holds_the_words_of_its_neighbour(struck):
    """Or what one writes where the other is would be right there."""
    _, heads = struck
    one, two = heads[ONE], heads[TWO]
    assert one not in {two, bytes(~byte & 0xFF for byte in two)}


def test_a_gpu_whose_torch_cannot_use_cuda_leaves_every_slice_untested(reply):
    said = reply("hgx-h100", "mig", also=ONE_ONLY, torch_device="cuda:0")
    assert isinstance(said, Answer), said
    (one,) = said.result["slices"]
    assert "CUDA" in one["untested"]
    assert one["compared"] == 0
    assert judged(mig.test_slices, said.result)[0].outcome is Outcome.FAIL


def test_a_process_that_sees_more_than_its_slice_tests_nothing_and_is_told_of(reply):
    said = reply("hgx-h100", "mig", also=ONE_ONLY, SEES_ALL="1", CUDA=GPU)
    assert isinstance(said, Answer), said
    (one,) = said.result["slices"]
    assert one["foreign"] == [GPU, ONE]
    assert one["untested"] == f"its process sees {GPU}"
    _, broken = judged(mig.test_slices, said.result)
    assert {"slices tested", "devices of others"} <= set(broken)


def test_a_slice_that_hangs_costs_its_deadline_and_takes_no_other_with_it(reply):
    said = reply("hgx-h100", "mig", also=TWO_ONLY, args={"limit_s": 2.0}, HANG="cuInit")
    assert isinstance(said, Answer), said
    texts = [one["untested"] for one in said.result["slices"]]
    assert all("ran past its deadline" in text and "asking CUDA" in text for text in texts), texts


@pytest.mark.parametrize(
    "lines", ["", "nvmlDeviceGetMigMode@0=0 0", "nvmlDeviceGetMigMode@0=error:3"]
)
def test_a_gpu_that_is_whole_has_none(reply, lines):
    said = reply("hgx-h100", also=lines)
    assert isinstance(said, Answer), said
    assert said.result == {"on": False, "slices": []}


def test_mig_on_and_nothing_made(reply):
    said = reply("hgx-h100", also="nvmlDeviceGetMigMode@0=1 1\nnvmlDeviceGetMaxMigDeviceCount@0=7")
    assert isinstance(said, Answer), said
    assert said.result == {"on": True, "slices": []}


@pytest.mark.parametrize(
    "line", ["nvmlDeviceGetMigMode@0=error:15", "nvmlDeviceGetMigDeviceHandleByIndex@0=error:999"]
)
def test_slices_that_cannot_be_listed_are_no_slices_that_are_not_there(reply, line):
    said = reply("hgx-h100", "mig", also=line)
    assert isinstance(said, Raised)
    assert GPU in said.message
