"""`nodeproof record`: what was answered, refused and lost is written down, and can be read back."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from nodeproof_command import nodeproof

from nodeproof.checks import Work
from nodeproof.child import Answer, Loss, Lost, Raised
from nodeproof.model import Device, DeviceKind, Profile
from nodeproof.plugin import options
from nodeproof.plugin.performing import Done, WorkFailed
from nodeproof.plugin.recording import FILES, Recorder, RecordingError, load
from tests.standin.build import GPUS, build, put_gpu

MACHINE = {"boot_id": "b", "instance_type": "i", "kernel": "k", "name": "not to be told"}
NODE = Device(kind=DeviceKind.NODE, id="not-to-be-told", label="not-to-be-told")
HOST = Device(kind=DeviceKind.HOST, id="not-to-be-told", label="not-to-be-told")
GPU = Device(kind=DeviceKind.GPU, id=GPUS[0], label="gpu0")
WORK = Work(call="nodeproof.probes.counters:read", args={"output": "@output"}, before="x.y:z")
SAMPLE = {"device": GPUS[0], "power_w": 123.4, "throttle": 68, "counters": {"remap_pending": 0}}


@pytest.fixture
def recorder():
    return Recorder(device="cuda", cpu_devices=2, profile=Profile.QUICK, spec={"name": "p5"})


def done(reply):
    return Done(reply=reply, seconds=1.5, samples=(SAMPLE, SAMPLE), since=SAMPLE)


def written(recorder, path, *, interrupted=""):
    recorder.write(path / "node.json", MACHINE, interrupted=interrupted)
    return load(path / "node.json")


@pytest.mark.parametrize(
    "reply",
    [
        Answer(result={"counters": {"a": 1, "b": None}}, silence_s=0.25),
        Raised(type="Unreadable", message="/x: gone", cause="environment", trace=""),
        Lost(how=Loss.DEADLINE, text="worker gpu0 ran past its deadline"),
        Lost(how=Loss.SILENT, text="worker gpu0 went silent", stuck=True),
    ],
)
def test_what_became_of_work_is_read_back_as_it_was(recorder, tmp_path, reply):
    recorder.note(WORK, WORK.args, GPU, done(reply))
    found = written(recorder, tmp_path).answer(WORK, WORK.args, GPU)
    assert found == done(reply)
    if isinstance(reply, Answer):
        assert found.result() == done(reply).result()
        assert found.reply.silence_s == reply.silence_s
    else:
        with pytest.raises(WorkFailed) as lost:
            found.result()
        with pytest.raises(WorkFailed) as first:
            done(reply).result()
        assert (str(lost.value), lost.value.cause, lost.value.remedy) == (
            str(first.value),
            first.value.cause,
            first.value.remedy,
        )


def test_another_question_has_no_answer(recorder, tmp_path):
    recorder.note(WORK, WORK.args, GPU, done(Answer(result={})))
    recording = written(recorder, tmp_path)
    other = Device(kind=DeviceKind.GPU, id=GPUS[1], label="gpu0")
    assert recording.answer(WORK, WORK.args, GPU)
    assert recording.answer(WORK, {**WORK.args, "plant": "flip"}, GPU) is None
    assert recording.answer(WORK, WORK.args, other) is None
    assert recording.answer(WORK, WORK.args, NODE) is None
    assert recording.answer(Work(call=WORK.call), WORK.args, GPU) is None


def test_node_and_host_are_one_machine_without_a_name(recorder, tmp_path):
    recorder.note(WORK, {}, NODE, done(Answer(result={"hostname": "not-to-be-told", "x": 1})))
    recording = written(recorder, tmp_path)
    elsewhere = Device(kind=DeviceKind.HOST, id="replayed", label="replayed")
    assert recording.answer(WORK, {}, HOST) == recording.answer(WORK, {}, elsewhere)
    assert recording.answer(WORK, {}, elsewhere).result()["x"] == 1
    assert "not" not in (tmp_path / "node.json").read_text()
    assert (recording.spec, recording.device) == ("p5", "cuda")


def test_what_was_computed_is_not_written_down(recorder, tmp_path):
    recorder.note(Work(call="nodeproof.kernels.gemm:exact"), {}, GPU, done(Answer(result={})))
    with pytest.raises(RecordingError, match="holds no answer"):
        written(recorder, tmp_path)


@pytest.mark.parametrize(
    ("reply", "files"),
    [
        (Answer(result={"files": {"proc/uptime": "1 2"}}), {"proc/uptime": "1 2"}),
        (
            Raised(type="X", message="no /proc", cause="environment", trace=""),
            {"unreadable": "no /proc"},
        ),
        (Lost(how=Loss.DIED, text="it died"), {"unreadable": "it died"}),
    ],
)
def test_the_files_stand_beside_the_answers(recorder, tmp_path, reply, files):
    recorder.note(WORK, WORK.args, GPU, done(Answer(result={})))
    recorder.note(FILES, {}, NODE, done(reply))
    written(recorder, tmp_path)
    document = json.loads((tmp_path / "node.json").read_text())
    assert document["files"] == files
    assert {a["call"] for a in document["answers"]} == {WORK.call}


# --- by the command -------------------------------------------------------------------------


def test_a_place_that_takes_no_file_is_refused_before_anything_is_read(tmp_path):
    done = nodeproof("record", "--device=cpu", "-o", tmp_path, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Is a directory" in done.stderr


@pytest.mark.long
def test_a_hung_driver_is_recorded_as_lost_and_found_again(tmp_path):
    build("nvml.c", tmp_path / "libnvidia-ml.so.1")
    put_gpu(tmp_path / "root", "0000:3b:00.0")
    (tmp_path / "root/proc").symlink_to("/proc")
    done = nodeproof(
        *("record", "--host-root=root", "-o", "node.json"),
        cwd=tmp_path,
        LD_LIBRARY_PATH=str(tmp_path),
        STANDIN_NVML=GPUS[0],
        STANDIN_HANG="nvmlInitWithFlags",
    )
    assert done.returncode == 0, done.stderr
    again = nodeproof("run", "--replay=node.json", "--output=out", cwd=tmp_path)
    assert again.returncode == 11, again.stdout
    assert "ran past its deadline" in again.stdout
    assert "asking NVML" in again.stdout


def test_a_replay_is_not_recorded():
    told = argparse.Namespace(
        nodeproof_profile="quick",
        nodeproof_device="auto",
        nodeproof_cpu_devices=2,
        nodeproof_replay=Path("node.json"),
        nodeproof_group=None,
        nodeproof_record=Path("again.json"),
    )
    with pytest.raises(options.OptionError, match="a replay can't be recorded"):
        options.read(told)
