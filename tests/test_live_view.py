"""What a person at a terminal sees of a run, taken from a real pseudo-terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest
from rehearsal import NODEPROOF, SMALL

HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Screen:
    """A run under a terminal of 120 columns, read until something is seen."""

    def __init__(self, folder, *words, columns=120, **environment):
        (folder / "small.toml").write_text(SMALL)
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.settings = termios.tcgetattr(theirs)
        plain = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "COLUMNS", "CI"}}
        more = ["--device=cpu", "--spec=small.toml", "--output=out", *words]
        self.process = subprocess.Popen(
            [*NODEPROOF, "run", *more],
            cwd=folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**plain, "TERM": "xterm-256color", **environment},
        )
        self._theirs = theirs
        self.raw = ""

    @property
    def text(self):
        """All that was ever written, without control codes."""
        return CODES.sub("", self.raw).replace("\r", "\n")

    def wait_for(self, pattern, within_s=90.0):
        ends = time.monotonic() + within_s
        while not re.search(pattern, self.text):
            assert time.monotonic() < ends, self.text
            assert self._take(1.0) or self.process.poll() is None, self.text

    def stop(self):
        """Interrupt as Ctrl-C does and read to the end; return the exit status."""
        self.process.send_signal(signal.SIGINT)
        ends = time.monotonic() + 30
        while self.process.poll() is None:
            assert time.monotonic() < ends, self.text
            self._take(0.2)
        while self._take(0.2):
            pass
        assert termios.tcgetattr(self._theirs) == self.settings
        return self.process.returncode

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for end in (self._ours, self._theirs):
            with contextlib.suppress(OSError):
                os.close(end)

    def _take(self, wait_s):
        if not select.select([self._ours], [], [], wait_s)[0]:
            return False
        self.raw += os.read(self._ours, 65536).decode(errors="replace")
        return True


@pytest.fixture
def screen(tmp_path):
    made = []

    def start(*words, **more):
        made.append(Screen(tmp_path, *words, **more))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_a_terminal_shows_devices_and_time_left_and_is_left_as_it_was(screen, tmp_path):
    run = screen()
    run.wait_for(r"cpu1 .*\n")
    run.wait_for(r"\d+ of \d+ findings")
    assert run.text.lstrip().startswith("REHEARSAL on 2 CPU devices")
    assert re.search(r"device +runs +TFLOP/s +power +temp +clock +findings", run.text)
    assert re.search(r"cpu0 .* MHz", run.text)
    assert re.search(r"[0-3]:[0-5]\d left", run.text)
    assert run.stop() == 11
    assert run.raw.rindex(SHOWN) > run.raw.rindex(HIDDEN)
    last = run.raw[run.raw.rindex(SHOWN) :]
    lines = [line.strip() for line in CODES.sub("", last).splitlines() if line.strip()]
    said = "\n".join(lines)
    assert lines[-1].startswith("REHEARSAL undecided: no GPU was tested")
    assert "UNDECIDED" in said
    assert "stopped by SIGINT" in said
    assert "MHz" not in said
    assert (tmp_path / "out/verdict.json").exists()


def test_findings_scroll_by_above_the_table(screen):
    run = screen()
    run.wait_for(r"pass  host\.cpu\.cores on ")
    run.wait_for(r"1?\d of \d+ findings")
    assert COLOURS.search(run.raw)
    assert run.stop() == 11


@pytest.mark.parametrize(
    ("environment", "codes"),
    [({"NO_COLOR": "1"}, COLOURS), pytest.param({"TERM": "dumb"}, CODES, marks=pytest.mark.long)],
)
def test_a_terminal_that_wants_no_colours_gets_none(screen, environment, codes):
    run = screen(**environment)
    run.wait_for(r"pass  host\.cpu\.cores on ")
    assert run.stop() == 11
    found = {
        code for code in codes.findall(run.raw) if re.search(r"[34]\d|38;", code) or codes is CODES
    }
    assert found == set()
    assert "stopped by SIGINT" in re.sub(r"\s+", " ", run.text)


@pytest.mark.long
def test_a_narrow_terminal_is_no_reason_to_fail(screen):
    run = screen(columns=30)
    run.wait_for("cpu1")
    assert run.stop() == 11
    assert "Traceback" not in run.text
    assert run.raw.rindex(SHOWN) > run.raw.rindex(HIDDEN)
