"""NVIDIA's DCGM, where it is installed: its diagnostic and its health check, through `dcgmi`.

The command is a child with a deadline of its own, since it hangs where the driver does. Whatever
becomes of it is an answer: `state` says which, and `why` what to do.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import IO, Any

from nodeproof.model import Profile
from nodeproof.parsers import dcgm_discovery, dcgm_health_text, dcgm_json
from nodeproof.parsers.dcgm_refusal import State, first_words, refusal
from nodeproof.parsers.reading import Grade, Reading, text_of
from nodeproof.probes import pci
from nodeproof.probes.tree import Tree, Unreadable
from nodeproof.worker import Context

# Level 1 takes seconds, 2 some minutes, 3 a quarter of an hour and more (DCGM user guide).
LEVELS = {Profile.QUICK: 1, Profile.GATE: 1, Profile.DEEP: 2, Profile.SOAK: 3}
DEADLINE_S = {1: 60.0, 2: 900.0, 3: 2700.0, 4: 10_800.0}
# On SIGTERM, dcgmi tells the host engine to stop the tests and waits up to 25 s for that
# (dcgmi/Diag.cpp); killed at once, it would leave them running on the GPUs.
GRACE_S = 30.0
LONGEST_S = DEADLINE_S[4] + 2 * GRACE_S
_ASK_S = 20.0  # for what only reads
_REAP_S = 5.0
_TICK_S = 0.05
_MOST = 8 << 20  # bytes; the diagnostic of 16 GPUs prints some 100 KiB


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What a command printed and how it ended. `status` is None where it had to be killed."""

    output: bytes
    errors: str
    status: int | None
    trouble: str = ""

    @property
    def text(self) -> str:
        return f"{text_of(self.output)}\n{self.errors}"


def diag(
    context: Context,
    *,
    level: int | None = None,
    host: str = "",
    nvlink: bool | None = None,
    deadline_s: float | None = None,
    grace_s: float = GRACE_S,
) -> dict[str, Any]:
    """Work function: `dcgmi diag -j` at `level`, or at what the profile has time for.

    `host` is the address of the host engine, where it isn't this machine's. `nvlink` false: links
    that are down are none. The answer has `installed` (0 or 1), `state`, `grade`, `why`, and where
    it ran `level`, `version`, `counts` by status, `failed` with `uuid` and `pci` as far as DCGM
    tells them, and `skipped`, the names of the tests. Raises `ValueError` for a level that DCGM
    does not have.
    """
    level = LEVELS[Profile(context.profile)] if level is None else level
    if level not in DEADLINE_S:
        raise ValueError(f"level {level}: dcgmi diag has {', '.join(map(str, DEADLINE_S))}")
    dcgmi = shutil.which("dcgmi")
    if dcgmi is None:
        return _absent()
    given = deadline_s or DEADLINE_S[level]
    context.progress(step=f"running dcgmi diag -r {level}")
    words = [dcgmi, "diag", *_at(host), "-j", "-r", str(level)]
    said = _run(words, deadline_s=given, grace_s=grace_s)
    known: dict[str, Any] = {"exit_status": said.status, "nvlink_expected": nvlink}
    with contextlib.suppress(Unreadable):
        known["gpus_expected"] = len(pci.gpus(Tree(root=context.host_root)))
    reading = dcgm_json.read(said.output, known)
    tests = reading.fields["tests"]
    failed = reading.fields["failed"]
    if failed:
        failed = _named(failed, [dcgmi, "discovery", *_at(host), "-l"], grace_s)
    return {
        **_answer(said, reading, shown=bool(tests)),
        "level": level,
        "version": reading.fields["version"],
        "counts": {s: sum(t["status"] == s for t in tests) for s in ("pass", "warn", "skip")},
        "skipped": sorted({str(t["name"]) for t in tests if t["status"] == "skip"}),
        "failed": failed,
    }


