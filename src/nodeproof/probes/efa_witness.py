"""What libfabric's own tool says of EFA: a witness beside the kernel's files."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from typing import Any

from nodeproof.parsers import fi_info
from nodeproof.parsers.reading import Grade

_FOLDER = "/opt/amazon/efa/bin"  # where Amazon's installer puts it, which is on no default path
_MOST = 1 << 20  # bytes; 32 devices with four endpoints each take 30 KiB
DEADLINE_S = 15.0  # it opens every device; a second is usual for 32 of them
_REAP_S = 2.0


def ask(*, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
    """Run `fi_info -p efa`: `installed`, `answered`, `devices` (names), `says` (a sentence).

    A tool that hangs is killed with what it started; one in an uninterruptible call is left behind.
    """
    path = shutil.which("fi_info") or shutil.which("fi_info", path=_FOLDER)
    if path is None:
        return _silent(f"fi_info is neither on PATH nor in {_FOLDER}", installed=False)
    with tempfile.TemporaryFile() as output:
        # A file and no pipe: who inherits a pipe and lives on would keep us waiting.
        try:
            process = subprocess.Popen(
                [path, "-p", "efa"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return _silent(f"{path} could not be started: {error.strerror or error}")
        try:
            status = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            return _silent(f"{path} -p efa did not end in {deadline_s:g} s and was killed")
        finally:
            _end(process)
        output.seek(0)
        text = output.read(_MOST)
    return _heard(path, text, status)


def _heard(path: str, text: bytes, status: int) -> dict[str, Any]:
    # libfabric ends with the error number of fi_getinfo(3), and prints it too.
    reading = fi_info.read(text, {"efa_expected": True, "exit_status": status})
    facts = reading.fields["facts"]
    if reading.grade is Grade.ERROR:
        said = text.decode("utf-8", "backslashreplace").strip()[:200]
        return _silent(f"{path} -p efa: {reading.why}; it printed {said!r}")
    return {
        "installed": True,
        "answered": True,
        "devices": facts["efa_devices"],
        "says": reading.why,
    }


def _silent(says: str, *, installed: bool = True) -> dict[str, Any]:
    return {"installed": installed, "answered": False, "devices": [], "says": says}


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_S)
