"""NVIDIA's own all_reduce_perf as a second witness: find it, drive it, and trust little of it.

Options and traps from NVIDIA/nccl-tests at a0b82b2 (v2.19.6), src/common.cu: it says 0 to an option
that it does not know and shows its usage; built without MPI and started by mpirun it runs once
for each rank, alone; sizes vanish where memory is short; -T ends a collective that hangs, but not
an init that does. Its JSON file (-J) holds the environment, so it is written to a folder of our
own, read, and gone.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodeproof.nccl_tests import perf_json
from nodeproof.parsers import nccl_tests_text
from nodeproof.parsers.nccl_table import table_of
from nodeproof.parsers.reading import Grade, Reading

PROGRAM = "all_reduce_perf"
_FOLDERS = "/opt/nccl-tests/build:/usr/local/cuda/bin:/usr/local/bin"  # beside PATH
_MOST = 1 << 22  # bytes of output that are read; a sweep prints 10 KiB
_USAGE_S = 15.0
_GRACE_S = 5.0  # from SIGTERM to SIGKILL
_REAP_S = 2.0
_HOST = re.compile(r"\bPid +\d{1,9} on +(\S{1,255}) device\b")
_ORDER = (Grade.FAIL, Grade.ERROR, Grade.WARN, Grade.PASS)


class MissingError(RuntimeError):
    """There is no such program. Says where it was looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be measured, and who has to take part."""

    least_bytes: int
    most_bytes: int
    ranks: int  # in all
    factor: int = 2
    iterations: int = 20
    warm_ups: int = 5
    gpus: int = 1  # of each process
    collective_s: float = 60.0  # for one collective, by its own -T
    hosts: tuple[str, ...] = ()  # the nodes' names; none: whichever

    @property
    def sizes(self) -> list[int]:
        """The size column. Raises `ValueError` for what would be no sweep."""
        return perf_json.sizes(self.least_bytes, self.most_bytes, self.factor)


def find(given: str = "") -> str:
    """Path of the program: `given`, or the one on PATH. Raises `MissingError`."""
    name = given or PROGRAM
    path = shutil.which(name) or shutil.which(name, path=_FOLDERS)
    if path is None:
        where = f"{name} is no program" if "/" in name else f"{name} is not on PATH"
        raise MissingError(f"{where}; build nccl-tests with MPI=1, or name the program")
    return path


def measure(
    asked: Asked,
    *,
    program: str,
    launcher: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    deadline_s: float,
) -> Reading:
    """Run the program once, behind `launcher` (such as "mpirun -n 16") if any, and judge it.

    The grade is the worst of what its text and its JSON file say; a program that can't be started,
    hangs, dies or says less than was asked is an error, and never a pass. At `deadline_s` the
    process and what it started are told to end, and killed. The fields are those of
    `nccl_tests_text`, with `rows` and `hosts`, `source` ("json" or "text"), `command`, `status`
    (`None`: killed by us), `took_s` and `said`, the end of its output.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="nodeproof-") as folder:
        usage = _Ended.of([program, "-h"], environment, folder, min(_USAGE_S, deadline_s))
        known = usage.text
        if "--minbytes" not in known:
            why = f"{program} -h does not show the usage of nccl-tests: {usage.ending}"
            return Reading(grade=Grade.ERROR, why=why, fields={"said": known[-2000:]})
        file = Path(folder) / "result.json" if "--output_file" in known else None
        command = [*launcher, program, *_options(asked, known, file)]
        left = max(1.0, deadline_s - (time.monotonic() - started))
        ended = _Ended.of(command, environment, folder, left)
        reading = _of_text(asked, ended)
        if file is not None:
            reading = _worst(_of_file(asked, file), reading)
    fields = {
        **reading.fields,
        "source": "text" if file is None else "json",
        "command": command,
        "status": ended.status,
        "took_s": time.monotonic() - started,
        "said": ended.text[-4000:],
    }
    if ended.status is None and reading.grade is not Grade.FAIL:
        why = f"{program} {ended.ending}; {reading.why}"
        return Reading(grade=Grade.ERROR, why=why, fields=fields)
    if "--average" not in known and reading.grade is Grade.PASS:
        why = f"{program} is too old to give the slowest rank's time: {reading.why}"
        return Reading(grade=Grade.WARN, why=why, fields=fields)
    return Reading(grade=reading.grade, why=reading.why, fields=fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """A process that is over, or was killed (`status` is `None`), and what it printed."""

    status: int | None
    text: str
    ending: str  # for people

    @classmethod
    def of(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str] | None,
        folder: str,
        deadline_s: float,
    ) -> _Ended:
        """Run a command to its end, or to the deadline."""
        with tempfile.TemporaryFile(dir=folder) as output:
            # A file and no pipe: who inherits a pipe and lives on would keep us waiting.
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=None if environment is None else dict(environment),
                    start_new_session=True,
                )
            except OSError as error:
                ending = f"{command[0]} could not be started: {error.strerror or error}"
                return cls(status=127, text="", ending=ending)
            status = _await(process, deadline_s)
            output.seek(0)
            text = output.read(_MOST).decode("utf-8", "backslashreplace")
        ending = f"did not end in {deadline_s:g} s and was killed"
        return cls(
            status=status,
            text=text,
            ending=ending if status is None else f"it ended with status {status}",
        )


