"""Members that somebody else's launcher starts: mpirun of Open MPI or MPICH, or torchrun.

The head stands outside of it. A launcher that fails kills what it started and returns what it
likes, so its exit status decides nothing. `Launched` keeps it in a process of its own, the keeper,
which becomes the parent of all that the launcher leaves behind, in whatever session: when the
launcher is over, so are they.

    python -P -m nodeproof.fabric.launching PARENT GRACE LAUNCHER…    (only for `Launched`)
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import FrameType

from nodeproof import lifeline
from nodeproof.fabric.wire import TOKEN

GRACE_S = 5.0  # between SIGTERM and SIGKILL
_REAP_S = 7.0  # after SIGKILL: lifeline waits 5 s for what is stuck
_VERSION_S = 20.0  # for `mpirun --version`
_TICK_S = 0.1
_TAIL = 64 * 1024  # bytes of the launcher's log that are searched for sentences
_OURS = "nodeproof: "  # begins what a member, or the keeper, says to the user
_REASONS = 2  # of the sentences that stand in the log, the first
_STUCK = "cannot be killed: reboot the node"
_WHERE = {  # options and variables by which mpirun learns of other machines
    *("-H", "-f", "-host", "--host", "-hosts", "--hosts", "-hostfile", "--hostfile"),
    *("-machinefile", "--machinefile", "-hostlist", "--default-hostfile", "--add-hostfile"),
    *("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile", "HYDRA_HOST_FILE"),
    *("I_MPI_HYDRA_HOST_FILE", "SLURM_JOB_ID", "PBS_NODEFILE", "LSB_HOSTS", "PE_HOSTFILE"),
}
_PLACING = {"--map-by", "-map-by", "--npernode", "-npernode", "-N", "-ppn", "-perhost"}
_BINDING = {"--bind-to", "-bind-to"}

_NO_DRIVER = {  # MPI may load none into a member, which must not hang
    "OMPI_MCA_accelerator": "null",  # Open MPI 5
    "OMPI_MCA_mpi_cuda_support": "0",  # Open MPI 4
    "MPIR_CVAR_ENABLE_GPU": "0",  # MPICH
}


class Launcher(StrEnum):
    """Who starts the members."""

    MPIRUN = "mpirun"
    TORCHRUN = "torchrun"


def command(
    launcher: str,
    *,
    nodes: int,
    head: str,
    member_args: Sequence[str],
    extra: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    join_s: float = 60.0,
) -> tuple[list[str], dict[str, str]]:
    """Return the command line that starts `nodes` members, and what its environment needs more.

    `launcher` is one of `Launcher`; `extra` are its own words, which count most. Raises
    `ValueError` with a sentence for the user where there is no such launcher.
    """
    around = os.environ if environment is None else environment
    told = ["--head", head, "--nodes", str(nodes), *member_args]
    if Launcher(launcher) is Launcher.TORCHRUN:
        torchrun = _torchrun(nodes, extra, join_s)
        return [*torchrun, "-m", "nodeproof.fabric.by_torchrun", *told], {}
    mpirun = _mpirun(around)
    if not importlib.util.find_spec("mpi4py"):
        raise ValueError("mpi4py is not installed: pip install 'nodeproof[mpi]'")
    said = _version(mpirun)
    options = {word.partition("=")[0] for word in extra}
    many = not _WHERE.isdisjoint(options) or not _WHERE.isdisjoint(around)
    if "Open MPI" in said or "OpenRTE" in said:
        words = _open_mpi(options, many=many, token=TOKEN in around)
    elif "HYDRA" in said or "Intel(R) MPI" in said:
        words = ["-ppn", "1"] if many and not options & _PLACING else []
    else:
        raise ValueError(f"{mpirun} is neither of Open MPI nor of MPICH: {said[:80]!r}")
    # What stands on the user's own command line is read later, and counts. Through mpi4py's own
    # runner an uncaught exception in one rank ends all.
    member = [sys.executable, "-P", "-m", "mpi4py", "-m", "nodeproof.fabric.by_mpi", *told]
    return [mpirun, *words, "-n", str(nodes), *extra, *member], dict(_NO_DRIVER)


def _open_mpi(options: set[str], *, many: bool, token: bool) -> list[str]:
    words = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    if not options & _BINDING:
        words += ["--bind-to", "none"]  # a member's workers inherit its processors
    if not options & _PLACING:
        # One a node; on one machine there may be more of them than it has whole cores.
        words += ["--map-by", "ppr:1:node" if many else ":OVERSUBSCRIBE"]
    # MPICH hands the whole environment on, Open MPI only what is named.
    return [*words, "-x", TOKEN] if token else words


def _torchrun(nodes: int, extra: Sequence[str], join_s: float) -> list[str]:
    if not importlib.util.find_spec("torch"):
        raise ValueError("torch is not installed: pip install 'nodeproof[node]'")
    return [
        *(sys.executable, "-P", "-m", "torch.distributed.run"),
        *("--nnodes", "1", "--nproc-per-node", str(nodes), "--max-restarts", "0"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),  # a free port
        *("--rdzv-conf", f"join_timeout={join_s:.0f}"),  # 600 s unless told
        *extra,
        *("--no-python", sys.executable, "-P"),
    ]


def _mpirun(around: Mapping[str, str]) -> str:
    # First the one that was installed with the interpreter, and so with its mpi4py.
    beside = str(Path(sys.executable).parent)
    found = shutil.which("mpirun", path=os.pathsep.join([beside, around.get("PATH", "")]))
    if not found:
        raise ValueError(
            f"there is no mpirun on the PATH or in {beside}: install Open MPI or MPICH, or use "
            "--launcher static"
        )
    return found


def _version(mpirun: str) -> str:
    try:
        done = subprocess.run(
            [mpirun, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_VERSION_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"{mpirun} --version did not end within {_VERSION_S:g} s") from None
    except OSError as error:
        raise ValueError(f"{mpirun} can't be started: {error.strerror}") from error
    return done.stdout.strip()


class Launched:
    """A launcher that was started, and all that it starts on this machine.

    Start it from a thread that stays: the kernel ends it with that thread. Members on other
    machines end by themselves when the head closes its connection. Raises `OSError` where nothing
    can be started.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        self.name = Path(words[0]).name
        if words[0] == sys.executable:
            torchrun = "torch.distributed.run" in words
            self.name = "torchrun" if torchrun else "the member of this node"
        self._log = log
        self._grace_s = grace_s
        keeper = [sys.executable, "-P", "-m", "nodeproof.fabric.launching"]
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [*keeper, str(os.getpid()), str(grace_s), *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=dict(os.environ if environment is None else environment),
                start_new_session=True,  # Ctrl-C reaches the head alone, which tells it
            )

    def poll(self) -> str:
        """Say how it ended, `""` while it runs. The status is told, and decides nothing."""
        status = self._process.poll()
        if status is None:
            return ""
        if status < 0:  # the keeper itself
            return f"{self.name} and its keeper were killed by {signal.Signals(-status).name}"
        reasons = "; ".join(self.said()[:_REASONS]) if status else ""
        return f"{self.name} ended with status {status}" + (f": {reasons}" if reasons else "")

    def said(self) -> list[str]:
        """Sentences for the user that members or the keeper left in the log, each once."""
        try:
            text = self._log.read_bytes()[-_TAIL:].decode(errors="replace")
        except OSError:
            return []
        ours = [line.partition(_OURS)[2].strip() for line in text.splitlines() if _OURS in line]
        return list(dict.fromkeys(ours))

    def end(self) -> list[str]:
        """End all of it: SIGTERM, a grace, SIGKILL. Return a sentence for each that stays."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(self._grace_s + _REAP_S)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(1.0)
        left = [sentence for sentence in self.said() if _STUCK in sentence]
        if self._process.poll() is None:
            left.append(f"process {self._process.pid} (keeper of {self.name}) {_STUCK}")
        return left


def keep(parent: int, grace_s: float, words: Sequence[str]) -> int:
    """Run a launcher to its end, or until we are told to stop, and end all that it leaves."""
    stopped: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        stopped.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    lifeline.adopt_orphans()
    if not lifeline.end_with(parent, signal.SIGTERM):
        return 1  # the head has gone already
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            # It ends with us, even if we are killed. No thread is running that could hold a lock.
            preexec_fn=partial(lifeline.end_with, os.getpid(), signal.SIGTERM),  # noqa: PLW1509
        )
    except OSError as error:
        sys.stderr.write(f"{_OURS}{words[0]} can't be started: {error.strerror}\n")
        return 127
    while process.poll() is None and not stopped:
        time.sleep(_TICK_S)
    if process.poll() is None:
        process.terminate()  # it alone: it tells its ranks, wherever they are
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    if process.poll() is None:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
    _report(lifeline.end_children())
    status = process.poll()
    if status is None:
        return 1  # it is among those that were reported
    return status if status >= 0 else 128 - status  # as a shell says it


def _report(stuck: Iterable[int]) -> None:
    for pid in stuck:
        sys.stderr.write(f"{_OURS}process {pid} {_STUCK}\n")


if __name__ == "__main__":
    sys.exit(keep(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
