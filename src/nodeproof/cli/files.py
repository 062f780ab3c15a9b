"""The files of a run: an empty place at the start, all five at the end, whatever happened."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import importlib
import os
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from nodeproof import manifest, results
from nodeproof.reports import summary
from nodeproof.results import FILE, Results
from nodeproof.verdict import Decision, Verdict, decide_any

LOG = "pytest.log"
LOCK = ".nodeproof-lock"
_REPORTS = {
    "verdict.json": "json",
    "junit.xml": "junit",
    "metrics.prom": "prometheus",
    "report.html": "html",
}
_ROOM = 1 << 20  # bytes that have to fit: a run that can't write its findings has no verdict


class Full(Exception):  # noqa: N818  a state of the disk
    """The place is right, and has no room."""


def prepare(output: Path) -> Path:
    """Make the directory, remove the files of an earlier run, and see that it takes data.

    A verdict of yesterday must not be there to be taken for today's. Raises `ValueError` where
    nothing may be written, `Full` where nothing fits.
    """
    probe = output / ".nodeproof-room"
    try:
        output.mkdir(parents=True, exist_ok=True)
        _lock(output)
        for name in (*_REPORTS, FILE, LOG):
            (output / name).unlink(missing_ok=True)
        with probe.open("wb") as file:
            file.write(bytes(_ROOM))
            file.flush()
            os.fsync(file.fileno())
    except BlockingIOError:
        raise ValueError(f"another run writes to {output}; give another --output") from None
    except OSError as error:
        what = f"results can't be written to {output}: {error.strerror}"
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise Full(f"{what}: make room or give another --output") from None
        raise ValueError(f"{what}; give another --output") from None
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
    return output.absolute()


def _lock(output: Path) -> None:
    """Keep every other run out of `output` until this process ends."""
    descriptor = os.open(output / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass  # a file system without locks; another run still shows by its id


def conclude(
    output: Path,
    *,
    run_id: str,
    doubt: str,
    rehearsal: bool,
    show: Callable[[str], None],
    beside: Sequence[str] = (),
) -> int:
    """Decide from what the run left behind, write every report, say it; return the exit status.

    `beside` names further files of this run, which are told of where they are there.
    """
    found = _results(output, run_id, doubt)
    told = decide_any(found, manifest.shipped())
    trouble = [said for name in _REPORTS if (said := _write(output, name, found, told))]
    there = [name for name in (*beside, FILE, *_REPORTS) if (output / name).exists()]
    where = f"{output}: {' '.join(there)}" if there else "none could be written"
    for line in (*trouble, *summary.lines(told, where, rehearsal=rehearsal)):
        show(line)
    if trouble and told.decision is Decision.ACCEPT:
        return Decision.UNDECIDED.exit_code  # who acts on files would not find what we say
    return told.decision.exit_code


def _results(output: Path, run_id: str, doubt: str) -> Results:
    try:
        found = results.read(output / FILE)
    except OSError as error:
        found = results.assemble([], [f"no results: {error.strerror}"])
    doubts = [doubt] if doubt else []
    if found.plan is not None and found.plan.run_id != run_id:
        doubts.append("the results file is of another run than this one")
    return dataclasses.replace(found, problems=(*found.problems, *doubts))


def _write(output: Path, name: str, found: Results, told: Verdict) -> str:
    path = output / name
    try:
        text: str = importlib.import_module(f"nodeproof.reports.{_REPORTS[name]}").render(
            found, told
        )
        fresh = path.with_suffix(".new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)  # a reader sees a whole file or none
    except OSError as error:
        return f"{path} could not be written: {error.strerror}"
    except Exception:  # noqa: BLE001  a bug in a report may not cost the verdict
        return f"{path} could not be made, which is a bug of nodeproof: {traceback.format_exc()}"
    return ""
