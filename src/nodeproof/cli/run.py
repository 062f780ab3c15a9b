"""`nodeproof run`: start the suites, show how they go, decide, write the files; whatever happens.

The suites run in a pytest process of their own, and what touches a device in workers of that
process. This one only reads the results file as it grows, so that nothing a driver does to the
others can keep it from a verdict.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from nodeproof import lifeline
from nodeproof.cli import dispatching, files, options, view
from nodeproof.results import FILE

_SENTENCE = re.compile(r"^(?:ERROR: |!+ _pytest\.outcomes\.Exit: )nodeproof: (.*)")
_REPLAY = (
    "REPLAY of {file}, profile {profile}: nothing is asked of this machine; "
    "this run can never release a node"
)
_STOP_S = 8.0  # for pytest to end its workers after SIGTERM; the reports take the rest of 15 s
_OVERTIME_S = 30.0  # past the deadline: pytest has to be over, or is ended
_TICK_S = 0.2


def main(args: argparse.Namespace) -> int:
    """Run and return the exit status of the verdict."""
    try:
        told = options.read(args)
        default = "nodeproof-replay" if args.replay else "nodeproof-results"
        output = files.prepare(args.output or Path(default))
    except ValueError as error:
        print(f"nodeproof: {error}", file=sys.stderr)
        return 2
    except files.Full as error:
        print(f"nodeproof: undecided: {error}", file=sys.stderr)
        return 11
    args.run_id = told.run_id
    shown = view.of(sys.stdout, deadline_s=told.deadline_s)
    if args.replay:
        shown.line(_REPLAY.format(file=args.replay, profile=args.profile))
    else:
        shown.opening(target=args.device, cpu_devices=args.cpu_devices, profile=args.profile)
    lifeline.adopt_orphans()
    with shown, tempfile.TemporaryDirectory(prefix="nodeproof-") as scratch:
        ended = supervise(
            command(args, output, Path(scratch)), output, deadline_s=told.deadline_s, shown=shown
        )
    if ended.usage:
        print(f"nodeproof: {ended.usage}", file=sys.stderr)
        return 2
    for pid in lifeline.end_children():
        shown.line(f"process {pid} cannot be killed: reboot the node")
    status = files.conclude(
        output,
        run_id=told.run_id,
        doubt=ended.doubt,
        rehearsal=args.device == "cpu" or args.replay is not None,
        show=shown.line,
    )
    unsent = dispatching.send(output, args.dispatch, shown.line) if args.dispatch else ""
    if unsent:
        print(f"nodeproof: undecided: {unsent}", file=sys.stderr)
        return 11
    return status


def command(
    args: argparse.Namespace,
    output: Path,
    scratch: Path,
    suites: Sequence[str] = ("nodeproof.acceptance",),
) -> list[str]:
    """Build the pytest command line; nothing of the user's own pytest settings gets into it."""
    settings = scratch / "pytest.ini"
    settings.write_text("[pytest]\n")
    chosen = {
        "profile": getattr(args, "profile", None),
        "device": args.device,
        "cpu-devices": args.cpu_devices,
        "spec": getattr(args, "spec", None),
        "expect-gpus": getattr(args, "expect_gpus", None),
        "host-root": args.host_root,
        "output": output,
        "run-id": args.run_id,
        "nonce": getattr(args, "nonce", None),
        "node-name": getattr(args, "node_name", None),
        "node-uid": getattr(args, "node_uid", None),
        "deadline": getattr(args, "deadline", None),
        "waivers": getattr(args, "waivers", None),
        "seed": getattr(args, "seed", None),
        "record": getattr(args, "record", None),
        "replay": args.replay.absolute() if getattr(args, "replay", None) else None,
        "group": getattr(args, "group", None),
    }
    ours = [f"--nodeproof-{k}={v}" for k, v in chosen.items() if v not in {None, ""}]
    if args.selftest_only:
        ours.append("--nodeproof-selftest-only")
    plugins = ["-p", "nodeproof.plugin", "-p", "no:cacheprovider"]
    if importlib.util.find_spec("pytest_timeout"):  # by name, since autoload is off
        plugins += ["-p", "pytest_timeout"]
    return [
        sys.executable,
        "-P",  # the current directory must not shadow installed packages
        "-m",
        "pytest",
        "-c",
        str(settings),
        *plugins,
        "--noconftest",
        "--color=no",
        "-ra",
        "--pyargs",
        *suites,
        *ours,
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the pytest process ended."""

    doubt: str = ""  # why its results may not be taken for an accept
    usage: str = ""  # what was wrong with the command line


def supervise(command: list[str], output: Path, *, deadline_s: float, shown: view.View) -> Ended:
    """Run pytest to its end, and end it when it should have; show its results as they come."""
    stopped: list[str] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        stopped.append(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    environment = {
        k: v for k, v in os.environ.items() if k not in {"PYTEST_ADDOPTS", "PYTEST_PLUGINS"}
    }
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "NODEPROOF_SUPERVISOR": str(os.getpid())}
    log = output / files.LOG
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches us alone, and we tell it
        )
    ends = time.monotonic() + deadline_s + _OVERTIME_S
    told = ""
    with contextlib.closing(_tail(output / FILE)) as records:
        while process.poll() is None:
            time.sleep(_TICK_S)
            shown.show(next(records))
            if not told and (stopped or time.monotonic() > ends):
                told = f"stopped by {stopped[0]}" if stopped else "ended: it ran past its deadline"
                process.terminate()
                ends = time.monotonic() + _STOP_S
            elif told and time.monotonic() > ends + _STOP_S:
                return Ended(doubt="the test process cannot be killed: reboot the node")
            elif told and time.monotonic() > ends:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        shown.show(next(records))
    usage = _usage(log) if process.returncode == 4 else ""  # pytest.ExitCode.USAGE_ERROR
    if told:
        return Ended(doubt=f"the run was {told}")
    if process.returncode in {0, 1} or usage:
        return Ended(usage=usage)
    return Ended(doubt=_crash(process.returncode, log))


def _crash(code: int, log: Path) -> str:
    if code < 0:
        return f"the test process was killed by {signal.Signals(-code).name}"
    said = _usage(log)
    return f"the test process ended with status {code}" + (f": {said}" if said else f", see {log}")


def _usage(log: Path) -> str:
    """The sentence that the plugin gave pytest to end with."""
    for line in log.read_text(errors="replace").splitlines():
        said = _SENTENCE.search(line)
        if said:
            return said[1].rstrip("! ")
    return ""


def _tail(path: Path) -> Generator[list[bytes]]:
    """Yield, each time it is asked, the whole lines that a growing file has got since."""
    rest, place = b"", 0
    while True:
        try:
            with path.open("rb") as file:
                file.seek(place)
                data = file.read()
        except OSError:
            data = b""
        place += len(data)
        *lines, rest = (rest + data).split(b"\n")
        yield lines
