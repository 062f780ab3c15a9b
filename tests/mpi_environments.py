"""Virtual environments that hold one MPI each, since two in one overwrite each other's mpirun.

Only mpi4py and the MPI are installed there; all else is taken from the interpreter that runs the
tests.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

from conftest import TESTS, need

_CONSTRAINTS = TESTS.parent / "constraints.txt"
_INSTALL_S = 240
OPEN_MPI, MPICH = "openmpi", "mpich"  # as their distributions are called


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """An interpreter that finds one MPI, and that MPI's mpirun beside it."""

    mpi: str
    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin/python")

    @property
    def mpirun(self) -> str:
        return str(self.folder / "bin/mpirun")


def environment(mpi: str, cache: Path) -> Environment:
    """Make it, or take the one that is in `cache`, which several test processes may share."""
    made = Environment(mpi=mpi, folder=cache / mpi)
    whole = made.folder / "whole"
    with (cache / f"{mpi}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = "" if whole.exists() else _install(made)
        if not said:
            whole.touch()
    need(there=not said, what=f"{mpi} and mpi4py by pip: {said}")
    return made


def _install(made: Environment) -> str:
    """Return the reason why it can't be had, `""` where it is there."""
    venv.create(made.folder, with_pip=False, symlinks=True, clear=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    ours = sysconfig.get_path("purelib")
    # addsitedir reads the .pth files there, too: nodeproof may be installed editable.
    pth = made.folder / "lib" / version / "site-packages" / "ours.pth"
    pth.write_text(f"import site; site.addsitedir({ours!r})\n")
    pip = [sys.executable, "-m", "pip", "--python", made.python, "--disable-pip-version-check"]
    try:
        done = subprocess.run(
            [*pip, "install", "--quiet", "--constraint", str(_CONSTRAINTS), "mpi4py", made.mpi],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_INSTALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"pip did not end within {_INSTALL_S} s"
    return done.stderr[-300:] if done.returncode else ""