def _await(process: subprocess.Popen[bytes], deadline_s: float) -> int | None:
    """Exit status of a process; `None` where it had to be killed. Nothing of its group stays."""
    try:
        return process.wait(deadline_s)
    except subprocess.TimeoutExpired:
        # Asked first: a launcher ends its ranks on other nodes then, which no signal of ours reaches.
        _signal(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        return None
    finally:
        _signal(process, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_REAP_S)
        _end_session(process.pid)


def _end_session(leader: int) -> None:
    """Kill what a launcher started in groups of their own, as Open MPI does, and left behind."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):  # it is over, or no process
            number = int(entry.name)
            if os.getsid(number) == leader:
                os.kill(number, signal.SIGKILL)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _options(asked: Asked, known: str, file: Path | None) -> list[str]:
    options = {
        "-b": asked.least_bytes,
        "-e": asked.most_bytes,
        "-f": asked.factor,
        "-g": asked.gpus,
        "-n": asked.iterations,
        "-w": asked.warm_ups,
        "-c": 1,
    }
    if "--average" in known:
        options["-a"] = 3  # the slowest rank's time
    if "--timeout" in known:
        options["-T"] = max(1, round(asked.collective_s))
    listed = [str(part) for pair in options.items() for part in pair]
    return listed if file is None else [*listed, "-J", str(file)]


def _of_file(asked: Asked, file: Path) -> Reading:
    if not file.is_file():
        why = f"{PROGRAM} left no JSON file: does it run on another node than this?"
        return Reading(grade=Grade.ERROR, why=why)
    if len(found := sorted(file.parent.glob(f"{file.name}*"))) > 1:
        why = f"{len(found)} runs wrote a file of their own: built without MPI?"
        return Reading(grade=Grade.ERROR, why=why)
    data = file.read_bytes()
    return perf_json.read(data, sizes=asked.sizes, ranks=asked.ranks, hosts=asked.hosts)


def _of_text(asked: Asked, ended: _Ended) -> Reading:
    context = {"exit_status": ended.status, "ranks_expected": asked.ranks, "idle": True}
    reading = nccl_tests_text.read(ended.text.encode(), context)
    rows, hosts = _shown(ended.text)
    fields = {**reading.fields, "rows": rows, "hosts": hosts}
    if reading.grade in {Grade.FAIL, Grade.ERROR}:
        return Reading(grade=reading.grade, why=reading.why, fields=fields)
    if ended.status is None:
        return Reading(grade=Grade.ERROR, why="its output is whole", fields=fields)
    sizes = [row["size"] for row in rows]
    if sizes != asked.sizes:
        why = f"rows of {len(sizes)} sizes are shown where {len(asked.sizes)} were asked for"
        return Reading(grade=Grade.ERROR, why=why, fields=fields)
    wanted = {host.partition(".")[0].lower() for host in asked.hosts}
    if reading.fields["ranks"] is None:
        return Reading(grade=Grade.ERROR, why="who took part is not shown", fields=fields)
    if wanted and set(hosts) != wanted:
        why = f"ranks ran on {', '.join(hosts)} where {', '.join(sorted(wanted))} are expected"
        return Reading(grade=Grade.ERROR, why=why, fields=fields)
    return Reading(grade=reading.grade, why=reading.why, fields=fields)


def _shown(text: str) -> tuple[list[dict[str, Any]], list[str]]:
    rows = [
        {
            "size": row.size,
            "out_of_place": {"algbw": _known(row.algbw[0]), "busbw": _known(row.busbw[0])},
            "in_place": {"algbw": _known(row.algbw[1]), "busbw": _known(row.busbw[1])},
        }
        for row in table_of(text).rows
    ]
    return rows, sorted({host.partition(".")[0].lower() for host in _HOST.findall(text)})


def _known(figure: float) -> float | None:
    return figure if math.isfinite(figure) else None


def _worst(file: Reading, text: Reading) -> Reading:
    """What both witnesses come to: the worse grade, with the fuller fields of the file."""
    worse = min(file, text, key=lambda reading: _ORDER.index(reading.grade))
    fields = {**text.fields, **file.fields}
    return Reading(grade=worse.grade, why=worse.why, fields=fields)