def health(
    context: Context,
    *,
    host: str = "",
    nvlink: bool | None = None,
    deadline_s: float = _ASK_S,
    grace_s: float = GRACE_S,
) -> dict[str, Any]:
    """Work function: `dcgmi health -c`, what the host engine's watches have seen.

    Watches that nobody set are not set here: that would change what others see. The answer has
    `installed`, `state`, `grade`, `why`, `systems` (that failed) and `failed`, the GPUs with `uuid`
    and `pci` as far as DCGM tells them.
    """
    dcgmi = shutil.which("dcgmi")
    if dcgmi is None:
        return _absent()
    context.progress(step="running dcgmi health -c")
    said = _run([dcgmi, "health", *_at(host), "-c"], deadline_s=deadline_s, grace_s=grace_s)
    known = {"nvlink_expected": nvlink, "exit_status": said.status}
    reading = dcgm_health_text.read(said.output, known)
    facts = reading.fields["facts"]
    failed = [{"gpu": int(g)} for g, state in facts["gpus"].items() if state == "failure"]
    if failed:
        failed = _named(failed, [dcgmi, "discovery", *_at(host), "-l"], grace_s)
    shown = reading.grade is not Grade.ERROR
    return {
        **_answer(said, reading, shown=shown),
        "systems": facts["systems_failed"],
        "failed": failed,
    }


def _at(host: str) -> list[str]:
    return ["--host", host] if host else []


def _absent() -> dict[str, Any]:
    return {
        "installed": 0,
        "state": State.ABSENT.value,
        "grade": Grade.ERROR.value,
        "why": "there is no dcgmi on the PATH: install DCGM (datacenter-gpu-manager), or ask for none",
        "failed": [],
    }


def _answer(said: _Said, reading: Reading, *, shown: bool) -> dict[str, Any]:
    """What holds for every command. `shown`: it printed results, so that it did run."""
    state, why = State.RAN, reading.why
    if said.trouble:
        state, why = State.TIMED_OUT, said.trouble
    elif not shown:
        known = refusal(said.text, said.status)
        state = known.state if known else State.REFUSED
        words = first_words(said.text) or "nothing"
        advice = known.advice if known else "run it by hand and read the host engine's log"
        why = f"{advice} (status {said.status}, it says {words!r})"
    return {
        "installed": 1,
        "state": state.value,
        "status": said.status,
        "grade": reading.grade.value,
        "why": why,
    }


def _named(failed: list[dict[str, Any]], words: list[str], grace_s: float) -> list[dict[str, Any]]:
    """The same with the `uuid` and `pci` of each GPU, as far as DCGM tells which it means."""
    table = _run(words, deadline_s=_ASK_S, grace_s=grace_s)
    known = dcgm_discovery.gpus_of(text_of(table.output))
    return [{"uuid": None, "pci": None, **f, **known.get(f["gpu"], {})} for f in failed]


def _run(words: list[str], *, deadline_s: float, grace_s: float) -> _Said:
    """Run a command to its end, or end it: with its group, and whatever it holds open.

    It writes to files, because a pipe stays open as long as any process that it left behind.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as error:
            return _Said(output=b"", errors=f"{words[0]}: {error.strerror or error}", status=126)
        trouble = _wait(process, output, deadline_s)
        if trouble:
            trouble = f"{' '.join(words[1:2])}: {trouble}{_end(process, grace_s)}"
        return _Said(
            output=_content(output),
            errors=text_of(_content(errors)),
            status=None if trouble else process.returncode,
            trouble=trouble,
        )


def _wait(process: subprocess.Popen[bytes], output: IO[bytes], deadline_s: float) -> str:
    """Wait for its end; why it has to be ended, if it has."""
    ends = time.monotonic() + deadline_s
    while process.poll() is None:
        if time.monotonic() >= ends:
            return (
                f"dcgmi did not come back within {deadline_s:g} s: read the kernel log for what "
                "holds the driver, restart the host engine, and test again"
            )
        if os.fstat(output.fileno()).st_size > _MOST:
            return f"dcgmi printed more than {_MOST >> 20} MiB: run it by hand to see what"
        time.sleep(_TICK_S)
    return ""


def _end(process: subprocess.Popen[bytes], grace_s: float) -> str:
    """End a command with all of its group; what could not be ended, if anything."""
    for number, seconds in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _REAP_S)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    # The first of a group may go and leave others, who took no notice of SIGTERM.
    if process.returncode is not None:
        return ""
    return f"; process {process.pid} can't be killed: reboot the node"


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read(_MOST)
