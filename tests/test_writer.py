"""Writing results: on a disk that is full, over a file that is there."""

from __future__ import annotations

import contextlib
import errno
import json
import subprocess

import pytest

from nodeproof.results import FILE, Writer, read
from tests.conftest import need
from tests.shipped_run import accepted


@pytest.fixture
def full(tmp_path):
    """A disk of 1 MiB."""
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)],
        capture_output=True,
        check=False,
    )
    need(there=made.returncode == 0, what="the right to mount a small disk")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def _fill(folder):
    with (folder / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_telemetry_on_a_full_disk_is_dropped_and_counted_and_leaves_no_torn_line(full):
    with Writer(full / FILE) as writer:
        writer.write("event", {"name": "first"})
        _fill(full)
        for number in range(100):
            writer.write("telemetry", {"n": number, "words": "x" * 1000})
        kept = len((full / FILE).read_bytes().splitlines()) - 1
        assert 0 < writer.lost == 100 - kept
        (full / "filler").unlink()
        writer.write("event", {"name": "last"})
    lines = (full / FILE).read_bytes().splitlines(keepends=True)
    assert all(line.endswith(b"\n") for line in lines)
    assert [json.loads(line)["seq"] for line in lines] == list(range(kept + 2))


def test_a_finding_on_a_full_disk_raises_and_leaves_the_file_as_it_was(full):
    with Writer(full / FILE) as writer:
        writer.write("event", {"name": "first"})
        _fill(full)
        before = (full / FILE).read_bytes()
        with pytest.raises(OSError, match="space") as caught:
            writer.write("finding", {"words": "x" * 10_000})
        assert (caught.value.errno, writer.lost) == (errno.ENOSPC, 0)
        assert (full / FILE).read_bytes() == before


def test_a_file_that_is_there_is_never_written_over(tmp_path):
    accepted().write(tmp_path / FILE)
    with pytest.raises(FileExistsError):
        Writer(tmp_path / FILE)
    assert read(tmp_path / FILE).problems == ()


def test_no_content_can_pass_for_a_line_of_another_kind(tmp_path):
    with Writer(tmp_path / FILE) as writer:
        writer.write("event", {"type": "end", "seq": 7, "name": "from a worker"})
    line = json.loads((tmp_path / FILE).read_bytes())
    assert (line["type"], line["seq"]) == ("event", 0)
